"""Events of older versions are read in today's form, by pure functions, and stay as they were written."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_samples import TalkReducer, create, message, segment, ticking, write_session

from musecode_jupyter.log import Event, EventLog, Redactor, eventlog, events, journal, record, upcast, verify
from musecode_jupyter.log.events import SCHEMA_VERSION
from musecode_jupyter.log.upcast import UPCASTERS

LATER = SCHEMA_VERSION + 1


class SpokenReducer(TalkReducer):
    """The talk of a later version, in which a message says `words` instead of `text`."""

    def apply(self, state: Any, event: Event) -> None:
        if event.kind == "user.message":
            state.texts.append(event.data["words"])
            state.agents.add(event.data["to"])


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions on: one renamed a field of user.message, the next one added the number of its lines."""

    def renamed(data: dict[str, Any]) -> dict[str, Any]:
        return {"words" if name == "text" else name: value for name, value in data.items()}

    def counted(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "lines": len(data["words"].splitlines())}

    for module in (events, eventlog, journal, record, upcast):
        monkeypatch.setattr(module, "SCHEMA_VERSION", LATER + 1)
    monkeypatch.setitem(UPCASTERS, ("user.message", SCHEMA_VERSION), renamed)
    monkeypatch.setitem(UPCASTERS, ("user.message", LATER), counted)


def test_every_way_of_reading_gives_todays_form_and_leaves_the_bytes_alone(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "s"
    texts = ["one\ntwo", "x" * 20_000]
    write_session(folder, texts)
    before = segment(folder).read_bytes()
    request.getfixturevalue("later")
    log = EventLog.read(folder, reducers=[SpokenReducer()])
    assert log.problems == []
    said = [event for event in log.events() if event.kind == "user.message"]
    assert [event.data for event in said] == [
        {"words": text, "to": "lead", "lines": len(text.splitlines())} for text in texts
    ]
    assert [log.get(event.seq) for event in said] == said
    assert {event.v for event in said} == {SCHEMA_VERSION}
    assert log.state("talk") == SpokenReducer().initial().model_copy(update={"texts": texts, "agents": {"lead"}})
    report = verify(folder, [SpokenReducer()])
    assert (report.problems, report.skipped) == (0, ("counts",))
    assert segment(folder).read_bytes() == before

    async def go_on() -> None:
        again = EventLog.open(folder, reducers=[SpokenReducer()], redactor=Redactor(), now=ticking())
        await again.append("user.interrupt", {"scope": "lead"})
        await again.close()

    asyncio.run(go_on())
    assert segment(folder).read_bytes().startswith(before)
    versions = [json.loads(line)["v"] for line in segment(folder).read_bytes().splitlines()]
    assert set(versions) == {SCHEMA_VERSION, LATER + 1}
    assert verify(folder, [SpokenReducer()]).ok


def test_without_its_upgrade_an_older_event_is_refused_by_the_fold(tmp_path: Path) -> None:
    write_session(tmp_path / "s", ["x"])
    assert "cannot take user.message" in EventLog.read(tmp_path / "s", reducers=[SpokenReducer()]).problems[0]


def test_what_an_older_program_reads_of_a_newer_one_is_shown_as_it_is(tmp_path: Path, later: None) -> None:
    async def run() -> None:
        log = create(tmp_path / "s")
        await log.append("user.message", message("newer"))
        await log.close()

    asyncio.run(run())
    log = EventLog.read(tmp_path / "s")
    assert log.get(1).data == message("newer")


SAMPLES: dict[str, dict[str, Any]] = {
    "state.digest": {"digest": "0" * 32, "upto": 1, "slices": {"tools": "1" * 32, "talk": "2" * 32}},
    "model.requested": {"reserved_usd": 0.5},
    "goal.set": {"usd": 1.0, "text": "x"},
    "goal.edited": {"old": {"usd": 1.0, "tokens": 5}, "new": {"usd": None, "tokens": 6}},
    "goal.warned": {"goal": 1, "limit": "usd", "percent": 50, "used": 0.1234567, "of": 0.1},
    "budget.exceeded": {"scope": "usd", "needed": 1.5},
}
values = st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2))


def test_a_warning_of_money_is_read_in_whole_micro_dollars() -> None:
    upgrade = UPCASTERS["goal.warned", 3]
    said = upgrade({"goal": 1, "limit": "usd", "percent": 50, "used": 0.1234567, "of": 0.1})
    assert said == {"goal": 1, "limit": "microusd", "percent": 50, "used": 123_457, "of": 100_000}
    steps = {"goal": 1, "limit": "steps", "percent": 50, "used": 2.0, "of": 4.0}
    assert upgrade(steps) == steps


@pytest.mark.parametrize("key", UPCASTERS, ids=lambda key: f"{key[0]}-{key[1]}")
@given(more=st.dictionaries(st.text(min_size=1, max_size=3), values, max_size=3))
def test_an_upgrade_is_pure_and_keeps_what_it_does_not_know(key: tuple[str, int], more: dict[str, Any]) -> None:
    money = {"reserved_usd", "cost_usd", "usd", "old", "new", "needed", "limit", "used", "of"}
    data = {**more, **SAMPLES.get(key[0], {"cost_usd": 0.25})}
    copy = json.loads(json.dumps(data))
    result = UPCASTERS[key](data)
    assert data == copy, "its argument belongs to the reader"
    assert UPCASTERS[key](data) == result
    assert {name: value for name, value in result.items() if name in data.keys() - money} == {
        name: value for name, value in data.items() if name not in money
    }
