"""Makes, commits in, and removes worktrees: each step can be repeated after a crash and loses nothing."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.locking import repository_lock
from musecode_jupyter.workspace.objects import Unsure
from musecode_jupyter.workspace.provision import (
    NO_LARGE_FILES,
    RESERVE,
    beside_submodules,
    fill_submodules,
    require_space,
    tree_bytes,
    uncontained_submodules,
)
from musecode_jupyter.workspace.reads import reader_of
from musecode_jupyter.workspace.sharing import PART_SUFFIX

AUTHOR = "musecode <agent@musecode.invalid>"
"""Author and committer of what agents commit; `.invalid` can never be somebody's address (RFC 2606)."""

VERIFICATION = "musecode verification tree"
"""Lock reason of the worktrees that `checkout_detached` made; only those does it ever clean or discard."""

UNFINISHED = "initializing"
"""Lock reason that git itself gives a worktree while it makes it, and takes off when it is complete."""

TRASH_SUFFIX = ".musecode-removed"
"""Ends the name to which a worktree is renamed, once its removal is decided, before it is deleted."""

_CHECKOUT_TIMEOUT = 600.0
_IN_PROGRESS = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
}


@dataclass(frozen=True)
class Worktree:
    """One line of `git worktree list`. `branch` is short; `locked` is the reason, None when it is not locked.

    `missing` means that its folder is gone.
    """

    path: Path
    commit: str | None
    branch: str | None
    locked: str | None
    missing: bool

    @property
    def ref(self) -> str | None:
        """The full name of the branch, `refs/heads/...`."""
        return None if self.branch is None else f"refs/heads/{self.branch}"


@answered
async def list_worktrees(git: Git) -> list[Worktree]:
    """Every worktree of the repository, the main one first (left out if the repository is bare)."""
    try:
        records = await git.effects.disk(reader_of(git.common_dir).worktrees)
    except Unsure:
        answer = await git.run("worktree", "list", "--porcelain", "-z")
        records = [
            dict(line.partition(" ")[::2] for line in record.split("\0") if line)
            for record in os.fsdecode(answer.out).split("\0\0")
        ]
    missing = await git.effects.disk(_missing, [fields["worktree"] for fields in records if fields])
    found = []
    for fields in records:
        if not fields or "bare" in fields:
            continue
        path = Path(fields["worktree"])
        if path == git.common_dir:
            path = await _main_checkout(git)
        commit = fields.get("HEAD")
        found.append(
            Worktree(
                path=path,
                commit=commit if commit is not None and commit.strip("0") else None,
                branch=fields["branch"].removeprefix("refs/heads/") if "branch" in fields else None,
                locked=fields.get("locked"),
                missing=fields["worktree"] in missing,
            )
        )
    return found


def _missing(paths: list[str]) -> set[str]:
    return {path for path in paths if not os.path.lexists(path)}


async def _main_checkout(git: Git) -> Path:
    """The main checkout where git takes the git directory for it: in a submodule, or with the directory elsewhere."""
    if git.git_dir == git.common_dir:
        return git.root
    named = await git.run("config", "core.worktree", env={"GIT_DIR": str(git.common_dir)}, check=False)
    return await git.effects.disk((git.common_dir / named.line()).resolve)


