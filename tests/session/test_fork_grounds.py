"""Forks and rewinds of goals that began from uncommitted files, or in a folder that is in no repository."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fixtures.crash_points import some, within
from fixtures.crash_world import Point, World
from fixtures.folders import Picture, picture
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Hurried, Repo, end, only, run_of, session_on, settings, start

from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.session import GoalResult, Session
from musecode_jupyter.session.api import fork_session
from musecode_jupyter.session.files_at import restore, session_at
from musecode_jupyter.session.replay import prove

LONG = "MUSECODE_CRASH_POINTS" in os.environ
MAKE = run_of("printf made > made.txt; rm -f gone.txt")
OTHER = Answer("", [Call("edit", {"path": "notes.txt", "old": "mine", "new": "ours"})])
CHOSEN = {"dirty": {"base": "dirty"}, "shadow": {"shadow": True}}
WORK = [MAKE, EDIT, OTHER, DONE]


@dataclass
class Past:
    """A session that was filmed, in whose worktree were the files `truth` at some events."""

    base: str
    world: World
    goal: int
    before: Picture
    events: list[Event]
    truth: dict[int, Picture] = field(default_factory=dict)

    def seq(self, kind: str) -> int:
        return only(self.events, kind)[0].seq

    @property
    def middle(self) -> int:
        """After the command that changed files, before the edit that mends the answer."""
        changed = only(self.events, "worktree.snapshotted")[0].seq
        return next(e.seq for e in self.events if e.kind == "tool.finished" and e.seq > changed)

    @property
    def after(self) -> Picture:
        """The user's files when the goal is met."""
        mended = {"answer.txt": (0, b"right\n"), "notes.txt": (0, b"ours\n"), "made.txt": (0, b"made")}
        return {name: each for name, each in {**self.before, **mended}.items() if name != "gone.txt"}


def lay_out(base: str, root: Path) -> None:
    first = {"answer.txt": "wrong\n", "notes.txt": "mine\n", "gone.txt": "gone\n", "other.txt": "other\n"}
    if base == "dirty":
        repo = Repo(root)
        repo.commit(first)
        repo.write("other.txt", "not committed\n")
        repo.write("stray.txt", "not committed\n")
        return
    root.mkdir()
    for name, text in first.items():
        (root / name).write_text(text)


def record(base: str, folder: Path) -> Past:
    world = World(folder / "world", folder / "album")
    lay_out(base, world.repo)
    before, truth = picture(world.repo), dict[int, Picture]()
    with ModelServer(Steps(WORK)) as server, world.film(server.base_url) as session:

        def look_at(event: Event) -> None:
            tree = next(iter(session.core.workspace_state.worktrees.values()), None)
            if event.kind in {"tool.finished", "goal.claimed", "worktree.created"} and tree is not None:
                truth[event.seq] = picture(Path(tree.path))

        session.read(lambda core: core.log.on_durable(look_at))
        handle = start(session, **CHOSEN[base])
        result = end(handle)
        assert result.met, result.why
        events = session.events()
    past = Past(base, world, handle.number, before, events, truth)
    assert picture(world.repo) == past.after
    return past


