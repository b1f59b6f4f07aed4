"""A fork continues from any event of a session, with files and context as they were; the parent is not touched."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fixtures.crash_points import some
from fixtures.folders import fingerprint, picture
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import (
    DEADLINE_S,
    DONE,
    EDIT,
    Held,
    Hurried,
    Repo,
    Watch,
    end,
    kinds,
    only,
    run_of,
    said,
    session_on,
    settings,
    start,
)

from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event, seal, split_line
from musecode_jupyter.runtime.errors import Denied, GitError, LogError, UsageProblem
from musecode_jupyter.session import GoalHandle, Session
from musecode_jupyter.session.api import fork_session
from musecode_jupyter.session.replay import prove
from musecode_jupyter.session.store import list_sessions
from musecode_jupyter.session.time_travel import landings_after
from musecode_jupyter.workspace.state import WorktreeRecord

MAKE = run_of("printf made > made.txt; chmod +x other.txt; ln -s made.txt link; rm -f gone.txt")
WRONG = Answer("I try.", [Call("edit", {"path": "answer.txt", "old": "wrong", "new": "almost"})])
RIGHT = Answer("Once more.", [Call("edit", {"path": "answer.txt", "old": "almost", "new": "right"})])
NOWHERE = "http://127.0.0.1:9/v1"


@contextmanager
def forked(base_url: str, source: Path, seq: int, **chosen: object) -> Iterator[Session]:
    session = fork_session(source, seq, settings=settings(base_url, **chosen), effects=Hurried())
    try:
        yield session
    finally:
        session.close()


def go_on(session: Session, number: int) -> GoalHandle:
    session.resume_goal(number)
    return session.handle(number)


@dataclass(frozen=True)
class Past:
    """A session whose goal was met, and whose landing the user took back; `truth` has its files at some events."""

    repo: Repo
    home: Path
    source: Path
    number: int
    events: list[Event]
    truth: dict[int, dict[str, tuple[int, bytes]]]
    base: str

    @property
    def landed(self) -> int:
        return only(self.events, "merge.landed")[0].seq


def record(repo: Repo, home: Path, steps: list[Answer]) -> Past:
    """Run the goal; pictures of the worktree are taken at events at which nothing moves."""
    base = repo.git("rev-parse", "HEAD")
    truth: dict[int, dict[str, tuple[int, bytes]]] = {}
    with ModelServer(Steps(steps)) as server, session_on(server.base_url, repo.root) as session:

        def look_at(event: Event) -> None:
            tree = next(iter(session.core.workspace_state.worktrees.values()), None)
            if event.kind in {"tool.finished", "goal.claimed", "worktree.created"} and tree is not None:
                truth[event.seq] = picture(Path(tree.path))

        session.read(lambda core: core.log.on_durable(look_at))
        handle = start(session)
        assert end(handle).met
    repo.git("reset", "--hard", "--quiet", base)
    events = list(EventLog.read(session.folder).events())
    return Past(repo, home, session.folder, handle.number, events, truth, base)


@pytest.fixture(scope="module")
def recorded_past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    folder = tmp_path_factory.mktemp("past")
    look = Answer("I look.", [Call("read", {"path": "answer.txt"}), Call("search", {"pattern": "o"})])
    late = run_of("rm link; echo more >> made.txt")
    steps = [look, WRONG, look, MAKE, run_of("exit 3"), DONE, RIGHT, late, DONE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSECODE_HOME", str(folder / "home"))
        return record(Repo(folder / "repo"), folder / "home", steps)


@pytest.fixture
def past(recorded_past: Past, monkeypatch: pytest.MonkeyPatch) -> Iterator[Past]:
    """The session that was recorded; its bytes are the same afterwards, and the user's branch is put back."""
    monkeypatch.setenv("MUSECODE_HOME", str(recorded_past.home))
    before = fingerprint(recorded_past.source)
    yield recorded_past
    assert fingerprint(recorded_past.source) == before
    recorded_past.repo.git("reset", "--hard", "--quiet", recorded_past.base)


def tree_of(session: Session) -> WorktreeRecord:
    return session.read(lambda core: next(iter(core.workspace_state.worktrees.values())))


