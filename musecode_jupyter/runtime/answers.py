"""Answers of the outside world as data: asked once, written down, and given again when a session is run again.

A function marked `answered` (what the floors above ask of git and of a repository's files) answers from the real world,
unless the code that asks stands inside `answering`: then whoever was given there is asked, who may note the answer down
or give the one that was noted down before.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import (
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from musecode_jupyter.runtime.errors import MuseError

P = ParamSpec("P")
T = TypeVar("T")


class Answers(Protocol):
    """Whoever is asked in place of the world, for one chain of work."""

    @property
    def chain(self) -> str:
        """Name of the chain: `goal` and its number, or a worker."""
        ...

    async def answer(
        self, question: str, arguments: dict[str, Any], work: Callable[[], Awaitable[T]], revive: Callable[[Any], T]
    ) -> T:
        """The answer to `question`, the name of a function, with its arguments as plain data.

        `work` asks the real world; `revive` makes a value out of plain data.
        """
        ...


@runtime_checkable
class Revived(Protocol):
    """A value that holds more than data, such as what reaches the world: says which part of it is data."""

    def plain(self) -> dict[str, Any]:
        """The part of it that is data."""
        ...

    def revived(self, data: Mapping[str, Any]) -> Any:
        """A value like this one out of such data."""
        ...


_DATA = (bool, int, float, str, bytes, PurePath, Mapping, AbstractSet, Sequence)

_asked: ContextVar[Answers | None] = ContextVar("answers", default=None)


def asked() -> Answers | None:
    """Who is asked in place of the world here, if anybody."""
    return _asked.get()


@contextlib.contextmanager
def answering(answers: Answers | None) -> Iterator[None]:
    """What is asked inside goes to `answers`, or with None to the real world without being noted down."""
    token = _asked.set(answers)
    try:
        yield
    finally:
        _asked.reset(token)


def answered(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Mark an async function whose answer is the world's, not the log's. What it asks in turn is a part of it."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    async def ask(*args: P.args, **kwargs: P.kwargs) -> T:
        answers = _asked.get()
        if answers is None:
            return await function(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        named = {name: plain(value) for name, value in given.items() if not _is_means(value)}

        async def work() -> T:
            with answering(None):
                return await function(*args, **kwargs)

        def revive(data: Any) -> T:
            found: T = revived(get_type_hints(function)["return"], data, tuple(given.values()))
            return found

        return await answers.answer(function.__qualname__, named, work, revive)

    return ask


def _is_means(value: object) -> bool:
    """Whether a value is a way to the world rather than a part of the question."""
    if isinstance(value, type):
        return True
    if isinstance(value, Revived):
        return False
    return callable(value) or not (value is None or isinstance(value, _DATA) or is_dataclass(value))


def plain(value: Any) -> Any:
    """A value as JSON holds it: bytes as base64, paths as text, sets sorted, dataclasses by field."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Revived):
        return value.plain()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return [[plain(key), plain(each)] for key, each in value.items()]
    if isinstance(value, AbstractSet):
        return sorted(plain(each) for each in value)
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    raise TypeError(f"a {type(value).__name__} is no answer that can be written down")


def revived(hint: Any, data: Any, means: Sequence[object] = ()) -> Any:
    """The value of type `hint` whose plain form is `data`; `means` may hold what reaches the world, for `Revived`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        if data is None:
            return None
        return revived(next(each for each in arguments if each is not types.NoneType), data, means)
    if data is None or hint is Any or origin is Literal:
        return data
    if origin in {list, set, frozenset} or (origin is tuple and arguments[1:] == (...,)):
        return origin(revived(arguments[0], each, means) for each in data)
    if origin is tuple:
        return tuple(revived(each, part, means) for each, part in zip(arguments, data, strict=True))
    if origin in {dict, Mapping}:
        return {revived(arguments[0], key, means): revived(arguments[1], each, means) for key, each in data}
    if hint is bytes:
        return base64.b64decode(data)
    if isinstance(hint, type) and issubclass(hint, PurePath):
        return hint(data)
    if isinstance(hint, type) and issubclass(hint, Revived):
        return next(hint.revived(each, data) for each in _models(hint, means))
    if is_dataclass(hint):
        types_of = get_type_hints(hint)
        made: Any = hint
        return made(**{name: revived(types_of[name], part, means) for name, part in data.items()})
    return data


def _models(hint: type, means: Sequence[object]) -> Iterator[Any]:
    """What a revived value can be made like."""
    for each in means:
        if isinstance(each, hint) or _is_means(each):
            yield each


def plain_error(error: MuseError | OSError) -> dict[str, Any]:
    """An error as data."""
    if isinstance(error, OSError):
        return {"kind": "OSError", "text": str(error), "fields": {"errno": error.errno, "strerror": error.strerror}}
    return {"kind": type(error).__name__, "text": str(error), "fields": {k: plain(v) for k, v in vars(error).items()}}


def revived_error(data: Mapping[str, Any]) -> MuseError | OSError:
    """The error that `data` tells of, of the same class with the same text and fields."""
    if data["kind"] == "OSError":
        return OSError(data["fields"]["errno"], data["fields"]["strerror"])
    kind = next((each for each in _below(MuseError) if each.__name__ == data["kind"]), MuseError)
    error = kind.__new__(kind)
    Exception.__init__(error, data["text"])
    for name, value in data["fields"].items():
        setattr(error, name, tuple(value) if isinstance(value, list) and name == "args_run" else value)
    return error


def _below(kind: type[MuseError]) -> Iterator[type[MuseError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _below(each)
