"""A fork continues from any event of a session, with files and context as they were; the parent is not touched."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
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

MAKE = run_of("printf made > made.txt; chmod +x other.txt; ln -s made.txt link; rm -f gone.txt")
WRONG = Answer("I try.", [Call("edit", {"path": "answer.txt", "old": "wrong", "new": "almost"})])
RIGHT = Answer("Once more.", [Call("edit", {"path": "answer.txt", "old": "almost", "new": "right"})])
STEPS = [WRONG, MAKE, RIGHT, DONE]


def picture(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and bytes (of a link: where it leads) of everything below a folder, git's own entry left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name == ".git" or ".git" in path.relative_to(folder).parts:
            continue
        if path.is_symlink():
            found[str(path.relative_to(folder))] = (0, os.fsencode(os.readlink(path)))
        elif path.is_file():
            found[str(path.relative_to(folder))] = (path.stat().st_mode & 0o111, path.read_bytes())
    return found


def fingerprint(folder: Path) -> str:
    """A digest of the bytes and names of all files below a folder, the lock left out: its reader may touch it."""
    state = hashlib.blake2b()
    for path in sorted(folder.rglob("*")):
        state.update(os.fsencode(path.relative_to(folder)) + b"\0")
        if path.is_file() and not path.is_symlink() and path.name != "lock":
            state.update(path.read_bytes())
    return state.hexdigest()


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


def recorded(repo: Repo, answers: list[Answer]) -> tuple[Path, int, list[Event]]:
    """A goal that is met, whose landing is taken back so that the user's branch is as before; its folder and number."""
    base = repo.git("rev-parse", "HEAD")
    with ModelServer(Steps(answers)) as server, session_on(server.base_url, repo.root) as session:
        handle = start(session)
        assert end(handle).met
    repo.git("reset", "--hard", "--quiet", base)
    return session.folder, handle.number, list(EventLog.read(session.folder).events())


def test_a_fork_in_the_middle_goes_on_to_a_met_goal_and_the_parent_is_as_before(repo: Repo, home: Path) -> None:
    source, number, events = recorded(repo, STEPS)
    before = fingerprint(source)
    # After the command that changed files, before the edit that mends the answer.
    snapshot = only(events, "worktree.snapshotted")[-1]
    at = next(e.seq for e in events if e.kind == "tool.finished" and e.seq > snapshot.seq)
    with ModelServer(Steps([RIGHT, DONE])) as server:
        with forked(server.base_url, source, at) as session:
            tree = session.read(lambda core: next(iter(core.workspace_state.worktrees.values())))
            assert session.id in tree.path
            assert tree.branch == f"musecode/{session.id}/{number}"
            held = picture(Path(tree.path))
            assert held["answer.txt"] == (0, b"almost\n")
            assert held["made.txt"] == (0, b"made")
            assert held["other.txt"] == (0o111, b"other\n")
            assert held["link"] == (0, b"made.txt")
            assert end(go_on(session, number)).met
        assert repo.read("answer.txt") == "right\n"
        assert repo.read("made.txt") == "made"
        # The conversation is the parent's, and the agent is told where it is now.
        body = server.requests[0].json
        assert tree.path in said(body)[-1]
    assert fingerprint(source) == before
    proof = prove(session.folder)
    assert proof.ok, proof.problem
    parent = (source / "journal" / "000001.jsonl").read_bytes()
    assert parent.startswith((session.folder / "journal" / "000001.jsonl").read_bytes())
    listed = {entry.id: entry for entry in list_sessions(home)}
    assert (listed[session.id].parent, listed[session.id].parent_seq) == (source.name, at)
    assert not listed[source.name].parent
    assert repo.branches == ["main"]
    assert repo.worktrees == 1


def test_a_fork_of_a_fork_and_forks_side_by_side_do_not_meet(repo: Repo, home: Path) -> None:
    source, number, events = recorded(repo, STEPS)
    at = only(events, "file.changed")[0].seq
    script = Steps([RIGHT, DONE, RIGHT, DONE])
    with ModelServer(script) as server, forked(server.base_url, source, at) as first:
        middle = first.read(lambda core: core.log.last_seq)
        with forked(server.base_url, first.folder, middle) as second, forked(server.base_url, source, at) as third:
            trees = [
                session.read(lambda core: next(iter(core.workspace_state.worktrees.values())))
                for session in (first, second, third)
            ]
            assert len({tree.path for tree in trees}) == len({tree.branch for tree in trees}) == 3
            assert all(picture(Path(tree.path))["answer.txt"] == (0, b"almost\n") for tree in trees)
            assert end(go_on(second, number)).met
            # The branch has moved on meanwhile: what lands later is merged with it and judged anew.
            repo.commit({"other.txt": "the user's\n"})
            assert end(go_on(third, number)).met
            assert repo.read("other.txt") == "the user's\n"
        assert Path(trees[0].path).is_dir()
    assert [prove(session.folder).problem for session in (first, second, third)] == [None] * 3
    origins = {entry.id: (entry.parent, entry.parent_seq) for entry in list_sessions(home)}
    assert origins[second.id] == (first.id, middle)
    assert origins[first.id] == origins[third.id] == (source.name, at)


