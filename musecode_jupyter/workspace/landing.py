"""Checks merges, moves the user's branch by compare-and-swap, and brings the checkout along without loss."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Change, Git
from musecode_jupyter.workspace.locking import repository_lock
from musecode_jupyter.workspace.worktrees import (
    AUTHOR,
    Worktree,
    list_worktrees,
    operation_under_way,
    some_names,
)

BACKUP_PREFIX = "refs/musecode/backup/"
"""Where `land` keeps the commit a branch was at before it was moved."""

_MARK = "musecode-checkout"
_SYMLINK = "120000"
_SUBMODULE = "160000"
_EXECUTABLE = "100755"

Entry = tuple[str, str]
"""Mode and object id of a path in a tree or index."""

# What two commits differ in never changes, and each landing asks it before and after the branch moves.
_deltas: dict[tuple[Path, str, str], dict[str, tuple[Entry | None, Entry | None]]] = {}
_DELTAS_KEPT = 8


class RefMoved(GitError):
    """The branch is no longer at the commit that the landing was checked against: check and try again."""

    def __init__(self, ref: str, *, expected: str, found: str | None) -> None:
        where = "is gone" if found is None else f"is at {found[:12]}"
        super().__init__(f"{ref} {where}, no longer at {expected[:12]}; check the merge anew and try again.")
        self.ref = ref
        self.expected = expected
        self.found = found


class CheckoutBlocked(GitError):
    """The checkout cannot be brought along: the user's own changes are in the way, or git cannot write a file.

    All files are as they were before.
    """

    def __init__(self, message: str, *, paths: list[str]) -> None:
        super().__init__(message)
        self.paths = paths


@dataclass(frozen=True)
class MergeCheck:
    """What merging `source` into `target` gives; repository, branches and checkouts stay as they are.

    `tree` and `commit` are None if there are `conflicts` (paths). `commit` is what the branch would move to.
    """

    tree: str | None
    commit: str | None
    conflicts: list[str] = field(default_factory=list)
    fast_forward: bool = False


@answered
async def check_merge(git: Git, target_commit: str, source_commit: str, message: str | None = None) -> MergeCheck:
    """Merge `source_commit` into `target_commit` in the object store only.

    A source that is one commit on top of the target is landed as it is (and the target, if it holds the source
    already); else a merge commit with both parents, the target first. So what one meets on the branch, following first
    parents, are landed trees only, not the steps towards them. Its author is fixed and its date is that of the younger
    parent, so the same two commits give the same merge commit whenever this runs.

    Raises
    ------
    GitError
        A commit is unknown, or the two share no history.
    """
    target, source = await git.resolve(target_commit), await git.resolve(source_commit)
    if await git.is_ancestor(source, target):
        return MergeCheck(await git.tree_of(target), target, fast_forward=True)
    if await git.parents(source) == (target,):
        return MergeCheck(await git.tree_of(source), source, fast_forward=True)
    tree, conflicts = await _merge_tree(git, target, source)
    if tree is None:
        return MergeCheck(None, None, conflicts)
    text = message or f"Merge {source[:12]} into {target[:12]}\n"
    return MergeCheck(tree, await _commit(git, tree, (target, source), text))


@answered
async def revert_commit(git: Git, tip: str, old: str, new: str, message: str) -> MergeCheck:
    """A commit on `tip`, which contains `new`, without what lies between `old` and `new`; in the object store only.

    Its `commit` is `tip` itself if nothing of that is left in it. Date and author as with `check_merge`.
    """
    tip, old, new = await git.resolve(tip), await git.resolve(old), await git.resolve(new)
    # The tree of `old` as a change upon `new`: its merge with `tip` has `new` as its one base, as a revert needs.
    # `merge-tree --merge-base` would say so directly, and came with git 2.40.
    inverse = await _commit(git, await git.tree_of(old), (new,), "the inverse\n")
    tree, conflicts = await _merge_tree(git, tip, inverse)
    if tree is None:
        return MergeCheck(None, None, conflicts)
    if tree == await git.tree_of(tip):
        return MergeCheck(tree, tip)
    return MergeCheck(tree, await _commit(git, tree, (tip,), message))


@answered
async def check_delta(git: Git, target: str, base: str, source: str, message: str) -> MergeCheck:
    """One commit on `target` with what changed from `base` to `source`, and with neither of them in its history.

    For work that began in a snapshot of the user's uncommitted files, the `base`: of those nothing lands. A region in
    which work and uncommitted changes meet is a conflict, and so is a changed file that `target` does not have. Its
    `commit` is `target` itself if nothing changed. Date and author as with `check_merge`.
    """
    target, base, source = await git.resolve(target), await git.resolve(base), await git.resolve(source)
    tree, conflicts = await _three_way(git, base, target, source)
    if tree is None:
        return MergeCheck(None, None, conflicts)
    if tree == await git.tree_of(target):
        return MergeCheck(tree, target)
    return MergeCheck(tree, await _commit(git, tree, (target,), message))


@answered
async def check_overlay(git: Git, target: str, landing: str, beside: str, source: str) -> MergeCheck:
    """What is in the user's files after `landing`, upon `target`, has landed `beside` their uncommitted changes.

    `beside` is `target` with those changes. The commit, a merge of `target` and `source`, is for the checks and for the
    worker: it never lands.
    """
    target, source = await git.resolve(target), await git.resolve(source)
    tree, conflicts = await _three_way(git, target, await git.resolve(landing), await git.resolve(beside))
    if tree is None:
        return MergeCheck(None, None, conflicts)
    text = f"Merge {target[:12]} into {source[:12]}\n"
    return MergeCheck(tree, await _commit(git, tree, (target, source), text))


async def _three_way(git: Git, base: str, ours: str, theirs: str) -> tuple[str | None, list[str]]:
    """The merge of the trees of `ours` and `theirs` upon that of `base`; their history does not count."""
    sides = [await _commit(git, await git.tree_of(side), (base,), "a side\n") for side in (ours, theirs)]
    return await _merge_tree(git, *sides)


async def _merge_tree(git: Git, target: str, source: str) -> tuple[str | None, list[str]]:
    """The merged tree, or None and the paths in conflict."""
    args = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", target, source)
    merged = await git.run(*args, check=False, timeout=300.0)
    if merged.code not in (0, 1):
        if (await git.run("merge-base", target, source, check=False)).code == 1:
            raise GitError(f"{source[:12]} and {target[:12]} share no history; they cannot be merged.")
        raise await git.failure(args, merged)
    tree, *conflicts = merged.names()
    return (tree, []) if merged.code == 0 else (None, sorted({own_name(path, target, source) for path in conflicts}))


def own_name(path: str, *commits: str) -> str:
    """The name of a path in conflict: where a file meets a folder, git calls it NAME~COMMIT, or NAME~COMMIT_1."""
    for commit in commits:
        name, mark, number = path.rpartition(f"~{commit}")
        if mark and re.fullmatch(r"(_\d+)?", number):
            return name
    return path


async def _commit(git: Git, tree: str, parents: tuple[str, ...], message: str) -> str:
    """A commit of ours with the date of its youngest parent, so that the same arguments give the same commit."""
    stamp = max([await git.committed(parent) for parent in parents])
    name, _, address = AUTHOR.rstrip(">").partition(" <")
    identity = {
        f"GIT_{role}_{part}": value
        for role in ("AUTHOR", "COMMITTER")
        for part, value in (("NAME", name), ("EMAIL", address), ("DATE", f"@{stamp} +0000"))
    }
    above = [word for parent in parents for word in ("-p", parent)]
    made = await git.run("commit-tree", tree, *above, "-F", "-", input=os.fsencode(message), env=identity)
    return made.line()


@answered
async def overlap(git_checkout: Git, old: str, new: str) -> list[str]:
    """Paths of the user's that moving this checkout from `old` to `new` would touch; empty means safe.

    These are paths that differ between `old` and `new` and are staged, changed, or hidden by assume-unchanged
    or skip-worktree; and untracked or ignored files and folders that are where `new` needs to write. It does
    not matter whether the branch has been moved already. A path whose index entry is that of `new` is safe:
    its file is not touched.

    Raises
    ------
    GitError
        A merge, rebase, cherry-pick or revert is under way in this checkout, or a path is unmerged.
    """
    return await _overlap(git_checkout, await _standing(git_checkout, old, new))


@dataclass(frozen=True)
class _Standing:
    """A checkout beside what is to change: the entry of each path in question in both commits, the index, the files.

    `hidden` are the paths whose changes git was told to overlook.
    """

    delta: dict[str, tuple[Entry | None, Entry | None]]
    index: dict[str, Entry]
    hidden: set[str]
    changes: list[Change]


async def _standing(git: Git, old: str, new: str) -> _Standing:
    # Side by side: none of them depends on another, and each but reads.
    delta, (index, hidden), changes = await asyncio.gather(
        _delta(git, old, new), _index(git), git.changes(untracked=False)
    )
    return _Standing(delta, index, hidden, changes)


async def _overlap(git: Git, at: _Standing) -> list[str]:
    operation = await operation_under_way(git)
    if operation is not None:
        raise GitError(f"A {operation} is under way in {git.root}; conclude or abort it first.")
    delta, index = at.delta, at.index
    unmerged = [change.path for change in at.changes if change.unmerged]
    if unmerged:
        raise GitError(f"{git.root} has unmerged paths: {some_names(unmerged)}; resolve them first.")
    absent = [path for path in delta if path not in index]
    unstaged = {change.path for change in at.changes if change.unstaged}
    # How names are compared matters only where there are two to compare.
    fold = await _fold(git) if absent or unstaged else str
    unstaged = {fold(path) for path in unstaged}
    found = set()
    for path, (before, after) in delta.items():
        entry = index.get(path)
        overlooked = path in at.hidden and await git.effects.disk(os.path.lexists, git.root / path)
        if entry != after and (entry != before or fold(path) in unstaged or overlooked):
            found.add(path)
    # Other tracked paths are in the way too: the user staged them, and git would not take them off.
    moving = {fold(path) for path in delta if path in index}
    found.update(await git.effects.disk(_in_the_way, git.root, absent, moving, fold))
    return sorted(found)


@answered
async def overlaps(git: Git, ref: str, old: str, new: str) -> dict[Path, list[str]]:
    """What `overlap` finds in each checkout that has the branch `ref`; those on another branch do not matter."""
    found = {}
    for tree in await holders(git, ref):
        here = git if tree.path == git.root else await Git.at_worktree(tree.path, git.effects)
        paths = await overlap(here, old, new)
        if paths:
            found[tree.path] = paths
    return found


@answered
async def holders(git: Git, ref: str) -> list[Worktree]:
    """The checkouts that have the branch `ref` and whose folder is there."""
    return [tree for tree in await list_worktrees(git) if tree.ref == ref and not tree.missing]


@answered
async def land(git: Git, ref: str, old: str, new: str, backup_ref: str) -> bool:
    """Move the branch `ref` from `old` to `new` after keeping `old` at `backup_ref`; no checkout is touched.

    Returns
    -------
    bool
        True if it was moved now, False if it already holds `new` (an earlier attempt got this far).

    Raises
    ------
    RefMoved
        The branch is neither at `old` nor holds `new`.
    GitError
        A ref name is not allowed, `new` does not contain `old`, the backup ref is taken, or a rebase of the
        branch is under way in a checkout.
    """
    await _require_branch(git, ref)
    await _require_backup(git, backup_ref)
    old, new = await git.resolve(old), await git.resolve(new)
    if not await git.is_ancestor(old, new):
        raise GitError(f"{new[:12]} does not contain {old[:12]}; landing it would drop commits of {ref}.")
    async with repository_lock(git) as lock:
        current = await git.ref(ref)
        landed = current is not None and await git.is_ancestor(new, current)
        if not landed and current != old:
            raise RefMoved(ref, expected=old, found=current)
        if landed:
            await _keep(git, backup_ref, old, lock)
            return False
        await _require_no_rebase(git, ref)
        kept = await _kept(git, backup_ref, old)
        await _swap(git, ref, old, new, "musecode: land", lock, backup_ref=None if kept else backup_ref)
    return True


@answered
async def undo_land(git: Git, ref: str, old: str, new: str, backup_ref: str | None = None) -> bool:
    """Move `ref` back from `new` to `old`; False if it is at `old` already, RefMoved if it is at neither.

    With `backup_ref`, `new` is kept there before.
    """
    await _require_branch(git, ref)
    if backup_ref is not None:
        await _require_backup(git, backup_ref)
    old, new = await git.resolve(old), await git.resolve(new)
    async with repository_lock(git) as lock:
        current = await git.ref(ref)
        if backup_ref is not None and current in (old, new):
            await _keep(git, backup_ref, new, lock)
        if current == old:
            return False
        await _require_no_rebase(git, ref)
        await _swap(git, ref, new, old, "musecode: undo landing", lock)
    return True


@answered
async def update_checkout(git: Git, ref: str, old: str, new: str) -> str:
    """Bring every checkout that has the branch `ref` (now at `new`) from `old` to `new`; says what was done.

    Staged, changed and untracked files that `new` does not touch are kept as they are. After a crash it can
    be run again: files that are already as in `new` are taken over.

    Raises
    ------
    CheckoutBlocked
        Something of the user's is in the way, which `overlap` tells before the branch is moved; or git could
        not write a file (a filter such as git-lfs failed, the disk is full). The files are as they were;
        `undo_land` takes the branch back.
    GitError
        The checkout is damaged, its index is locked, or a merge or the like is under way in it; or what git
        had begun to write could not be taken back, and the message names it.
    """
    await _require_branch(git, ref)
    old, new = await git.resolve(old), await git.resolve(new)
    async with repository_lock(git) as lock:
        trees = await holders(git, ref)
        if not trees:
            return f"{ref.removeprefix('refs/heads/')} is checked out nowhere, so no files needed an update."
        return " ".join([await _bring_along(git, tree, old, new, lock) for tree in trees])


async def _bring_along(repository: Git, tree: Worktree, old: str, new: str, lock: int) -> str:
    where = f"{tree.path} ({tree.branch})"
    if tree.commit != new:
        return f"{where} is no longer at {new[:12]}, so its files were left as they are."
    here = tree.path == repository.root
    git = repository if here else await Git.at_worktree(tree.path, repository.effects)
    standing = await _standing(git, old, new)
    delta, index = standing.delta, standing.index
    # The mark says that the paths of this step were free of the user's changes when it began, so that after
    # a crash a half-written file is known for ours; and then that it ended, so that what the user stages
    # afterwards is not taken for a reason to do it again.
    mark = git.git_dir / _MARK
    marked = await git.effects.disk(_read_mark, mark)
    pending = any(index.get(path) == before for path, (before, _) in delta.items())
    complete = all(index.get(path) == after for path, (_, after) in delta.items())
    if complete or (marked == f"{old} {new} done\n" and not pending):
        return f"{where} is already at {new[:12]}."
    interrupted = marked == f"{old} {new} begun\n"
    await _settle(git, new, delta, index, await _overlap(git, standing), interrupted, where)
    await git.effects.disk(_write_durably, mark, f"{old} {new} begun\n")
    try:
        await _read_tree(git, old, new, lock)
    except GitError as error:
        await _take_back(git, old, new, delta, where, error)
        raise
    await git.effects.disk(_write_durably, mark, f"{old} {new} done\n")
    return f"{where} was updated to {new[:12]}: {len(delta)} path{'s' * (len(delta) != 1)}."


async def _read_tree(git: Git, old: str, new: str, lock: int) -> None:
    args = ("read-tree", "-m", "-u", "--no-recurse-submodules", old, new)
    try:
        await git.run_index(*args, timeout=600.0, pass_fds=(lock,))
    except GitError as error:
        # So it says, before it writes anything, of a file whose recorded time is not its own any more: it was touched,
        # or settled just now. The exit status of the refresh says whether anything is dirty, which is fine.
        if "not uptodate" not in error.stderr:
            raise
        await git.run("update-index", "-q", "--refresh", check=False, timeout=300.0)
        await git.run_index(*args, timeout=600.0, pass_fds=(lock,))


async def _take_back(
    git: Git, old: str, new: str, delta: dict[str, tuple[Entry | None, Entry | None]], where: str, cause: GitError
) -> None:
    """Put back what a failed update has written; raises CheckoutBlocked if that was the obstacle.

    git refuses before it writes, or it has written some files when one cannot be written (it deletes the old file
    first), and the index not at all.
    """
    added = [path for path in await _begun(git, old, new, delta) if delta[path][0] is None]
    # Added files go first: one may stand where a folder is to come back, or in what was a file.
    await git.effects.disk(_unlink_all, git.root, added)
    gone = await _begun(git, old, new, delta)
    if gone:
        args = ("checkout-index", "--force", "--quiet", "-z", "--stdin")
        names = os.fsencode("\0".join(gone))
        answer = await git.run(*args, input=names, check=False, timeout=600.0)
        if answer.code != 0:
            raise GitError(
                f"{where} is half updated, because git could not write all of {some_names(gone)}: {cause}. "
                f"Mend that, then run `git checkout {new[:12]} -- ` with these names.",
                args_run=cause.args_run,
                code=cause.code,
                stderr=cause.stderr,
            ) from cause
    await git.effects.disk((git.git_dir / _MARK).unlink)
    if added or gone:
        why = f"{where} was not updated, and its files are as they were: {cause}"
        raise CheckoutBlocked(why, paths=sorted({*added, *gone})) from cause
    blocked = await overlap(git, old, new)
    if blocked:
        raise _blocked(where, blocked) from None


async def _begun(git: Git, old: str, new: str, delta: dict[str, tuple[Entry | None, Entry | None]]) -> list[str]:
    """The paths that are on their way from `old` to `new`, or there, while the index is still at `old`."""
    paths = await overlap(git, old, new)
    return [path for path in paths if path in delta and await _compare(git, path, delta[path][1]) != "other"]


def _unlink_all(root: Path, names: list[str]) -> None:
    """Delete files, and the folders that are empty then."""
    for name in names:
        (root / name).unlink(missing_ok=True)
        for folder in (root / name).parents:
            if folder == root or any(folder.iterdir()):
                break
            folder.rmdir()


async def _settle(
    git: Git,
    new: str,
    delta: dict[str, tuple[Entry | None, Entry | None]],
    index: dict[str, Entry],
    paths: list[str],
    interrupted: bool,
    where: str,
) -> None:
    """Make `paths` acceptable to git where nothing can be lost by it, else raise CheckoutBlocked."""
    done: list[str] = []
    partial: list[str] = []
    blocked: list[str] = []
    for path in paths:
        before, after = delta.get(path, (None, None))
        state = "other"
        if path in delta and index.get(path) in (before, after):
            state = await _compare(git, path, after)
        if state == "same":
            done.append(path)
        elif interrupted and state == "part":
            partial.append(path)
        elif not (interrupted and state == "missing"):
            blocked.append(path)
    if blocked:
        raise _blocked(where, blocked)
    for path in partial:
        await git.effects.disk(os.unlink, git.root / path)
    if done:
        zero = ("0", "0" * len(new))
        records = ["{} {}\t{}\0".format(*(delta[path][1] or zero), path) for path in done]
        await git.run_index("update-index", "-z", "--index-info", input=os.fsencode("".join(records)))


async def _compare(git: Git, path: str, after: Entry | None) -> str:
    """How the file on disk stands to what is to come.

    Same, missing, part (a strict beginning of it: git was killed while writing) or other.
    """
    file = git.root / path
    try:
        status = await git.effects.disk(file.lstat)
    except NotADirectoryError:
        return "other"
    except FileNotFoundError:
        return "missing" if after is not None else "same"
    if after is None or after[0] == _SUBMODULE:
        return "other"
    mode, blob = after
    if mode == _SYMLINK:
        if not stat.S_ISLNK(status.st_mode):
            return "other"
        wanted = (await git.run("cat-file", "blob", blob)).out
        return "same" if os.fsencode(await git.effects.disk(os.readlink, file)) == wanted else "other"
    if not stat.S_ISREG(status.st_mode):
        return "other"
    wanted = (await git.run("cat-file", "--filters", f"--path={path}", blob, timeout=300.0)).out
    if status.st_size > len(wanted):
        return "other"
    found = await git.effects.disk(file.read_bytes)
    if found == wanted:
        return "same" if bool(status.st_mode & 0o100) == (mode == _EXECUTABLE) else "other"
    return "part" if wanted.startswith(found) else "other"


def _blocked(where: str, paths: list[str]) -> CheckoutBlocked:
    return CheckoutBlocked(
        f"{where} was not updated, because your own changes are in the way: {some_names(paths)}. "
        "Nothing of yours was touched; commit or move them and try again.",
        paths=paths,
    )


async def _delta(git: Git, old: str, new: str) -> dict[str, tuple[Entry | None, Entry | None]]:
    """Every path that differs, with its entry in `old` and in `new` (full ids); a rename is two paths."""
    key = (git.common_dir, old, new)
    if key in _deltas:
        return _deltas[key]
    answer = await git.run(
        "diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--end-of-options", old, new
    )
    parts = answer.names()
    delta: dict[str, tuple[Entry | None, Entry | None]] = {}
    for header, path in zip(parts[::2], parts[1::2], strict=True):
        mode_old, mode_new, blob_old, blob_new, _ = header.removeprefix(":").split(" ")
        delta[path] = (
            (mode_old, blob_old) if mode_old.strip("0") else None,
            (mode_new, blob_new) if mode_new.strip("0") else None,
        )
    if len(old) == len(new) >= 40:
        while len(_deltas) >= _DELTAS_KEPT:
            del _deltas[next(iter(_deltas))]
        _deltas[key] = delta
    return delta


async def _index(git: Git) -> tuple[dict[str, Entry], set[str]]:
    """The index as path to entry, and the paths whose changes git was told to overlook."""
    entries: dict[str, Entry] = {}
    hidden: set[str] = set()
    for record in (await git.run("ls-files", "-s", "-v", "-z")).names():
        header, _, path = record.partition("\t")
        tag, mode, blob, _ = header.split(" ")
        entries[path] = (mode, blob)
        if tag == "S" or tag.islower():
            hidden.add(path)
    return entries, hidden


async def _fold(git: Git) -> Callable[[str], str]:
    """How names are compared here: exactly, or without case where the file system does not keep it apart."""
    answer = await git.run("config", "--type=bool", "core.ignorecase", check=False)
    return str.casefold if answer.out.strip() == b"true" else str


def _in_the_way(root: Path, absent: list[str], moving: set[str], fold: Callable[[str], str]) -> set[str]:
    """What stands where a path `absent` from the index is to come or go, and is not itself `moving`."""
    found: set[str] = set()
    for path in absent:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            place = root / name
            if not os.path.lexists(place):
                break
            folder = place.is_dir() and not place.is_symlink()
            if not folder:
                if fold(name) not in moving:
                    found.add(name)
                break
            if os.path.lexists(place / ".git"):
                found.add(name)
                break
        else:
            found.update(_others_below(root, path, moving, fold))
    return found


def _others_below(root: Path, path: str, moving: set[str], fold: Callable[[str], str]) -> set[str]:
    """The files that stay in the folder `path`, which is to become a file."""
    found: set[str] = set()
    for folder, subfolders, files in os.walk(root / path):
        links = [name for name in subfolders if os.path.islink(os.path.join(folder, name))]
        for name in [*files, *links]:
            inner = os.path.relpath(os.path.join(folder, name), root)
            if fold(inner) not in moving:
                found.add(inner)
    return found


async def _require_branch(git: Git, ref: str) -> None:
    await git.check_ref_name(ref)
    if not ref.startswith("refs/heads/"):
        raise GitError(f"{ref!r} is not a branch; give its full name, refs/heads/...")


async def _require_backup(git: Git, backup_ref: str) -> None:
    await git.check_ref_name(backup_ref)
    if not backup_ref.startswith(BACKUP_PREFIX):
        raise GitError(f"{backup_ref!r} is not a backup ref; its name must start with {BACKUP_PREFIX}.")


async def _keep(git: Git, backup_ref: str, commit: str, lock: int) -> None:
    """Point `backup_ref` to `commit`; fine if it does already, refused if it keeps something else."""
    if not await _kept(git, backup_ref, commit):
        await git.run("update-ref", backup_ref, commit, "0" * len(commit), pass_fds=(lock,))


async def _kept(git: Git, backup_ref: str, commit: str) -> bool:
    """Whether `backup_ref` keeps `commit` already; GitError if it keeps something else."""
    kept = await git.ref(backup_ref)
    if kept not in (None, commit):
        raise GitError(f"{backup_ref} already keeps {kept[:12]}; choose another backup name.")
    return kept is not None


async def _swap(
    git: Git, ref: str, old: str, new: str, reason: str, lock: int, *, backup_ref: str | None = None
) -> None:
    """Move `ref` by compare-and-swap; in one transaction with it, and first, `backup_ref` is made to keep `old`."""
    steps = [] if backup_ref is None else [f"create {backup_ref}\0{old}\0"]
    steps.append(f"update {ref}\0{new}\0{old}\0")
    args = ("update-ref", "-m", reason, "-z", "--stdin")
    result = await git.run(*args, input=os.fsencode("".join(steps)), check=False, pass_fds=(lock,))
    if result.code != 0:
        found = await git.ref(ref)
        if found != old:
            raise RefMoved(ref, expected=old, found=found)
        raise await git.failure(args, result)


async def _require_no_rebase(git: Git, ref: str) -> None:
    """A rebase detaches HEAD and moves its branch only at the end, and would fail or undo the landing."""
    folder = await git.effects.disk(_rebase_of, git.common_dir, ref)
    if folder is not None:
        raise GitError(f"A rebase of {ref} is under way ({folder}); conclude or abort it first.")


def _rebase_of(common_dir: Path, ref: str) -> Path | None:
    """Where git keeps the rebase of `ref` that is under way in one of the checkouts, if there is one."""
    for admin in [common_dir, *sorted((common_dir / "worktrees").glob("*"))]:
        for kind in ("rebase-merge", "rebase-apply"):
            name = admin / kind / "head-name"
            if name.is_file() and name.read_text(errors="surrogateescape").strip() == ref:
                return admin / kind
    return None


def _read_mark(file: Path) -> str:
    return file.read_text() if file.is_file() else ""


def _write_durably(file: Path, text: str) -> None:
    with open(file, "w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
