"""Runs a short program whose whole output is the answer: no terminal, a deadline, its process group ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
    process = await asyncio.create_subprocess_exec(
        *command.argv,
        stdin=asyncio.subprocess.DEVNULL if command.input is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=command.cwd,
        env=command.env,
        start_new_session=True,
        pass_fds=command.pass_fds,
    )
    try:
        async with asyncio.timeout(command.timeout):
            out, err = await process.communicate(command.input)
    except BaseException:
        await asyncio.shield(_end(process))
        raise
    code = process.returncode
    return CommandAnswer(-1 if code is None else code, out, err.decode("utf-8", "replace"))


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process group: first politely, so that it takes its lock files away, then for certain."""
    for number, grace in ((signal.SIGTERM, _TERM_GRACE), (signal.SIGKILL, _KILL_GRACE)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await process.wait()
