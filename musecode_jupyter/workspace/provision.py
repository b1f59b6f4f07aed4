"""What a checkout needs beside its files: room on the disk, and submodules where a task asks for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git

RESERVE = 256_000_000
"""Bytes that stay free on the disk after a worktree was made: the log and the user's own work go on."""

NO_LARGE_FILES = {"GIT_LFS_SKIP_SMUDGE": "1"}
"""Environment in which git-lfs leaves its pointers in place of the large files."""

_BLOCK = 4096
# The mode of a submodule as an index holds it, in each of its formats.
_SUBMODULE_MODE = (0o160000).to_bytes(4, "big")
_SUBMODULE_TIMEOUT = 900.0

# Worktrees of one fan-out share their base: its size is asked once.
_sizes: dict[tuple[Path, str], int] = {}
_SIZES_KEPT = 64


@answered
async def tree_bytes(git: Git, commit: str) -> int:
    """Bytes that a checkout of `commit` (a full id) takes on disk, in blocks; git-lfs's files count as pointers."""
    key = (git.common_dir, commit)
    if key not in _sizes:
        listing = await git.run("ls-tree", "-r", "-l", "-z", commit, timeout=300.0)
        sizes = (record.split(None, 4)[3] for record in listing.out.split(b"\0") if record)
        total = sum(-(-int(size) // _BLOCK) * _BLOCK for size in sizes if size.isdigit())
        while len(_sizes) >= _SIZES_KEPT:
            del _sizes[next(iter(_sizes))]
        _sizes[key] = total
    return _sizes[key]


@answered
async def require_space(git: Git, folder: Path, needed: int, reserve: int = RESERVE) -> None:
    """Raise GitError unless `needed` bytes fit on the disk of `folder` and `reserve` bytes stay free."""
    free = await git.effects.disk(_free, folder)
    if free - needed < reserve:
        raise GitError(
            f"A worktree in {folder} needs {_human(needed)} and {_human(reserve)} are to stay free, but only "
            f"{_human(free)} are; free some space (`%muse worktrees` lists what is kept) or set MUSECODE_HOME."
        )


@answered
async def fill_submodules(tree: Git, submodules: bool | Sequence[str]) -> list[str]:
    """Check out the submodules of a worktree: all of them, or those at or above the given paths; returns them.

    What the main checkout has of a submodule is cloned from there, without network; else from its URL. No
    configuration is written. Nested submodules are left. Done again, it goes on where it stopped.

    Raises
    ------
    GitError
        A submodule cannot be had: its URL does not answer or the commit is nowhere.
    """
    known = await submodule_paths(tree)
    wanted = [path for path in known if submodules is True or (submodules and _asked(path, submodules))]
    for path in wanted:
        name = known[path]
        clone = tree.common_dir / "modules" / name
        settings = {f"submodule.{name}.active": "true", f"submodule.{name}.update": "checkout"}
        if await tree.effects.disk((clone / "HEAD").is_file):
            settings |= {f"submodule.{name}.url": str(clone), "protocol.file.allow": "always"}
        env = {"GIT_CONFIG_COUNT": str(len(settings))}
        for number, (key, value) in enumerate(settings.items()):
            env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        await tree.run("submodule", "--quiet", "update", "--init", "--", path, env=env, timeout=_SUBMODULE_TIMEOUT)
    return wanted


@answered
async def submodule_paths(git: Git) -> dict[str, str]:
    """The submodules that `.gitmodules` of this checkout names and HEAD has: name by path."""
    if not await git.effects.disk((git.root / ".gitmodules").is_file):
        return {}
    answer = await git.run(
        *("config", "-z", "--file", ".gitmodules", "--get-regexp", r"^submodule\..*\.path$"), check=False
    )
    named = {}
    for record in answer.names():
        key, _, path = record.partition("\n")
        named[path] = key.removeprefix("submodule.").removesuffix(".path")
    # A name is a folder below .git/modules: one that leads out of it is never followed.
    named = {path: name for path, name in named.items() if name and not {"..", ".git"} & set(name.split("/"))}
    linked = (await git.run("ls-files", "-s", "-z")).names()
    here = {record.partition("\t")[2] for record in linked if record.startswith("160000 ")}
    return {path: name for path, name in sorted(named.items()) if path in here}


@answered
async def large_files(git: Git, needs: Sequence[str]) -> bool:
    """Whether any tracked file that `needs` (paths, folders, globs as of git's `:(glob)`) name is kept by git-lfs."""
    if not needs:
        return False
    patterns = [f":(top,glob){name}" for name in needs] + [f":(top,glob){name.rstrip('/')}/**" for name in needs]
    files = await git.run("ls-files", "-z", "--", *patterns, env={"GIT_LITERAL_PATHSPECS": "0"})
    if not files.out:
        return False
    answer = await git.run("check-attr", "-z", "--stdin", "filter", input=files.out)
    return "lfs" in answer.names()[2::3]


@answered
async def uncontained_submodules(tree: Git) -> list[str]:
    """The filled submodules of a worktree that hold commits of their own, of which no other clone is known.

    Changed and untracked files inside are seen by `Git.changes`.
    """
    found = []
    for path, name in (await submodule_paths(tree)).items():
        git_dir = tree.git_dir / "modules" / name
        if not await tree.effects.disk((git_dir / "HEAD").is_file):
            continue
        inside = Git(tree.root / path, git_dir, git_dir, tree.effects)
        if not await tree.effects.disk(os.path.lexists, inside.root / ".git"):
            found.append(path)
            continue
        args = ("rev-list", "--max-count=1", "--all", "HEAD", "--not", "--remotes", "--tags")
        # The commit that the superproject asks for came from the clone even where no branch holds it.
        asked = (await tree.run("rev-parse", "-q", "--verify", f"HEAD:{path}", check=False)).line()
        answer = await inside.run(*args, *([asked] if asked else []), check=False)
        if answer.code != 0 or answer.out.strip():
            found.append(path)
    filled = await tree.effects.disk(_names_below, tree.git_dir / "modules")
    names = set((await submodule_paths(tree)).values())
    found += [name for name in filled if not any(other == name or other.startswith(f"{name}/") for other in names)]
    return sorted(found)


@answered
async def beside_submodules(tree: Git) -> list[str]:
    """The submodules that are not checked out and whose folders hold files all the same: git does not tell of those."""
    if not await tree.effects.disk(_may_have_submodules, tree.git_dir):
        return []
    linked = (await tree.run("ls-files", "-s", "-z", timeout=300.0)).names()
    paths = [record.partition("\t")[2] for record in linked if record.startswith("160000 ")]
    return await tree.effects.disk(_filled_without_git, tree.root, paths)


def _may_have_submodules(git_dir: Path) -> bool:
    """Whether the index could have a submodule; what its bytes tell without a process."""
    files = [file for file in (git_dir / "index", *git_dir.glob("sharedindex.*")) if file.is_file()]
    return any(_SUBMODULE_MODE in file.read_bytes() for file in files)


def _filled_without_git(root: Path, paths: list[str]) -> list[str]:
    """Those of the folders `paths` that are no checkout and not empty, with a slash behind each; links not followed."""
    places = {path: root / path for path in sorted(paths)}
    return [
        f"{path}/"
        for path, place in places.items()
        if place.is_dir() and not place.is_symlink() and not os.path.lexists(place / ".git") and any(place.iterdir())
    ]


def _asked(path: str, wanted: Sequence[str]) -> bool:
    return any(name == path or name.startswith(f"{path}/") or path.startswith(f"{name}/") for name in wanted)


def _names_below(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _free(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _human(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
