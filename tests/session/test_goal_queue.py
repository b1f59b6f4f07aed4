"""Several goals in one session: one runs, the others wait for their turn, through restarts."""

from __future__ import annotations

import os

import pytest
from fixtures.model_scripts import Answer, Call
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, DONE, EDIT, Held, Repo, end, kinds, only, session_on, start

from musecode_jupyter.agents.tasks.graph import TaskSpec
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session import GoalSpec
from musecode_jupyter.session.goal_queue import as_data, from_data
from musecode_jupyter.session.replay import prove
from musecode_jupyter.skills.clauses import ClauseOptions

SECOND = "grep -q new other.txt"
OTHER = Answer("", [Call("edit", {"path": "other.txt", "old": "other", "new": "new"})])


def test_the_next_goal_begins_by_itself_and_upon_what_has_landed(repo: Repo) -> None:
    script = Held([EDIT, DONE, OTHER, DONE], hold=0)
    with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
        first = start(session)
        script.wait()
        second, third = start(session, SECOND), start(session, "true")
        assert [each.result.why for each in (second, third)] == ["number 1 in the queue", "number 2 in the queue"]
        assert [each.number for each in session.queued()] == [second.number, third.number]
        queued = second.number
        with pytest.raises(UsageProblem, match="no-such-program"):
            start(session, "no-such-program")
        script.release()
        assert end(first).met
        assert end(second).met
        # The third cannot begin to be worked on, and nothing waits for it.
        assert end(third).status == "blocked"
        assert second.number > queued
        assert session.goals.goals[second.number].base == first.result.commit
        assert kinds(session.events()).count("goal.set") == 3
        assert session.queued() == []
        assert prove(session.folder).ok
    assert (repo.read("answer.txt"), repo.read("other.txt")) == ("right\n", "new\n")


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="one more whole session: run by make crash")
def test_a_paused_goal_holds_the_queue_until_it_is_stopped_or_cleared(repo: Repo) -> None:
    script = Held([EDIT, OTHER, DONE], hold=0)
    with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
        first = start(session)
        script.wait()
        second = start(session, SECOND)
        first.pause()
        script.release()
        assert end(first).status == "paused"
        assert second.status == "queued"
        first.stop()
        assert end(second).met
        assert prove(session.folder).ok


def test_the_queue_is_there_after_a_restart_and_goes_on_when_the_user_does(repo: Repo) -> None:
    script = Held([EDIT, EDIT, DONE, OTHER, DONE], hold=0)
    with ModelServer(script) as server:
        with session_on(server.base_url, repo.root) as session:
            first = start(session)
            script.wait()
            number = start(session, SECOND).number
            script.release()
        with session_on(server.base_url, repo.root, resume="last") as again:
            [second] = again.queued()
            assert second.number == number
            assert len(only(again.events(), "goal.set")) == 1
            again.newest_goal().resume()
            assert end(second).met
            assert end(again.handle(first.number)).met
            assert prove(again.folder).ok


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="one more whole session: run by make crash")
def test_a_queue_without_a_goal_begins_when_it_is_told_to(repo: Repo) -> None:
    script = Held([EDIT, OTHER, DONE], hold=0)
    with ModelServer(script) as server:
        with session_on(server.base_url, repo.root) as session:
            first = start(session)
            script.wait()
            start(session, SECOND)
            first.pause()
            script.release()
            end(first)
        with session_on(server.base_url, repo.root, resume="last") as again:
            # What is cleared ends: the next one begins.
            again.newest_goal().clear()
            [*_, second] = [again.begin_queued(), *again.queued()][:1]
            second = second or again.newest_goal()
            assert end(second).met


def test_what_was_asked_for_is_kept_whole() -> None:
    task = TaskSpec(name="one", goal="Do it.", accept=("true",), writes=("a.txt",))
    clauses = ClauseOptions(("import fla",), ("/x:y",), ("speedup >= 1.3 vs HEAD",), "make bench", "15%")
    spec = GoalSpec("text", (CHECK,), usd=1.5, hours=2.0, workers=3, tasks=(task,), base="head", clauses=clauses)
    assert from_data(as_data(spec)) == spec
