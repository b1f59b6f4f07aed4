"""What the lead is asked outside goals, one thing at a time: the user's questions, and plans; and how it is ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from musecode_jupyter.agents.landing.tools import HARNESS
from musecode_jupyter.agents.mind import Step, Task
from musecode_jupyter.runtime.errors import BudgetExceeded, LogError, MuseError, Stopped, UsageProblem
from musecode_jupyter.session.crew import LEAD_NAME
from musecode_jupyter.session.grills import UNDER_WAY
from musecode_jupyter.skills.draft_tool import check_draft_tries
from musecode_jupyter.skills.plan_state import being_written
from musecode_jupyter.skills.plan_tool import PlanStalled, check_tries
from musecode_jupyter.tools.notebook import AttachedCell
from musecode_jupyter.tools.pictures import recorded

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

logger = logging.getLogger(__name__)

T = TypeVar("T")

NOT_MADE = "Not made: the user ended the question."
STOP_S = 30.0
"""How long the end of what was told to stop is waited for, in seconds."""
WRITING = "A plan is being written: wait for it, or end it with `%plan cancel` or `%muse stop`."


class Questions:
    """Owner of the tasks in which the lead works outside goals; used on the runtime thread."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._one = asyncio.Lock()
        # Those that are under way, with why they are to end, once they are.
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._steps_end = 0

    @property
    def open(self) -> bool:
        """Whether anything is asked of the lead now."""
        return bool(self._tasks)

    def hold(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Begin `work`, in which the lead is asked something: it counts as a question until it has ended."""
        task = asyncio.create_task(work, name=f"{name} of {self._core.id}")
        self._tasks[task] = ""
        return task

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """`hold` work that nobody awaits; the task ends with it, and is never an error that nobody sees."""
        held = self.hold(work, name)
        task = asyncio.create_task(self.ended(held), name=f"end of {name} of {self._core.id}")
        task.add_done_callback(_seen)
        return task

    @contextmanager
    def noting(self, kind: str, number: int, under_way: Callable[[], bool]) -> Iterator[None]:
        """What keeps the work within from its own end is written down as `kind`.stopped of `number`, while it is open.

        Only what ends its task, and a fault of the log, is raised.
        """
        state, why = "", ""
        try:
            yield
        except asyncio.CancelledError:
            state, why = "stopped", self.why() or "stopped by the user"
            raise
        except LogError:
            raise
        except PlanStalled as problem:
            state, why = "stalled", str(problem)
        except BudgetExceeded as problem:
            state, why = "budget", str(problem)
        except MuseError as problem:
            state, why = "error", str(problem)
        except Exception as problem:
            logger.exception("%s %s ended in an unexpected error", kind, number)
            state, why = "error", f"Unexpected {type(problem).__name__}: {problem}. The log holds all up to here."
        finally:
            if state and self._core.log.writable and under_way():
                stopped = {kind: number, "state": state, "why": why}
                self._core.log.post(f"{kind}.stopped", stopped, agent=HARNESS, cause=(number,))

    async def ended(self, task: asyncio.Task[T]) -> T:
        """What `task` comes to; raises Stopped if the user ended it."""
        try:
            return await task
        except asyncio.CancelledError:
            why = self._tasks[task]
            if not why:
                raise
            raise Stopped(f"The question was ended: {why}.") from None
        finally:
            del self._tasks[task]
            # A goal of the queue may have waited for it.
            self._core.queue.advance()

    def why(self) -> str:
        """Why whoever asks is to end; empty if they are not."""
        task = asyncio.current_task()
        return "" if task is None else self._tasks.get(task, "")

    async def ask(self, text: str, cell: AttachedCell | None) -> str:
        """As `SessionCore.ask`."""
        if not text.strip():
            raise UsageProblem("What do you want to ask? Give the text: %muse ask TEXT.")
        if being_written(self._core.log, LEAD_NAME) is not None and self.open:
            raise UsageProblem(WRITING)
        if self._core.grills.running is not None:
            raise UsageProblem(UNDER_WAY)
        return await self.ended(self.hold(self._ask(text, cell), "question"))

    async def _ask(self, text: str, cell: AttachedCell | None) -> str:
        core = self._core
        async with self._one:
            # A question and a goal at once would share the lead's conversation.
            if core.busy or core.starting:
                raise UsageProblem(
                    "A goal is running with the lead. `%goal steer TEXT` reaches it; or pause the goal first."
                )
            await core.crew.rest()
            cause: tuple[int, ...] = ()
            if cell is not None:
                pictures, blobs = recorded(cell.pictures)
                attached = {"to": LEAD_NAME, "cell": cell.id, "text": cell.text, "pictures": pictures}
                cause = (core.log.post("notebook.attached", attached, agent="user", blobs=blobs).seq,)
            said = {"text": text, "to": LEAD_NAME}
            event = await core.log.append("user.message", said, agent="user", cause=cause)
            task = Task(LEAD_NAME, core.own_place(), event.seq)

            async def turn() -> Step:
                return await core.loop.turn(task)

            return (await self._with_lead(turn, task, "a question")).text

    async def plan(self, work: Callable[[], Awaitable[None]], task: Task, what: str = "a plan") -> None:
        """Let the lead write a plan, or look for clauses, by `work`; `task` is where it does so."""
        async with self._one:
            await self._with_lead(work, task, what)

    async def _with_lead(self, work: Callable[[], Awaitable[T]], task: Task, why: str) -> T:
        core = self._core
        self._steps_end = core.agents.agents[LEAD_NAME].steps + core.settings.steps_of_a_question()
        try:
            await core.log.append("agent.state", {"state": "running", "why": why}, agent=LEAD_NAME)
            return await work()
        except asyncio.CancelledError:
            # A goal goes on with the calls that its agent still owes; a later question is another matter.
            core.loop.drop_calls(task, NOT_MADE)
            raise
        finally:
            await core.log.append("agent.state", {"state": "idle", "why": ""}, agent=LEAD_NAME)

    async def stop(self, why: str) -> None:
        """End all that is under way; whoever waits for it gets Stopped."""
        under_way = [task for task in self._tasks if not task.done()]
        for task in under_way:
            self._tasks[task] = why
            task.cancel()
        if under_way:
            try:
                await self._core.log.append("user.interrupt", {"scope": "a question"}, agent="user")
            finally:
                await asyncio.wait(under_way, timeout=STOP_S)

    def check(self, task: Task) -> None:
        """Raise BudgetExceeded or PlanStalled where the lead has had its share of steps or tries; before each step."""
        if task.agent != LEAD_NAME:
            # Turns of standing agents have a bound of their own, and begin without a question of the user's too.
            return
        check_tries(self._core.log, task.agent)
        check_draft_tries(self._core.log, task.agent)
        limit = self._core.settings.steps_of_a_question()
        if self._core.agents.agents[LEAD_NAME].steps >= self._steps_end:
            raise BudgetExceeded(
                f"No answer after {limit} model calls. Ask again to let it go on, or set MUSECODE_ASK_STEPS to more.",
                scope="steps",
            )


def _seen(task: asyncio.Task[None]) -> None:
    # How it ended is in the log.
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.info("%s: %s", task.get_name(), error)
