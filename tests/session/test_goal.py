"""How a goal ends, is paused, stopped, steered and resumed; and what happens meanwhile in the user's checkout."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.make_repo import make_repo
from fixtures.model_scripts import Answer, Call, Fault, ParsedRequest, Steps, load_repairs
from fixtures.model_server import ModelServer
from fixtures.session_bench import (
    CHECK,
    CLOSING,
    DEADLINE_S,
    DONE,
    EDIT,
    Doing,
    Held,
    Hurried,
    Repo,
    Signal,
    Watch,
    kinds,
    only,
    results,
    runs,
    said,
    session_on,
    start,
)

from musecode_jupyter.agents.guided import NO_FIX
from musecode_jupyter.guard.policy import action_digest
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session import GoalHandle, GoalResult
from musecode_jupyter.session.core import GoalSpec, SessionCore
from musecode_jupyter.session.replay import prove
from musecode_jupyter.skills import goal
from musecode_jupyter.tools import executor


def end(handle: GoalHandle) -> GoalResult:
    return handle.wait(timeout=DEADLINE_S)


def agent_branch(handle: GoalHandle) -> str:
    return f"musecode/{handle.session.id}/{handle.number}"


def run_of(command: str) -> Answer:
    return Answer("I run something.", [Call("run", {"command": command})])


async def stop_then(core: SessionCore, number: int, deed: Callable[[], object]) -> None:
    """Stop the goal, and do `deed` when the stop has reached what runs."""
    stopping = asyncio.ensure_future(core.stop(number))
    for _ in range(3):
        await asyncio.sleep(0)
    deed()
    await stopping


class TestMet:
    def test_met_is_written_by_the_harness_after_its_own_checks_on_the_landed_tree(self, repo: Repo) -> None:
        with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            assert end(handle).met
            events = session.events()
        order = [e for e in events if e.kind.startswith(("goal.", "merge."))]
        assert kinds(order) == [
            "goal.set",
            "goal.judged",
            "goal.claimed",
            "merge.enqueued",
            "merge.checked",
            "goal.judged",
            "merge.landing",
            "merge.landed",
            "goal.met",
        ]
        judged, met = order[5], order[8]
        assert met.data["tree"] == judged.data["tree"] == repo.git("rev-parse", "HEAD^{tree}")
        runs_of_harness = {e.seq for e in only(events, "tool.requested") if e.data["origin"] == "harness"}
        assert {check["call"] for check in met.data["checks"]} <= runs_of_harness
        assert repo.read("answer.txt") == "right\n"

    def test_the_agents_own_claim_is_not_enough(self, repo: Repo) -> None:
        answers = [Answer("All tests pass."), EDIT, DONE]
        with ModelServer(Steps(answers)) as server, session_on(server.base_url, repo.root) as session:
            assert end(start(session)).met
            judged = only(session.events(), "goal.judged")
        assert [e.data["passed"] for e in judged] == [False, False, True]
        assert f"`{CHECK}` does not pass" in said(server.requests[1].json)[-1]

    def test_all_verify_commands_decide_and_only_failing_ones_are_reported(self, repo: Repo) -> None:
        second = "grep -q new other.txt"
        other = Answer("", [Call("edit", {"path": "other.txt", "old": "other", "new": "new"})])
        answers = [EDIT, DONE, other, DONE]
        with ModelServer(Steps(answers)) as server, session_on(server.base_url, repo.root) as session:
            assert end(start(session, CHECK, second)).met
            met = only(session.events(), "goal.met")[0]
        assert [check["command"] for check in met.data["checks"]] == [CHECK, second]
        report = said(server.requests[2].json)[-1]
        assert second in report
        assert CHECK not in report

    def test_two_goals_in_a_row_in_one_session(self, repo: Repo) -> None:
        other = Answer("", [Call("edit", {"path": "other.txt", "old": "other", "new": "new"})])
        script = Steps([EDIT, DONE, other, DONE])
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            first = end(start(session))
            second = end(start(session, "grep -q new other.txt"))
            folder = session.folder
        assert (first.met, second.met) == (True, True)
        assert (first.model_calls, second.model_calls) == (2, 2)
        assert (repo.read("answer.txt"), repo.read("other.txt")) == ("right\n", "new\n")
        assert repo.branches == ["main"]
        assert prove(folder).problem is None

    def test_a_goal_in_a_subfolder_of_the_repository_works_on_the_whole_of_it(self, repo: Repo) -> None:
        (repo.root / "sub").mkdir()
        repo.commit({"sub/inner.txt": "inner\n"})
        with (
            ModelServer(Steps([EDIT, DONE])) as server,
            session_on(server.base_url, repo.root / "sub") as session,
        ):
            assert end(start(session)).met
        assert repo.read("answer.txt") == "right\n"


class TestBudget:
    @pytest.mark.parametrize("limit", [{"usd": 0.001}, {"tokens": 100}])
    def test_money_and_tokens_are_reserved_before_anything_is_sent(self, repo: Repo, limit: dict[str, float]) -> None:
        with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            result = end(start(session, **limit))
            exceeded = only(session.events(), "budget.exceeded")
        assert result.status == "budget"
        assert "Raise the budget" in result.why
        assert [e.data["scope"] for e in exceeded] == list(limit)
        assert server.requests == []

    @pytest.mark.parametrize(
        ("limit", "requests", "calls"), [({"calls": 1}, 1, 1), ({"steps": 1}, 1, 1), ({"hours": 1e-9}, 0, 0)]
    )
    def test_calls_steps_and_hours_end_the_goal_before_the_next_step(
        self, repo: Repo, limit: dict[str, float], requests: int, calls: int
    ) -> None:
        with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session, **limit)
            result = end(handle)
            assert agent_branch(handle) in repo.branches
        assert result.status == "budget"
        assert len(server.requests) == requests
        assert result.tool_calls == calls
        assert repo.read("answer.txt") == "wrong\n"

    def test_tokens_of_a_server_that_counts_none_are_estimated(self, repo: Repo) -> None:
        """A server without usage spent nothing as far as the goal's token limit could see."""
        answers = [Answer(a.text, a.calls, fault=Fault("no_usage")) for a in (EDIT, DONE)]
        with ModelServer(Steps(answers)) as server, session_on(server.base_url, repo.root) as session:
            result = end(start(session))
            total = session.ledger.total
        assert result.met
        assert result.tokens == total.tokens > 0


