"""Lays out what a worktree held at an event: in a folder of the user's choice, or in a worktree made for it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from musecode_jupyter.runtime.errors import GitError, ToolProblem, UsageProblem
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.tools.builtin import MAX_EDITABLE_BYTES
from musecode_jupyter.tools.files import clear_cut_off, digest_bytes, read_bytes, resolve_inside, write_atomic
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.held_files import HeldFiles

PART = ".musecode-part"
"""Ends the name of the folder that is filled before it takes its place."""

_TIMEOUT = 600.0

BlobOf = Callable[[str], bytes]


async def require_commit(git: Git, commit: str) -> None:
    """Raise GitError, saying what is lost, unless the repository still has `commit`."""
    found = await git.run("cat-file", "-e", f"{commit}^{{tree}}", check=False)
    if found.code != 0:
        raise GitError(
            f"The commit {commit[:12]}, which holds these files, is not in {git.root} any more: its branch was deleted "
            "and git has cleaned up. The changes that the log holds cannot be laid over it."
        )


async def require_free(git: Git, folder: Path) -> None:
    """Raise UsageProblem unless `folder` is absent or empty."""
    if await git.effects.disk(os.path.lexists, folder) and not await git.effects.disk(_empty, folder):
        raise UsageProblem(f"{folder} is there and not empty: name a folder that is not there yet, or an empty one.")


async def lay_out(git: Git, held: HeldFiles, blob: BlobOf, into: Path) -> int:
    """Write the files into the folder `into`, which is absent or empty; returns how many there are.

    Bytes, executable bits and links are as they were, where git's filters (line endings, git-lfs) stand between as
    git checks them out. Submodules are empty folders. Nothing else is touched, and a failure leaves nothing behind.

    Raises
    ------
    UsageProblem
        The folder is in use or cannot be made.
    GitError
        The commit is gone, or git fails.
    LogError
        A blob is gone or damaged.
    """
    into = await git.effects.disk(into.resolve)
    await require_free(git, into)
    await require_commit(git, held.commit)
    part = into.with_name(into.name + PART)
    try:
        await git.effects.disk(_make_part, part)
    except OSError as error:
        raise UsageProblem(f"{part} cannot be made ({error.strerror}): name another folder with --into.") from error
    try:
        env = {"GIT_INDEX_FILE": str(part / "index")}
        await git.run("read-tree", held.commit, env=env)
        prefix = f"--prefix={part / 'files'}/"
        await git.run("checkout-index", "--all", "--force", prefix, env=env, timeout=_TIMEOUT)
        await git.effects.disk(_overlay, part / "files", held.changed, blob)
        return await git.effects.disk(_take_place, part, into)
    finally:
        await to_the_end(git.effects.disk(shutil.rmtree, part, ignore_errors=True))


async def put_in(inside: Git, held: HeldFiles, blob: BlobOf) -> None:
    """Bring the files of a worktree that was just made for this to those of `held`; its branch stays where it is.

    Raises as `lay_out`.
    """
    await require_commit(inside, held.commit)
    await inside.run_index("read-tree", "--reset", "-u", held.commit, timeout=_TIMEOUT)
    await inside.effects.disk(_overlay, inside.root, held.changed, blob)
    # The index is as a checkout of the branch has it: what differs from it is not staged.
    await inside.run_index("read-tree", "HEAD")


def _overlay(root: Path, changed: Mapping[str, str | None], blob: BlobOf) -> None:
    for path, digest in changed.items():
        try:
            clear_cut_off(root, path)
            name, data = read_bytes(root, path, MAX_EDITABLE_BYTES)
            if digest is None:
                if data is not None:
                    resolve_inside(root, name).unlink()
            elif data is None:
                write_atomic(root, path, blob(digest), None)
            elif digest_bytes(data) != digest:
                write_atomic(root, path, blob(digest), digest_bytes(data))
        except ToolProblem as problem:
            raise GitError(f"{path} cannot be restored: {problem}") from problem


def _empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _make_part(part: Path) -> None:
    part.parent.mkdir(parents=True, exist_ok=True)
    if part.exists():
        # Of an attempt that was killed.
        shutil.rmtree(part)
    part.mkdir(mode=0o700)
    (part / "files").mkdir()


def _take_place(part: Path, into: Path) -> int:
    files = part / "files"
    count = sum(
        len(names) + sum(os.path.islink(os.path.join(at, d)) for d in dirs) for at, dirs, names in os.walk(files)
    )
    if not into.exists():
        files.rename(into)
        return count
    moved: list[Path] = []
    try:
        for each in files.iterdir():
            each.rename(into / each.name)
            moved.append(each)
    except OSError:
        for each in moved:
            with contextlib.suppress(OSError):
                (into / each.name).rename(each)
        raise
    return count
