"""The event parser: any chunking, any line ends, any characters."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.models import sse
from musecode_jupyter.models.sse import EventParser, EventTooLarge, ServerEvent


def parse(*chunks: bytes) -> list[ServerEvent]:
    parser = EventParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.close()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
def test_line_ends_comments_and_multi_line_data(end: bytes) -> None:
    stream = end.join(
        [
            b": ping",
            b"event: a",
            b"data: one",
            b"data:two",
            b"id: 7",
            b"retry: 5",
            b"",
            b"data",
            b"",
            b"",
            b"data: [DONE]",
            b"",
            b"",
        ]
    )
    assert parse(stream) == [ServerEvent("a", "one\ntwo"), ServerEvent("", ""), ServerEvent("", "[DONE]")]
    assert parse(stream)[-1].is_done


def test_byte_order_mark_is_skipped_once() -> None:
    assert parse(b"\xef\xbb\xbfdata: x\n\n") == [ServerEvent("", "x")]


def test_event_without_data_is_not_dispatched_and_its_name_not_kept() -> None:
    assert parse(b"event: lost\n\ndata: x\n\n") == [ServerEvent("", "x")]


def test_missing_last_blank_line_is_forgiven_but_not_a_cut_line() -> None:
    assert parse(b"data: whole\n") == [ServerEvent("", "whole")]
    assert parse(b"data: whole\ndata: cut") == []


def test_invalid_utf8_becomes_a_replacement_character() -> None:
    assert parse(b"data: a\xffb\n\n") == [ServerEvent("", "a\ufffdb")]


def test_stream_without_line_ends_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    with pytest.raises(EventTooLarge):
        parse(b"data: ", *[b"x" * 100] * 11)
    with pytest.raises(EventTooLarge):
        parse(*[b"data: " + b"x" * 90 + b"\n"] * 12)


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=20)


@given(
    st.lists(st.tuples(_TEXT, st.lists(_TEXT, min_size=1, max_size=3)), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 600), max_size=20),
)
def test_every_chunking_gives_the_same_events(events: list[tuple[str, list[str]]], end: str, cuts: list[int]) -> None:
    """UTF-8 and CRLF split across chunks broke a client that decoded and split each chunk by itself."""
    lines = [line for name, data in events for line in (f"event: {name}", *(f"data: {part}" for part in data), "")]
    stream = "".join(line + end for line in lines).encode()
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[start:stop] for start, stop in itertools.pairwise(places)]
    expected = [ServerEvent(name, "\n".join(data)) for name, data in events]
    assert parse(*chunks) == expected
    assert parse(*(stream[place : place + 1] for place in range(len(stream)))) == expected
