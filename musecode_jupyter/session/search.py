"""Search for a text in the events of a session: a scan of the journal, in which only lines that may match are parsed.

There is no index. What a search looks at are kind, agent and every text in the data of an event, also where it was
spilled to a blob; contents of files and pictures are no texts of an event.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from musecode_jupyter.log.events import Event
from musecode_jupyter.log.peek import Finder, Peek
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.lines import events_table
from musecode_jupyter.session.summary import BEHIND, summarise

LIMIT = 50

# What JSON in ASCII writes as it is.
_PLAIN = re.compile(r"[ !#-\[\]-~]+")
_SPILLED = b'"data.'
# The only two characters beyond ASCII whose lower case has an ASCII letter in it.
_LOWERED = {b"i": rb"\u0130", b"k": rb"\u212a"}


@dataclass(frozen=True)
class Found:
    """The newest events that match, oldest first; `more` matched before them, `unreadable` lines were no records."""

    events: tuple[Event, ...]
    more: int
    unreadable: int

    def summaries(self) -> list[dict[str, Any]]:
        """The events as the timeline shows them."""
        return [summarise(event) for event in self.events]

    def text(self) -> str:
        """The table of the timeline, with a note where it does not show all."""
        lines = [events_table(self.summaries())]
        if self.more:
            earlier = (
                f"{self.more:,} earlier events match as well" if self.more > 1 else "1 earlier event matches as well"
            )
            lines.append(f"{earlier}: --limit {self.more + len(self.events)} shows all.")
        if self.unreadable:
            lines.append(f"{self.unreadable} damaged lines were passed over: `verify` says where.")
        return "\n".join(lines)


def search(folder: Path, text: str, limit: int = LIMIT) -> Found:
    """The newest `limit` events that hold `text`, without regard to case. Memory is bounded by them.

    Raises UsageProblem for an empty text or limit, LogError if there is no journal.
    """
    needle = text.strip().lower()
    if not needle:
        raise UsageProblem("Give the text to search for: search TEXT.")
    if limit < 1:
        raise UsageProblem("--limit takes a number from 1 on.")
    peek = Peek(folder)
    parts = _parts(needle)
    newest: deque[Event] = deque(maxlen=limit)
    count = 0
    for event in peek.matching(_finder([*parts, _SPILLED])):
        if event.kind in BEHIND and needle != event.kind:
            continue
        if _matches(event, needle) or _in_blobs(peek, event, needle, parts):
            newest.append(event)
            count += 1
    return Found(tuple(peek.restored(event) for event in newest), count - len(newest), peek.unreadable)


def _parts(needle: str) -> list[bytes]:
    """Byte strings of which a line in lower case holds at least one if one of its texts holds `needle`."""
    plain = max(_PLAIN.findall(needle), key=len, default="")
    # All else is written as an escape.
    part = plain.encode("ascii") or b"\\"
    return [part, *(escape for letter, escape in _LOWERED.items() if letter in part)]


def _finder(parts: list[bytes]) -> Finder:
    """Finds the first of `parts` in each line, without regard to case."""

    def find(block: bytes) -> Iterator[int]:
        lowered = block.lower()
        following = [lowered.find(part) for part in parts]
        while (position := min((at for at in following if at >= 0), default=-1)) >= 0:
            yield position
            end = lowered.find(b"\n", position)
            following = [
                lowered.find(part, end) if 0 <= at < end else at for part, at in zip(parts, following, strict=True)
            ]

    return find


def _matches(event: Event, needle: str) -> bool:
    return needle in event.kind or needle in event.agent.lower() or _holds(event.data, needle)


def _holds(value: Any, needle: str) -> bool:
    if isinstance(value, str):
        return needle in value.lower()
    if isinstance(value, dict):
        return any(_holds(each, needle) for each in value.values())
    return isinstance(value, list) and any(_holds(each, needle) for each in value)


def _in_blobs(peek: Peek, event: Event, needle: str, parts: list[bytes]) -> bool:
    for content in peek.spilled_bytes(event):
        lowered = content.lower()
        if any(part in lowered for part in parts):
            return _holds(peek.restored(event).data, needle)
    return False
