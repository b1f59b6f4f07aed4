"""What a run of acceptance commands before any work says of a task graph: what cannot be run, what is done already."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from musecode_jupyter.agents.landing.tools import LandingTools
from musecode_jupyter.agents.tasks.graph import Files, TaskSpec, meeting
from musecode_jupyter.skills.verify_command import cannot_run, last_line
from musecode_jupyter.tools.executor import CallResult

AGAIN = (
    "Propose the whole graph again: with commands that can be run here and that fail until their task is done, and "
    "without what is done already."
)
_MODULE = re.compile(r"No module named '?([\w.]+)")


@dataclass(frozen=True)
class Findings:
    """`wrong` has a sentence for each command that cannot be run; `done` the names of tasks that pass already."""

    wrong: tuple[str, ...] = ()
    done: tuple[str, ...] = ()

    def report(self) -> str:
        """What whoever proposed the graph is told."""
        passing = [
            f"Task {name}: its acceptance commands pass already, so they cannot tell whether it is done."
            for name in self.done
        ]
        return "\n".join(["The tasks were not taken.", *self.wrong, *passing, AGAIN])


def judge(
    specs: Sequence[TaskSpec],
    ran: Mapping[str, CallResult],
    passed: Mapping[str, bool],
    known: Mapping[str, TaskSpec],
    files: Files,
) -> Findings:
    """What the trials say of `specs`.

    `ran` has the runs by command, `passed` also what is known from before; `known` all tasks of the goal by name,
    `files` those of the commit. A task that comes after others is judged once they have landed, by the queue: a
    command that passes now, or that lacks what they make, says nothing yet.
    """
    wrong = []
    for spec in specs:
        for command in spec.accept:
            result = ran.get(command)
            if result is not None and how_ended(spec, command, result, known, files) == "cannot run":
                wrong.append(f"Task {spec.name}: `{command}` cannot be run: {last_line(result.output)}.")
    done = [spec.name for spec in specs if not spec.after and all(passed.get(command) for command in spec.accept)]
    return Findings(tuple(wrong), tuple(done))


def how_ended(
    spec: TaskSpec, command: str, result: CallResult, known: Mapping[str, TaskSpec], files: Files
) -> Literal["passes", "fails", "cannot run", "to be made"]:
    """How an acceptance command of `spec` ended before any work; to be made: it lacks what a task is to make."""
    if not cannot_run(result):
        return "passes" if result.ok else "fails"
    makers = [spec, *_before(spec, known)]
    return "to be made" if _may_be_made(command, result.output, makers, files) else "cannot run"


async def may_run(
    tools: LandingTools, specs: Sequence[TaskSpec], typed: Collection[str], root: Path, agent: str
) -> tuple[bool, str, list[str]]:
    """Whether the acceptance commands of `specs` may be run in clean checkouts at `root`, why, and which were asked of.

    Those that the user typed may; others are asked about, once. The answer is bound to exactly these commands: another
    graph with another one is another question.
    """
    new = sorted({command for spec in specs for command in spec.accept} - set(typed))
    rules = tools.approvals.rules
    found = {command: await rules.covers_command(command, root=root, isolated=True) for command in new}
    covered = {command: rule for command, rule in found.items() if rule is not None}
    verdict = tools.executor.policy.acceptance(new, covered)
    asked = [command for command in new if command not in covered]
    if verdict.decision != "ask":
        return verdict.decision == "allow", verdict.rule, asked
    shown = {
        "tasks": [f"{spec.name}: {spec.goal}" for spec in specs],
        "commands": asked,
        "where": "in clean checkouts of the tasks' work",
    }
    answer = await tools.approvals.ask("tasks", "run the tasks' acceptance commands", shown, agent=agent)
    return answer.granted, answer.why or "the user's answer", asked


def _before(spec: TaskSpec, known: Mapping[str, TaskSpec]) -> list[TaskSpec]:
    """All tasks whose results `spec` needs, directly or through others."""
    found: dict[str, TaskSpec] = {}
    waiting = list(spec.after)
    while waiting:
        name = waiting.pop()
        if name in known and name not in found:
            found[name] = known[name]
            waiting += known[name].after
    return list(found.values())


def _may_be_made(command: str, output: str, makers: Sequence[TaskSpec], files: Files) -> bool:
    """Whether the command lacks only what one of the tasks is to make: a file that it names and that is not there."""
    missing = _named(command, output) - files.known
    for task in makers:
        if any(_like_path(path) for path in missing) and not task.writes:
            return True
        if any(meeting([path], task.writes, files) for path in missing if _like_path(path)):
            return True
        if missing & set(task.writes):
            return True
    return False


def _named(command: str, output: str) -> set[str]:
    """What a command may mean as paths of the repository: its words, and the module that was not found."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    found = {str(PurePosixPath(word.split("::")[0])) for word in words if word and word[0] not in "-/~"}
    for module in _MODULE.findall(output):
        path = module.replace(".", "/")
        found |= {f"{path}.py", f"{path}/__init__.py", f"{path}/__main__.py"}
    return found


def _like_path(word: str) -> bool:
    return "/" in word or "." in word.strip(".")
