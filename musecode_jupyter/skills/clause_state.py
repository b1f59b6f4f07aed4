"""The fold of goals' typed clauses: those in force, every version, what warnings were given, the last verdicts."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice
from musecode_jupyter.log.goal_kinds import GoalClauses


class ClausesRecord(Slice):
    """One goal. `where` is the event that has the clauses in force, with the blobs of its held-out files.

    `percents` has the highest percentage told of each limit, by its name in events. `exhausted` says which
    limit was used but for its reserve. `verdicts` are those of the newest judgement before landing."""

    clauses: GoalClauses = GoalClauses()
    where: int
    versions: list[int] = Field(default_factory=list)
    percents: dict[str, int] = Field(default_factory=dict)
    exhausted: str = ""
    verdicts: list[dict[str, Any]] = Field(default_factory=list)
    handover: list[str] = Field(default_factory=list)

    @property
    def decided_elsewhere(self) -> bool:
        """Whether the verify commands need files that only the harness has."""
        return bool(self.clauses.holdout)


class ClausesState(Slice):
    """By seq of goal.set."""

    goals: dict[int, ClausesRecord] = Field(default_factory=dict)

    def of(self, goal: int) -> GoalClauses:
        """The clauses in force."""
        return self.goals[goal].clauses


class ClausesReducer:
    """Folds what sets and edits clauses, warnings, and judgements."""

    # Not "goals", whose slice of released logs knows nothing of it.
    name = "clauses"
    kinds = frozenset(
        {
            *("goal.set", "goal.edited", "goal.warned", "goal.exhausted", "goal.resumed", "goal.judged"),
            *("goal.met", "goal.stopped"),
        }
    )

    def initial(self) -> ClausesState:
        return ClausesState()

    def apply(self, state: ClausesState, event: Event) -> None:
        data = event.data
        if event.kind == "goal.set":
            clauses = GoalClauses.model_validate(data.get("clauses") or {})
            state.goals[event.seq] = ClausesRecord(clauses=clauses, where=event.seq, versions=[event.seq])
            return
        if event.kind not in self.kinds:
            return
        record = state.goals[data["goal"]]
        if event.kind == "goal.edited":
            self._edited(record, event)
        elif event.kind == "goal.warned":
            record.percents[data["limit"]] = data["percent"]
        elif event.kind == "goal.exhausted":
            record.exhausted = data["why"]
        elif event.kind == "goal.resumed":
            record.exhausted, record.handover = "", []
        elif event.kind in {"goal.met", "goal.stopped"}:
            record.handover = list(data.get("handover", ()))
        elif event.kind == "goal.judged" and data["where"] == "landing":
            record.verdicts = [dict(each) for each in data.get("clauses", ())]

    def _edited(self, record: ClausesRecord, event: Event) -> None:
        data = event.data
        for name, limit in data["new"].items():
            if limit != data["old"][name]:
                record.percents.pop(name, None)
        record.versions.append(event.seq)
        if data.get("clauses") is not None:
            record.clauses = GoalClauses.model_validate(data["clauses"])
            record.where = event.seq
