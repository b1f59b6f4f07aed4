"""The real effects, which stop at a chosen point as if the process had been killed there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from musecode_jupyter.runtime.command import Command, CommandAnswer
from musecode_jupyter.runtime.effects import LiveEffects

CHANGES = frozenset(
    {"rename", "unlink", "rmtree", "write_text", "mkdir", "_delete", "_put", "_write_durably", "_write_git_file"}
)
"""Work on the disk that changes something, by the name of the function."""


class Crash(Exception):
    """The process would be gone now."""


class CrashingEffects(LiveEffects):
    """Raises `Crash` after as many steps as `fuse` says; a step is a git command or a change on the disk.

    With `late`, the step that burns the fuse is still done; without, it is not.
    """

    def __init__(self, fuse: int | None = None, *, late: bool = False) -> None:
        super().__init__()
        self.fuse, self.late, self.steps, self.crashed = fuse, late, 0, False
        self._running: set[asyncio.Future[CommandAnswer]] = set()

    def _step(self) -> bool:
        self.steps += 1
        # What runs while the crash is on its way up is not done either.
        if self.crashed or (self.fuse is not None and self.steps > self.fuse):
            already, self.crashed = self.crashed, True
            if already or not self.late:
                raise Crash
            return True
        return False

    async def _stop(self) -> None:
        """Git commands that run beside the crash come to their end, as they do when only this process is killed."""
        if self._running:
            await asyncio.wait(set(self._running))
        raise Crash

    async def ask(self, command: Command) -> CommandAnswer:
        try:
            last = self._step()
        except Crash:
            await self._stop()
            raise
        running = asyncio.ensure_future(super().ask(command))
        self._running.add(running)
        try:
            answer = await running
        finally:
            self._running.discard(running)
        if last:
            await self._stop()
        return answer

    async def disk(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        last = getattr(work, "__name__", "") in CHANGES and self._step()
        answer = await super().disk(work, *args, **kwargs)
        if last:
            raise Crash
        return answer


def points(steps: int, most: int) -> Iterator[tuple[int, bool]]:
    """Up to `most` crash points spread over `steps` steps: fuse and whether the step is still done."""
    every = max(1, steps // most)
    for number, fuse in enumerate(range(0, steps, every)):
        yield fuse, number % 2 == 1
