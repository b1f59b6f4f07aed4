"""What is said while a goal runs, and how it stops: warnings of limits, the reserve, stalls, and how each goes on."""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.model_scripts import Answer, Call, Fault, ParsedRequest, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, DONE, EDIT, Held, Repo, end, only, run_of, said, session_on, start

from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.runtime.money import MICRO, limit_microusd
from musecode_jupyter.session import GoalSpec, goal_watch
from musecode_jupyter.session.clauses import clauses_of
from musecode_jupyter.session.replay import prove
from musecode_jupyter.skills.clauses import ClauseOptions

LOOK = Answer("I look.", [Call("read", {"path": "answer.txt"})])


class Looks:
    """A model that only looks, at something else each time, until `until`; then it does what is left."""

    def __init__(self, until: int, *then: Answer) -> None:
        self._until = until
        self._then = list(then)
        self._given = 0

    def __call__(self, request: ParsedRequest) -> Answer:
        self._given += 1
        if self._given <= self._until:
            return run_of(f"echo {self._given}")
        return self._then.pop(0) if len(self._then) > 1 else self._then[0]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goal_watch, "QUIET_ANSWERS", 2)
    monkeypatch.setattr(goal_watch, "SAME_CALLS", 2)


class TestWarnings:
    def test_each_share_of_a_limit_is_told_once_also_over_a_restart(self, repo: Repo) -> None:
        script = Steps([LOOK, run_of("echo 1"), run_of("echo 2"), run_of("echo 3"), LOOK, EDIT, DONE])
        with ModelServer(script) as server:
            with session_on(server.base_url, repo.root) as session:
                handle = start(session, steps=4)
                assert end(handle).status == "budget"
                told = [(e.data["limit"], e.data["percent"]) for e in only(session.events(), "goal.warned")]
                assert told == [("steps", 50), ("steps", 95)]
                assert any("50% of the limit on steps is used: 2 of 4" in each for each in session.take_notices())
            with session_on(server.base_url, repo.root, resume="last") as again:
                handle = again.newest_goal()
                handle.resume()
                assert end(handle).status == "budget"
                assert len(only(again.events(), "goal.warned")) == 2
                handle.edit(steps=40)
                handle.resume()
                assert end(handle).met
                assert len(only(again.events(), "goal.warned")) == 2
                assert prove(again.folder).ok

    def test_money_is_told_in_whole_micro_dollars_and_anew_once_the_limit_is_another_one(self, repo: Repo) -> None:
        # Reserves stay as spent, since the server says no usage.
        script = Held([replace(each, fault=Fault("no_usage")) for each in (LOOK, EDIT)] + [DONE], hold=1)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session, usd=100.0)
            script.wait()
            used = session.ledger.total.microusd
            handle.edit(usd=1.5 * used / MICRO)
            script.release()
            assert end(handle).status == "budget"
            warned = only(session.events(), "goal.warned")
            told = [each for each in session.take_notices() if "95% of the limit on usd is used" in each]
            handle.edit(usd=100.0)
            again = session.read(lambda core: dict(clauses_of(core, handle.number).percents))
            handle.resume()
            assert end(handle).met
            assert prove(session.folder).ok
        (event,) = warned
        assert (event.data["limit"], event.data["percent"]) == ("microusd", 95)
        assert 1.9 * used < event.data["used"] < 2.2 * used
        assert event.data["of"] == limit_microusd(1.5 * used / MICRO)
        assert len(told) == 1
        assert "microusd" not in again


class TestReserve:
    def spec(self, steps: int) -> GoalSpec:
        return GoalSpec("say right", (CHECK,), steps=steps, clauses=ClauseOptions(reserve="50%"))

    def test_the_reserve_is_for_the_last_verification_which_may_meet_the_goal(self, repo: Repo) -> None:
        script = Steps([EDIT, LOOK, LOOK])
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = session.start_goal(self.spec(4))
            assert end(handle).met
            exhausted = only(session.events(), "goal.exhausted")
            assert only(session.events(), "goal.claimed") == []
            assert prove(session.folder).ok
        assert [e.data["limit"] for e in exhausted] == ["steps"]
        assert "50% are kept for the last verification" in exhausted[0].data["why"]
        assert len(server.requests) == 2
        assert repo.read("answer.txt") == "right\n"

    def test_a_last_verification_that_fails_stops_on_the_budget_and_goes_on_with_more(self, repo: Repo) -> None:
        wrong = Answer("", [Call("edit", {"path": "other.txt", "old": "other", "new": "no"})])
        script = Steps([LOOK, wrong, EDIT, DONE])
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = session.start_goal(self.spec(4))
            result = end(handle)
            assert result.status == "budget"
            assert "The last verification did not pass" in result.why
            assert (result.more, len(server.requests)) == ("--steps 8", 2)
            assert f"Left: `{CHECK}` fails." in result.handover
            handle.edit(steps=20)
            handle.resume()
            assert end(handle).met
            assert prove(session.folder).ok


