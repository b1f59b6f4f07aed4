"""From a payload to the draft of its record and back: validation, redaction, large fields to blobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from musecode_jupyter.log.blobs import BlobStore, digest_of
from musecode_jupyter.log.events import (
    MAX_RECORD_BYTES,
    SCHEMA_VERSION,
    SEAL_BYTES,
    BlobRef,
    Event,
    canonical,
    line_parts,
    parse_json,
)
from musecode_jupyter.log.journal import Draft
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.log.payload import Payload
from musecode_jupyter.log.redaction import Redactor
from musecode_jupyter.log.upcast import upcast
from musecode_jupyter.runtime.errors import LogError

SPILLED = "data."


def checked(kind: str, data: Payload | Mapping[str, Any]) -> dict[str, Any]:
    """The data of an event of `kind` as plain Python values.

    Raises
    ------
    LogError
        The kind is unknown or the data is not of that kind.
    """
    model = KINDS.get(kind)
    if model is None:
        raise LogError(f"there is no event of kind {kind!r}; add it to musecode_jupyter.log.kinds")
    if not isinstance(data, Payload):
        try:
            # The same as model_validate and model_dump, whose options cost as much as the work itself.
            data = model.__pydantic_validator__.validate_python(data if type(data) is dict else dict(data))
        except ValidationError as problem:
            first = problem.errors(include_url=False)[0]
            where = ".".join(str(each) for each in first["loc"])
            raise LogError(f"bad data for {kind}, field {where!r}: {first['msg']}") from None
    elif type(data) is not model:
        raise LogError(f"bad data for {kind}: a {type(data).__name__} instead of a {model.__name__}")
    plain: dict[str, Any] = model.__pydantic_serializer__.to_python(data)
    return plain


@cache
def _is_plain(kind: str) -> bool:
    """Whether validated data of `kind` can hold nothing but what JSON gives back as it was: no field takes anything."""
    return _plain_type(KINDS[kind])


def _plain_type(annotation: Any) -> bool:
    if annotation in (str, int, float, bool, type(None)):
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return all(_plain_type(field.annotation) for field in annotation.model_fields.values())
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return all(type(each) is str for each in arguments)
    if origin is dict:
        return arguments[0] is str and _plain_type(arguments[1])
    # Lists and unions.
    return origin is not tuple and bool(arguments) and all(map(_plain_type, arguments))


def redacted(redactor: Redactor, kind: str, data: dict[str, Any]) -> tuple[str, dict[str, Any], list[str]]:
    """Canonical JSON of the data without secrets, what a reader of it sees, and the patterns hit."""
    hits: list[str] = []
    clean = data
    try:
        text = canonical(data)
        if redactor.suspects(text):
            clean, hits = redactor.value(data)
            text = canonical(clean)
    except (ValueError, TypeError, RecursionError) as problem:
        raise LogError(f"the data of {kind} cannot be written as JSON: {problem}") from None
    # What is folded now must be what a restart folds: no tuples, only strings as keys, nothing shared.
    return text, clean if _is_plain(kind) else parse_json(text), hits


def draft(event: Event, text: str, blobs: Mapping[str, bytes]) -> tuple[Event, Draft]:
    """The record of `event`, whose data has the canonical JSON `text`, and the event with all blobs named.

    Raises
    ------
    LogError
        The record stays too large whatever is spilled, or a name of a blob is reserved.
    """
    if blobs:
        if reserved := [name for name in blobs if name.startswith(SPILLED)]:
            raise LogError(f"names of blobs that start with {SPILLED!r} are reserved: {', '.join(reserved)}")
        event = replace(event, blobs={name: digest_of(content) for name, content in blobs.items()})
    head, tail = line_parts(event, text)
    contents = list(blobs.values())
    # A batch number is never larger than the number of the event, so it never has more digits.
    limit = MAX_RECORD_BYTES - SEAL_BYTES - 1 - len(str(event.seq))
    if len(head) + len(tail) > limit:
        kept = dict(event.data)
        refs = dict(event.blobs)
        fields = {name: canonical(value).encode("ascii") for name, value in kept.items()}
        for name in sorted(fields, key=lambda name: (-len(fields[name]), name)):
            ref = digest_of(fields[name])
            kept[name] = None
            refs[SPILLED + name] = ref
            contents.append(fields[name])
            event = replace(event, blobs=refs)
            head, tail = line_parts(event, canonical(kept))
            if len(head) + len(tail) <= limit:
                break
        else:
            raise LogError(
                f"the record of {event.kind} would have {len(head) + len(tail)} bytes, {len(refs)} blobs, "
                f"at most {limit} fit; write fewer blobs or causes with one event"
            )
    return event, Draft(event.seq, head, tail, tuple(contents))


def spilled(event: Event) -> dict[str, BlobRef]:
    """Blobs that hold fields of the event's data, by field."""
    return {
        name[len(SPILLED) :]: ref
        for name, ref in event.blobs.items()
        if name.startswith(SPILLED) and event.data.get(name[len(SPILLED) :], ...) is None
    }


def hydrated(event: Event, blobs: BlobStore) -> Event:
    """The event with its spilled fields back in place, its data in today's form.

    Raises
    ------
    LogError
        One of the blobs is missing or damaged.
    """
    if not event.blobs or not (fields := spilled(event)):
        return event if event.v >= SCHEMA_VERSION else upcast(event)
    data = dict(event.data)
    for name, ref in fields.items():
        try:
            data[name] = parse_json(blobs.get(ref.digest))
        except ValueError:
            raise LogError(f"blob {ref.digest} is not the JSON of field {name!r} of event {event.seq}") from None
    return upcast(replace(event, data=data))
