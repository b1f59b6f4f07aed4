"""One event with what it goes back to and what it led to, followed through the log by the seqs that events name.

An event names another as its cause, or as what it belongs to: the call, request, approval, merge, worktree, task or
goal. All of them came before it, so that there are no cycles.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from musecode_jupyter.log.events import Event, canonical
from musecode_jupyter.log.peek import Peek
from musecode_jupyter.runtime.errors import LogError, UsageProblem
from musecode_jupyter.session.summary import summarise
from musecode_jupyter.session.visible import visible_text

REFERENCES = ("request", "call", "approval", "view", "merge", "worktree", "task", "goal", "rule", "claim", "mail")

# Steps back that are shown, and steps that are followed to where the chain begins.
_DEEP_BACK = 12
_FOLLOWED = 2_000
# Steps on, and events of each step.
_DEEP_ON = 3
_WIDE = 20
# Events with which an agent goes to work, those that speak to one, and how many events may lie between.
_BEGINS = frozenset({"agent.state", "model.requested", "tool.requested", "agent.view"})
_SPEAKING = frozenset(
    {"user.message", "user.steer", "goal.set", "goal.edited", "task.leased", "task.bounced", "tasks.tried"}
)
_NEAR = 100
# Lines of one diff.
_DIFF_LINES = 400
_DIFF_BYTES = 1 << 20


@dataclass(frozen=True)
class Step:
    """An event of a chain, `depth` steps away; `by` says how the later one of the two names the other."""

    depth: int
    event: Event
    by: str

    def line(self) -> str:
        """As text, indented by its depth."""
        named = f"{self.by}: " if self.by else ""
        return f"{'  ' * self.depth}{named}{_line(self.event)}"


@dataclass(frozen=True)
class Story:
    """An event, what led to it (nearest first) and what it led to; `more` counts the effects that are left out.

    `begin` is where the causes go back to, if that is further than `causes` go.
    """

    event: Event
    causes: tuple[Step, ...]
    begin: Event | None
    effects: tuple[Step, ...]
    more: int
    diff: str

    def text(self) -> str:
        """All of it, for a person."""
        event = self.event
        lines = [f"{event.seq} {event.ts} {event.agent or 'harness'} {event.kind}  {_told(event)}"]
        if self.causes:
            lines += ["because of", *(step.line() for step in self.causes)]
        if self.begin is not None:
            lines.append(f"  and further back to {_line(self.begin)}")
        for name, value in event.data.items():
            text = value if isinstance(value, str) else canonical(value)
            lines.append(f"{name}: {text}" if "\n" not in text else f"{name}:\n{text}")
        if self.diff:
            lines.append(self.diff.rstrip("\n"))
        if self.effects:
            lines += ["led to", *(step.line() for step in self.effects)]
        if self.more:
            lines.append(f"  and {self.more:,} more that name these")
        return visible_text("\n".join(lines))

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "event": {**asdict(self.event), "cause": list(self.event.cause), "data": dict(self.event.data)},
            "causes": [_step_as_json(step) for step in self.causes],
            "begin": None if self.begin is None else summarise(self.begin),
            "effects": [_step_as_json(step) for step in self.effects],
            "more": self.more,
            "diff": self.diff,
        }


def story(folder: Path, seq: int) -> Story:
    """Event `seq` of the session in `folder` with its causes and effects; UsageProblem if there is no such event."""
    peek = Peek(folder)
    event = peek.event(seq) if seq > 0 else None
    if event is None:
        raise UsageProblem(f"There is no event {seq}: the log holds 1 to {peek.last_seq()}.")
    causes, begin = _back(peek, event)
    effects, more = _on(peek, event)
    diff = change_diff(event, peek) if event.kind == "file.changed" else ""
    return Story(event, tuple(causes), begin, tuple(effects), more, diff)


def named_by(event: Event) -> dict[int, str]:
    """Seqs of the events that this one names, each with how: an empty text for a cause."""
    named = dict.fromkeys(event.cause, "")
    for name in REFERENCES:
        value = event.data.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            named.setdefault(value, name)
    return {seq: by for seq, by in named.items() if 0 < seq < event.seq}


def change_diff(event: Event, blobs: Any) -> str:
    """Unified diff of a file.changed event; `blobs` is what gives the bytes of a blob by its digest (`blob`)."""
    return file_diff(blobs, event.data["path"], event.data["before"], event.data["after"])


def file_diff(blobs: Any, path: str, before: str | None, after: str | None, most: int = _DIFF_LINES) -> str:
    """Unified diff of two contents by their digests, of at most `most` lines; None stands for no file."""
    sides = []
    for digest in (before, after):
        try:
            sides.append(b"" if digest is None else blobs.blob(digest))
        except LogError as problem:
            return f"--- a/{path}\n+++ b/{path}\nThe contents cannot be shown: {problem}\n"
    old, new = sides
    if b"\0" in old or b"\0" in new or max(len(old), len(new)) > _DIFF_BYTES:
        return f"--- a/{path}\n+++ b/{path}\n{len(old):,} bytes became {len(new):,}\n"
    texts = [side.decode("utf-8", "replace").splitlines(keepends=True) for side in sides]
    names = ("/dev/null" if before is None else f"a/{path}", "/dev/null" if after is None else f"b/{path}")
    lines = [
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(texts[0], texts[1], *names)
    ]
    left_out = f"({len(lines) - most} more lines)\n" if len(lines) > most else ""
    return "".join(lines[:most]) + left_out


def _back(peek: Peek, event: Event) -> tuple[list[Step], Event | None]:
    steps: list[Step] = []
    seen = {event.seq}
    # Depth first, so that each cause stands below what it led to; the newest first, which are the nearest.
    stack = [(1, seq, by) for seq, by in sorted(_before(peek, event).items())]
    cut: Event | None = None
    while stack:
        depth, seq, by = stack.pop()
        cause = None if seq in seen else peek.event(seq)
        if cause is None:
            continue
        seen.add(seq)
        steps.append(Step(depth, cause, by))
        before = [(depth + 1, other, how) for other, how in sorted(_before(peek, cause).items()) if other not in seen]
        if depth < _DEEP_BACK and len(steps) < 2 * _WIDE:
            stack += before
        elif before:
            cut = cut or cause
    begin = cut
    for _ in range(_FOLLOWED):
        earlier = peek.event(min(_before(peek, begin), default=0)) if begin is not None else None
        if earlier is None:
            break
        begin = earlier
    return steps, begin if begin is not None and begin.seq not in seen else None


def _before(peek: Peek, event: Event) -> dict[int, str]:
    """What the event names; or, where an agent begins by itself, what was said to it last."""
    named = named_by(event)
    if named or event.kind not in _BEGINS:
        return named
    said = [each.seq for each in peek.events(max(0, event.seq - _NEAR), event.seq - 1) if _speaks(each, event.agent)]
    return {said[-1]: "told"} if said else {}


def _speaks(event: Event, agent: str) -> bool:
    return event.kind in _SPEAKING and agent in (event.data.get("to"), event.data.get("agent"))


def _on(peek: Peek, event: Event) -> tuple[list[Step], int]:
    children: dict[int, list[tuple[Event, str]]] = {}
    level, known, more = {event.seq}, {event.seq}, 0
    for _ in range(_DEEP_ON):
        following: set[int] = set()
        for later in peek.matching(_naming(level), min(level)):
            named = {seq: by for seq, by in named_by(later).items() if seq in level}
            if not named or later.seq in known:
                continue
            if len(following) == _WIDE:
                more += 1
                continue
            parent = max(named)
            following.add(later.seq)
            children.setdefault(parent, []).append((peek.restored(later), named[parent]))
        known |= following
        level = following
        if not level:
            break
    return list(_tree(children, event.seq, 1)), more


def _tree(children: dict[int, list[tuple[Event, str]]], seq: int, depth: int) -> Iterator[Step]:
    for event, by in children.get(seq, ()):
        yield Step(depth, event, by)
        yield from _tree(children, event.seq, depth + 1)


def _naming(seqs: Iterable[int]) -> Any:
    """Finds the lines that may name one of `seqs`."""
    numbers = "|".join(map(str, sorted(seqs)))
    pattern = re.compile(rf'"(?:cause":\[(?:\d+,)*|(?:{"|".join(REFERENCES)})":)(?:{numbers})[,\]}}]'.encode("ascii"))
    return lambda block: (match.start() for match in pattern.finditer(block))


def _step_as_json(step: Step) -> dict[str, Any]:
    return {"depth": step.depth, "by": step.by, **summarise(step.event)}


def _line(event: Event) -> str:
    return f"{event.seq} {event.agent or 'harness'} {event.kind}  {_told(event)}"


def _told(event: Event) -> str:
    try:
        return str(summarise(event)["text"])
    except (KeyError, TypeError, AttributeError):
        # A field was spilled to a blob that is gone.
        return "(a part of it is lost)"
