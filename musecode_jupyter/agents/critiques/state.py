"""The fold of findings: what each says and rests on, what became of it, what it stops; and what was reviewed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, Field

from musecode_jupyter.agents.critiques.changed import normal
from musecode_jupyter.log.critique_kinds import CritiqueEvidence, CritiquePlace, Severity
from musecode_jupyter.log.events import Event

REVIEW = "review"
"""Who speaks for the findings in front of a landing."""
SEVERITIES: tuple[Severity, ...] = ("blocking", "major", "minor", "note")
Standing = Literal["open", "answered", "fixed", "withdrawn"]


class Finding(BaseModel):
    """One finding; `number` is the seq of its critique.raised, `said` the last word about it, of `by`, and
    `changed` the event that last changed it.

    `accepted`: the user wants it done before the work lands, whatever it weighs.
    """

    number: int
    goal: int | None
    task: int | None = None
    worktree: int | None = None
    merge: int | None = None
    tree: str
    check: str
    severity: Severity
    place: CritiquePlace
    text: str
    why: str = ""
    evidence: list[CritiqueEvidence]
    suggestion: str = ""
    passes: list[str]
    hunk: str = ""
    state: Standing = "open"
    accepted: bool = False
    said: str = ""
    by: str = ""
    changed: int = 0

    @property
    def proven(self) -> bool:
        """Whether it has evidence; without it is an opinion."""
        return bool(self.evidence)

    @property
    def blocks(self) -> bool:
        """Whether the work cannot land because of it."""
        return self.state == "open" and (self.accepted or (self.severity == "blocking" and self.proven))

    @property
    def key(self) -> tuple[str, str, str]:
        """By which the same finding is known again: its kind, its file, and what stands there."""
        return self.check, self.place.path, normal(self.place.text) or normal(self.text)

    @property
    def scope(self) -> str:
        """The work that it is about."""
        return scope_of(self.goal, self.task, self.worktree)

    @property
    def where(self) -> str:
        """Its place for people."""
        place = self.place
        if not place.start:
            return place.path
        lines = str(place.start) if place.end <= place.start else f"{place.start}-{place.end}"
        return f"{place.path}:{lines}" + (" (before the change)" if place.side == "old" else "")


def scope_of(goal: int | None, task: int | None, worktree: int | None) -> str:
    """The name of a piece of work: a task of a goal, the whole of a goal, or what is done in a worktree."""
    if goal is None:
        return f"worktree {worktree}"
    return f"goal {goal}" if task is None else f"goal {goal} task {task}"


class Reviewed(BaseModel):
    """The newest complete review of a piece of work: from which tree to which, by which passes."""

    base: str
    tree: str
    passes: list[str]


class Pass(BaseModel):
    """The newest pass of a reviewer: the seq of its critique.asked, what it was put, and for which batch of changes.

    `complete` says that its review came to its end.
    """

    seq: int
    scope: str
    base: str
    tree: str
    batch: int | None = None
    complete: bool = False


class CritiquesState(BaseModel):
    """`findings` by number, `reviewed` by scope, `passes` by reviewer.

    `rounds` counts, by scope, how often findings have sent the work back since the user last let its goal go on.
    """

    findings: dict[int, Finding] = Field(default_factory=dict)
    reviewed: dict[str, Reviewed] = Field(default_factory=dict)
    passes: dict[str, Pass] = Field(default_factory=dict)
    rounds: dict[str, int] = Field(default_factory=dict)
    merges: dict[int, str] = Field(default_factory=dict)

    def of(self, scope: str) -> list[Finding]:
        """The findings about one piece of work, in order."""
        return [finding for finding in self.findings.values() if finding.scope == scope]

    def blocking(self, scope: str) -> list[Finding]:
        """Those for which it cannot land now."""
        return [finding for finding in self.of(scope) if finding.blocks]

    def ranked(self) -> Iterator[Finding]:
        """All of them: open ones first, by severity, then by number."""
        order = {severity: number for number, severity in enumerate(SEVERITIES)}
        yield from sorted(
            self.findings.values(),
            key=lambda each: (each.state != "open", not each.blocks, order[each.severity], each.number),
        )


class CritiquesReducer:
    """Folds critique.*, and how often a merge was sent back because of findings."""

    name = "critiques"

    def initial(self) -> CritiquesState:
        return CritiquesState()

    def apply(self, state: CritiquesState, event: Event) -> None:
        data = event.data
        if event.kind == "critique.raised":
            fields = {name: data[name] for name in Finding.model_fields if name in data}
            state.findings[event.seq] = Finding(number=event.seq, changed=event.seq, **fields)
        elif event.kind == "critique.asked":
            scope = scope_of(data["goal"], data["task"], data["worktree"])
            state.passes[data["agent"]] = Pass(
                seq=event.seq, scope=scope, base=data["base"], tree=data["tree"], batch=data.get("batch")
            )
        elif event.kind == "critique.reviewed":
            scope = scope_of(data["goal"], data["task"], data["worktree"])
            state.reviewed[scope] = Reviewed(base=data["base"], tree=data["tree"], passes=list(data["passes"]))
            for each in state.passes.values():
                each.complete = each.complete or each.scope == scope
        elif event.kind.startswith("critique."):
            self._settled(state.findings[data["critique"]], event)
        elif event.kind == "merge.enqueued":
            state.merges[event.seq] = scope_of(data["goal"], data.get("task"), None)
        elif event.kind == "merge.reviewed" and data["validator"] == REVIEW and not data["ok"]:
            scope = state.merges[data["merge"]]
            state.rounds[scope] = state.rounds.get(scope, 0) + 1
        elif event.kind == "goal.resumed":
            mine = f"goal {data['goal']}"
            for scope in [each for each in state.rounds if each == mine or each.startswith(f"{mine} ")]:
                del state.rounds[scope]

    def _settled(self, finding: Finding, event: Event) -> None:
        data = event.data
        finding.by, finding.changed = event.agent, event.seq
        if event.kind == "critique.answered":
            finding.accepted = data["answer"] == "accepted"
            finding.state = "open" if finding.accepted else "answered"
            finding.said = data["text"]
        elif event.kind == "critique.fixed":
            finding.state, finding.said = "fixed", data["why"]
        elif event.kind == "critique.withdrawn":
            finding.state, finding.said = "withdrawn", data["why"]
