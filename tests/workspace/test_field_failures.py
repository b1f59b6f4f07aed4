"""Git as it is met in the field: every state of a repository that broke an agent tool, on real repositories."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from git_repository import Repository

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.landing import (
    CheckoutBlocked,
    RefMoved,
    check_merge,
    land,
    overlap,
    undo_land,
    update_checkout,
)
from musecode_jupyter.workspace.snapshots import diff_of_files, take_snapshot
from musecode_jupyter.workspace.survey import discard, survey
from musecode_jupyter.workspace.worktrees import (
    checkout_detached,
    commit_all,
    create_worktree,
    list_worktrees,
    remove_branch,
    remove_worktree,
)

MAIN = "refs/heads/main"
BACKUP = "refs/musecode/backup/1"
ALLOW = ("-c", "protocol.file.allow=always")


async def discover(path: Path) -> Git:
    return await Git.discover(path, LiveEffects())


def create(repo: Repository, path: Path, base: str = "HEAD") -> Git:
    async def work() -> Git:
        return await create_worktree(await discover(repo.root), path, "musecode/w", base)

    return asyncio.run(work())


def land_worker(repo: Repository, tree: Path) -> str:
    """Commit what is in the worktree, land it on main, bring the checkout along; the commit main is at then."""

    async def work() -> str:
        git = await discover(repo.root)
        commit = await commit_all(await Git.at_worktree(tree, LiveEffects()), "work")
        old = await git.resolve("main")
        check = await check_merge(git, old, commit)
        assert check.commit is not None, check.conflicts
        assert await overlap(git, old, check.commit) == []
        await land(git, MAIN, old, check.commit, BACKUP)
        await update_checkout(git, MAIN, old, check.commit)
        return check.commit

    return asyncio.run(work())


def remove(repo: Repository, tree: Path, contained_in: str = "main") -> list[str]:
    async def work() -> list[str]:
        return await remove_worktree(await discover(repo.root), tree, contained_in)

    return asyncio.run(work())


def status(root: Path) -> list[str]:
    async def work() -> list[str]:
        return await (await discover(root)).status()

    return asyncio.run(work())


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and ".git" not in path.relative_to(root).parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tmp_path / "trees" / "w"


# Submodules, filters


def with_submodule(repo: Repository, tmp_path: Path) -> tuple[str, str]:
    """Give the repository a submodule `lib`; the library's first and second commit."""
    library = Repository(tmp_path / "library")
    library.root.mkdir()
    library.git("init", "-q", "-b", "main")
    first = library.commit({"lib.txt": "one\n"})
    repo.git(*ALLOW, "submodule", "--quiet", "add", str(library.root), "lib")
    repo.git("commit", "-q", "-m", "submodule")
    second = library.commit({"lib.txt": "two\n"})
    repo.git("fetch", "-q", cwd=repo.root / "lib")
    return first, second


def test_a_landed_submodule_commit_leaves_the_users_submodule_folder(repo: Repository, tree: Path) -> None:
    """Bringing a checkout along must not check submodules out: they may hold commits of the user's."""
    _, second = with_submodule(repo, tree.parent.parent)
    create(repo, tree)
    repo.git("update-index", "--cacheinfo", f"160000,{second},lib", cwd=tree)
    repo.git("commit", "-q", "-m", "newer library", cwd=tree)
    land_worker(repo, tree)
    assert repo.git("ls-files", "-s", "lib").split()[1] == second
    assert repo.read("lib/lib.txt") == "one\n"
    assert status(repo.root) == ["lib"]


def test_work_inside_a_submodule_is_neither_committed_blindly_nor_removed(repo: Repository, tree: Path) -> None:
    with_submodule(repo, tree.parent.parent)
    git = create(repo, tree)
    repo.git(*ALLOW, "submodule", "--quiet", "update", "--init", cwd=tree)
    repo.write("lib/lib.txt", "changed by the worker\n", tree)
    with pytest.raises(GitError, match=r"lib in .* is a repository of its own"):
        asyncio.run(commit_all(git, "work"))
    with pytest.raises(GitError, match="uncommitted work that would be lost: lib"):
        remove(repo, tree)
    assert (tree / "lib/lib.txt").read_text() == "changed by the worker\n"


