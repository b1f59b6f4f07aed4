"""Export as JSON lines: one event a line, complete, spilled fields back in place."""

from __future__ import annotations

from typing import BinaryIO

from musecode_jupyter.log.events import Event, canonical
from musecode_jupyter.log.record import SPILLED
from musecode_jupyter.session.export.source import EventSource


def write(source: EventSource, out: BinaryIO) -> None:
    """One line per event, fields as in the journal (docs/events.md).

    `blobs` lacks those that held fields of `data`, and `h` is the hash of the journal's line, by which the two can be
    matched: it does not cover the line of the export.
    """
    for event in source.events():
        out.write(canonical(as_json(event)).encode("ascii") + b"\n")


def as_json(event: Event) -> dict[str, object]:
    """All of an event as JSON values, in the order of the journal."""
    line: dict[str, object] = {
        "v": event.v,
        "seq": event.seq,
        "ts": event.ts,
        "gen": event.gen,
        "b": event.b,
        "agent": event.agent,
        "turn": event.turn,
        "cause": list(event.cause),
        "kind": event.kind,
        "label": event.label,
        "data": dict(event.data),
        "blobs": {
            name: {"digest": ref.digest, "size": ref.size}
            for name, ref in event.blobs.items()
            if not name.startswith(SPILLED) or event.data.get(name.removeprefix(SPILLED)) is None
        },
    }
    if event.h:
        line["h"] = event.h
    return line
