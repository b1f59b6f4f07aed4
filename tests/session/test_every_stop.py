"""Every state in which a goal can stop, reached by a real session and gone on from in another one to a met goal."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from fixtures.model_scripts import Answer, Call, Fault, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, DONE, EDIT, Repo, end, only, run_of, session_on

from musecode_jupyter.log.kinds import GoalStopped
from musecode_jupyter.session import GoalHandle, GoalSpec, Session, goal_watch
from musecode_jupyter.session.budget import clear_budget, set_budget
from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.session.replay import prove

LOOK = Answer("I look.", [Call("read", {"path": "answer.txt"})])
SAY_RIGHT = GoalSpec("say right", (CHECK,))
REFUSED = Answer(fault=Fault("status", status=400, code="invalid_request_error", message="No such thing."))


def nothing(_session: Session, _handle: GoalHandle, _repo: Repo) -> None:
    """Resuming is enough."""


def more(**limits: Any) -> Callable[[Session, GoalHandle, Repo], None]:
    """The goal gets a higher limit."""
    return lambda _session, handle, _repo: handle.edit(**limits)


def limited(**limits: Any) -> Callable[[Session, Repo], None]:
    """A limit of another scope is set before the goal begins."""
    return lambda session, _repo: session.call(lambda core: set_budget(core, **limits))


def unlimited(session: Session, _handle: GoalHandle, _repo: Repo) -> None:
    """The user takes the limits of all scopes away."""
    session.call(clear_budget)


def little_disk(session: Session, _repo: Repo) -> None:
    """A megabyte more than there is now."""

    async def limit(core: SessionCore) -> None:
        await core.disk.refresh(always=True)
        await set_budget(core, disk=core.disk.held + 1_000_000)

    session.call(limit)


def in_the_way(_session: Session, repo: Repo) -> None:
    repo.write("answer.txt", "the user's\n")


def out_of_the_way(_session: Session, _handle: GoalHandle, repo: Repo) -> None:
    repo.git("checkout", "--quiet", "answer.txt")


@dataclass(frozen=True)
class Stop:
    """A way to `state`: what the model does, what else, what the user does before resuming; `why` is in the reason."""

    state: str
    why: str
    answers: Sequence[Answer] = (EDIT, DONE)
    spec: GoalSpec = SAY_RIGHT
    before: Callable[[Session, Repo], None] = lambda _session, _repo: None
    remedy: Callable[[Session, GoalHandle, Repo], None] = nothing


def spec(**limits: Any) -> GoalSpec:
    return GoalSpec("say right", limits.pop("verify", (CHECK,)), **limits)


STOPS = {
    "budget of money": Stop("budget", "USD (goal", spec=spec(usd=0.001), remedy=more(usd=5.0)),
    "budget of tokens": Stop("budget", "tokens", spec=spec(tokens=100), remedy=more(tokens=10**7)),
    "budget of calls": Stop("budget", "1 of 1 tool calls", spec=spec(calls=1), remedy=more(calls=50)),
    "budget of steps": Stop("budget", "1 of 1 model calls", spec=spec(steps=1), remedy=more(steps=50)),
    "budget of hours": Stop("budget", "are over", spec=spec(hours=1e-9), remedy=more(hours=5.0)),
    "budget of the session": Stop("budget", "(this session)", before=limited(tokens=100), remedy=unlimited),
    "budget of an agent": Stop("budget", "(agent lead)", before=limited(agent="lead", steps=1), remedy=unlimited),
    "budget of the day": Stop("budget", "(all sessions today)", before=limited(tokens=100, day=True), remedy=unlimited),
    "budget of processes": Stop(
        "budget",
        "processes",
        [run_of("echo 1"), run_of("echo 2"), EDIT, DONE],
        before=limited(processes=2),
        remedy=unlimited,
    ),
    "budget of disk": Stop(
        "budget",
        "MB on disk",
        [run_of("head -c 3000000 /dev/zero > big; sync big"), run_of("rm big"), EDIT, DONE],
        before=little_disk,
        remedy=unlimited,
    ),
    "stalled without a call": Stop("stalled", "3 turns without", [DONE, DONE, DONE, EDIT, DONE]),
    "stalled with calls": Stop(
        "stalled", "Nothing has moved", [*(run_of(f"echo {number}") for number in range(6)), EDIT, DONE]
    ),
    "wedged": Stop("wedged", "One call was made 4 times", [LOOK, LOOK, LOOK, LOOK, EDIT, DONE]),
    "blocked by what is green": Stop(
        "blocked",
        "already green",
        spec=spec(verify=("true",)),
        remedy=lambda _session, handle, _repo: handle.edit(verify=CHECK),
    ),
    "blocked by the user's file": Stop(
        "blocked", "answer.txt", [EDIT, DONE, DONE], before=in_the_way, remedy=out_of_the_way
    ),
    "error of the server": Stop("error", "No such thing", [REFUSED, EDIT, DONE]),
}


def test_the_table_has_every_state() -> None:
    """`stopped` is the user's, and has a test of its own."""
    states = set(get_args(GoalStopped.model_fields["state"].annotation))
    assert {stop.state for stop in STOPS.values()} | {"stopped"} == states


LONG = [
    pytest.mark.crash,
    pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="one more whole session: run by make crash"),
]
# Reached and gone on from in tests of their own too, in one process.
ELSEWHERE = {
    *("budget of money", "budget of tokens", "budget of calls", "budget of hours", "budget of the session"),
    *("stalled with calls", "wedged"),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG if name in ELSEWHERE else []) for name in STOPS])
def test_a_stop_says_why_and_what_next_and_is_gone_on_from_to_a_met_goal(
    repo: Repo, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = STOPS[name]
    monkeypatch.setattr(goal_watch, "QUIET_ANSWERS", 2)
    monkeypatch.setattr(goal_watch, "SAME_CALLS", 2)
    with ModelServer(Steps(stop.answers)) as server:
        with session_on(server.base_url, repo.root) as session:
            stop.before(session, repo)
            result = end(session.start_goal(stop.spec))
            assert result.status == stop.state, result.why
            assert stop.why.lower() in result.why.lower()
            assert [line.split(":")[0] for line in result.handover] == ["Done", "Left", "Next", "Go on"]
            assert len(only(session.events(), "goal.stopped")) == 1
        with session_on(server.base_url, repo.root, resume="last") as again:
            handle = again.newest_goal()
            assert handle.result.handover == result.handover
            assert handle.status == stop.state
            stop.remedy(again, handle, repo)
            handle.resume()
            ended = end(handle)
            assert ended.met, ended.why
            proof = prove(again.folder)
            assert proof.ok, proof.problem
    assert repo.read("answer.txt") == "right\n"
