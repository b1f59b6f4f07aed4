"""Acceptance commands of a task graph are tried before any work: what cannot be run, what passes already."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fixtures.crew_scripts import Crew, edit, place_of
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import Repo, Watch, end, only, said, session_on

from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session import GoalHandle, GoalSpec, Session

VERIFY = ("grep -q right one.txt", "grep -q right two.txt")
MEND = {name: [[edit(f"{name}.txt", "wrong", "right")]] for name in ("one", "two", "late")}
ONE = {"name": "one", "goal": "Mend one.txt.", "accept": [VERIFY[0]], "writes": ["one.txt"]}
TWO = {"name": "two", "goal": "Mend two.txt.", "accept": [VERIFY[1]], "writes": ["two.txt"]}


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "repo")
    repo.commit({f"{name}.txt": "wrong\n" for name in ("one", "two")})
    return repo


def start(session: Session, *tasks: dict[str, Any]) -> GoalHandle:
    return session.start_goal(GoalSpec("mend all", VERIFY, workers=2, tasks=parse_tasks([*tasks]) if tasks else ()))


def proposing(*tasks: dict[str, Any]) -> Answer:
    return Answer("I split it.", [Call("propose_tasks", {"tasks": [*tasks]})])


def test_a_users_command_that_cannot_be_run_stops_the_goal_before_any_work(repo: Repo) -> None:
    two = {**TWO, "accept": ["./check.sh two.txt"]}
    with ModelServer(Crew(MEND)) as server, session_on(server.base_url, repo.root) as session:
        handle = start(session, ONE, two)
        result = end(handle)
        assert result.status == "blocked"
        assert result.why.startswith("Task two: `./check.sh two.txt` cannot be run: ")
        assert "No such file" in result.why
        assert result.model_calls == 0
        (tried,) = only(session.events(), "tasks.tried")
        assert tried.data["tree"] == repo.git("rev-parse", "main^{tree}")
        assert [(c["command"], c["exit"]) for c in tried.data["checks"]] == [("./check.sh two.txt", 127)]
        tree = tried.data["tree"][:10]
        assert f"done when `./check.sh two.txt` passes (on tree {tree} of your branch: exit 127)" in (
            session.tasks_text()
        )
        assert f"done when `{VERIFY[0]}` passes (on tree {tree} of your branch: exit 1)" in session.tasks_text()
        repo.commit({"check.sh": "#!/bin/sh\ngrep -q right $1\n"})
        repo.git("update-index", "--chmod=+x", "check.sh")
        repo.git("commit", "-q", "-m", "executable")
        session.resume_goal(handle.number)
        result = end(handle)
        assert result.met, result.why
    with ModelServer(Crew(MEND)) as server, session_on(server.base_url, repo.root) as session:
        wrong = pytest.raises(
            UsageProblem, match="acceptance command of task two cannot run: there is no 'pytset' here"
        )
        with wrong:
            start(session, ONE, {**TWO, "accept": ["pytset -q"]})


def test_what_passes_already_is_not_worked_on_and_what_the_tasks_make_may_be_missing(repo: Repo) -> None:
    green = {"name": "green", "goal": "Keep it.", "accept": ["test -e one.txt", "grep -q wrong two.txt"]}
    script = {"name": "script", "goal": "Make it.", "accept": ["sh run.sh"], "writes": ["run.sh"]}
    # They come after another: that one lacks what it makes, or that one passes now, says nothing.
    late = {
        "name": "late",
        "goal": "Use it.",
        "accept": ["sh run.sh late.txt"],
        "after": ["script"],
        "writes": ["late.txt"],
    }
    same = {"name": "same", "goal": "Tell.", "accept": ["test -e one.txt"], "after": ["script"], "writes": ["told"]}
    play = {
        "script": [[edit("run.sh", "", "test -e ${1:-one.txt}\n")]],
        "late": [[edit("late.txt", "", "late\n")]],
        "same": [[edit("told", "", "told\n")]],
    }
    with ModelServer(Crew(play)) as server, session_on(server.base_url, repo.root) as session:
        graph = parse_tasks([green, script, late, same])
        result = end(session.start_goal(GoalSpec("do all", ("test -e told",), workers=2, tasks=graph)))
        assert result.met, result.why
        text = session.tasks_text()
        events = list(session.events())
    first = repo.git("rev-list", "--reverse", "main").split()[1]
    assert f"green: done, not worked on: its acceptance commands passed already at {first[:10]}" in text
    assert len(re.findall(r": done by worker-\d, landed by merge", text)) == 3
    number = {event.data["name"]: event.seq for event in only(events, "task.created")}
    assert number["green"] not in {event.data["task"] for event in only(events, "task.leased")}
    (tried,) = only(events, "tasks.tried")
    commands = [check["command"] for check in tried.data["checks"]]
    assert commands == ["test -e one.txt", "grep -q wrong two.txt", "sh run.sh", "sh run.sh late.txt"]
    assert tried.data["report"] == ""
    assert repo.read("told") == "told\n"


@pytest.mark.parametrize("again", [True, False])
def test_a_graph_of_the_leads_goes_back_to_it_once(repo: Repo, again: bool) -> None:
    green = {"name": "green", "goal": "Keep it.", "accept": ["test -e one.txt"], "writes": ["one.txt"]}
    broken = {**TWO, "accept": ["pytset two.txt"]}
    plan = [proposing(ONE, broken, green), Answer("Three."), proposing(ONE, TWO if again else broken, green)]
    plan.append(Answer("That is all."))

    class Lead(Crew):
        """The lead's answers in order, whatever it is told."""

        given = 0

        def __call__(self, request: ParsedRequest) -> Answer:
            if place_of(request)[0]:
                return super().__call__(request)
            self.given += 1
            return plan[self.given - 1]

    with ModelServer(Lead(MEND)) as server, session_on(server.base_url, repo.root) as session:
        result = end(start(session))
        events = list(session.events())
        text = session.tasks_text()
        told = [
            line for seen in server.requests for line in said(seen.json) if line.startswith("The tasks were not taken.")
        ]
    assert len([event for event in only(events, "tasks.tried") if event.data["report"].startswith("The")]) == (
        1 if again else 2
    )
    assert told
    assert "Task two: `pytset two.txt` cannot be run: " in told[0]
    assert "Task green: its acceptance commands pass already" in told[0]
    if again:
        assert result.met, result.why
        assert "green: done, not worked on" in text
    else:
        assert result.status == "stalled"
        assert result.why.startswith("The goal was not split into tasks: Task two: `pytset two.txt` cannot be run: ")
        assert only(events, "task.created") == []


