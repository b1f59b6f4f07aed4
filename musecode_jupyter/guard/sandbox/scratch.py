"""The private home and /tmp of a session's commands: local to this machine, gone with the session."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LOCK = "lock"
# Git in a command finds an identity and the trees it may read; the user's own configuration is not visible.
_GITCONFIG = """\
[user]
\tname = musecode
\temail = agent@musecode.invalid
[safe]
\tdirectory = *
"""


@dataclass(frozen=True)
class Room:
    """What a command has as its home directory and as /tmp."""

    home: Path
    tmp: Path

    @classmethod
    def make(cls, folder: Path) -> Room:
        """A new room in an empty folder."""
        room = cls(folder / "home", folder / "tmp")
        room.home.mkdir(mode=0o700)
        room.tmp.mkdir()
        room.tmp.chmod(0o1777)
        (room.home / ".gitconfig").write_text(_GITCONFIG)
        return room


class Scratch:
    """The room that the commands of a session share, and rooms for one command each. Owner: the sandbox.

    Made at first use, below a folder with mode 0700; `close` deletes all.

    They are held by a lock, so that what a killed kernel left behind is known as such and deleted by the next.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._root: Path | None = None
        self._shared: Room | None = None
        self._lock = -1

    @property
    def root(self) -> Path:
        """The folder of this scratch; made, and older ones that nobody holds are deleted, at first use."""
        if self._root is None:
            prefix = f"musecode-{os.getuid()}-"
            parent = Path(tempfile.gettempdir()).resolve()
            _sweep(parent, prefix)
            root = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            # Held before it has its name: another process never finds it free.
            self._lock = os.open(root / "new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(root / "new", root / _LOCK)
            (root / "files").mkdir()
            (root / "files" / "empty").touch()
            self._shared = Room.make(root)
            self._root = root
            _held.add(self)
        return self._root

    def room(self, *, fresh: bool) -> Room:
        """The shared room, or a new one, which `discard` deletes."""
        root = self.root
        if fresh:
            return Room.make(Path(tempfile.mkdtemp(dir=root)))
        assert self._shared is not None
        return self._shared

    def discard(self, room: Room) -> None:
        """Delete a room that was made for one command."""
        if room != self._shared:
            _delete(room.home.parent)

    @property
    def empty(self) -> Path:
        """An empty file."""
        return self.root / "files" / "empty"

    def file(self, name: str, data: bytes) -> Path:
        """A file that commands see in place of another."""
        path = self.root / "files" / name
        path.write_bytes(data)
        return path

    def close(self) -> None:
        """Delete the folders. Idempotent."""
        root, self._root, self._shared = self._root, None, None
        if root is not None and os.getpid() == self._pid:
            _delete(root)
        self.forked()

    def forked(self) -> None:
        """Let go of the lock: a forked child must not hold it for a parent that is gone."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


_held: weakref.WeakSet[Scratch] = weakref.WeakSet()


def _after_fork() -> None:
    for scratch in list(_held):
        scratch.forked()


os.register_at_fork(after_in_child=_after_fork)


def _sweep(parent: Path, prefix: str) -> None:
    """Delete the scratch folders of this user that no process holds."""
    for entry in os.scandir(parent):
        if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
            continue
        if entry.stat(follow_symlinks=False).st_uid != os.getuid():
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(Path(entry.path) / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _delete(Path(entry.path))
            finally:
                os.close(descriptor)


def _delete(root: Path) -> None:
    """Delete a tree; folders that a command made read-only (Go's module cache does) are made writable first."""

    def again(function: Callable[..., object], path: str, _error: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(path), stat.S_IRWXU)
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)
            if function in (os.rmdir, os.unlink):
                function(path)
            else:
                shutil.rmtree(path, ignore_errors=True)

    shutil.rmtree(root, onerror=again)
