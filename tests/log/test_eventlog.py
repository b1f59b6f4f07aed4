"""Posting, durability, reading back, digests, redaction and refusals of the event log."""

from __future__ import annotations

import asyncio
import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_samples import (
    CountReducer,
    TalkReducer,
    create,
    message,
    reducers,
    reopen,
    segment,
    texts_of,
    ticking,
    write_session,
)

from musecode_jupyter.log import Event, EventLog, Redactor, verify
from musecode_jupyter.log.events import MAX_RECORD_BYTES
from musecode_jupyter.log.kinds import UserMessage
from musecode_jupyter.runtime.errors import LogDamaged, LogError, LogReadOnly

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=25)
@given(st.lists(st.dictionaries(st.text(st.characters()), anything, max_size=4), min_size=1, max_size=6))
def test_any_json_comes_back_as_it_was_posted(
    tmp_path_factory: pytest.TempPathFactory, values: list[dict[str, Any]]
) -> None:
    """Lone surrogates in tool arguments could not be encoded and lost the call."""
    folder = tmp_path_factory.mktemp("log") / "s"

    async def run() -> None:
        log = create(folder)
        posted = [log.post("tool.requested", {"name": "n", "arguments": value, "origin": "model"}) for value in values]
        assert [event.data["arguments"] for event in posted] == values
        await log.close()
        again = reopen(folder)
        back = list(again.events())
        assert [event.data for event in back[: len(values)]] == [event.data for event in posted]
        assert [again.get(event.seq).data for event in posted] == [event.data for event in posted]
        await again.close()

    asyncio.run(run())
    assert verify(folder, reducers()).ok


def test_lines_are_ascii_json_in_envelope_order(tmp_path: Path) -> None:
    write_session(tmp_path / "s", ["ä\ud800"])
    line = segment(tmp_path / "s").read_bytes().splitlines()[0]
    assert line.isascii()
    assert ",".join(json.loads(line)) == "v,seq,ts,gen,b,agent,turn,cause,kind,label,data,blobs,h"


def test_append_returns_only_after_the_line_is_on_disk(tmp_path: Path) -> None:
    async def run() -> None:
        log = create(tmp_path / "s")
        for n in range(20):
            event = await log.append("user.message", message(str(n)))
            assert log.durable_seq >= event.seq
            assert segment(log.folder).read_bytes().count(b"\n") == event.seq
        await log.close()

    asyncio.run(run())


def test_subscribers_hear_each_event_once_in_order_on_the_loop_and_after_the_sync(tmp_path: Path) -> None:
    async def run() -> None:
        log = create(tmp_path / "s")
        heard: list[int] = []

        def hear(event: Event) -> None:
            assert threading.current_thread() is threading.main_thread()
            assert event.seq <= log.durable_seq
            heard.append(event.seq)

        def fail(event: Event) -> None:
            raise RuntimeError("a view is broken")

        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        log.on_durable(fail)
        end = log.on_durable(hear)
        await asyncio.gather(*(log.append("user.message", message(str(n))) for n in range(50)))
        assert heard == list(range(1, 51))
        end()
        await log.append("user.message", message("unheard"))
        assert heard == list(range(1, 51))
        await log.close()

    asyncio.run(run())


def test_batches_number_the_groups_that_were_synced_together(tmp_path: Path) -> None:
    async def run() -> None:
        log = create(tmp_path / "s")
        await log.append("user.message", message("first"))
        await asyncio.gather(*(log.append("user.message", message(str(n))) for n in range(200)))
        await log.close()
        batches = [event.b for event in log.events()]
        assert batches[0] == 1
        assert all(later - earlier in (0, 1) for earlier, later in pairwise(batches))
        assert batches[-1] < 200

    asyncio.run(run())


def test_events_that_are_not_written_yet_can_be_read(tmp_path: Path) -> None:
    async def run() -> None:
        log = create(tmp_path / "s")
        event = log.post("user.message", message("x" * 50_000), blobs={"raw": b"abc"})
        assert log.get(1) == event
        assert [each.seq for each in log.events()] == [1]
        assert log.blob(event.blobs["raw"].digest) == b"abc"
        await log.close()
        assert log.get(1).data == event.data
        assert log.get(1).blobs == event.blobs
        assert log.blob(event.blobs["raw"].digest) == b"abc"

    asyncio.run(run())