def test_a_live_session_is_forked_beside_its_work(repo: Repo) -> None:
    script = Held([WRONG, RIGHT, DONE, RIGHT, DONE], hold=1)
    with ModelServer(script) as server, session_on(server.base_url, repo.root) as parent:
        handle = start(parent)
        script.wait()
        tree = parent.read(lambda core: next(iter(core.workspace_state.worktrees.values())))
        before, at = picture(Path(tree.path)), parent.read(lambda core: core.log.last_seq)
        assert parent.event(at).kind == "model.requested"
        fork = parent.fork(at, effects=Hurried())
        assert picture(Path(tree.path)) == before
        mine = fork.read(lambda core: next(iter(core.workspace_state.worktrees.values())))
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


def test_calls_that_were_open_at_the_fork_end_in_its_own_worktree(repo: Repo) -> None:
    read = Answer("I look.", [Call("read", {"path": "answer.txt"})])
    source, _, events = recorded(repo, [WRONG, read, run_of("echo half > half.txt"), RIGHT, DONE])
    for effect, closed in (("write", "tool.finished"), ("read", "tool.finished"), ("process", "tool.unknown")):
        at = cut_at(events, "tool.started", effect)
        with ModelServer(Steps([DONE])) as server, forked(server.base_url, source, at) as session:
            call = next(e.data["call"] for e in events if e.seq == at)
            mine = [event for event in session.events(at) if event.data.get("call") == call]
            assert kinds(mine)[-1] == closed
            assert not only(mine, "tool.started")
            tree = session.read(lambda core: next(iter(core.workspace_state.worktrees.values())))
            held = picture(Path(tree.path))
            assert held["answer.txt"] == (0, b"almost\n")
            assert "half.txt" not in held
            if effect == "read":
                assert "almost" in mine[-1].data["output"]
        assert prove(session.folder).ok


def test_a_landing_that_was_under_way_is_not_the_forks(repo: Repo) -> None:
    source, number, events = recorded(repo, [EDIT, DONE])
    base = repo.git("rev-parse", "HEAD")
    for kind in ("merge.landing", "merge.checked"):
        at = only(events, kind)[-1].seq
        with ModelServer(Steps([DONE])) as server, forked(server.base_url, source, at) as session:
            assert repo.git("rev-parse", "HEAD") == base
            assert session.read(lambda core: next(iter(core.merges.merges.values())).state) == "bounced"
            assert end(go_on(session, number)).met
            backup = only(session.events(at), "merge.landed")[-1].data["backup"]
            assert session.id in backup
        assert prove(session.folder).ok
        repo.git("reset", "--hard", "--quiet", base)


def test_what_the_user_allowed_for_the_session_is_not_allowed_in_its_fork(repo: Repo) -> None:
    with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
        session.allow("git status")
        session.allow("land on main", "workspace")
        fork = session.fork(session.read(lambda core: core.log.last_seq), effects=Hurried())
        assert [rule.scope for rule in session.rules.held.values()] == ["session", "workspace"]
        assert [rule.scope for rule in fork.rules.held.values()] == ["workspace"]
        fork.close()


def test_a_fork_that_cannot_have_its_files_leaves_nothing_behind(repo: Repo, home: Path) -> None:
    source, number, events = recorded(repo, STEPS)
    at = only(events, "worktree.snapshotted")[-1].seq
    for ref in repo.git("for-each-ref", "--format=%(refname)", "refs/musecode").split():
        repo.git("update-ref", "-d", ref)
    repo.git("reflog", "expire", "--expire=now", "--all")
    repo.git("gc", "--quiet", "--prune=now")
    before = fingerprint(home)
    with pytest.raises(GitError, match=r"is not in .* any more"), forked("http://127.0.0.1:9/v1", source, at):
        pass
    assert fingerprint(home) == before
    assert repo.branches == ["main"]
    # An event before the command is still there: its commit is the user's own.
    with forked("http://127.0.0.1:9/v1", source, only(events, "file.changed")[0].seq) as session:
        assert session.goals.goals[number].status == "paused"


def test_an_event_that_is_not_there_is_said_in_a_line(repo: Repo) -> None:
    source, _, events = recorded(repo, [EDIT, DONE])
    for seq in (0, events[-1].seq + 1):
        with pytest.raises(LogError, match=f"no event {seq}"), forked("http://127.0.0.1:9/v1", source, seq):
            pass
    with (
        ModelServer(Steps([DONE])) as server,
        session_on(server.base_url, repo.root) as session,
        pytest.raises(UsageProblem, match="no event 999"),
    ):
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
        tree = Path(session.read(lambda core: next(iter(core.workspace_state.worktrees.values())).path))
        (tree / "beside.txt").write_text("of the undone part")
        session.answer(asked.seq, "approve", by="test")
        rewound = answer.result(DEADLINE_S)
        try:
            assert rewound.read(lambda core: core.log.get(at + 1)).kind == "session.forked"
            mine = Path(rewound.read(lambda core: next(iter(core.workspace_state.worktrees.values())).path))
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


