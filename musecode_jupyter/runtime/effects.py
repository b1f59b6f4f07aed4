"""The effects protocol: the only way from the agents to clock, randomness, files, git, processes and the network.

Everything above this floor is a function of the log and of what these methods answer. `LiveEffects` asks the real
world; in a session that is run again (`musecode_jupyter.session.rerun`) what they led to is taken from its journal.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from musecode_jupyter.runtime.command import Command, CommandAnswer, run_command
from musecode_jupyter.runtime.process import ProcessResult, ProcessSpec, Started, run_process

if TYPE_CHECKING:
    import httpx

    from musecode_jupyter.runtime.guardian import Guardian

P = ParamSpec("P")
T = TypeVar("T")


class Effects(Protocol):
    """What the outside world can be asked for. Implementations are used from the runtime thread only."""

    def now(self) -> datetime:
        """Wall-clock time in UTC; for display and for budgets of wall time, never for order."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; for durations."""
        ...

    def token(self, nbytes: int) -> str:
        """`nbytes` random bytes as lower-case hexadecimal digits."""
        ...

    def environ(self) -> Mapping[str, str]:
        """The environment of this process, secrets included; only what is allow-listed goes on to a child."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the loop."""
        ...

    async def run(self, spec: ProcessSpec, on_started: Callable[[Started], None] | None = None) -> ProcessResult:
        """Run a command to its end in a process session of its own; never raises for a failing command."""
        ...

    async def ask(self, command: Command) -> CommandAnswer:
        """Run a short program, such as git, and answer with all that it wrote; raises as `run_command` does."""
        ...

    async def disk(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do `work`, which reads or writes files, off the loop; what it returns or raises is the answer."""
        ...

    def http(self) -> httpx.AsyncClient:
        """The one HTTP client of this process; closed by `aclose`."""
        ...

    async def aclose(self) -> None:
        """End what these effects own: the HTTP client and running process groups."""
        ...


class LiveEffects:
    """The real clock, randomness, processes and network. Owner of the guardian and of the HTTP client."""

    def __init__(self, guardian: Guardian | None = None) -> None:
        self._guardian = guardian
        self._http: httpx.AsyncClient | None = None

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def token(self, nbytes: int) -> str:
        return secrets.token_hex(nbytes)

    def environ(self) -> Mapping[str, str]:
        return os.environ

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def run(self, spec: ProcessSpec, on_started: Callable[[Started], None] | None = None) -> ProcessResult:
        if self._guardian is None:
            from musecode_jupyter.runtime.guardian import Guardian

            self._guardian = Guardian.start()
        return await run_process(spec, guardian=self._guardian, on_started=on_started)

    async def ask(self, command: Command) -> CommandAnswer:
        return await run_command(command)

    async def disk(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, partial(work, *args, **kwargs))

    def http(self) -> httpx.AsyncClient:
        if self._http is None:
            import httpx

            # The gate is the one retry owner and the one owner of deadlines; the transport retries nothing.
            self._http = httpx.AsyncClient(
                timeout=httpx.Timeout(connect=10.0, read=120.0, write=60.0, pool=10.0),
                follow_redirects=False,
                # A proxy of the environment has no way to the local model's server or to one on this machine.
                mounts={f"all://{host}": httpx.AsyncHTTPTransport() for host in ("127.0.0.1", "localhost", "[::1]")},
            )
        return self._http

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None
        if self._guardian is not None:
            self._guardian.close()
            self._guardian = None
