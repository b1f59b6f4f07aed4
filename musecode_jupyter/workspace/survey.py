"""Lists our worktrees with what they hold, removes those that hold nothing of their own, sets others aside."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.locking import repository_lock
from musecode_jupyter.workspace.provision import beside_submodules, uncontained_submodules
from musecode_jupyter.workspace.sharing import PART_SUFFIX
from musecode_jupyter.workspace.snapshots import SNAPSHOT_PREFIX, diff_of_files, take_snapshot
from musecode_jupyter.workspace.worktrees import (
    TRASH_SUFFIX,
    UNFINISHED,
    VERIFICATION,
    Worktree,
    delete_tree,
    deregister,
    discard_detached,
    files_beside,
    list_worktrees,
    operation_under_way,
    remove_worktree,
    some_names,
)

QUARANTINE = "musecode quarantine"
"""Begins the lock reason of a worktree that was set aside; the reason follows."""

QUARANTINE_FOLDER = "quarantine"
"""Folder, below that of the worktrees, to which they are moved."""

_AT_ONCE = 4  # worktrees looked at in parallel; each is a few git processes

State = Literal[
    "worktree", "verification", "half made", "quarantined", "folder gone", "git file gone", "broken", "left"
]


@dataclass(frozen=True)
class Surveyed:
    """A worktree of ours and what it holds.

    Attributes
    ----------
    state
        `left` is a folder that only waits to be deleted, or one that git does not know any more and that has no
        `.git` entry; `broken` one that git refuses, for the reason in `why`.
    unsaved
        Files that are in no commit. For a half-made worktree or one without a `.git` entry: compared with its commit.
    unmerged
        Number of its commits that the target does not have. They are on `branch`, if it has one.
    locked
        The reason of git's lock, None if it is not locked.
    """

    path: Path
    state: State
    branch: str | None = None
    commit: str | None = None
    unsaved: tuple[str, ...] = ()
    unmerged: int = 0
    operation: str | None = None
    locked: str | None = None
    why: str = ""

    @property
    def holds(self) -> str:
        """What would be lost with it, in words; empty if nothing."""
        parts = []
        if self.unsaved:
            parts.append(f"unsaved: {some_names(list(self.unsaved))}")
        if self.unmerged:
            where = f" (kept on {self.branch})" if self.branch else ""
            parts.append(f"{self.unmerged} commit{'s' * (self.unmerged != 1)} not merged{where}")
        if self.operation:
            parts.append(f"a {self.operation} under way")
        return "; ".join(parts)

    def describe(self) -> str:
        """One line for people."""
        parts = [self.holds or "nothing of its own"]
        if self.state != "worktree":
            parts.insert(0, f"{self.state} ({self.why})" if self.why else self.state)
        elif self.locked is not None:
            parts.insert(0, f"locked ({self.locked or 'no reason given'})")
        return f"{some_names([str(self.path)])}, {self.branch or 'no branch'}: {'; '.join(parts)}"


@answered
async def survey(git: Git, folder: Path, contained_in: str = "HEAD") -> list[Surveyed]:
    """Every worktree of this repository below `folder`, and every folder directly in it that is one no more.

    Folders that belong to other repositories are left out. Nothing is changed, no lock is taken.
    """
    folder = await git.effects.disk(folder.resolve)
    target = await git.resolve(contained_in)
    entries = [tree for tree in await list_worktrees(git) if tree.path.is_relative_to(folder)]
    slots = asyncio.Semaphore(_AT_ONCE)

    async def look(entry: Worktree) -> Surveyed:
        async with slots:
            return await _look(git, entry, target)

    found = list(await asyncio.gather(*(look(entry) for entry in entries)))
    known = {entry.path for entry in entries}
    for path in await git.effects.disk(_left_folders, folder, known):
        beside = path.name.endswith((TRASH_SUFFIX, PART_SUFFIX))
        found.append(Surveyed(path, "left", why="can be deleted" if beside else "git does not know it any more"))
    return sorted(found, key=lambda tree: tree.path)


async def _look(git: Git, entry: Worktree, target: str) -> Surveyed:
    unmerged = 0
    if entry.commit is not None:
        # What was landed as one squashed commit is contained too.
        if await git.tree_of(entry.commit) != await git.tree_of(target):
            unmerged = int((await git.run("rev-list", "--count", entry.commit, "--not", target)).out)
    commit, about = entry.commit, (entry.branch, entry.commit)
    if entry.missing:
        return Surveyed(entry.path, "folder gone", *about, unmerged=unmerged, locked=entry.locked)
    state: State = "worktree"
    if entry.locked == UNFINISHED:
        state = "half made"
    elif not await git.effects.disk(os.path.lexists, entry.path / ".git"):
        state = "git file gone"
    if state != "worktree":
        unsaved = tuple(await files_beside(git, entry.path, commit, changed=state != "half made")) if commit else ()
        return Surveyed(entry.path, state, *about, unsaved, unmerged, locked=entry.locked)
    if entry.locked == VERIFICATION:
        return Surveyed(entry.path, "verification", *about, locked=entry.locked)
    why = ""
    if entry.locked is not None and entry.locked.startswith(QUARANTINE):
        state, why = "quarantined", entry.locked.removeprefix(QUARANTINE).removeprefix(": ")
    try:
        tree = await Git.at_worktree(entry.path, git.effects)
        changes = await tree.changes()
        strays = await beside_submodules(tree)
        operation = await operation_under_way(tree)
    except GitError as error:
        beside = tuple(await files_beside(git, entry.path, commit, changed=True)) if commit else ()
        return Surveyed(entry.path, "broken", *about, beside, unmerged, None, entry.locked, str(error))
    unsaved = tuple(sorted([*(change.path for change in changes), *strays]))
    return Surveyed(entry.path, state, *about, unsaved, unmerged, operation, entry.locked, why)


def _left_folders(folder: Path, known: set[Path]) -> list[Path]:
    """Folders directly in `folder` that are no checkout of any repository; what we left beside one among them."""
    if not folder.is_dir():
        return []
    holders = {parent for path in known for parent in path.parents}
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_dir()
        and not path.is_symlink()
        and path not in known
        and path not in holders
        and path.name != QUARANTINE_FOLDER
        and not (path / ".git").exists()
    ] + [
        path
        for path in sorted(folder.glob(f"*{TRASH_SUFFIX}"))
        if path not in known and (path / ".git").exists() and not path.is_symlink()
    ]


@answered
async def reclaim(
    git: Git, trees: Sequence[Surveyed], contained_in: str = "HEAD"
) -> tuple[list[Path], dict[Path, str]]:
    """Remove those of `trees` of which everything is contained in `contained_in`; branches stay.

    The caller names only worktrees that nobody works in: a new one holds nothing yet. All is proved anew, under the
    lock; done again after a crash, it goes on.

    Returns
    -------
    tuple
        The paths that are gone now, and for each of the others why it is kept.
    """
    removed: list[Path] = []
    kept: dict[Path, str] = {}
    for tree in trees:
        try:
            if tree.state == "verification":
                await discard_detached(git, tree.path)
            elif tree.state == "half made":
                await _remove_half_made(git, tree.path)
            elif tree.path.name.endswith((TRASH_SUFFIX, PART_SUFFIX)):
                await _delete_left(git, tree.path)
            elif tree.state == "left":
                raise GitError(f"{tree.path} is not a worktree any more; look what it holds and delete it yourself.")
            else:
                await remove_worktree(git, tree.path, contained_in)
        except GitError as error:
            kept[tree.path] = str(error)
        else:
            removed.append(tree.path)
    return removed, kept


@answered
async def discard(git: Git, tree: Surveyed, name: str) -> str:
    """Remove a worktree that holds something of its own, and keep that: returns the ref that does.

    Its commits and the files that are in none become a snapshot `name`; ignored files go, and its branch stays. The
    user was asked: what it holds has to be what `tree` says.

    Raises
    ------
    GitError
        It holds something else by now, or something that no snapshot can hold; it is broken, half made, locked by
        somebody else, or no worktree of ours. It is left as it is.
    """
    path, trash = tree.path, tree.path.with_name(tree.path.name + TRASH_SUFFIX)
    if tree.state not in ("worktree", "quarantined"):
        raise GitError(
            f"{path} is {tree.state}, so what it holds cannot be kept; set it aside, or look there yourself."
        )
    inside = await Git.at_worktree(path, git.effects)
    taken = await take_snapshot(inside, name, f"what {path.name} held\n")
    if taken.left_out:
        raise GitError(f"{path} holds {some_names(list(taken.left_out))}, which cannot be kept as a snapshot.")
    async with repository_lock(git) as lock:
        entry = next((entry for entry in await list_worktrees(git) if entry.path == path), None)
        if entry is None:
            raise GitError(f"{path} is not a worktree of {git.root} any more.")
        if entry.locked is not None and not entry.locked.startswith(QUARANTINE):
            raise GitError(f"{path} is locked ({entry.locked or 'no reason given'}); it is kept.")
        if await uncontained_submodules(inside):
            raise GitError(f"{path} has commits in submodules that would be lost; it is kept.")
        if entry.commit != tree.commit or await diff_of_files(inside, taken.commit):
            raise GitError(f"{path} has changed meanwhile; look at it again. It is kept.")
        await delete_tree(git, trash)
        await git.effects.disk(os.rename, path, trash)
        await deregister(git, path, lock)
        await delete_tree(git, trash)
    return SNAPSHOT_PREFIX + name


async def _remove_half_made(git: Git, path: Path) -> None:
    async with repository_lock(git) as lock:
        entry = next((tree for tree in await list_worktrees(git) if tree.path == path), None)
        if entry is None:
            return
        if entry.locked != UNFINISHED or entry.commit is None:
            raise GitError(f"{path} is not half made any more; look at it again.")
        if not entry.missing:
            extra = await files_beside(git, path, entry.commit)
            if extra:
                raise GitError(f"{path} is half made and holds {some_names(extra)}; it is kept.")
            await delete_tree(git, path)
        await deregister(git, path, lock)


async def _delete_left(git: Git, path: Path) -> None:
    async with repository_lock(git):
        origin = path.with_name(path.name.removesuffix(TRASH_SUFFIX).removesuffix(PART_SUFFIX))
        known = {tree.path: tree for tree in await list_worktrees(git)}
        # The removal that made it proved it, but was cut off before git forgot the worktree: that goes first.
        if path.name.endswith(TRASH_SUFFIX) and origin in known:
            raise GitError(f"{path} is what is left of {origin}, which git still knows; remove that first.")
        await delete_tree(git, path)


@answered
async def quarantine(git: Git, path: Path, folder: Path, why: str) -> Path:
    """Set aside the worktree at `path`, with all that it holds: moved to `folder`/quarantine, locked with the reason.

    Its branch stays checked out in it. A `.git` file that is gone is written again. Done again after a crash between
    any two steps, it goes on. Returns where it is.

    Raises
    ------
    GitError
        `path` is no worktree of this repository, or the main one; it is locked by somebody else or its folder is gone.
    """
    path = await git.effects.disk(path.resolve)
    place = (await git.effects.disk(folder.resolve)) / QUARANTINE_FOLDER
    reason = f"{QUARANTINE}: {' '.join(why.split())}"
    async with repository_lock(git) as lock:
        trees = await list_worktrees(git)
        entry = next((tree for tree in trees if tree.path == path), None)
        if entry is None and not await git.effects.disk(os.path.lexists, path):
            aside = [tree.path for tree in trees if _was_at(tree, place, path.name)]
            if aside:
                return max(aside, key=lambda found: (len(found.name), found.name))
        admin = await git.effects.disk(_admin_folder, git.common_dir, path)
        if entry is None or admin is None:
            raise GitError(f"{path} is not a worktree of {git.root}; it is left as it is.")
        ours = entry.locked is not None and entry.locked.startswith(QUARANTINE)
        if entry.locked not in (None, UNFINISHED) and not ours:
            raise GitError(f"{path} is locked ({entry.locked or 'no reason given'}); it is left as it is.")
        if not entry.missing and not await git.effects.disk(_is_of, path, admin):
            raise GitError(f"{path / '.git'} is not that of a worktree of {git.root}; it is left as it is.")
        # Locked first, so that nothing removes it meanwhile; the reason of `git worktree add` is taken over.
        if not ours:
            await git.effects.disk((admin / "locked").write_text, reason, errors="surrogateescape")
        if entry.missing:
            moved = await git.effects.disk(_moved_to, place, admin) if ours else None
            if moved is None:
                raise GitError(f"The folder {path} is gone, so it cannot be set aside.")
        else:
            await git.effects.disk(_write_git_file, path, admin)
            moved = await git.effects.disk(_free_name, place, path.name)
            await git.effects.disk(place.mkdir, parents=True, exist_ok=True)
            await git.effects.disk(os.rename, path, moved)
        await git.run("worktree", "repair", str(moved), pass_fds=(lock,))
    return moved


def _admin_folder(common_dir: Path, path: Path) -> Path | None:
    """Git's own folder of the worktree at `path`."""
    for file in sorted((common_dir / "worktrees").glob("*/gitdir")):
        named = Path(os.fsdecode(file.read_bytes()).rstrip("\n"))
        if (file.parent / named).parent == path or (file.parent / named).parent.resolve() == path:
            return file.parent
    return None


