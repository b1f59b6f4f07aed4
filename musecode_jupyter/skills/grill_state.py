"""The fold of attacks on plans: their findings, how each stands, and what the newest attack came to."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice
from musecode_jupyter.log.kinds import kinds_with

Standing = Literal["open", "accepted", "rejected", "answered", "resolved"]


class GrillFindingRecord(Slice):
    """A finding, and how it stands. `said` is the user's word on it."""

    plan: int
    angle: str
    key: str
    severity: str
    text: str
    evidence: str
    change: str
    state: Standing = "open"
    said: str = ""


class GrillsState(Slice):
    """`findings` by number; `plans` the plan of each attack; `ended` those that came to their end."""

    findings: dict[int, GrillFindingRecord] = Field(default_factory=dict)
    plans: dict[int, int] = Field(default_factory=dict)
    ended: list[int] = Field(default_factory=list)

    def of_plan(self, plan: int) -> dict[int, GrillFindingRecord]:
        """The findings of one plan, by number."""
        return {number: each for number, each in self.findings.items() if each.plan == plan}


class GrillsReducer:
    """Folds grill.* events."""

    name = "grills"
    kinds = kinds_with("grill.")

    def initial(self) -> GrillsState:
        return GrillsState()

    def apply(self, state: GrillsState, event: Event) -> None:
        data = event.data
        if event.kind == "grill.begun":
            state.plans[event.seq] = data["plan"]
        elif event.kind == "grill.finding":
            state.findings[event.seq] = GrillFindingRecord(
                plan=state.plans[data["grill"]],
                angle=data["angle"],
                key=data["key"],
                severity=data["severity"],
                text=data["text"],
                evidence=data["evidence"],
                change=data["change"],
            )
        elif event.kind == "grill.answered":
            finding = state.findings[data["finding"]]
            finding.state, finding.said = data["answer"], data["text"]
        elif event.kind == "grill.ended":
            state.ended.append(data["grill"])
            for number in data["resolved"]:
                state.findings[number].state = "resolved"


def grills_of(log: EventLog) -> GrillsState:
    """The attacks as folded."""
    state = log.state("grills")
    assert isinstance(state, GrillsState)
    return state