@pytest.mark.parametrize("named", [True, False])
def test_files_where_a_submodule_is_not_checked_out_are_not_lost(repo: Repository, tree: Path, named: bool) -> None:
    """Git tells of none of them, neither as changed nor as untracked: the worktree went with what was written there."""
    with_submodule(repo, tree.parent.parent)
    if not named:
        repo.git("rm", "-q", "--cached", ".gitmodules")
        repo.git("commit", "-q", "-m", "a repository that was added by mistake")
    git = create(repo, tree)
    repo.write("lib/new.txt", "by the worker\n", tree)
    with pytest.raises(GitError, match=r"lib/ in .* is the place of a submodule that is not checked out here"):
        asyncio.run(commit_all(git, "work"))
    with pytest.raises(GitError, match="uncommitted work that would be lost: lib/"):
        remove(repo, tree)

    async def listed() -> tuple[str, str]:
        main = await discover(repo.root)
        (found,) = await survey(main, tree.parent)
        with pytest.raises(GitError) as kept:
            await discard(main, found, "it")
        return found.holds, str(kept.value)

    holds, kept = asyncio.run(listed())
    assert holds == "unsaved: lib/"
    assert "holds lib/, which cannot be kept as a snapshot" in kept
    assert (tree / "lib/new.txt").read_text() == "by the worker\n"


@pytest.mark.parametrize("kind", ["submodule", "separate git folder"])
def test_a_checkout_whose_git_folder_is_elsewhere_is_a_repository_like_others(
    repo: Repository, tmp_path: Path, tree: Path, kind: str
) -> None:
    """git lists `.git/modules/lib` as the main worktree of a submodule, and landing looked for files there."""
    if kind == "submodule":
        with_submodule(repo, tmp_path)
        inner = Repository(repo.root / "lib")
        inner.git("checkout", "-q", "main")
    else:
        inner = Repository(tmp_path / "apart")
        inner.root.mkdir()
        inner.git("init", "-q", "-b", "main", "--separate-git-dir", str(tmp_path / "elsewhere"))
        inner.commit({"lib.txt": "one\n"})
    create(inner, tree)
    inner.write("lib.txt", "three\n", tree)
    land_worker(inner, tree)
    assert inner.read("lib.txt") == "three\n"
    assert status(inner.root) == []

    async def listed() -> list[Path]:
        return [found.path for found in await list_worktrees(await discover(inner.root))]

    assert asyncio.run(listed()) == [inner.root, tree]
    assert remove(inner, tree) == []


def broken_filter(repo: Repository, direction: str) -> None:
    repo.git("config", f"filter.large.{direction}", "echo no such object >&2; false")
    repo.git("config", "filter.large.required", "true")


def test_a_clean_filter_that_fails_stops_the_commit_and_keeps_the_file(repo: Repository, tree: Path) -> None:
    """git-lfs that is set up but not installed: `git add` fails for the files it should take."""
    repo.commit({".gitattributes": "*.bin filter=large\n"})
    git = create(repo, tree)
    repo.write("new.bin", "weights\n", tree)
    broken_filter(repo, "clean")
    with pytest.raises(GitError, match="clean filter 'large' failed"):
        asyncio.run(commit_all(git, "work"))
    assert (tree / "new.bin").read_text() == "weights\n"
    repo.git("config", "filter.large.clean", "cat")
    assert repo.git("show", asyncio.run(commit_all(git, "work")) + ":new.bin") == "weights"


def test_a_smudge_filter_that_fails_in_the_users_checkout_leaves_it_as_it_was(repo: Repository, tree: Path) -> None:
    """git deletes the old file before it asks the filter for the new one, and writes other files before that."""
    repo.commit({".gitattributes": "*.bin filter=large\n", "data.bin": "old\n", "file": "f\n", "z/z": "z\n"})
    create(repo, tree)
    for name in ("a.txt", "dir/c.txt", "file", "z/z"):
        (tree / name).unlink()
    (tree / "dir").rmdir()
    for name in ("data.bin", "b.txt", "a new.txt", "dir", "file/deep", "z/zz/z"):
        repo.write(name, "NEW\n", tree)
    repo.write("mine.txt", "mine\n")
    before = contents(repo.root)
    repo.git("config", "filter.large.clean", "cat")
    repo.git("config", "filter.large.smudge", "grep -v NEW")
    repo.git("config", "filter.large.required", "true")
    old = repo.git("rev-parse", "main")
    with pytest.raises(CheckoutBlocked, match=r"files are as they were: .*smudge filter large failed"):
        land_worker(repo, tree)
    new = repo.git("rev-parse", "main")
    assert contents(repo.root) == before
    assert not (repo.root / ".git/musecode-checkout").exists()

    async def undo() -> bool:
        return await undo_land(await discover(repo.root), MAIN, old, new)

    assert asyncio.run(undo())
    assert status(repo.root) == ["mine.txt"]
    repo.git("config", "filter.large.smudge", "cat")
    land_worker(repo, tree)
    assert (repo.read("data.bin"), repo.read("file/deep"), repo.read("mine.txt")) == ("NEW\n", "NEW\n", "mine\n")
    assert status(repo.root) == ["mine.txt"]