def test_a_fork_in_the_middle_goes_on_to_a_met_goal_and_the_parent_is_as_before(past: Past) -> None:
    # After the command that changed files, before the edit that mends the answer.
    snapshot = only(past.events, "worktree.snapshotted")[0]
    at = next(e.seq for e in past.events if e.kind == "tool.finished" and e.seq > snapshot.seq)
    worktrees = past.repo.worktrees
    with ModelServer(Steps([RIGHT, DONE])) as server:
        with forked(server.base_url, past.source, at) as session:
            tree = tree_of(session)
            assert session.id in tree.path
            assert tree.branch == f"musecode/{session.id}/{past.number}"
            held = picture(Path(tree.path))
            assert held == past.truth[at]
            assert held["answer.txt"] == (0, b"almost\n")
            assert held["other.txt"] == (0o111, b"other\n")
            assert held["link"] == (0, b"made.txt")
            assert end(go_on(session, past.number)).met
        assert past.repo.read("answer.txt") == "right\n"
        assert past.repo.read("made.txt") == "made"
        # The conversation is the parent's, and the agent is told where it is now.
        assert tree.path in said(server.requests[0].json)[-1]
    proof = prove(session.folder)
    assert proof.ok, proof.problem
    parent = (past.source / "journal" / "000001.jsonl").read_bytes()
    assert parent.startswith((session.folder / "journal" / "000001.jsonl").read_bytes())
    listed = {entry.id: entry for entry in list_sessions(past.home)}
    assert (listed[session.id].parent, listed[session.id].parent_seq) == (past.source.name, at)
    assert not listed[past.source.name].parent
    assert tree.branch not in past.repo.branches
    assert past.repo.worktrees == worktrees


def test_a_fork_of_a_fork_and_forks_side_by_side_do_not_meet(past: Past) -> None:
    at = only(past.events, "file.changed")[0].seq
    script = Steps([RIGHT, DONE, RIGHT, DONE])
    with ModelServer(script) as server, forked(server.base_url, past.source, at) as first:
        middle = first.read(lambda core: core.log.last_seq)
        with (
            forked(server.base_url, first.folder, middle) as second,
            forked(server.base_url, past.source, at) as third,
        ):
            trees = [tree_of(session) for session in (first, second, third)]
            assert len({tree.path for tree in trees}) == len({tree.branch for tree in trees}) == 3
            assert all(picture(Path(tree.path)) == past.truth[at + 1] for tree in trees)
            assert end(go_on(second, past.number)).met
            # The branch has moved on meanwhile: what lands later is merged with it and judged anew.
            past.repo.commit({"other.txt": "the user's\n"})
            assert end(go_on(third, past.number)).met
            assert past.repo.read("other.txt") == "the user's\n"
        assert picture(Path(trees[0].path)) == past.truth[at + 1]
    assert [prove(session.folder).problem for session in (first, second, third)] == [None] * 3
    origins = {entry.id: (entry.parent, entry.parent_seq) for entry in list_sessions(past.home)}
    assert origins[second.id] == (first.id, middle)
    assert origins[first.id] == origins[third.id] == (past.source.name, at)


def test_a_live_session_is_forked_beside_its_work(repo: Repo) -> None:
    script = Held([WRONG, RIGHT, DONE, RIGHT, DONE], hold=1)
    with ModelServer(script) as server, session_on(server.base_url, repo.root) as parent:
        handle = start(parent)
        script.wait()
        tree = tree_of(parent)
        before, at = picture(Path(tree.path)), parent.read(lambda core: core.log.last_seq)
        assert parent.event(at).kind == "model.requested"
        fork = parent.fork(at, effects=Hurried())
        assert picture(Path(tree.path)) == before
        mine = tree_of(fork)
        assert picture(Path(mine.path)) == before
        # What the parent has asked for is the parent's to pay: here it costs nothing.
        spent = parent.ledger
        assert spent.open
        assert fork.ledger.total.usd == spent.total.usd
        assert fork.ledger.total.tokens == spent.total.tokens
        assert not fork.ledger.open
        used = fork.goals.goals[handle.number]
        assert (used.used_usd, used.used_tokens) == (spent.total.usd, spent.total.tokens)
        script.release()
        assert end(handle).met
        assert end(go_on(fork, handle.number)).met
        origin = fork.read(lambda core: core.log.state("lineage")).origins[-1]  # type: ignore[attr-defined]
        assert (origin.usd, origin.tokens, origin.calls) == (spent.total.usd, spent.total.tokens, spent.total.calls)
        fork.close()
    assert prove(fork.folder).ok
    assert prove(parent.folder).ok


def cut_at(events: list[Event], kind: str, effect: str) -> int:
    """The start of a call of the agent's of this class."""
    asked = {e.seq for e in events if e.kind == "tool.requested" and e.data["origin"] == "model"}
    return next(e.seq for e in events if e.kind == kind and e.data["call"] in asked and e.data["effect"] == effect)


