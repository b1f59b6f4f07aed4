"""The event: envelope, validation of its payload, and the exact bytes of its line in the journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]
from typing import Any, Final

from pydantic_core import from_json

SCHEMA_VERSION = 4
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


@dataclass(slots=True)
class Event:
    """One record of the log, complete: fields of `data` that were spilled to blobs are already back in place.

    `v` is the version of the schema that it was written in; its `data` is in today's form (see `log/upcast.py`).
    `seq` is the only order; `ts` (ISO 8601, UTC) is for display. `cause` holds the seqs of the events that led to it.

    Nothing of it is ever changed. mypy sees to that: `frozen` would make the making of one six times as dear, and a
    long session is opened by making hundreds of thousands.
    """

    v: Final[int]
    seq: Final[int]
    ts: Final[str]
    gen: Final[int]
    b: Final[int]
    agent: Final[str]
    turn: Final[int]
    cause: Final[tuple[int, ...]]
    kind: Final[str]
    label: Final[str]
    data: Final[Mapping[str, Any]]
    blobs: Final[Mapping[str, BlobRef]] = field(default_factory=dict)
    h: Final[str] = ""


def canonical_encoder(default: Callable[[Any], Any], *, sort_keys: bool = False) -> Callable[[Any], str]:
    """A function from a value to its compact ASCII JSON, which hands to `default` what JSON does not know.

    The same as `json.dumps`, without the making of an encoder for each value.
    """
    if c_make_encoder is None:
        return json.JSONEncoder(
            ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=default, sort_keys=sort_keys
        ).encode
    # Without a dictionary of markers a value that holds itself ends in a RecursionError instead of a ValueError.
    encode = c_make_encoder(None, default, encode_basestring_ascii, None, ":", ",", sort_keys, False, False)
    return lambda value: "".join(encode(value, 0))


def _refuse(value: Any) -> Any:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


canonical = canonical_encoder(_refuse)
"""Compact ASCII JSON of a value; lone surrogates survive as escapes, NaN and infinities raise ValueError."""


def parse_json(text: str | bytes) -> Any:
    """What `json.loads` gives, in a third of the time.

    Raises
    ------
    ValueError
        It is not JSON.
    """
    try:
        return from_json(text)
    except ValueError:
        # Lone surrogates and very deep values are read by the standard library only.
        return json.loads(text)


def _record_of(line: bytes) -> Any:
    try:
        # Names of fields are said again and again, texts seldom: to remember those too costs more than it saves.
        return from_json(line, cache_strings="keys")
    except ValueError:
        return parse_json(line)


def chain(previous: str, body: bytes) -> str:
    """BLAKE2b-128 over the previous record's `h` and the bytes of this record before `,"h":`."""
    return blake2b(previous.encode("ascii") + body, digest_size=16).hexdigest()


def line_parts(event: Event, data: str) -> tuple[bytes, bytes]:
    """The bytes before and after the batch number; `data` is the canonical JSON of the event's data."""
    quoted = encode_basestring_ascii
    head = f'{{"v":{event.v},"seq":{event.seq},"ts":{quoted(event.ts)},"gen":{event.gen},"b":'
    blobs = ",".join(
        f'{quoted(name)}:{{"digest":{quoted(ref.digest)},"size":{ref.size}}}' for name, ref in event.blobs.items()
    )
    tail = (
        f',"agent":{quoted(event.agent)},"turn":{event.turn},"cause":[{",".join(map(str, event.cause))}]'
        f',"kind":{quoted(event.kind)},"label":{quoted(event.label)},"data":{data},"blobs":{{{blobs}}}'
    )
    return head.encode("ascii"), tail.encode("ascii")


def seal(previous: str, body: bytes) -> tuple[str, bytes]:
    """The `h` of a record, and its whole line."""
    h = chain(previous, body)
    return h, b'%b,"h":"%b"}\n' % (body, h.encode("ascii"))


def split_line(line: bytes) -> tuple[bytes, str] | None:
    """Body and `h` of a line without its newline; none if it does not end as a record does."""
    if line[-SEAL_BYTES:-34] != b',"h":"' or not line.endswith(b'"}'):
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
        record = _record_of(line)
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
