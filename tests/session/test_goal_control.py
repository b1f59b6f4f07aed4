"""The user in control: stop, pause, steer, resume, close; and approvals."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.model_scripts import Answer, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import (
    CHECK,
    CLOSING,
    DEADLINE_S,
    DONE,
    EDIT,
    Held,
    Repo,
    Signal,
    Watch,
    agent_branch,
    end,
    kinds,
    only,
    results,
    run_of,
    runs,
    said,
    session_on,
    start,
)

from musecode_jupyter.agents.landing import move
from musecode_jupyter.guard.policy import action_digest
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session import GoalHandle
from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.session.replay import prove
from musecode_jupyter.tools import executor


async def stop_then(core: SessionCore, number: int, deed: Callable[[], object]) -> None:
    """Stop the goal, and do `deed` when the stop has reached what runs."""
    stopping = asyncio.ensure_future(core.stop(number))
    for _ in range(3):
        await asyncio.sleep(0)
    deed()
    await stopping


class TestUserInControl:
    def test_stop_ends_a_long_command_with_all_its_children(self, repo: Repo, tmp_path: Path) -> None:
        signal = Signal(tmp_path / "signal")
        long = run_of(f"sleep 300 & echo $$ $! > {signal.path}; wait")
        with (
            ModelServer(Steps([long, EDIT, DONE])) as server,
            session_on(server.base_url, repo.root, sandbox="plain") as session,
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
        really_update = move.update_checkout

        async def slowly(*arguments: Any) -> str:
            moved.set()
            await asyncio.to_thread(go_on.wait, DEADLINE_S)
            return await really_update(*arguments)

        monkeypatch.setattr(move, "update_checkout", slowly)
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
            handles = [outcome for outcome in outcomes if isinstance(outcome, GoalHandle)]
            assert sorted(handle.status for handle in handles) == ["queued", "running"]
            next(handle for handle in handles if handle.status == "queued").clear()
            script.release()

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

    def test_a_message_that_cannot_wait_ends_the_command_and_its_agent_goes_on(
        self, repo: Repo, tmp_path: Path
    ) -> None:
        signal = Signal(tmp_path / "signal")
        long = run_of(f"sleep 300 & echo $$ $! > {signal.path}; wait")
        both = Answer("", [*long.calls, *run_of("echo late > late.txt").calls])
        with (
            ModelServer(Steps([both, EDIT, DONE])) as server,
            session_on(server.base_url, repo.root, sandbox="plain") as session,
        ):
            handle = start(session)
            pids = signal.read()
            assert handle.steer("not this one", now=True)
            assert end(handle).met
            assert not handle.steer("anything else", now=True)
            events, folder = session.events(), session.folder
        assert [pid for pid in pids if runs(pid)] == []
        ended, left = results(server.requests[1].json)
        assert executor.BROKEN_OFF in ended
        assert executor.NOT_BEGUN in left
        assert said(server.requests[1].json)[-1] == "not this one"
        (failed,) = only(events, "tool.failed")
        (steered, _) = only(events, "user.steer")
        assert failed.data["broken_off"]
        assert failed.cause == (failed.data["call"], steered.seq)
        assert not (repo.root / "late.txt").exists()
        assert len(only(events, "tool.requested")) == len([e for e in events if e.kind in CLOSING])
        assert prove(folder, commands=True).ok

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
            waiting = start(session)
            assert waiting.status == "queued"
            with pytest.raises(UsageProblem, match="waits in the queue, as number 1"):
                waiting.pause()
            waiting.clear()
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
            session_on(server.base_url, repo.root, interactive=True, approvals="ask", sandbox="plain") as session,
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
            session_on(server.base_url, repo.root, interactive=True, approvals="ask", sandbox="plain") as session,
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
            assert [held.name for held in session.rules.held.values()] == ["run: echo one"]
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