def test_calls_that_were_open_at_the_fork_end_in_its_own_worktree(past: Past) -> None:
    for effect, closed in (("write", "tool.finished"), ("read", "tool.finished"), ("process", "tool.unknown")):
        begun = [e for e in past.events if e.kind == "tool.started" and e.data["effect"] == effect]
        at = begun[-1] if effect == "read" else begun[0]
        if effect == "process":
            at = next(e for e in begun if past.events[e.data["call"] - 1].data["origin"] == "model")
        with forked(NOWHERE, past.source, at.seq) as session:
            mine = [event for event in session.events(at.seq) if event.data.get("call") == at.data["call"]]
            assert kinds(mine)[-1] == closed
            assert not only(mine, "tool.started")
            held = picture(Path(tree_of(session).path))
            assert held["answer.txt"] == (0, b"almost\n")
            assert "made.txt" not in held
        assert prove(session.folder).ok


def test_a_landing_that_was_under_way_is_not_the_forks(past: Past) -> None:
    with forked(NOWHERE, past.source, only(past.events, "merge.checked")[-1].seq) as session:
        assert session.read(lambda core: list(core.merges.merges.values())[-1].state) == "bounced"
    with forked(NOWHERE, past.source, only(past.events, "merge.landing")[-1].seq) as session:
        assert past.repo.git("rev-parse", "HEAD") == past.base
        assert session.read(lambda core: list(core.merges.merges.values())[-1].state) == "bounced"
        assert end(go_on(session, past.number)).met
        landed = only(session.events(past.landed), "merge.landed")[-1].data
        assert session.id in landed["backup"]
        assert past.repo.git("rev-parse", "HEAD") == landed["new"]
    assert prove(session.folder).ok


def test_what_the_user_allowed_for_the_session_is_not_allowed_in_its_fork(repo: Repo) -> None:
    with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
        session.allow("git status")
        session.allow("land on main", "workspace")
        fork = session.fork(session.read(lambda core: core.log.last_seq), effects=Hurried())
        assert [rule.scope for rule in session.rules.held.values()] == ["session", "workspace"]
        assert [rule.scope for rule in fork.rules.held.values()] == ["workspace"]
        fork.close()


def test_a_fork_that_cannot_have_its_files_leaves_nothing_behind(repo: Repo, home: Path) -> None:
    past = record(repo, home, [MAKE, EDIT, DONE])
    source, number, events = past.source, past.number, past.events
    at = only(events, "worktree.snapshotted")[-1].seq
    for ref in repo.git("for-each-ref", "--format=%(refname)", "refs/musecode").split():
        repo.git("update-ref", "-d", ref)
    repo.git("reflog", "expire", "--expire=now", "--all")
    repo.git("gc", "--quiet", "--prune=now")
    before = fingerprint(home)
    with pytest.raises(GitError, match=r"is not in .* any more"), forked(NOWHERE, source, at):
        pass
    assert fingerprint(home) == before
    assert repo.branches == ["main"]
    # An event before the command is still there: its commit is the user's own.
    with forked(NOWHERE, source, only(events, "worktree.created")[0].seq) as session:
        assert session.goals.goals[number].status == "paused"


def test_an_event_that_is_not_there_is_said_in_a_line(past: Past) -> None:
    for seq in (0, past.events[-1].seq + 1):
        with pytest.raises(LogError, match=f"no event {seq}"), forked(NOWHERE, past.source, seq):
            pass
    with session_on(NOWHERE, past.repo.root) as session, pytest.raises(UsageProblem, match="no event 999"):
        session.fork(999)


def test_a_rewind_asks_keeps_what_is_undone_and_goes_on(repo: Repo, home: Path) -> None:
    with (
        ModelServer(Steps([WRONG, MAKE, DONE, RIGHT, DONE])) as server,
        session_on(server.base_url, repo.root, interactive=True, approvals="ask") as session,
        ThreadPoolExecutor(1) as pool,
    ):
        session.allow("land on main")
        session.allow("printf made")
        watch = Watch(session)
        handle = start(session)
        question = watch.until("approval.requested")
        at = watch.until("file.changed").seq
        # The user says no: the question of the agent still waits, and nothing was stopped.
        answer = pool.submit(session.rewind, at, effects=Hurried())
        asked = watch.until("approval.requested", action="rewind")
        assert f"events {at + 1} to" in asked.data["shown"]["undone"]
        session.answer(asked.seq, "deny", by="test", why="not now")
        with pytest.raises(Denied, match="not now"):
            answer.result(DEADLINE_S)
        assert handle.status == "running"
        assert session.approvals.pending.keys() == {question.seq}
        answer = pool.submit(session.rewind, at, effects=Hurried())
        asked = watch.until("approval.requested", action="rewind", since=asked.seq)
        tree = Path(tree_of(session).path)
        (tree / "beside.txt").write_text("of the undone part")
        session.answer(asked.seq, "approve", by="test")
        rewound = answer.result(DEADLINE_S)
        try:
            assert rewound.read(lambda core: core.log.get(at + 1)).kind == "session.forked"
            mine = Path(tree_of(rewound).path)
            assert picture(mine)["answer.txt"] == (0, b"almost\n")
            assert "beside.txt" not in picture(mine)
            assert picture(tree)["beside.txt"] == (0, b"of the undone part")
            assert not rewound.rules.held
            rewound.allow("land on main")
            assert rewound.goals.goals[handle.number].status == "paused"
        finally:
            rewound.close()
    events = list(EventLog.read(session.folder).events())
    assert only(events, "session.rewound")[-1].data == {"to": at, "session": rewound.id}
    assert events[-2].kind == "session.closed"
    kept = only(events, "worktree.snapshotted")[-1].data["commit"]
    assert repo.git("show", f"{kept}:beside.txt") == "of the undone part"
    listed = {entry.id: entry for entry in list_sessions(home)}
    assert listed[session.id].rewound_to == rewound.id
    assert (listed[rewound.id].parent, listed[rewound.id].parent_seq) == (session.id, at)
    assert prove(session.folder).ok
    assert prove(rewound.folder).ok


