"""A goal that is stopped at any event, while workers, the explorer and reviewers work, leaves nothing and goes on."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from pathlib import Path

import pytest
from fixtures.crash_world import check_calls
from fixtures.crew_scripts import Crew, ask, edit, is_explorer, read
from fixtures.model_scripts import Answer, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.review_scripts import Reviewed
from fixtures.session_bench import DEADLINE_S, Repo, end, run_of, runs, session_on

from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session import GoalSpec, Session
from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.session.replay import prove

NAMES = ("one", "two")
VERIFY = tuple(f"grep -q right {name}.txt" for name in NAMES)
OURS = ("goal ", "turns of ", "review of ", "task ")
LONG = "MUSECODE_CRASH_POINTS" in os.environ
MOST = 240
"""Events that such a goal has, about."""


class Play:
    """Workers that ask, run something, edit and look; an explorer that reads before it answers; reviewers that look."""

    def __init__(self, pids: Path) -> None:
        command = run_of(f"echo $$ >> {pids}; exec sleep 0.1")
        work = {
            name: [[ask("What is it?"), command, edit(f"{name}.txt", "wrong", "right"), read(f"{name}.txt"), command]]
            for name in NAMES
        }
        self._others = Reviewed(Crew(work), {"correctness": lambda _: [read("other.txt")]})

    def __call__(self, request: ParsedRequest) -> Answer:
        if not is_explorer(request):
            return self._others(request)
        return read("other.txt") if request.items[-1]["type"] == "message" else Answer("I cannot say.")


class StopAt:
    """Stops a goal as soon as `number` more events are durable."""

    def __init__(self, session: Session, goal: int, number: int) -> None:
        self._goal, self._left = goal, number
        self._begun, self._done = threading.Event(), threading.Event()
        session.read(lambda core: core.log.on_durable(lambda _event: self._saw(core)))

    def _saw(self, core: SessionCore) -> None:
        self._left -= 1
        if self._left == 0:
            self._begun.set()
            core.begin(self._stop(core), "the user's stop")

    async def _stop(self, core: SessionCore) -> None:
        try:
            await core.stop(self._goal)
        except UsageProblem:
            assert core.record(self._goal).final, "it cannot be stopped"
        finally:
            self._done.set()

    def wait(self) -> None:
        """Until the stop is over, if it has begun."""
        assert not self._begun.is_set() or self._done.wait(DEADLINE_S)


def tasks_left(session: Session) -> list[str]:
    return session.read(lambda _: [t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith(OURS)])


def stopped_at(number: int, folder: Path) -> None:
    """One session with a stop, a look at what it left, and its end; in a repository of its own in `folder`."""
    folder.mkdir()
    repo, pids = Repo(folder / "repo"), folder / "pids"
    pids.touch()
    repo.commit({f"{name}.txt": "wrong\n" for name in NAMES})
    graph = [
        {"name": name, "goal": f"Mend {name}.txt.", "accept": [check], "writes": [f"{name}.txt"]}
        for name, check in zip(NAMES, VERIFY, strict=True)
    ]
    chosen = {"crew": "on", "review": "full", "sandbox": "plain"}
    with ModelServer(Play(pids)) as server, session_on(server.base_url, repo.root, **chosen) as session:
        handle = session.start_goal(GoalSpec("mend both", VERIFY, workers=2, tasks=parse_tasks(graph)))
        stop = StopAt(session, handle.number, number)
        end(handle)
        stop.wait()
        assert handle.status in {"stopped", "met"}
        session.call(lambda core: core.log.flush())
        assert session.read(lambda core: (core.crew.busy, core.batches.busy)) == ([], [])
        assert tasks_left(session) == []
        assert {a.state for a in session.read(lambda core: list(core.agents.agents.values()))} == {"idle"}
        assert not [pid for pid in map(int, pids.read_text().split()) if runs(pid)], "a command goes on"
        for tree in session.read(lambda core: [each.path for each in core.workspace_state.worktrees.values()]):
            left = {path.name: path.read_text() for path in Path(tree).glob("*.txt")}
            assert set(left.values()) <= {"wrong\n", "right\n", "other\n"}, left
            assert {path.name for path in Path(tree).glob("*")} <= {*repo.git("ls-files").split(), ".git"}
        check_calls(session.events())
        if not handle.result.met:
            handle.resume()
            assert end(handle).met
        check_calls(session.events(), ended=session.read(lambda core: list(core.agents.agents)))
        journal = session.folder
    assert [repo.read(f"{name}.txt") for name in NAMES] == ["right\n", "right\n"]
    assert repo.worktrees == 1
    proof = prove(journal)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_a_stop_leaves_no_task_no_process_and_no_half_written_file(tmp_path: Path, rng: random.Random) -> None:
    stopped_at(rng.randrange(20, MOST), tmp_path / "x")


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not LONG, reason="minutes: run by make crash")
def test_so_it_is_at_every_event(tmp_path: Path, rng: random.Random) -> None:
    most = int(os.environ["MUSECODE_CRASH_POINTS"])
    points = range(1, MOST) if most >= MOST else sorted(rng.sample(range(1, MOST), most))
    failures = []
    for number in points:
        try:
            stopped_at(number, tmp_path / str(number))
        except Exception as error:
            error.add_note(f"stopped at event {number} of the goal")
            failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(points)} points failed", failures)
