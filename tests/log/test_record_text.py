"""The text of an event's data is canonical JSON, whichever of two encoders wrote it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.log import Redactor
from musecode_jupyter.log.events import canonical
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.log.record import _floats, plain_of, redacted, text_of, validated, written
from musecode_jupyter.runtime.errors import LogError

TEXTS = st.one_of(
    st.text(st.characters(codec="ascii"), max_size=30),
    st.text(max_size=10),
    st.text(st.characters(categories=["Cs", "Cc"]), max_size=4),
    st.just("key sk-" + "a1B2" * 12),
)
FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.0, -0.0, 1e-3, 1e15, 1.25, 1e-5, 123456.789])
)
FINISHED = st.fixed_dictionaries(
    {"call": st.integers(), "output": TEXTS, "ok": st.booleans(), "seconds": FLOATS},
    optional={"exit": st.none() | st.integers(-9, 9)},
)
COMPLETED = st.fixed_dictionaries(
    {
        "request": st.integers(0, 10),
        "status": st.just("completed"),
        "cost_usd": FLOATS,
        "estimated": st.booleans(),
        "attempts": st.just(1),
        "items": st.lists(st.fixed_dictionaries({"type": st.just("message"), "text": TEXTS}), max_size=2),
        "usage": st.none(),
        "ttft_s": st.none() | FLOATS,
        "seconds": FLOATS,
    }
)
EVENTS = st.one_of(
    st.tuples(st.just("tool.finished"), FINISHED),
    st.tuples(st.just("model.completed"), COMPLETED),
    st.tuples(st.just("user.message"), st.fixed_dictionaries({"text": TEXTS, "to": TEXTS})),
)


@given(EVENTS)
def test_both_encoders_write_the_same(event: tuple[str, dict[str, Any]]) -> None:
    kind, data = event
    plain = plain_of(validated(kind, data))
    assert text_of(kind, validated(kind, data), plain) == canonical(plain)
    redactor = Redactor(["a-known-secret"])
    assert written(redactor, kind, data) == redacted(redactor, kind, plain)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_refused(seconds: float) -> None:
    with pytest.raises(LogError, match="cannot be written as JSON"):
        written(Redactor(), "tool.finished", {"call": 1, "output": "", "ok": True, "seconds": seconds})


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_hides_a_number_from_the_check(kind: str) -> None:
    """A float within a field is not looked at: such kinds take the other encoder, which refuses NaN itself."""
    floats = _floats(kind)
    if floats is not None:
        schema = KINDS[kind].model_json_schema()
        named = {name for name, form in schema["properties"].items() if '"number"' in canonical(form)}
        assert named <= set(floats)
        assert '"number"' not in canonical(schema.get("$defs", {}))
