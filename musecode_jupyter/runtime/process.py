"""Runs a command in a process session of its own: no stdin, no TTY, a wall limit, output to a file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from musecode_jupyter.runtime import launch, reaper
from musecode_jupyter.runtime.errors import MuseError

if TYPE_CHECKING:
    from musecode_jupyter.runtime.guardian import Guardian

_T = TypeVar("_T")
_TICK = 0.05
_GUARDIAN_CHECK = 1.0
_EXEC_WAIT = 5.0
_ANSWER_WAIT = 0.2
_COUNT_EVERY = 0.25
_COUNT_SHARE = 20
"""A count of the processes is made at most each quarter of a second, and takes a twentieth of the time at most."""

STATUS_FD = "{status}"
"""Stands in a wrapper's arguments for the descriptor on which it says how the command ended."""


@dataclass(frozen=True)
class ProcessSpec:
    """A command to run. `output` receives stdout and stderr interleaved, at most `output_limit` bytes of it.

    `head` and `tail` bound, in bytes, what `ProcessResult.text` shows of it. `env` is the whole environment.
    `process_limit` bounds how many processes of the command run at a time; a fork bomb is found within a second.

    `wrapper` is a program with its options that sets a place up and runs `argv` in it. To `STATUS_FD` it writes JSON
    objects, a line each, the last one with `exit-code` if `argv` was started (as bubblewrap's --json-status-fd does).
    It gets no SIGTERM: what runs inside does, and has the same grace as without a wrapper.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    output: Path
    timeout: float = 600.0
    output_limit: int = 50_000_000
    head: int = 4_000
    tail: int = 8_000
    process_limit: int = 1_000
    wrapper: tuple[str, ...] = ()


@dataclass(frozen=True)
class Started:
    """Told once the process runs; `pgid` is also its session id."""

    pid: int
    pgid: int


@dataclass(frozen=True)
class ProcessResult:
    """How it ended. `exit` is the exit status, negative for a signal, None if the command could not be
    started.

    `ended` is "exited", "timeout", "output" or "processes" (limit reached), "cancelled" or "not started" (`text` then
    says why). In a wrapper, death by signal N is exit status 128+N, as a shell reports it.
    """

    exit: int | None
    ended: str
    seconds: float
    text: str
    output: Path
    output_bytes: int


async def run_process(
    spec: ProcessSpec, *, guardian: Guardian, on_started: Callable[[Started], None] | None = None
) -> ProcessResult:
    """Run `spec` to its end and end its whole process group; cancellation too ends the group first.

    Whatever the command left behind is ended too: its session, and on Linux all that carries its marker or
    descends from it. Also when it exits by itself: nothing of a command outlives its result. If other code in
    this process took the exit status (a `waitpid(-1)`, an ignored SIGCHLD), `exit` is None with `ended`
    "exited", and `text` says so; it is not taken for success.
    """
    began = time.monotonic()

    def not_started(reason: str) -> ProcessResult:
        return ProcessResult(None, "not started", time.monotonic() - began, reason, spec.output, 0)

    try:
        output = _open_output(spec.output)
    except OSError as error:
        return not_started(f"cannot write the output file {spec.output}: {error.strerror}")
    try:
        try:
            child = _Child.launch(spec, output, guardian)
        except (OSError, ValueError, MuseError) as error:
            return not_started(f"cannot start a process in {spec.cwd}: {error}")
        remaining: list[int] = []
        ended = ""
        try:
            failure, ended = await child.follow(spec, output, began, on_started)
        finally:
            # A fork bomb grows all the time that it is given.
            remaining = await to_the_end(child.end(0.0 if ended == "processes" else reaper.GRACE))
        if failure is not None:
            return not_started(f"{(spec.wrapper or spec.argv)[0]}: {os.strerror(failure)}")
        if os.fstat(output).st_size > spec.output_limit:
            os.ftruncate(output, spec.output_limit)
            # Whether the watch or the command's end came first is chance; the answer does not depend on it.
            ended = "output" if ended == "exited" else ended
        text = _head_and_tail(output, spec.head, spec.tail)
        if ended == "exited" and child.wrapper_failed:
            return not_started(text.strip() or f"{spec.wrapper[0]} failed and did not say why")
        if child.status is None and not remaining:
            text += "\n[the exit status is lost: other code in this process waited for the command]"
        if remaining:
            text += f"\n[could not be ended: process {', '.join(map(str, remaining))}]"
        seconds = time.monotonic() - began
        return ProcessResult(child.status, ended, seconds, text, spec.output, os.fstat(output).st_size)
    finally:
        os.close(output)


class _Child:
    """One launched command, from the fork to the reaping of its leader, after its group has ended.

    Until it is reaped its number, which is also that of its group and session, cannot be given to another
    process.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        channel: socket.socket,
        message: bytes,
        token: str,
        guardian: Guardian,
        told: int | None,
    ) -> None:
        self.pid = process.pid
        self.status: int | None = None
        self.wrapper_failed = False
        self._process = process
        self._channel = channel
        self._message = message
        self._token = token
        self._guardian = guardian
        self._told = told

    @classmethod
    def launch(cls, spec: ProcessSpec, output: int, guardian: Guardian) -> _Child:
        from musecode_jupyter.runtime.guardian import PYTHON

        token = guardian.new_token()
        env = {**spec.env, reaper.MARKER: token}
        told, tells = os.pipe() if spec.wrapper else (None, None)
        argv = [argument.replace(STATUS_FD, str(tells)) for argument in spec.wrapper] + list(spec.argv)
        ours, theirs = socket.socketpair()
        try:
            message = launch.encode(
                [os.fsencode(argument) for argument in argv],
                {os.fsencode(name): os.fsencode(value) for name, value in env.items()},
            )
            process = subprocess.Popen(
                [PYTHON, "-I", "-S", launch.__file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=spec.cwd,
                env={reaper.MARKER: token, **_library_path(spec.env)},
                pass_fds=(theirs.fileno(),) if tells is None else (theirs.fileno(), tells),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            _close(told)
            raise
        finally:
            theirs.close()
            _close(tells)
        ours.setblocking(False)
        try:
            guardian.add(process.pid, token)
        except BaseException:
            ours.close()
            _close(told)
            process.kill()
            process.wait()
            raise
        return cls(process, ours, message, token, guardian, told)

    async def follow(
        self, spec: ProcessSpec, output: int, began: float, on_started: Callable[[Started], None] | None
    ) -> tuple[int | None, str]:
        """Let it go and wait for its end or a limit; answers exec's error number, and how it ended."""
        exited = asyncio.create_task(self._exited())
        exec_answer = asyncio.create_task(self._go())
        too_many = asyncio.create_task(self._count(spec.process_limit))
        try:
            # A process that user code forks just now may hold the channel open: hence not that alone is
            # awaited.
            limit = min(_EXEC_WAIT, spec.timeout)
            await asyncio.wait({exec_answer, exited}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                await asyncio.wait({exec_answer}, timeout=_ANSWER_WAIT)
            if exec_answer.done() and exec_answer.result() is not None:
                return exec_answer.result(), "not started"
            if on_started is not None:
                on_started(Started(self.pid, self.pid))
            checked = began
            while not exited.done():
                now = time.monotonic()
                if now - began >= spec.timeout:
                    return None, "timeout"
                if os.fstat(output).st_size > spec.output_limit:
                    return None, "output"
                if too_many.done():
                    return None, "processes"
                if now - checked >= _GUARDIAN_CHECK:
                    self._guardian.check()
                    checked = now
                await asyncio.wait({exited}, timeout=min(_TICK, max(began + spec.timeout - now, 0.001)))
            return (exec_answer.result() if exec_answer.done() else None), "exited"
        finally:
            exited.cancel()
            exec_answer.cancel()
            too_many.cancel()

    async def _count(self, limit: int) -> None:
        """Return once more than `limit` processes descend from the command or share its session."""
        took = 0.0
        while True:
            await asyncio.sleep(max(_COUNT_EVERY, _COUNT_SHARE * took))
            began = time.monotonic()
            with contextlib.suppress(OSError):
                if len(await asyncio.to_thread(reaper.find, (self.pid,), ())) > limit:
                    return
            took = time.monotonic() - began

    async def _go(self) -> int | None:
        """Send the command, wait for exec, which closes the channel's other end; answers exec's error."""
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._channel, self._message)
            self._channel.shutdown(socket.SHUT_WR)
            answer = await loop.sock_recv(self._channel, 16)
        except ConnectionError:  # killed before it read all; its exit status tells
            return None
        return int(answer) if answer else None

    async def _exited(self) -> None:
        """Wait until the leader has exited, without asyncio's child watchers.

        Those need the main thread or a thread for each process, depending on the version of Python.
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, or a Linux before 5.3
            while not self._has_exited():  # noqa: ASYNC110
                await asyncio.sleep(_TICK)
            return
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(descriptor, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _has_exited(self) -> bool:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13: the number is free before the group has ended
            return self._reap()
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _reap(self) -> bool:
        if self._process.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._process.returncode = 0  # nothing is left to wait for; `status` stays unknown
            else:
                if pid:
                    self.status = self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode is not None

    async def end(self, grace: float = reaper.GRACE) -> list[int]:
        """End everything that is left of the command, then reap its leader; answers what cannot be ended."""
        wrapped = () if self._told is None else (self.pid,)
        try:
            remaining = await asyncio.to_thread(
                reaper.end, (self.pid,), (reaper.marks(self._token),), spared=wrapped, grace=grace
            )
        except OSError:  # no descriptor left to read /proc with
            remaining = []
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._channel.close()
        if not remaining:
            self._guardian.remove(self.pid)
        self._reap()
        if self._told is not None:
            # A wrapper that was killed did not fail: what killed it is in its status.
            self.wrapper_failed = (self.status or 0) >= 0 and not _said_exit(self._told)
            _close(self._told)
            self._told = None
        return remaining


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _said_exit(descriptor: int) -> bool:
    """Whether the wrapper said that the command was started and has ended."""
    os.set_blocking(descriptor, False)
    text = b""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(descriptor, 65_536):
            text += chunk
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            if "exit-code" in json.loads(line):
                return True
    return False


def _library_path(env: Mapping[str, str]) -> dict[str, str]:
    return {name: env[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in env}


def _open_output(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


async def to_the_end(work: Coroutine[object, object, _T]) -> _T:
    """Await `work` even if the waiting task is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


def _head_and_tail(descriptor: int, head: int, tail: int) -> str:
    size = os.fstat(descriptor).st_size
    if size <= head + tail:
        return os.pread(descriptor, size, 0).decode("utf-8", "replace")
    first = _whole_characters(os.pread(descriptor, head, 0), at_end=True)
    last = _whole_characters(os.pread(descriptor, tail, size - tail), at_end=False)
    cut = size - len(first) - len(last)
    return f"{first.decode('utf-8', 'replace')}\n[... {cut} bytes cut ...]\n{last.decode('utf-8', 'replace')}"


def _whole_characters(piece: bytes, *, at_end: bool) -> bytes:
    """Leave out a character of UTF-8 that the cut went through; other bytes stay."""
    if at_end:
        for length in range(1, min(4, len(piece)) + 1):
            byte = piece[-length]
            if byte >= 0xC0:
                needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                return piece[:-length] if needed > length else piece
            if byte < 0x80:
                return piece
        return piece
    skip = 0
    while skip < min(3, len(piece)) and 0x80 <= piece[skip] < 0xC0:
        skip += 1
    return piece[skip:]
