"""State is a fold of the events: reducers own one slice each, and a digest says whether two folds agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import BaseModel

from musecode_jupyter.log.digests import SliceText, digest_of_text, shape, state_json
from musecode_jupyter.log.events import Event, canonical
from musecode_jupyter.runtime.errors import LogError

State = TypeVar("State", bound=BaseModel)


class Slice(BaseModel):
    """A base for models of the state that change often: setting a field is as cheap as that of any object.

    The state is made of events, whose data was validated; a model of pydantic validates no assignment either, but takes
    ten times as long for one.
    """

    if not TYPE_CHECKING:
        __setattr__ = object.__setattr__


class Reducer(Protocol[State]):
    """The owner of one slice of the state.

    `apply` is a pure function of the slice and the event: no clock, environment, randomness or set order, and
    the event's data is not changed. It must ignore kinds that it does not know. Digests are compared between versions
    of the program by `name` and shape (see `digests.shape`): a change of the state's fields is noticed as another
    shape. A reducer whose slice comes out differently from the same events than in a released version, in the same
    shape, takes a new `name`, so that digests of older logs are not compared with it.

    A reducer may have `kinds`, a set of the kinds of events that can change its slice: `apply` is called for them only.
    If all events concern it in some way, it may have `glance` besides, which is called for each, before `apply`.
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


def _steps(reducer: Reducer[Any], kind: str) -> list[Callable[[Any, Event], None]]:
    """What is done of `reducer` for an event of `kind`."""
    kinds = getattr(reducer, "kinds", None)
    glance = [reducer.glance] if hasattr(reducer, "glance") else []
    return [*glance, reducer.apply] if kinds is None or kind in kinds else glance


@dataclass(frozen=True, slots=True)
class Comparison:
    """Names of slices that differ from a recorded digest (`state`: the whole), and of those not compared.

    The latter were recorded by another version of the program: its slice had another shape, or it had none of that
    name, or this version has none.
    """

    differing: tuple[str, ...]
    skipped: tuple[str, ...]


class Fold:
    """All slices, kept up to date by `apply`."""

    def __init__(self, reducers: Iterable[Reducer[Any]]) -> None:
        self._reducers = tuple(sorted(reducers, key=lambda reducer: reducer.name))
        self._states: dict[str, BaseModel] = {each.name: each.initial() for each in self._reducers}
        if len(self._states) != len(self._reducers):
            raise ValueError(f"two reducers share a name: {[each.name for each in self._reducers]}")
        self._texts = {name: SliceText() for name in self._states}
        self._steps: dict[str, list[tuple[Callable[[Any, Event], None], BaseModel]]] = {}

    def apply(self, event: Event) -> None:
        """Bring every slice up to `event`."""
        steps = self._steps.get(event.kind)
        if steps is None:
            steps = self._steps[event.kind] = [
                (step, self._states[each.name]) for each in self._reducers for step in _steps(each, event.kind)
            ]
        for apply, state in steps:
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
        texts = {name: self._texts[name].of(state) for name, state in self._states.items()}
        whole = "{" + ",".join(f"{canonical(name)}:{text}" for name, text in texts.items()) + "}"
        return digest_of_text(whole), {name: digest_of_text(text) for name, text in texts.items()}

    def states_text(self) -> str:
        """JSON of all slices by name, from which `restore` makes them again."""
        return state_json(self._states)

    def restore(self, states: Mapping[str, Any]) -> None:
        """Put slices in place as `states_text` told them, all of them; whether they are right, their digest says.

        Raises
        ------
        ValueError
            What is given is not of the form of these slices; nothing was changed.
        """
        if states.keys() != self._states.keys():
            raise ValueError(f"slices {sorted(states)} instead of {sorted(self._states)}")
        self._states = {name: type(state).model_validate(states[name]) for name, state in self._states.items()}
        self._texts = {name: SliceText() for name in self._states}
        self._steps = {}

    def shapes(self) -> dict[str, str]:
        """The id of the form of each slice, by name (see `digests.shape`)."""
        return {name: shape(type(state)) for name, state in self._states.items()}

    def compare(self, recorded: Mapping[str, Any]) -> Comparison:
        """Compare the slices with the data of a state.digest event.

        A slice is compared if the event names the shape that it has here, or none.
        """
        whole, mine = self.digests()
        if recorded["digest"] == whole:
            return Comparison((), ())
        slices: Mapping[str, str] = recorded.get("slices", {})
        shapes: Mapping[str, str] = recorded.get("shapes", {})
        own = self.shapes()
        both = [name for name in mine if name in slices and shapes.get(name, own[name]) == own[name]]
        differing = [name for name in both if slices[name] != mine[name]]
        skipped = sorted({*slices, *mine} - set(both))
        if not differing and not skipped:
            differing = ["state"]
        return Comparison(tuple(differing), tuple(skipped))
