"""The guardian: a process outside the kernel that ends the registered process groups when the kernel is gone.

The kernel holds the write end of a pipe whose read end is all that the guardian waits on, so it learns of any
death of the kernel, SIGKILL included. Owner: whoever called `Guardian.start()`, until `close()`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import select
import subprocess
import sys
import threading
import weakref

from musecode_jupyter.runtime import reaper
from musecode_jupyter.runtime.errors import ConfigurationError, UsageProblem

# Read once: user code may point sys.executable elsewhere later.
PYTHON = sys.executable or "python3"
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "SYSTEMROOT")


class Guardian:
    """Groups registered here outlive the kernel by a second or two only. Thread-safe."""

    def __init__(self) -> None:
        self.prefix = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._groups: dict[int, str] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._pipe = -1
        self._closed = False

    @classmethod
    def start(cls) -> Guardian:
        """Start the guardian process.

        Raises
        ------
        ConfigurationError
            The Python interpreter of this kernel cannot be started as a program.
        """
        guardian = cls()
        with guardian._lock:
            guardian._spawn()
        _guardians.add(guardian)
        return guardian

    def new_token(self) -> str:
        """A marker for the environment variable `MUSECODE_PROCESS` of one command.

        The guardian knows every marker made here before the command is registered.
        """
        return f"{self.prefix}.{next(self._numbers)}"

    def add(self, pgid: int, token: str = "") -> None:
        """Register group `pgid`, and on Linux every process that carries `token` in `MUSECODE_PROCESS`."""
        with self._lock:
            self._groups[pgid] = token
            self._tell(f"+{pgid} {token}\n")

    def remove(self, pgid: int) -> None:
        """Forget a group; called while its number cannot have been given to another one yet."""
        with self._lock:
            if self._groups.pop(pgid, None) is not None and not self._closed:
                self._tell(f"-{pgid}\n")

    def check(self) -> None:
        """Start the guardian process anew, with the current groups, if it is gone."""
        with self._lock:
            if not self._closed and self._gone():
                self._spawn()

    def close(self) -> None:
        """Let the guardian go; it ends the groups that are still registered. Safe to call twice."""
        with self._lock:
            self._closed = True
            self._drop()

    def _gone(self) -> bool:
        poll = select.poll()
        poll.register(self._pipe, 0)
        return bool(poll.poll(0))

    def _tell(self, line: str) -> None:
        if os.getpid() != self._pid:
            raise UsageProblem("this is a forked child of the kernel: start processes from the kernel itself")
        if self._closed:
            raise UsageProblem("the guardian of this session is closed: no more processes can be started")
        try:
            os.write(self._pipe, line.encode())
        except BlockingIOError:
            # It is stopped and its pipe is full. The pipe stays open: at its end all would be killed.
            self._pipe = -1
            self._spawn()
        except BrokenPipeError:
            self._spawn()

    def _spawn(self) -> None:
        self._drop()
        read_end, write_end = os.pipe()  # both close-on-exec
        try:
            subprocess.run(
                [PYTHON, "-I", "-S", reaper.__file__, self.prefix],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
                start_new_session=True,
                timeout=30,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(write_end)
            raise ConfigurationError(f"cannot start the guardian process with {PYTHON}: {error}") from error
        finally:
            os.close(read_end)
        os.set_blocking(write_end, False)
        self._pipe = write_end
        lines = "".join(f"+{pgid} {token}\n" for pgid, token in self._groups.items())
        if lines:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(write_end, lines.encode())

    def _drop(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def _forked(self) -> None:
        # No lock: the thread that held it does not exist in the child.
        self._lock = threading.Lock()
        self._drop()


_guardians: weakref.WeakSet[Guardian] = weakref.WeakSet()


def _after_fork() -> None:
    for guardian in list(_guardians):
        guardian._forked()


os.register_at_fork(after_in_child=_after_fork)
