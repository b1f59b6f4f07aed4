"""What a recorded session sums up to, what is sent, and that another model can go on with it."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import datetime
from pathlib import Path

from fixtures.make_repo import make_repo
from fixtures.model_server import Answer, ModelServer, RepairModel, load_repairs

from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.session import Settings, open_session
from musecode_jupyter.session.core import GoalSpec
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