def test_a_rewind_where_nobody_can_be_asked_follows_the_mode(repo: Repo) -> None:
    with ModelServer(Steps([EDIT, DONE])) as server:
        with session_on(server.base_url, repo.root, approvals="deny") as session:
            with pytest.raises(Denied, match="approvals mode deny"):
                session.rewind(1)
            assert session.read(lambda core: core.log.writable)
        with session_on(server.base_url, repo.root) as session:
            assert end(start(session)).met
            landing = only(session.events(), "merge.landed")[0]
            at = only(session.events(), "goal.set")[0].seq
            assert session.read(lambda core: landings_after(core, at)) == [landing.data["merge"]]
            with session.rewind(at, effects=Hurried()) as rewound:
                # What has landed stays on the user's branch, which is the user's.
                assert repo.read("answer.txt") == "right\n"
                assert rewound.goals.goals[at].status == "paused"


def test_the_fold_at_the_fork_is_part_of_the_proof(past: Past) -> None:
    """A fork whose first own record does not fit what is before it is named, though its chain is whole."""
    last = past.events[-1]
    with forked(NOWHERE, past.source, last.seq) as session:
        pass
    journal = session.folder / "journal" / "000002.jsonl"
    lines = journal.read_bytes().splitlines()
    assert b'"kind":"session.forked"' in lines[0]
    h = last.h.encode()
    for field, wrong in ((b'"h":"' + h, b'"h":"' + b"0" * 32), (b'"seq":%d,"h"' % last.seq, b'"seq":1,"h"')):
        before, forged = last.h, []
        for line in lines:
            body, _ = split_line(line) or (b"", "")
            before, sealed = seal(before, body if forged else body.replace(field, wrong))
            forged.append(sealed)
        journal.write_bytes(b"".join(forged))
        problem = prove(session.folder).problem
        assert problem is not None
        assert f"event {last.seq + 1}, field data." in problem


def assert_continues(past: Past, seq: int) -> None:
    """A fork at `seq` opens, verifies, has the files of that event, and its next request is valid."""
    mend = run_of("printf 'right\\n' > answer.txt")
    with ModelServer(Steps([mend, DONE])) as server:
        with forked(server.base_url, past.source, seq) as session:
            tree = session.read(lambda core: next(iter(core.workspace_state.worktrees.values()), None))
            if seq in past.truth and tree is not None:
                assert picture(Path(tree.path)) == past.truth[seq], seq
            record = session.goals.goals.get(past.number)
            if record is not None and record.status != "met":
                assert end(go_on(session, past.number)).met, seq
                # One that was forked after the landing knows it as a fact of the branch.
                here = only(session.events(seq), "merge.landed")
                assert (past.repo.read("answer.txt") == "right\n") == bool(here), seq
                assert here or seq >= past.landed, seq
            assert not session.ledger.open
        assert all(request.status == 200 for request in server.requests), seq
    assert prove(session.folder).problem is None, seq
    past.repo.git("reset", "--hard", "--quiet", past.base)


def test_forks_at_some_events_continue(past: Past) -> None:
    for kind in ("goal.claimed", "merge.landed"):
        assert_continues(past, only(past.events, kind)[-1].seq)


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="minutes: run by make crash")
@pytest.mark.timeout(3600)
def test_forks_at_every_event_continue(past: Past, rng: random.Random) -> None:
    for event in some(past.events, rng, lambda event: event.kind):
        assert_continues(past, event.seq)
    assert len(past.truth) > 8
