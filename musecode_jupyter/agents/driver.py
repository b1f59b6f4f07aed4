"""The `driver` profile: the model sees the whole conversation and chooses its own tool calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from musecode_jupyter.agents.context import build_request, items_of
from musecode_jupyter.agents.mind import Step, Task
from musecode_jupyter.agents.state import AgentRecord, AgentsState
from musecode_jupyter.guard.gate import Gate
from musecode_jupyter.log import EventLog
from musecode_jupyter.models.types import Item, ToolSpec
from musecode_jupyter.runtime.errors import ModelError
from musecode_jupyter.tools.executor import FormedCall

DEFAULT_MAX_OUTPUT = 16_384


def conversation(
    log: EventLog, state: AgentsState, view: list[int], cache: dict[int, tuple[Item, ...]]
) -> tuple[Item, ...]:
    """The items of the events in `view`; `cache` spares reading an event twice."""
    items: list[Item] = []
    for seq in view:
        if seq not in cache:
            cache[seq] = items_of(log.get(seq), state.call_ids.get)
        items += cache[seq]
    return tuple(items)


@dataclass
class Driver:
    """Forms a step by one model call. Keeps nothing but a cache of parsed events."""

    log: EventLog
    gate: Gate
    effort: str | None = None
    _items: dict[int, tuple[Item, ...]] = field(default_factory=dict)

    async def next_step(self, task: Task) -> Step:
        state = self.log.state("agents")
        assert isinstance(state, AgentsState)
        record = state.agents[task.agent]
        return await self._ask(task, state, record)

    async def _ask(self, task: Task, state: AgentsState, record: AgentRecord) -> Step:
        assert record.seeded is not None
        await self.gate.ready()
        seeded = self.log.get(record.seeded).data
        items = conversation(self.log, state, record.view, self._items)
        request = build_request(
            {
                "model": self.gate.model,
                "max_output_tokens": min(DEFAULT_MAX_OUTPUT, self.gate.info.max_output),
                "effort": self.effort if self.gate.info.reasoning_items else None,
                "temperature": None,
                "seed": None,
                "cache_key": f"{task.agent}-{record.seeded}",
            },
            instructions=seeded["instructions"],
            items=items,
            tools=tuple(ToolSpec.model_validate(tool) for tool in seeded["tools"]),
            json_schema=None,
        )
        completion = await self.gate.complete(
            request, agent=task.agent, turn=record.turn, view=None, cause=(record.view[-1],)
        )
        if completion.final.status == "incomplete" and not completion.final.items:
            raise ModelError(
                f"The model's answer ended early ({completion.final.reason}) with nothing in it.",
                kind="incomplete",
            )
        calls = tuple(
            FormedCall(item.name, item.arguments, "model", item.call_id)
            for item in completion.final.items
            if item.type == "tool_call"
        )
        # If the user spoke while the model was writing its last word, it is not the last word.
        return Step(calls, completion.text, completion.seq, answered=not record.unread)
