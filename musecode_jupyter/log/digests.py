"""Digests of the folded state: canonical text whose cost follows what changed, and the shape that it has."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from operator import is_
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from musecode_jupyter.log.events import canonical_encoder

# From so many entries on a list or mapping of plain values is remembered from digest to digest.
_LONG = 64
_PLAIN = frozenset({int, str, float, bool, type(None)})


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.__dict__
    if isinstance(value, set | frozenset):
        return sorted(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"a state may hold what JSON holds, models, dataclasses and sets, not {type(value).__name__}")


_encode = canonical_encoder(_plain, sort_keys=True)
state_json = canonical_encoder(_plain)
"""JSON of a slice of the state, as digests are taken of, with the entries of mappings in their own order."""


class SliceText:
    """The canonical JSON of one slice of the state: sorted keys, sets as sorted lists, ASCII.

    What only grows at its end (the conversation of an agent, the ids of its calls) is encoded once: the entries of
    the last time are recognised by being the same objects, which are immutable.
    """

    def __init__(self) -> None:
        self._lists: dict[str, tuple[list[Any], str]] = {}
        self._dicts: dict[str, tuple[list[Any], list[Any], str]] = {}

    def of(self, state: BaseModel) -> str:
        """The text of `state` as it is now."""
        return self._text(state, "")

    def _text(self, value: Any, path: str) -> str:
        if isinstance(value, BaseModel):
            held = value.__dict__
            if not any(_nests(each) for each in held.values()):
                return _encode(held)
            return _joined((_encode(name), self._text(held[name], f"{path}.{name}")) for name in sorted(held))
        if type(value) is list and len(value) >= _LONG and type(value[0]) in _PLAIN:
            return self._list(value, path)
        if type(value) is dict and _nests(value):
            if type(next(iter(value.values()))) in _PLAIN:
                return self._dict(value, path)
            # The keys as the encoder writes them, which may be numbers.
            return _joined((_encode({key: 0})[1:-3], self._text(value[key], f"{path}.{key}")) for key in sorted(value))
        return _encode(value)

    def _list(self, value: list[Any], path: str) -> str:
        old, text = self._lists.get(path, ([], "[]"))
        begin = len(old) if len(value) >= len(old) and all(map(is_, value, old)) else 0
        added = value[begin:]
        if added or begin != len(old):
            text = _continued(text if begin else "[]", _encode(added))
            if _immutable(added):
                self._lists[path] = (value.copy(), text)
            else:
                self._lists.pop(path, None)
        return text

    def _dict(self, value: dict[Any, Any], path: str) -> str:
        old_keys, old_values, text = self._dicts.get(path, ([], [], "{}"))
        keys, values = list(value), list(value.values())
        begin = len(old_keys)
        if len(keys) < begin or not (all(map(is_, keys, old_keys)) and all(map(is_, values, old_values))):
            begin = 0
        if begin and begin < len(keys) and not old_keys[-1] < min(keys[begin:]):
            begin = 0
        if begin < len(keys) or begin != len(old_keys):
            added = dict(zip(keys[begin:], values[begin:], strict=True))
            text = _continued(text if begin else "{}", _encode(added))
            # What is added next can only stand at the end if these are in order.
            if _immutable(values[begin:]) and _ascending(keys[begin:]):
                self._dicts[path] = (keys, values, text)
            else:
                self._dicts.pop(path, None)
        return text


def _nests(value: Any) -> bool:
    """Whether it may hold something long, or is long itself."""
    if type(value) is dict:
        return len(value) >= _LONG or any(isinstance(each, BaseModel) for each in value.values())
    return isinstance(value, BaseModel) or (type(value) is list and len(value) >= _LONG)


def _immutable(values: Sequence[Any]) -> bool:
    return set(map(type, values)) <= _PLAIN


def _ascending(keys: Sequence[Any]) -> bool:
    return all(one < other for one, other in pairwise(keys))


def _joined(parts: Any) -> str:
    return "{" + ",".join(f"{name}:{text}" for name, text in parts) + "}"


def _continued(text: str, more: str) -> str:
    """The JSON of a list or object, and that of what follows in it, as one."""
    if len(more) == 2:
        return text
    return more if len(text) == 2 else f"{text[:-1]},{more[1:]}"


def digest_of_text(text: str) -> str:
    """BLAKE2b-128 of a canonical text."""
    return blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def shape(state: type[BaseModel]) -> str:
    """An id of the form that the canonical JSON of `state` has: names and types of its fields, at every depth.

    Two versions of a reducer whose states have one shape must fold the same events to the same state. Names of
    classes, texts, defaults and the allowed values of a string are no part of it.
    """
    return _shape(state)


@cache
def _shape(state: type[BaseModel]) -> str:
    return blake2b(_form(state, ()).encode("utf-8"), digest_size=8).hexdigest()


def _form(annotation: Any, inside: tuple[Any, ...]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in inside:
        return f"^{len(inside) - inside.index(annotation)}"
    if isinstance(annotation, type) and not origin and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        if issubclass(annotation, BaseModel):
            types_by_name = {name: field.annotation for name, field in annotation.model_fields.items()}
        else:
            hints = get_type_hints(annotation)
            types_by_name = {field.name: hints[field.name] for field in fields(annotation)}
        forms = (f"{name}:{_form(each, (*inside, annotation))}" for name, each in sorted(types_by_name.items()))
        return "{" + ",".join(forms) + "}"
    if annotation is type(None):
        return "none"
    if annotation is Any:
        return "any"
    if annotation is ...:
        return "..."
    if origin is Literal:
        return "|".join(sorted({type(each).__name__ for each in arguments}))
    if origin in {Union, types.UnionType}:
        return "|".join(sorted({_form(each, inside) for each in arguments}))
    if origin is not None:
        return f"{origin.__name__}[{','.join(_form(each, inside) for each in arguments)}]"
    if annotation in _PLAIN:
        return str(annotation.__name__)
    raise TypeError(f"{annotation!r} has no form that can be compared; use what JSON holds, models or dataclasses")
