"""The part of a diff in which a place is, as a unified hunk with its line numbers; pure."""

from __future__ import annotations

import difflib
from typing import Literal

from musecode_jupyter.agents.critiques.changed import lines_of

CONTEXT = 4
MAX_LINES = 80
MAX_WIDTH = 300
MAX_COMPARED = 20_000
"""Lines of a file beyond which no diff is made: the place is shown as it stands."""

Row = tuple[str, int, int, str]
"""Sign (space, + or -), line before and line after (0: not there), text."""


def hunk_around(old: str | None, new: str | None, start: int, end: int, side: Literal["new", "old"]) -> str:
    """The rows of the diff around lines `start` to `end` of one side; a place that is unchanged gets its neighbours.

    Without a place (`start` 0) the beginning of the diff.
    """
    before, after = _lines(old), _lines(new)
    if old is None and new is None:
        return ""
    rows = _rows(before, after)
    numbers = [row[2] if side == "new" else row[1] for row in rows]
    inside = [at for at, number in enumerate(numbers) if start <= number <= end and number] if start else []
    if not inside:
        changed = [at for at, row in enumerate(rows) if row[0] != " "]
        inside = changed[:1]
    if not inside:
        return ""
    first, last = max(0, inside[0] - CONTEXT), min(len(rows), inside[-1] + 1 + CONTEXT)
    # What was taken away for it stands next to it.
    while first > 0 and rows[first - 1][0] != " " and inside[0] - first < MAX_LINES // 4:
        first -= 1
    return _text(rows[first : min(last, first + MAX_LINES)])


def _lines(text: str | None) -> list[str]:
    """The lines of a file; what follows its last line end is none."""
    lines = lines_of(text or "")
    return lines[:-1] if not lines[-1] else lines


def _rows(before: list[str], after: list[str]) -> list[Row]:
    if len(before) > MAX_COMPARED or len(after) > MAX_COMPARED:
        return [(" ", number, number, line) for number, line in enumerate(after or before, 1)]
    head = _alike(before, after)
    tail = _alike(before[head:][::-1], after[head:][::-1])
    rows: list[Row] = [(" ", number, number, line) for number, line in enumerate(before[:head], 1)]
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=len(old) > 1000).get_opcodes():
        if tag == "equal":
            rows += [(" ", head + a + n + 1, head + c + n + 1, old[a + n]) for n in range(b - a)]
        else:
            rows += [("-", head + n + 1, 0, old[n]) for n in range(a, b)]
            rows += [("+", 0, head + n + 1, new[n]) for n in range(c, d)]
    first, second = len(before) - tail, len(after) - tail
    return rows + [(" ", first + n + 1, second + n + 1, before[first + n]) for n in range(tail)]


def _alike(before: list[str], after: list[str]) -> int:
    """How many lines both begin with."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(before), len(after)))


def _text(rows: list[Row]) -> str:
    olds, news = [row[1] for row in rows if row[1]], [row[2] for row in rows if row[2]]
    head = f"@@ -{min(olds, default=0)},{len(olds)} +{min(news, default=0)},{len(news)} @@"
    return "\n".join([head, *(row[0] + row[3][:MAX_WIDTH] for row in rows)])