def test_a_filter_that_fails_for_old_and_new_is_named_with_the_way_out(repo: Repository, tree: Path) -> None:
    repo.commit({".gitattributes": "*.bin filter=large\n", "data.bin": "old\n"})
    create(repo, tree)
    repo.write("data.bin", "NEW\n", tree)
    repo.write("b.txt", "B\n", tree)
    repo.write("mine.txt", "mine\n")
    repo.git("config", "filter.large.clean", "cat")
    broken_filter(repo, "smudge")
    old = repo.git("rev-parse", "main")
    with pytest.raises(GitError, match=r"half updated.*data\.bin.*smudge filter large failed"):
        land_worker(repo, tree)

    async def again() -> str:
        return await update_checkout(await discover(repo.root), MAIN, old, "main")

    repo.git("config", "filter.large.smudge", "cat")
    assert "was updated" in asyncio.run(again())
    assert (repo.read("data.bin"), repo.read("b.txt"), repo.read("mine.txt")) == ("NEW\n", "B\n", "mine\n")
    assert status(repo.root) == ["mine.txt"]


# Where HEAD and the `.git` entry are


def test_a_worktree_is_made_from_a_detached_head_and_lands_on_a_branch(repo: Repository, tree: Path) -> None:
    repo.git("checkout", "-q", "--detach")
    create(repo, tree)
    repo.write("b.txt", "B\n", tree)
    land_worker(repo, tree)
    assert repo.git("show", "main:b.txt") == "B"
    assert repo.read("b.txt") == "b\n", "main is checked out nowhere"
    assert remove(repo, tree) == []


def test_a_lost_git_file_stops_everything_that_would_answer_for_the_outer_repository(
    repo: Repository, tmp_path: Path
) -> None:
    outer = Repository(tmp_path / "outer")
    outer.root.mkdir()
    outer.git("init", "-q", "-b", "main")
    outer.commit({"outer.txt": "outer\n"})
    tree = outer.root / "w"
    git = create(repo, tree)
    repo.write("work.txt", "work\n", tree)
    before = outer.git("rev-parse", "HEAD")
    (tree / ".git").unlink()
    with pytest.raises(GitError, match="git worktree repair"):
        asyncio.run(Git.at_worktree(tree, LiveEffects()))
    commit = asyncio.run(commit_all(git, "work"))
    assert repo.git("show", f"{commit}:work.txt") == "work", "the pinned checkout still works for itself"
    assert outer.git("rev-parse", "HEAD") == before
    assert outer.git("status", "--porcelain") == "?? w/"
    with pytest.raises(GitError, match=r"has no \.git entry"):
        remove(repo, tree)


@pytest.mark.parametrize("reason", ["on a stick", ""])
def test_a_locked_worktree_whose_folder_is_gone_stays_known(repo: Repository, tree: Path, reason: str) -> None:
    create(repo, tree)
    repo.git("worktree", "lock", "--reason", reason, str(tree))
    tree.rename(tree.with_name("elsewhere"))
    with pytest.raises(GitError, match="is gone but locked"):
        remove(repo, tree)
    assert str(tree) in repo.git("worktree", "list", "--porcelain")


# Names


@pytest.mark.parametrize("name", ["with space", "new\nline", os.fsdecode(b"latin-\xe9"), "-dash", "ünï"])
def test_folders_with_odd_names_hold_repositories_and_worktrees(tmp_path: Path, name: str) -> None:
    repo = Repository(tmp_path / name / "repo")
    repo.root.mkdir(parents=True)
    repo.git("init", "-q", "-b", "main")
    repo.commit({"b.txt": "b\n", name: "odd\n"})
    tree = tmp_path / name / "trees" / name
    create(repo, tree)
    assert create(repo, tree).root == tree
    repo.write("b.txt", "B\n", tree)
    repo.write(f"{name}.new/{name}", "new\n", tree)
    land_worker(repo, tree)
    assert (repo.read("b.txt"), repo.read(f"{name}.new/{name}")) == ("B\n", "new\n")
    assert remove(repo, tree) == []
    assert not tree.exists()