@answered
async def create_worktree(
    git: Git,
    path: Path,
    branch: str,
    base: str,
    *,
    submodules: bool | Sequence[str] = False,
    lfs: bool = False,
    reserve: int = RESERVE,
) -> Git:
    """Make a worktree at `path`, outside the repository, on `branch`, which is created at `base` if new.

    Parameters
    ----------
    submodules
        Which to check out in it: none, all, or those that the given paths lie in or below.
    lfs
        Whether git-lfs fills in large files; without it their pointers stay, which git takes for unchanged.
    reserve
        Bytes that must stay free on the disk.

    Done again, it finds or finishes what an earlier attempt left: a complete worktree of that branch at that
    path is returned as it is; a branch that holds `base` is reused; a checkout git never finished is redone.

    Raises
    ------
    GitError
        The name is malformed, the path is taken by something else or lies inside the repository, the branch
        does not contain `base` or is checked out elsewhere, the disk is too full, or git fails. Nothing
        existing is overwritten.
    """
    path = await git.effects.disk(path.resolve)
    if branch.startswith("-") or branch == "HEAD":
        raise GitError(f"{branch!r} is not a branch name; choose another name.")
    await git.check_ref_name(f"refs/heads/{branch}")
    start = await git.resolve(base)
    async with repository_lock(git) as lock:
        trees = await list_worktrees(git)
        _require_outside(git, path, trees)
        entry = next((tree for tree in trees if tree.path == path), None)
        if entry is not None and not entry.missing and entry.locked != UNFINISHED:
            if entry.branch != branch:
                raise GitError(
                    f"{path} is a worktree of {entry.branch or 'a detached commit'}, not of {branch}; "
                    "choose another folder."
                )
        else:
            await _make(git, path, branch, start, trees, lock, lfs=lfs, reserve=reserve)
    return await _filled(await Git.at_worktree(path, git.effects), submodules)


async def _make(
    git: Git, path: Path, branch: str, start: str, trees: list[Worktree], lock: int, *, lfs: bool, reserve: int
) -> None:
    ref = f"refs/heads/{branch}"
    elsewhere = next((tree for tree in trees if tree.ref == ref and tree.path != path), None)
    if elsewhere is not None:
        raise GitError(f"{branch} is checked out at {elsewhere.path}; choose another branch name.")
    tip = await git.ref(ref)
    if tip is not None and not await git.is_ancestor(start, tip):
        raise GitError(f"The branch {branch} exists and does not contain {start[:12]}; choose another name.")
    await require_space(git, path.parent, await tree_bytes(git, tip or start), reserve)
    if tip is None:
        # Not `worktree add -b`: that writes tracking configuration, and parallel writers of it fail.
        args = ("update-ref", "--create-reflog", "-m", "musecode: worktree", ref, start, "0" * len(start))
        await git.run(*args, pass_fds=(lock,))
    entry = next((tree for tree in trees if tree.path == path), None)
    if entry is not None:
        await _clear_unfinished(git, entry, tip or start, lock)
    await _add(git, path, lock, branch, lfs=lfs)


async def _filled(tree: Git, submodules: bool | Sequence[str]) -> Git:
    if submodules:
        async with repository_lock(tree):
            await fill_submodules(tree, submodules)
    return tree


@answered
async def checkout_detached(
    git: Git,
    path: Path,
    commit: str,
    *,
    submodules: bool | Sequence[str] = False,
    lfs: bool = False,
    reserve: int = RESERVE,
) -> Git:
    """A clean tree of `commit` at `path`, outside the repository, for verification; no ignored leftovers.

    An earlier verification tree at `path` is reused if it is pristine and at `commit`, else made anew. Such
    trees carry a git worktree lock with the reason `VERIFICATION`; anything else at `path` is a GitError.
    `submodules`, `lfs` and `reserve` are as for `create_worktree`; in a sparse checkout the tree is as sparse.
    """
    path = await git.effects.disk(path.resolve)
    wanted = await git.resolve(commit)
    async with repository_lock(git) as lock:
        trees = await list_worktrees(git)
        _require_outside(git, path, trees)
        entry = next((tree for tree in trees if tree.path == path), None)
        if entry is not None:
            if entry.locked != VERIFICATION:
                raise GitError(f"{path} is a worktree that is not for verification; choose another folder.")
            if entry.commit != wanted or entry.branch is not None or not await _pristine(git, entry):
                await delete_tree(git, path)
                await deregister(git, path, lock)
                entry = None
        if entry is None:
            await require_space(git, path.parent, await tree_bytes(git, wanted), reserve)
            await _add(git, path, lock, wanted, "--detach", "--lock", "--reason", VERIFICATION, lfs=lfs)
    return await _filled(await Git.at_worktree(path, git.effects), submodules)


