"""The task graph as text: how each task stands, what it touches, and which tasks may not run side by side."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from types import MappingProxyType

from musecode_jupyter.agents.tasks.scheduling import Repository, obstacles
from musecode_jupyter.agents.tasks.state import OVER, TaskRecord, Trial

_INDENT = "     "


def tasks_text(
    tasks: Mapping[int, TaskRecord],
    repository: Repository,
    trials: Mapping[str, Trial] = MappingProxyType({}),
    merges: Mapping[int, int] = MappingProxyType({}),
) -> str:
    """All that is known of `tasks`, which belong to one goal; their numbers are those of their events.

    `trials` has how acceptance commands ended on clean checkouts of the user's branch, before work or when judged;
    `merges` the merge by task of those whose work is in the merge queue.
    """
    lines: list[str] = []
    for seq, task in tasks.items():
        spec = task.spec
        lines.append(f"[{seq}] {spec.name}: {_standing(task, tasks, merges.get(seq))}")
        lines += [f"{_INDENT}{line}" for line in spec.goal.strip().splitlines()]
        lines += [f"{_INDENT}done when `{command}` passes{_tried(trials.get(command))}" for command in spec.accept]
        lines.append(f"{_INDENT}reads {_named(spec.reads)}{_beyond(task.wider.reads)}")
        lines.append(f"{_INDENT}writes {_named(spec.writes)}{_beyond(task.wider.writes)}")
        if spec.after:
            lines.append(f"{_INDENT}after {', '.join(spec.after)}")
        if spec.risk:
            lines.append(f"{_INDENT}risk: {spec.risk}")
    left = [task for task in tasks.values() if task.state not in OVER]
    before = _before(tasks)
    free = 0
    for one, other in combinations(left, 2):
        names = (one.spec.name, other.spec.name)
        order = [f"{b} comes after {a}" for a, b in (names, names[::-1]) if a in before[b]]
        why = order + obstacles(one.sets, other.sets, repository, names)
        free += not why
        if why:
            lines.append(f"{' and '.join(names)} may not run side by side: {'; '.join(why)}.")
    if free:
        pairs = len(left) * (len(left) - 1) // 2
        lines.append("All may run side by side." if free == pairs else "Any other two may run side by side.")
    return "\n".join(lines)


def _before(tasks: Mapping[int, TaskRecord]) -> dict[str, set[str]]:
    """By the name of each task those that it comes after, directly or through others."""
    after = {task.spec.name: task.spec.after for task in tasks.values()}
    found: dict[str, set[str]] = {}
    for name in after:
        queue, seen = list(after[name]), set[str]()
        while queue:
            one = queue.pop()
            if one not in seen:
                seen.add(one)
                queue += after.get(one, ())
        found[name] = seen
    return found


def _standing(task: TaskRecord, tasks: Mapping[int, TaskRecord], merge: int | None) -> str:
    if task.state == "open":
        done = {other.spec.name for other in tasks.values() if other.state == "done"}
        waits = [name for name in task.spec.after if name not in done]
        if waits:
            return f"waits for {', '.join(waits)}"
        return "runs next, with no other beside it" if task.exclusive else "not begun" if not task.agent else "to go on"
    if task.state == "leased":
        back = f", sent back {task.bounces} time{'s' * (task.bounces != 1)}: {task.why}" if task.bounces else ""
        doing = f"{task.agent} works on it" if merge is None else f"done by {task.agent}, is to land by merge {merge}"
        return f"{doing}{back}"
    if task.state == "done":
        who = f" by {task.agent}" if task.agent else ""
        if task.merge is None:
            return f"done{who}, {task.why or 'nothing had to change'}"
        return f"done{who}, landed by merge {task.merge}"
    who = f", worked on by {task.agent}" if task.agent else ""
    return f"{'waits for you' if task.state == 'paused' else 'given up'}{who}: {task.why}"


def _tried(trial: Trial | None) -> str:
    if trial is None:
        return ""
    ended = "passed" if trial.passed else "failed" if trial.exit is None else f"exit {trial.exit}"
    return f" (on tree {trial.tree[:10]} of your branch: {ended})"


def _named(paths: tuple[str, ...]) -> str:
    return ", ".join(paths) or "(not said)"


def _beyond(paths: tuple[str, ...]) -> str:
    return f"; and beyond that: {', '.join(paths)}" if paths else ""
