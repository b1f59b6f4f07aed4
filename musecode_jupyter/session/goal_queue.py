"""The queue of a session's goals: one runs; the next begins by itself when it has ended, not while one is paused."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from musecode_jupyter.agents.tasks.graph import TaskSpec
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import LogError, MuseError, UsageProblem
from musecode_jupyter.session import goals
from musecode_jupyter.session.clauses import freeze
from musecode_jupyter.session.preflight import GoalSpec, check_goal
from musecode_jupyter.skills.clauses import options_of
from musecode_jupyter.skills.queue_state import QueueState

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

_ENDS = frozenset({"goal.met", "goal.stopped", "goal.cleared"})


class GoalQueue:
    """Goals that wait. A paused goal holds the queue: it is the user's to resume, to stop or to clear it."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        # Held while the next one is being begun: its plan may wait for the user's answer first.
        self._turn = asyncio.Lock()
        self._arrived: dict[int, asyncio.Event] = {}
        core.log.on_durable(self._saw)

    @property
    def state(self) -> QueueState:
        """The queue as folded."""
        state = self._core.log.state("queue")
        assert isinstance(state, QueueState)
        return state

    def number(self, number: int) -> int:
        """The goal that a queued one has become, or the number as it is."""
        return self.state.begun.get(number, number)

    def place(self, number: int) -> int:
        """Which in the queue it is, from 1; 0 if it does not wait."""
        return list(self.state.waiting).index(number) + 1 if number in self.state.waiting else 0

    async def add(self, spec: GoalSpec) -> int:
        """Check the goal as it would be checked at its start, and put it at the end; returns its number for now."""
        core = self._core
        may_ask = core.policy.landing(None).decision == "ask"
        found = await check_goal(spec, core.workspace, core.settings, core.effects, may_ask=may_ask)
        await freeze(core, spec.clauses, found.git)
        return (await core.log.append("goal.queued", {"spec": as_data(spec)}, agent="user")).seq

    async def drop(self, number: int, why: str) -> None:
        """Take a goal out of the queue."""
        data = {"queued": number, "why": why}
        await self._core.log.append("goal.dequeued", data, agent="user", cause=(number,))

    async def turn(self, number: int) -> int | None:
        """Wait until the goal has begun, and return which it is; none if it was dropped."""
        while number in self.state.waiting:
            arrived = self._arrived.setdefault(number, asyncio.Event())
            await arrived.wait()
        if number in self.state.begun:
            async with self._core.start_lock:
                pass  # written down, and perhaps not running yet
        return None if number in self.state.dropped else self.number(number)

    def advance(self) -> None:
        """Let the next one begin, if it is its turn; called whenever something has ended."""
        core = self._core
        if not self.state.waiting or core.closing or core.busy or core.starting or core.asking:
            return
        if self._turn.locked():
            return
        active = core.goals.active
        if active is None or core.record(active).final:
            core.begin(self.begin_next(), "the queue")

    async def begin_next(self) -> int | None:
        """Begin the first that can begin; those that cannot are dropped, and the user is told why."""
        async with self._turn:
            return await self._begin_next()

    async def _begin_next(self) -> int | None:
        core = self._core
        while self.state.waiting and not (core.busy or core.closing or core.asking):
            number = next(iter(self.state.waiting))
            spec = from_data(self.state.waiting[number])
            try:
                # The ground of a plan has moved, most likely: whoever is to say whether it is run all the same may take
                # their time, in which others may begin.
                moved = [] if spec.plan is None else await core.plans.still_holds(spec.plan, spec)
                async with core.start_lock:
                    if core.busy or core.closing or core.asking or number not in self.state.waiting:
                        continue
                    goal = await goals.set_goal(core, spec, queued=number)
                if spec.plan is not None:
                    await core.plans.ran(spec.plan, goal, moved)
                return goal
            except LogError:
                raise
            except MuseError as problem:
                if number in self.state.waiting:
                    await self.drop(number, str(problem))
                    core.notices.append(f"Queued goal {number} could not begin: {problem}")
        return None

    def _saw(self, event: Event) -> None:
        if event.kind == "goal.dequeued" or (event.kind == "goal.set" and event.data.get("queued")):
            queued = event.data["queued"]
            if (arrived := self._arrived.pop(queued, None)) is not None:
                arrived.set()
        if event.kind in _ENDS:
            self.advance()


def as_data(spec: GoalSpec) -> dict[str, Any]:
    """What the user asked for as an event holds it."""
    return {**asdict(spec), "tasks": [task.model_dump(mode="json") for task in spec.tasks]}


def from_data(data: dict[str, Any]) -> GoalSpec:
    """The other way round."""
    given = dict(data)
    clauses = options_of(given.pop("clauses"))
    tasks = tuple(TaskSpec.model_validate(task) for task in given.pop("tasks"))
    return GoalSpec(**{**given, "verify": tuple(given["verify"])}, tasks=tasks, clauses=clauses)


def waits(core: SessionCore, number: int) -> None:
    """Raise UsageProblem if the goal of this number waits in the queue."""
    if place := core.queue.place(number):
        raise UsageProblem(
            f"Goal {number} waits in the queue, as number {place}: `%goal clear {number}` takes it out, `%goal stop` "
            "ends the goal that runs."
        )