@answered
async def discard_detached(git: Git, path: Path) -> None:
    """Remove a verification tree with whatever the checks wrote into it; GitError if it is anything else."""
    path = await git.effects.disk(path.resolve)
    async with repository_lock(git) as lock:
        entry = next((tree for tree in await list_worktrees(git) if tree.path == path), None)
        if entry is None:
            if await git.effects.disk(os.path.lexists, path):
                raise GitError(f"{path} is not a verification tree of {git.root}; it is left as it is.")
            return
        if entry.locked != VERIFICATION:
            raise GitError(f"{path} is a worktree that is not for verification; it is left as it is.")
        await delete_tree(git, path)
        await deregister(git, path, lock)


@answered
async def commit_all(git_in_worktree: Git, message: str, author: str = AUTHOR) -> str:
    """Commit everything that is not ignored and return the new commit, or HEAD if nothing changed.

    No hook, template or signature takes part; `author` ("name <address>") is also the committer. A merge that
    is under way is concluded.

    Raises
    ------
    GitError
        A submodule or nested repository changed, or there are files where a submodule is not checked out: that would
        not be in the commit, so nothing is done.
    """
    git = git_in_worktree
    name, _, address = author.rstrip(">").partition(" <")
    changes = await git.changes()
    foreign = sorted(change.path for change in changes if change.submodule or change.path.endswith("/"))
    if foreign:
        raise GitError(
            f"{some_names(foreign)} in {git.root} is a repository of its own and changed; its contents "
            "cannot be committed here. Remove its .git folder to keep the files, or undo the change."
        )
    beside = await beside_submodules(git)
    if beside:
        raise GitError(
            f"{some_names(beside)} in {git.root} is the place of a submodule that is not checked out here; git keeps "
            "no file there. Move your files to another folder."
        )
    if changes:
        # `--sparse`: work outside the part that is checked out counts too.
        await git.run_index("add", "--sparse", "-A", timeout=300.0)
    if changes or await operation_under_way(git) == "merge":
        identity = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": address}
        identity |= {"GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": address}
        try:
            await git.run_index(
                *("commit", "--quiet", "--no-verify", "--no-gpg-sign", "--no-status", "--allow-empty-message"),
                *("--cleanup=verbatim", "-F", "-"),
                input=os.fsencode(message),
                env=identity,
                timeout=300.0,
            )
        except GitError:
            # Nothing to commit: what was staged was taken back in the files.
            staged = await git.run("diff-index", "--cached", "--quiet", "HEAD", "--", check=False)
            if staged.code != 0 or await operation_under_way(git) == "merge":
                raise
    return (await git.head()).commit


@answered
async def fast_forward(git_in_worktree: Git, commit: str) -> None:
    """Move the worktree's branch and files on to `commit`, a descendant of its HEAD; nothing if it is there already.

    Raises
    ------
    GitError
        `commit` is no descendant, or something that is not committed is in the way. Nothing was touched then.
    """
    git = git_in_worktree
    async with repository_lock(git) as lock:
        await git.run_index(
            *("merge", "--ff-only", "--quiet", "--no-stat", "--no-autostash", "--no-verify-signatures", commit),
            timeout=_CHECKOUT_TIMEOUT,
            pass_fds=(lock,),
        )


