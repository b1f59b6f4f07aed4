"""What differs between two events of a session: goals, tasks, merges, agents, money, worktrees and files; as text.

Both states are folds of the log, and the files come from the blobs of file.changed: a function of the journal alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from musecode_jupyter.agents.landing.state import MergesState
from musecode_jupyter.agents.state import AgentsState
from musecode_jupyter.agents.tasks.state import TasksState
from musecode_jupyter.guard.ledger import LedgerState, Spent
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Fold
from musecode_jupyter.log.peek import Peek
from musecode_jupyter.runtime.errors import LogError, UsageProblem
from musecode_jupyter.runtime.money import in_usd
from musecode_jupyter.session.causes import file_diff
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.session.summary import one_line
from musecode_jupyter.session.visible import visible_text
from musecode_jupyter.skills.goal_state import GoalsState
from musecode_jupyter.workspace.state import WorkspaceState

T = TypeVar("T")

# Lines of the files' part in all, of one file, and of each other part.
_MOST_LINES = 1_000
_FILE_LINES = 200
_PART_LINES = 60
_TITLE = 80
_RANGE = re.compile(r"([0-9]*)\.\.([0-9]*)\Z")
_MESSAGE = b'"kind":"user.message"'


@dataclass
class _Window:
    """States at both ends, and what happened to files between; contents by worktree and path."""

    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    files: dict[tuple[int | None, str], tuple[str | None, str | None]] = field(default_factory=dict)
    landed: list[str] = field(default_factory=list)
    events: int = 0


_PARTS = ("goals", "tasks", "merges", "agents", "ledger", "workspace")


def between(folder: Path, text: str) -> tuple[int, int]:
    """The two events that `A..B` names: A left out is the beginning, B left out the last one.

    An empty text stands for all since the user's last message. Raises UsageProblem if it is no such range.
    """
    peek = Peek(folder)
    last = peek.last_seq()
    text = text.strip()
    if not text:
        messages = [event.seq for event in peek.matching(_find_messages) if event.kind == "user.message"]
        return (messages[-1] - 1 if messages else 0), last
    match = _RANGE.match(text)
    if match is None:
        raise UsageProblem(f"The changes between two events are asked for as 12..40, 12.. or ..40, not {text!r}.")
    begin, end = int(match[1] or 0), int(match[2] or last)
    if max(begin, end) > last:
        raise UsageProblem(f"There is no event {max(begin, end)}: the log holds 1 to {last}.")
    if begin > end:
        raise UsageProblem(f"Event {begin} comes after event {end}: {end}..{begin} is what changed between them.")
    return begin, end


def changes_text(folder: Path, begin: int, end: int) -> str:
    """What changed after event `begin` up to event `end`; the same for the same log, and bounded.

    Raises LogError if the journal is damaged so that it cannot be folded.
    """
    peek = Peek(folder)
    window = _window(peek, begin, end)
    parts = [
        *_part("Goals", _goals(window)),
        *_part("Tasks", _tasks(window)),
        *_part("Merges", _merges(window)),
        *_part("Agents", _agents(window)),
        *_part("Money and tokens", _money(window)),
        *_part("Worktrees", _worktrees(window)),
        *_part("Landings", iter(window.landed)),
        *_files(peek, window),
    ]
    count = f"{window.events} event{'s' if window.events != 1 else ''}"
    since = f"after event {begin}" if begin else "from the beginning"
    head = f"What changed {since} up to event {end} ({count}):"
    return visible_text("\n".join([head, *(parts or ["  nothing that is counted here"])]))


def _window(peek: Peek, begin: int, end: int) -> _Window:
    window = _Window()
    fold = Fold(all_reducers())
    landing: dict[int, list[str]] = {}
    if not begin:
        window.before = _copy(fold)
    for stored in peek.events(0, end):
        event = peek.restored(stored)
        try:
            fold.apply(event)
        except Exception as problem:
            raise LogError(
                f"the log cannot be read on to event {event.seq} ({problem!r}); `verify` says what is wrong with it"
            ) from problem
        if event.kind in {"merge.landing", "merge.undoing"}:
            landing[event.data["merge"]] = event.data["files"]
        if event.seq == begin:
            window.before = _copy(fold)
        if event.seq > begin:
            window.events += 1
            _seen(window, event, landing)
    window.after = _copy(fold)
    if not window.before:
        raise LogError(f"event {begin} cannot be read; `verify` says what is wrong with the log")
    return window


def _copy(fold: Fold) -> dict[str, BaseModel]:
    return {name: fold.state(name).model_copy(deep=True) for name in _PARTS}


def _seen(window: _Window, event: Event, landing: Mapping[int, list[str]]) -> None:
    data = event.data
    if event.kind == "file.changed":
        key = (data["worktree"], data["path"])
        first = window.files.get(key, (data["before"], None))[0]
        window.files[key] = (first, data["after"])
    elif event.kind in {"merge.landed", "merge.undone"}:
        files = landing.get(data["merge"], [])
        done = "landed" if event.kind == "merge.landed" else "was taken back"
        named = ", ".join(files[:8]) + (f" and {len(files) - 8} more" if len(files) > 8 else "")
        branch = str(data["ref"]).removeprefix("refs/heads/")
        moved = f"{str(data['old'])[:10]} to {str(data['new'])[:10]}"
        window.landed.append(f"merge {data['merge']} {done}: {branch} went from {moved}; {named or 'no files'}")


def _part(title: str, lines: Iterator[str]) -> list[str]:
    shown = [f"  {line}" for line in lines]
    if len(shown) > _PART_LINES:
        shown = [*shown[:_PART_LINES], f"  and {len(shown) - _PART_LINES} more"]
    return [f"{title}:", *shown] if shown else []


def _compared(
    old: Mapping[Any, T], new: Mapping[Any, T], told: Callable[[T], str], name: Callable[[Any, T], str]
) -> Iterator[str]:
    """A line for each that is new or of which something else is told; in the order of the log."""
    for key, value in new.items():
        now = told(value)
        if key not in old:
            yield f"{name(key, value)}: new, {now}"
        elif (was := told(old[key])) != now:
            yield f"{name(key, value)}: {was} -> {now}"


def _goals(window: _Window) -> Iterator[str]:
    old: GoalsState = window.before["goals"]
    new: GoalsState = window.after["goals"]
    yield from _compared(
        old.goals,
        new.goals,
        lambda g: ("cleared, " if g.cleared else "") + g.status + (f", {g.phase}" if g.status == "running" else ""),
        lambda seq, g: f"goal {seq} ({one_line(g.text, _TITLE)})",
    )


def _tasks(window: _Window) -> Iterator[str]:
    old: TasksState = window.before["tasks"]
    new: TasksState = window.after["tasks"]
    yield from _compared(
        old.tasks,
        new.tasks,
        lambda t: t.state + (f" by {t.agent}" if t.state == "leased" else ""),
        lambda seq, t: f"task {seq} ({one_line(t.spec.name, _TITLE)})",
    )


def _merges(window: _Window) -> Iterator[str]:
    old: MergesState = window.before["merges"]
    new: MergesState = window.after["merges"]
    yield from _compared(
        old.merges,
        new.merges,
        lambda m: m.state + (f" ({one_line(m.why, _TITLE)})" if m.why else ""),
        lambda seq, m: f"merge {seq} to {m.branch}" + (f" ({one_line(m.title, _TITLE)})" if m.title else ""),
    )


def _agents(window: _Window) -> Iterator[str]:
    old: AgentsState = window.before["agents"]
    new: AgentsState = window.after["agents"]
    yield from _compared(
        old.agents,
        new.agents,
        lambda a: f"{a.state}, {len(a.view)} entries in its conversation, {a.steps} model calls",
        lambda name, _: str(name),
    )


def _money(window: _Window) -> Iterator[str]:
    old: LedgerState = window.before["ledger"]
    new: LedgerState = window.after["ledger"]
    for name, spent in [*new.by_agent.items(), ("total", new.total)]:
        was = old.total if name == "total" else old.by_agent.get(name, Spent())
        if _paid(spent) != _paid(was):
            yield (
                f"{name}: {in_usd(spent.microusd - was.microusd):.4f} USD, {spent.calls - was.calls} calls, "
                f"{spent.input - was.input} tokens in ({spent.cached - was.cached} cached), "
                f"{spent.output - was.output} out"
            )
    if (old.limit_microusd, old.limit_tokens) != (new.limit_microusd, new.limit_tokens):
        limits = [] if new.limit_usd is None else [f"{new.limit_usd:g} USD"]
        limits += [] if new.limit_tokens is None else [f"{new.limit_tokens} tokens"]
        yield f"limit of the session: {', '.join(limits) or 'none'}"


def _paid(spent: Spent) -> tuple[int, ...]:
    """What model calls made of it."""
    return spent.microusd, spent.calls, spent.failed, spent.input, spent.cached, spent.output


def _worktrees(window: _Window) -> Iterator[str]:
    old: WorkspaceState = window.before["workspace"]
    new: WorkspaceState = window.after["workspace"]
    for seq, tree in new.worktrees.items():
        if seq not in old.worktrees:
            yield f"worktree {seq}: new, on {tree.branch}"
    for seq, tree in old.worktrees.items():
        if seq not in new.worktrees:
            yield f"worktree {seq}: removed, was on {tree.branch}"


def _files(peek: Peek, window: _Window) -> Iterator[str]:
    changed = {key: sides for key, sides in window.files.items() if sides[0] != sides[1]}
    trees = {**window.before["workspace"].worktrees, **window.after["workspace"].worktrees}
    left, shown = _MOST_LINES, 0
    for number in sorted({worktree or 0 for worktree, _ in changed}):
        tree = trees.get(number)
        where = f"worktree {number}" + (f", on {tree.branch}" if tree else "") if number else "the checkout"
        yield f"Files in {where}:"
        for (worktree, path), (before, after) in sorted(changed.items(), key=lambda item: item[0][1]):
            if (worktree or 0) != number:
                continue
            if left <= 0:
                yield f"and {len(changed) - shown} more files"
                return
            lines = file_diff(peek, path, before, after, min(_FILE_LINES, left)).splitlines()
            left, shown = left - len(lines), shown + 1
            yield from lines


def _find_messages(block: bytes) -> Iterator[int]:
    at = block.find(_MESSAGE)
    while at >= 0:
        yield at
        at = block.find(_MESSAGE, at + 1)
