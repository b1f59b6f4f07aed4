"""The event: envelope, validation of its payload, and the exact bytes of its line in the journal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

SCHEMA_VERSION = 1
GENESIS = "0" * 32
# Larger appends were torn by SIGKILL far more often than small ones; what is larger goes to a blob.
MAX_RECORD_BYTES = 16_384
# Length of `,"h":"<32 digits>"}`.
SEAL_BYTES = 40


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A content-addressed blob: BLAKE2b-256 of its bytes as hexadecimal digits, and its size in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Event:
    """One record of the log, complete: fields of `data` that were spilled to blobs are already back in place.

    `seq` is the only order; `ts` (ISO 8601, UTC) is for display. `cause` holds the seqs of the events that
    led to it.
    """

    v: int
    seq: int
    ts: str
    gen: int
    b: int
    agent: str
    turn: int
    cause: tuple[int, ...]
    kind: str
    label: str
    data: Mapping[str, Any]
    blobs: Mapping[str, BlobRef] = field(default_factory=dict)
    h: str = ""


_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def canonical(value: Any) -> str:
    """Compact ASCII JSON; lone surrogates survive as escapes, NaN and infinities raise ValueError."""
    return _encode(value)


def chain(previous: str, body: bytes) -> str:
    """BLAKE2b-128 over the previous record's `h` and the bytes of this record before `,"h":`."""
    return blake2b(previous.encode("ascii") + body, digest_size=16).hexdigest()


def line_parts(event: Event, data: str) -> tuple[bytes, bytes]:
    """The bytes before and after the batch number; `data` is the canonical JSON of the event's data."""
    head = f'{{"v":{event.v},"seq":{event.seq},"ts":{_encode(event.ts)},"gen":{event.gen},"b":'
    blobs = ",".join(
        f'{_encode(name)}:{{"digest":{_encode(ref.digest)},"size":{ref.size}}}' for name, ref in event.blobs.items()
    )
    tail = (
        f',"agent":{_encode(event.agent)},"turn":{event.turn},"cause":[{",".join(map(str, event.cause))}]'
        f',"kind":{_encode(event.kind)},"label":{_encode(event.label)},"data":{data},"blobs":{{{blobs}}}'
    )
    return head.encode("ascii"), tail.encode("ascii")


def seal(previous: str, body: bytes) -> tuple[str, bytes]:
    """The `h` of a record, and its whole line."""
    h = chain(previous, body)
    return h, b'%b,"h":"%b"}\n' % (body, h.encode("ascii"))


def split_line(line: bytes) -> tuple[bytes, str] | None:
    """Body and `h` of a line without its newline; none if it does not end as a record does."""
    if line[-SEAL_BYTES:-34] != b',"h":"' or line[-2:] != b'"}':
        return None
    return line[:-SEAL_BYTES], line[-34:-2].decode("ascii", "replace")


def parse_line(line: bytes) -> Event:
    """The event of a line, spilled fields still in their blobs.

    Raises
    ------
    ValueError
        The line is not a record.
    """
    try:
        record = json.loads(line)
        refs = record["blobs"]
        return Event(
            record["v"],
            record["seq"],
            record["ts"],
            record["gen"],
            record["b"],
            record["agent"],
            record["turn"],
            tuple(record["cause"]),
            record["kind"],
            record["label"],
            record["data"],
            {name: BlobRef(ref["digest"], ref["size"]) for name, ref in refs.items()} if refs else {},
            record["h"],
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise ValueError(f"not a record: {problem!r}") from problem