def _is_of(path: Path, admin: Path) -> bool:
    """Whether the `.git` file of `path` names `admin`, or is gone."""
    file = path / ".git"
    if not os.path.lexists(file):
        return True
    if not file.is_file():
        return False
    named = os.fsdecode(file.read_bytes()).removeprefix("gitdir: ").rstrip("\n")
    return (path / named).resolve() == admin.resolve()


def _write_git_file(path: Path, admin: Path) -> None:
    """By its absolute name, which holds when the folder is moved."""
    (path / ".git").write_bytes(b"gitdir: " + os.fsencode(admin) + b"\n")


def _moved_to(place: Path, admin: Path) -> Path | None:
    """The folder in `place` whose `.git` file names `admin`."""
    wanted = b"gitdir: " + os.fsencode(admin) + b"\n"
    for file in sorted(place.glob("*/.git")):
        if file.is_file() and file.read_bytes() == wanted:
            return file.parent
    return None


def _was_at(tree: Worktree, place: Path, name: str) -> bool:
    named = re.fullmatch(re.escape(name) + r"(-\d+)?", tree.path.name) is not None
    return tree.path.parent == place and named and (tree.locked or "").startswith(QUARANTINE)


def _free_name(place: Path, name: str) -> Path:
    number, path = 1, place / name
    while os.path.lexists(path):
        number += 1
        path = place / f"{name}-{number}"
    return path