@answered
async def remove_worktree(git: Git, path: Path, contained_in: str) -> list[str]:
    """Remove the worktree at `path` if everything in it is in `contained_in`; its branch stays.

    Returns
    -------
    list of str
        The ignored files and folders that went with it (build output, caches); empty if it was gone already.

    Raises
    ------
    GitError
        Says what would be lost: changed or untracked files, commits that `contained_in` does not hold, a
        merge or rebase under way, commits in submodules. The worktree is then left as it is.
    """
    path = await git.effects.disk(path.resolve)
    target = await git.resolve(contained_in)
    # The folder is renamed before it is deleted, so that a half-deleted one is never taken for a changed one.
    trash = path.with_name(path.name + TRASH_SUFFIX)
    async with repository_lock(git) as lock:
        entry = next((tree for tree in await list_worktrees(git) if tree.path == path), None)
        ignored: list[str] = []
        if await git.effects.disk(os.path.lexists, path):
            if entry is None:
                raise GitError(f"{path} is not a worktree of {git.root}; it is left as it is.")
            ignored = await require_removable(git, entry, target)
            await delete_tree(git, trash)
            await git.effects.disk(os.rename, path, trash)
        elif entry is not None and not await git.effects.disk(trash.exists):
            if entry.locked is not None:
                raise GitError(f"{path} is gone but locked ({entry.locked}); `git worktree unlock` it first.")
            await _require_contained(git, entry, target)
        if entry is not None:
            await deregister(git, path, lock)
        await delete_tree(git, trash)
        await delete_tree(git, path.with_name(path.name + PART_SUFFIX))
    return ignored


@answered
async def remove_branch(git: Git, branch: str, contained_in: str) -> None:
    """Delete `branch` if its commits are in `contained_in` and no worktree has it; nothing if it is gone."""
    ref = f"refs/heads/{branch}"
    await git.check_ref_name(ref)
    target = await git.resolve(contained_in)
    async with repository_lock(git) as lock:
        tip = await git.ref(ref)
        if tip is None:
            return
        holder = next((tree for tree in await list_worktrees(git) if tree.ref == ref), None)
        if holder is not None:
            raise GitError(f"{branch} is checked out at {holder.path}; it is kept.")
        if not await git.is_ancestor(tip, target) and await git.tree_of(tip) != await git.tree_of(target):
            raise GitError(f"{branch} has commits that {contained_in} does not contain; it is kept.")
        await git.run("update-ref", "-d", ref, tip, pass_fds=(lock,))


def _require_outside(git: Git, path: Path, trees: list[Worktree]) -> None:
    for inside in [git.common_dir, *(tree.path for tree in trees if tree.path != path)]:
        if path.is_relative_to(inside):
            raise GitError(f"{path} lies inside {inside}; choose a folder outside the repository.")
    if path == git.root or git.root.is_relative_to(path):
        raise GitError(f"{path} holds the repository; choose a folder outside it.")


async def _add(git: Git, path: Path, lock: int, commit: str, *options: str, lfs: bool) -> None:
    if await git.effects.disk(_taken, path):
        raise GitError(f"{path} exists and is not empty; choose another folder or move it away.")
    try:
        await git.effects.disk(path.parent.mkdir, parents=True, exist_ok=True)
    except OSError as error:
        raise GitError(f"{path.parent} cannot be made ({error.strerror}); choose another folder.") from error
    args = ("worktree", "add", "--quiet", *options, str(path), commit)
    await git.run(*args, timeout=_CHECKOUT_TIMEOUT, pass_fds=(lock,), env=None if lfs else NO_LARGE_FILES)


