"""The processes that calls of agents run now, and what ends one of them before its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


class BrokenOff(Exception):
    """A process was ended because of event `by`; its agent goes on."""

    def __init__(self, by: int) -> None:
        super().__init__(by)
        self.by = by


@dataclass
class Underway:
    """Who runs which process; used on the runtime thread."""

    _works: dict[int, tuple[str, asyncio.Future[Any]]] = field(default_factory=dict)
    _broken: dict[int, int] = field(default_factory=dict)

    async def run(self, call: int, agent: str, work: Awaitable[T]) -> T:
        """Await `work`, the process of `call`. Raises BrokenOff if `end` ended it; cancelling ends it as ever."""
        task = asyncio.ensure_future(work)
        self._works[call] = (agent, task)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if call not in self._broken or (caller is not None and caller.cancelling()):
                raise
            raise BrokenOff(self._broken[call]) from None
        finally:
            del self._works[call]
            self._broken.pop(call, None)

    def end(self, agent: str, by: int) -> list[int]:
        """End the processes of `agent` because of event `by`; returns their calls."""
        calls = [call for call, (who, _) in self._works.items() if who == agent]
        for call in calls:
            self._broken[call] = by
            self._works[call][1].cancel()
        return calls
