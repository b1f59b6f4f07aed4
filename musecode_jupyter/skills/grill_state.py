"""The fold of attacks: what each is on, its findings and how each stands, what every angle came to, what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice
from musecode_jupyter.log.kinds import kinds_with

GRILL = "grill"
"""The name under which this program acts where it has something attacked by reviewers."""
SEVERITIES = ("blocking", "major", "minor")
Standing = Literal["open", "accepted", "rejected", "answered", "resolved"]
Status = Literal["running", "ended", "stopped"]
STANDS = frozenset({"open", "accepted"})


class GrillFindingRecord(Slice):
    """A finding, and how it stands. `said` is the user's word on it, `angles` all that came to it, `changed` the event
    that last changed it.
    """

    grill: int
    scope: str
    plan: int | None
    angles: list[str]
    key: str
    severity: str
    text: str
    evidence: str
    change: str
    by: str = ""
    place: str = ""
    cites: list[str] = Field(default_factory=list)
    refuted: str = ""
    question: str = ""
    state: Standing = "open"
    said: str = ""
    changed: int = 0

    @property
    def proven(self) -> bool:
        """Whether it has evidence that the program found or checked; without it is an opinion."""
        return bool(self.evidence)

    @property
    def blocks(self) -> bool:
        """Whether it is to be settled before anybody goes on with what it is about."""
        return self.severity == "blocking" and self.proven and self.state in STANDS

    @property
    def rank(self) -> tuple[bool, int]:
        """Gravest first, and what is proven before opinions."""
        return not self.proven, SEVERITIES.index(self.severity)


class AngleRecord(Slice):
    """What one angle came to in one attack."""

    state: str
    why: str = ""
    found: list[int] = Field(default_factory=list)
    joined: list[int] = Field(default_factory=list)
    again: int = 0
    kept_back: int = 0
    unreadable: int = 0
    resolved: list[int] = Field(default_factory=list)


class GrillRecord(Slice):
    """One attack. `parts` are the digests of what was shown, `asked` what the user is asked now."""

    target: str
    scope: str
    plan: int | None
    goal: int | None
    version: int
    digest: str
    reviewed: bool
    unreviewed: str = ""
    status: Status = "running"
    why: str = ""
    parts: dict[str, str] = Field(default_factory=dict)
    left_out: list[str] = Field(default_factory=list)
    angles: dict[str, AngleRecord] = Field(default_factory=dict)
    found: list[int] = Field(default_factory=list)
    resolved: list[int] = Field(default_factory=list)
    remain: list[int] = Field(default_factory=list)
    changed: int = 0


class GrillsState(Slice):
    """`findings` and `grills` by number; `asked` is what the user is asked now, and `skipped` what they left open."""

    findings: dict[int, GrillFindingRecord] = Field(default_factory=dict)
    grills: dict[int, GrillRecord] = Field(default_factory=dict)
    asked: dict[str, Any] | None = None
    skipped: list[str] = Field(default_factory=list)

    @property
    def newest(self) -> int | None:
        """The number of the newest attack."""
        return max(self.grills, default=None)

    @property
    def running(self) -> int | None:
        """The attack that is under way in which reviewers look at something."""
        return next((n for n, each in self.grills.items() if each.status == "running" and each.reviewed), None)

    def of_scope(self, scope: str) -> dict[int, GrillFindingRecord]:
        """The findings about one thing, by number."""
        return {number: each for number, each in self.findings.items() if each.scope == scope}

    def of_plan(self, plan: int) -> dict[int, GrillFindingRecord]:
        """The findings of one plan, by number."""
        return self.of_scope(plan_scope(plan))


def plan_scope(plan: int) -> str:
    """By which attacks on versions of one plan are known."""
    return f"plan {plan}"


def asked_key(asked: Mapping[str, Any]) -> str:
    """By which what the user is asked is known again."""
    if asked["finding"] is not None:
        return f"finding {asked['finding']}"
    return f"question {asked['question']} of attack {asked['grill']}"


class GrillsReducer:
    """Folds grill.* events."""

    name = "grills"
    kinds = kinds_with("grill.") | {"plan.answered"}

    def initial(self) -> GrillsState:
        return GrillsState()

    def apply(self, state: GrillsState, event: Event) -> None:
        data = event.data
        if event.kind == "grill.begun":
            plan = data["plan"]
            state.grills[event.seq] = GrillRecord(
                target=data.get("target", "plan"),
                scope=data.get("scope") or plan_scope(plan),
                plan=plan,
                goal=data.get("goal"),
                version=data["version"],
                digest=data["digest"],
                reviewed=data.get("reviewed", False),
                unreviewed=data.get("why", ""),
                changed=event.seq,
            )
        elif event.kind == "grill.answered":
            finding = state.findings[data["finding"]]
            finding.state, finding.said, finding.changed = data["answer"], data["text"], event.seq
            self._settled(state, {"finding": data["finding"], "question": None, "grill": finding.grill})
        elif event.kind == "grill.asked":
            state.asked = {name: data[name] for name in ("grill", "finding", "question", "text")}
            state.grills[data["grill"]].changed = event.seq
        elif event.kind == "grill.skipped":
            state.skipped.append(asked_key(data))
            self._settled(state, data)
        elif event.kind == "plan.answered":
            asked = state.asked
            if asked is not None and asked["question"] == data["question"]:
                if state.grills[asked["grill"]].plan == data["plan"]:
                    state.asked = None
        elif event.kind in self.kinds:
            self._grill(state, state.grills[data["grill"]], event)

    def _settled(self, state: GrillsState, data: Mapping[str, Any]) -> None:
        if state.asked is not None and asked_key(state.asked) == asked_key(data):
            state.asked = None

    def _grill(self, state: GrillsState, grill: GrillRecord, event: Event) -> None:
        data = event.data
        grill.changed = event.seq
        if event.kind == "grill.resumed":
            grill.status, grill.why = "running", ""
        elif event.kind == "grill.shown":
            grill.parts, grill.left_out = dict(data["parts"]), list(data["left_out"])
        elif event.kind == "grill.finding":
            fields = {name: data[name] for name in GrillFindingRecord.model_fields if name in data}
            state.findings[event.seq] = GrillFindingRecord(
                scope=grill.scope, plan=grill.plan, angles=[data["angle"]], changed=event.seq, **fields
            )
            grill.found.append(event.seq)
        elif event.kind == "grill.joined":
            self._joined(state.findings[data["finding"]], event)
        elif event.kind == "grill.angle":
            fields = {name: data[name] for name in AngleRecord.model_fields if name in data}
            grill.angles[data["angle"]] = AngleRecord(**fields)
        elif event.kind == "grill.stopped":
            grill.status, grill.why = "stopped", data["why"]
        elif event.kind == "grill.ended":
            grill.status, grill.why = "ended", ""
            grill.found, grill.remain = list(data["found"]), list(data["remain"])
            for number in data["resolved"]:
                finding = state.findings[number]
                # What the user settled meanwhile is theirs.
                if finding.state in STANDS:
                    finding.state, finding.changed = "resolved", event.seq
                    grill.resolved.append(number)

    def _joined(self, finding: GrillFindingRecord, event: Event) -> None:
        data = event.data
        if data["angle"] not in finding.angles:
            finding.angles.append(data["angle"])
        if data["evidence"]:
            # An opinion lends its weight to nothing that is proven.
            grave = min(data["severity"], finding.severity, key=SEVERITIES.index)
            finding.severity = grave if finding.proven else data["severity"]
            finding.evidence = "; ".join(dict.fromkeys(filter(None, (finding.evidence, data["evidence"]))))
        finding.changed = event.seq


def grills_of(log: EventLog) -> GrillsState:
    """The attacks as folded."""
    state = log.state("grills")
    assert isinstance(state, GrillsState)
    return state
