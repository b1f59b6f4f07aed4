"""The document of events is up to date, and a small journal of the first schema version still verifies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from journal_samples import reducers, texts_of

from musecode_jupyter.log import EventLog, verify
from musecode_jupyter.log.events import GENESIS, canonical, line_parts, parse_line, seal
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.log.schema import describe_kinds

ROOT = Path(__file__).parents[2]
JOURNALS = ROOT / "tests" / "fixtures" / "journals"


def test_the_document_of_events_is_up_to_date() -> None:
    written = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    assert written == describe_kinds(), "run: python -m musecode_jupyter.log.schema docs/events.md"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_described(kind: str) -> None:
    assert f"### `{kind}`\n" in describe_kinds()
    assert (KINDS[kind].__doc__ or "").strip()


def test_the_golden_journal_of_version_1_verifies_and_folds() -> None:
    report = verify(JOURNALS / "v1", reducers())
    assert report.first_problem is None
    assert (report.events, report.digests, report.blobs) == (9, 2, 2)
    log = EventLog.read(JOURNALS / "v1", reducers=reducers())
    assert log.problems == log.damage == []
    assert log.generation == 2
    assert texts_of(log) == ["make the tests pass", "lone \ud800 surrogate, ä, \u0000", "x" * 20_000, "go on"]
    assert log.get(2).blobs["note"].size == 4
    assert log.blob(log.get(2).blobs["note"].digest) == b"\0raw"


def test_the_golden_journal_of_version_1_is_written_the_same_way_today() -> None:
    """A change of the encoding would break the hash chain of every log that is continued."""
    h = GENESIS
    lines = (JOURNALS / "v1" / "journal" / "000001.jsonl").read_bytes().splitlines(keepends=True)
    for line in lines:
        event = parse_line(line)
        head, tail = line_parts(event, canonical(event.data))
        h, written = seal(h, head + b"%d" % event.b + tail)
        assert written == line
        assert json.loads(line)["h"] == h
    assert h == "d735c61d861109263cff6de709c802a1"
