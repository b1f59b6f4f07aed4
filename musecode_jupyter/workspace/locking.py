"""Locks across tasks and processes: the one under which this package changes a repository, and others by file."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import GitError, MuseError
from musecode_jupyter.workspace.git import Git

_PATIENCE = 120.0

# One asyncio lock per loop and file keeps order and spares polling; the flock excludes other processes.
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
    async with file_lock(git.common_dir / "musecode.lock", git.effects, GitError) as descriptor:
        yield descriptor


@contextlib.asynccontextmanager
async def file_lock(file: Path, effects: Effects, problem: type[MuseError]) -> AsyncIterator[int]:
    """Hold the lock that `file` is, across tasks and processes; yields its descriptor. Raises `problem`."""
    queues = _queues.setdefault(asyncio.get_running_loop(), {})
    async with queues.setdefault(file, asyncio.Lock()):
        try:
            # Not off the loop: a cancelled wait would leave a descriptor that nobody closes. It does not block.
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise problem(f"{file} cannot be written ({error.strerror}); check its permissions.") from error
        _held.add(descriptor)
        try:
            # On file systems without flock, record locks; those are not inherited by git.
            lock = fcntl.flock if await _acquire(effects, fcntl.flock, descriptor, file, problem) else fcntl.lockf
            if lock is fcntl.lockf and not await _acquire(effects, lock, descriptor, file, problem):
                raise problem(f"{file} cannot be locked on this file system; use a folder on another.")
            try:
                yield descriptor
            finally:
                lock(descriptor, fcntl.LOCK_UN)
        finally:
            _held.discard(descriptor)
            os.close(descriptor)


async def _acquire(
    effects: Effects, lock: Callable[[int, int], None], descriptor: int, file: Path, problem: type[MuseError]
) -> bool:
    """Wait for the lock; False if this kind of lock is not supported here."""
    deadline = effects.monotonic() + _PATIENCE
    while True:
        try:
            lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return False
        else:
            return True
        if effects.monotonic() > deadline:
            raise problem(f"Another process holds {file} for over {_PATIENCE:.0f} s; wait for it or end it.")
        await effects.sleep(0.05)
