"""Server-sent events: bytes in any chunking become whole events (WHATWG HTML, section 9.2.6)."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Larger than any answer within a model's output limit; a stream without line ends must not fill the memory.
MAX_EVENT_BYTES = 64 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n|\r|\n")


class EventTooLarge(ValueError):
    """One event grew over `MAX_EVENT_BYTES`."""


@dataclass(frozen=True)
class ServerEvent:
    """One dispatched event; `event` is empty when the server named none."""

    event: str
    data: str

    @property
    def is_done(self) -> bool:
        """Whether this is the `[DONE]` mark by which model servers close a stream."""
        return self.data.strip() == "[DONE]"


class EventParser:
    """Incremental parser. Lines are decoded whole, so a character split over chunks is never torn.

    Invalid UTF-8 becomes U+FFFD, as the standard asks; comments, ids and retry hints are skipped.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._size = 0
        self._after_cr = False
        self._first = True
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Take the next bytes and return the events that they complete.

        Raises
        ------
        EventTooLarge
            If one event grows over `MAX_EVENT_BYTES`.
        """
        if not chunk:
            return []
        events: list[ServerEvent] = []
        start = 1 if self._after_cr and chunk.startswith(b"\n") else 0
        for match in _LINE_END.finditer(chunk, start):
            self._line += chunk[start : match.start()]
            start = match.end()
            self._end_line(events)
        self._line += chunk[start:]
        self._after_cr = chunk.endswith(b"\r")
        if self._size + len(self._line) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event is larger than {MAX_EVENT_BYTES} bytes")
        return events

    def close(self) -> list[ServerEvent]:
        """Return the event whose lines are whole but whose closing blank line never came, if there is one.

        A line cut in the middle is dropped together with its event.
        """
        events: list[ServerEvent] = []
        if not self._line:
            self._dispatch(events)
        self._line.clear()
        self._data = []
        return events

    def _end_line(self, events: list[ServerEvent]) -> None:
        raw = bytes(self._line)
        self._line.clear()
        if self._first:
            self._first = False
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if not raw:
            self._dispatch(events)
            return
        self._size += len(raw)
        name, _, value = raw.decode("utf-8", errors="replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value

    def _dispatch(self, events: list[ServerEvent]) -> None:
        if self._data:
            events.append(ServerEvent(self._event, "\n".join(self._data)))
        self._event = ""
        self._data = []
        self._size = 0
