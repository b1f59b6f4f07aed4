"""Times for tools that draw by time: from the clock of each event, made to rise with the order of the log."""

from __future__ import annotations

from datetime import UTC, datetime

from musecode_jupyter.log.events import Event

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RisingClock:
    """Microseconds since the epoch, strictly rising with seq.

    The order of the log is that of `seq`; `ts` comes from a clock that may be set. Where `ts` goes back, no time is
    taken to have passed, and all later events are moved by what it went back, so that the durations after it stay
    right; a clock that is set forward looks like a pause. Events of one millisecond follow each other by a microsecond.
    """

    def __init__(self) -> None:
        self.setbacks: list[dict[str, int]] = []
        """Each time that `ts` went back: the event at which it did, and by how many microseconds."""
        self._offset = 0
        self._raw: int | None = None
        self._last = 0

    def at(self, event: Event) -> int:
        """The time of the next event; to be asked once for each, in order."""
        raw = self._parse(event.ts)
        if self._raw is not None and raw < self._raw:
            self._offset += self._raw - raw
            self.setbacks.append({"seq": event.seq, "microseconds": self._raw - raw})
        self._last = raw + self._offset if self._raw is None else max(raw + self._offset, self._last + 1)
        self._raw = raw
        return self._last

    def _parse(self, ts: str) -> int:
        try:
            time = datetime.fromisoformat(ts.replace("Z", "+00:00"))
        except ValueError:
            return self._raw or 0
        passed = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
        return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
