"""The findings in front of a landing: what they say of a merge, when they send it back, when it is the user's turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from musecode_jupyter.agents.critiques.asked import all_said
from musecode_jupyter.agents.critiques.changed import Asked
from musecode_jupyter.agents.critiques.review import MAX_ROUNDS, Change, Reviews
from musecode_jupyter.agents.critiques.state import REVIEW, Finding
from musecode_jupyter.agents.critiques.text import how_to_settle, objection, report
from musecode_jupyter.agents.landing.work import Merged, Review, Validator, Work
from musecode_jupyter.agents.tasks.state import TasksState
from musecode_jupyter.log import EventLog


@dataclass(frozen=True)
class Opinion:
    """What a review says of a merge. `report` tells the worker of what goes back; of what is held, `why` the user."""

    kind: Literal["agrees", "back", "held"]
    why: str = ""
    report: str = ""


def gate(reviews: Reviews) -> Validator:
    """The review as one of those who look at a merge before it lands."""
    return Validator(REVIEW, partial(_review, reviews))


async def _review(reviews: Reviews, work: Work, merged: Merged) -> Review:
    log = reviews.tools.log
    tasks = log.state("tasks")
    assert isinstance(tasks, TasksState)
    task = None if work.task is None else tasks.tasks.get(work.task)
    text, writes = (work.title, ()) if task is None else (task.spec.goal, task.spec.writes)
    change = Change(
        work.goal,
        work.agent,
        merged.target,
        merged.commit,
        merged.tree,
        Asked(all_said(log, work.goal, work.agent, text), writes),
        task=work.task,
        merge=merged.merge,
        checks=checks_of(log, merged.merge),
    )
    opinion = await judge(reviews, change)
    return Review(opinion.kind == "agrees", opinion.why, opinion.report, hold=opinion.kind == "held")


async def judge(reviews: Reviews, change: Change) -> Opinion:
    """Review a change that asks to land. Raises as `Reviews.review`."""
    blocking = await reviews.review(change)
    if not blocking:
        return Opinion("agrees", _stands(reviews.state.of(change.scope)))
    why = objection(blocking)
    if reviews.state.rounds.get(change.scope, 0) >= MAX_ROUNDS:
        return Opinion("held", f"Sent back {MAX_ROUNDS} times because of the review. {why} {how_to_settle(blocking)}")
    return Opinion("back", why, report(blocking))


def _stands(findings: Sequence[Finding]) -> str:
    """What there is of findings that stop nothing; empty if there is none."""
    left = [each.number for each in findings if each.state == "open"]
    return f"{len(left)} left open that stop{'s' if len(left) == 1 else ''} nothing" if left else ""


def checks_of(log: EventLog, merge: int) -> tuple[tuple[str, int, bool], ...]:
    """The commands that ran on a merge since it was last checked against its target."""
    ran: list[tuple[str, int, bool]] = []
    for event in log.events(merge):
        if event.kind == "merge.checked" and event.data["merge"] == merge:
            ran = []
        elif event.kind == "merge.tested" and event.data["merge"] == merge:
            ran += [(each["command"], each["call"], each["passed"]) for each in event.data["checks"]]
    return tuple(ran)