def test_events_since_reads_on_across_segments(tmp_path: Path) -> None:
    write_session(tmp_path / "s", [f"{n}" for n in range(60)], segment_bytes=1500)
    assert segment(tmp_path / "s", 5).exists()
    log = EventLog.read(tmp_path / "s", reducers=reducers())
    for since in (0, 1, 17, 60, 61, 70):
        assert [event.seq for event in log.events(since)] == list(range(since + 1, 62))
    assert [log.get(seq).seq for seq in range(1, 62)] == list(range(1, 62))
    assert log.problems == log.damage == []
    with pytest.raises(LogError, match="has no event 62"):
        log.get(62)


def test_large_fields_are_spilled_and_put_back(tmp_path: Path) -> None:
    """Records of 100 KB and more were torn by kills far more often than small ones."""
    folder = tmp_path / "s"
    arguments = {"path": "p", "text": "\udfff" + "a" * 3_000_000}

    async def run() -> None:
        log = create(folder)
        call = {"name": "edit", "arguments": arguments, "origin": "model", "purpose": "small"}
        event = await log.append("tool.requested", call, blobs={"raw": b"\0" * 10})
        assert set(event.blobs) == {"raw", "data.arguments"}
        await log.close()

    asyncio.run(run())
    line = json.loads(segment(folder).read_bytes().splitlines()[0])
    assert line["data"]["arguments"] is None
    assert line["data"]["purpose"] == "small"
    assert all(len(each) <= MAX_RECORD_BYTES for each in segment(folder).read_bytes().splitlines(keepends=True))
    log = EventLog.read(folder)
    assert log.get(1).data["arguments"] == arguments
    assert log.blob(line["blobs"]["data.arguments"]["digest"]) == json.dumps(arguments, separators=(",", ":")).encode()


