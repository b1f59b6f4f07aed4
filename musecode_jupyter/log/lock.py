"""One writer per session: a file lock held for the life of a process and by none of its forked children."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import weakref
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from musecode_jupyter.runtime.errors import LogError, LogLocked, LogReadOnly

_held: weakref.WeakSet[SessionLock] = weakref.WeakSet()
# fcntl locks do not exclude within one process, and closing any descriptor of the file drops them.
_inodes: set[tuple[int, int]] = set()

_NO_FLOCK = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL}
_LENGTH = 300
_BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds, or held last, a session's lock. `started` is in clock ticks since boot, -1 if unknown.

    `held` is false once the lock was released in order.
    """

    pid: int
    started: int
    boot: str
    host: str
    generation: int
    held: bool = True


class SessionLock:
    """The lock of one session folder, taken by `acquire`.

    The lock belongs to an open file description, which a forked child shares: the child's copy is closed as
    the child starts, so that the lock goes with this process and not with the last of its children.
    """

    def __init__(self, path: Path, descriptor: int, previous: Holder | None) -> None:
        self.path = path
        self.previous = previous
        self._descriptor = descriptor
        self._signed: Holder | None = None
        status = os.fstat(descriptor)
        self._inode = (status.st_dev, status.st_ino)
        _inodes.add(self._inode)
        _held.add(self)

    @classmethod
    def acquire(cls, folder: Path) -> SessionLock:
        """Take the lock of session `folder` without waiting.

        Raises
        ------
        LogLocked
            A live process (this one included) holds it.
        LogReadOnly
            The folder cannot be written.
        LogError
            The folder does not exist.
        """
        path = folder / "lock"
        try:
            known = os.stat(path)
        except OSError:
            known = None
        if known is not None and (known.st_dev, known.st_ino) in _inodes:
            # Checked before opening: closing a second descriptor would drop a lock made by lockf.
            raise LogLocked(_refusal(folder, read_holder(folder)))
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise LogError(f"there is no session in {folder}; check its id") from None
        except OSError as problem:
            raise LogReadOnly(
                f"cannot write in {folder} ({problem.strerror}); make the folder writable, or open the "
                "session for reading"
            ) from problem
        try:
            if not _lock(descriptor):
                raise LogLocked(_refusal(folder, _parse(descriptor)))
            return cls(path, descriptor, _parse(descriptor))
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def held(self) -> bool:
        """Whether this process holds the lock; false after `release` and in a forked child."""
        return self._descriptor >= 0

    def sign(self, generation: int) -> None:
        """Write this process and `generation` into the lock file, for those who are refused.

        Raises
        ------
        LogReadOnly
            The disk takes no writes.
        """
        self._signed = Holder(os.getpid(), _start_ticks(), _boot_id(), socket.gethostname(), generation)
        try:
            self._write(self._signed)
            os.fsync(self._descriptor)
        except OSError as problem:
            raise LogReadOnly(
                f"cannot write {self.path} ({problem.strerror}); free some space, or open the session for reading"
            ) from problem

    def _write(self, holder: Holder) -> None:
        # Of one length, so that whoever reads meanwhile never sees the end of what stood there before.
        content = json.dumps(asdict(holder)).encode("ascii").ljust(_LENGTH) + b"\n"
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))

    def release(self) -> None:
        """Let the next writer in. Without effect in a forked child and when called again."""
        if self._descriptor >= 0:
            if self._signed is not None:
                # For those who look without taking the lock: this process may live on for long.
                with contextlib.suppress(OSError):
                    self._write(replace(self._signed, held=False))
            descriptor, self._descriptor = self._descriptor, -1
            _inodes.discard(self._inode)
            _held.discard(self)
            os.close(descriptor)

    def _abandon(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def read_holder(folder: Path) -> Holder | None:
    """Who signed the lock of session `folder` last; none if nobody did or it cannot be read."""
    try:
        status = os.stat(folder / "lock")
        for lock in _held:
            if lock._inode == (status.st_dev, status.st_ino):
                # By its own descriptor: to open and close another one would drop a lock made by lockf.
                return _parse(lock._descriptor)
        descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _parse(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in _BUSY:
            return False
        if problem.errno not in _NO_FLOCK:
            raise
    else:
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in _BUSY:
            return False
        raise LogError(
            f"this file system offers no file locks ({problem.strerror}); put the sessions on one that does"
        ) from problem
    return True


def _parse(descriptor: int) -> Holder | None:
    try:
        content: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        return Holder(**content)
    except (OSError, ValueError, TypeError):
        return None


def _refusal(folder: Path, holder: Holder | None) -> str:
    if holder is None:
        who = "another process"
    else:
        elsewhere = "" if holder.host == socket.gethostname() else f" on {holder.host}"
        who = f"process {holder.pid}{elsewhere} (generation {holder.generation})"
    return f"session {folder.name} is being written by {who}; end that one, or open the session for reading"


def _start_ticks(process: str = "self") -> int:
    try:
        # The name of the command, in parentheses, may hold blanks and parentheses of its own.
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock._abandon()
    _held.clear()
    _inodes.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def is_held(folder: Path) -> bool:
    """Whether a live process (this one included) writes the session in `folder`, by what it signed in the lock file.

    The lock itself is not touched: to take it, even for an instant, would refuse a writer who comes just then. A
    process of another machine is taken to live until it has released the lock.
    """
    holder = read_holder(folder)
    if holder is None or not holder.held:
        return False
    if holder.host != socket.gethostname():
        return True
    if holder.boot != _boot_id():
        return False
    if holder.started < 0:
        try:
            os.kill(holder.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True
    return _start_ticks(str(holder.pid)) == holder.started


def is_locked(folder: Path) -> bool:
    """`is_held`, and of a process of another machine what the lock itself says.

    Such a process may have been killed, which only the lock tells, as far as the file system passes locks on.
    """
    holder = read_holder(folder)
    if holder is None or holder.host == socket.gethostname() or not is_held(folder):
        return is_held(folder)
    try:
        known = os.stat(folder / "lock")
        if (known.st_dev, known.st_ino) in _inodes:
            return True
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)
