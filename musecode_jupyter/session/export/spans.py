"""What takes time in a session: model calls, tool runs, questions, merges, tasks and goals, from event to event."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from musecode_jupyter.log.events import Event
from musecode_jupyter.session.summary import summarise

Sort = Literal["model", "tool", "approval", "merge", "task", "goal"]

# The kind that opens, by the kind that closes: how it ended, and the field that names the opening event.
_CLOSES: Final[dict[str, tuple[Sort, str, str]]] = {
    "model.completed": ("model", "request", "completed"),
    "model.failed": ("model", "request", "failed"),
    "model.abandoned": ("model", "request", "cut off"),
    "tool.finished": ("tool", "call", "finished"),
    "tool.failed": ("tool", "call", "failed"),
    "tool.cancelled": ("tool", "call", "cancelled"),
    "tool.unknown": ("tool", "call", "unknown"),
    "approval.granted": ("approval", "approval", "granted"),
    "approval.denied": ("approval", "approval", "denied"),
    "approval.expired": ("approval", "approval", "expired"),
    "merge.landed": ("merge", "merge", "landed"),
    "merge.bounced": ("merge", "merge", "bounced"),
    "task.done": ("task", "task", "done"),
    "task.bounced": ("task", "task", "bounced"),
    "task.paused": ("task", "task", "paused"),
    "task.abandoned": ("task", "task", "abandoned"),
    "goal.met": ("goal", "goal", "met"),
    "goal.stopped": ("goal", "goal", "stopped"),
    "goal.paused": ("goal", "goal", "paused"),
}
_OPENS: Final[dict[str, tuple[Sort, str]]] = {
    "model.requested": ("model", ""),
    "tool.requested": ("tool", ""),
    "approval.requested": ("approval", ""),
    "merge.enqueued": ("merge", ""),
    "task.leased": ("task", "task"),
    "goal.set": ("goal", ""),
    "goal.resumed": ("goal", "goal"),
}


@dataclass
class Span:
    """Something with a beginning and an end, in microseconds.

    `key` is the number by which events speak of it, `seq` the event that opened it; `end` is None and `state` is "open"
    until it has ended. `begun` is when a tool really started, or `start`; `granted` is the approval that let it.
    """

    sort: Sort
    key: int
    seq: int
    agent: str
    name: str
    text: str
    start: int
    begun: int
    end: int | None = None
    state: str = "open"
    closed_by: int | None = None
    ok: bool | None = None
    result: str = ""
    granted: int | None = None
    opened: Mapping[str, Any] = field(default_factory=dict)
    closed: Mapping[str, Any] = field(default_factory=dict)


class Spans:
    """Pairs the events that begin and end something; memory grows with what is open, not with the log."""

    def __init__(self) -> None:
        self._open: dict[tuple[Sort, int], Span] = {}

    def take(self, event: Event, at: int) -> Iterator[Span]:
        """The spans that end with `event`, which happened at `at` microseconds."""
        data = event.data
        if (opens := _OPENS.get(event.kind)) is not None:
            sort, key_field = opens
            key = data[key_field] if key_field else event.seq
            if (left := self._open.pop((sort, key), None)) is not None:
                yield _end(left, at, "open")
            self._open[sort, key] = Span(
                sort=sort,
                key=key,
                seq=event.seq,
                agent=str(data.get("agent") or event.agent) if sort in {"merge", "task"} else event.agent,
                name=_NAMES[sort](data),
                text=str(summarise(event)["text"]),
                start=at,
                begun=at,
                opened={name: data[name] for name in _KEPT if name in data},
            )
        elif (closes := _CLOSES.get(event.kind)) is not None:
            sort, key_field, state = closes
            span = self._open.pop((sort, data[key_field]), None)
            if span is not None:
                summary = summarise(event)
                span.closed_by, span.ok, span.result = event.seq, summary["ok"], str(summary["text"])
                span.closed = {name: data[name] for name in _KEPT if name in data}
                yield _end(span, at, state)
        elif event.kind == "tool.decided":
            if (span := self._open.get(("tool", data["call"]))) is not None:
                span.granted = data["approval"]
        elif event.kind == "tool.started":
            if (span := self._open.get(("tool", data["call"]))) is not None:
                span.begun = at
                span.opened = {**span.opened, "effect": data["effect"]}
        elif event.kind == "session.closed":
            yield from self.finish(at, "cut off")

    def open(self, sort: Sort) -> int:
        """How many of a sort are open."""
        return sum(each == sort for each, _ in self._open)

    def finish(self, at: int, state: str = "open") -> Iterator[Span]:
        """End what is still open, in order."""
        left = list(self._open.values())
        self._open.clear()
        for span in left:
            yield _end(span, at, state)


def _end(span: Span, at: int, state: str) -> Span:
    span.end, span.state = at, state
    return span


_KEPT = (
    *("purpose", "api", "usage", "cost_microusd", "estimated", "ttft_s", "seconds", "attempts", "status", "error_kind"),
    *("call_id", "origin", "exit", "task", "goal", "merge", "call", "action", "model", "max_output_tokens"),
    *("served_model", "response_id", "reason", "temperature", "seed"),
)
_NAMES: dict[Sort, Callable[[Mapping[str, Any]], str]] = {
    "model": lambda data: str(data["model"]),
    "tool": lambda data: str(data["name"]),
    "approval": lambda data: f"approval: {data['action']}",
    "merge": lambda data: f"merge: {data['title']}" if data.get("title") else "merge",
    "task": lambda data: f"task {data['task']}",
    "goal": lambda _data: "goal",
}
