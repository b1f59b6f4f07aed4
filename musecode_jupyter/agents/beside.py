"""Work of the harness beside that of agents, each piece begun by an event: how it ends, and how all of it rests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial

from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import BudgetExceeded, ContextFull, GitError, LogError, ModelError, MuseError

logger = logging.getLogger(__name__)

CUT_OFF = "cut off by a restart"
STOPPED = "it was stopped"
TASK_ENDS = frozenset({"task.paused", "task.done", "task.abandoned"})
GOAL_ENDS = frozenset({"goal.stopped", "goal.met"})


@dataclass
class Beside:
    """Owner of the pieces that are under way; used on the runtime thread.

    `ended` is called once for each, with the event that began it, why it did not come to its end (empty: it did) and
    whether what it was about is to be done again.
    """

    log: EventLog
    ended: Callable[[Event, str, bool], None]
    _running: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _why: dict[int, str] = field(default_factory=dict)

    @property
    def busy(self) -> list[int]:
        """The events that began what is under way."""
        return [seq for seq, task in self._running.items() if not task.done()]

    def begin(self, begun: Event, work: Coroutine[None, None, None], name: str) -> None:
        """Carry out `work`, which event `begun` announced."""
        task = asyncio.create_task(work, name=f"{name} {begun.seq}")
        self._running[begun.seq] = task
        # Also of one that is cancelled before it has begun.
        task.add_done_callback(partial(self._done, begun))

    def end(self, seq: int, why: str) -> None:
        """Have the piece that event `seq` began end, because of `why`; it does so in a while."""
        task = self._running.get(seq)
        if task is not None and not task.done() and seq not in self._why:
            self._why[seq] = why
            task.cancel()

    async def until(self, seq: int, reached: asyncio.Event) -> None:
        """Until the piece that event `seq` began has got as far as `reached`, or has ended."""
        task = self._running.get(seq)
        if task is None:
            return
        waiting = asyncio.create_task(reached.wait())
        try:
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def wait(self, seq: int) -> None:
        """Until the piece that event `seq` began has ended."""
        task = self._running.get(seq)
        if task is not None:
            await asyncio.wait([task])

    async def rest(self, why: str, *, gently: bool = False) -> None:
        """Until nothing is under way: told to end because of `why`, or `gently` left to come to its end."""
        running = dict(self._running)
        for seq in running if not gently else ():
            self.end(seq, why)
        if running:
            await asyncio.wait(running.values())

    def _done(self, begun: Event, task: asyncio.Task[None]) -> None:
        self._running.pop(begun.seq, None)
        why = self._why.pop(begun.seq, STOPPED)
        error = None if task.cancelled() else task.exception()
        if not self.log.writable or isinstance(error, LogError):
            return
        again = task.cancelled()
        if not again:
            why = "" if error is None else str(error)
        if isinstance(error, MuseError):
            # What went wrong would do so again, and waits for the next change; what was paused does not.
            again = not isinstance(error, BudgetExceeded | ContextFull | GitError | ModelError)
        elif error is not None:
            logger.error("%s ended in an unexpected error", task.get_name(), exc_info=error)
            why = f"unexpected {type(error).__name__}: {error}"
        self.ended(begun, why, again)