def test_case_only_renames_land(repo: Repository, tree: Path) -> None:
    create(repo, tree)
    (tree / "b.txt").rename(tree / "B.txt")
    (tree / "dir").rename(tree / "Dir")
    commit = land_worker(repo, tree)
    assert repo.git("ls-tree", "-r", "--name-only", commit).split() == [".gitignore", "B.txt", "Dir/c.txt", "a.txt"]
    assert (repo.read("B.txt"), repo.read("Dir/c.txt"), status(repo.root)) == ("b\n", "c\n", [])


@pytest.mark.parametrize("attributes", ["* text=auto eol=crlf\n", "*.txt text eol=crlf\n", "* -text\n", ""])
def test_line_endings_are_those_that_the_attributes_ask_for_everywhere(
    repo: Repository, tree: Path, attributes: str
) -> None:
    repo.git("config", "core.autocrlf", "true")
    repo.commit({".gitattributes": attributes, "crlf.txt": "one\r\ntwo\r\n"})
    git = create(repo, tree)
    assert asyncio.run(git.status()) == []
    (tree / "crlf.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    (tree / "new.txt").write_bytes(b"new\r\n")
    commit = land_worker(repo, tree)
    stored = subprocess.run(
        ["git", "cat-file", "blob", f"{commit}:new.txt"], cwd=repo.root, capture_output=True, check=True
    ).stdout
    assert stored == (b"new\r\n" if "-text" in attributes else b"new\n")
    for name in ("crlf.txt", "new.txt"):
        assert (repo.root / name).read_bytes() == (tree / name).read_bytes()
    assert status(repo.root) == []
    assert remove(repo, tree) == []


# Parts of a repository


@pytest.mark.parametrize("cone", ["--cone", "--no-cone"])
def test_a_sparse_checkout_stays_sparse_and_takes_work_from_outside_it(repo: Repository, tree: Path, cone: str) -> None:
    """`git add -A` refuses files outside the part that is checked out, and calls others deleted."""
    repo.commit({"out/deep/o.txt": "o\n", "in/i.txt": "i\n"})
    repo.git("sparse-checkout", "set", cone, *(["in"] if cone == "--cone" else ["/in/", "/b.txt"]))
    git = create(repo, tree)
    assert not (tree / "out").exists()
    repo.write("in/i.txt", "I\n", tree)
    repo.write("out/new.txt", "new\n", tree)
    base = asyncio.run(git.head()).commit
    text = asyncio.run(diff_of_files(git, base))
    assert "a/in/i.txt" in text
    assert "b/out/new.txt" in text
    assert "out/deep/o.txt" not in text
    commit = land_worker(repo, tree)
    assert asyncio.run(git.diff_paths(base, commit)) == ["in/i.txt", "out/new.txt"]
    assert repo.read("in/i.txt") == "I\n"
    assert not (repo.root / "out").exists()
    assert status(repo.root) == []
    assert remove(repo, tree) == []


def test_a_shallow_clone_makes_and_lands_worktrees(repo: Repository, tmp_path: Path, tree: Path) -> None:
    for n in range(3):
        repo.commit({"n.txt": f"{n}\n"})
    shallow = Repository(tmp_path / "shallow")
    repo.git("clone", "-q", "--depth", "1", f"file://{repo.root}", str(shallow.root))
    create(shallow, tree)
    shallow.write("b.txt", "B\n", tree)
    shallow.commit({"user.txt": "user\n"})
    commit = land_worker(shallow, tree)
    assert len(shallow.git("rev-parse", f"{commit}^@").split()) == 2
    assert shallow.read("b.txt") == "B\n"
    assert remove(shallow, tree) == []
    assert shallow.git("rev-list", "--count", "HEAD") == "4"


def large(root: Path, files: int) -> Repository:
    """A repository with that many files, made by one `git fast-import`."""
    repo = Repository(root)
    root.mkdir()
    repo.git("init", "-q", "-b", "main")
    parts = ["commit refs/heads/main\ncommitter User <user@example.org> 0 +0000\ndata 5\nlarge\n"]
    for n in range(files):
        text = f"file {n}\n"
        parts.append(f"M 100644 inline d{n % 97}/e{n % 11}/f{n}.txt\ndata {len(text)}\n{text}\n")
    subprocess.run(["git", "fast-import", "--quiet"], cwd=root, input="".join(parts).encode(), check=True)
    repo.git("reset", "-q", "--hard")
    return repo


LONG = pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="half a minute: run by make crash")


