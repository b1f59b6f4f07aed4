"""Recorded sessions cut off at every event and byte by a kill or a power cut: they open, prove themselves and go on."""

from __future__ import annotations

import asyncio
import os
import random
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fixtures.crash_points import FIRST, LAST, some, within
from fixtures.crash_stories import OF_A_KERNEL, STORIES, Story
from fixtures.crash_world import Point, World, check_calls, check_prefix
from fixtures.model_scripts import Answer
from fixtures.model_server import ModelServer
from fixtures.session_bench import DEADLINE_S, end, session_on

from musecode_jupyter.log import EventLog, Redactor, verify
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.session import GoalHandle, Session
from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.session.crew import LEAD_NAME
from musecode_jupyter.session.grill_handle import GrillHandle
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.session.replay import prove
from musecode_jupyter.skills.grill_state import GrillRecord, grills_of

LONG = "MUSECODE_CRASH_POINTS" in os.environ
CHOSEN = os.environ.get("MUSECODE_CUT_STORIES", ",".join(STORIES) if LONG else "control").split(",")
ASK_EVERY, FINISH_EVERY = 8, int(os.environ.get("MUSECODE_CUT_FINISH", "12"))
MOST_FAILURES = 20
"""After so many points that failed, no more are tried."""

pytestmark = pytest.mark.crash
told: dict[str, set[str]] = {}
points: dict[str, int] = {}


