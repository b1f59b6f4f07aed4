"""Judges a goal's typed clauses on one tree: puts held-out files in place, measures, looks for what is forbidden."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from musecode_jupyter.agents.landing.checks import clean_place, run_commands
from musecode_jupyter.agents.landing.tools import LandingTools
from musecode_jupyter.agents.landing.work import Merged, Review, Validator, Work
from musecode_jupyter.log.goal_kinds import ClauseVerdict, GoalClauses, Metric
from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import MuseError
from musecode_jupyter.skills.clause_state import ClausesRecord, ClausesState
from musecode_jupyter.skills.forbid import forbid_verdicts
from musecode_jupyter.skills.metric import PAIRS, measured, missing, verdict
from musecode_jupyter.tools.registry import Place


@dataclass(frozen=True)
class ClauseJudge:
    """The clauses of `goal`; `check` and `base` are where a candidate and the baseline are checked out."""

    tools: LandingTools
    goal: int
    check: Path
    base: Path

    @property
    def clauses(self) -> GoalClauses:
        """Those in force."""
        return self._state.of(self.goal)

    @property
    def record(self) -> ClausesRecord:
        """How the clauses stand, as folded."""
        return self._state.goals[self.goal]

    @property
    def _state(self) -> ClausesState:
        state = self.tools.log.state("clauses")
        assert isinstance(state, ClausesState)
        return state

    async def place(self, commit: str) -> Place:
        """A clean checkout of `commit` for its judgement: its tree, and the files that agents never see."""
        return await self._place(self.check, commit)

    async def _place(self, path: Path, commit: str) -> Place:
        place = await clean_place(self.tools, path, commit)
        if self.clauses.holdout:
            blobs = self.tools.log.get(self._state.goals[self.goal].where).blobs
            held = {each.place: blobs[each.blob].digest for each in self.clauses.holdout}
            await put_files(self.tools.effects, place.root, held, self.tools.log.blob)
        return place

    async def before(self, place: Place) -> tuple[str, bool]:
        """Why the metrics cannot be measured in `place` before any work, and whether they hold already."""
        if not self.clauses.metrics:
            return "", True
        values, why = await self._run(place)
        why = why or missing(self.clauses.metrics, values)
        if why:
            return f"`{self.clauses.measure}` does not measure: {why}", False
        return "", hold_already(self.clauses.metrics, values)

    async def verdicts(self, commit: str, target: str, *, measure: bool) -> list[ClauseVerdict]:
        """Each clause on `commit`, which would land on `target`. Metrics only with `measure`, and nothing forbidden."""
        found = await forbid_verdicts(self.tools.git, self.clauses.forbid, target, commit)
        if self.clauses.metrics and measure and all(each.passed for each in found):
            found += await self._metrics(commit)
        return found

    async def _metrics(self, commit: str) -> list[ClauseVerdict]:
        candidate = await self.place(commit)
        found: list[ClauseVerdict] = []
        for baseline in dict.fromkeys(metric.commit for metric in self.clauses.metrics):
            beside = await self._place(self.base, baseline) if baseline else None
            theirs, ours, why = await self._pairs(beside, candidate)
            found += [
                ClauseVerdict(kind="metric", clause=metric.text, passed=False, why=f"not measured: {why}")
                if why
                else verdict(metric, theirs, ours)
                for metric in self.clauses.metrics
                if metric.commit == baseline
            ]
        return found

    async def _pairs(
        self, baseline: Place | None, candidate: Place
    ) -> tuple[list[dict[str, float]], list[dict[str, float]], str]:
        theirs: list[dict[str, float]] = []
        ours: list[dict[str, float]] = []
        for number in range(PAIRS + 1):
            turn = [(baseline, theirs), (candidate, ours)]
            for place, values in turn if number % 2 == 0 else turn[::-1]:
                if place is None:
                    continue
                run, why = await self._run(place)
                if why:
                    return [], [], f"{'the baseline: ' if place is baseline else ''}{why}"
                if number:
                    values.append(run)
        return theirs, ours, ""

    async def _run(self, place: Place) -> tuple[dict[str, float], str]:
        [result] = await run_commands(self.tools, [self.clauses.measure], place, "measure", self.goal)
        return measured(result.output), "" if result.ok else f"`{self.clauses.measure}` exits with {result.exit}"


def hold_already(metrics: Sequence[Metric], values: Mapping[str, float]) -> bool:
    """Whether all metrics hold before any work, by one run of the measure command; a ratio to itself is 1."""
    return all(
        (1.0 if each.baseline else values[each.name]) * (1 if each.op == ">=" else -1)
        >= each.target * (1 if each.op == ">=" else -1)
        for each in metrics
    )


@answered
async def put_files(effects: Effects, root: Path, files: dict[str, str], blob: Callable[[str], bytes]) -> None:
    """Write blobs to places below `root`, in place of whatever is there; MuseError where a link leads out of it."""
    await effects.disk(_put, root, files, blob)


def _put(root: Path, files: dict[str, str], blob: Callable[[str], bytes]) -> None:
    base = root.resolve()
    for place, digest in files.items():
        path = base / place
        folder = Path(os.path.realpath(path.parent))
        if not folder.is_relative_to(base):
            raise MuseError(f"The held-out file {place} cannot be put in place: a link leads out of the checkout.")
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            raise MuseError(f"The held-out file {place} cannot be put in place: the work has a folder there.")
        path.write_bytes(blob(digest))


def clause_report(verdicts: Sequence[ClauseVerdict]) -> list[str]:
    """What the agent is told of each clause that does not hold."""
    return [f"`{each.clause}` ({each.kind}) does not hold: {each.why}" for each in verdicts if not each.passed]


def forbid_validator(tools: LandingTools, goal: int) -> Validator:
    """A validator for the merge queue: nothing of a task lands that has what the goal forbids."""

    async def review(_work: Work, merged: Merged) -> Review | None:
        state = tools.log.state("clauses")
        assert isinstance(state, ClausesState)
        found = await forbid_verdicts(tools.git, state.of(goal).forbid, merged.target, merged.commit)
        broken = clause_report(found)
        return Review(False, " ".join(broken)) if broken else None

    return Validator("forbid", review)
