"""Ignored folders shared with a worktree: as the rule says, never tracked files, never followed by what deletes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from git_repository import Repository

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import ConfigurationError, GitError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.sharing import PART_SUFFIX, Share, Shared, parse_share, share
from musecode_jupyter.workspace.snapshots import take_snapshot
from musecode_jupyter.workspace.worktrees import commit_all, create_worktree, remove_worktree


def test_a_rule_is_read_as_the_user_writes_it() -> None:
    assert parse_share("node_modules=link, build/out/ = copy,") == (
        Share("node_modules", "link"),
        Share("build/out", "copy"),
    )
    assert parse_share("a=b=link") == (Share("a=b", "link"),)
    assert parse_share("") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node_modules", "is no rule"),
        ("node_modules=move", "'node_modules=move' is no rule .* MUSECODE_SHARE=node_modules=link,build=copy"),
        ("=link", "has no path"),
        (".=copy", "has no path"),
        ("/etc=link", "/etc leads out"),
        ("a/../../b=copy", "leads out"),
        ("~/x=copy", "leads out"),
        (".git=link", "belongs to git"),
        ("sub/.GIT/hooks=copy", "belongs to git"),
        ("build=link,build/out=copy", "build and build/out are both"),
        ("build=link,build=copy", "build and build are both"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_share(text)


class Place:
    """The repository, with `build/` ignored and filled, and a worktree of it."""

    def __init__(self, repo: Repository, root: Path) -> None:
        self.repo, self.root = repo, root
        repo.write("build/out/o.txt", "o\n")
        repo.write("build/cache", "cache\n")
        os.symlink("cache", repo.root / "build/link")
        os.mkfifo(repo.root / "build/pipe")
        repo.write("noise.log", "noise\n")
        self.source = asyncio.run(Git.discover(repo.root, LiveEffects()))
        self.tree = asyncio.run(create_worktree(self.source, root, "musecode/w", "HEAD"))

    def share(self, text: str, **more: int) -> Shared:
        return asyncio.run(share(self.source, self.tree, parse_share(text), **more))


@pytest.fixture
def place(repo: Repository, tmp_path: Path) -> Place:
    return Place(repo, tmp_path / "trees" / "w")


@pytest.mark.parametrize("how", ["link", "copy"])
def test_what_is_shared_is_there_and_never_followed(place: Place, how: str) -> None:
    """A linked `node_modules` does not match the pattern `node_modules/`: it was committed as a link."""
    done = place.share(f"build={how},noise.log={how},none/build=copy")
    assert done.done == ("build", "noise.log")
    assert done.skipped == {"none/build": "the checkout does not have it"}
    inside = place.root / "build"
    assert (inside / "out/o.txt").read_text() == "o\n"
    assert (inside / "link").read_text() == "cache\n"
    assert (inside / "cache").is_symlink() == (how == "link")
    assert (place.root / "noise.log").is_symlink() == (how == "link")
    (inside / "made here").write_text("mine\n")
    assert not (place.repo.root / "build/made here").exists()
    assert asyncio.run(place.tree.status()) == []
    head = place.repo.git("rev-parse", "HEAD")
    assert asyncio.run(commit_all(place.tree, "work")) == head
    assert asyncio.run(take_snapshot(place.tree, "1")).commit == head
    removed = asyncio.run(remove_worktree(place.source, place.root, "HEAD"))
    assert removed == ["build/", "noise.log"]
    assert not place.root.exists()
    assert (place.repo.root / "build/out/o.txt").read_text() == "o\n"
    assert place.repo.read("noise.log") == "noise\n"


def test_a_copy_is_the_worktrees_own(place: Place) -> None:
    place.share("build=copy")
    (place.root / "build/out/o.txt").write_text("changed\n")
    assert place.repo.read("build/out/o.txt") == "o\n"
    assert not (place.root / "build/pipe").exists()


def test_what_the_worktree_has_is_left(place: Place) -> None:
    place.repo.write("build/mine", "mine\n", place.root)
    assert place.share("build=copy").skipped == {"build": "the worktree has it already"}
    assert [path.name for path in (place.root / "build").iterdir()] == ["mine"]


def test_sharing_that_was_killed_is_done_again(place: Place) -> None:
    part = place.root.with_name(place.root.name + PART_SUFFIX)
    place.repo.write("out/half", "half\n", part)
    assert place.share("build=copy").done == ("build",)
    assert not part.exists()
    assert sorted(path.name for path in (place.root / "build").iterdir()) == ["cache", "link", "out"]
    part.write_text("half a file\n")
    asyncio.run(remove_worktree(place.source, place.root, "HEAD"))
    assert list(place.root.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("dir=link", "dir holds files that git tracks"),
        ("a.txt=copy", "holds files that git tracks"),
        ("new=link", "git does not ignore new"),
        ("dir/link/x=copy", "is a link; share only"),
        ("linked.log=link", "is a link; share only"),
        ("build/nested=copy", "is a repository of its own"),
    ],
)
def test_nothing_is_shared_that_must_not_be(place: Place, tmp_path: Path, rule: str, words: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    place.repo.write("dir/.gitignore", "link\n")
    place.repo.write("dir/.gitignore", "link\n", place.root)
    os.symlink(outside, place.repo.root / "dir/link")
    place.repo.write("x", "secret\n", outside)
    os.symlink(outside / "x", place.repo.root / "linked.log")
    place.repo.write("new", "not ignored\n")
    place.repo.write("build/nested/.git", "gitdir: elsewhere\n")
    before = sorted(place.root.rglob("*"))
    with pytest.raises(ConfigurationError, match=words):
        place.share(rule)
    assert sorted(place.root.rglob("*")) == before


def test_a_copy_that_would_fill_the_disk_is_refused(place: Place) -> None:
    with pytest.raises(GitError, match="free some space"):
        place.share("build=copy", reserve=10**18)
    place.share("build=link", reserve=10**18)
