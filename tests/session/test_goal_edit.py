"""More for a goal that a budget stopped, another text for one that runs, and goals that are forgotten."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import (
    DEADLINE_S,
    DONE,
    EDIT,
    Held,
    Repo,
    agent_branch,
    end,
    kinds,
    only,
    said,
    session_on,
    start,
)

from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session import GoalHandle
from musecode_jupyter.session.replay import prove
from musecode_jupyter.skills import goal
from musecode_jupyter.skills.limits import Limits
from musecode_jupyter.workspace.landing import MergeCheck

LOOK = Answer("I look.", [Call("read", {"path": "answer.txt"})])


def give_more(handle: GoalHandle) -> None:
    """Do what the message of a goal that a budget stopped says."""
    option, value = handle.result.more.split()
    name = {"--budget": "usd"}.get(option, option.removeprefix("--"))
    handle.edit(**{name: float(value) if name in {"usd", "hours"} else int(value)})


class TestMore:
    @pytest.mark.parametrize(
        ("limits", "option"),
        [
            ({"usd": 0.001}, "--budget"),
            ({"tokens": 100}, "--tokens"),
            ({"calls": 1}, "--calls"),
            ({"steps": 1}, "--steps"),
            ({"hours": 1e-6}, "--hours"),
        ],
    )
    def test_what_the_message_offers_lets_the_goal_go_on(self, repo: Repo, limits: dict[str, Any], option: str) -> None:
        """A goal that a budget had stopped could not be given more: a new one had to be set."""
        with ModelServer(Steps([LOOK, EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session, **limits)
            result = end(handle)
            rounds = 0
            while result.status == "budget":
                assert result.more.startswith(f"{option} "), result
                before = result.model_calls, result.tool_calls, result.seconds
                give_more(handle)
                assert handle.result.more == ""
                handle.resume()
                result = end(handle)
                rounds += 1
                assert (result.model_calls, result.tool_calls, result.seconds) > before
                assert rounds < 20
            assert result.met, result.why
            assert result.more == ""
            edited = only(session.events(), "goal.edited")
            assert len(edited) == rounds > 0
            assert {e.agent for e in edited} == {"user"}
            assert prove(session.folder).ok
        name = next(iter(limits))
        given = Limits(**limits).recorded["microusd"] if name == "usd" else limits[name]
        name = "microusd" if name == "usd" else name
        assert edited[0].data["old"][name] == given < edited[0].data["new"][name]
        assert edited[0].data["new"] == {**edited[0].data["old"], name: edited[0].data["new"][name]}
        assert repo.read("answer.txt") == "right\n"

    def test_a_limit_that_is_raised_while_the_goal_runs_holds_at_once(self, repo: Repo) -> None:
        script = Held([LOOK, EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session, steps=1)
            script.wait()
            handle.edit(steps=3)
            script.release()
            assert end(handle).met
            assert kinds(session.events()).count("goal.resumed") == 0

    def test_a_limit_that_is_lowered_while_the_goal_runs_holds_at_once(self, repo: Repo) -> None:
        script = Held([LOOK, EDIT, DONE], hold=1)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            script.wait()
            handle.edit(tokens=handle.result.tokens + 1)
            script.release()
            result = end(handle)
        assert result.status == "budget"
        assert len(server.requests) == 2

    def test_a_paused_goal_can_be_edited(self, repo: Repo) -> None:
        script = Held([EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            script.wait()
            handle.pause()
            script.release()
            assert end(handle).status == "paused"
            handle.edit(tokens=handle.result.tokens + 1, calls=5)
            assert handle.status == "paused"
            handle.resume()
            assert end(handle).status == "budget"

    def test_what_cannot_be_edited_is_refused_and_changes_nothing(self, repo: Repo) -> None:
        with ModelServer(Steps([LOOK, EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session, steps=2, usd=5.0)
            used = end(handle)
            for change, says in [
                ({}, "Give a text, or a new limit"),
                ({"text": "  "}, "Give a text, or a new limit"),
                ({"steps": 0}, "--steps 0 is no limit"),
                ({"usd": float("nan")}, "--budget nan is no limit"),
                ({"steps": 2}, "--steps 2 is used up already (2 of 2 model calls)"),
                ({"steps": 9, "calls": 2}, "--calls 2 is used up already (2 of 2 tool calls)"),
                ({"tokens": 1}, f"--tokens 1 is used up already ({used.tokens} of 1 tokens)"),
                ({"usd": 1e-9}, "--budget 1e-09 is used up already"),
                ({"hours": 1e-9}, "--hours 1e-09 is used up already"),
            ]:
                with pytest.raises(UsageProblem) as caught:
                    handle.edit(**change)
                assert says in str(caught.value)
                assert "\n" not in str(caught.value)
            assert only(session.events(), "goal.edited") == []
            handle.edit(steps=9)
            handle.resume()
            assert end(handle).met
            with pytest.raises(UsageProblem, match="is met"):
                handle.edit(steps=99)

    def test_a_new_process_keeps_the_new_limits(self, repo: Repo) -> None:
        with ModelServer(Steps([LOOK, EDIT, DONE])) as server:
            with session_on(server.base_url, repo.root) as session:
                handle = start(session, steps=1)
                assert end(handle).status == "budget"
                handle.edit(steps=9)
            with session_on(server.base_url, repo.root, resume="last") as again:
                handle = again.newest_goal()
                handle.resume()
                assert end(handle).met


class TestText:
    def test_the_agent_reads_the_new_text_in_its_next_request(self, repo: Repo) -> None:
        script = Held([EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            script.wait()
            handle.edit("say right, and nothing else\n")
            assert handle.text == "say right, and nothing else"
            script.release()
            assert end(handle).met
            assert session.goals.goals[handle.number].text == "say right, and nothing else"
            assert prove(session.folder).ok
        assert said(server.requests[1].json)[-1] == "The goal is now: say right, and nothing else"
        assert repo.git("log", "-1", "--format=%s") == "say right, and nothing else"

    def test_what_was_claimed_of_the_old_text_does_not_land(self, repo: Repo) -> None:
        """Denied at landing, then edited: the agent works on the new text before anything lands."""
        more = Answer("", [Call("edit", {"path": "other.txt", "old": "other", "new": "new"})])
        with ModelServer(Steps([EDIT, DONE, more, DONE])) as server:
            with session_on(server.base_url, repo.root, approvals="deny") as session:
                assert end(start(session)).status == "blocked"
            with session_on(server.base_url, repo.root, resume="last") as again:
                handle = again.newest_goal()
                handle.edit("say right, and new in the other file")
                handle.resume()
                assert end(handle).met
        assert (repo.read("answer.txt"), repo.read("other.txt")) == ("right\n", "new\n")

    def test_a_text_that_comes_while_the_work_is_judged_is_worked_on_first(
        self, repo: Repo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        judging, go_on = threading.Event(), threading.Event()
        really_check = goal.check_merge

        async def slowly(*arguments: Any) -> MergeCheck:
            judging.set()
            await asyncio.to_thread(go_on.wait, DEADLINE_S)
            return await really_check(*arguments)

        monkeypatch.setattr(goal, "check_merge", slowly)
        more = Answer("", [Call("edit", {"path": "other.txt", "old": "other", "new": "new"})])
        with ModelServer(Steps([EDIT, DONE, more, DONE])) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            assert judging.wait(DEADLINE_S)
            handle.edit("say right, and new in the other file")
            go_on.set()
            assert end(handle).met
        assert repo.read("other.txt") == "new\n"


class TestClear:
    def test_a_cleared_goal_is_gone_for_every_resume_and_its_work_is_kept(self, repo: Repo) -> None:
        with ModelServer(Steps([LOOK, EDIT, DONE])) as server:
            with session_on(server.base_url, repo.root) as session:
                handle = start(session, steps=2)
                assert end(handle).status == "budget"
                assert handle.clear() == agent_branch(handle) in repo.branches
                assert session.goals.active is None
                with pytest.raises(UsageProblem, match="There is no goal"):
                    session.newest_goal()
                for refused in (handle.resume, lambda: handle.edit(steps=9)):
                    with pytest.raises(UsageProblem, match="was cleared"):
                        refused()
                assert handle.status == "budget"
                assert "+right" in handle.diff()
            with session_on(server.base_url, repo.root, resume="last") as again:
                assert again.goals.to_resume() is None
                with pytest.raises(UsageProblem, match="was cleared"):
                    again.handle(handle.number).resume()
                assert prove(again.folder).ok
                server.script = Steps([EDIT, DONE])
                assert end(start(again)).met

    def test_a_running_goal_is_stopped_first(self, repo: Repo) -> None:
        script = Held([EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            script.wait()
            with pytest.raises(UsageProblem, match="end it with `%goal stop`"):
                handle.clear()
            handle.stop()
            script.release()
            handle.clear()
            assert [e.data for e in only(session.events(), "goal.cleared")] == [{"goal": handle.number}]

    def test_an_older_goal_goes_on_only_by_its_own_handle(self, repo: Repo) -> None:
        script = Held([EDIT, EDIT, DONE], hold=0)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            first = start(session)
            script.wait()
            first.stop()
            script.release()
            second = start(session, "grep -q wrong answer.txt")
            assert end(second).status == "blocked"
            assert session.goals.to_resume() == second.number
            second.clear()
            assert session.goals.to_resume() is None
            first.resume()
            assert session.newest_goal().number == first.number
            assert end(first).met
