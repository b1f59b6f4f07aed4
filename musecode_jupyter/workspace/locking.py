"""The one lock under which this package changes a repository, across tasks and processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git

_PATIENCE = 120.0

# One asyncio lock per loop and repository keeps order and spares polling; the flock excludes other processes.
_queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, asyncio.Lock]] = weakref.WeakKeyDictionary()
_held: set[int] = set()


def _close_held_locks() -> None:
    """A forked child of a user's cell must not keep the lock of a parent that is killed."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_held_locks)


@contextlib.asynccontextmanager
async def repository_lock(git: Git) -> AsyncIterator[int]:
    """Hold the one lock under which this package changes the repository; yields its descriptor (`pass_fds`).

    A git command that inherits the descriptor keeps the lock even if this process is killed meanwhile, so a
    restart never works beside it.
    """
    queues = _queues.setdefault(asyncio.get_running_loop(), {})
    async with queues.setdefault(git.common_dir, asyncio.Lock()):
        file = git.common_dir / "musecode.lock"
        try:
            # Not off the loop: a cancelled wait would leave a descriptor that nobody closes. It does not block.
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise GitError(f"{file} cannot be written ({error.strerror}); check its permissions.") from error
        _held.add(descriptor)
        try:
            # On file systems without flock, record locks; those are not inherited by git.
            lock = fcntl.flock if await _acquire(git, fcntl.flock, descriptor, file) else fcntl.lockf
            if lock is fcntl.lockf and not await _acquire(git, lock, descriptor, file):
                raise GitError(f"{file} cannot be locked on this file system; use a repository on another.")
            try:
                yield descriptor
            finally:
                lock(descriptor, fcntl.LOCK_UN)
        finally:
            _held.discard(descriptor)
            os.close(descriptor)


async def _acquire(git: Git, lock: Callable[[int, int], None], descriptor: int, file: Path) -> bool:
    """Wait for the lock; False if this kind of lock is not supported here."""
    deadline = git.effects.monotonic() + _PATIENCE
    while True:
        try:
            lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return False
        else:
            return True
        if git.effects.monotonic() > deadline:
            raise GitError(f"Another process holds {file} for over {_PATIENCE:.0f} s; wait for it or end it.")
        await git.effects.sleep(0.05)