def _taken(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else os.path.lexists(path)


async def _clear_unfinished(git: Git, entry: Worktree, commit: str, lock: int) -> None:
    """Take away what is left of a worktree that git never finished, or whose folder is gone."""
    if entry.missing:
        if entry.locked not in (None, UNFINISHED):
            raise GitError(
                f"{entry.path} is missing but locked ({entry.locked or 'no reason given'}); bring it back or "
                "`git worktree unlock` it."
            )
    else:
        extra = await files_beside(git, entry.path, commit)
        if extra:
            raise GitError(f"{entry.path} is half made and holds {some_names(extra)}; move that away and try again.")
        await delete_tree(git, entry.path)
    await deregister(git, entry.path, lock)


@answered
async def files_beside(git: Git, path: Path, commit: str, *, changed: bool = False) -> list[str]:
    """The files below `path` that `commit` does not have, whether or not `path` has a usable `.git` entry.

    With `changed`, those that differ from `commit` too, deleted ones among them, and none that are ignored.
    """
    folder = Path(await git.effects.disk(tempfile.mkdtemp, prefix="musecode-"))
    view = Git(path, git.common_dir, git.common_dir, git.effects)
    env = {"GIT_INDEX_FILE": str(folder / "index")}
    try:
        await view.run("read-tree", commit, env=env)
        options = ("-m", "--exclude-standard") if changed else ()
        return sorted(set((await view.run("ls-files", "-o", *options, "-z", env=env, timeout=300.0)).names()))
    finally:
        await to_the_end(git.effects.disk(shutil.rmtree, folder, ignore_errors=True))


async def _pristine(git: Git, entry: Worktree) -> bool:
    try:
        return not await (await Git.at_worktree(entry.path, git.effects)).changes(ignored=True)
    except GitError:
        return False


@answered
async def deregister(git: Git, path: Path, lock: int) -> None:
    """Make the repository forget the worktree at `path`, whose folder is gone; forced: it may be locked."""
    await git.run("worktree", "remove", "--force", "--force", str(path), pass_fds=(lock,))


@answered
async def require_removable(git: Git, entry: Worktree, target: str) -> list[str]:
    tree = await Git.at_worktree(entry.path, git.effects)
    if tree.git_dir == tree.common_dir:
        raise GitError(f"{entry.path} is the main checkout, not a worktree; it is kept.")
    if tree.common_dir != git.common_dir:
        raise GitError(f"{entry.path} belongs to {tree.common_dir}, not to {git.common_dir}; it is kept.")
    if entry.locked is not None:
        raise GitError(f"{entry.path} is locked ({entry.locked or 'no reason given'}); it is kept.")
    operation = await operation_under_way(tree)
    if operation is not None:
        raise GitError(f"A {operation} is under way in {entry.path}; conclude or abort it. It is kept.")
    if await git.effects.disk(_taken, tree.git_dir / "modules"):
        own = await uncontained_submodules(tree)
        if own:
            raise GitError(f"{entry.path} has commits in submodules that would be lost: {some_names(own)}. It is kept.")
    changes = await tree.changes(ignored=True)
    lost = sorted([*(change.path for change in changes if not change.ignored), *await beside_submodules(tree)])
    if lost:
        raise GitError(f"{entry.path} has uncommitted work that would be lost: {some_names(lost)}. It is kept.")
    await _require_contained(git, entry, target)
    return sorted(change.path for change in changes if change.ignored)


async def _require_contained(git: Git, entry: Worktree, target: str) -> None:
    if entry.commit is None or await git.is_ancestor(entry.commit, target):
        return
    if await git.tree_of(entry.commit) != await git.tree_of(target):
        raise GitError(f"{entry.path} is at {entry.commit[:12]}, which {target[:12]} does not contain; it is kept.")


@answered
async def operation_under_way(git: Git) -> str | None:
    """The git operation that is under way in this checkout, if any."""
    return await git.effects.disk(_operation, git.git_dir)


def _operation(git_dir: Path) -> str | None:
    return next((name for mark, name in _IN_PROGRESS.items() if (git_dir / mark).exists()), None)


@answered
async def delete_tree(git: Git, path: Path) -> None:
    """Delete a folder with all that is in it, links not followed; nothing if there is none."""
    try:
        await git.effects.disk(_delete, path)
    except FileNotFoundError:
        if await git.effects.disk(os.path.lexists, path):
            raise
    except OSError as error:
        raise GitError(f"{error.filename or path} cannot be deleted: {error.strerror}.") from error


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def some_names(names: list[str], limit: int = 5) -> str:
    """The first few names, printable, and how many more there are."""
    shown = ", ".join(re.sub(r"[^ -~\u00a1-\ud7ff]", "?", name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
