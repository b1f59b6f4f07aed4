"""Export as a trace in the Trace Event Format, which Perfetto and chrome://tracing open: a track per agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO

from musecode_jupyter._version import __version__
from musecode_jupyter.log.events import Event, canonical
from musecode_jupyter.runtime.money import in_usd
from musecode_jupyter.session.export.clock import RisingClock
from musecode_jupyter.session.export.source import EventSource
from musecode_jupyter.session.export.spans import Span, Spans
from musecode_jupyter.session.summary import BEHIND, summarise

PID = 1
FIRST = {"user": 1, "harness": 2, "lead": 3}
# Too many and too little: what they say is in the spans and counters.
_SILENT = frozenset(
    {
        *("tool.requested", "tool.decided", "tool.started", "tool.finished", "model.requested", "model.completed"),
        *("state.digest", "file.observed", "agent.view", "agent.seeded", "approval.requested", "agent.state"),
    }
)
# Points from which or to which an arrow leads are the shortest of slices: an arrow ends in slices only.
_POINTS = frozenset({"task.leased", "merge.enqueued", "merge.landed", "merge.bounced", "approval.granted"})


def write(source: EventSource, out: BinaryIO) -> None:
    """The trace as one JSON object, written as it is read.

    Times are microseconds from the first event on, made as `RisingClock` says. Model calls and tool runs are complete
    events on their agent's track; one that overlaps with what is on the track already, such as one of several parallel
    reads, is an asynchronous event instead, as are questions, merges in the queue, tasks and goals. Counters have the
    money, the tokens, and what waits. Arrows lead from a task's lease to its merge, from the queue to the landing, and
    from an approval to what it let run.
    """
    trace = _Trace(source.name, out)
    for event in source.events():
        trace.take(event)
    trace.finish(source)


class _Trace:
    def __init__(self, session: str, out: BinaryIO) -> None:
        self._out = out
        self._session = session
        self._clock = RisingClock()
        self._spans = Spans()
        self._tracks: dict[str, int] = {}
        self._ends: dict[int, int] = {}
        self._zero: int | None = None
        self._now = 0
        self._began = ""
        self._totals = {"microusd": 0, "input": 0, "cached": 0, "output": 0}
        self._waiting: dict[str, int] = {}
        self._arrows = 0
        # Where arrows begin: by what will end them, the track and the time.
        self._from: dict[tuple[str, int], tuple[int, int]] = {}
        out.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        self._put(
            {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "args": {"name": f"session {session}"}}, b""
        )

    def take(self, event: Event) -> None:
        at = self._clock.at(event)
        if self._zero is None:
            self._zero, self._began = at, event.ts
        self._now = now = at - self._zero
        for span in self._spans.take(event, now):
            self._span(span)
        self._point(event, now)
        self._count(event, now)

    def finish(self, source: EventSource) -> None:
        for span in self._spans.finish(self._now + 1):
            self._span(span)
        other = {
            "session": self._session,
            "producer": f"musecode_jupyter {__version__}",
            "began": self._began,
            "events": source.count,
            "clock": "microseconds since the first event, rising with seq; none pass where the clock was set back",
            "clock_set_back": self._clock.setbacks[:100],
            "notes": source.notes,
        }
        self._out.write(b'\n],"otherData":' + canonical(other).encode("ascii") + b"}\n")

    def _put(self, record: Mapping[str, Any], before: bytes = b",") -> None:
        self._out.write(before + b"\n" + canonical(record).encode("ascii"))

    def _track(self, agent: str) -> int:
        name = agent or "harness"
        tid = self._tracks.get(name)
        if tid is None:
            tid = FIRST.get(name) or len(FIRST) + 1 + sum(each not in FIRST for each in self._tracks)
            self._tracks[name] = tid
            meta = {"ph": "M", "pid": PID, "tid": tid}
            self._put({**meta, "name": "thread_name", "args": {"name": name}})
            self._put({**meta, "name": "thread_sort_index", "args": {"sort_index": tid}})
        return tid

    def _span(self, span: Span) -> None:
        assert span.end is not None
        tid = self._track(span.agent)
        begin = span.begun if span.sort == "tool" else span.start
        common = {"pid": PID, "tid": tid, "cat": span.sort, "name": span.name}
        args = {"seq": span.seq, "text": span.text, "state": span.state, "result": span.result, **_args(span)}
        if span.closed_by is not None:
            args["closed_by"] = span.closed_by
        if span.sort in {"model", "tool"} and begin >= self._ends.get(tid, 0):
            self._ends[tid] = span.end
            if span.granted is not None:
                self._arrow("approval", span.granted, "approved", tid, begin)
            self._put({**common, "ph": "X", "ts": begin, "dur": span.end - begin, "args": args})
            return
        self._put({**common, "ph": "b", "id": f"0x{span.seq:x}", "ts": begin, "args": args})
        self._put({**common, "ph": "e", "id": f"0x{span.seq:x}", "ts": span.end})

    def _point(self, event: Event, now: int) -> None:
        if event.kind in _SILENT or event.kind in BEHIND:
            return
        tid = self._track("user" if event.kind == "approval.granted" else event.agent)
        summary = summarise(event)
        args = {"seq": event.seq, "text": summary["text"], "cause": list(event.cause)}
        common = {"pid": PID, "tid": tid, "ts": now, "cat": event.kind.partition(".")[0], "name": event.kind}
        if event.kind not in _POINTS:
            self._put({**common, "ph": "i", "s": "t", "args": args})
            return
        self._put({**common, "ph": "X", "dur": 1, "args": args})
        data = event.data
        if event.kind == "task.leased":
            self._from["task", data["task"]] = (tid, now)
        elif event.kind == "merge.enqueued":
            if data.get("task") is not None:
                self._arrow("task", data["task"], "handed in", tid, now)
            self._from["merge", event.seq] = (tid, now)
        elif event.kind == "approval.granted":
            self._from["approval", data["approval"]] = (tid, now)
        else:
            self._arrow("merge", data["merge"], event.kind, tid, now)

    def _arrow(self, sort: str, key: int, name: str, tid: int, now: int) -> None:
        """From where it was begun to here, once: an arrow has both ends or is not drawn."""
        begun = self._from.pop((sort, key), None)
        if begun is None:
            return
        self._arrows += 1
        common = {"pid": PID, "cat": "flow", "name": name, "id": self._arrows}
        self._put({**common, "ph": "s", "tid": begun[0], "ts": begun[1]})
        self._put({**common, "ph": "f", "bp": "e", "tid": tid, "ts": now})

    def _count(self, event: Event, now: int) -> None:
        data = event.data
        if event.kind in {"model.completed", "model.failed", "model.abandoned", "model.retried"}:
            usage = data.get("usage") or {}
            for name in ("input", "cached", "output"):
                self._totals[name] += usage.get(name, 0)
            self._totals["microusd"] += data.get("cost_microusd") or 0
            self._counter("money, USD", now, {"spent": in_usd(self._totals["microusd"])})
            tokens = {name: self._totals[name] for name in ("input", "cached", "output")}
            self._counter("tokens, sum", now, tokens)
        for name, sort in (("approvals waiting", "approval"), ("merges in the queue", "merge")):
            waiting = self._spans.open("approval" if sort == "approval" else "merge")
            if self._waiting.get(name, 0) != waiting:
                self._waiting[name] = waiting
                self._counter(name, now, {"count": waiting})

    def _counter(self, name: str, now: int, values: Mapping[str, float]) -> None:
        self._put({"ph": "C", "pid": PID, "tid": 0, "name": name, "ts": now, "args": dict(values)})


def _args(span: Span) -> dict[str, Any]:
    """What else there is to know of a span, flat."""
    both = {**span.opened, **span.closed}
    usage = both.pop("usage", None) or {}
    flat = {name: value for name, value in both.items() if isinstance(value, bool | int | float | str) and value != ""}
    return flat | {f"{name}_tokens": value for name, value in usage.items()}
