"""Every fixture repository is repaired end to end, through both APIs and both profiles; the record holds."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fixtures.make_repo import make_repo, names, repair
from fixtures.model_scripts import RepairDriver, RepairGuided, load_repairs
from fixtures.model_server import ModelServer, SeenRequest
from fixtures.session_bench import CLOSING, MODEL, kinds, only, session_on

from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.session import GoalResult
from musecode_jupyter.session.core import GoalSpec
from musecode_jupyter.session.replay import Proof, prove

VERIFY = "python -m pytest -q"
GUIDED = [("guided", name) for name in names()[::3]]
LONG = "MUSECODE_CRASH_POINTS" in os.environ
DRIVEN = [
    (api, name)
    for turn, api in enumerate(("responses", "chat"))
    for number, name in enumerate(names())
    if LONG or number % 3 == turn
]
"""Two repositories through each of the APIs; all through both where MUSECODE_CRASH_POINTS is set."""


@dataclass(frozen=True)
class Run:
    """A finished run and all that it left."""

    api: str
    name: str
    repo: Path
    worktrees: Path
    result: GoalResult
    diff: str
    events: list[Event]
    requests: list[SeenRequest]
    proof: Proof

    def git(self, *args: str) -> str:
        done = subprocess.run(["git", *args], cwd=self.repo, capture_output=True, text=True, check=True)
        return done.stdout.strip()


@pytest.fixture(scope="module", params=[*DRIVEN, *GUIDED], ids="-".join)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    api, name = request.param
    folder = tmp_path_factory.mktemp(f"{api}-{name}")
    guided = {"model": "scripted", "api": "chat", "price": "0/0/0", "profile": "guided"}
    script = RepairGuided(load_repairs(name)) if api == "guided" else RepairDriver(load_repairs())
    repo = make_repo(name, folder / "repo")
    with pytest.MonkeyPatch.context() as patch, ModelServer(script) as server:
        patch.setenv("MUSECODE_HOME", str(folder / "home"))
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        with session_on(server.base_url, repo, **(guided if api == "guided" else {"api": api})) as session:
            handle = session.start_goal(GoalSpec("make the tests pass", (VERIFY,)))
            result = handle.wait(timeout=150)
            diff, where = handle.diff(), session.folder
        events = list(EventLog.read(where).events())
        proof = prove(where)
        worktrees = folder / "home" / "worktrees"
        yield Run(api, name, repo, worktrees, result, diff, events, server.requests, proof)


def test_the_goal_is_met_and_landed_on_the_users_branch(run: Run) -> None:
    assert (run.result.status, run.result.why) == ("met", "")
    met = only(run.events, "goal.met")
    assert len(met) == 1
    assert run.git("rev-parse", "refs/heads/main") == run.result.commit == met[0].data["commit"]
    assert run.git("rev-parse", "HEAD^{tree}") == met[0].data["tree"]
    assert [check["passed"] for check in met[0].data["checks"]] == [True]
    for edit in repair(run.name):
        assert f"-{edit.old}\n+{edit.new}" in run.diff


def test_the_users_checkout_is_brought_along_and_clean(run: Run) -> None:
    assert run.git("status", "--porcelain") == ""
    assert run.git("symbolic-ref", "--short", "HEAD") == "main"
    for edit in repair(run.name):
        lines = (run.repo / edit.path).read_text("utf-8").split("\n")
        assert edit.new in lines
        assert edit.old not in lines


def test_worktrees_and_the_agents_branch_are_gone(run: Run) -> None:
    assert run.git("branch", "--format=%(refname:short)") == "main"
    assert run.git("worktree", "list").count("\n") == 0
    assert os.listdir(run.worktrees) == []


def test_the_log_proves_chain_fold_and_prompts(run: Run) -> None:
    assert run.proof.problem is None
    assert run.proof.prompts == len(run.requests) > 0
    assert run.proof.events == len(run.events)
    assert [event.seq for event in run.events] == list(range(1, len(run.events) + 1))


def test_no_call_starts_twice_and_each_has_one_result(run: Run) -> None:
    requested = {event.seq for event in run.events if event.kind == "tool.requested"}
    started = Counter(event.data["call"] for event in run.events if event.kind == "tool.started")
    closed = Counter(event.data["call"] for event in run.events if event.kind in CLOSING)
    assert max(started.values()) == 1
    assert closed == dict.fromkeys(requested, 1)


def test_every_request_names_the_pinned_model_and_is_accepted(run: Run) -> None:
    pinned = "scripted" if run.api == "guided" else MODEL
    assert {request.json["model"] for request in run.requests} == {pinned}
    assert {request.status for request in run.requests} == {200}, [r.message for r in run.requests]


def test_prompts_are_prefix_equal_from_turn_to_turn(run: Run) -> None:
    if run.api == "guided":
        # A guided question stands alone; what all of them have in common comes first.
        assert len({request.json["messages"][0]["content"] for request in run.requests}) == 1
        return
    field = "input" if run.api == "responses" else "messages"
    bodies = [request.json for request in run.requests]
    assert len(bodies) > 3
    for earlier, later in pairwise(bodies):
        # As text, so that the order of keys counts as well.
        assert _texts(later[field])[: len(earlier[field])] == _texts(earlier[field])
        assert len(later[field]) > len(earlier[field])
        assert _rest(later, field) == _rest(earlier, field)


def test_the_model_is_told_every_result_of_its_calls_once(run: Run) -> None:
    if run.api == "guided":
        # The harness makes the calls.
        assert {event.data["call_id"] for event in only(run.events, "tool.requested")} == {None}
        return
    last = run.requests[-1].json
    if run.api == "responses":
        calls = [item["call_id"] for item in last["input"] if item["type"] == "function_call"]
        answers = [item["call_id"] for item in last["input"] if item["type"] == "function_call_output"]
    else:
        said = [message for message in last["messages"] if message["role"] == "assistant"]
        calls = [call["id"] for message in said for call in message.get("tool_calls", [])]
        answers = [m["tool_call_id"] for m in last["messages"] if m["role"] == "tool"]
    assert calls
    assert Counter(calls) == Counter(answers) == dict.fromkeys(calls, 1)


def test_what_was_used_adds_up(run: Run) -> None:
    completed = only(run.events, "model.completed")
    assert run.result.model_calls == len(completed) == len(run.requests)
    assert run.result.tokens == sum(e.data["usage"]["input"] + e.data["usage"]["output"] for e in completed)
    assert (run.result.usd > 0) == (run.api != "guided")
    assert kinds(run.events)[-2:] == ["session.closed", "state.digest"]


def _texts(items: list[Any]) -> list[str]:
    return [json.dumps(item) for item in items]


def _rest(body: dict[str, Any], field: str) -> str:
    return json.dumps({name: value for name, value in body.items() if name != field})
