"""Journals of every version of the schema, with every kind of event: they verify, fold and give their prompts."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from fixtures.golden_story import Story, expected, kinds_of, ticking, write_story

from musecode_jupyter.agents import frames
from musecode_jupyter.agents.tasks.state import TasksReducer
from musecode_jupyter.guard.tiers import TiersReducer
from musecode_jupyter.log import EventLog, Fold, Redactor, eventlog, events, journal, record, upcast, verify
from musecode_jupyter.log.events import SCHEMA_VERSION
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.session.replay import prove
from musecode_jupyter.skills.goal_state import GoalsReducer

JOURNALS = Path(__file__).parents[1] / "fixtures" / "journals"
NEWEST = JOURNALS / f"story-v{SCHEMA_VERSION}"
STORIES = sorted(JOURNALS.glob("story-v*"))
REWRITE = (
    "If the change is meant and this version of the schema was not released yet, write the story again: "
    f"PYTHONPATH=tests python tests/fixtures/golden_story.py tests/fixtures/journals/{NEWEST.name}. If it was, "
    "raise SCHEMA_VERSION (log/upcast.py says how), or give a reducer whose fold changed a new name"
)


def test_there_is_a_story_of_every_version() -> None:
    assert [path.name for path in STORIES] == [f"story-v{n}" for n in range(1, SCHEMA_VERSION + 1)]


def test_the_newest_story_has_every_kind_of_event() -> None:
    assert kinds_of(NEWEST) == set(KINDS), f"tests/fixtures/golden_story.py lacks a kind. {REWRITE}"


@pytest.mark.parametrize("folder", STORIES, ids=lambda path: path.name)
def test_a_story_of_any_version_verifies_with_its_prompts(folder: Path) -> None:
    proof = prove(folder)
    kept = json.loads((folder / "expected.json").read_text())
    assert proof.problem is None, REWRITE
    assert (proof.events, proof.prompts) == (kept["events"], kept["prompts"])


def test_every_slice_of_the_newest_story_is_compared() -> None:
    """A changed shape would otherwise hide a changed fold from all tests at once."""
    report = verify(NEWEST, all_reducers())
    assert (report.skipped, report.digests) == ((), 2), REWRITE


@pytest.mark.parametrize("folder", STORIES, ids=lambda path: path.name)
def test_a_story_folds_to_the_state_that_it_had(folder: Path) -> None:
    """Slices of another shape or name than today's are not compared; `verify` of the session says the same."""
    kept = json.loads((folder / "expected.json").read_text())
    now = expected(folder)
    skipped = set(verify(folder, all_reducers()).skipped)
    for name in kept["state"].keys() - skipped:
        assert now["state"][name] == kept["state"][name], REWRITE


def test_the_newest_story_is_written_the_same_way_today(tmp_path: Path) -> None:
    """The encoding of events, digests and requests: what one version writes, the next continues and rebuilds."""
    write_story(tmp_path / "story")
    for name in ("journal/000001.jsonl", "expected.json"):
        lines = [(folder / name).read_text().splitlines() for folder in (tmp_path / "story", NEWEST)]
        for written, kept in zip(*lines, strict=False):
            assert written == kept, REWRITE
        assert len(lines[0]) == len(lines[1])


def test_a_reducer_names_all_kinds_that_change_its_slice() -> None:
    """What it does not name it is not asked about: the slice would differ from that of a reducer asked about all."""
    some, every = Fold(all_reducers()), all_reducers()
    states = {each.name: each.initial() for each in every}
    for event in EventLog.read(NEWEST).events():
        some.apply(event)
        for reducer in every:
            if isinstance(reducer, GoalsReducer | TasksReducer | TiersReducer):
                reducer.glance(states[reducer.name], event)
            reducer.apply(states[reducer.name], event)
            assert some.state(reducer.name) == states[reducer.name], f"{event.kind} changes {reducer.name}"