class TestStalled:
    def test_three_turns_without_a_tool_call_stall(self, repo: Repo) -> None:
        with (
            ModelServer(Steps([Answer("All is well.")])) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            result = end(start(session))
        assert result.status == "stalled"
        assert "3 turns without a tool call" in result.why
        assert len(server.requests) == 3

    def test_guided_gives_up_after_its_tries_with_the_files_as_they_were(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        monkeypatch.setattr("musecode_jupyter.agents.guided.MAX_TRIES", 6)
        root = make_repo("units", tmp_path / "units")
        right = {repair["new"].strip() for group in load_repairs("units") for repair in group}

        def wrong(request: ParsedRequest) -> Answer:
            assert request.json_schema is not None
            asked = request.json_schema["properties"]
            if "old_line" in asked:
                answer = {"old_line": asked["old_line"]["enum"][0], "new_line": "raise RuntimeError('wrong')"}
            else:
                answer = {"new_line": next(line for line in asked["new_line"]["enum"] if line not in right)}
            return Answer(json.dumps(answer))

        options = {"model": "scripted", "api": "chat", "price": "0/0/0", "profile": "guided"}
        with ModelServer(wrong) as server, session_on(server.base_url, root, **options) as session:
            handle = session.start_goal(GoalSpec("make the tests pass", ("python -m pytest -q",)))
            result = handle.wait(timeout=150)
            diff, events = handle.diff(), session.events()
        assert result.status == "stalled"
        assert NO_FIX in result.why
        assert len(server.requests) == 6
        assert diff == ""
        edits = [e.data["purpose"] for e in only(events, "tool.requested") if e.data["name"] == "edit"]
        assert edits.count("try") == edits.count("revert") > 0


class TestBlocked:
    def test_a_dirty_checkout_that_overlaps_is_not_touched(self, repo: Repo) -> None:
        with (
            ModelServer(Doing([EDIT, DONE], 1, lambda: repo.write("answer.txt", "the user's own\n"))) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            handle = start(session)
            result = end(handle)
            assert result.status == "blocked"
            assert "answer.txt" in result.why
            assert agent_branch(handle) in result.why
            assert repo.git("show", f"{agent_branch(handle)}:answer.txt") == "right"
            assert repo.read("answer.txt") == "the user's own\n"
            assert repo.git("log", "--format=%s") == "change"
            repo.git("checkout", "--quiet", "answer.txt")
            handle.resume()
            assert end(handle).met
        assert repo.read("answer.txt") == "right\n"
        assert len(server.requests) == 2

    def test_a_dirty_checkout_that_does_not_overlap_is_kept(self, repo: Repo) -> None:
        with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            repo.write("other.txt", "the user's own\n")
            repo.write("untracked.txt", "new\n")
            assert end(start(session)).met
        assert repo.read("answer.txt") == "right\n"
        assert repo.read("other.txt") == "the user's own\n"
        assert repo.git("status", "--porcelain").split("\n") == ["M other.txt", "?? untracked.txt"]

    def test_a_conflict_keeps_the_branch_and_names_it(self, repo: Repo) -> None:
        theirs = {"answer.txt": "something else\n"}
        with (
            ModelServer(Doing([EDIT, DONE], 1, lambda: repo.commit(theirs))) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            handle = start(session)
            result = end(handle)
        assert result.status == "blocked"
        assert "conflicts with main in answer.txt" in result.why
        assert agent_branch(handle) in result.why
        assert agent_branch(handle) in repo.branches
        assert repo.read("answer.txt") == "something else\n"
        assert repo.git("status", "--porcelain") == ""

    def test_landing_that_the_policy_denies_leaves_a_verified_branch(self, repo: Repo) -> None:
        with (
            ModelServer(Steps([EDIT, DONE])) as server,
            session_on(server.base_url, repo.root, approvals="deny") as session,
        ):
            handle = start(session)
            result = end(handle)
        assert result.status == "blocked"
        assert "denied (approvals mode deny)" in result.why
        assert agent_branch(handle) in repo.branches
        assert repo.read("answer.txt") == "wrong\n"

    def test_ask_without_anybody_to_ask_is_a_refusal_that_says_so(self, repo: Repo) -> None:
        with (
            ModelServer(Steps([EDIT, DONE])) as server,
            session_on(server.base_url, repo.root, approvals="ask", interactive=False) as session,
        ):
            result = end(start(session))
        assert result.status == "blocked"
        assert "MUSECODE_APPROVALS=allow-workspace" in result.why

    def test_a_detached_head_has_no_branch_to_land_on(self, repo: Repo) -> None:
        repo.git("checkout", "--quiet", "--detach")
        with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            result = end(handle)
        assert result.status == "blocked"
        assert "HEAD is detached" in result.why
        assert repo.git("show", f"{agent_branch(handle)}:answer.txt") == "right"

    def test_a_check_that_is_green_already_asks_the_model_nothing(self, repo: Repo) -> None:
        with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            result = end(start(session, "grep -q wrong answer.txt"))
        assert result.status == "blocked"
        assert "already green" in result.why
        assert server.requests == []

    def test_a_check_that_passes_without_a_change_is_not_steady(self, repo: Repo, tmp_path: Path) -> None:
        mark = tmp_path / "mark"
        flaky = f"test -e {mark} || {{ touch {mark}; false; }}"
        with ModelServer(Steps([DONE])) as server, session_on(server.base_url, repo.root) as session:
            result = end(start(session, flaky))
        assert result.status == "blocked"
        assert "not a steady check" in result.why
        assert repo.git("log", "--format=%s") == "change"

    def test_a_verify_command_whose_program_is_missing_inside_a_shell_line(self, repo: Repo) -> None:
        with ModelServer(Steps([DONE])) as server, session_on(server.base_url, repo.root) as session:
            result = end(start(session, "cd . && no-such-program-here"))
        assert result.status == "blocked"
        assert "no-such-program-here" in result.why
        assert server.requests == []


class TestMovedBranch:
    def test_what_lands_on_a_branch_that_moved_is_the_verified_merge(self, repo: Repo) -> None:
        with (
            ModelServer(Doing([EDIT, DONE], 1, lambda: repo.commit({"other.txt": "moved\n"}))) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            result = end(start(session, CHECK, "test -e other.txt"))
            judged = only(session.events(), "goal.judged")[-1]
        assert result.met
        assert repo.git("rev-parse", "HEAD") == result.commit
        assert judged.data["tree"] == repo.git("rev-parse", "HEAD^{tree}")
        assert len(repo.git("log", "-1", "--format=%P").split()) == 2
        assert (repo.read("answer.txt"), repo.read("other.txt")) == ("right\n", "moved\n")
        assert repo.git("status", "--porcelain") == ""

    def test_a_merge_that_fails_the_check_does_not_land(self, repo: Repo) -> None:
        broken = "! grep -q broken other.txt"
        with (
            ModelServer(Doing([EDIT, DONE], 1, lambda: repo.commit({"other.txt": "broken\n"}))) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            result = end(start(session, CHECK, broken))
        assert result.status == "stalled"
        assert repo.read("answer.txt") == "wrong\n"
        assert repo.git("status", "--porcelain") == ""

    def test_the_user_who_changes_the_branch_keeps_it(self, repo: Repo) -> None:
        """The work lands on the branch that the goal was set on, wherever the user is by then."""
        with (
            ModelServer(Doing([EDIT, DONE], 1, lambda: repo.git("checkout", "--quiet", "-b", "mine"))) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            assert end(start(session)).met
        assert repo.git("symbolic-ref", "--short", "HEAD") == "mine"
        assert repo.read("answer.txt") == "wrong\n"
        assert repo.git("show", "main:answer.txt") == "right"
        assert repo.git("status", "--porcelain") == ""


class TestUserInControl:
    def test_stop_ends_a_long_command_with_all_its_children(self, repo: Repo, tmp_path: Path) -> None:
        signal = Signal(tmp_path / "signal")
        long = run_of(f"sleep 300 & echo $$ $! > {signal.path}; wait")
        with (
            ModelServer(Steps([long, EDIT, DONE])) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            handle = start(session)
            pids = signal.read()
            handle.stop()
            assert handle.status == "stopped"
            assert [pid for pid in pids if runs(pid)] == []
            assert len(only(session.events(), "tool.cancelled")) == 1
            handle.resume()
            assert end(handle).met
            events = session.events()
        assert "Stopped before the end." in results(server.requests[1].json)[0]
        assert [r.status for r in server.requests] == [200] * 3
        assert len(only(events, "tool.requested")) == len([e for e in events if e.kind in CLOSING])

    def test_a_change_that_is_being_written_is_recorded_before_the_stop(
        self, repo: Repo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A stop during the writing of a file left it changed, and the log said that the change was stopped."""
        writing, go_on = threading.Event(), threading.Event()
        really_write = executor.write_atomic

        def slowly(*arguments: Any) -> None:
            writing.set()
            assert go_on.wait(DEADLINE_S)
            really_write(*arguments)

        monkeypatch.setattr(executor, "write_atomic", slowly)
        with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            assert writing.wait(DEADLINE_S)
            session.call(lambda core: stop_then(core, handle.number, go_on.set))
            assert handle.status == "stopped"
            lead = [e for e in session.events() if e.agent == "lead" and e.kind in {*CLOSING, "file.changed"}]
            assert kinds(lead) == ["file.changed", "tool.finished"]
            handle.resume()
            assert end(handle).met

    def test_landing_that_has_begun_is_brought_to_its_end(self, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
        """A stop between the moving of the branch and of its checkout left a checkout that undid the work."""
        moved, go_on = threading.Event(), threading.Event()
        really_update = goal.update_checkout

        async def slowly(*arguments: Any) -> str:
            moved.set()
            await asyncio.to_thread(go_on.wait, DEADLINE_S)
            return await really_update(*arguments)

        monkeypatch.setattr(goal, "update_checkout", slowly)
        with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            assert moved.wait(DEADLINE_S)
            session.call(lambda core: stop_then(core, handle.number, go_on.set))
            assert handle.status == "met"
        assert repo.read("answer.txt") == "right\n"
        assert repo.git("status", "--porcelain") == ""
        assert repo.branches == ["main"]

    def test_two_goals_that_are_set_at_once_do_not_both_start(self, repo: Repo) -> None:
        script = Held([EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:

            async def both() -> list[object]:
                goals = [session.goal("say right", verify=CHECK) for _ in range(2)]
                return list(await asyncio.gather(*goals, return_exceptions=True))

            outcomes = asyncio.run(both())
            script.release()
            assert {type(outcome) for outcome in outcomes} == {GoalHandle, UsageProblem}

    def test_stop_while_the_model_is_awaited_abandons_the_request(self, repo: Repo) -> None:
        script = Held([EDIT, EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            script.wait()
            handle.stop()
            assert handle.status == "stopped"
            assert session.ledger.open == {}
            script.release()
            handle.resume()
            assert end(handle).met
            events = session.events()
        assert len(only(events, "model.abandoned")) == 1
        assert server.requests[0].json["input"] == server.requests[1].json["input"]

    def test_pause_rests_after_the_step_and_resume_goes_on(self, repo: Repo) -> None:
        script = Held([EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            script.wait()
            handle.pause()
            script.release()
            result = end(handle)
            assert (result.status, result.why) == ("paused", "asked by the user")
            assert len(only(session.events(), "file.changed")) == 1
            handle.resume()
            assert end(handle).met
        assert len(server.requests) == 2

    def test_a_pause_that_is_taken_back_in_time_does_not_rest(self, repo: Repo) -> None:
        script = Held([EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            script.wait()
            handle.pause()
            handle.resume()
            script.release()
            assert end(handle).met
            assert only(session.events(), "goal.paused") == []

    def test_a_pause_during_the_last_step_rests_before_landing(self, repo: Repo) -> None:
        """A pause asked for while the model wrote its last word was forgotten: the work landed all the same."""
        script = Held([EDIT, DONE], hold=1)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            script.wait()
            handle.pause()
            script.release()
            assert end(handle).status == "paused"
            assert repo.read("answer.txt") == "wrong\n"
            handle.resume()
            assert end(handle).met

    def test_what_the_user_says_meanwhile_is_in_the_next_request(self, repo: Repo) -> None:
        script = Held([EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            script.wait()
            handle.steer("mind the accents")
            script.release()
            assert end(handle).met
        assert "mind the accents" not in said(server.requests[0].json)
        assert said(server.requests[1].json)[-1] == "mind the accents"
        assert [r.status for r in server.requests] == [200, 200]

    def test_the_last_word_is_not_the_last_if_the_user_spoke_meanwhile(self, repo: Repo) -> None:
        script = Held([EDIT, DONE, Answer("Heard.")], hold=1)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            script.wait()
            handle.steer("and tell me why")
            script.release()
            assert end(handle).met
            claimed = only(session.events(), "goal.claimed")
        assert len(server.requests) == 3
        assert [item.get("role") for item in server.requests[2].json["input"]][-2:] == ["assistant", "user"]
        assert said(server.requests[2].json)[-1] == "and tell me why"
        assert [e.data["text"] for e in claimed] == ["Heard."]

    def test_a_step_limit_counts_answers_to_what_the_user_says_meanwhile(self, repo: Repo) -> None:
        script = Held([DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session, steps=1)
            script.wait()
            handle.steer("go on")
            script.release()
            assert end(handle).status == "budget"
        assert len(server.requests) == 1

    def test_one_goal_runs_at_a_time_and_an_older_one_can_be_resumed(self, repo: Repo) -> None:
        """Resuming an older goal counted its use for the newest one, and its limits did not hold."""
        script = Held([EDIT, EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            first = start(session)
            script.wait()
            with pytest.raises(UsageProblem, match="one goal runs at a time"):
                start(session)
            first.stop()
            script.release()
            second = start(session, "grep -q wrong answer.txt")
            assert end(second).status == "blocked"
            first.resume()
            assert end(first).met
            assert second.result.model_calls == second.result.tool_calls == 0
            assert (first.result.model_calls, first.result.tool_calls) == (2, 1)
        assert repo.read("answer.txt") == "right\n"

    def test_limits_of_an_older_goal_that_is_resumed_hold(self, repo: Repo) -> None:
        script = Held([EDIT, EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            first = start(session, usd=0.2)
            script.wait()
            first.stop()
            script.release()
            assert end(start(session, "grep -q wrong answer.txt")).status == "blocked"
            for _ in range(9):
                first.resume()
                if end(first).status != "stopped":
                    break
            assert first.result.usd <= 0.2

    def test_closing_pauses_a_running_goal_and_a_new_process_goes_on(self, repo: Repo) -> None:
        script = Held([EDIT, EDIT, DONE], hold=0)
        with ModelServer(script) as server:
            with session_on(server.base_url, repo.root) as session:
                start(session)
                script.wait()
            script.release()
            with session_on(server.base_url, repo.root, resume=session.id) as again:
                handle = again.newest_goal()
                assert handle.status == "paused"
                handle.resume()
                assert end(handle).met
            assert prove(again.folder).problem is None


class TestApprovals:
    def test_a_command_waits_for_its_approval_and_then_runs(self, repo: Repo, tmp_path: Path) -> None:
        command = f"touch {tmp_path / 'made'}"
        with (
            ModelServer(Steps([run_of(command), EDIT, DONE])) as server,
            session_on(server.base_url, repo.root, interactive=True, approvals="ask") as session,
        ):
            watch = Watch(session)
            handle = start(session)
            asked = watch.until("approval.requested", action="run")
            assert list(session.approvals.pending) == [asked.seq]
            assert asked.data["shown"]["command"] == command
            assert asked.data["digest"] == action_digest("run", asked.data["shown"])
            assert not (tmp_path / "made").exists()
            assert session.answer(None, "approve", by="test") == asked.seq
            land = watch.until("approval.requested", action="land")
            assert (tmp_path / "made").exists()
            assert "+right" in land.data["shown"]["diff"]
            assert land.data["shown"]["files"] == ["answer.txt"]
            assert repo.read("answer.txt") == "wrong\n"
            session.answer(land.seq, "approve", by="test")
            assert end(handle).met
            decided = [e for e in session.events() if e.kind == "tool.decided" and e.data["approval"]]
        assert [e.data["approval"] for e in decided] == [asked.seq]

    def test_a_denied_command_does_not_run_and_the_model_is_told(self, repo: Repo, tmp_path: Path) -> None:
        with (
            ModelServer(Steps([run_of(f"touch {tmp_path / 'made'}"), EDIT, DONE])) as server,
            session_on(server.base_url, repo.root, interactive=True, approvals="ask") as session,
        ):
            watch = Watch(session)
            handle = start(session)
            asked = watch.until("approval.requested", action="run")
            session.answer(asked.seq, "deny", by="test", why="not on this machine")
            land = watch.until("approval.requested", action="land")
            session.answer(land.seq, "deny", by="test")
            result = end(handle)
            started = {e.data["call"] for e in only(session.events(), "tool.started")}
        assert result.status == "blocked"
        assert agent_branch(handle) in result.why
        assert not (tmp_path / "made").exists()
        assert asked.data["call"] not in started
        told = results(server.requests[1].json)[0]
        assert told.startswith("Denied")
        assert "not on this machine" in told

    def test_a_session_rule_covers_the_same_command_and_no_other(self, repo: Repo) -> None:
        answers = [run_of("echo one"), run_of("echo one"), run_of("echo two"), EDIT, DONE]
        with (
            ModelServer(Steps(answers)) as server,
            session_on(server.base_url, repo.root, interactive=True, approvals="ask") as session,
        ):
            watch = Watch(session)
            handle = start(session)
            first = watch.until("approval.requested", action="run")
            session.answer(first.seq, "approve_session", by="test")
            second = watch.until("approval.requested", rule="run: echo two")
            assert session.approvals.rules == ["run: echo one"]
            session.answer(second.seq, "approve", by="test")
            land = watch.until("approval.requested", action="land")
            session.answer(land.seq, "approve", by="test")
            assert end(handle).met
            asked = only(session.events(), "approval.requested")
        assert [e.data["rule"] for e in asked] == ["run: echo one", "run: echo two", "land on main"]

    def test_an_answer_to_something_else_than_was_shown_is_refused(self, repo: Repo) -> None:
        with (
            ModelServer(Steps([run_of("echo one"), EDIT, DONE])) as server,
            session_on(server.base_url, repo.root, interactive=True, approvals="ask") as session,
        ):
            watch = Watch(session)
            handle = start(session)
            asked = watch.until("approval.requested", action="run")
            with pytest.raises(UsageProblem, match="nothing was answered"):
                session.call(lambda core: core.approvals.answer(asked.seq, "approve", by="test", digest="0" * 32))
            assert list(session.approvals.pending) == [asked.seq]
            handle.stop()
            assert session.approvals.pending == {}
            with pytest.raises(UsageProblem, match="not pending any more"):
                session.answer(asked.seq, "approve", by="test")
            events = session.events()
        assert len(only(events, "approval.expired")) == 1
        assert only(events, "approval.granted") == []

    def test_a_question_from_before_a_restart_is_asked_again(self, repo: Repo) -> None:
        with ModelServer(Steps([run_of("echo one"), EDIT, DONE])) as server:
            with session_on(server.base_url, repo.root, interactive=True, approvals="ask") as session:
                watch = Watch(session)
                start(session)
                asked = watch.until("approval.requested", action="run")
            with session_on(server.base_url, repo.root, resume="last", interactive=True, approvals="ask") as again:
                assert again.approvals.pending == {}
                with pytest.raises(UsageProblem, match="not pending"):
                    again.answer(asked.seq, "approve", by="test")
                handle = again.newest_goal()
                watch = Watch(again)
                handle.resume()
                land = watch.until("approval.requested", action="land")
                again.answer(land.seq, "approve", by="test")
                assert end(handle).met
        assert "Stopped" in results(server.requests[1].json)[0]


class TestToolErrors:
    def test_an_error_of_git_during_a_search_is_the_result_of_the_call(self, repo: Repo, home: Path) -> None:
        """It ended the goal and left the call open; after a resume the call had a second tool.started."""

        def lose_git() -> None:
            for entry in (home / "worktrees").glob("*/.git"):
                entry.rename(entry.with_name("lost"))

        def find_git() -> None:
            for entry in (home / "worktrees").glob("*/lost"):
                entry.rename(entry.with_name(".git"))

        look = Answer("", [Call("search", {"pattern": "wrong"}), Call("read", {"path": "answer.txt"})])
        first = Doing([look, EDIT, DONE], 0, lose_git)
        script = Doing([look, EDIT, DONE], 1, find_git)

        def both(request: ParsedRequest) -> Answer:
            first(request)
            return script(request)

        with ModelServer(both) as server, session_on(server.base_url, repo.root) as session:
            assert end(start(session)).met
            events = session.events()
        failed = only(events, "tool.failed")
        assert len(failed) == 1
        assert ".git" in failed[0].data["output"]
        assert "wrong" in results(server.requests[1].json)[1]


class TestAsk:
    def test_ask_reads_but_never_changes_the_users_checkout(self, repo: Repo, tmp_path: Path) -> None:
        look = Answer("", [Call("read", {"path": "answer.txt"})])
        meddle = [
            Call("edit", {"path": "answer.txt", "old": "wrong", "new": "right"}),
            Call("edit", {"path": "new.txt", "old": "", "new": "x"}),
            Call("run", {"command": f"touch {tmp_path / 'made'}"}),
        ]
        answers = [look, Answer("", meddle), Answer("It says wrong.")]
        with ModelServer(Steps(answers)) as server, session_on(server.base_url, repo.root) as session:
            assert asyncio.run(session.ask("what does it say?")) == "It says wrong."
        told = results(server.requests[2].json)
        assert "wrong" in told[0]
        assert [text[:6] for text in told[1:]] == ["Denied"] * 3
        assert repo.git("status", "--porcelain") == ""
        assert not (tmp_path / "made").exists()

    def test_a_goal_waits_for_the_end_of_a_question(self, repo: Repo) -> None:
        """A goal that was set during a question shared its conversation: both answered the other's calls."""
        script = Held([Answer("It says wrong."), EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:

            async def both() -> str:
                question = asyncio.ensure_future(session.ask("what does it say?"))
                await asyncio.to_thread(script.wait)
                with pytest.raises(UsageProblem, match="question"):
                    await session.goal("say right", verify=CHECK)
                script.release()
                return await question

            assert asyncio.run(both()) == "It says wrong."
            assert end(start(session)).met
        assert [r.status for r in server.requests] == [200] * 3


class TestModelErrors:
    def test_a_refused_key_is_an_error_that_says_what_to_set_and_can_be_resumed(
        self, repo: Repo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MUSECODE_API_KEY", "a-wrong-key-0001")
        with ModelServer(Steps([EDIT, DONE]), key="the-right-key-01") as server:
            with session_on(server.base_url, repo.root) as session:
                result = end(start(session))
            assert result.status == "error"
            assert "MUSECODE_API_KEY" in result.why
            assert len(server.requests) == 1
            monkeypatch.setenv("MUSECODE_API_KEY", "the-right-key-01")
            with session_on(server.base_url, repo.root, resume=session.id) as again:
                handle = again.newest_goal()
                handle.resume()
                assert end(handle).met
            log = b"".join(path.read_bytes() for path in again.folder.rglob("*") if path.is_file())
        assert b"a-wrong-key-0001" not in log
        assert b"the-right-key-01" not in log

    def test_a_rate_limit_is_waited_for_by_one_owner_in_sight_of_the_log(self, repo: Repo) -> None:
        limit = Answer(fault=Fault("status", status=429, code="rate_limit_exceeded", headers={"retry-after": "7"}))
        hurried = Hurried()
        with (
            ModelServer(Steps([limit, limit, EDIT, DONE])) as server,
            session_on(server.base_url, repo.root, effects=hurried) as session,
        ):
            assert end(start(session)).met
            events = session.events()
        retried = only(events, "model.retried")
        assert [e.data["wait_s"] for e in retried] == [7, 7] == hurried.waits
        assert {e.data["request"] for e in retried} == {only(events, "model.requested")[0].seq}
        assert len(server.requests) == 4
        assert server.requests[0].body == server.requests[1].body == server.requests[2].body

    def test_an_endpoint_that_is_down_is_an_error_after_the_attempts(self, repo: Repo) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            base_url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
            with session_on(base_url, repo.root) as session:
                result = end(start(session))
                events = session.events()
        assert result.status == "error"
        assert f"cannot reach {base_url}" in result.why
        assert len(only(events, "model.retried")) == 7
        with (
            ModelServer(Steps([EDIT, DONE])) as server,
            session_on(server.base_url, repo.root, resume="last") as again,
        ):
            handle = again.newest_goal()
            handle.resume()
            assert end(handle).met

    @pytest.mark.parametrize("kind", ["hangup", "reset", "eof"])
    def test_a_call_from_a_broken_stream_never_runs(self, repo: Repo, tmp_path: Path, kind: str) -> None:
        broken = Answer("", run_of(f"touch {tmp_path / 'made'}").calls, fault=Fault(kind))
        with (
            ModelServer(Steps([broken, EDIT, DONE])) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            assert end(start(session)).met
            events = session.events()
        assert not (tmp_path / "made").exists()
        assert [e.data["name"] for e in only(events, "tool.requested") if e.agent == "lead"] == ["edit"]
        assert [e.data["request"] for e in only(events, "model.retried")]

    @pytest.mark.parametrize("api", ["responses", "chat"])
    def test_a_wrong_call_gets_an_error_that_the_model_can_act_on(self, repo: Repo, api: str) -> None:
        """`locate`, which only the harness may use, ended the goal when a model called it."""
        wrong = [
            ("run", "{not json", "Send one JSON object"),
            ("run", "[1]", "one JSON object"),
            ("run", "", "command: Field required"),
            ("compile", '{"path": "a"}', "The tools are: edit, read, run, search"),
            ("read", '{"path": 5}', "path: Input should be a valid string"),
            ("read", '{"path": "answer.txt", "colour": 1}', "colour: Extra inputs"),
            ("read", '{"path": "answer.txt", "start_line": "one"}', "start_line: Input should be"),
            ("run", '{"command": "true", "timeout": NaN}', "NaN is not allowed"),
            ("run", '{"command": "true", "command": "false"}', "a key occurs twice"),
            ("locate", '{"check": 1}', "The tools are: edit, read, run, search"),
            ("read", '{"path": "../secret.txt"}', "leads out of the worktree"),
        ]
        calls = [Call(name, arguments) for name, arguments, _ in wrong]
        with (
            ModelServer(Steps([Answer("", calls), EDIT, DONE])) as server,
            session_on(server.base_url, repo.root, api=api) as session,
        ):
            assert end(start(session)).met
            events = session.events()
        assert [r.status for r in server.requests] == [200] * 3, [r.message for r in server.requests]
        failed = {e.data["call"]: e.data["output"] for e in only(events, "tool.failed")}
        mine = [e.seq for e in only(events, "tool.requested") if e.data["call_id"]][: len(wrong)]
        for seq, (name, _, advice) in zip(mine, wrong, strict=True):
            assert advice in failed[seq], (name, failed[seq])


class TestLimits:
    @pytest.mark.parametrize(
        "limit", [{"usd": 0.0}, {"tokens": -1}, {"calls": 0}, {"hours": float("nan")}, {"steps": 0}]
    )
    def test_a_limit_that_is_none_is_refused(self, repo: Repo, limit: dict[str, float]) -> None:
        with ModelServer(Steps([DONE])) as server, session_on(server.base_url, repo.root) as session:
            with pytest.raises(UsageProblem, match="a number above 0"):
                start(session, **limit)
            assert session.goals.goals == {}
