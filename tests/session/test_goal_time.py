"""The time of a goal: only that in which it ran counts, also across pauses, stops and killed processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fixtures.model_scripts import Answer, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, DEADLINE_S, DONE, EDIT, MODEL, Held, Hurried, Repo, end, session_on, start
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Fold
from musecode_jupyter.skills.goal_state import GoalsReducer, GoalsState
from musecode_jupyter.skills.limits import duration

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock(Hurried):
    """A clock that stands still but for `pass_`."""

    def __init__(self) -> None:
        super().__init__()
        self._now = START

    def now(self) -> datetime:
        return self._now

    def pass_(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class Slow:
    """Answers in order, the last one again and again; each takes `seconds` on the clock."""

    def __init__(self, answers: list[Answer], clock: Clock, seconds: float) -> None:
        self._answers, self._clock, self._seconds = answers, clock, seconds

    def __call__(self, request: ParsedRequest) -> Answer:
        self._clock.pass_(self._seconds)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def test_pauses_and_stops_do_not_count(repo: Repo) -> None:
    """The limit of hours counted from the start of the goal, nights included."""
    clock = Clock()
    script = Held([EDIT, EDIT, DONE], hold=0)
    with ModelServer(script) as server, session_on(server.base_url, repo.root, effects=clock) as session:
        handle = start(session, hours=1.0)
        script.wait()
        clock.pass_(600)
        assert handle.result.seconds == 600
        handle.stop()
        clock.pass_(24 * 3600)
        assert handle.result.seconds == 600
        server.script = Slow([EDIT, DONE], clock, 60)
        script.release()
        handle.resume()
        result = end(handle)
        clock.pass_(3600)
        assert result.met
        assert result.seconds == handle.result.seconds == 720


def test_the_limit_of_hours_is_of_the_time_that_the_goal_ran(repo: Repo) -> None:
    clock = Clock()
    with (
        ModelServer(Slow([EDIT, DONE], clock, 11)) as server,
        session_on(server.base_url, repo.root, effects=clock) as session,
    ):
        handle = start(session, hours=0.003)
        result = end(handle)
        assert (result.status, result.why) == ("budget", "11 s of 11 s are over.")
        assert result.more == "--hours 0.0061"
        handle.edit(hours=1.0)
        handle.resume()
        assert end(handle).met


def test_a_session_that_was_closed_meanwhile_goes_on_with_what_is_left(repo: Repo) -> None:
    clock = Clock()
    script = Held([EDIT, EDIT, DONE], hold=0)
    with ModelServer(script) as server:
        with session_on(server.base_url, repo.root, effects=clock) as session:
            start(session, hours=1.0)
            script.wait()
            clock.pass_(1800)
        script.release()
        later = Clock()
        later.pass_(7 * 24 * 3600)
        with session_on(server.base_url, repo.root, resume="last", effects=later) as again:
            handle = again.newest_goal()
            assert handle.result.seconds == 1800
            handle.resume()
            assert end(handle).met
            assert handle.result.seconds == 1800


def test_the_time_after_a_kill_does_not_count(repo: Repo, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the last event of the process that was killed; the gap until the next one is nobody's."""
    monkeypatch.setenv("MUSECODE_MODEL", MODEL)
    monkeypatch.setenv("MUSECODE_API", "responses")
    script = Held([EDIT, EDIT, DONE], hold=0)
    with ModelServer(script) as server:
        monkeypatch.setenv("MUSECODE_BASE_URL", server.base_url)
        command = ("run", "--repo", str(repo.root), "--goal", "say right", "--verify", CHECK, "--json")
        killed = subprocess.Popen(
            [sys.executable, "-B", "-m", "musecode_jupyter.cli", *command], stdout=subprocess.PIPE, text=True
        )
        script.wait()
        killed.send_signal(signal.SIGKILL)
        out, _ = killed.communicate(timeout=DEADLINE_S)
        assert '"model.requested"' in out
        script.release()
        tomorrow = Hurried()
        monkeypatch.setattr(tomorrow, "now", lambda: datetime.now(UTC) + timedelta(days=1))
        with session_on(server.base_url, repo.root, resume="last", effects=tomorrow) as again:
            handle = again.newest_goal()
            ran = handle.result.seconds
            assert 0 < ran < 3600
            handle.resume()
            assert end(handle).met
            assert ran < handle.result.seconds < 3600


# One step of a goal's life: what happens, and how many seconds pass before it.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["rest", "stop", "resume", "work", "kill"]),
        st.floats(0, 1e6).map(lambda seconds: round(seconds, 3)),
    ),
    max_size=30,
)


@given(STEPS)
def test_the_fold_counts_the_running_intervals_and_nothing_else(steps: list[tuple[str, float]]) -> None:
    fold, at, gen, seq = Fold([GoalsReducer()]), START, 1, 1
    state = fold.state("goals")
    assert isinstance(state, GoalsState)

    def happens(kind: str, **data: object) -> None:
        nonlocal seq
        seq += 1
        fold.apply(Event(1, seq, at.isoformat(), gen, seq, "lead", 0, (), kind, "", data))

    goal = seq + 1
    limits = dict.fromkeys(("microusd", "tokens", "calls", "hours", "steps"))
    happens("goal.set", text="x", verify=["y"], agent="lead", branch="main", base="0", **limits)
    running, expected = True, 0.0
    for what, seconds in steps:
        at += timedelta(seconds=seconds)
        # The time before a kill has no event at its end: it counts for nothing, running or not.
        expected += seconds if running and what != "kill" else 0.0
        if what == "kill":
            gen += 1
            happens("session.resumed")
            if running:
                happens("goal.paused", goal=goal, why="restart")
            running = False
        elif what == "resume" and not running:
            happens("goal.resumed", goal=goal, why="")
            running = True
        elif what == "rest" and running:
            happens("goal.paused", goal=goal, why="")
            running = False
        elif what == "stop" and running:
            happens("goal.stopped", goal=goal, state="stopped", why="")
            running = False
        else:
            happens("agent.state", state="running", why="")
        assert state.goals[goal].seconds(at) == pytest.approx(expected, abs=1e-3)
        # Later than the last event, only a goal that runs has got older.
        later = at + timedelta(seconds=5)
        assert state.goals[goal].seconds(later) == pytest.approx(expected + 5 * running, abs=1e-3)


def test_a_clock_that_was_set_back_takes_no_time_away(repo: Repo) -> None:
    clock = Clock()
    script = Held([EDIT, EDIT, DONE], hold=0)
    with ModelServer(script) as server, session_on(server.base_url, repo.root, effects=clock) as session:
        handle = start(session)
        script.wait()
        clock.pass_(100)
        handle.stop()
        script.release()
        clock.pass_(-7 * 3600)
        handle.resume()
        assert end(handle).met
        assert handle.result.seconds == 100


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0000036, "3.6e-06 s"),
        (0.5, "0.5 s"),
        (11, "11 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7200, "2 h"),
        (9000, "2.5 h"),
    ],
)
def test_times_read_as_a_person_says_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said