def test_the_question_is_about_exactly_the_commands_that_no_rule_covers(repo: Repo) -> None:
    plan = [proposing({**ONE, "accept": ["grep -c right one.txt"]}, {**TWO, "accept": ["test -e two.txt -a ! -e x"]})]
    with (
        ModelServer(Crew(MEND, [*plan, Answer("Two.")])) as server,
        session_on(server.base_url, repo.root, interactive=True, approvals="ask") as session,
    ):
        session.allow("grep -c")
        watch = Watch(session)
        handle = start(session)
        asked = watch.until("approval.requested", action="tasks")
        assert asked.data["shown"]["commands"] == ["test -e two.txt -a ! -e x"]
        assert only(session.events(), "tasks.tried") == []
        session.answer(asked.seq, "deny", by="test", why="not these")
        result = end(handle)
        assert result.status == "blocked"
        assert result.why == "The tasks' acceptance commands were denied (not these): test -e two.txt -a ! -e x"
        assert only(session.events(), "tasks.tried") == []
    with (
        ModelServer(Crew(MEND, [*plan, Answer("Two.")])) as server,
        session_on(server.base_url, repo.root, approvals="deny") as session,
    ):
        result = end(start(session))
        assert result.status == "blocked"
        assert "denied (approvals mode deny)" in result.why
