"""Folders without a repository: a private one outside, only when asked, with which all of this floor works."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from crashing_effects import Crash, CrashingEffects, points
from git_repository import Repository

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import GitError, NoCheckout, NoRepository, UsageProblem
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.landing import check_merge, land, overlap, undo_land, update_checkout
from musecode_jupyter.workspace.shadow import find_shadow, keep_files, open_shadow, shadow_path
from musecode_jupyter.workspace.snapshots import take_snapshot
from musecode_jupyter.workspace.survey import survey
from musecode_jupyter.workspace.worktrees import checkout_detached, commit_all, create_worktree, remove_worktree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "plain folder"
    for name in ("a.txt", "dir/b.txt", "node_modules/big.js", ".env", "x.pyc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{name}\n")
    return root


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def open_it(folder: Path, home: Path, **how: int) -> Git:
    return asyncio.run(open_shadow(folder, home, LiveEffects(), make=True, **how))


def test_it_is_made_only_when_asked_and_writes_nothing_into_the_folder(folder: Path, tmp_path: Path) -> None:
    home, before = tmp_path / "home", files(folder)
    with pytest.raises(NoCheckout, match="let a private repository outside it"):
        asyncio.run(open_shadow(folder, home, LiveEffects()))
    assert not home.exists()
    git = open_it(folder, home)
    assert git.git_dir == shadow_path(home, folder)
    assert files(folder) == before
    assert asyncio.run(git.list_files()) == ["a.txt", "dir/b.txt"]
    assert asyncio.run(git.status()) == []
    assert asyncio.run(open_shadow(folder, home, LiveEffects())) == git


def test_worktrees_snapshots_and_landing_work_on_it(folder: Path, tmp_path: Path) -> None:
    git = open_it(folder, tmp_path / "home")
    trees = tmp_path / "home/trees"

    async def fan_out() -> None:
        old = await git.resolve("main")
        for n in range(2):
            inside = await create_worktree(git, trees / f"w{n}", f"musecode/{n}", "main")
            (inside.root / f"new{n}.txt").write_text("new\n")
        for n in range(2):
            target = await git.resolve("main")
            commit = await commit_all(await Git.at_worktree(trees / f"w{n}", LiveEffects()), "work")
            check = await check_merge(git, target, commit)
            assert check.commit is not None
            verified = await checkout_detached(git, trees / "check", check.commit)
            assert await verified.status() == []
            assert await overlap(git, target, check.commit) == []
            await land(git, "refs/heads/main", target, check.commit, f"refs/musecode/backup/{n}")
            await update_checkout(git, "refs/heads/main", target, check.commit)
            assert (folder / f"new{n}.txt").read_text() == "new\n"
            await remove_worktree(git, trees / f"w{n}", "main")
        (folder / "a.txt").write_text("mine\n")
        assert (await take_snapshot(git, "1")).dirty
        (folder / "new0.txt").write_text("mine too\n")
        assert await overlap(git, await git.resolve("main"), old) == ["new0.txt"]
        assert [tree.state for tree in await survey(git, trees)] == ["verification"]
        assert await undo_land(git, "refs/heads/main", old, await git.resolve("main"))

    asyncio.run(fan_out())
    assert not (folder / ".git").exists()
    assert (folder / "a.txt").read_text() == "mine\n"


def test_what_is_too_large_or_no_project_is_refused_before_anything_is_made(folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(UsageProblem, match="more than 1 files or 500 MB"):
        open_it(folder, home, most_files=1)
    with pytest.raises(UsageProblem, match="too much for a private copy"):
        open_it(folder, home, most_bytes=10)
    with pytest.raises(UsageProblem, match="lies in"):
        open_it(folder, folder / "home")
    with pytest.raises(UsageProblem, match="is not a project's folder"):
        open_it(Path("/"), home)
    with pytest.raises(NoCheckout, match="does not exist"):
        open_it(tmp_path / "none", home)
    assert not home.exists()
    assert open_it(folder, home, most_files=4).root == folder


def test_a_folder_in_a_repository_or_with_one_inside_is_refused(folder: Path, tmp_path: Path, repo: Repository) -> None:
    with pytest.raises(UsageProblem, match=r"is in the git repository .*repo already"):
        open_it(repo.root / "dir", tmp_path / "home")
    inner = Repository(folder / "inner")
    inner.root.mkdir()
    inner.git("init", "-q")
    inner.commit({"x.txt": "x\n"})
    with pytest.raises(GitError, match=r"inner/ in .* is a repository of its own"):
        open_it(folder, tmp_path / "home")


def test_making_it_is_gone_on_with_after_a_crash(folder: Path, tmp_path: Path) -> None:
    counted = CrashingEffects()
    asyncio.run(open_shadow(folder, tmp_path / "counted", counted, make=True))
    for fuse, late in points(counted.steps, int(os.environ.get("MUSECODE_CRASH_POINTS", "6"))):
        home = tmp_path / f"home{fuse}"
        with pytest.raises(Crash):
            asyncio.run(open_shadow(folder, home, CrashingEffects(fuse, late=late), make=True))
        git = open_it(folder, home)
        assert asyncio.run(git.status()) == []
        assert asyncio.run(git.list_files()) == ["a.txt", "dir/b.txt"]


def test_a_repository_without_a_commit_gets_one_too_and_stays_unborn(tmp_path: Path, folder: Path) -> None:
    repo = Repository(folder)
    repo.git("init", "-q")
    before = files(folder)
    with pytest.raises(NoRepository, match="no commit yet, so no worktree can be made of it: make a first commit"):
        asyncio.run(asyncio.run(Git.discover(folder, LiveEffects())).head())
    git = open_it(folder, tmp_path / "home")
    assert asyncio.run(git.list_files()) == ["a.txt", "dir/b.txt"]
    assert asyncio.run(git.status()) == []
    assert files(folder) == before
    with pytest.raises(UsageProblem, match="is in the git repository"):
        open_it(folder / "dir", tmp_path / "other home")


def test_what_the_user_changes_is_kept_as_the_next_base(folder: Path, tmp_path: Path) -> None:
    git = open_it(folder, tmp_path / "home")
    assert not asyncio.run(keep_files(git))
    first = asyncio.run(git.resolve("main"))
    (folder / "a.txt").write_text("mine\n")
    (folder / "dir" / "b.txt").unlink()
    before = files(folder)
    assert asyncio.run(keep_files(git))
    assert asyncio.run(git.diff_paths(first, "main")) == ["a.txt", "dir/b.txt"]
    assert asyncio.run(git.status()) == []
    assert files(folder) == before
    with pytest.raises(UsageProblem, match="more than 0 files"):
        asyncio.run(keep_files(git, most_files=0))
    inner = Repository(folder / "inner")
    inner.root.mkdir()
    inner.git("init", "-q")
    inner.commit({"x.txt": "x\n"})
    with pytest.raises(GitError, match=r"inner/ in .* is a repository of its own"):
        asyncio.run(keep_files(git))


def test_a_folder_inside_one_that_has_it_belongs_to_it(folder: Path, tmp_path: Path) -> None:
    git = open_it(folder, tmp_path / "home")
    assert asyncio.run(find_shadow(folder / "dir", tmp_path / "home", LiveEffects())) == git
    assert asyncio.run(find_shadow(tmp_path, tmp_path / "home", LiveEffects())) is None
