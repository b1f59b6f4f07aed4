"""When and which old tool outputs are said in a line; pure. At few points, since each one costs the server's cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHARE = 0.2
"""Masking is due when the outputs that are shown whole, but for those that stay anyway, exceed this share of the room
for a prompt, ..."""
STANDING = 0.5
"""... or this one, in an agent that is there to be asked about what it has read, ..."""
MOST_TOKENS = 50_000
"""... or so many tokens."""
KEEP = 0.25
"""Of that, this share stays: the newest outputs."""
LEAST = 0.5
"""Nothing is masked unless that saves at least this share of it."""

_ARGUMENT = 80
_ARGUMENTS = 160
_LINE_TOKENS = 60


@dataclass(frozen=True)
class Shown:
    """One output that a prompt shows whole. `fixed`: it stays, since it is of the newest step, or pinned."""

    result: int
    tokens: int
    fixed: bool = False


def due_at(room: int, share: float = SHARE) -> int:
    """Tokens of output shown whole above which masking is due, where a prompt may have `room` tokens."""
    return int(min(share * room, MOST_TOKENS))


def to_mask(shown: Sequence[Shown], room: int, share: float = SHARE, *, force: bool = False) -> list[Shown]:
    """Those of the outputs, in prompt order, that are to be masked now; mostly none.

    The newest stay, as many as fit in a quarter of what is due, and whatever is fixed. With `force` all the others go
    that are longer than a line, due or not.
    """
    due = due_at(room, share)
    if not force and sum(each.tokens for each in shown if not each.fixed) <= due:
        return []
    left, chosen = (0 if force else KEEP * due), []
    for each in reversed(shown):
        if each.fixed:
            continue
        left -= each.tokens
        if left < 0 and each.tokens > 2 * _LINE_TOKENS:
            chosen.append(each)
    if not force and sum(each.tokens - _LINE_TOKENS for each in chosen) < LEAST * due:
        return []
    return chosen[::-1]


def line_for(name: str, arguments: Mapping[str, Any], output: str, exit_code: int | None, pictures: int) -> str:
    """What a prompt says in the place of an output: what it was, how long, how to get it again.

    Nothing of the output itself is in it: that is data from outside, and stands between marks only.
    """
    words = [f"{key}={_short(value)}" for key, value in arguments.items() if value is not None]
    said = " ".join(" ".join(words)[:_ARGUMENTS].split())
    ended = "" if exit_code is None else f", exit {exit_code}"
    seen = f" and {pictures} pictures" if pictures else ""
    return (
        f"[Left out to save room: what {name} {said} gave{ended}; {len(output):,} characters{seen}. "
        f"Call {name} again if you need it.]"
    )


def _short(value: Any) -> str:
    text = " ".join(str(value)[: 4 * _ARGUMENT].split())
    return text if len(text) <= _ARGUMENT else f"{text[: _ARGUMENT - 3]}..."
