"""A snapshot of the state saves folding, and nothing else: with it, without it or with a bad one a log is the same."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_samples import CountReducer, TalkReducer, create, message, reopen, segment, ticking

from musecode_jupyter.log import Event, EventLog, Redactor, snapshot, verify
from musecode_jupyter.log.scan import segments
from musecode_jupyter.log.snapshot import snapshot_path
from musecode_jupyter.runtime.errors import LogDamaged


class CountingReducer(CountReducer):
    """Tells how many events were folded here."""

    applied = 0

    def apply(self, state: Any, event: Event) -> None:
        self.applied += 1
        super().apply(state, event)


def opened(folder: Path) -> tuple[EventLog, int]:
    """The log opened for writing, and how many events were folded for that."""
    counting = CountingReducer()
    log = EventLog.open(folder, reducers=[TalkReducer(), counting], redactor=Redactor(), now=ticking())
    return log, counting.applied


def told(folder: Path) -> tuple[Any, ...]:
    """All that a log says once it is opened for writing, and how many events were folded; leaves no trace."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / folder.name
        shutil.copytree(folder, copy)
        log, applied = opened(copy)
        said = (
            log.last_seq,
            log.generation,
            log.digests(),
            log._fold.states_text(),
            list(log._positions),
            [(event.seq, event.h, event.data) for event in log.events()],
        )
        asyncio.run(log.close())
        return said, applied


async def _write(folder: Path, texts: list[str], every: int, kill_at: int) -> None:
    log = create(folder, segment_bytes=9_000, snapshot_every=every)
    for number, text in enumerate(texts):
        log.post("user.message", message(text, "ab"[number % 2]))
        if number % 50 == 49 or number == kill_at:
            await log.flush()
        if number == kill_at:
            # As after a kill: neither a digest nor a snapshot at the end.
            log._journal.close()  # type: ignore[union-attr]
            log = reopen(folder, segment_bytes=9_000, snapshot_every=every)
    await log.close()


def write(folder: Path, texts: list[str], every: int = 200, kill_at: int = -1) -> None:
    asyncio.run(_write(folder, texts, every, kill_at))


