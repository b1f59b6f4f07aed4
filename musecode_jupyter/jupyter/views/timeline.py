"""The timeline view: batches of event summaries out, questions for history and detail in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from musecode_jupyter.jupyter.views.live import CallLater, LiveView, Post
from musecode_jupyter.jupyter.views.static_html import timeline_html, timeline_text
from musecode_jupyter.session.totals import Totals

# One message each 100 ms kept 59 frames a second at 1,000 events a second; a message per event fell to 19 at
# 400.
FLUSH_S = 0.1
# 100,000 events are sent in 5 s, each message small enough not to hold up the runtime thread.
BATCH = 2000
TAIL = 200
# The snapshot serves views without a kernel, so it may lag; it is a whole state, sent again at each change.
SNAPSHOT_S = 5.0


class EventSource(Protocol):
    """Where a timeline gets its events; used on the runtime thread only."""

    def summaries(self, since: int) -> Sequence[dict[str, Any]]:
        """Results of `summarise` for all events with seq > `since`, oldest first."""
        ...

    def detail(self, seq: int) -> dict[str, Any]:
        """`{"event": the whole event as JSON values}`, with `"diff"` (unified) where a file changed.

        Raises KeyError if there is no such event.
        """
        ...


class TimelineView(LiveView):
    """The live timeline.

    Parameters
    ----------
    source
        The events.
    on_action
        Called on the runtime thread with `{"type": "stop"}`, and with `{"type": "lost"}` when a view has missed a
        message: other output may be lost as well.
    post, call_later
        The runtime loop: `loop.call_soon_threadsafe` and `loop.call_later`.
    initial
        Summaries of the events so far, for the first paint and the static forms; by default they are fetched
        from `source` on the runtime thread.
    """

    bundle: ClassVar[str] = "timeline"

    def __init__(
        self,
        source: EventSource,
        on_action: Callable[[dict[str, Any]], None],
        *,
        post: Post,
        call_later: CallLater,
        initial: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._source = source
        self._on_action = on_action
        self._totals = Totals(initial)
        self._tail: deque[dict[str, Any]] = deque(initial[-TAIL:], maxlen=TAIL)
        # What has to be sent still, and the seq up to which everything was sent.
        self._queue: deque[dict[str, Any]] = deque()
        self._sent = self._totals.last
        self._flushing = False
        self._saving = False
        super().__init__(post, call_later, self._snapshot())
        if not initial:
            post(self._fetch)

    def feed(self, summaries: Sequence[dict[str, Any]]) -> None:
        """Take new events, in order; on the runtime thread. They are sent within 100 ms."""
        if self._closed or not summaries:
            return
        if summaries[0]["seq"] > self._totals.last + 1:
            summaries = self._source.summaries(self._totals.last)
        queued = self._queue[-1]["seq"] if self._queue else self._sent
        for summary in summaries:
            if summary["seq"] > self._totals.last:
                self._totals.add(summary)
                self._tail.append(summary)
            if summary["seq"] > queued:
                self._queue.append(summary)
        if self._queue:
            self._flush_later()
        if not self._saving:
            self._saving = True
            self._call_later(SNAPSHOT_S, self._save)

    def flush(self) -> None:
        """Send what waits and bring the snapshot up to date, at once; on the runtime thread."""
        while self._queue and not self._closed:
            self._send_batch()
        self._save()

    def handle(self, message: Mapping[str, Any]) -> None:
        if self._closed:
            return
        kind, seq = message.get("type"), message.get("seq")
        if kind == "since" and isinstance(seq, int):
            if 0 < seq < self._sent:
                self._on_action({"type": "lost"})
            self._queue = deque(self._source.summaries(seq))
            self._sent = seq
            # Even "nothing more" is an answer: it tells the view that a kernel is there.
            self._send_batch()
            if self._queue:
                self._flush_later()
        elif kind == "detail" and isinstance(seq, int):
            try:
                detail = self._source.detail(seq)
            except KeyError:
                detail = {"event": None}
            self.send({"type": "detail", "seq": seq, **detail})
        elif kind == "stop":
            self._on_action({"type": "stop"})

    def header(self) -> dict[str, Any]:
        """Counts, tokens, money and the goal's state, as shown."""
        return self._totals.header()

    def static_html(self) -> str:
        return timeline_html(list(self._tail), self.header())

    def static_text(self) -> str:
        return timeline_text(list(self._tail), self.header())

    def _fetch(self) -> None:
        self.feed(self._source.summaries(self._totals.last))

    def _flush_later(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._closed or not self._queue:
            return
        self._send_batch()
        if self._queue:
            self._flush_later()

    def _send_batch(self) -> None:
        batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
        since, self._sent = self._sent, batch[-1]["seq"] if batch else self._sent
        self.send(
            {
                "type": "events",
                "since": since,
                "upto": self._sent,
                "events": batch,
                "header": self._totals.header(),
            }
        )
        self.said()

    def repeat(self) -> None:
        """Say up to where events were sent: a view that has fewer asks for the rest."""
        if not self._queue:
            header = self._totals.header()
            self.send({"type": "events", "since": self._sent, "upto": self._sent, "events": [], "header": header})

    def _save(self) -> None:
        self._saving = False
        if not self._closed:
            self.snapshot = self._snapshot()

    def _snapshot(self) -> dict[str, Any]:
        return {"events": list(self._tail), "header": self._totals.header()}
