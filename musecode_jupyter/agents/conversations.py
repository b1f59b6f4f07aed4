"""The conversations of agents as requests, and how much of the model's window each of them takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from musecode_jupyter.agents.context import build_request, head_of, items_shown
from musecode_jupyter.agents.state import AgentRecord, AgentsState
from musecode_jupyter.guard.gate import Gate
from musecode_jupyter.guard.tiers import Held, held
from musecode_jupyter.log import EventLog
from musecode_jupyter.models.conversation import wire_arguments
from musecode_jupyter.models.types import Item, Message, ModelRequest, Picture, Reasoning, ToolCall, ToolResult

BYTES_PER_TOKEN = 3.0
"""Of a prompt, as long as the server has counted none; less than what is usual, so that the estimate is high."""

_LEAST, _MOST = 1.5, 8.0
_ITEM = 40
# See guard.gate.estimate_tokens.
_PICTURE, _PATCH = 1_200, 196

Build = Callable[..., ModelRequest]


def weight(items: tuple[Item, ...]) -> int:
    """About how many bytes of a request the items take; for a picture, of as much text as it costs in tokens."""
    total = 0
    for item in items:
        total += _ITEM
        if isinstance(item, Message):
            total += _size(item.text)
        elif isinstance(item, ToolCall):
            total += len(item.name) + _size(wire_arguments(item.arguments))
        elif isinstance(item, ToolResult):
            total += _size(item.output)
        elif isinstance(item, Picture):
            total += int(max(_PICTURE, item.width * item.height // _PATCH) * BYTES_PER_TOKEN)
        elif isinstance(item, Reasoning):
            total += len(str(item.payload))
    return total


def _size(text: str) -> int:
    """Bytes of a text in JSON, in which these characters take two."""
    return len(text.encode("utf-8", "surrogatepass")) + sum(map(text.count, '\n\t"\\'))


def prompt_parts(log: EventLog, agent: str, view: int | None) -> list[Held]:
    """What a prompt of `agent` is made of: its conversation; with `view`, a question beside it, that too or alone."""
    asked = None if view is None else log.get(view)
    state = log.state("agents")
    assert isinstance(state, AgentsState)
    parts = [] if asked is not None and not asked.data.get("conversation") else list(state.agents[agent].view)
    return [held(log.get(seq)) for seq in (*parts, *(() if view is None else (view,)))]


@dataclass(frozen=True)
class _Part:
    """What one event says in a prompt, while `masked` is the event that masks it."""

    masked: int | None
    items: tuple[Item, ...]
    weight: int


@dataclass
class Conversations:
    """Reads the agents' conversations off the log; keeps nothing but a cache of what each event says."""

    log: EventLog
    gate: Gate
    effort: str | None = None
    _parts: dict[str, dict[int, _Part]] = field(default_factory=dict)
    _heads: dict[int, tuple[str, Any, int]] = field(default_factory=dict)

    @property
    def state(self) -> AgentsState:
        """The agents as folded."""
        state = self.log.state("agents")
        assert isinstance(state, AgentsState)
        return state

    def record(self, agent: str) -> AgentRecord:
        """One agent as folded."""
        return self.state.agents[agent]

    def items(self, agent: str) -> tuple[Item, ...]:
        """All items of the conversation, in prompt order."""
        return tuple(item for seq in self.record(agent).view for item in self._part(agent, seq).items)

    def weights(self, agent: str) -> dict[int, int]:
        """The bytes that each event of the conversation takes, in prompt order."""
        return {seq: self._part(agent, seq).weight for seq in self.record(agent).view}

    def _part(self, agent: str, seq: int) -> _Part:
        parts, record = self._parts.setdefault(agent, {}), self.record(agent)
        masked = record.masked.get(seq)
        part = parts.get(seq)
        if part is None or part.masked != masked:
            items = items_shown(seq, record, self.log.get, self.state.call_ids.get, self.log.blob)
            part = parts[seq] = _Part(masked, items, weight(items))
        return part

    def words(self, agent: str, seq: int) -> str:
        """The texts of what event `seq` says in the conversation."""
        return "\n".join(item.text for item in self._part(agent, seq).items if isinstance(item, Message))

    def forget(self, agent: str) -> None:
        """Drop what is kept of events that are not in the conversation any more."""
        view = set(self.record(agent).view)
        self._parts[agent] = {seq: part for seq, part in self._parts.get(agent, {}).items() if seq in view}

    def head(self, agent: str) -> tuple[str, Any, int]:
        """Instructions, tools, and the bytes that both take."""
        seeded = self.record(agent).seeded
        assert seeded is not None
        if seeded not in self._heads:
            instructions, tools = head_of(self.log.get(seeded).data)
            size = _size(instructions) + sum(len(tool.model_dump_json()) for tool in tools)
            self._heads[seeded] = instructions, tools, size
        return self._heads[seeded]

    def request(self, agent: str, build: Build = build_request, *, after: tuple[Item, ...] = ()) -> ModelRequest:
        """The next request of the conversation; with `after`, a question beside it that begins with the same bytes."""
        instructions, tools, _ = self.head(agent)
        info = self.gate.info
        requested = {
            "model": self.gate.model,
            "max_output_tokens": info.answer_tokens,
            "effort": self.effort if info.reasoning_items else None,
            "temperature": None,
            "seed": None,
            "cache_key": f"{agent}-{self.record(agent).seeded}",
            "pictures": info.pictures,
        }
        items = self.items(agent) + after
        return build(requested, instructions=instructions, items=items, tools=tools, json_schema=None)

    def rate(self, agent: str) -> float:
        """Bytes of a request per token, by what the server counted last; between 1.5 and 8."""
        usage = self.record(agent).usage
        if usage is None or not usage.input or not usage.bytes:
            return BYTES_PER_TOKEN
        return min(_MOST, max(_LEAST, usage.bytes / usage.input))

    def tokens(self, agent: str) -> int:
        """Tokens of the next prompt: what the server counted last, and an estimate of what came since.

        Where the conversation was changed since, or the server counts nothing, all of it is estimated.
        """
        record, rate = self.record(agent), self.rate(agent)
        weights = self.weights(agent)
        usage = record.usage
        changed = max(record.compacted or 0, *record.masked.values(), 0)
        if usage is not None and usage.seq > changed and usage.seq in weights:
            # In prompt order, in which what was said meanwhile comes after the answer. Of the answer itself not all has
            # to come again that was counted.
            since = list(weights.values())[list(weights).index(usage.seq) :]
            return usage.input + int(sum(since) / rate)
        return int((sum(weights.values()) + self.head(agent)[2]) / rate)

    def room(self, agent: str) -> int:
        """Tokens that a prompt may have: by what is known of the model, and by what its server found too long."""
        refused = self.record(agent).refused
        room = self.gate.room
        return room if refused is None else min(room, int(0.9 * refused / self.rate(agent)))
