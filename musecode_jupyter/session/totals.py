"""The header of the timeline: what all events so far come to; a fold over summaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from musecode_jupyter.guard.settlement import ENDS, PAID
from musecode_jupyter.runtime.money import in_usd

_TOOL_END = {"tool.finished", "tool.failed", "tool.cancelled", "tool.unknown"}
_APPROVAL_END = {"approval.granted", "approval.denied", "approval.expired"}
_NO_AGENTS = {"", "user", "harness"}


class Totals:
    """Counts, tokens (as counted by the servers), money (USD) and the state of the latest goal.

    Parameters
    ----------
    summaries
        Results of `summarise`, in order of seq.
    """

    def __init__(self, summaries: Iterable[Mapping[str, Any]] = ()) -> None:
        self.last = 0
        self._agents: set[str] = set()
        self._open: set[int] = set()
        self._pending: set[int] = set()
        self._counts = dict.fromkeys(("events", "model_calls", "tool_runs", "errors"), 0)
        self._tokens = dict.fromkeys(("input", "cached", "output"), 0)
        self._microusd = 0
        self._estimated = False
        self._goal: dict[str, Any] | None = None
        for summary in summaries:
            self.add(summary)

    def add(self, summary: Mapping[str, Any]) -> None:
        """Take the next event; one that was taken already is ignored."""
        seq, kind, data = summary["seq"], summary["kind"], summary["data"]
        if seq <= self.last:
            return
        self.last = seq
        self._counts["events"] += 1
        self._counts["errors"] += summary["ok"] is False
        if summary["agent"] not in _NO_AGENTS:
            self._agents.add(summary["agent"])
        if kind in {"model.requested", "tool.requested"}:
            self._open.add(seq)
            self._counts["model_calls" if kind == "model.requested" else "tool_runs"] += 1
        elif kind in ENDS or kind in _TOOL_END:
            self._open.discard(summary["ref"])
            self._settle(kind, data)
        elif kind in PAID:
            self._settle(kind, data)
        elif kind == "approval.requested":
            self._pending.add(seq)
        elif kind in _APPROVAL_END:
            self._pending.discard(summary["ref"])
        elif kind == "session.closed":
            self._open.clear()
            self._pending.clear()
        elif kind.startswith("goal."):
            self._judge(seq, kind, summary)

    def header(self) -> dict[str, Any]:
        """The header as the views get it; see `Header` in labextension/src/protocol.ts."""
        return {
            **self._counts,
            "agents": len(self._agents),
            "running": len(self._open),
            "pending": len(self._pending),
            "input_tokens": self._tokens["input"],
            "cached_tokens": self._tokens["cached"],
            "output_tokens": self._tokens["output"],
            "usd": in_usd(self._microusd),
            "estimated": self._estimated,
            "goal": dict(self._goal) if self._goal else None,
        }

    def _settle(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind not in PAID:
            return
        for name in self._tokens:
            self._tokens[name] += (data.get("usage") or {}).get(name, 0)
        self._microusd += data.get("cost_microusd", 0)
        # What came to no proper end, and may be charged for all the same, is an estimate.
        self._estimated |= bool(data.get("estimated")) or (
            kind != "model.completed" and data.get("cost_microusd", 0) > 0
        )

    def _judge(self, seq: int, kind: str, summary: Mapping[str, Any]) -> None:
        data = summary["data"]
        if kind == "goal.set":
            self._goal = {"seq": seq, "text": data.get("text", ""), "state": "running", "why": ""}
        elif self._goal is None or summary["ref"] != self._goal["seq"]:
            return
        elif kind == "goal.paused":
            self._goal.update(state="paused", why=data.get("why", ""))
        elif kind == "goal.resumed":
            self._goal.update(state="running", why="")
        elif kind == "goal.met":
            self._goal.update(state="met", why="")
        elif kind == "goal.stopped":
            self._goal.update(state=data.get("state", "stopped"), why=data.get("why", ""))
