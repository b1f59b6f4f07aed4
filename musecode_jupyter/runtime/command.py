"""Runs a short program whose whole output is the answer: no terminal, a deadline, its process group ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_TERM_GRACE = 2.0  # seconds in which a program such as git removes its lock files after SIGTERM
_KILL_GRACE = 5.0


@dataclass(frozen=True)
class Command:
    """A program to run. `env` is the whole environment; `timeout` in seconds; without `input` stdin is empty.

    `pass_fds` are descriptors that it keeps open: a lock so held outlives a kill of this process while it runs.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    input: bytes | None = None
    timeout: float = 60.0
    pass_fds: tuple[int, ...] = ()


@dataclass(frozen=True)
class CommandAnswer:
    """What it answered: exit status (negative for a signal), raw standard output, decoded standard error."""

    code: int
    out: bytes
    err: str


async def run_command(command: Command) -> CommandAnswer:
    """Run `command` to its end; cancellation ends its process group first.

    Raises
    ------
    TimeoutError
        It took longer than its timeout; its process group was ended.
    ChildProcessError
        SIGCHLD is ignored in this process: the system then keeps no exit status, and failure would look like success.
    OSError
        It cannot be started.
    """
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        raise ChildProcessError(
            "SIGCHLD is ignored in this process, so that the end of a program cannot be seen; "
            "run `signal.signal(signal.SIGCHLD, signal.SIG_DFL)` first"
        )
    run = _Run(command)
    try:
        future = _in_thread(run)
    except RuntimeError:
        # No thread can be started while the interpreter ends, and a session is closed just then.
        return run()
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.shield(_end(run, future))
        raise


def _in_thread(run: _Run) -> asyncio.Future[CommandAnswer]:
    """Run it in a thread that the interpreter does not wait for when it ends, unlike those of an executor."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[CommandAnswer] = loop.create_future()

    def settle(answer: CommandAnswer | None, error: Exception | None) -> None:
        if future.done():
            return
        if answer is not None:
            future.set_result(answer)
        else:
            future.set_exception(error or RuntimeError("the command had no end"))

    def work() -> None:
        answer: CommandAnswer | None = None
        failure: Exception | None = None
        try:
            answer = run()
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, answer, failure)

    threading.Thread(target=work, name="musecode-command", daemon=True).start()
    return future


async def _end(run: _Run, future: asyncio.Future[CommandAnswer]) -> None:
    """End the process group: first politely, so that it takes its lock files away, then for certain."""
    for number, grace in ((signal.SIGTERM, _TERM_GRACE), (signal.SIGKILL, _KILL_GRACE)):
        run.stop(number)
        await asyncio.wait({future}, timeout=grace)
    if future.done() and not future.cancelled():
        # Nobody waits for what it answered.
        future.exception()


class _Run:
    """One run, in a thread of its own.

    asyncio's own subprocesses are not used: one that is cancelled while it starts waits for ever for pipes that were
    never connected (seen with CPython 3.11.7). Output goes to files, so that nothing that the program leaves behind
    can hold up its end.
    """

    def __init__(self, command: Command) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def __call__(self) -> CommandAnswer:
        command = self._command
        with contextlib.ExitStack() as stack:
            out, err = (stack.enter_context(_file()) for _ in range(2))
            source: BinaryIO | int = subprocess.DEVNULL
            if command.input is not None:
                source = stack.enter_context(_file())
                source.write(command.input)
                source.seek(0)
            with self._lock:
                if self._stopped:
                    return CommandAnswer(-signal.SIGTERM, b"", "")
                self._process = process = subprocess.Popen(
                    command.argv,
                    stdin=source,
                    stdout=out,
                    stderr=err,
                    cwd=command.cwd,
                    env=command.env,
                    start_new_session=True,
                    pass_fds=command.pass_fds,
                )
            if not _wait(process, command.timeout):
                for number, grace in ((signal.SIGTERM, _TERM_GRACE), (signal.SIGKILL, _KILL_GRACE)):
                    self.stop(number)
                    _wait(process, grace)
                raise TimeoutError
            return CommandAnswer(process.returncode, _content(out), _content(err).decode("utf-8", "replace"))

    def stop(self, number: int) -> None:
        """Send a signal to the process group; a run that has not begun does not begin. From any thread."""
        with self._lock:
            self._stopped = True
            # Also when the program has ended: what it started is in the group too.
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the process ends in time."""
    try:
        # Without this, `Popen.wait` looks again and again, at last only every 50 ms.
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        descriptor = -1
    try:
        if descriptor >= 0:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(seconds * 1000):
                return False
        process.wait(None if descriptor >= 0 else seconds)
    except subprocess.TimeoutExpired:
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True


def _file() -> BinaryIO:
    """A file without a name: in memory where that is possible."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("musecode"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _content(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read()
