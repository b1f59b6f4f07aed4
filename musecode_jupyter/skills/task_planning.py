"""The tasks of a goal where neither the user nor the model proposes them: one for each check that fails."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from musecode_jupyter.agents.tasks.graph import TaskSpec
from musecode_jupyter.tools.executor import CallResult

MOST_PLACES = 3
"""Of the files in which a fault is suspected, so many are taken for what its task will write: the likeliest ones."""


def name_for(command: str, taken: Sequence[str]) -> str:
    """A name for the task that makes `command` pass, after the last thing that the command names."""
    words = [word for word in command.split() if not word.startswith("-")] or [command]
    last = re.sub(r"\.\w+\Z", "", words[-1].rstrip("/").rpartition("/")[2])
    name = re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")[:32] or "check"
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name}-{number}", number + 1
    return unique


def one_for_each(commands: Sequence[str], located: Sequence[CallResult]) -> list[TaskSpec]:
    """One task for each of the failing checks `commands`: to make it pass.

    `located` has, for each, the answer of `locate` on it; the files in which its fault is suspected are what the task
    will write. A check without suspects gets a task that may write anything, and so runs alone.
    """
    tasks: list[TaskSpec] = []
    for command, found in zip(commands, located, strict=True):
        places: list[str] = []
        if found.ok:
            for suspect in json.loads(found.output)["suspects"]:
                if suspect["path"] not in places:
                    places.append(suspect["path"])
        tasks.append(
            TaskSpec(
                name=name_for(command, [task.name for task in tasks]),
                goal=f"Make `{command}` pass.",
                accept=(command,),
                writes=tuple(places[:MOST_PLACES]),
            )
        )
    return tasks
