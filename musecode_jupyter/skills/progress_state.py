"""The fold of whether a goal's work moves: files, landings, checks and metrics, others' word on claims; never words."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from musecode_jupyter.log.digests import digest_of_text
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice

_MOVES = frozenset({"merge.landed", "task.done", "claim.verified", "claim.challenged", "claim.retracted"})
_ANSWERS = frozenset({"tool.finished", "tool.failed", "tool.cancelled"})
_LEAST_GAIN = 0.01
"""Relative gain of a metric's estimate over the best so far, from which on it has moved."""


class Progress(Slice):
    """One goal, or a worker at its task in `worktree`.

    `quiet` counts the answers of its agent's model since something moved, `told` the notes about that.

    `files` has what files were changed to so far: what was there before is no movement. `passed` are the commands and
    clauses that passed in a judgement so far, `best` the best estimate of each metric. `same` counts how often one call
    came to one result in a row, `call` and `result` say which, and `told_same` whether the agent was told.
    """

    agent: str
    worktree: int | None = None
    quiet: int = 0
    told: int = 0
    files: dict[str, bool] = Field(default_factory=dict)
    passed: list[str] = Field(default_factory=list)
    best: dict[str, float] = Field(default_factory=dict)
    asked: dict[int, str] = Field(default_factory=dict)
    call: str = ""
    result: str = ""
    same: int = 0
    told_same: bool = False

    def moved(self) -> None:
        """Something moved."""
        self.quiet = self.told = 0


class ProgressState(Slice):
    """By seq of goal.set; `active` is the one that is worked on, `workers` those at its tasks, by name."""

    goals: dict[int, Progress] = Field(default_factory=dict)
    active: int | None = None
    workers: dict[str, Progress] = Field(default_factory=dict)


class ProgressReducer:
    """Folds what goals' agents do and what comes of it."""

    name = "progress"
    kinds = frozenset(
        {
            *("goal.set", "goal.resumed", "goal.cleared", "goal.edited", "goal.nudged", "goal.judged"),
            *("model.completed", "file.changed", "worktree.snapshotted", "tool.requested", "task.leased"),
            *(_MOVES | _ANSWERS),
        }
    )

    def initial(self) -> ProgressState:
        return ProgressState()

    def apply(self, state: ProgressState, event: Event) -> None:
        data = event.data
        if event.kind in {"goal.set", "goal.resumed", "goal.cleared"}:
            state.workers = {}
        if event.kind == "goal.set":
            state.active = event.seq
            state.goals[event.seq] = Progress(agent=data["agent"])
        elif event.kind == "goal.resumed":
            state.active = data["goal"]
            self._anew(state.goals[data["goal"]])
        elif event.kind == "goal.cleared" and state.active == data["goal"]:
            state.active = None
        elif event.kind == "goal.edited":
            self._anew(state.goals[data["goal"]])
        elif event.kind == "goal.nudged":
            goal = state.workers.get(data["agent"]) or state.goals[data["goal"]]
            if data["step"] == "same call":
                goal.told_same = True
            else:
                goal.told += 1
        elif event.kind == "goal.judged":
            self._judged(state.goals[data["goal"]], data)
        elif event.kind == "task.leased":
            # What others do is no movement of its own.
            state.workers[data["agent"]] = Progress(agent=data["agent"], worktree=data["worktree"])
        elif state.active is not None and event.kind in self.kinds:
            self._worked(state.goals[state.active], event)
            for name, worker in state.workers.items():
                here = worker.worktree is not None and data.get("worktree") == worker.worktree
                if event.agent == name or here or event.kind.startswith("claim."):
                    self._worked(worker, event)

    def _anew(self, goal: Progress) -> None:
        goal.moved()
        goal.same, goal.told_same = 0, False

    def _judged(self, goal: Progress, data: Any) -> None:
        if data["where"] != "landing":
            return
        verdicts = data.get("clauses") or ()
        now = [each["command"] for each in data["checks"] if each["passed"]]
        now += [each["clause"] for each in verdicts if each["passed"] and each["kind"] == "metric"]
        new = [each for each in now if each not in goal.passed]
        goal.passed += new
        moved = bool(new)
        for each in verdicts:
            value = each.get("value")
            if value is None:
                continue
            before, better = goal.best.get(each["clause"]), ">=" in each["clause"]
            gain = None if before is None else (value - before if better else before - value)
            if gain is None or gain > _LEAST_GAIN * abs(before or 0.0):
                goal.best[each["clause"]] = value
                moved = True
        if moved:
            goal.moved()

    def _worked(self, goal: Progress, event: Event) -> None:
        data = event.data
        if event.kind == "model.completed":
            if event.agent == goal.agent:
                goal.quiet += 1
        elif event.kind == "file.changed":
            what = _mark([data["worktree"], data["after"], data["path"]])
            if data["worktree"] is not None and what not in goal.files:
                goal.files[what] = True
                goal.moved()
        elif event.kind == "worktree.snapshotted":
            if data["commit"] is not None:
                goal.moved()
        elif event.kind == "tool.requested":
            if event.agent == goal.agent and data["origin"] == "model":
                goal.asked[event.seq] = _mark([data["name"], data["arguments"]])
        elif event.kind in _ANSWERS:
            asked = goal.asked.pop(data["call"], None)
            if asked is not None:
                self._came(goal, asked, _mark(str(data.get("output", ""))))
        elif event.kind in _MOVES:
            goal.moved()

    def _came(self, goal: Progress, call: str, result: str) -> None:
        if (call, result) == (goal.call, goal.result):
            goal.same += 1
        else:
            goal.call, goal.result, goal.same, goal.told_same = call, result, 1, False


def _mark(value: Any) -> str:
    """By which a value is known again; as JSON, since texts of models and commands may hold anything."""
    return digest_of_text(json.dumps(value, sort_keys=True))[:16]
