"""The fold of goals that wait for their turn: in which order, and what became of those that wait no more."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice


class QueueState(Slice):
    """By seq of goal.queued: the goals that wait, in order; which goal each has become; why others were dropped."""

    waiting: dict[int, dict[str, Any]] = Field(default_factory=dict)
    begun: dict[int, int] = Field(default_factory=dict)
    dropped: dict[int, str] = Field(default_factory=dict)


class QueueReducer:
    """Folds goal.queued, and what takes a goal out of the queue."""

    name = "queue"
    kinds = frozenset({"goal.queued", "goal.dequeued", "goal.set"})

    def initial(self) -> QueueState:
        return QueueState()

    def apply(self, state: QueueState, event: Event) -> None:
        if event.kind == "goal.queued":
            state.waiting[event.seq] = dict(event.data["spec"])
        elif event.kind == "goal.dequeued":
            state.waiting.pop(event.data["queued"], None)
            state.dropped[event.data["queued"]] = event.data["why"]
        elif event.kind == "goal.set" and (queued := event.data.get("queued")) is not None:
            state.waiting.pop(queued, None)
            state.begun[queued] = event.seq
