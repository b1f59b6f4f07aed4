"""Workers and reviewers stay: suspended after a restart while work waits, as they were; later goals take them up."""

from __future__ import annotations

import threading
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from fixtures.crew_scripts import Crew, edit
from fixtures.model_scripts import Answer, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.review_scripts import Reviewed
from fixtures.session_bench import DEADLINE_S, Repo, Watch, end, only, session_on

from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.agents.verifier.state import VERIFIER
from musecode_jupyter.session import GoalHandle, GoalSpec, Session
from musecode_jupyter.session.agents_view import agents_lines
from musecode_jupyter.session.replay import prove

NAMES = ("one", "two")
REVIEWERS = ["reviewer-correctness", "reviewer-tests", "reviewer-simplicity"]
FULL = {"review": "full", "crew": "on"}


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "repo")
    repo.commit({f"{name}.txt": "wrong\n" for name in NAMES})
    return repo


class Seen:
    """Plays all agents, and keeps what each was asked; a reviewer of a change of the file `hold` waits for `go`."""

    def __init__(self, hold: str = "") -> None:
        play = {name: [[edit(f"{name}.txt", "wrong", "right")]] for name in NAMES}
        self._script = Reviewed(Crew(play), {"simplicity": self._review})
        self._hold = hold
        self.begun, self.go = threading.Event(), threading.Event()
        self.prompts: dict[str, list[ParsedRequest]] = defaultdict(list)

    def _review(self, request: ParsedRequest) -> list[Answer]:
        put = next(item["text"] for item in reversed(request.items) if item.get("role") == "user")
        if self._hold and f"+++ b/{self._hold}" in put:
            self.begun.set()
            assert self.go.wait(DEADLINE_S)
        return []

    def __call__(self, request: ParsedRequest) -> Answer:
        self.prompts[request.raw["prompt_cache_key"]].append(request)
        return self._script(request)

    def all_extend(self) -> bool:
        """Whether each prompt begins with all of the one before it of the same agent."""
        return all(
            after.items[: len(before.items)] == before.items and after.instructions == before.instructions
            for prompts in self.prompts.values()
            for before, after in pairwise(prompts)
        )


def start(session: Session) -> GoalHandle:
    graph = [
        {"name": name, "goal": f"Mend {name}.txt.", "accept": [f"grep -q right {name}.txt"], "writes": [f"{name}.txt"]}
        for name in NAMES
    ]
    graph[1]["after"] = ["one"]
    verify = tuple(f"grep -q right {name}.txt" for name in NAMES)
    return session.start_goal(GoalSpec("mend both", verify, workers=2, tasks=parse_tasks(graph)))


def states(session: Session) -> dict[str, str]:
    """Of those whom models play; the verifier is there once there was something to check."""
    found = session.read(lambda core: {name: record.state for name, record in core.agents.agents.items()})
    return {name: state for name, state in found.items() if name != VERIFIER}


def test_after_a_restart_they_are_suspended_and_go_on_and_a_later_goal_takes_the_same_ones(repo: Repo) -> None:
    model = Seen(hold="two.txt")
    stand = {"lead": "suspended", "explorer": "suspended"}
    with ModelServer(model) as server:
        with session_on(server.base_url, repo.root, **FULL) as session:
            watch = Watch(session)
            handle = start(session)
            watch.until("task.done")
            assert model.begun.wait(DEADLINE_S)
            assert states(session)["reviewer-simplicity"] == "running", "it is said to be idle while it works"
            name, number, folder = session.id, handle.number, session.folder
        model.go.set()
        with session_on(server.base_url, repo.root, resume=name, **FULL) as session:
            asked = len(server.requests)
            waiting = {**stand, "worker-1": "suspended", **dict.fromkeys(REVIEWERS, "suspended")}
            assert states(session) == waiting
            lines = session.read(agents_lines)
            assert any(line.startswith("worker-1: worker, ") and ": suspended (restart)" in line for line in lines)
            assert len(server.requests) == asked, "a model call without a cause"
            session.resume_goal(number)
            assert end(session.handle(number)).met
            repo.commit({f"{name}.txt": "wrong\n" for name in NAMES})
            assert end(start(session)).met
            assert not {"running", "waiting"} & set(states(session).values()), "it is said to work after the end"
            made = [event.agent for event in only(session.events(), "agent.created")]
            assert made == ["lead", "explorer", *REVIEWERS, VERIFIER, "worker-1"]
        assert model.all_extend(), "a conversation was begun anew"
        with session_on(server.base_url, repo.root, resume=name, **FULL) as session:
            assert states(session) == {**dict.fromkeys(waiting, "idle"), **stand}
    assert repo.read("two.txt") == "right\n"
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_a_goal_that_is_cleared_leaves_nobody_waiting(repo: Repo) -> None:
    model = Seen(hold="one.txt")
    with ModelServer(model) as server:
        with session_on(server.base_url, repo.root, **FULL) as session:
            handle = start(session)
            assert model.begun.wait(DEADLINE_S)
            name, number = session.id, handle.number
        with session_on(server.base_url, repo.root, resume=name, **FULL) as session:
            assert states(session)["worker-1"] == "suspended"
            watch = Watch(session)
            session.handle(number).clear()
            watch.until("agent.state", why="its work is over")
            idle = {each for each, state in states(session).items() if state == "idle"}
            assert idle == {*REVIEWERS, "worker-1"}
