"""Events as lines of text, for tables and for following a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Summary = Mapping[str, Any]

# Wide enough for nearly all, for lines that are written before the others are known.
_SEQ, _AGENT, _KIND = 5, 9, 18
# Names of agents are cut here.
_MOST = 16


def events_table(summaries: Sequence[Summary]) -> str:
    """Seq, time (UTC), agent, kind and text, a line per event; a failure is marked with `!`."""
    if not summaries:
        return "No events."
    seq = max(len(str(s["seq"])) for s in summaries)
    agent = min(max(len(_agent(s)) for s in summaries), _MOST)
    kind = max(len(s["kind"]) for s in summaries)
    return "\n".join(event_line(s, seq, agent, kind) for s in summaries)


def event_line(s: Summary, seq: int = _SEQ, agent: int = _AGENT, kind: int = _KIND) -> str:
    """One line of the table, its columns at least so many characters wide."""
    name = _agent(s)[:_MOST]
    mark = "!" if s["ok"] is False else " "
    return f"{s['seq']:>{seq}}  {clock(s['ts'])}  {name:<{agent}}  {mark} {s['kind']:<{kind}}  {s['text']}".rstrip()


def clock(ts: str) -> str:
    """The time of day of an event's time."""
    return ts[11:19]


def _agent(s: Summary) -> str:
    return str(s["agent"] or "harness")
