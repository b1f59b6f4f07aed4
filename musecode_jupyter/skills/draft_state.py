"""The fold of drafts: goals whose clauses the lead proposes, and how each stands until the user has confirmed it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice
from musecode_jupyter.log.kinds import kinds_with

PROPOSE_GOAL = "propose_goal"


class DraftRecord(Slice):
    """One draft. `proposed` is the seq of draft.proposed, `digest` that of its document; `goal` was set from it."""

    text: str
    spec: dict[str, Any]
    agent: str
    commit: str
    status: Literal["asking", "proposed", "confirmed", "cancelled", "stopped"] = "asking"
    why: str = ""
    proposed: int | None = None
    digest: str = ""
    goal: int | None = None


class DraftsState(Slice):
    """`drafts` by seq of draft.begun; `active` is the newest one."""

    drafts: dict[int, DraftRecord] = Field(default_factory=dict)
    active: int | None = None


class DraftsReducer:
    """Folds draft.* events, and the goals that came of them."""

    name = "drafts"
    kinds = kinds_with("draft.") | {"goal.set"}

    def initial(self) -> DraftsState:
        return DraftsState()

    def apply(self, state: DraftsState, event: Event) -> None:
        data = event.data
        if event.kind == "draft.begun":
            state.drafts[event.seq] = DraftRecord(
                text=data["text"], spec=dict(data["spec"]), agent=data["agent"], commit=data["commit"]
            )
            state.active = event.seq
        elif event.kind == "goal.set":
            if data.get("draft") is not None:
                state.drafts[data["draft"]].goal = event.seq
        elif event.kind in self.kinds:
            self._draft(state.drafts[data["draft"]], event)

    def _draft(self, draft: DraftRecord, event: Event) -> None:
        data = event.data
        if event.kind == "draft.proposed":
            draft.status, draft.proposed, draft.digest = "proposed", event.seq, data["digest"]
        elif event.kind == "draft.confirmed":
            draft.status = "confirmed"
        elif event.kind == "draft.cancelled":
            draft.status = "cancelled"
        elif event.kind == "draft.stopped":
            draft.status, draft.why = "stopped", data["why"]


def drafts_of(log: EventLog) -> DraftsState:
    """The drafts as folded."""
    state = log.state("drafts")
    assert isinstance(state, DraftsState)
    return state


def being_drafted(log: EventLog, agent: str) -> int | None:
    """The draft for which `agent` looks for clauses now, if it does."""
    state = drafts_of(log)
    if state.active is None:
        return None
    draft = state.drafts[state.active]
    return state.active if draft.status == "asking" and draft.agent == agent else None


def draft_document(log: EventLog, draft: int) -> Mapping[str, Any] | None:
    """What was proposed, as data; None if nothing was."""
    seq = drafts_of(log).drafts[draft].proposed
    return None if seq is None else json.loads(str(log.get(seq).data["document"]))