@settings(max_examples=20)
@given(st.lists(st.integers(min_value=0, max_value=20_000), min_size=1, max_size=6))
def test_no_record_is_over_the_limit_whatever_its_fields(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("log") / "s"

    async def run() -> list[Event]:
        log = create(folder)
        posted = [
            log.post(
                "tool.requested",
                {"name": "a" * size, "arguments": {"b": "\x00" * (size // 3)}, "origin": "model"},
            )
            for size in sizes
        ]
        await log.close()
        return posted

    posted = asyncio.run(run())
    lines = segment(folder).read_bytes().splitlines(keepends=True)
    assert max(map(len, lines)) <= MAX_RECORD_BYTES
    assert [event.data for event in EventLog.read(folder).events()][: len(posted)] == [event.data for event in posted]


def test_thousands_of_blobs_in_one_event_are_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    async def run() -> None:
        log = create(tmp_path / "s")
        with pytest.raises(LogError, match="write fewer blobs"):
            log.post("user.message", message("x"), blobs={f"n{n}": b"%d" % n for n in range(2000)})
        with pytest.raises(LogError, match="reserved"):
            log.post("user.message", message("x"), blobs={"data.text": b""})
        assert log.last_seq == 0
        assert (await log.append("user.message", message("x"))).seq == 1
        await log.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "data", "says"),
    [
        ("user.massage", {"text": "x", "to": "y"}, "no event of kind 'user.massage'"),
        ("user.message", {"text": "x"}, "field 'to'"),
        ("user.message", {"text": "x", "to": "y", "more": 1}, "field 'more'"),
        ("user.steer", UserMessage(text="x", to="y"), "UserMessage instead of a UserSteer"),
        (
            "tool.requested",
            {"name": "n", "arguments": {"a": float("nan")}, "origin": "model"},
            "cannot be written",
        ),
        ("tool.requested", {"name": "n", "arguments": {"a": {1, 2}}, "origin": "model"}, "cannot be written"),
    ],
    ids=["unknown-kind", "missing-field", "extra-field", "other-payload", "nan", "set"],
)
def test_a_bad_event_is_refused_at_once_and_leaves_no_trace(tmp_path: Path, kind: str, data: Any, says: str) -> None:
    async def run() -> None:
        log = create(tmp_path / "s")
        with pytest.raises(LogError, match=says):
            log.post(kind, data)
        await log.append("user.message", message("good"))
        await log.close()
        assert [event.kind for event in log.events()] == ["user.message", "state.digest"]

    asyncio.run(run())
    assert verify(tmp_path / "s", reducers()).ok


def test_secrets_are_cut_out_before_the_event_is_folded_or_written(tmp_path: Path) -> None:
    """A key in a traceback ended up in the log and from there in every later prompt."""
    secret = "correct-horse-battery"

    async def run() -> None:
        log = EventLog.create(tmp_path / "s", reducers=reducers(), redactor=Redactor([secret]), now=ticking())
        event = await log.append("user.message", message(f"use {secret} and ghp_{'a1B2' * 9}"), agent="lead", turn=3)
        assert event.data["text"] == "use [redacted:secret] and [redacted:github-token]"
        note = log.get(2)
        assert (note.kind, note.agent, note.turn, note.cause) == ("secret.redacted", "lead", 3, (1,))
        assert note.data == {"patterns": ["github-token", "secret"], "where": "data of user.message"}
        await log.append("user.message", message("raw"), blobs={"file": secret.encode()})
        await log.close()

    asyncio.run(run())
    assert secret.encode() not in segment(tmp_path / "s").read_bytes()
    assert verify(tmp_path / "s", reducers()).ok


def test_a_state_digest_is_written_every_256_events_and_at_the_end(tmp_path: Path) -> None:
    write_session(tmp_path / "s", ["x"] * 600)
    log = EventLog.read(tmp_path / "s", reducers=reducers())
    digests = [event for event in log.events() if event.kind == "state.digest"]
    assert [event.seq for event in digests] == [256, 512, 603]
    assert all(event.data["upto"] == event.seq - 1 for event in digests)
    report = verify(tmp_path / "s", reducers())
    assert (report.ok, report.events, report.digests) == (True, 603, 3)


class ShoutingReducer(TalkReducer):
    def apply(self, state: Any, event: Event) -> None:
        super().apply(state, event)
        state.texts = [text.upper() for text in state.texts]


def test_a_fold_that_differs_from_its_digest_is_refused_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write_session(folder, ["x"] * 300)
    others = [ShoutingReducer(), CountReducer()]
    with pytest.raises(LogDamaged, match="after event 255 differs from its digest in: talk") as caught:
        EventLog.open(folder, reducers=others, redactor=Redactor(), now=ticking())
    assert caught.value.last_good_seq == 255
    report = verify(folder, [ShoutingReducer(), CountReducer()])
    assert report.first_problem is not None
    assert (report.first_problem.seq, report.first_problem.field) == (256, "state.talk")
    reader = EventLog.read(folder, reducers=[ShoutingReducer(), CountReducer()])
    assert "differs from its digest in: talk" in reader.problems[0]
    assert reader.last_seq == 302
    # The refusal released the lock.
    asyncio.run(reopen(folder).close())


def test_slices_that_only_another_version_has_are_not_compared(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write_session(folder, ["x"] * 300)
    asyncio.run(EventLog.open(folder, reducers=[CountReducer()], redactor=Redactor(), now=ticking()).close())
    assert verify(folder, reducers()).ok
    assert verify(folder).ok


def test_the_state_after_a_restart_is_the_state_before(tmp_path: Path) -> None:
    async def run() -> None:
        log = create(tmp_path / "s")
        for n in range(300):
            log.post("user.message", message(str(n), to=f"a{n % 7}"))
        await log.close()
        again = reopen(tmp_path / "s")
        assert again.state("talk") == log.state("talk")
        assert again.state("counts") == log.state("counts")
        assert (again.generation, again.last_seq) == (2, log.last_seq)
        event = again.post("user.message", message("next"))
        assert (event.seq, event.gen) == (log.last_seq + 1, 2)
        await again.close()

    asyncio.run(run())
    assert verify(tmp_path / "s", reducers()).ok


def test_every_opening_for_writing_is_a_generation_even_if_nothing_is_written(tmp_path: Path) -> None:
    write_session(tmp_path / "s", ["x"])
    for generation in (2, 3, 4):
        log = reopen(tmp_path / "s")
        assert log.generation == generation
        asyncio.run(log.close())


def test_a_reader_follows_a_writer(tmp_path: Path) -> None:
    async def run() -> None:
        log = create(tmp_path / "s", segment_bytes=2000)
        reader = EventLog.read(tmp_path / "s", reducers=reducers())
        for n in range(40):
            await log.append("user.message", message(str(n)))
            assert reader.refresh() == n + 1
            assert reader.state("talk") == log.state("talk")
        # Half a line is a write under way, not damage.
        with segment(tmp_path / "s", 1).open("ab") as file:
            file.write(b'{"v":1,')
        assert EventLog.read(tmp_path / "s").last_seq >= 1
        await log.close()
        assert [event.seq for event in reader.events(38)][:2] == [39, 40]
        with pytest.raises(LogReadOnly, match="open for reading"):
            reader.post("user.message", message("no"))

    asyncio.run(run())


def test_a_closed_log_says_why_it_takes_nothing_and_can_be_read(tmp_path: Path) -> None:
    async def run() -> None:
        log = create(tmp_path / "s")
        log.post("user.message", message("one"))
        await log.close("closed by the user")
        await log.close()
        with pytest.raises(LogReadOnly, match="closed by the user"):
            log.post("user.message", message("two"))
        assert texts_of(log) == ["one"]

    asyncio.run(run())


def test_a_log_outlives_the_loop_in_which_it_was_made(tmp_path: Path) -> None:
    log = create(tmp_path / "s")
    log.post("user.message", message("before any loop"))
    asyncio.run(log.flush())

    async def append() -> None:
        await log.append("user.message", message("in another"))

    asyncio.run(append())
    asyncio.run(log.close())
    assert texts_of(log) == ["before any loop", "in another"]


def test_a_cancelled_append_is_written_all_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        log = create(tmp_path / "s")
        task = asyncio.create_task(log.append("user.message", message("cut")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await log.append("user.message", message("after"))
        assert texts_of(log) == ["cut", "after"]
        await log.close()

    asyncio.run(run())


def test_a_reducer_that_fails_ends_the_writing_before_the_event_is_recorded(tmp_path: Path) -> None:
    class Failing(TalkReducer):
        def apply(self, state: Any, event: Event) -> None:
            if event.data.get("text") == "bad":
                raise ValueError("cannot")
            super().apply(state, event)

    async def run() -> None:
        log = EventLog.create(tmp_path / "s", reducers=[Failing()], redactor=Redactor(), now=ticking())
        log.post("user.message", message("good"))
        with pytest.raises(LogReadOnly, match=r"could not take user\.message"):
            log.post("user.message", message("bad"))
        with pytest.raises(LogReadOnly):
            log.post("user.message", message("good"))
        await log.close()

    asyncio.run(run())
    assert texts_of(EventLog.read(tmp_path / "s")) == ["good"]
    asyncio.run(reopen(tmp_path / "s").close())


def test_a_session_is_created_once_and_found_only_where_it_is(tmp_path: Path) -> None:
    write_session(tmp_path / "s", ["x"])
    with pytest.raises(LogError, match="there is a session in"):
        create(tmp_path / "s")
    for open_it in (reopen, EventLog.read, verify):
        with pytest.raises(LogError, match="check its id"):
            open_it(tmp_path / "none")


def test_a_missing_or_changed_blob_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "s"

    async def run() -> Event:
        log = create(folder)
        log.post("user.message", message("small"))
        event = log.post("user.message", message("x" * 50_000))
        await log.close()
        return event

    event = asyncio.run(run())
    digest = event.blobs["data.text"].digest
    path = folder / "blobs" / digest[:2] / digest[2:]
    path.write_bytes(path.read_bytes().replace(b"x", b"y", 1))
    for says in ("damaged", "cannot be read"):
        report = verify(folder, reducers())
        assert report.first_problem is not None
        assert (report.first_problem.seq, report.first_problem.field) == (2, "blobs.data.text")
        with pytest.raises(LogDamaged, match=says):
            reopen(folder)
        reader = EventLog.read(folder, reducers=reducers())
        assert [each.data["text"] for each in reader.events() if each.kind == "user.message"] == [
            "small",
            None,
        ]
        assert digest in reader.problems[0]
        path.unlink(missing_ok=True)
