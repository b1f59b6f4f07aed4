"""Facts read from a repository's files: the same as git's own answer in every state, and without a git process."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from counting_effects import CountingEffects
from git_repository import Repository
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.objects import Unsure
from musecode_jupyter.workspace.reads import Reader, linked_checkout, reader_of
from musecode_jupyter.workspace.worktrees import Worktree, list_worktrees

BRANCHES = ("main", "side", "deep/er", "v1", "\u00fc")
TAGS = ("v1", "light", "noted", "noted-twice", "of-a-tree")
NAMES = (
    *("HEAD", "main", "side", "deep/er", "deep", "v1", "light", "noted", "of-a-tree", "none", "config", "main~1", "@"),
    *(f"refs/heads/{name}" for name in BRANCHES),
    *(f"refs/tags/{name}" for name in TAGS),
    *("refs/heads/none", "refs/heads/main/under", "refs/other/x", "refs/bisect/mine", "refs/heads/linked", "0" * 40),
)


def committed(repo: Repository, parents: list[str], time: int) -> str:
    """A commit with these parents and this date, on no branch."""
    tree = repo.git("hash-object", "-t", "tree", "-w", "/dev/null")
    above = "".join(f"parent {parent}\n" for parent in parents)
    text = f"tree {tree}\n{above}author A <a@b> 1 +0100\ncommitter C <c> {time} -0130\n\nparent {'1' * 40}\n"
    return repo.git("hash-object", "-t", "commit", "-w", "--stdin", input=text)


class World:
    """A repository to which things happen that move refs and objects about."""

    def __init__(self, folder: Path, choose: random.Random) -> None:
        self.choose, self.trees = choose, folder / "trees"
        self.repo = Repository(folder / "repo")
        self.repo.root.mkdir()
        self.repo.git("init", "-q", "-b", "main")
        self.ids: list[str] = []
        self.there: list[str] = []
        self.add(self.repo.commit({"a.txt": "a\n"}))
        self.repo.git("update-ref", "refs/anchor", "HEAD")

    def add(self, commit: str) -> None:
        self.ids.append(commit)
        self.there.append(commit)

    def commit(self) -> None:
        """A commit with up to three parents and any date: clocks are wrong at times."""
        parents = self.choose.sample(self.there, min(len(self.there), self.choose.choice((0, 1, 1, 2, 3))))
        self.add(committed(self.repo, parents, self.choose.randrange(10**8, 2 * 10**9)))

    def branch(self) -> None:
        name = f"refs/heads/{self.choose.choice(BRANCHES)}"
        self.repo.git("update-ref", name, self.choose.choice(self.there), check=False)

    def tag(self) -> None:
        name, target = self.choose.choice(TAGS), self.choose.choice(self.there)
        if name == "of-a-tree":
            self.repo.git("tag", "-f", "-a", "-m", "tree", name, f"{target}^{{tree}}")
        elif name.startswith("noted"):
            of = "noted" if name == "noted-twice" and self.repo.git("tag", "-l", "noted") else target
            self.repo.git("tag", "-f", "-a", "-m", "note", name, of)
            self.add(self.repo.git("rev-parse", f"refs/tags/{name}^{{commit}}"))
        else:
            self.repo.git("tag", "-f", name, target)

    def delete(self) -> None:
        kind, names = self.choose.choice((("heads", BRANCHES), ("tags", TAGS)))
        self.repo.git("update-ref", "-d", f"refs/{kind}/{self.choose.choice(names)}", check=False)

    def pack(self) -> None:
        self.repo.git("pack-refs", "--all", *(["--no-prune"] if self.choose.random() < 0.3 else []))

    def collect(self) -> None:
        """Everything into one pack, in a new one each time; or what no ref holds is gone."""
        if self.choose.random() < 0.5:
            self.repo.git("repack", "-q", "-a", "-d", "-f", "--depth=50", check=False)
        else:
            self.repo.git("-c", "gc.reflogExpire=now", "gc", "-q", "--prune=now", check=False)
        answers = gits_answers(self.repo, self.repo.root, self.there)
        self.there = [name for name, answer in zip(self.there, answers, strict=True) if answer == name]

    def link(self) -> None:
        target = self.choose.choice(("refs/heads/side", "refs/heads/none", "refs/other/x"))
        self.repo.git("symbolic-ref", "refs/other/x", target, check=False)

    def damage(self) -> None:
        file = self.repo.root / ".git" / "refs" / "heads" / "side"
        content = self.choose.choice(
            ("", "nonsense\n", "1" * 40 + "\n", self.ids[0].upper() + "\n", self.ids[0] + " x")
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)

    def private(self) -> None:
        for tree in (self.repo.root, *sorted(self.trees.glob("*"))):
            self.repo.git("update-ref", "refs/bisect/mine", self.choose.choice(self.there), cwd=tree, check=False)

    def worktree(self) -> None:
        path = self.trees / self.choose.choice(("one", "t w\u00f6"))
        if path.exists():
            if self.choose.random() < 0.5:
                shutil.rmtree(path)
            self.repo.git("worktree", self.choose.choice(("remove", "lock", "unlock")), str(path), check=False)
        else:
            start = self.choose.choice((["-B", "linked"], ["--detach"], ["--lock", "--detach"]))
            self.repo.git("worktree", "add", "-q", "-f", *start, str(path), self.choose.choice(self.there), check=False)

    def move(self) -> None:
        if self.choose.random() < 0.5:
            self.repo.git("update-ref", "--no-deref", "HEAD", self.choose.choice(self.there), check=False)
        else:
            self.repo.git("symbolic-ref", "HEAD", "refs/heads/main")


async def outcome(asked: object) -> object:
    try:
        return await asked  # type: ignore[misc]
    except GitError:
        return GitError


def gits_answers(repo: Repository, cwd: Path, questions: list[str]) -> list[object]:
    text = "".join(f"{question}\n" for question in questions)
    out = repo.git("cat-file", "--batch-check=%(objectname)", cwd=cwd, input=text)
    return [GitError if line.endswith(" missing") else line for line in out.split("\n")]


def gits_ancestry(repo: Repository, older: str, newer: str) -> bool:
    try:
        repo.git("merge-base", "--is-ancestor", older, newer)
    except subprocess.CalledProcessError as error:
        if error.returncode != 1:
            raise
        return False
    return True


def gits_worktrees(repo: Repository) -> list[Worktree]:
    found = []
    for record in repo.git("worktree", "list", "--porcelain", "-z").split("\0\0"):
        fields = dict(line.partition(" ")[::2] for line in record.split("\0") if line)
        if fields:
            path, branch = Path(fields["worktree"]), fields.get("branch")
            short = None if branch is None else branch.removeprefix("refs/heads/")
            commit = fields["HEAD"] if fields["HEAD"].strip("0") else None
            found.append(Worktree(path, commit, short, fields.get("locked"), not os.path.lexists(path)))
    return found


async def compare(world: World, tree: Path) -> None:
    """Every question, asked of us and of git, from one checkout."""
    repo, git = world.repo, await Git.discover(tree, LiveEffects())
    names = ["HEAD", *world.choose.sample(NAMES, 10), *world.ids[-5:]]
    commits = gits_answers(repo, tree, [f"{name}^{{commit}}" for name in names])
    trees = gits_answers(repo, tree, [f"{name}^{{tree}}" for name in names])
    for name, commit, wanted_tree in zip(names, commits, trees, strict=True):
        assert await outcome(git.resolve(name)) == commit, name
        assert await outcome(git.tree_of(name)) == wanted_tree, name
        if name.startswith("refs/"):
            assert await git.ref(name) == (None if commit is GitError else commit), name
    head = await outcome(git.head())
    branch = repo.git("symbolic-ref", "-q", "HEAD", cwd=tree, check=False)
    if commits[0] is GitError:
        assert head is GitError
    else:
        assert (head.commit, head.ref or "") == (commits[0], branch)  # type: ignore[attr-defined]
    assert await list_worktrees(git) == gits_worktrees(repo)
    for _ in range(3):
        older, newer = world.choose.choice(world.there), world.choose.choice(world.there)
        assert await git.is_ancestor(older, newer) == gits_ancestry(repo, older, newer), (older, newer)
        facts = repo.git("show", "-s", "--format=%ct %P", newer, cwd=tree).split()
        assert [str(await git.committed(newer)), *await git.parents(newer)] == facts


def live(folder: Path, seed: int, steps: int) -> None:
    """So many things happen, then everything is asked, again and again with what was read before in memory."""
    world = World(folder, random.Random(seed))
    happenings = (
        *(world.commit, world.commit, world.commit, world.branch, world.branch, world.tag, world.delete, world.pack),
        *(world.collect, world.link, world.damage, world.private, world.worktree, world.worktree, world.move),
    )
    for number in range(steps):
        world.choose.choice(happenings)()
        if number % 5 == 4:
            trees = [world.repo.root, *(tree for tree in sorted(world.trees.glob("*")) if (tree / ".git").exists())]
            asyncio.run(compare(world, world.choose.choice(trees)))


@given(seed=st.integers(0, 2**32))
@hypothesis_settings(max_examples=4, deadline=None)
def test_every_answer_is_that_of_git(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        live(Path(folder).resolve(), seed, 20)


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="two minutes: run by make crash")
@pytest.mark.timeout(900)
@given(seed=st.integers(0, 2**32))
@hypothesis_settings(max_examples=20, deadline=None)
def test_every_answer_is_that_of_git_in_long_stories(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        live(Path(folder).resolve(), seed, 60)


async def ask_all(git: Git, other: str) -> None:
    head = await git.head()
    assert head.branch is not None
    assert await git.resolve("main") == await git.resolve("HEAD") == await git.ref("refs/heads/main") == head.commit
    assert await git.ref("refs/heads/none") is None
    assert await git.resolve("noted") == other
    assert await git.is_ancestor(other, head.commit)
    assert not await git.is_ancestor(head.commit, other)
    assert len(await git.tree_of(head.commit)) == 40
    assert await git.parents(head.commit) == (other,)
    assert len(await list_worktrees(git)) == 2
    await Git.at_worktree((await list_worktrees(git))[1].path, git.effects)


@pytest.mark.parametrize("how", [(), ("pack-refs", "--all"), ("gc", "-q"), ("repack", "-q", "-a", "-d", "-f")])
def test_the_plain_case_starts_no_process(repo: Repository, how: tuple[str, ...]) -> None:
    other = repo.git("rev-parse", "HEAD")
    repo.git("tag", "-a", "-m", "note", "noted", "HEAD")
    repo.commit({"a.txt": "other\n"})
    repo.git("worktree", "add", "-q", "-b", "linked", str(repo.root.parent / "tree"), "main")
    for place in (repo.root, repo.root.parent / "tree"):
        effects = CountingEffects()
        git = asyncio.run(Git.discover(place, effects))
        asyncio.run(ask_all(git, other))
        if how:
            repo.git(*how)
        effects.commands.clear()
        asyncio.run(ask_all(git, other))
        assert effects.commands == []


def borrowed(repo: Repository) -> None:
    (repo.root / ".git/objects/info").mkdir(exist_ok=True)
    (repo.root / ".git/objects/info/alternates").write_text("/nowhere\n")


def shallow(repo: Repository) -> None:
    (repo.root / ".git/shallow").write_text(repo.git("rev-parse", "HEAD") + "\n")


def grafted(repo: Repository) -> None:
    (repo.root / ".git/info").mkdir(exist_ok=True)
    (repo.root / ".git/info/grafts").write_text(repo.git("rev-parse", "HEAD") + "\n")


def replaced(repo: Repository) -> None:
    repo.git("replace", "HEAD", repo.git("commit-tree", "HEAD~2^{tree}", "-m", "in place of it"))


def replaced_and_packed(repo: Repository) -> None:
    replaced(repo)
    repo.git("pack-refs", "--all")


def extended(repo: Repository) -> None:
    repo.git("config", "core.repositoryFormatVersion", "1")


@pytest.mark.parametrize("make", [borrowed, shallow, grafted, replaced, replaced_and_packed, extended])
def test_what_is_not_understood_is_asked_of_git(repo: Repository, make: object) -> None:
    root = repo.git("rev-parse", "HEAD")
    repo.commit({"a.txt": "2\n"})
    tip = repo.commit({"a.txt": "3\n"})
    git = asyncio.run(Git.discover(repo.root, LiveEffects()))
    assert asyncio.run(git.is_ancestor(root, tip))
    make(repo)  # type: ignore[operator]
    for question in (Reader.head, Reader.worktrees):
        args = (git.git_dir,) if question is Reader.head else ()
        with pytest.raises(Unsure):
            question(reader_of(git.common_dir), *args)  # type: ignore[operator]
    assert asyncio.run(git.head()).commit == asyncio.run(git.ref("refs/heads/main")) == tip
    assert asyncio.run(git.tree_of(tip)) == repo.git("rev-parse", f"{tip}^{{tree}}")
    reached = repo.git("rev-list", tip).split()
    assert asyncio.run(git.is_ancestor(root, tip)) == (root in reached)
    assert asyncio.run(git.is_ancestor(root, tip)) == (make in (borrowed, extended))
    assert list(asyncio.run(git.parents(tip))) == repo.git("show", "-s", "--format=%P", tip).split()


def test_long_ids_and_a_clone_without_objects_are_asked_of_git(repo: Repository, tmp_path: Path) -> None:
    long = Repository(tmp_path / "long")
    long.root.mkdir()
    long.git("init", "-q", "-b", "main", "--object-format=sha256")
    tip = long.commit({"a.txt": "a\n"})
    repo.git("config", "uploadpack.allowFilter", "true")
    repo.git("clone", "-q", "--filter=tree:0", "--no-checkout", f"file://{repo.root}", str(tmp_path / "partial"))
    for root, commit in ((long.root, tip), (tmp_path / "partial", repo.git("rev-parse", "HEAD"))):
        git = asyncio.run(Git.discover(root, LiveEffects()))
        assert asyncio.run(git.head()).commit == commit
        tree = Repository(root).git("rev-parse", f"{commit}^{{tree}}")
        assert asyncio.run(git.tree_of("main")) == asyncio.run(git.tree_of(commit)) == tree


def test_a_packed_commit_that_was_altered_is_not_believed(repo: Repository) -> None:
    repo.commit({"a.txt": "2\n"})
    repo.git("repack", "-q", "-a", "-d")
    git = asyncio.run(Git.discover(repo.root, LiveEffects()))
    head = asyncio.run(git.head()).commit
    repo.git("unpack-objects", "-q", check=False)
    loose = repo.root / ".git/objects" / head[:2] / head[2:]
    loose.parent.mkdir(exist_ok=True)
    other = repo.git("commit-tree", "HEAD^{tree}", "-m", "another")
    shutil.copyfile(repo.root / ".git/objects" / other[:2] / other[2:], loose)
    with pytest.raises(Unsure, match="does not have that content"):
        reader_of(git.common_dir).commit(git.git_dir, head)


def test_a_full_name_stands_for_that_ref_alone(repo: Repository) -> None:
    """git itself would look for a ref that is not there below refs/heads, refs/tags and refs/remotes too."""
    repo.git("update-ref", "refs/heads/refs/heads/none", "HEAD")
    assert repo.git("rev-parse", "refs/heads/none") == repo.git("rev-parse", "HEAD")
    assert asyncio.run(asyncio.run(Git.discover(repo.root, LiveEffects())).ref("refs/heads/none")) is None


def test_a_way_that_is_long_is_asked_of_git_and_wrong_dates_do_not_matter(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    tip = first = repo.git("rev-parse", "HEAD")
    for number in range(30):
        # Each is older than its parent.
        tip = committed(repo, [tip], 1_600_000_000 - number)
    side = committed(repo, [first], 1)
    git = asyncio.run(Git.discover(repo.root, LiveEffects()))
    reader = reader_of(git.common_dir)
    assert reader.is_ancestor(git.git_dir, first, tip)
    assert not reader.is_ancestor(git.git_dir, tip, first)
    assert not reader.is_ancestor(git.git_dir, side, tip)
    monkeypatch.setattr("musecode_jupyter.workspace.reads._MOST_READ", 5)
    again = Reader(git.common_dir)
    with pytest.raises(Unsure, match="the way is long"):
        again.is_ancestor(git.git_dir, side, tip)


def moved(path: Path, repo: Repository) -> None:
    path.rename(path.with_name("elsewhere"))
    shutil.copytree(path.with_name("elsewhere"), path.with_name("copy"))
    path.with_name("copy").rename(path)
    path.with_name("elsewhere").rename(path.with_name("really"))
    (repo.root / ".git/worktrees/tree/gitdir").write_text(f"{path.with_name('really')}/.git\n")


def relative(path: Path, repo: Repository) -> None:
    (path / ".git").write_text(f"gitdir: {os.path.relpath(repo.root / '.git/worktrees/tree', path)}\n")


def headless(path: Path, repo: Repository) -> None:
    (repo.root / ".git/worktrees/tree/HEAD").write_text("")


def configured(path: Path, repo: Repository) -> None:
    repo.git("config", "extensions.worktreeConfig", "true")


def main_checkout(path: Path, repo: Repository) -> None:
    shutil.rmtree(path)
    repo.root.rename(path)


@pytest.mark.parametrize("change", [moved, relative, headless, configured, main_checkout])
def test_only_a_worktree_in_order_is_taken_without_git(repo: Repository, change: object) -> None:
    path = repo.root.parent / "tree"
    repo.git("worktree", "add", "-q", "-b", "linked", str(path), "main")
    known = linked_checkout(path)
    git = asyncio.run(Git.discover(path, LiveEffects()))
    assert known == (git.root, git.git_dir, git.common_dir)
    change(path, repo)  # type: ignore[operator]
    with pytest.raises(Unsure):
        linked_checkout(path)
