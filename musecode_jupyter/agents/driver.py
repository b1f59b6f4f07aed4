"""The `driver` profile: the model sees the whole conversation and chooses its own tool calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from musecode_jupyter.agents.carried import GoalLines
from musecode_jupyter.agents.compaction import ContextKeeper
from musecode_jupyter.agents.context import REFUSALS, build_request, items_of
from musecode_jupyter.agents.conversations import Conversations
from musecode_jupyter.agents.mind import Step, Task
from musecode_jupyter.agents.state import AgentRecord, AgentsState
from musecode_jupyter.guard.gate import Gate
from musecode_jupyter.log import EventLog
from musecode_jupyter.runtime.errors import ModelError
from musecode_jupyter.tools.executor import FormedCall


@dataclass
class Driver:
    """Forms a step by one model call, after having the conversation shortened if it is time to.

    Keeps nothing but a cache of parsed events. `goal_lines` is what the floors above know of a goal.
    """

    log: EventLog
    gate: Gate
    effort: str | None = None
    goal_lines: GoalLines = field(default=lambda _goal: ())

    def __post_init__(self) -> None:
        self._talks = Conversations(self.log, self.gate)
        self.context = ContextKeeper(self.log, self.gate, self._talks, self.goal_lines)
        """Keeps the conversations short."""

    async def next_step(self, task: Task) -> Step:
        state = self.log.state("agents")
        assert isinstance(state, AgentsState)
        record = state.agents[task.agent]
        return self.said_already(record) or await self._ask(task, record)

    def said_already(self, record: AgentRecord) -> Step | None:
        """The last word of the turn, if a restart came between it and what followed from it.

        Asking again would pay twice, and some APIs take an answer at the end of a conversation for the beginning of
        the next one.
        """
        last = self.log.get(record.view[-1])
        if last.kind != "model.completed" or last.data["reason"] == "pause_turn" or record.unread:
            return None
        items = items_of(last, lambda _: None, self.log.blob)
        text = "".join(item.text for item in items if item.type == "message")
        if not text or any(item.type == "tool_call" for item in items):
            return None
        return Step((), text, last.seq)

    async def _ask(self, task: Task, record: AgentRecord) -> Step:
        self._talks.effort = self.effort
        await self.context.before_request(task)
        await self.gate.ready(task.agent)
        request = self._talks.request(task.agent, build_request)
        try:
            completion = await self.gate.complete(
                request, agent=task.agent, turn=record.turn, view=None, cause=(record.view[-1],)
            )
        except ModelError as error:
            if error.kind != "context_too_long":
                raise
            await self.context.too_long(task, error)
            return Step((), "", record.view[-1], answered=False)
        final = completion.final
        if final.reason in REFUSALS and task.goal is not None:
            said = f": {' '.join(completion.text.split())[:300]}" if completion.text.strip() else "."
            raise ModelError(
                f"The model refused to go on ({final.reason}){said} Say it in other words (steer), or choose another "
                "model, and resume.",
                kind="refused",
            )
        if final.status == "incomplete" and not completion.text:
            raise ModelError(f"The model's answer ended early ({final.reason}) with nothing in it.", kind="incomplete")
        calls = tuple(
            FormedCall(item.name, item.arguments, "model", item.call_id)
            for item in final.items
            if item.type == "tool_call"
        )
        # If the user spoke while the model was writing its last word, or the server wants to go on, it is not the last.
        answered = not record.unread and final.reason != "pause_turn"
        return Step(calls, completion.text, completion.seq, answered=answered)