@pytest.mark.parametrize(
    ("files", "changed"), [(1_000, 700), pytest.param(20_000, 15_000, marks=(pytest.mark.crash, LONG))]
)
def test_a_large_tree_is_listed_snapshot_changed_landed_and_removed(
    tmp_path: Path, tree: Path, files: int, changed: int
) -> None:
    repo = large(tmp_path / "large", files)
    create(repo, tree)
    names = [name for name in repo.git("ls-files", "-z").split("\0") if name]
    assert len(names) == files
    for name in names[:changed]:
        (tree / name).write_text("changed by the worker\n")
    repo.write(names[-1], "changed by the user\n")

    async def taken() -> tuple[int, tuple[str, ...]]:
        git = await discover(repo.root)
        snapshot = await take_snapshot(git, "1")
        return len(await git.list_files()), tuple(await git.diff_paths(snapshot.head, snapshot.commit))

    assert asyncio.run(taken()) == (files, (names[-1],))
    commit = land_worker(repo, tree)
    assert len(repo.git("diff", "--name-only", f"{commit}^", commit).split()) == changed
    assert repo.read(names[0]) == "changed by the worker\n"
    assert status(repo.root) == [names[-1]]
    assert remove(repo, tree) == []


# At the same time


def test_concurrent_adds_and_removes_end_with_what_was_asked_for(repo: Repository, tmp_path: Path) -> None:
    """Two processes added and removed worktrees: one pruned what the other was just making."""
    trees = tmp_path / "trees"

    async def one(n: int) -> None:
        git = await discover(repo.root)
        for turn in range(2):
            place, branch = trees / f"w{n}", f"musecode/{n}"
            inside = await create_worktree(git, place, branch, "main")
            repo.write(f"work{n}.txt", f"{turn}\n", place)
            commit = await commit_all(inside, "work")
            verified = await checkout_detached(git, trees / f"v{n}", commit)
            assert await verified.status() == []
            await remove_worktree(git, place, commit)
            if turn == 0:
                await remove_branch(git, branch, commit)

    async def all_at_once() -> None:
        await asyncio.gather(*(one(n) for n in range(6)))

    asyncio.run(all_at_once())

    async def left() -> set[str]:
        return {found.path.name for found in await list_worktrees(await discover(repo.root))}

    assert asyncio.run(left()) == {"repo", *(f"v{n}" for n in range(6))}
    for n in range(6):
        assert repo.git("show", f"musecode/{n}:work{n}.txt") == "1"
    assert repo.git("fsck", "--no-dangling", "--connectivity-only") == ""


def test_a_command_that_goes_to_the_main_checkout_is_noticed_and_taken_for_the_users(
    repo: Repository, tree: Path
) -> None:
    """`cd /path/of/the/repository && ...` in a worker's command wrote and committed in the user's checkout."""
    create(repo, tree)
    old = repo.git("rev-parse", "main")
    command = f"cd '{repo.root}' && echo stray > stray.txt && echo changed > b.txt && cd dir && echo more >> c.txt"
    subprocess.run(["sh", "-c", command], cwd=tree, check=True)
    repo.git("add", "b.txt")
    repo.git("commit", "-q", "-m", "by the command")
    moved = repo.git("rev-parse", "main")
    repo.write("dir/c.txt", "the worker's own\n", tree)
    git = asyncio.run(discover(repo.root))
    commit = asyncio.run(commit_all(asyncio.run(Git.at_worktree(tree, LiveEffects())), "work"))
    assert asyncio.run(git.diff_paths(old, commit)) == ["dir/c.txt"]
    with pytest.raises(RefMoved):
        asyncio.run(land(git, MAIN, old, commit, BACKUP))
    check = asyncio.run(check_merge(git, moved, commit))
    assert check.commit is not None
    assert asyncio.run(overlap(git, moved, check.commit)) == ["dir/c.txt"]
    assert (repo.read("dir/c.txt"), repo.read("stray.txt")) == ("c\nmore\n", "stray\n")