def test_the_state_after_any_event_can_be_put_back_from_its_text() -> None:
    """As a snapshot does: what follows is folded to the same state, in the same order."""
    whole = Fold(all_reducers())
    events = list(EventLog.read(NEWEST).events())
    parts: list[Fold] = []
    for number, event in enumerate(events):
        for fold in (whole, *parts):
            fold.apply(event)
        if number % 10 == 0:
            part = Fold(all_reducers())
            part.restore(json.loads(whole.states_text()))
            assert [part.state(each.name) for each in all_reducers()] == [
                whole.state(each.name) for each in all_reducers()
            ]
            parts.append(part)
    assert {part.states_text() for part in parts} == {whole.states_text()}
    assert {part.digest() for part in parts} == {whole.digest()}


@pytest.mark.parametrize("folder", STORIES, ids=lambda path: path.name)
def test_data_of_any_version_is_read_in_todays_form(folder: Path) -> None:
    for event in EventLog.read(folder).events():
        assert set(event.data) <= set(KINDS[event.kind].model_fields), event.kind
        KINDS[event.kind].model_validate(dict(event.data))


def test_the_shapes_that_version_1_did_not_record_are_those_that_it_had() -> None:
    """As long as a slice has that shape still, digests of version 1 are compared with it."""
    recorded = [each for each in EventLog.read(STORIES[0]).events() if each.kind == "state.digest"]
    written = json.loads((STORIES[0] / "journal" / "000001.jsonl").read_text().splitlines()[recorded[0].seq - 1])
    assert "shapes" not in written["data"]
    assert set(recorded[0].data["shapes"]) == set(recorded[0].data["slices"])


def _next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (events, eventlog, journal, record, upcast):
        monkeypatch.setattr(module, "SCHEMA_VERSION", SCHEMA_VERSION + 1)


def _other_words() -> frames.Frames:
    return frames.Frames(
        goal=lambda data: f"Please: {data['text']}",
        graph=lambda data: f"Split: {data['text']}",
        edited=lambda text: f"Now: {text}",
        cell=lambda text: f"Cell: {text}",
        fence=lambda text: f"<<{text}>>",
        mail=lambda sender, data: f"{sender}: {data['text']}",
        picture=lambda caption: f"no {caption}",
    )


@pytest.mark.parametrize("folder", STORIES, ids=lambda path: path.name)
def test_other_words_of_a_later_version_leave_the_prompts_of_older_events_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of a goal is composed when a prompt is rebuilt: a new wording made every older session fail."""
    shutil.copytree(folder, tmp_path / "s")
    _next_version(monkeypatch)
    monkeypatch.setitem(frames.FRAMES, SCHEMA_VERSION + 1, _other_words())
    kept = json.loads((folder / "expected.json").read_text())
    assert prove(tmp_path / "s").problem is None

    async def go_on() -> None:
        log = EventLog.open(
            tmp_path / "s", reducers=all_reducers(), redactor=Redactor(), now=ticking(events_end(folder))
        )
        story = Story(log)
        for text in ("first", "second"):
            await story.say("goal.edited", goal=goal_of(log), agent="lead", old={}, new={}, text=text)
            await story.say("model.abandoned", "lead", request=await story.ask("lead"), why="cut", cost_microusd=0)
        await log.close()

    asyncio.run(go_on())
    proof = prove(tmp_path / "s")
    assert (proof.problem, proof.prompts) == (None, kept["prompts"] + 2)
    sent = EventLog.read(tmp_path / "s")
    assert {event.v for event in sent.events()} >= {SCHEMA_VERSION + 1}


def test_words_that_are_changed_in_place_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    words = frames.FRAMES[1]
    for name in ("goal", "graph", "edited", "cell", "fence", "picture"):
        with monkeypatch.context() as patch:
            patch.setitem(frames.FRAMES, 1, replace(words, **{name: getattr(_other_words(), name)}))
            problem = prove(NEWEST).problem
        assert problem is not None, name
        assert "the rebuilt prompt" in problem, name


def events_end(folder: Path) -> datetime:
    return datetime.fromisoformat(list(EventLog.read(folder).events())[-1].ts) + timedelta(days=1)


def goal_of(log: EventLog) -> int:
    return max(event.seq for event in log.events() if event.kind == "goal.set")
