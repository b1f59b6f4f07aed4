"""How a goal ends: met, or by a budget, stalled or blocked; and what is then in the user's checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixtures.make_repo import make_repo
from fixtures.model_scripts import Answer, Call, Fault, ParsedRequest, Steps, load_repairs
from fixtures.model_server import ModelServer
from fixtures.session_bench import (
    CHECK,
    DONE,
    EDIT,
    Doing,
    Repo,
    agent_branch,
    end,
    kinds,
    only,
    said,
    session_on,
    start,
)

from musecode_jupyter.agents.guided import NO_FIX
from musecode_jupyter.session.core import GoalSpec
from musecode_jupyter.session.replay import prove


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
            "merge.reviewed",
            "goal.judged",
            "merge.landing",
            "merge.landed",
            "goal.met",
        ]
        judged, met = order[6], order[9]
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

    @pytest.mark.parametrize("known_as", ["absolute", "as the page knows it"])
    def test_a_notebook_that_is_open_is_not_written_by_a_landing(self, repo: Repo, known_as: str) -> None:
        """The front end's next save would silently undo what was landed, or lose what the user typed."""
        notebook = '{"cells": [], "wrong": 1}\n'
        repo.commit({"open.ipynb": notebook})
        edit = Answer("I correct it.", [Call("edit", {"path": "open.ipynb", "old": "wrong", "new": "right"})])
        document = repo.root / "open.ipynb" if known_as == "absolute" else Path(repo.root.name, "open.ipynb")
        documents = [document]
        with ModelServer(Steps([edit, DONE])) as server, session_on(server.base_url, repo.root) as session:
            session.core.open_documents = lambda: documents
            handle = session.start_goal(GoalSpec("say right", ("grep -q right open.ipynb",)))
            result = end(handle)
            assert result.status == "blocked"
            assert "open.ipynb, which the work changes, is open in a notebook" in result.why
            assert repo.read("open.ipynb") == notebook
            documents.clear()
            handle.resume()
            assert end(handle).met
        assert "right" in repo.read("open.ipynb")

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

    def test_a_check_that_is_green_already_asks_the_model_nothing(self, repo: Repo) -> None:
        """Resumed, such a goal took the green check for work that is to land, and ended in an unexpected error."""
        with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session, "grep -q wrong answer.txt")
            for _ in range(2):
                result = end(handle)
                assert result.status == "blocked"
                assert "already green" in result.why
                handle.resume()
            end(handle)
        assert server.requests == []

    def test_a_check_that_passes_without_a_change_is_not_steady(self, repo: Repo, tmp_path: Path) -> None:
        mark = tmp_path / "mark"
        flaky = f"test -e {mark} || {{ touch {mark}; false; }}"
        with (
            ModelServer(Steps([DONE])) as server,
            session_on(server.base_url, repo.root, sandbox="plain") as session,
        ):
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