@pytest.fixture(params=CHOSEN)
def story(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(tmp_path: Path, story: str, monkeypatch: pytest.MonkeyPatch) -> World:
    """The story of this name, told and filmed."""
    made = World(tmp_path / "world", tmp_path / "album")
    monkeypatch.setenv("MUSECODE_HOME", str(made.home))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    STORIES[story].tell(made)
    told[story] = {record["kind"] for record in made.records}
    return made


@pytest.mark.timeout(3600)
def test_a_session_cut_off_anywhere_opens_loses_nothing_and_goes_on(
    world: World, story: str, rng: random.Random
) -> None:
    began = time.monotonic()
    at_events = at_every_event(world, STORIES[story], rng)
    in_records = 0 if FIRST or LAST else at_every_byte(world, rng)
    points[story] = at_events + in_records
    print(f"\n{story}: {world.length} events, {at_events} points at events, {in_records} within records, ", end="")
    print(f"{time.monotonic() - began:.0f} s")


def at_every_event(world: World, story: Story, rng: random.Random) -> int:
    """Open the session as it was at each event; ask something of some, and bring the goals of others to their end."""
    chosen = [point for point in world.boundaries() if within(point.whole)]
    if LONG:
        chosen = some(chosen, rng, lambda point: world.records[point.whole - 1]["kind"])
    else:
        chosen = sorted(rng.sample(chosen, 4), key=lambda point: point.cut)
    shift = rng.randrange(ASK_EVERY)
    failures = []
    for number, point in enumerate(chosen, shift):
        at = f"event {point.whole}, {world.records[point.whole - 1]['kind']}"
        try:
            world.restore(point)
            if story.again is not None and (number % FINISH_EVERY == 0 or not LONG):
                finish(world, point, story)
            else:
                reopen(world, point, story, ask=number % ASK_EVERY == 0)
        except Exception as error:
            error.add_note(f"cut at {at}")
            failures.append(error)
            if len(failures) == MOST_FAILURES:
                break
    if failures:
        raise ExceptionGroup(f"{len(failures)} points failed", failures)
    return len(chosen)


def reopen(world: World, point: Point, story: Story, *, ask: bool) -> None:
    """A new process: it opens, every call that had begun has one result, and the next request is valid."""
    with ModelServer(lambda _: Answer("I am here.")) as server:
        with session_on(server.base_url, world.repo, resume=world.name, **story.chosen) as session:
            check_calls(list(session.events()))
            if ask:
                said = session.call(lambda core: core.ask("Are you there?"), timeout=DEADLINE_S)
                assert said == "I am here."
                check_calls(list(session.events()), ended={LEAD_NAME})
        # More than one where a call of the lead's that was cut off asks another agent first.
        assert {request.status for request in server.requests} == ({200} if ask else set())
    check_end(world, point, story)


def finish(world: World, point: Point, story: Story) -> None:
    """A new process goes on with each goal until it is met, and does nothing a second time."""
    assert story.again is not None
    with ModelServer(story.again()) as server:
        with session_on(server.base_url, world.repo, resume=world.name, **story.chosen) as session:
            goals = [session.handle(number) for number, goal in session.goals.goals.items() if not goal.cleared]
            short = [handle for handle in goals if not handle.result.met]
            for handle in short:
                bring_to_its_end(handle)
            for number in [n for n, each in session.read(attacks).items() if each.status == "stopped"]:
                attack = GrillHandle(session, number)
                attack.resume()
                assert attack.wait(DEADLINE_S).status == "ended"
            check_angles(list(session.events()))
            check_calls(list(session.events()), ended=awake(session) if short else ())
        assert {request.status for request in server.requests} <= {200}
    check_end(world, point, story)
    if short:
        assert {name: (world.repo / name).read_text() for name in story.made} == story.made
    traces = [
        path.read_text()
        for path in (world.repo, *(world.home / "worktrees").glob("*"))
        for path in path.glob("trace.txt")
    ]
    assert set(traces) <= {"ran\n"}, "a command ran twice"


def attacks(core: SessionCore) -> dict[int, GrillRecord]:
    return dict(grills_of(core.log).grills)


def check_angles(events: list[Event]) -> None:
    """Nobody is asked again from an angle that was answered."""
    views = {event.seq: event.data["purpose"] for event in events if event.kind == "agent.view"}
    asked = {event.seq: views.get(event.data["view"]) for event in events if event.kind == "model.requested"}
    answered = [asked[event.data["request"]] for event in events if event.kind == "model.completed"]
    angles = [purpose for purpose in answered if (purpose or "").startswith("grill ")]
    assert len(angles) == len(set(angles))


def awake(session: Session) -> set[str]:
    """The agents that went on: a call of one that still sleeps is carried out as it wakes."""
    agents = session.read(lambda core: {name: record.state for name, record in core.agents.agents.items()})
    return {name for name, state in agents.items() if state != "suspended"}


def bring_to_its_end(handle: GoalHandle) -> None:
    """Go on with a goal until it is met, as the user does: with more of what a limit of it left too little of."""
    handle.resume()
    result = end(handle)
    if result.status == "budget":
        handle.edit(usd=9.0, steps=100)
        handle.resume()
        result = end(handle)
    assert result.met, f"{result.status}: {result.why}"


def check_end(world: World, point: Point, story: Story) -> None:
    """What was acknowledged is there, and the whole session, with what was done after the cut, proves itself."""
    check_prefix(world, point, world.folder)
    proof = prove(world.folder, commands=story.of_goals)
    assert proof.ok, proof.problem


def at_every_byte(world: World, rng: random.Random) -> int:
    """Cut the last record at each byte, and it and one in the middle at some with what a file system leaves behind
    that kept the size and lost the data."""
    count = 0
    middle = rng.randrange(len(world.earlier) + 3, world.length)
    every = [(point, 0) for point in world.bytes_of(world.length)]
    zeros = [
        (point, world.line(seq).end - point.cut) for seq in (middle, world.length) for point in world.bytes_of(seq)
    ]
    chosen = [*every, *rng.sample(zeros, 40)] if LONG else [*rng.sample(every, 10), *rng.sample(zeros, 10)]
    for point, lost in chosen:
        count += 1
        try:
            recover(world, point, lost)
        except BaseException as error:
            error.add_note(f"cut at byte {point.cut}, after event {point.whole}, {lost} zeros behind it")
            raise
    return count


def recover(world: World, point: Point, zeros: int) -> None:
    """The log opens, holds all whole records, says what it put aside, and that is byte for byte what was torn."""
    folder = world.folder_alone(point, zeros=zeros)
    log = EventLog.open(folder, reducers=all_reducers(), redactor=Redactor([]), now=lambda: datetime.now(UTC))
    asyncio.run(log.close())
    check_prefix(world, point, folder)
    (kept,) = (folder / "quarantine").iterdir()
    assert kept.read_bytes() == world.content[point.cut - point.torn : point.cut] + bytes(zeros)
    report = verify(folder, all_reducers())
    assert report.ok, report.first_problem


@pytest.mark.skipif([*STORIES] != CHOSEN, reason="needs all stories")
def test_the_stories_write_every_kind_there_is() -> None:
    """A kind that no story writes is one whose crashes nobody tries: it brings its own story."""
    written = set().union(*told.values())
    assert set(KINDS) - written - OF_A_KERNEL == set()


@pytest.mark.skipif([*STORIES] != CHOSEN or bool(FIRST or LAST), reason="needs all stories, whole")
def test_two_thousand_points_at_least_were_cut() -> None:
    print(f"\n{sum(points.values())} points in {len(points)} stories")
    assert sum(points.values()) >= 2_000
