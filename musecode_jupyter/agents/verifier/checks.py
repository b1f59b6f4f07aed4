"""What the verifier runs of one piece of work, and the running of it on a clean checkout of its files as they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from musecode_jupyter.agents.critiques.review import discard, forget_snapshot
from musecode_jupyter.agents.critiques.state import scope_of
from musecode_jupyter.agents.landing.checks import clean_place, run_commands, shorten
from musecode_jupyter.agents.landing.tools import LandingTools
from musecode_jupyter.agents.tasks.state import TasksState
from musecode_jupyter.agents.verifier.state import VERIFIER, ChecksState
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.tools.executor import CallResult
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.snapshots import drop_snapshot, take_snapshot
from musecode_jupyter.workspace.state import WorkspaceState

logger = logging.getLogger(__name__)

MOST_SECONDS = 120.0
"""So long a command may take beside the work. One that took longer the last time, there or judged, is not run there."""
REPORT_CHARS = 2_000


@dataclass(frozen=True)
class Checked:
    """What was run on `tree`, and how each command came out last; nothing where that tree was checked before.

    `flaky` are those that failed and then passed.
    """

    tree: str
    commands: tuple[str, ...] = ()
    results: tuple[CallResult, ...] = ()
    flaky: tuple[str, ...] = ()


def checks_of(log: EventLog) -> ChecksState:
    """The checks beside the work as folded."""
    state = log.state("checks")
    assert isinstance(state, ChecksState)
    return state


def commands_of(log: EventLog, goal_commands: Iterable[str], task: int | None, files: Collection[str]) -> list[str]:
    """What a piece of work has to pass: `goal_commands`, or the acceptance commands of a task and of landed tasks.

    Of landed tasks those count that have read or written one of `files`, the paths that were changed.
    """
    if task is None:
        return list(dict.fromkeys(goal_commands))
    state = log.state("tasks")
    assert isinstance(state, TasksState)
    mine = state.tasks[task]
    commands = dict.fromkeys(mine.spec.accept)
    for other in state.tasks.values():
        landed = other.state == "done" and other.merge is not None
        if landed and not set(files).isdisjoint([*other.read, *other.written]):
            commands.update(dict.fromkeys(other.spec.accept))
    return list(commands)


def turned(log: EventLog, begun: Event, checked: Checked) -> list[dict[str, object]]:
    """The commands that came out otherwise than the last time."""
    before = _before(log, begun)
    return [
        {"command": command, "passed": result.ok}
        for command, result in zip(checked.commands, checked.results, strict=True)
        if result.ok != before[command]
    ]


def _before(log: EventLog, begun: Event) -> dict[str, bool]:
    """How each command came out the last time.

    One of the work itself was red before, since it says what is to be done; one of a landed task was green.
    """
    data = begun.data
    known = checks_of(log).green.get(scope_of(data["goal"], data["task"], data["worktree"]), {})
    landed = set(data["commands"]) - set(_own(log, data))
    return {command: known.get(command, command in landed) for command in data["commands"]}


def _own(log: EventLog, data: Mapping[str, Any]) -> Iterable[str]:
    if data["task"] is None:
        return list(data["commands"])
    state = log.state("tasks")
    assert isinstance(state, TasksState)
    return state.tasks[data["task"]].spec.accept


def _needs(log: EventLog, task: int | None) -> list[str] | None:
    """What a task's checks need of submodules and large files, as where it asks to land: all it touches, if it says."""
    state = log.state("tasks")
    assert isinstance(state, TasksState)
    if task is None:
        return None
    spec = state.tasks[task].spec
    return [*spec.reads, *spec.writes] or None


async def check(tools: LandingTools, begun: Event, taken: Callable[[], None] = lambda: None) -> Checked:
    """Run the commands of `begun` (checks.begun) on what is in its worktree now, committed or not.

    The worktree is left alone. The tree that was checked last is not checked again. A command that has turned red is
    run once more: what is not steady is no news. `taken` is called once what is there is kept in a snapshot. Raises
    GitError.
    """
    data, git = begun.data, tools.git
    worktree = data["worktree"]
    state = tools.log.state("workspace")
    assert isinstance(state, WorkspaceState)
    tree = state.worktrees[worktree]
    scope = scope_of(data["goal"], data["task"], worktree)
    inside = await Git.at_worktree(Path(tree.path), tools.effects)
    name = snapshot_name(tools, worktree)
    await forget_snapshot(git, name)
    snapshot = await take_snapshot(inside, name)
    taken()
    path = checkout_path(tools, worktree)
    try:
        if snapshot.tree == checks_of(tools.log).tree.get(scope):
            return Checked(snapshot.tree)
        commands, before = list(data["commands"]), _before(tools.log, begun)

        async def run(wanted: list[str]) -> dict[str, CallResult]:
            place = await clean_place(tools, path, snapshot.commit, _needs(tools.log, data["task"]))
            results = await run_commands(tools, wanted, place, "check", begun.seq, VERIFIER, MOST_SECONDS)
            return dict(zip(wanted, results, strict=True))

        try:
            results = await run(commands)
            red = [command for command in commands if before[command] and not results[command].ok]
            # What comes before such a command may have prepared it, so it runs again too.
            again = await run(commands[: 1 + commands.index(red[-1])]) if red else {}
        finally:
            await to_the_end(discard(tools, path))
        flaky = tuple(command for command in red if again[command].ok)
        last = {**results, **{command: again[command] for command in red}}
        return Checked(snapshot.tree, tuple(commands), tuple(last.values()), flaky)
    finally:
        # The worktree may be gone by now: its work can land, or be given up, meanwhile.
        await to_the_end(drop_snapshot(git, name, snapshot.commit))


def checkout_path(tools: LandingTools, worktree: int) -> Path:
    """Where the files of a worktree are checked out to be checked."""
    return tools.worktrees / f"{tools.session}-{worktree}.verify"


def snapshot_name(tools: LandingTools, worktree: int) -> str:
    """Under which name what is in a worktree is kept while it is checked."""
    return f"{tools.session}/verify-{worktree}"


def letter(checked: Checked, told: Collection[str]) -> str:
    """What the author of the work is told of those commands that have turned."""
    parts = [
        f"`{command}` passes now."
        if result.ok
        else f"`{command}` does not pass any more:\n{shorten(result.output, REPORT_CHARS)}"
        for command, result in zip(checked.commands, checked.results, strict=True)
        if command in told
    ]
    parts += [
        f"`{command}` failed, and passed on the same files when it was run again. It is run no more beside your work."
        for command in checked.flaky
    ]
    return "\n\n".join([*parts, "That is of your files as they were at your last step, in a clean checkout."])
