"""Snapshots: the files of a checkout as they are, kept as a commit on a private ref; index, HEAD and stash stay."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.workspace.git import Change, Git
from musecode_jupyter.workspace.locking import repository_lock
from musecode_jupyter.workspace.provision import beside_submodules
from musecode_jupyter.workspace.worktrees import AUTHOR, operation_under_way, some_names

PRIVATE_PREFIX = "refs/musecode/"
"""Begins all refs of ours that are no branches."""

SNAPSHOT_PREFIX = "refs/musecode/snapshot/"
"""Where snapshots are kept: out of the user's branches and tags, and never pushed by default."""

LARGEST_FILE = 256_000_000
"""Bytes; a larger untracked file (a checkpoint, a dataset) is not copied into the repository's objects."""

_ADD_TIMEOUT = 600.0


@dataclass(frozen=True)
class Snapshot:
    """A commit on top of HEAD that holds the files as they were.

    `commit` is HEAD itself if nothing differed. `left_out` names what could not be taken in: what changed inside
    submodules and nested repositories, sockets and pipes, and untracked files of more than `LARGEST_FILE` bytes.
    """

    commit: str
    tree: str
    head: str
    left_out: tuple[str, ...] = ()

    @property
    def dirty(self) -> bool:
        """Whether the files differed from HEAD."""
        return self.commit != self.head


@answered
async def take_snapshot(git: Git, name: str, message: str = "musecode: snapshot\n") -> Snapshot:
    """Keep tracked and untracked files (ignored ones are not) as a commit at `SNAPSHOT_PREFIX` + `name`.

    What is staged and what is not is not told apart: the files count. Files under assume-unchanged or skip-worktree
    are taken as they are on disk too. The same files on the same HEAD give the same commit.

    Raises
    ------
    GitError
        HEAD is unborn; a merge or rebase is under way or paths are unmerged; the name is taken by another snapshot
        or malformed; a file cannot be read; a filter such as git-lfs fails.
    """
    ref = SNAPSHOT_PREFIX + name
    await git.check_ref_name(ref)
    head = (await git.head()).commit
    operation = await operation_under_way(git)
    if operation is not None:
        raise GitError(f"A {operation} is under way in {git.root}; conclude or abort it, then try again.")
    changes = await git.changes()
    unmerged = [change.path for change in changes if change.unmerged]
    if unmerged:
        raise GitError(f"{git.root} has unmerged paths: {some_names(unmerged)}; resolve them, then try again.")
    left_out = await _left_out(git, changes)
    tree = await _tree_of_files(git, head, left_out)
    commit = head if tree == await git.tree_of(head) else await _commit(git, tree, head, message)
    async with repository_lock(git) as lock:
        kept = await git.ref(ref)
        if kept is not None and kept != commit:
            raise GitError(f"{ref} keeps another snapshot ({kept[:12]}); choose another name.")
        if kept is None:
            await git.run("update-ref", ref, commit, "0" * len(commit), pass_fds=(lock,))
    return Snapshot(commit, tree, head, tuple(sorted({*left_out, *await beside_submodules(git)})))


@answered
async def keep_commit(git: Git, ref: str, commit: str) -> None:
    """Let the private `ref` keep `commit`, a later state of what it keeps already or the first.

    Raises
    ------
    GitError
        The name is malformed or of the user's, or it keeps something that `commit` does not hold.
    """
    await git.check_ref_name(ref)
    if not ref.startswith(PRIVATE_PREFIX):
        raise GitError(f"{ref!r} is not a private ref; its name must start with {PRIVATE_PREFIX}.")
    async with repository_lock(git) as lock:
        kept = await git.ref(ref)
        if kept == commit:
            return
        if kept is not None and not await git.is_ancestor(kept, commit):
            raise GitError(f"{ref} keeps {kept[:12]}, which {commit[:12]} does not hold; choose another name.")
        await git.run("update-ref", ref, commit, kept or "0" * len(commit), pass_fds=(lock,))


@answered
async def drop_snapshot(git: Git, name: str, commit: str) -> None:
    """Forget the snapshot `name` if it is at `commit`; GitError if it is at another, nothing if it is gone."""
    ref = SNAPSHOT_PREFIX + name
    await git.check_ref_name(ref)
    async with repository_lock(git) as lock:
        kept = await git.ref(ref)
        if kept is None:
            return
        if kept != commit:
            raise GitError(f"{ref} is at {kept[:12]}, not at {commit[:12]}; it is kept.")
        await git.run("update-ref", "-d", ref, commit, pass_fds=(lock,))


@answered
async def diff_of_files(git: Git, base: str) -> str:
    """Unified diff from commit `base` to the files as they are, new ones too; index and refs are left alone."""
    tree = await _tree_of_files(git, base, await _left_out(git, await git.changes()))
    return await git.diff_text(base, tree)


@dataclass(frozen=True)
class Staged:
    """The files of a worktree in an index of our own, beside the one of git's.

    `differing` has, of each path that is not as in `since`, the mode and id of the blob that are now, both as git
    writes them, and the mode before; all zeros stand for not there.
    """

    index: Path
    since: str
    differing: dict[str, tuple[str, str, str]]
    left_out: tuple[str, ...]