@pytest.fixture(scope="module", params=["dirty", "shadow"] if LONG else ["shadow"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Past:
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSECODE_HOME", str(folder / "world" / "home"))
        return record(request.param, folder)


@pytest.fixture
def past(recorded: Past, monkeypatch: pytest.MonkeyPatch) -> Past:
    monkeypatch.setenv("MUSECODE_HOME", str(recorded.world.home))
    return recorded


def tree_of(session: Session) -> Path | None:
    tree = session.read(lambda core: next(iter(core.workspace_state.worktrees.values()), None))
    return None if tree is None else Path(tree.path)


def refs(past: Past) -> dict[str, str]:
    """The private refs and branches of the parent, in whichever repository."""
    folders = [past.world.repo / ".git", *(past.world.home / "shadow").glob("*.git")]
    found = {}
    for folder in folders:
        if folder.is_dir():
            repo = object.__new__(Repo)
            repo.root = past.world.root
            lines = repo.git(f"--git-dir={folder}", "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
            found |= dict(line.split() for line in lines if past.world.name in line)
    return found


def laid_out(past: Past, seq: int, into: Path) -> Picture:
    """What `jupyter musecode replay --at SEQ --into DIR` lays out."""
    at = session_at(past.world.folder, seq)
    asyncio.run(restore(at, at.choose(None), into, LiveEffects()))
    return picture(into)


def check_result(past: Past, result: GoalResult) -> None:
    """The goal is met; or nothing was settled of it yet when the other one had landed, and there is nothing to do."""
    green = "already green" in result.why and (past.world.repo / "answer.txt").read_text() == "right\n"
    assert result.met or green, f"{result.status}: {result.why}"


def check_fork(past: Past, seq: int, point: Point, model: Callable[[], Steps]) -> None:
    """In the world as at `point` it is forked at `seq`: files, proofs, and it goes on until the goal is met."""
    past.world.restore(point)
    kept = refs(past)
    with ModelServer(model()) as server:
        fork = fork_session(past.world.folder, seq, settings=settings(server.base_url), effects=Hurried())
        with fork:
            tree = tree_of(fork)
            if seq in past.truth and tree is not None:
                record = fork.goals.goals[past.goal]
                assert record.status == "met" or picture(tree) == past.truth[seq]
            if past.goal in fork.goals.goals and not fork.goals.goals[past.goal].final:
                fork.resume_goal(past.goal)
                result = end(fork.handle(past.goal))
                check_result(past, result)
                assert {r.status for r in server.requests} <= {200}
        assert kept.items() <= refs(past).items(), "refs of the parent"
    proof = prove(fork.folder)
    assert proof.ok, proof.problem
    # The parent goes on as after any kill. A landing of its own that was cut off is its own to finish.
    with (
        ModelServer(model()) as server,
        session_on(server.base_url, past.world.repo, resume=past.world.name) as session,
    ):
        if past.goal in session.goals.goals and session.goals.goals[past.goal].status != "met":
            session.resume_goal(past.goal)
            result = end(session.handle(past.goal))
            check_result(past, result)
    proof = prove(past.world.folder)
    assert proof.ok, proof.problem
    if seq >= past.goal:
        made = {"made.txt", "notes.txt", "gone.txt"}
        found = picture(past.world.repo)
        assert {name: each for name, each in found.items() if name not in made} == {
            name: each for name, each in past.after.items() if name not in made
        }


@pytest.mark.crash
def test_a_fork_in_the_middle_goes_on_and_its_files_can_be_laid_out(past: Past, tmp_path: Path) -> None:
    seq = past.middle
    point = next(point for point in past.world.boundaries() if point.whole == seq)
    past.world.restore(point)
    assert laid_out(past, seq, tmp_path / "out") == past.truth[seq]
    check_fork(past, seq, point, lambda: Steps([EDIT, OTHER, DONE]))
    assert picture(past.world.repo) == past.after


@pytest.mark.crash
@pytest.mark.skipif(not LONG, reason="minutes: run by make crash")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("when", ["then", "at the end"])
def test_forks_at_every_event(past: Past, when: str, rng: random.Random) -> None:
    points, failures = past.world.boundaries(), []
    chosen = [point for point in points if within(point.whole)]
    chosen = some(chosen, rng, lambda point: past.world.records[point.whole - 1]["kind"])
    for point in chosen:
        try:
            work = lambda: Steps([EDIT, DONE])  # noqa: E731
            check_fork(past, point.whole, point if when == "then" else points[-1], work)
        except Exception as error:
            error.add_note(f"at event {point.whole}, {past.world.records[point.whole - 1]['kind']}")
            failures.append(error)
            if len(failures) == 20:
                break
    print(f"\n{past.base}, {when}: {len(chosen)} forks")
    if failures:
        raise ExceptionGroup(f"{len(failures)} forks failed", failures)