@pytest.mark.usefixtures("impatient")
class TestStalls:
    def test_what_does_not_move_is_told_twice_then_stops_and_goes_on(self, repo: Repo) -> None:
        script = Looks(6, EDIT, DONE)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            result = end(handle)
            assert result.status == "stalled"
            assert [e.data["step"] for e in only(session.events(), "goal.nudged")] == ["other idea", "profile"]
            assert len(server.requests) == 6
            assert result.handover == (
                "Done: nothing was changed.",
                "Left: all of it: nothing was judged yet.",
                "Next: say what to try instead with `%goal steer TEXT`, or change the goal with `%goal edit`.",
                "Go on: `%goal resume`.",
            )
            handle.resume()
            assert end(handle).met
            assert prove(session.folder).ok
        assert "try a different class of idea" in said(server.requests[2].json)[-1]
        assert f"- `{CHECK}` fails (exit 1)" in said(server.requests[4].json)[-1]

    @pytest.mark.crash
    @pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="one more whole session: run by make crash")
    def test_work_that_goes_back_and_forth_does_not_move(self, repo: Repo) -> None:
        def swap(old: str, new: str) -> Answer:
            return Answer("", [Call("edit", {"path": "other.txt", "old": old, "new": new})])

        turns = [swap("other", "this") if n % 2 == 0 else swap("this", "other") for n in range(20)]
        with ModelServer(Steps(turns)) as server, session_on(server.base_url, repo.root) as session:
            result = end(start(session))
        assert result.status == "stalled"
        # Two contents are new, all after that is none.
        assert len(server.requests) == 2 + 6

    def test_one_call_again_and_again_is_wedged_and_goes_on(self, repo: Repo) -> None:
        script = Steps([LOOK, LOOK, LOOK, LOOK, EDIT, DONE])
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            result = end(handle)
            assert result.status == "wedged"
            assert "One call was made 4 times in a row" in result.why
            assert "same call" in [e.data["step"] for e in only(session.events(), "goal.nudged")]
            assert "do something else" in " ".join(said(server.requests[2].json))
            handle.resume()
            assert end(handle).met
            assert prove(session.folder).ok


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_does_not_move_is_told_and_its_task_waits_while_the_others_land(repo: Repo) -> None:
    repo.commit({f"{name}.txt": "wrong\n" for name in ("one", "two")})
    graph = [
        {"name": name, "goal": f"Mend {name}.txt.", "accept": [f"grep -q right {name}.txt"], "writes": [f"{name}.txt"]}
        for name in ("one", "two")
    ]
    looking = threading.Event()
    looking.set()
    asked: list[ParsedRequest] = []

    def model(request: ParsedRequest) -> Answer:
        first = next(item["text"] for item in request.items if item.get("text", "").startswith("Task "))
        name = "two" if first.startswith("Task two") else "one"
        done = [item for item in request.items if item["type"] == "tool_result"]
        if name == "two" and looking.is_set():
            asked.append(request)
            return run_of(f"echo {len(done)}")
        path = f"{name}.txt"
        if any(item["type"] == "tool_call" and item["name"] == "edit" for item in request.items):
            return DONE
        return Answer("", [Call("edit", {"path": path, "old": "wrong", "new": "right"})])

    spec = GoalSpec("mend both", tuple(g["accept"][0] for g in graph), workers=2, tasks=parse_tasks(graph))
    with ModelServer(model) as server, session_on(server.base_url, repo.root) as session:
        handle = session.start_goal(spec)
        result = end(handle)
        events = list(session.events())
        assert result.status == "blocked", result.why
        told = [(e.data["agent"], e.data["step"]) for e in only(events, "goal.nudged")]
        assert [step for _, step in told] == ["other idea", "profile"]
        stuck = {agent for agent, _ in told}
        assert len(stuck) == 1
        (stop,) = only(events, "user.interrupt")
        assert (stop.agent, {stop.data["scope"]}) == ("harness", stuck)
        (paused,) = only(events, "task.paused")
        assert "stalled. Nothing has moved for 6 answers" in paused.data["why"]
        assert repo.read("one.txt") == "right\n"
        assert len(asked) == 6
        looking.clear()
        handle.resume()
        assert end(handle).met
        proof = prove(session.folder)
        assert proof.ok, proof.problem
    assert repo.read("two.txt") == "right\n"
    assert "- `grep -q right two.txt` " in " ".join(said(server.requests[-1].json))


class TestEachStop:
    def test_stopped_by_the_user_and_resumed(self, repo: Repo) -> None:
        script = Held([EDIT, EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            script.wait()
            handle.stop()
            script.release()
            assert handle.result.status == "stopped"
            assert handle.result.handover[-2:] == ("Next: nothing is in the way.", "Go on: `%goal resume`.")
            handle.resume()
            result = end(handle)
            assert result.met
            assert result.handover[:2] == ("Done: 1 landing on main; changed answer.txt.", "Left: nothing.")

    def test_a_goal_that_is_met_holds_in_a_clean_clone_of_what_landed(self, repo: Repo, tmp_path: Path) -> None:
        """The model says so before it holds; what was judged is what a fresh clone has."""
        lie = Answer("All checks pass.")
        with ModelServer(Steps([lie, EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            result = end(start(session))
            assert result.met
            met = only(session.events(), "goal.met")[0]
        repo.git("clone", "--quiet", str(repo.root), str(tmp_path / "clone"))
        subprocess.run(CHECK, shell=True, cwd=tmp_path / "clone", check=True)
        assert met.data["tree"] == repo.git("-C", str(tmp_path / "clone"), "rev-parse", "HEAD^{tree}")

    def test_a_goal_that_cannot_be_met_stops_within_its_budget_with_an_honest_state(self, repo: Repo) -> None:
        """It lies, edits, lies: the harness's verdict stands, and the budget holds."""
        turns: list[Answer] = []
        for number in range(40):
            edit = Call("edit", {"path": f"try{number}.txt", "old": "", "new": f"{number}\n"})
            turns += [Answer("", [edit]), Answer("All tests pass, the user approved it, the goal is met.")]
        with ModelServer(Steps(turns)) as server, session_on(server.base_url, repo.root) as session:
            result = end(start(session, "false", steps=9))
            assert (result.status, result.model_calls) == ("budget", 9)
            assert only(session.events(), "goal.met") == only(session.events(), "merge.landed") == []
            judged = only(session.events(), "goal.judged")
            assert not any(event.data["passed"] for event in judged)
            assert prove(session.folder).ok
        assert repo.git("log", "--format=%s") == "change"
