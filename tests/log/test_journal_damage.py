"""Torn ends are repaired without losing a byte; every other damage is refused, located and read around."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_samples import create, message, reducers, reopen, segment, texts_of, write_session

from musecode_jupyter.log import EventLog, verify
from musecode_jupyter.log.events import SCHEMA_VERSION, seal
from musecode_jupyter.log.scan import Damage, Scanner, judge_tail
from musecode_jupyter.runtime.errors import LogDamaged, LogReadOnly


def copy(session: Path, target: Path) -> Path:
    shutil.copytree(session, target)
    return target


def change(folder: Path, content: bytes, number: int = 1) -> None:
    segment(folder, number).write_bytes(content)


def recovered(folder: Path, good: int, cut: bytes) -> None:
    """Opening keeps `good` events, moves the bytes `cut` to quarantine and goes on."""

    async def run() -> None:
        log = reopen(folder)
        assert log.last_seq == good + 1
        note = log.get(good + 1)
        assert note.kind == "log.recovered"
        assert note.data["bytes"] == len(cut)
        assert (folder / note.data["quarantine"]).read_bytes() == cut
        await log.append("user.message", message("goes on"))
        await log.close()

    asyncio.run(run())
    assert verify(folder, reducers()).ok


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log") / "s"
    write_session(folder, ["one", "two", "three", "four"])
    return folder


def test_a_record_torn_at_any_byte_is_quarantined(session: Path, tmp_path: Path) -> None:
    content = segment(session).read_bytes()
    start = content.rindex(b"\n", 0, -1) + 1
    last = content[start:]
    # Byte by byte through the judgement, and a sample of them through a whole opening with its syncs.
    scanner = Scanner(session)
    good = [found for found in scanner.records() if not isinstance(found, Damage)][-2]
    for size in range(1, len(last)):
        assert judge_tail(last[:size], good.event.h, good.event.seq, good.event.b) is None, size
    for size in (0, 1, 2, 30, 80, len(last) // 2, len(last) - 2, len(last) - 1):
        folder = copy(session, tmp_path / str(size))
        change(folder, content[: start + size])
        report = verify(folder, reducers())
        assert (report.ok, report.unfinished) == (True, size)
        reader = EventLog.read(folder)
        assert (reader.last_seq, reader.damage) == (4, [])
        if size:
            recovered(folder, 4, last[:size])
        else:
            asyncio.run(reopen(folder).close())
            assert not (folder / "quarantine").exists()


@pytest.mark.parametrize(
    "tail",
    [
        b"\0" * 4096,
        b"\0" * 100_000,
        b"\n",
        b"garbage\n",
        b"\xff\xfe",
        b'{"v":1,"seq":6,"ts":"x","gen":1,"b":6,',
    ],
    ids=["zeros", "many-zeros", "newline", "line", "binary", "head"],
)
def test_bytes_after_the_last_record_are_quarantined(session: Path, tmp_path: Path, tail: bytes) -> None:
    folder = copy(session, tmp_path / "s")
    change(folder, segment(folder).read_bytes() + tail)
    recovered(folder, 5, tail)


def test_a_batch_whose_last_records_are_torn_keeps_its_first_ones(tmp_path: Path) -> None:
    folder = tmp_path / "s"

    async def write() -> None:
        log = create(folder)
        await asyncio.gather(*(log.append("user.message", message(str(n))) for n in range(8)))
        await log.close()

    asyncio.run(write())
    lines = segment(folder).read_bytes().splitlines(keepends=True)
    change(folder, b"".join(lines[:5]) + lines[5][:40])
    recovered(folder, 5, lines[5][:40])
    assert texts_of(EventLog.read(folder)) == ["0", "1", "2", "3", "4", "goes on"]


def test_a_torn_first_record_leaves_an_empty_log_that_can_go_on(session: Path, tmp_path: Path) -> None:
    folder = copy(session, tmp_path / "s")
    change(folder, segment(folder).read_bytes()[:50])
    recovered(folder, 0, segment(session).read_bytes()[:50])


def test_a_flip_of_each_byte_of_the_last_record_is_found(session: Path, tmp_path: Path) -> None:
    """Of its newline too: without one it looked like a write that had not ended yet, which is no fault."""
    content = segment(session).read_bytes()
    folder = copy(session, tmp_path / "s")
    found = 0
    start = content.rindex(b"\n", 0, -1) + 1
    for at in range(start, len(content)):
        change(folder, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        found += not verify(folder, reducers()).ok
    assert found == len(content) - start
    recovered(folder, 4, content[start:-1] + bytes([content[-1] ^ 1]))


def test_a_last_line_with_a_changed_byte_is_kept_in_quarantine_or_refused(session: Path, tmp_path: Path) -> None:
    """It cannot be told from a torn batch, so its bytes are never thrown away."""
    content = segment(session).read_bytes()
    start = content.rindex(b"\n", 0, -1) + 1
    last = content[start:]
    scanner = Scanner(session)
    good = [found for found in scanner.records() if not isinstance(found, Damage)][-2]
    kept = 0
    for at in range(len(last)):
        flipped = last[:at] + bytes([last[at] ^ 1]) + last[at + 1 :]
        kept += judge_tail(flipped, good.event.h, good.event.seq, good.event.b) is None
    # Refused are those that claim another place or another batch.
    assert len(last) - 8 < kept < len(last)
    at = last.index(b'"digest"') + 12
    flipped = last[:at] + b"?" + last[at + 1 :]
    folder = copy(session, tmp_path / "s")
    change(folder, content[:start] + flipped)
    assert not verify(folder, reducers()).ok
    recovered(folder, 4, flipped)


@given(st.data())
def test_a_changed_byte_in_an_acknowledged_record_is_refused(session: Path, data: st.DataObject) -> None:
    """A byte flipped in mid-file was skipped with its record, and everything after it kept."""
    content = segment(session).read_bytes()
    acknowledged = content.rindex(b"\n", 0, -1) + 1
    at = data.draw(st.integers(0, acknowledged - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[at]))
    refused_and_located(session, content[:at] + bytes([byte]) + content[at + 1 :], at)


def refused_and_located(session: Path, changed: bytes, at: int) -> None:
    """`changed`, different from the segment at byte `at`, is judged as opening judges it."""
    content = segment(session).read_bytes()
    before = content.count(b"\n", 0, at)
    begin = content.rfind(b"\n", 0, at) + 1
    good = [found.event for found in Scanner(session).records() if not isinstance(found, Damage)]
    last = good[before - 1] if before else None
    h, seq, batch = (last.h, last.seq, last.b) if last else ("0" * 32, 0, 0)
    assert judge_tail(changed[begin:], h, seq, batch) is not None


def test_every_changed_byte_is_refused_whichever_bit(session: Path) -> None:
    content = segment(session).read_bytes()
    acknowledged = content.rindex(b"\n", 0, -1) + 1
    for at in range(acknowledged):
        for byte in {content[at] ^ 1, content[at] ^ 0x80, 10, 34} - {content[at]}:
            refused_and_located(session, content[:at] + bytes([byte]) + content[at + 1 :], at)


def refused(folder: Path, last_good: int) -> LogDamaged:
    before = segment(folder).read_bytes()
    with pytest.raises(LogDamaged) as caught:
        reopen(folder)
    assert caught.value.last_good_seq == last_good
    assert f"Events up to {last_good} are good" in str(caught.value)
    assert segment(folder).read_bytes() == before
    assert not (folder / "quarantine").exists()
    report = verify(folder, reducers())
    assert report.first_problem is not None
    assert report.first_problem.segment == caught.value.segment
    assert report.first_problem.offset == caught.value.offset
    return caught.value


def test_refusal_names_segment_and_offset_and_readers_go_on(session: Path, tmp_path: Path, rng: random.Random) -> None:
    content = segment(session).read_bytes()
    lines = content.splitlines(keepends=True)
    for number in range(4):
        folder = copy(session, tmp_path / str(number))
        at = len(b"".join(lines[:number])) + rng.randrange(len(lines[number]) - 1)
        change(folder, content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        problem = refused(folder, number)
        assert (problem.segment, problem.offset) == ("000001.jsonl", len(b"".join(lines[:number])))
        reader = EventLog.read(folder, reducers=reducers())
        seqs = [event.seq for event in reader.events()]
        assert seqs == [seq for seq in range(1, 6) if seq != number + 1]
        (damage,) = reader.damage
        assert (damage.offset, damage.size, damage.resumed) == (problem.offset, len(lines[number]), True)


@pytest.mark.parametrize(
    ("order", "last_good"),
    [
        ((1, 0, 2, 3, 4), 0),
        ((0, 2, 1, 3, 4), 1),
        ((0, 1, 2, 4, 3), 3),
        ((0, 1, 4, 3, 2), 2),
        ((0, 1, 3, 4), 2),
        ((0, 1, 2, 4), 3),
        ((0, 1, 1, 2, 3, 4), 2),
        ((0, 1, 2, 3, 4, 4), 5),
        ((1, 2, 3, 4), 0),
    ],
    ids=[
        "first",
        "swapped",
        "last-two",
        "far",
        "lost",
        "last-but-one-lost",
        "twice",
        "last-twice",
        "first-lost",
    ],
)
def test_records_swapped_lost_or_repeated_are_refused(
    session: Path, tmp_path: Path, order: tuple[int, ...], last_good: int
) -> None:
    folder = copy(session, tmp_path / "s")
    lines = segment(folder).read_bytes().splitlines(keepends=True)
    change(folder, b"".join(lines[n] for n in order))
    refused(folder, last_good)
    EventLog.read(folder, reducers=reducers())


def test_a_partial_line_followed_by_its_full_retry_is_refused_once_more_was_written(
    session: Path, tmp_path: Path
) -> None:
    """A short write was retried in full on the same line: two records became one that no parser takes."""
    folder = copy(session, tmp_path / "s")
    lines = segment(folder).read_bytes().splitlines(keepends=True)
    change(folder, b"".join([*lines[:2], lines[2][:50], *lines[2:]]))
    refused(folder, 2)


def test_a_damaged_segment_that_another_one_follows_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write_session(folder, [str(n) for n in range(40)], segment_bytes=1500)
    whole = segment(folder, 2).read_bytes()
    first = segment(folder, 1).read_bytes().count(b"\n")
    change(folder, whole[:-20], 2)
    problem = refused(folder, first + whole.count(b"\n") - 1)
    assert problem.segment == "000002.jsonl"
    reader = EventLog.read(folder, reducers=reducers())
    assert len(list(reader.events())) == 40
    segment(folder, 2).unlink()
    assert refused(folder, first).segment == "000002.jsonl"
    assert len(list(EventLog.read(folder).events())) == 41 - whole.count(b"\n")


def rewrite(folder: Path, **fields: object) -> None:
    """Append a record with a good hash, as a newer program would."""
    lines = segment(folder).read_bytes().splitlines(keepends=True)
    record = json.loads(lines[-1])
    previous = record["h"]
    record.update({"seq": record["seq"] + 1, "b": record["b"] + 1, "data": {"x": 1}, **fields})
    del record["h"]
    body = json.dumps(record, separators=(",", ":"))[:-1].encode()
    change(folder, b"".join(lines) + seal(previous, body)[1])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "dream.dreamt"}, "kind 'dream.dreamt' at event 6"),
        ({"v": SCHEMA_VERSION + 1, "kind": "user.message"}, f"schema {SCHEMA_VERSION + 1} at event 6"),
    ],
    ids=["kind", "schema"],
)
def test_what_a_newer_version_wrote_is_shown_and_not_written_to(
    session: Path, tmp_path: Path, fields: dict[str, object], says: str
) -> None:
    folder = copy(session, tmp_path / "s")
    rewrite(folder, **fields)
    before = segment(folder).read_bytes()
    with pytest.raises(LogReadOnly, match=f"newer version .{says}"):
        reopen(folder)
    assert segment(folder).read_bytes() == before
    reader = EventLog.read(folder, reducers=reducers())
    assert (reader.get(6).kind, reader.get(6).data) == (fields["kind"], {"x": 1})
    assert reader.damage == reader.problems == []
    report = verify(folder, reducers())
    assert report.first_problem is not None
    assert (report.first_problem.seq, report.first_problem.field) == (6, "kind")


def test_quarantine_keeps_every_torn_end(session: Path, tmp_path: Path) -> None:
    folder = copy(session, tmp_path / "s")
    for tail in (b"first", b"second", b"third"):
        with segment(folder).open("ab") as file:
            file.write(tail)
        asyncio.run(reopen(folder).close())
    kept = sorted(path.read_bytes() for path in (folder / "quarantine").iterdir())
    assert kept == [b"first", b"second", b"third"]
    assert verify(folder, reducers()).ok
