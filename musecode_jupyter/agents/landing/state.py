"""The fold of merges with their evidence: what each was tested as, by what, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from musecode_jupyter.log.events import Event
from musecode_jupyter.log.kinds import kinds_with

MergeState = Literal[
    "enqueued", "checked", "tested", "reviewed", "landing", "landed", "bounced", "undoing", "undone", "dropped"
]
FINAL = frozenset({"landed", "bounced", "undone", "dropped"})
_UNDER_WAY = frozenset({"enqueued", "checked", "tested", "reviewed"})


class Evidence(BaseModel):
    """Commands that ran on a clean checkout of `tree`. `purpose` is acceptance, affected, or goal: its clauses."""

    purpose: str
    tree: str
    passed: bool
    commands: list[str]
    failed: list[str] = Field(default_factory=list)
    flaky: list[str] = Field(default_factory=list)


class Opinion(BaseModel):
    """What a validator said of `tree`."""

    validator: str
    tree: str
    ok: bool
    why: str


class Merge(BaseModel):
    """One merge. `rounds` counts how often it was checked against the target; `tested` and `reviewed` are of the last.

    One that did not come through the queue has no `agent`: it is the whole of a goal with one worker, whose judgement
    is its evidence, and is `dropped` where that failed or another one of the goal took its place. `undos` counts
    attempts to take it back, of which `undo_old`, `undo_new` and `undo_backup` describe the last.
    """

    goal: int
    task: int | None
    agent: str
    title: str
    commit: str
    base: str
    ref: str
    kept: str
    state: MergeState = "enqueued"
    rounds: int = 0
    target: str | None = None
    tree: str | None = None
    merged: str | None = None
    conflicts: list[str] = Field(default_factory=list)
    suspect: list[str] = Field(default_factory=list)
    tested: list[Evidence] = Field(default_factory=list)
    reviewed: list[Opinion] = Field(default_factory=list)
    old: str | None = None
    new: str | None = None
    backup: str | None = None
    why: str = ""
    undos: int = 0
    undo_old: str | None = None
    undo_new: str | None = None
    undo_backup: str | None = None

    @property
    def branch(self) -> str:
        """The short name of the branch to land on."""
        return self.ref.removeprefix("refs/heads/")


class MergesState(BaseModel):
    """`merges` by seq of merge.enqueued, which is also the number that the user sees."""

    merges: dict[int, Merge] = Field(default_factory=dict)


class MergesReducer:
    """Folds merge.* events, and goal.judged for the merges of goals with one worker."""

    # Not "workspace", whose slice of released logs knows nothing of evidence.
    name = "merges"
    kinds = kinds_with("merge.") | {"goal.judged"}

    def initial(self) -> MergesState:
        return MergesState()

    def apply(self, state: MergesState, event: Event) -> None:
        if event.kind == "merge.enqueued":
            self._enqueued(state, event)
        elif event.kind.startswith("merge."):
            self._merge(state.merges[event.data["merge"]], event)
        elif event.kind == "goal.judged" and event.data["where"] == "landing":
            self._judged(state, event)

    def _enqueued(self, state: MergesState, event: Event) -> None:
        data = event.data
        for other in state.merges.values():
            if not other.agent and other.goal == data["goal"] and other.state in _UNDER_WAY:
                other.state = "dropped"
        state.merges[event.seq] = Merge(
            goal=data["goal"],
            task=data.get("task"),
            agent=data.get("agent", ""),
            title=data.get("title", ""),
            commit=data["commit"],
            base=data.get("base", ""),
            ref=data["ref"],
            kept=data.get("kept", ""),
        )

    def _judged(self, state: MergesState, event: Event) -> None:
        data = event.data
        mine = [m for m in state.merges.values() if m.goal == data["goal"] and not m.agent]
        if not mine or mine[-1].state not in {"checked", "reviewed"} or mine[-1].tree != data["tree"]:
            return
        mine[-1].tested.append(_evidence("goal", data))
        mine[-1].state = "tested" if data["passed"] else "dropped"

    def _merge(self, merge: Merge, event: Event) -> None:
        data = event.data
        if event.kind == "merge.checked":
            merge.state, merge.rounds = "checked", merge.rounds + 1
            merge.target, merge.tree, merge.merged = data["target"], data["tree"], data["commit"]
            merge.conflicts, merge.suspect = list(data["conflicts"]), list(data.get("suspect", ()))
            merge.tested, merge.reviewed = [], []
        elif event.kind == "merge.tested":
            merge.state = "tested"
            merge.tested.append(_evidence(data["purpose"], data))
        elif event.kind == "merge.reviewed":
            merge.state = "reviewed"
            merge.reviewed.append(
                Opinion(validator=data["validator"], tree=data["tree"], ok=data["ok"], why=data["why"])
            )
        elif event.kind in {"merge.landing", "merge.landed"}:
            merge.state = "landing" if event.kind == "merge.landing" else "landed"
            merge.old, merge.new, merge.backup = data["old"], data["new"], data["backup"]
        elif event.kind == "merge.moved":
            merge.state, merge.suspect, merge.tested, merge.reviewed = "enqueued", [], [], []
        elif event.kind == "merge.bounced":
            merge.state, merge.why = "bounced", data["why"]
            merge.kept = data["kept"]
        elif event.kind == "merge.undoing":
            merge.state, merge.undos = "undoing", merge.undos + 1
            merge.undo_old, merge.undo_new, merge.undo_backup = data["old"], data["new"], data["backup"]
        elif event.kind == "merge.undone":
            merge.state, merge.why = "undone", ""
        elif event.kind == "merge.stays":
            merge.state, merge.why = "landed", data["why"]


def _evidence(purpose: str, data: Mapping[str, Any]) -> Evidence:
    last = {check["command"]: check["passed"] for check in data["checks"]}
    return Evidence(
        purpose=purpose,
        tree=data["tree"],
        passed=data["passed"],
        commands=list(last),
        failed=[command for command, passed in last.items() if not passed],
        flaky=list(data.get("flaky", ())),
    )
