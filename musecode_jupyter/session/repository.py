"""Which repository a folder's work goes to: its own, or the private one that was made for it outside."""

from __future__ import annotations

from pathlib import Path

from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import GitError, NoRepository
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.shadow import find_shadow


async def find_repository(workspace: Path, home: Path, effects: Effects) -> tuple[Git, bool]:
    """The repository of `workspace`, if it has a commit, or the private one of it below `home`; and whether it is that.

    Raises
    ------
    NoRepository
        It is in none with a commit, and has no private one.
    NoCheckout, GitError
        It is in a bare repository or inside .git, or git cannot be used.
    """
    try:
        git = await Git.discover(workspace, effects)
        await git.head()
        return git, False
    except NoRepository:
        found = await find_shadow(await unborn_root(workspace, effects) or workspace, home, effects)
        if found is None:
            raise
        return found, True


async def repositories(workspace: Path, home: Path, effects: Effects) -> list[Git]:
    """All in which goals of sessions in `workspace` may work: its own, if it has a commit, and the private one."""
    found: list[Git] = []
    try:
        own = await Git.discover(workspace, effects)
        if await own.ref("HEAD") is not None:
            found.append(own)
        root = own.root
    except GitError:
        root = workspace
    shadow = await find_shadow(root, home, effects)
    return found if shadow is None else [*found, shadow]


async def unborn_root(workspace: Path, effects: Effects) -> Path | None:
    """The root of the repository that `workspace` is in, if it has no commit yet; None if it is in none."""
    try:
        return (await Git.discover(workspace, effects)).root
    except NoRepository:
        return None


async def root_and_place(workspace: Path, home: Path, effects: Effects) -> tuple[Path, Path]:
    """The root of the repository to which work of `workspace` goes, or the folder itself if it is in none; and by what
    its rules are kept. Raises as `find_repository`, but for NoRepository."""
    try:
        git = (await find_repository(workspace, home, effects))[0]
    except NoRepository:
        return await unborn_root(workspace, effects) or workspace, workspace
    return git.root, git.common_dir


def files_below(root: Path) -> list[str]:
    """The files of a folder that is in no repository, as paths below it."""
    return [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()]
