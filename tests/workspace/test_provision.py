"""Submodules and large files only where they are asked for, and no worktree that would fill the disk."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from git_repository import Repository

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.provision import tree_bytes
from musecode_jupyter.workspace.worktrees import checkout_detached, create_worktree, list_worktrees, remove_worktree

ALLOW = ("-c", "protocol.file.allow=always")


def discover(repo: Repository) -> Git:
    return asyncio.run(Git.discover(repo.root, LiveEffects()))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tmp_path / "trees" / "w"


@pytest.fixture
def modules(repo: Repository, tmp_path: Path) -> Repository:
    """The repository with two submodules, `lib` and `deep/er`."""
    library = Repository(tmp_path / "library")
    library.root.mkdir()
    library.git("init", "-q", "-b", "main")
    library.commit({"lib.txt": "lib\n"})
    for path in ("lib", "deep/er"):
        repo.git(*ALLOW, "submodule", "--quiet", "add", str(library.root), path)
    repo.git("commit", "-q", "-m", "submodules")
    # What is had of them is in the main checkout; nothing may ask for more.
    library.root.rename(tmp_path / "offline")
    return repo


@pytest.mark.parametrize(
    ("asked", "filled"),
    [
        (False, []),
        (True, ["deep/er", "lib"]),
        (["lib/lib.txt"], ["lib"]),
        (["deep"], ["deep/er"]),
        (["library", "li"], []),
    ],
)
def test_submodules_are_filled_when_asked_from_what_is_there(
    modules: Repository, tree: Path, asked: bool | list[str], filled: list[str]
) -> None:
    git = discover(modules)
    config = (modules.root / ".git/config").read_bytes()
    for _ in range(2):
        inside = asyncio.run(create_worktree(git, tree, "musecode/w", "HEAD", submodules=asked))
        assert [path for path in ("deep/er", "lib") if (tree / path / "lib.txt").is_file()] == filled
        assert asyncio.run(inside.status()) == []
    assert (modules.root / ".git/config").read_bytes() == config
    assert asyncio.run(remove_worktree(git, tree, "HEAD")) == []
    assert not tree.exists()
    assert len(asyncio.run(list_worktrees(git))) == 1


def test_a_verification_tree_gets_submodules_too(modules: Repository, tree: Path) -> None:
    git = discover(modules)
    for _ in range(2):
        inside = asyncio.run(checkout_detached(git, tree, "HEAD", submodules=True))
        assert (tree / "lib/lib.txt").read_text() == "lib\n"
        assert asyncio.run(inside.status()) == []


def test_a_submodule_that_cannot_be_had_is_said_and_tried_again(modules: Repository, tree: Path) -> None:
    stored = modules.root / ".git/modules/lib"
    stored.rename(stored.with_name("away"))
    with pytest.raises(GitError, match="git submodule failed"):
        asyncio.run(create_worktree(discover(modules), tree, "musecode/w", "HEAD", submodules=["lib"]))
    stored.with_name("away").rename(stored)
    asyncio.run(create_worktree(discover(modules), tree, "musecode/w", "HEAD", submodules=["lib"]))
    assert (tree / "lib/lib.txt").is_file()


def test_a_submodule_with_own_work_is_kept(modules: Repository, tree: Path) -> None:
    git = discover(modules)
    asyncio.run(create_worktree(git, tree, "musecode/w", "HEAD", submodules=True))
    own = modules.commit({"lib.txt": "own\n"}, cwd=tree / "lib")
    with pytest.raises(GitError, match=r"would be lost: lib\."):
        asyncio.run(remove_worktree(git, tree, "HEAD"))
    modules.git("checkout", "-q", "HEAD^", cwd=tree / "lib")
    modules.git("branch", "own", own, cwd=tree / "lib")
    with pytest.raises(GitError, match="commits in submodules"):
        asyncio.run(remove_worktree(git, tree, "HEAD"))
    assert modules.git("show", "own:lib.txt", cwd=tree / "lib") == "own"


def test_large_files_stay_pointers_unless_they_are_asked_for(repo: Repository, tree: Path) -> None:
    """A filter that does as git-lfs does: with GIT_LFS_SKIP_SMUDGE=1 it writes the pointer itself."""
    repo.git("config", "filter.lfs.clean", "sed 's/^content of //'")
    repo.git("config", "filter.lfs.smudge", '[ "$GIT_LFS_SKIP_SMUDGE" = 1 ] && cat || sed "s/^/content of /"')
    repo.git("config", "filter.lfs.required", "true")
    repo.commit({".gitattributes": "*.bin filter=lfs\n"})
    repo.commit({"data.bin": "content of pointer\n"})
    git = discover(repo)
    for lfs, text in ((False, "pointer\n"), (True, "content of pointer\n")):
        inside = asyncio.run(create_worktree(git, tree, f"musecode/{lfs}", "HEAD", lfs=lfs))
        assert (tree / "data.bin").read_text() == text
        assert asyncio.run(inside.status()) == []
        assert asyncio.run(remove_worktree(git, tree, "HEAD")) == []
        asyncio.run(checkout_detached(git, tree.with_name(f"v{lfs}"), "HEAD", lfs=lfs))
        assert (tree.with_name(f"v{lfs}") / "data.bin").read_text() == text


def test_a_disk_that_is_too_full_is_said_before_anything_is_made(repo: Repository, tree: Path) -> None:
    git = discover(repo)
    everything = 10**18
    with pytest.raises(GitError, match=r"needs 0\.0 MB and 1000000000\.0 GB are to stay free, but only .* are; free"):
        asyncio.run(create_worktree(git, tree, "musecode/w", "HEAD", reserve=everything))
    with pytest.raises(GitError, match="free some space"):
        asyncio.run(checkout_detached(git, tree, "HEAD", reserve=everything))
    assert not tree.parent.exists()
    assert len(asyncio.run(list_worktrees(git))) == 1
    asyncio.run(create_worktree(git, tree, "musecode/w", "HEAD"))


def test_the_estimate_is_what_the_files_take(repo: Repository, modules: Repository, tree: Path) -> None:
    repo.write("large file\n.bin", "x" * 1_000_000)
    os.symlink("a.txt", repo.root / "link")
    repo.git("add", "-A")
    repo.git("commit", "-q", "-m", "large")
    asyncio.run(create_worktree(discover(repo), tree, "musecode/w", "HEAD"))
    files = [path for path in tree.rglob("*") if path.is_file() and path.name != ".git" and not path.is_symlink()]
    real = sum(-(-path.stat().st_size // 4096) * 4096 for path in files) + 4096
    assert asyncio.run(tree_bytes(discover(repo), repo.git("rev-parse", "HEAD"))) == real
