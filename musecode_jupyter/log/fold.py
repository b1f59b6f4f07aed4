"""State is a fold of the events: reducers own one slice each, and a digest says whether two folds agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from json import dumps
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import LogError

State = TypeVar("State", bound=BaseModel)


class Reducer(Protocol[State]):
    """The owner of one slice of the state.

    `apply` is a pure function of the slice and the event: no clock, environment, randomness or set order, and
    the event's data is not changed. It must ignore kinds that it does not know. A reducer whose slice comes
    out differently from the same events than in a released version takes a new `name`, so that digests of
    older logs are not compared with it.
    """

    @property
    def name(self) -> str:
        """Name of the slice, unique among the reducers of a fold."""
        ...

    def initial(self) -> State:
        """The slice before the first event."""
        ...

    def apply(self, state: State, event: Event) -> None:
        """Change `state` in place by one event."""
        ...


class Fold:
    """All slices, kept up to date by `apply`."""

    def __init__(self, reducers: Iterable[Reducer[Any]]) -> None:
        self._reducers = tuple(sorted(reducers, key=lambda reducer: reducer.name))
        self._states: dict[str, BaseModel] = {each.name: each.initial() for each in self._reducers}
        if len(self._states) != len(self._reducers):
            raise ValueError(f"two reducers share a name: {[each.name for each in self._reducers]}")
        self._steps = [(each.apply, self._states[each.name]) for each in self._reducers]

    def apply(self, event: Event) -> None:
        """Bring every slice up to `event`."""
        for apply, state in self._steps:
            apply(state, event)

    def state(self, name: str) -> BaseModel:
        """The slice of the reducer called `name`; the live object, not to be changed by the caller.

        Raises
        ------
        LogError
            No reducer has that name.
        """
        try:
            return self._states[name]
        except KeyError:
            raise LogError(f"no part of the state is called {name!r}; there are: {', '.join(self._states)}") from None

    def digest(self) -> str:
        """BLAKE2b-128 of the canonical JSON (sorted keys) of all slices by name."""
        return self.digests()[0]

    def digests(self) -> tuple[str, dict[str, str]]:
        """`digest()`, and the digest of each slice alone, by name."""
        texts = {name: canonical_state(state) for name, state in self._states.items()}
        whole = "{" + ",".join(f"{dumps(name)}:{text}" for name, text in texts.items()) + "}"
        return _digest(whole), {name: _digest(text) for name, text in texts.items()}

    def differences(self, recorded: str, slices: Mapping[str, str]) -> list[str]:
        """Names of the slices that differ from a recorded digest; `state` stands for the whole.

        Slices that only one of the two has are not compared: they belong to another version of the program.
        """
        whole, mine = self.digests()
        if recorded == whole:
            return []
        differing = [name for name in mine if slices.get(name, mine[name]) != mine[name]]
        return differing or (["state"] if set(slices) == set(mine) else [])


def canonical_state(state: BaseModel) -> str:
    """Canonical JSON of one slice: sorted keys, sets as sorted lists."""
    return dumps(
        state.model_dump(),
        sort_keys=True,
        ensure_ascii=True,
        allow_nan=False,
        separators=(",", ":"),
        default=_plain,
    )


def _plain(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a state may hold what JSON holds and sets, not {type(value).__name__}")


def _digest(text: str) -> str:
    return blake2b(text.encode("ascii"), digest_size=16).hexdigest()
