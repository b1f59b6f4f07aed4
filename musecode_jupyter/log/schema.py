"""Describes each kind of event and its fields in Markdown: `python -m musecode_jupyter.log.schema FILE`."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from musecode_jupyter.log.events import MAX_RECORD_BYTES, SCHEMA_VERSION
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.log.payload import Check, Payload

_HEAD = f"""# Events

Generated from `musecode_jupyter/log/kinds.py` by `python -m musecode_jupyter.log.schema docs/events.md`.
Schema version {SCHEMA_VERSION}.

A line of the journal is one JSON object with these fields, in this order:

| Field | Type | Meaning |
|---|---|---|
| `v` | integer | schema version |
| `seq` | integer | number of the event, from 1 without a gap; the only order |
| `ts` | string | UTC time, for display only |
| `gen` | integer | counts the times that the session was opened for writing |
| `b` | integer | batch: records with one number were written and synced together |
| `agent` | string | agent that the event belongs to, or empty |
| `turn` | integer | turn of that agent |
| `cause` | list of integers | `seq`s of the events that led to this one |
| `kind` | string | one of the kinds below |
| `label` | string | data tier |
| `data` | object | fields of the kind |
| `blobs` | object | by name: `digest` (BLAKE2b-256) and `size` in bytes of a file under `blobs/` |
| `h` | string | BLAKE2b-128 over the `h` before this one and the bytes of this line before `,"h":` |

A record has at most {MAX_RECORD_BYTES} bytes. A field of `data` that would make it larger is null in the
line, and its JSON is in the blob called `data.` and the name of the field.
"""


def describe_kinds() -> str:
    """Markdown of the envelope, and of every kind with its fields."""
    parts = [_HEAD]
    group = ""
    for kind, model in KINDS.items():
        if (name := kind.partition(".")[0]) != group:
            group = name
            parts.append(f"## {group}\n")
        parts.append(f"### `{kind}`\n\n{_summary(model)}\n\n{_table(model)}")
    parts.append(f"## Parts of events\n\n### Check\n\n{_summary(Check)}\n\n{_table(Check)}")
    return "\n".join(parts)


def _summary(model: type[Payload]) -> str:
    return " ".join((model.__doc__ or "").split())


def _table(model: type[Payload]) -> str:
    rows = ["| Field | Type | Default | Meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{name}` | {_type(field.annotation)} | {_default(field)} | {field.description or ''} |"
        for name, field in model.model_fields.items()
    ]
    return "\n".join(rows) + "\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined or value is None:
        return "none"
    return f"`{value!r}`"


def _type(annotation: Any) -> str:
    """Words for a type, the same in every version of Python."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return "none"
    if annotation is Any:
        return "anything"
    if origin in {Union, types.UnionType}:
        return " or ".join(map(_type, arguments))
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"object of {_type(arguments[1])}"
    plain = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return plain.get(annotation) or f"{annotation.__name__}"


if __name__ == "__main__":
    if len(sys.argv) == 2:
        Path(sys.argv[1]).write_text(describe_kinds(), encoding="utf-8")
    else:
        sys.stdout.write(describe_kinds())