async def stage_apart(git: Git, since: str, largest: int, most: int) -> Staged | None:
    """Bring an index of our own up to the worktree's files and compare it with commit `since`; None if all is clean.

    The index stays in the worktree's git folder, where git knows by it what it need not read again. Untracked files
    of more than `largest` bytes are left out.

    Raises
    ------
    GitError
        The changed files have more than `most` bytes together, or git fails.
    """
    head, changes = await git.head_and_changes()
    if not changes and head == since:
        return None
    left_out = await _left_out(git, changes, largest)
    there = [change.path for change in changes if change.path not in left_out]
    if await git.effects.disk(_bytes_of, git.root, there) > most:
        raise GitError(f"the changed files in {git.root} have more than {most} bytes")
    index = git.git_dir / "musecode-index"
    env = {"GIT_INDEX_FILE": str(index)}
    if not await git.effects.disk(index.exists):
        await git.effects.disk(_copy_index, git.git_dir, index)
    await _add_all(git, env, left_out)
    answer = await git.run("diff-index", "--cached", "-r", "-z", "--no-renames", since, env=env)
    words = answer.names()
    differing = {}
    for record, path in zip(words[::2], words[1::2], strict=True):
        before, now, _, blob, _ = record.removeprefix(":").split(" ")
        differing[path] = (now, blob, before)
    return Staged(index, since, differing, tuple(left_out))


async def keep_staged(git: Git, staged: Staged, ref: str, message: str) -> str:
    """Keep what was staged as a commit on top of what `ref` keeps, or of `staged.since`; returns the commit."""
    await git.check_ref_name(ref)
    tree = (await git.run("write-tree", env={"GIT_INDEX_FILE": str(staged.index)})).line()
    before = await git.ref(ref)
    commit = await _commit(git, tree, before or staged.since, message)
    await git.run("update-ref", ref, commit, before or "0" * len(commit))
    return commit


async def _left_out(git: Git, changes: list[Change], largest: int | None = None) -> list[str]:
    foreign = {change.path for change in changes if change.submodule or change.path.endswith("/")}
    untracked = [change.path for change in changes if change.untracked and change.path not in foreign]
    return sorted(
        foreign | set(await git.effects.disk(_not_to_be_copied, git.root, untracked, largest or LARGEST_FILE))
    )


async def _tree_of_files(git: Git, head: str, left_out: list[str]) -> str:
    folder = Path(await git.effects.disk(tempfile.mkdtemp, prefix="musecode-"))
    try:
        index = folder / "index"
        # A copy of the user's index knows which files are unchanged, so that they need not be read again.
        copied = await git.effects.disk(_copy_index, git.git_dir, index)
        env = {"GIT_INDEX_FILE": str(index)}
        if not copied:
            await git.run("read-tree", head, env=env)
        hidden = [
            record[2:]
            for record in (await git.run("ls-files", "-v", "-z", env=env)).names()
            if record[0] == "S" or record[0].islower()
        ]
        if hidden:
            there = await git.effects.disk(_existing, git.root, hidden)
            for option, names in (("--no-assume-unchanged", hidden), ("--no-skip-worktree", there)):
                # A path that skip-worktree hides and that is not on disk was left out by a sparse checkout.
                if names:
                    await git.run(
                        *("update-index", option, "-z", "--stdin"), input=os.fsencode("\0".join(names)), env=env
                    )
        await _add_all(git, env, left_out)
        return (await git.run("write-tree", env=env)).line()
    finally:
        await to_the_end(git.effects.disk(shutil.rmtree, folder, ignore_errors=True))


async def _add_all(git: Git, env: dict[str, str], left_out: list[str]) -> None:
    await git.run(
        *("add", "--sparse", "-A", "--pathspec-from-file=-", "--pathspec-file-nul"),
        input=os.fsencode("\0".join([".", *(f":(exclude,literal){name.rstrip('/')}" for name in left_out)])),
        # The paths are patterns here: one stands for all, and what is left out is named as literal.
        env={**env, "GIT_LITERAL_PATHSPECS": "0"},
        timeout=_ADD_TIMEOUT,
    )


async def _commit(git: Git, tree: str, head: str, message: str) -> str:
    """A commit with a fixed author and the date of its parent, so that it is the same whenever it is made."""
    stamp = await git.committed(head)
    name, _, address = AUTHOR.rstrip(">").partition(" <")
    identity = {
        f"GIT_{role}_{part}": value
        for role in ("AUTHOR", "COMMITTER")
        for part, value in (("NAME", name), ("EMAIL", address), ("DATE", f"@{stamp} +0000"))
    }
    answer = await git.run("commit-tree", tree, "-p", head, "-F", "-", input=os.fsencode(message), env=identity)
    return answer.line()


def _copy_index(git_dir: Path, target: Path) -> bool:
    try:
        # With its time: a file that was changed right after it, in the same tick of the clock, is read again only if
        # the index is not younger than that.
        shutil.copy2(git_dir / "index", target)
    except FileNotFoundError:
        return False
    # A split index names its shared part, which git looks for beside it.
    for shared in git_dir.glob("sharedindex.*"):
        shutil.copy2(shared, target.parent / shared.name)
    return True


def _existing(root: Path, names: list[str]) -> list[str]:
    return [name for name in names if os.path.lexists(root / name)]


def _bytes_of(root: Path, names: list[str]) -> int:
    total = 0
    for name in names:
        with contextlib.suppress(OSError):
            total += os.lstat(root / name).st_size
    return total


def _not_to_be_copied(root: Path, names: list[str], largest: int) -> list[str]:
    found = []
    for name in names:
        try:
            status = os.lstat(root / name)
        except OSError:
            continue
        regular = stat.S_ISREG(status.st_mode)
        if not (regular or stat.S_ISLNK(status.st_mode)) or (regular and status.st_size > largest):
            found.append(name)
    return found
