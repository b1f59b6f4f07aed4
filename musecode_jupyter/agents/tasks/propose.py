"""`propose_tasks`: how the lead hands in a task graph; what is wrong with one is told at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, ValidationError

from musecode_jupyter.agents.tasks.graph import TaskSpec, problems_of
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import ToolProblem, UsageProblem
from musecode_jupyter.tools.registry import Arguments, Outcome, Tool, ToolContext

PROPOSE = "propose_tasks"


class ProposeArguments(Arguments):
    """Arguments of `propose_tasks`."""

    tasks: list[TaskSpec] = Field(description="The whole graph; a later proposal takes the place of this one")


async def _propose(_context: ToolContext, arguments: ProposeArguments) -> Outcome:
    problems = problems_of(arguments.tasks)
    if problems:
        raise ToolProblem("The tasks cannot be taken. " + " ".join(problems))
    return Outcome(f"Taken: {', '.join(task.name for task in arguments.tasks)}.")


PROPOSE_TASKS = Tool(
    name=PROPOSE,
    description="Split the goal into tasks for several workers. Only where the user's message asks for tasks.",
    arguments=ProposeArguments,
    effect="read",
    run=_propose,
)


def proposed(events: Sequence[Event], agent: str) -> list[TaskSpec]:
    """The newest graph that `agent` proposed, and that was taken, among `events`; empty if there is none."""
    asked: dict[int, Mapping[str, Any]] = {}
    found: list[TaskSpec] = []
    for event in events:
        if event.kind == "tool.requested" and event.data["name"] == PROPOSE and event.agent == agent:
            asked[event.seq] = event.data["arguments"]
        elif event.kind == "tool.finished" and event.data["call"] in asked:
            found = [TaskSpec.model_validate(task) for task in asked[event.data["call"]]["tasks"]]
    return found


def parse_tasks(raw: object) -> tuple[TaskSpec, ...]:
    """A graph as the user wrote it: a list of tasks, or an object with `tasks`.

    Raises
    ------
    UsageProblem
        It is none, or something is wrong with it; says what.
    """
    listed = raw.get("tasks") if isinstance(raw, dict) else raw
    if not isinstance(listed, list):
        raise UsageProblem('The tasks are a JSON list of objects with "name", "goal", "accept" and "writes".')
    try:
        tasks = tuple(TaskSpec.model_validate(task) for task in listed)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "a task"
        raise UsageProblem(f"The tasks cannot be read: {where}: {first['msg']}.") from None
    problems = problems_of(tasks)
    if problems:
        raise UsageProblem(" ".join(problems))
    return tasks
