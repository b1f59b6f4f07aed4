"""Errors of tools and models during a goal; questions outside of goals."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from fixtures.make_repo import make_repo
from fixtures.model_scripts import Answer, Call, Fault, ParsedRequest, RepairModel, Steps, load_repairs
from fixtures.model_server import ModelServer
from fixtures.session_bench import (
    CHECK,
    DEADLINE_S,
    DONE,
    EDIT,
    Doing,
    Held,
    Hurried,
    Repo,
    end,
    only,
    results,
    run_of,
    said,
    session_on,
    settings,
    start,
)

from musecode_jupyter.runtime.errors import BudgetExceeded, ConfigurationError, UsageProblem
from musecode_jupyter.session import GoalSpec, Settings, open_session
from musecode_jupyter.session.replay import prove


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
        with (
            ModelServer(Steps(answers)) as server,
            session_on(server.base_url, repo.root, sandbox="plain") as session,
        ):
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

    def test_a_question_ends_at_its_limit_of_model_calls_and_goes_on_when_asked_again(self, repo: Repo) -> None:
        """Without a limit, a model that only ever calls tools went on without an end."""
        look = Answer("", [Call("read", {"path": "answer.txt"})])
        answers = [look] * 3 + [Answer("It says wrong.")]
        with ModelServer(Steps(answers)) as server, session_on(server.base_url, repo.root, ask_steps="3") as session:
            with pytest.raises(BudgetExceeded, match="No answer after 3 model calls") as caught:
                asyncio.run(session.ask("what does it say?"))
            assert "\n" not in str(caught.value)
            assert len(server.requests) == 3
            assert session.read(lambda core: core.agents.agents["lead"].state) == "idle"
            assert asyncio.run(session.ask("go on")) == "It says wrong."
            assert prove(session.folder).problem is None
        assert [r.status for r in server.requests] == [200] * 4
        assert len(results(server.requests[3].json)) == 3
        assert said(server.requests[3].json) == ["what does it say?", "go on"]

    def test_a_goal_after_a_question_in_one_session(self, tmp_path: Path) -> None:
        """The scripted model took the question for its task, and the goal for done."""
        root = make_repo("intervals", tmp_path / "intervals")
        check = "grep -q 'self.start < other.end' scheduler/interval.py"
        script = RepairModel(load_repairs("intervals"))
        with ModelServer(script) as server, session_on(server.base_url, root) as session:
            assert asyncio.run(session.ask("which of `python` and `make` is it?"))
            assert session.start_goal(GoalSpec("repair it", (check,))).wait(DEADLINE_S).met

    def test_a_question_takes_50_model_calls_unless_the_setting_says_otherwise(
        self, repo: Repo, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert Settings().steps_of_a_question() == 50
        monkeypatch.setenv("MUSECODE_ASK_STEPS", "7")
        assert Settings(ask_steps="3").over(os.environ).steps_of_a_question() == 7
        for wrong in ("0", "-1", "many", "²"):
            monkeypatch.setenv("MUSECODE_ASK_STEPS", wrong)
            with pytest.raises(ConfigurationError, match="MUSECODE_ASK_STEPS"):
                open_session(repo.root, settings=settings("http://127.0.0.1:9/v1"))
        assert not home.exists()


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
            session_on(server.base_url, repo.root, sandbox="plain") as session,
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
            (
                "compile",
                '{"path": "a"}',
                "The tools are: check_claim, claim, edit, map, propose_tasks, read, run, search",
            ),
            ("read", '{"path": 5}', "path: Input should be a valid string"),
            ("read", '{"path": "answer.txt", "colour": 1}', "colour: Extra inputs"),
            ("read", '{"path": "answer.txt", "start_line": "one"}', "start_line: Input should be"),
            ("run", '{"command": "true", "timeout": NaN}', "NaN is not allowed"),
            ("run", '{"command": "true", "command": "false"}', "a key occurs twice"),
            (
                "locate",
                '{"check": 1}',
                "The tools are: check_claim, claim, edit, map, propose_tasks, read, run, search",
            ),
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