def test_the_fold_at_the_fork_is_part_of_the_proof(repo: Repo) -> None:
    """A fork whose first own record does not fit what is before it is named, though its chain is whole."""
    source, _, events = recorded(repo, [EDIT, DONE])
    with forked("http://127.0.0.1:9/v1", source, events[-1].seq) as session:
        pass
    journal = session.folder / "journal" / "000002.jsonl"
    lines = journal.read_bytes().splitlines()
    assert b'"kind":"session.forked"' in lines[0]
    h = EventLog.read(source).get(events[-1].seq).h
    for field, wrong in (
        (b'"h":"' + h.encode(), b'"h":"' + b"0" * 32),
        (b'"seq":%d,"h"' % events[-1].seq, b'"seq":1,"h"'),
    ):
        before, forged = h, []
        for line in lines:
            body, _ = split_line(line) or (b"", "")
            before, sealed = seal(before, body.replace(field, wrong) if not forged else body)
            forged.append(sealed)
        journal.write_bytes(b"".join(forged))
        problem = prove(session.folder).problem
        assert problem is not None
        assert f"event {events[-1].seq + 1}, field data." in problem


def assert_continues(repo: Repo, source: Path, seq: int, number: int, truth: dict[int, Any], landed: int) -> None:
    """A fork at `seq` opens, verifies, has the files of that event, and its next request is valid."""
    mend = run_of("printf 'right\\n' > answer.txt")
    with ModelServer(Steps([mend, DONE])) as server:
        with forked(server.base_url, source, seq) as session:
            tree = session.read(lambda core: next(iter(core.workspace_state.worktrees.values()), None))
            if seq in truth and tree is not None:
                assert picture(Path(tree.path)) == truth[seq], seq
            record = session.goals.goals.get(number)
            if record is not None and record.status != "met":
                assert end(go_on(session, number)).met, seq
                # One that was forked after the landing knows it as a fact of the branch.
                here = only(session.events(seq), "merge.landed")
                assert (repo.read("answer.txt") == "right\n") == bool(here), seq
                assert here or seq >= landed, seq
            assert session.read(lambda core: core.log.state("ledger").open) == {}  # type: ignore[attr-defined]
        assert all(request.status == 200 for request in server.requests), seq
    assert prove(session.folder).problem is None, seq


def pictured(repo: Repo) -> tuple[Path, int, list[Event], dict[int, Any]]:
    """A session that has most of what can happen, and the files of its worktree at events at which nothing moves."""
    base = repo.git("rev-parse", "HEAD")
    truth: dict[int, Any] = {}
    look = Answer("I look.", [Call("read", {"path": "answer.txt"}), Call("search", {"pattern": "o"})])
    steps = [look, WRONG, MAKE, run_of("exit 3"), DONE, RIGHT, run_of("rm link; echo more >> made.txt"), DONE]
    with ModelServer(Steps(steps)) as server, session_on(server.base_url, repo.root) as session:

        def look_at(event: Event) -> None:
            tree = next(iter(session.core.workspace_state.worktrees.values()), None)
            if event.kind in {"tool.finished", "goal.claimed", "worktree.created"} and tree is not None:
                truth[event.seq] = picture(Path(tree.path))

        session.read(lambda core: core.log.on_durable(look_at))
        handle = start(session)
        assert end(handle).met
    repo.git("reset", "--hard", "--quiet", base)
    return session.folder, handle.number, list(EventLog.read(session.folder).events()), truth


def test_forks_at_some_events_continue(repo: Repo) -> None:
    source, number, events, truth = pictured(repo)
    base, before = repo.git("rev-parse", "HEAD"), fingerprint(source)
    landed = only(events, "merge.landed")[0].seq
    for kind in ("worktree.snapshotted", "goal.claimed", "merge.landed"):
        assert_continues(repo, source, only(events, kind)[-1].seq, number, truth, landed)
        repo.git("reset", "--hard", "--quiet", base)
    assert fingerprint(source) == before


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_forks_at_every_event_continue(repo: Repo) -> None:
    source, number, events, truth = pictured(repo)
    base, before = repo.git("rev-parse", "HEAD"), fingerprint(source)
    landed = only(events, "merge.landed")[0].seq
    for event in events:
        assert_continues(repo, source, event.seq, number, truth, landed)
        repo.git("reset", "--hard", "--quiet", base)
    assert fingerprint(source) == before
    assert len(truth) > 8
