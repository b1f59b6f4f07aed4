"""What is left on the disk: listed with what it holds, removed when that is nothing, set aside otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from crashing_effects import Crash, CrashingEffects, points
from git_repository import Repository

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.sharing import parse_share, share
from musecode_jupyter.workspace.survey import Surveyed, quarantine, reclaim, survey
from musecode_jupyter.workspace.worktrees import (
    TRASH_SUFFIX,
    checkout_detached,
    commit_all,
    create_worktree,
    list_worktrees,
    remove_worktree,
)


class Field:
    """The repository and the folder of our worktrees."""

    def __init__(self, repo: Repository, trees: Path) -> None:
        self.repo, self.trees = repo, trees
        self.git = asyncio.run(Git.discover(repo.root, LiveEffects()))

    def make(self, name: str) -> Path:
        asyncio.run(create_worktree(self.git, self.trees / name, f"musecode/{name}", "main"))
        return self.trees / name

    def half_made(self, name: str) -> Path:
        tree = self.make(name)
        admin = self.repo.root / ".git/worktrees" / name
        (admin / "locked").write_text("initializing")
        (admin / "index").unlink()
        (tree / "a.txt").write_text("lin")
        return tree

    def survey(self) -> dict[str, Surveyed]:
        return {tree.path.name: tree for tree in asyncio.run(survey(self.git, self.trees))}

    def reclaim(self, *names: str) -> tuple[list[str], dict[str, str]]:
        found = self.survey()
        removed, kept = asyncio.run(reclaim(self.git, [found[name] for name in names or found]))
        return [path.name for path in removed], {path.name: why for path, why in kept.items()}


@pytest.fixture
def field(repo: Repository, tmp_path: Path) -> Field:
    return Field(repo, tmp_path / "trees")


def test_everything_that_is_left_is_listed_with_what_it_holds(field: Field, tmp_path: Path) -> None:
    field.make("clean")
    field.repo.write("noise.log", "ignored\n", field.make("ignored"))
    unsaved = field.make("unsaved")
    field.repo.write("new\nfile.txt", "only here\n", unsaved)
    (unsaved / "b.txt").unlink()
    for text in ("1\n", "2\n"):
        field.repo.commit({"x.txt": text}, cwd=field.make("unmerged"))
    field.repo.git("worktree", "lock", "--reason", "mine", str(field.make("locked")))
    shutil.rmtree(field.make("gone"))
    shutil.rmtree(field.make("gone-but-locked"))
    (field.repo.root / ".git/worktrees/gone-but-locked/locked").write_text("on a stick")
    lost = field.make("lost")
    field.repo.write("a.txt", "changed\n", lost)
    field.repo.write("new.txt", "new\n", lost)
    (lost / ".git").unlink()
    field.repo.write("stray.log", "stray\n", field.half_made("half"))
    field.repo.git("merge", "-q", "--no-commit", "--no-ff", "musecode/unmerged", cwd=field.make("merging"))
    asyncio.run(checkout_detached(field.git, field.trees / "check", "main"))
    broken = field.make("broken")
    (broken / "b.txt").unlink()
    (broken / ".git").write_text("gitdir: nowhere\n")
    (field.trees / "stranger").mkdir()
    (field.trees / f"w{TRASH_SUFFIX}").mkdir()
    other = Repository(field.trees / "another's")
    other.root.mkdir()
    other.git("init", "-q")
    field.repo.git("worktree", "add", "-q", "--detach", str(tmp_path / "the user's"))
    found = field.survey()
    lines = {name: tree.describe().removeprefix(f"{field.trees}/").replace("\n", "?") for name, tree in found.items()}
    assert lines.pop("broken").endswith("; unsaved: b.txt")
    assert list(lines.values()) == [
        "check, no branch: verification; nothing of its own",
        "clean, musecode/clean: nothing of its own",
        "gone, musecode/gone: folder gone; nothing of its own",
        "gone-but-locked, musecode/gone-but-locked: folder gone; nothing of its own",
        "half, musecode/half: half made; unsaved: stray.log",
        "ignored, musecode/ignored: nothing of its own",
        "locked, musecode/locked: locked (mine); nothing of its own",
        "lost, musecode/lost: git file gone; unsaved: a.txt, new.txt",
        "merging, musecode/merging: unsaved: x.txt; a merge under way",
        "stranger, no branch: left (git does not know it any more); nothing of its own",
        "unmerged, musecode/unmerged: 2 commits not merged (kept on musecode/unmerged)",
        "unsaved, musecode/unsaved: unsaved: b.txt, new?file.txt",
        f"w{TRASH_SUFFIX}, no branch: left (can be deleted); nothing of its own",
    ]


def test_what_holds_nothing_is_reclaimed_and_everything_else_is_kept(field: Field) -> None:
    for name in ("clean", "landed", "gone", "locked", "unmerged", "unsaved", "lost"):
        field.make(name)
    asyncio.run(checkout_detached(field.git, field.trees / "check", "main"))
    field.repo.write("left.log", "left by a check\n", field.trees / "check")
    field.half_made("half")
    field.repo.write("mine.log", "mine\n", field.half_made("half-with-more"))
    field.repo.write("b.txt", "landed\n", field.trees / "landed")
    asyncio.run(commit_all(asyncio.run(Git.at_worktree(field.trees / "landed", LiveEffects())), "work"))
    field.repo.git("merge", "-q", "--squash", "musecode/landed")
    field.repo.git("commit", "-q", "-m", "squashed")
    shutil.rmtree(field.trees / "gone")
    field.repo.git("worktree", "lock", str(field.trees / "locked"))
    field.repo.commit({"x.txt": "x\n"}, cwd=field.trees / "unmerged")
    field.repo.write("only.txt", "only here\n", field.trees / "unsaved")
    (field.trees / "lost/.git").unlink()
    (field.trees / "stranger").mkdir()
    field.repo.write("x", "x", field.trees / f"old{TRASH_SUFFIX}")
    branches = field.repo.git("branch", "--list", "musecode/*")
    removed, kept = field.reclaim()
    assert removed == ["check", "clean", "gone", "half", "landed", f"old{TRASH_SUFFIX}"]
    assert sorted(kept) == ["half-with-more", "locked", "lost", "stranger", "unmerged", "unsaved"]
    assert "would be lost: only.txt" in kept["unsaved"]
    assert "holds mine.log; it is kept" in kept["half-with-more"]
    assert sorted(path.name for path in field.trees.iterdir()) == sorted(kept)
    kept_branches = field.repo.git("branch", "--list", "musecode/*").replace("+", " ")
    assert kept_branches == branches.replace("+", " ")
    assert field.reclaim()[0] == []


def test_hundreds_of_leaked_worktrees_are_listed_and_reclaimed(field: Field) -> None:
    """200 leaked worktrees were found on one disk."""
    many = int(os.environ.get("MUSECODE_CRASH_POINTS", "24"))

    async def make_all() -> None:
        for n in range(many):
            await field.git.run("worktree", "add", "-q", "-b", f"musecode/{n}", str(field.trees / f"w{n}"))

    asyncio.run(make_all())
    field.repo.write("new.txt", "new\n", field.trees / "w7")
    assert [name for name, tree in field.survey().items() if tree.holds] == ["w7"]
    removed, kept = field.reclaim()
    assert (len(removed), list(kept)) == (many - 1, ["w7"])
    assert len(asyncio.run(list_worktrees(field.git))) == 2


@pytest.mark.parametrize("damage", ["none", "git file gone", "half made"])
def test_quarantine_moves_all_of_it_and_keeps_branch_and_files(field: Field, damage: str) -> None:
    tree = field.half_made("w") if damage == "half made" else field.make("w")
    field.repo.write("new.txt", "new\n", tree)
    field.repo.write("noise.log", "ignored\n", tree)
    if damage == "git file gone":
        (tree / ".git").unlink()
    moved = asyncio.run(quarantine(field.git, tree, field.trees, "cannot be proved\ncontained"))
    assert moved == field.trees / "quarantine/w"
    assert not tree.exists()
    assert ((moved / "new.txt").read_text(), (moved / "noise.log").read_text()) == ("new\n", "ignored\n")
    found = field.survey()["w"]
    assert (found.state, found.branch, found.why) == ("quarantined", "musecode/w", "cannot be proved contained")
    assert "new.txt" in found.unsaved
    assert "is locked (musecode quarantine" in field.reclaim("w")[1]["w"]
    field.repo.git("branch", "-m", "musecode/w", "musecode/aside")
    field.make("w")
    field.repo.write("more.txt", "more\n", field.trees / "w")
    assert asyncio.run(quarantine(field.git, field.trees / "w", field.trees, "again")) == moved.with_name("w-2")
    assert field.repo.git("status", "--porcelain", cwd=moved.with_name("w-2")) == "?? more.txt"


def test_quarantine_refuses_what_is_not_its_to_move(field: Field, tmp_path: Path) -> None:
    tree = field.make("w")
    for path in (field.repo.root, tmp_path, field.trees / "none"):
        with pytest.raises(GitError, match="is not a worktree of"):
            asyncio.run(quarantine(field.git, path, field.trees, "why"))
    field.repo.git("worktree", "lock", "--reason", "mine", str(tree))
    with pytest.raises(GitError, match=r"is locked \(mine\)"):
        asyncio.run(quarantine(field.git, tree, field.trees, "why"))
    field.repo.git("worktree", "unlock", str(tree))
    (tree / ".git").write_text("gitdir: elsewhere\n")
    with pytest.raises(GitError, match=r"\.git is not that of a worktree"):
        asyncio.run(quarantine(field.git, tree, field.trees, "why"))
    shutil.rmtree(tree)
    with pytest.raises(GitError, match="is gone, so it cannot be set aside"):
        asyncio.run(quarantine(field.git, tree, field.trees, "why"))


async def _create(git: Git, field: Field) -> None:
    await create_worktree(git, field.trees / "w", "musecode/w", "main")


async def _remove(git: Git, field: Field) -> None:
    await remove_worktree(git, field.trees / "w", "main")


async def _quarantine(git: Git, field: Field) -> None:
    await quarantine(git, field.trees / "w", field.trees, "why")


async def _share(git: Git, field: Field) -> None:
    tree = Git(field.trees / "w", field.repo.root / ".git/worktrees/w", field.git.common_dir, git.effects)
    await share(git, tree, parse_share("build=copy,noise.log=link"))


async def _verify(git: Git, field: Field) -> None:
    await checkout_detached(git, field.trees / "w", "main")


async def _reclaim(git: Git, field: Field) -> None:
    await reclaim(git, await survey(git, field.trees))


ACTIONS: dict[str, tuple[Callable[[Git, Field], Coroutine[None, None, None]], bool]] = {
    "create": (_create, False),
    "remove": (_remove, True),
    "quarantine": (_quarantine, True),
    "share": (_share, True),
    "verify": (_verify, False),
    "reclaim": (_reclaim, True),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_whatever_is_cut_off_between_two_steps_can_be_done_again(repo: Repository, tmp_path: Path, name: str) -> None:
    action, needs_tree = ACTIONS[name]
    repo.write("build/o", "o\n")
    repo.write("noise.log", "noise\n")
    most = int(os.environ.get("MUSECODE_CRASH_POINTS", "7"))

    def attempt(number: int, fuse: int | None, late: bool) -> tuple[Field, CrashingEffects]:
        field = Field(repo, tmp_path / str(number) / "trees")
        if needs_tree:
            field.make("w")
        effects = CrashingEffects(fuse, late=late)
        git = Git(field.git.root, field.git.git_dir, field.git.common_dir, effects)
        # A later attempt may need fewer steps, because the size of a tree is asked only once.
        with contextlib.suppress(Crash):
            asyncio.run(action(git, field))
        return field, effects

    def outcome(field: Field) -> tuple[object, ...]:
        files = {
            str(path.relative_to(field.trees)): path.read_bytes()
            for path in sorted(field.trees.rglob("*"))
            if path.is_file() and path.name != ".git"
        }
        found = [(tree.path.relative_to(field.trees), tree.state) for tree in field.survey().values()]
        branch = repo.git("rev-parse", "-q", "--verify", "musecode/w", check=False)
        return files, found, branch

    def clear(field: Field) -> None:
        for tree in field.survey().values():
            repo.git("worktree", "remove", "--force", "--force", str(tree.path))
        repo.git("branch", "-q", "-D", "musecode/w", check=False)

    field, counted = attempt(0, None, False)
    wanted = outcome(field)
    clear(field)
    crashed = 0
    for number, (fuse, late) in enumerate(points(counted.steps, most), 1):
        field, effects = attempt(number, fuse, late)
        crashed += effects.crashed
        if name in ("create", "remove", "verify"):
            field.survey()
        asyncio.run(action(field.git, field))
        assert outcome(field) == wanted, f"cut off at step {fuse}, late={late}"
        clear(field)
    assert crashed > min(most, counted.steps) // 2
