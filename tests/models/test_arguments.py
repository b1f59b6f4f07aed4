"""The arguments of a call: what is taken can be logged and sent again, everything else is an error that says why."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musecode_jupyter.log.events import canonical
from musecode_jupyter.models.conversation import (
    MAX_ARGUMENT_CHARS,
    MAX_ARGUMENT_DEPTH,
    arguments_object,
    quoted_arguments,
    shallow,
    wire_arguments,
)

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_SCALARS = st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | _TEXT
_NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    _SCALARS | _NUMBERS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4)
)


@settings(max_examples=50)
@given(st.dictionaries(_TEXT, _VALUES, max_size=5), st.booleans())
def test_every_usable_object_is_taken_as_it_is(value: dict[str, Any], escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    if not shallow(value, MAX_ARGUMENT_DEPTH):
        return
    assert arguments_object(text) == value
    assert json.loads(canonical(arguments_object(text))) == value
    assert wire_arguments(text) == text


_ANY = st.text(st.characters(exclude_categories=[]) | st.sampled_from('{}[]",:\\\\0e1'))


@given(_ANY | _ANY.map(lambda text: '{"a": ' + text + "}") | _ANY.map(lambda text: '{"a": "' + text + '"}'))
def test_whatever_the_model_writes_is_taken_or_named(text: str) -> None:
    """What is taken can be written to the log and into a request; what is not is still quoted in the next request."""
    with contextlib.suppress(ValueError):
        value = arguments_object(text)
        canonical(value)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    assert isinstance(json.loads(wire_arguments(text)), dict)
    wire_arguments(text).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("depth", [MAX_ARGUMENT_DEPTH, MAX_ARGUMENT_DEPTH + 1, 5_000])
def test_depth(depth: int) -> None:
    text = '{"a":' * depth + "1" + "}" * depth
    if depth == MAX_ARGUMENT_DEPTH:
        assert shallow(arguments_object(text), depth)
    else:
        with pytest.raises(ValueError, match=f"more than {MAX_ARGUMENT_DEPTH} deep"):
            arguments_object(text)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63) + 1])
def test_largest_numbers(number: int) -> None:
    assert arguments_object(f'{{"a": {number}}}') == {"a": number}
    with pytest.raises(ValueError, match="too large"):
        arguments_object(f'{{"a": {2 * number}}}')


def test_of_what_is_too_long_only_the_beginning_is_quoted() -> None:
    text = "x" * (MAX_ARGUMENT_CHARS + 1)
    assert quoted_arguments(text) == {"invalid_arguments": "x" * 300 + f" [... {len(text) - 300} more characters]"}
    whole = '{"a": "' + "x" * (MAX_ARGUMENT_CHARS - 9) + '"}'
    assert len(whole) == MAX_ARGUMENT_CHARS
    assert wire_arguments(whole) == whole
    assert len(wire_arguments(whole.replace("x", "xx", 1))) < 400
