"""Digests of the state: the text that is put together equals the text made at once; shapes tell versions apart."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from journal_samples import CountReducer, TalkReducer, create, message, reducers, reopen, ticking
from pydantic import BaseModel, Field, create_model

from musecode_jupyter.log import Event, EventLog, Fold, Redactor, verify
from musecode_jupyter.log.digests import _LONG, SliceText, shape
from musecode_jupyter.runtime.errors import LogDamaged


@dataclass(frozen=True)
class Pair:
    one: tuple[str, ...]
    other: int


class Leaf(BaseModel):
    name: str = ""
    seqs: list[int] = Field(default_factory=list)
    parts: list[Any] = Field(default_factory=list)
    pair: Pair = Pair((), 0)


class Tree(BaseModel):
    seqs: list[Any] = Field(default_factory=list)
    ids: dict[int, Any] = Field(default_factory=dict)
    seen: dict[str, Any] = Field(default_factory=dict)
    leaves: dict[str, Leaf] = Field(default_factory=dict)
    numbered: dict[int, Leaf] = Field(default_factory=dict)
    names: set[str] = Field(default_factory=set)
    one: Leaf = Field(default_factory=Leaf)
    cost: float = 0.0


def at_once(state: BaseModel) -> str:
    """The canonical JSON by its definition."""

    def plain(value: object) -> object:
        assert isinstance(value, set)
        return sorted(value)

    return json.dumps(state.model_dump(), sort_keys=True, allow_nan=False, separators=(",", ":"), default=plain)


atoms = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, -0.0, 1.0, 2.5]) | st.text(max_size=3)


class Changes(RuleBasedStateMachine):
    """Whatever a reducer does to a state between two digests, the text is that of the state as it is."""

    @initialize(n=st.sampled_from([0, _LONG - 1, _LONG, 3 * _LONG]))
    def begin(self, n: int) -> None:
        self.texts = SliceText()
        leaves = {name: Leaf(seqs=list(range(n))) for name in ("a", "b")}
        self.state = Tree(seqs=list(range(n)), ids={k: str(k) for k in range(n)}, leaves=leaves)
        self.state.seen = {f"p{k}": "d" for k in range(n)}

    @rule(values=st.lists(atoms, max_size=4))
    def append(self, values: list[Any]) -> None:
        self.state.seqs += values
        self.state.leaves["a"].seqs.append(len(self.state.seqs))

    @rule(at=st.integers(0, 400), value=atoms)
    def replace(self, at: int, value: Any) -> None:
        if at < len(self.state.seqs):
            self.state.seqs[at] = value

    @rule(at=st.integers(0, 400))
    def swap_for_an_equal_of_another_type(self, at: int) -> None:
        if at < len(self.state.seqs) and type(self.state.seqs[at]) is int:
            self.state.seqs[at] = float(self.state.seqs[at])

    @rule(at=st.integers(0, 400))
    def remove(self, at: int) -> None:
        if at < len(self.state.seqs):
            del self.state.seqs[at]
        self.state.ids.pop(at, None)

    @rule(parts=st.lists(st.lists(atoms, max_size=2), max_size=2))
    def nest(self, parts: list[Any]) -> None:
        self.state.seqs += parts
        self.state.one.parts += parts
        if parts and self.state.seqs and type(self.state.seqs[-1]) is list:
            self.state.seqs[-1].append(7)

    @rule(key=st.integers(-5, 400), value=atoms | st.lists(atoms, max_size=2))
    def put(self, key: int, value: Any) -> None:
        self.state.ids[key] = value
        self.state.seen[f"p{key}"] = value

    @rule(key=st.integers(0, 3), name=st.text(max_size=3))
    def touch(self, key: int, name: str) -> None:
        self.state.numbered[key] = Leaf(name=name, pair=Pair((name,), key))
        self.state.leaves[name] = Leaf(name=name)
        self.state.names.add(name)
        self.state.cost += 0.1

    @rule()
    def empty(self) -> None:
        self.state.seqs, self.state.ids = [], {}

    @invariant()
    def the_text_is_that_of_the_state(self) -> None:
        if hasattr(self, "state"):
            assert self.texts.of(self.state) == at_once(self.state)


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["user.message", "user.steer"]), st.text(max_size=4)), max_size=30))
def test_a_digest_does_not_depend_on_earlier_digests(said: list[tuple[str, str]]) -> None:
    often, once = Fold(reducers()), Fold(reducers())
    for seq, (kind, text) in enumerate(said, 1):
        event = Event(2, seq, "", 1, 1, "", 0, (), kind, "", {"text": text, "to": "lead"})
        often.apply(event)
        once.apply(event)
        often.digests()
    assert often.digests() == once.digests()


def test_a_shape_is_names_and_types_at_every_depth_and_nothing_else() -> None:
    class Inner(BaseModel):
        a: int = 1

    class State(BaseModel):
        """Words."""

        inner: dict[str, Inner] = Field(default_factory=dict)
        kind: Literal["x", "y"] = "x"
        pair: Pair = Pair((), 0)

    def variant(inner: Any, kind: Any, **more: Any) -> str:
        fields = {"inner": (dict[str, inner], {}), "kind": (kind, "x"), "pair": (Pair, Pair((), 1)), **more}
        return shape(create_model("Renamed", **fields))

    class Longer(BaseModel):
        """The same with one field more, deep inside."""

        a: int = 1
        b: int = 2

    class Other(BaseModel):
        a: float = 1.0

    assert variant(Inner, str) == variant(Inner, Literal["y", "z"]) == shape(State)
    assert len({variant(each, str) for each in (Inner, Longer, Other)}) == 3
    assert variant(Inner, str, more=(int, 0)) != shape(State)
    assert variant(Inner, str | None) != shape(State)
    with pytest.raises(TypeError, match="has no form that can be compared"):
        variant(Inner, bytes)


def test_a_shape_may_hold_itself() -> None:
    assert shape(_Chain) != shape(_Twin)


class _Chain(BaseModel):
    next: _Chain | None = None


class _Twin(BaseModel):
    next: _Twin | None = None
    n: int = 0


class _LongerTalk(BaseModel):
    texts: list[str] = Field(default_factory=list)
    agents: set[str] = Field(default_factory=set)
    last: str = ""


class _LongerReducer(TalkReducer):
    """The talk of a later version of the program, which remembers one thing more."""

    def initial(self) -> Any:
        return _LongerTalk()

    def apply(self, state: Any, event: Event) -> None:
        super().apply(state, event)
        state.last = event.kind


class _ShoutingReducer(TalkReducer):
    def apply(self, state: Any, event: Event) -> None:
        super().apply(state, event)
        state.texts = [text.upper() for text in state.texts]


def _session(folder: Path, kinds: list[Any], *, go_on: bool = False) -> None:
    async def write() -> None:
        make = EventLog.open if go_on else EventLog.create
        log = make(folder, reducers=kinds, redactor=Redactor(), now=ticking())
        for n in range(300):
            log.post("user.message", message(f"text {n}"))
        await log.close()

    asyncio.run(write())


def test_a_slice_of_another_shape_is_not_compared_and_verify_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    _session(folder, reducers())
    later = [_LongerReducer(), CountReducer()]
    report = verify(folder, later)
    assert report.ok
    assert (report.digests, report.partly, report.skipped) == (2, 2, ("talk",))
    assert report.not_compared == (
        "In 2 of 2 recorded states these parts were not compared, because another version of this program recorded "
        "them: talk."
    )
    _session(folder, later, go_on=True)
    report = verify(folder, later)
    assert (report.ok, report.digests, report.partly) == (True, 4, 2)
    assert verify(folder, later).skipped == ("talk",)
    everything = verify(folder, reducers())
    assert (everything.ok, everything.partly) == (True, 2), "the earlier version compares its own digests only"


def test_the_other_slices_are_compared_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    _session(folder, [_LongerReducer(), CountReducer()])

    class Miscounting(CountReducer):
        def apply(self, state: Any, event: Event) -> None:
            state.by_kind[event.kind] = 1

    report = verify(folder, [TalkReducer(), Miscounting()])
    assert report.first_problem is not None
    assert (report.first_problem.field, report.skipped) == ("state.counts", ("talk",))
    with pytest.raises(LogDamaged, match="differs from its digest in: counts"):
        EventLog.open(folder, reducers=[TalkReducer(), Miscounting()], redactor=Redactor(), now=ticking())


def test_a_changed_fold_of_the_same_shape_cannot_hide(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    _session(folder, reducers())
    report = verify(folder, [_ShoutingReducer(), CountReducer()])
    assert report.first_problem is not None
    assert (report.first_problem.seq, report.first_problem.field) == (256, "state.talk")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data["slices"].pop("talk"), "talk"),
        (lambda data: data["shapes"].update(talk="0" * 16), "talk"),
        (lambda data: data.update(slices={}, shapes={}), "counts, talk"),
    ],
    ids=["slice-taken-out", "other-shape", "nothing-left"],
)
def test_what_is_taken_out_of_a_digest_is_counted(change: Any, says: str) -> None:
    """Somebody who can repair the chain can withdraw a digest, but not without a word of it in the report."""
    fold = Fold(reducers())
    fold.apply(Event(2, 1, "", 1, 1, "", 0, (), "user.message", "", message("x")))
    data: dict[str, Any] = {"digest": "0" * 32, "slices": fold.digests()[1], "shapes": fold.shapes()}
    change(data)
    assert ", ".join(fold.compare(data).skipped) == says


def test_digests_are_compared_after_a_restart_as_before(tmp_path: Path) -> None:
    """What is remembered of a text belongs to one fold: a new one starts without it."""
    folder = tmp_path / "s"

    async def run() -> None:
        log = create(folder)
        for n in range(600):
            log.post("user.message", message(str(n)))
        await log.close()
        again = reopen(folder)
        for n in range(300):
            again.post("user.message", message(str(n)))
        await again.close()

    asyncio.run(run())
    report = verify(folder, reducers())
    assert (report.ok, report.partly, report.digests) == (True, 0, 5)