@settings(max_examples=10, deadline=None)
@given(
    texts=st.lists(st.sampled_from(["one", "ä\ud800\n", "x" * 17_000, ""]), max_size=6),
    many=st.sampled_from([0, 230, 600]),
    every=st.sampled_from([1, 300]),
    kill_at=st.integers(-1, 500),
)
def test_a_snapshot_and_what_follows_is_the_fold_from_the_beginning(
    texts: list[str], many: int, every: int, kill_at: int
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "s"
        write(folder, [*texts, *(f"{n}" for n in range(many)), *texts], every, kill_at)
        said, applied = told(folder)
        kept = snapshot_path(folder).exists()
        snapshot_path(folder).unlink(missing_ok=True)
        assert told(folder)[0] == said
        assert kept or applied == said[0], "each event is folded"
        assert not kept or applied < said[0], "the snapshot is used"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log") / "s"
    write(folder, [f"text {n}" for n in range(300)] + ["y" * 17_000] + [f"text {n}" for n in range(50)])
    return folder


@pytest.fixture(scope="module")
def said(session: Path) -> Any:
    said, applied = told(session)
    assert applied <= 2, "the last snapshot is used"
    return said


def put(session: Path, content: bytes | None, tmp_path: Path) -> Path:
    """A copy of the session with this for a snapshot."""
    folder = tmp_path / "s"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(session, folder)
    if content is None:
        snapshot_path(folder).unlink()
    else:
        snapshot_path(folder).write_bytes(content)
    return folder


def test_a_snapshot_with_any_bit_changed_or_cut_anywhere_is_left_alone(
    session: Path, said: Any, tmp_path: Path, rng: random.Random
) -> None:
    whole = snapshot_path(session).read_bytes()
    log, _ = opened(put(session, whole, tmp_path))
    shapes = log.shapes()
    asyncio.run(log.close())
    for _ in range(100):
        bad = bytearray(whole)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        cut = whole[: rng.randrange(len(whole))]
        for content in (bytes(bad), cut, whole + b" "):
            snapshot_path(tmp_path / "s").write_bytes(content)
            assert snapshot.load(tmp_path / "s", shapes) is None
    assert told(put(session, bytes(bad), tmp_path)) == (said, said[0])


def sealed(seq: int, h: str, text: str, folder: Path) -> bytes:
    folder.mkdir(exist_ok=True)
    snapshot.keep(folder, seq, h, text)
    return snapshot_path(folder).read_bytes()


@pytest.mark.parametrize("which", ["none", "of another state", "at another event", "of another log", "no states"])
def test_a_foreign_snapshot_is_left_alone(session: Path, said: Any, tmp_path: Path, which: str) -> None:
    """Each is whole by its own sum, so that only the journal tells that it is not of this log."""
    log, _ = opened(put(session, None, tmp_path))
    states, shapes = log._fold.states_text(), log.shapes()
    last = log.last_seq
    digests = [event for event in log.events() if event.kind == "state.digest"]
    asyncio.run(log.close())
    scratch = tmp_path / "scratch"
    text = snapshot.prepared(states.replace("text 7", "text 8", 1), shapes)
    at = digests[-1]
    content = {
        "none": None,
        "of another state": sealed(at.seq, at.h, text, scratch),
        "at another event": sealed(last - 1, at.h, snapshot.prepared(states, shapes), scratch),
        "of another log": sealed(at.seq, digests[0].h, snapshot.prepared(states, shapes), scratch),
        "no states": sealed(at.seq, at.h, snapshot.prepared("{}", shapes), scratch),
    }[which]
    assert told(put(session, content, tmp_path)) == (said, said[0])


def test_a_snapshot_of_another_version_or_other_shapes_is_left_alone(
    session: Path, said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "__version__", "0.0.0")
    assert told(session) == (said, said[0])
    monkeypatch.undo()
    log = EventLog.open(put(session, snapshot_path(session).read_bytes(), tmp_path), reducers=[TalkReducer()],
                        redactor=Redactor(), now=ticking())  # fmt: skip
    assert log._snapshot_at == 0
    asyncio.run(log.close())


def test_damage_of_the_journal_is_found_as_without_a_snapshot(
    session: Path, said: Any, tmp_path: Path, rng: random.Random
) -> None:
    for _ in range(20):
        folder = put(session, snapshot_path(session).read_bytes(), tmp_path)
        path = segment(folder, rng.choice(segments(folder)[:-1]))
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        with pytest.raises(LogDamaged) as with_it:
            reopen(folder)
        snapshot_path(folder).unlink()
        with pytest.raises(LogDamaged) as without:
            reopen(folder)
        assert str(with_it.value) == str(without.value)
        assert not verify(folder).ok


def test_a_blob_that_holds_a_field_and_is_gone_is_told_as_without_a_snapshot(session: Path, tmp_path: Path) -> None:
    folder = put(session, snapshot_path(session).read_bytes(), tmp_path)
    large = next(event for event in EventLog.read(folder).events() if event.blobs)
    digest = large.blobs["data.text"].digest
    (folder / "blobs" / digest[:2] / digest[2:]).unlink()
    with pytest.raises(LogDamaged, match=f"blob {digest} cannot be read"):
        reopen(folder)


def test_a_snapshot_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    async def run() -> None:
        log = create(tmp_path / "s", snapshot_every=1)
        snapshot_path(tmp_path / "s").mkdir()
        for n in range(300):
            log.post("user.message", message(f"{n}"))
        await log.close()

    asyncio.run(run())
    assert verify(tmp_path / "s").ok
    assert [path.name for path in (tmp_path / "s").iterdir() if path.is_file()].count("state.snapshot") == 0
    log, applied = opened(tmp_path / "s")
    assert applied == log.last_seq
    asyncio.run(log.close())
