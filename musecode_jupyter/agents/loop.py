"""The loop of an agent: form the next step, carry it out, until there is a last word. One for every profile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from musecode_jupyter.agents.mind import Mind, Step, Task
from musecode_jupyter.agents.state import AgentRecord, AgentsState
from musecode_jupyter.log import EventLog
from musecode_jupyter.tools.executor import Executor, FormedCall

Checkpoint = Callable[[Task], Awaitable[None]]


@dataclass(frozen=True)
class Loop:
    """One agent's loop. `checkpoint` is asked before every step; it raises to pause, stop or end on a limit."""

    log: EventLog
    executor: Executor
    mind: Mind
    checkpoint: Checkpoint

    async def turn(self, task: Task) -> Step:
        """Work until a step without calls, and return that step. All that is remembered is in the log."""
        await self._settle_open_calls(task)
        while True:
            await self.checkpoint(task)
            step = await self.mind.next_step(task)
            if step.calls:
                await self._act(task, step.calls, step.cause)
            elif step.answered:
                return step

    async def _act(self, task: Task, calls: tuple[FormedCall, ...], cause: int) -> None:
        await self.executor.run_all(
            calls,
            agent=task.agent,
            turn=self._record(task).turn,
            place=task.place,
            typed=frozenset(task.verify),
            cause=cause,
        )

    async def _settle_open_calls(self, task: Task) -> None:
        """Give every call that a restart left open its one result, so that the next request is valid."""
        for call in list(self._record(task).open_calls):
            if call.requested is None:
                formed = FormedCall(call.name, call.arguments, "model", call.call_id)
                await self._act(task, (formed,), self._record(task).last_answer or 0)
            else:
                await self.executor.go_on(
                    call.requested,
                    self.executor.state.open[call.requested],
                    agent=task.agent,
                    turn=self._record(task).turn,
                    place=task.place,
                    typed=frozenset(task.verify),
                )

    def drop_calls(self, task: Task, why: str) -> None:
        """Give every call that was not made yet its one result, which says why it is not made."""
        record = self._record(task)
        for call in list(record.open_calls):
            if call.requested is None:
                formed = FormedCall(call.name, call.arguments, "model", call.call_id)
                self.executor.leave(formed, why, agent=task.agent, turn=record.turn, cause=record.last_answer or 0)

    def _record(self, task: Task) -> AgentRecord:
        state = self.log.state("agents")
        assert isinstance(state, AgentsState)
        return state.agents[task.agent]
