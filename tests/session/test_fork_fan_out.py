"""A goal with several workers is forked in the middle: each task goes on in a worktree of the fork's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixtures.crew_scripts import Crew, edit
from fixtures.model_server import ModelServer
from fixtures.session_bench import Hurried, Repo, Watch, end, only, session_on, settings

from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.session import GoalSpec
from musecode_jupyter.session.api import fork_session
from musecode_jupyter.session.files_at import session_at
from musecode_jupyter.session.replay import prove

NAMES = ("one", "two")
VERIFY = tuple(f"grep -q right {name}.txt" for name in NAMES)
MEND = {name: [[edit(f"{name}.txt", "wrong", "right")]] for name in NAMES}
TASKS = [
    {"name": name, "goal": f"Mend {name}.txt.", "accept": [check], "writes": [f"{name}.txt"]}
    for name, check in zip(NAMES, VERIFY, strict=True)
]


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "repo")
    repo.commit({f"{name}.txt": "first\nwrong\nlast\n" for name in NAMES})
    return repo


def assert_goes_on(base_url: str, repo: Repo, source: Path, event: Event, number: int) -> None:
    worktrees, branches = repo.worktrees, sorted(repo.branches)
    held = {n: tree.held for n, tree in session_at(source, event.seq).trees.items()}
    fork = fork_session(source, event.seq, settings=settings(base_url), effects=Hurried())
    with fork:
        trees = fork.read(lambda core: core.workspace_state.model_copy(deep=True)).worktrees
        assert all(fork.id in tree.path and fork.id in tree.branch for tree in trees.values())
        for n, each in held.items():
            for path, digest in each.changed.items():
                assert Path(trees[n].path, path).read_bytes() == fork.log.blob(str(digest))
        fork.resume_goal(number)
        result = end(fork.handle(number))
        assert result.met, (event.kind, result.why)
        for landing in only(fork.events(event.seq), "merge.landed"):
            assert fork.id in landing.data["backup"]
    assert [name for name in NAMES if "right" in repo.read(f"{name}.txt")] == list(NAMES)
    # What the fork made is gone again, and nothing else is.
    assert (repo.worktrees, sorted(repo.branches)) == (worktrees, branches)
    proof = prove(fork.folder)
    assert proof.ok, proof.problem


def test_workers_go_on_in_a_fork_of_a_live_goal(repo: Repo) -> None:
    with ModelServer(Crew(MEND)) as server, session_on(server.base_url, repo.root) as parent:
        watch = Watch(parent)
        spec = GoalSpec("mend all", VERIFY, workers=2, tasks=parse_tasks(TASKS))
        handle = parent.start_goal(spec)
        watch.until("file.changed")
        event = watch.until("merge.tested")
        assert end(handle).met
        assert_goes_on(server.base_url, repo, parent.folder, event, handle.number)


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="minutes: run by make crash")
@pytest.mark.timeout(3600)
def test_workers_go_on_in_a_fork_at_an_event_of_each_kind(repo: Repo) -> None:
    with ModelServer(Crew(MEND)) as server:
        with session_on(server.base_url, repo.root) as parent:
            spec = GoalSpec("mend all", VERIFY, workers=2, tasks=parse_tasks(TASKS))
            handle = parent.start_goal(spec)
            assert end(handle).met
        events = list(EventLog.read(parent.folder).events())
        met = only(events, "goal.met")[0].seq
        of_kinds = {e.kind: e for e in reversed(events) if handle.number + len(NAMES) <= e.seq < met}
        assert len(of_kinds) > 20
        for event in of_kinds.values():
            assert_goes_on(server.base_url, repo, parent.folder, event, handle.number)
