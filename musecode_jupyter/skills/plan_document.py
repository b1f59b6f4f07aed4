"""A plan as data: its steps as an author hands them in, what is wrong with them, and a version as it is approved."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import combinations
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from musecode_jupyter.agents.tasks.graph import Files, TaskSpec, meeting, problems_of
from musecode_jupyter.tools.registry import Arguments

DIGEST_BYTES = 16
Ending = Literal["fails", "passes", "cannot run", "to be made", "not run"]
"""How a command ended on the user's last commit. To be made: it lacks what a step is to make."""

MADE_BY_CHECKS = "Made by the program, without a model: a step for each check that fails."


class Risk(BaseModel):
    """How risky a step is, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: Literal["low", "medium", "high"]
    why: str = Field(description="what could go wrong, and for whom")


class PlanStep(BaseModel):
    """A step as its author hands it in; `task` is the task that it becomes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="short name, unique in the plan: lower-case letters, digits and hyphens")
    goal: str = Field(description="what is true once it is done")
    reads: tuple[str, ...] = Field(default=(), description="files, folders or globs that it needs to read")
    writes: tuple[str, ...] = Field(default=(), description="files, folders or globs that it changes or makes")
    accept: tuple[str, ...] = Field(
        description="commands that can be run in the root here, fail today, and pass once it is done"
    )
    after: tuple[str, ...] = Field(default=(), description="names of steps whose results it needs")
    risk: Risk
    tokens: int = Field(ge=0, description="estimate of the model tokens that it takes; 0: cannot be said")

    def task(self) -> TaskSpec:
        """The task of a goal's graph that the step becomes, once the plan is approved."""
        return TaskSpec(
            name=self.name,
            goal=self.goal,
            accept=self.accept,
            reads=self.reads,
            writes=self.writes,
            after=self.after,
            risk=f"{self.risk.level}: {self.risk.why}",
        )


class Evidence(BaseModel):
    """A file that the plan rests on, and what it shows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    shows: str


class ProposedPlan(Arguments):
    """Arguments of `propose_plan`."""

    summary: str = Field(description="the plan in a few sentences: what is done, in which order, and why so")
    steps: list[PlanStep] = Field(description="the whole plan; a later one takes the place of this one")
    questions: list[str] = Field(default=[], description="what only the user can decide; empty if there is nothing")
    evidence: list[Evidence] = Field(default=[], description="the files that the plan rests on; only what you read")
    claims: list[int] = Field(default=[], description="numbers of the claims that the plan rests on")


def problems(plan: ProposedPlan, files: Iterable[str]) -> list[str]:
    """What is wrong with a plan, a sentence each, for whoever wrote it; `files` are those of the repository."""
    tasks = [step.task() for step in plan.steps]
    # A step is the task that it becomes, and called so here.
    found = problems_of(tasks)
    if not plan.summary.strip():
        found.append("The plan has no summary. Say in a few sentences what is done, and why so.")
    found += [f"Step {step.name!r} does not say why its risk is {step.risk.level}." for step in plan.steps if _no(step)]
    if any(not question.strip() for question in plan.questions):
        found.append("A question is empty. Leave it out.")
    return found or _side_by_side(tasks, Files.of(files))


def _no(step: PlanStep) -> bool:
    return not step.risk.why.strip()


def _side_by_side(tasks: Sequence[TaskSpec], files: Files) -> list[str]:
    """Pairs that may run side by side and write one file."""
    before: dict[str, set[str]] = {task.name: set(task.after) for task in tasks}
    for _ in tasks:
        for name in before:
            before[name] |= {far for near in list(before[name]) for far in before[near]}
    found = []
    for one, other in combinations(tasks, 2):
        if one.name in before[other.name] or other.name in before[one.name]:
            continue
        both = meeting(one.writes, other.writes, files)
        if both:
            found.append(
                f"Steps {one.name!r} and {other.name!r} both write {', '.join(both[:3])}, and neither comes after the "
                "other. Put one after the other, or make one step of them."
            )
    return found


def canonical_text(value: Any) -> str:
    """JSON in one form only: keys sorted, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(document: str, answers: Mapping[int, str]) -> str:
    """What an approval is bound to: BLAKE2b-128 of a version's document and of the answers to its questions."""
    said = canonical_text({str(number): text for number, text in answers.items()}) if answers else ""
    return blake2b(f"{document}{said}".encode("ascii"), digest_size=DIGEST_BYTES).hexdigest()


def parsed_steps(document: Mapping[str, Any]) -> list[PlanStep]:
    """The steps of a version."""
    return [
        PlanStep.model_validate({name: value for name, value in step.items() if name != "trials"})
        for step in document["steps"]
    ]


def tasks_of(document: Mapping[str, Any]) -> tuple[TaskSpec, ...]:
    """The task graph that a version becomes."""
    return tuple(step.task() for step in parsed_steps(document))


def commands_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What decides a goal made of it: the commands that the user named for it, or else those of all its steps."""
    named = document["verify"] or [command for step in document["steps"] for command in step["accept"]]
    return tuple(dict.fromkeys(named))
