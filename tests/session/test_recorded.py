"""A recorded session, run again by the real code on recorded effects, issues the same commands in the same order."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fixtures.make_repo import make_repo
from fixtures.model_server import Answer, ModelServer, RepairModel, load_repairs

from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.loop import RuntimeThread
from musecode_jupyter.session import Settings, open_session
from musecode_jupyter.session.core import GoalSpec, SessionCore
from musecode_jupyter.session.recorded import RecordedEffects, answers
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.session.replay import prove

GOAL = GoalSpec("make the tests pass", ("python -m pytest -q",))


def record(tmp_path: Path, base_url: str, **settings: str) -> tuple[Settings, list[Event]]:
    """Run a goal for real; its settings and its events."""
    chosen = Settings(
        home=tmp_path / "home",
        base_url=base_url,
        model="muse-spark-1.3",
        approvals="allow-workspace",
        **settings,
    )
    with open_session(make_repo("tensor", tmp_path / "first"), settings=chosen) as session:
        assert session.start_goal(GOAL).wait().met
        folder = session.folder
    return chosen, list(EventLog.read(folder).events())


def rerun(tmp_path: Path, settings: Settings, events: list[Event]) -> list[Event]:
    """Run the same goal on a fresh copy of the repository, with every answer taken from `events`."""
    effects = RecordedEffects(events, LiveEffects())
    again = dataclasses.replace(settings, home=tmp_path / "again")
    repo = make_repo("tensor", tmp_path / "second")

    async def run() -> Path:
        core = await SessionCore.create(repo, again, effects, interactive=False, client=answers(events))
        await core.wait(await core.set_goal(GOAL))
        await core.close("replayed")
        return core.log.folder

    thread = RuntimeThread.start()
    try:
        folder = thread.call(run(), timeout=120)
    finally:
        thread.stop()
    again_events = list(EventLog.read(folder).events())
    # What went otherwise is at the end.
    assert effects.remaining == 0, [(event.kind, dict(event.data)) for event in again_events[-4:]]
    return again_events


def commands(events: list[Event], agent: str) -> list[dict[str, Any]]:
    """What `agent` asked for, in its order."""
    fields = {"tool.requested": ("name", "arguments", "origin", "purpose"), "model.requested": ("digest", "items")}
    return [
        {"kind": event.kind, **{name: event.data[name] for name in fields[event.kind]}}
        for event in events
        if event.kind in fields and event.agent == agent
    ]


@pytest.mark.parametrize(
    "settings",
    [{"api": "responses"}, {"api": "chat"}, {"api": "messages"}, {"api": "chat", "profile": "guided"}],
    ids=["driver over responses", "driver over chat", "driver over messages", "guided over chat"],
)
def test_replay_issues_the_same_commands(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    with ModelServer(RepairModel(load_repairs("tensor"))) as server:
        chosen, first = record(tmp_path, server.base_url, **settings)
        asked = len(server.requests)
        second = rerun(tmp_path, chosen, first)
        assert len(server.requests) == asked, "the replay used the network"
    for agent in ("lead", "harness"):
        assert commands(second, agent) == commands(first, agent)
    assert any(event.kind == "goal.met" for event in second)


def test_replay_names_the_event_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    with ModelServer(RepairModel(load_repairs("tensor"))) as server:
        chosen, first = record(tmp_path, server.base_url, api="chat")
    call = next(e for e in first if e.kind == "tool.requested" and e.data["purpose"] == "baseline")
    other = {**call.data, "arguments": {**call.data["arguments"], "command": "python -m pytest -x"}}
    changed = [dataclasses.replace(e, data=other) if e.seq == call.seq else e for e in first]
    effects = RecordedEffects(changed, LiveEffects())
    again = dataclasses.replace(chosen, home=tmp_path / "again")
    repo = make_repo("tensor", tmp_path / "second")

    async def run() -> tuple[str, str]:
        core = await SessionCore.create(repo, again, effects, interactive=False, client=answers(changed))
        number = await core.set_goal(GOAL)
        record = await core.wait(number)
        await core.close("replayed")
        failed = [e for e in core.log.events() if e.kind == "tool.failed"]
        return record.status, str(failed[0].data["output"]) if failed else ""

    thread = RuntimeThread.start()
    try:
        _status, output = thread.call(asyncio.wait_for(run(), 60))
    finally:
        thread.stop()
    assert f"Event {call.seq}, field command" in output


def test_three_replays_have_the_same_totals(tmp_path: Path) -> None:
    """Money that is counted again at each look at a session is how totals drift."""
    with ModelServer(RepairModel(load_repairs("tensor"))) as server:
        _, events = record(tmp_path, server.base_url, api="chat", profile="driver")
    (folder,) = (tmp_path / "home" / "sessions").iterdir()
    totals = [EventLog.read(folder, reducers=all_reducers()).state("ledger") for _ in range(3)]
    assert totals[0].total.calls == sum(event.kind == "model.completed" for event in events) > 0
    assert totals[0] == totals[1] == totals[2]


class Elsewhen(LiveEffects):
    """The real world at another time."""

    def __init__(self, year: int) -> None:
        super().__init__()
        self._year = year

    def now(self) -> datetime:
        return super().now().replace(year=self._year)


def test_no_clock_and_no_session_in_what_is_sent(tmp_path: Path) -> None:
    """A date or an id in the prefix would cost the provider's cache every day, or every session."""
    bodies = []
    for year in (2027, 2041):
        settings = Settings(home=tmp_path / str(year), model="muse-spark-1.3", approvals="allow-workspace")
        (tmp_path / f"repo-{year}").mkdir()
        with ModelServer(lambda _: Answer("It is an empty folder.")) as server:
            chosen = dataclasses.replace(settings, base_url=server.base_url)
            with open_session(tmp_path / f"repo-{year}", settings=chosen, effects=Elsewhen(year)) as session:
                assert asyncio.run(session.ask("What is here?")) == "It is an empty folder."
            bodies.append(server.requests[0].body)
    assert bodies[0] == bodies[1]


def test_a_session_resumed_with_another_model_goes_on_and_verifies(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    settings = Settings(home=tmp_path / "home", model="muse-spark-1.3", approvals="allow-workspace")
    with ModelServer(lambda request: Answer(f"I am {request.model}.")) as server:
        chosen = dataclasses.replace(settings, base_url=server.base_url)
        with open_session(tmp_path / "repo", settings=chosen) as session:
            asyncio.run(session.ask("Who are you?"))
            name = session.id
        other = dataclasses.replace(chosen, model="muse-spark-1.1")
        with open_session(tmp_path / "repo", settings=other, resume=name) as session:
            assert asyncio.run(session.ask("And now?")) == "I am muse-spark-1.1."
            folder = session.folder
        assert [request.json["model"] for request in server.requests] == ["muse-spark-1.3", "muse-spark-1.1"]
        assert len(server.requests[1].json["input"]) == 3
    assert prove(folder).ok
