"""Goals that start from uncommitted files: these never land and never change; the work lands without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, DONE, EDIT, Doing, Held, Repo, Watch, end, only, session_on

from musecode_jupyter.session import GoalHandle, GoalSpec, Session
from musecode_jupyter.session.replay import prove

WITH_HELPER = f"{CHECK} && test -f helper.txt"


def start(session: Session, *verify: str, base: str | None = "dirty", **more: int) -> GoalHandle:
    return session.start_goal(GoalSpec("say right", verify or (CHECK,), base=base, **more))  # type: ignore[arg-type]


def dirty(repo: Repo) -> dict[str, bytes]:
    """Uncommitted changes of all kinds, none in answer.txt; all files as they are then."""
    repo.write("other.txt", "mine\n")
    repo.write("helper.txt", "untracked\n")
    repo.write("staged.txt", "staged\n")
    repo.git("add", "staged.txt")
    return files(repo)


def files(repo: Repo) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(repo.root.iterdir()) if path.is_file()}


def history(repo: Repo) -> set[str]:
    """Every file and folder that any commit of any branch or tag has."""
    return set(repo.git("log", "--branches", "--tags", "--name-only", "--format=").split())


def test_the_work_lands_without_what_is_not_committed(repo: Repo) -> None:
    before, head = dirty(repo), repo.git("rev-parse", "HEAD")
    status, index = repo.git("status", "--porcelain"), repo.git("ls-files", "--stage", "staged.txt")
    reads = Answer("", [Call("read", {"path": "helper.txt"}), Call("read", {"path": "other.txt"})])
    with ModelServer(Steps([reads, EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
        handle = start(session)
        result = end(handle)
        assert result.met, result.why
        assert "untracked" in str(server.requests[1].body)
        assert "mine" in str(server.requests[1].body)
        assert handle.diff().count("\n+++ ") == 1
        (judged,) = [event for event in only(session.events(), "goal.judged") if event.data["where"] == "landing"]
        (based,) = only(session.events(), "goal.based")
        assert based.data["files"] == ["helper.txt", "other.txt", "staged.txt"]
        assert prove(session.folder).ok
        kept = f"refs/musecode/landed/{session.id}/{handle.number}"
    assert files(repo) == {**before, "answer.txt": b"right\n"}
    assert repo.git("status", "--porcelain") == status
    assert repo.git("ls-files", "--stage", "staged.txt") == index
    # One commit upon what was there, and the tree that was checked.
    assert repo.git("rev-list", "--parents", "-1", "main").split()[1:] == [head]
    assert repo.git("rev-parse", "main^{tree}") == judged.data["tree"]
    assert repo.git("diff", "--name-only", head, "main") == "answer.txt"
    assert history(repo) == {"answer.txt", "other.txt"}
    # Nothing of the work is lost, and no branch or worktree is left of it.
    assert repo.branches == ["main"]
    assert repo.worktrees == 1
    assert repo.git("show", f"{kept}:helper.txt") == "untracked"
    assert repo.git("show", f"{kept}:answer.txt") == "right"
    assert repo.git("for-each-ref", "refs/musecode/snapshot") == ""


def test_what_passes_only_with_uncommitted_files_waits_until_they_are_committed(repo: Repo) -> None:
    before, head = dirty(repo), repo.git("rev-parse", "HEAD")
    with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
        handle = start(session, WITH_HELPER)
        result = end(handle)
        assert result.status == "blocked"
        assert (
            "passes on the work together with your uncommitted changes (helper.txt, other.txt, staged.txt), and not "
            in (result.why)
        )
        assert "Commit them, then resume." in result.why
        assert (files(repo), repo.git("rev-parse", "main")) == (before, head)
        assert handle.diff().count("\n+++ ") == 1
        asked = len(server.requests)
        mine = repo.commit({})
        handle.resume()
        result = end(handle)
        assert result.met, result.why
        assert len(server.requests) == asked, "the agent had nothing to do with it"
    assert files(repo) == {**before, "answer.txt": b"right\n"}
    assert repo.git("diff", "--name-only", mine, "main") == "answer.txt"
    assert (repo.branches, repo.worktrees) == (["main"], 1)


@pytest.mark.parametrize("where", ["in the same lines", "in the same file"])
def test_work_on_an_uncommitted_file_waits_too(repo: Repo, where: str) -> None:
    lines = "wrong\n" + "line\n" * 9
    repo.commit({"answer.txt": lines})
    head = repo.git("rev-parse", "HEAD")
    mine = lines.replace("wrong", "wrong of mine") if where == "in the same lines" else f"{lines}mine\n"
    repo.write("answer.txt", mine)
    with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
        handle = start(session)
        result = end(handle)
        assert result.status == "blocked"
        says = {
            "in the same lines": "The work meets your uncommitted changes in answer.txt, so it cannot land without",
            "in the same file": "Verified, but your checkout has changes of its own in answer.txt. Nothing was touched",
        }
        assert says[where] in result.why
        assert (repo.read("answer.txt"), repo.git("rev-parse", "main")) == (mine, head)
        repo.commit({})
        handle.resume()
        result = end(handle)
        assert result.met, result.why
    assert repo.read("answer.txt") == mine.replace("wrong", "right")


def test_commits_of_the_user_meanwhile_are_merged_and_told(repo: Repo) -> None:
    """The check fails on the merge with what the user committed meanwhile: the agent gets that, and repairs it."""
    dirty(repo)
    check = f"{CHECK} && ! grep -q wrong second.txt"

    def commit() -> None:
        repo.write("second.txt", "wrong\n")
        repo.git("add", "second.txt")
        repo.git("commit", "--quiet", "--message", "mine", "second.txt")

    second = Answer("", [Call("edit", {"path": "second.txt", "old": "wrong", "new": "good"})])
    script = Doing([EDIT, DONE, second, DONE], 1, commit)
    with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
        handle = start(session, check)
        result = end(handle)
        assert result.met, result.why
        assert "main has moved on meanwhile" in str(server.requests[2].body)
    assert (repo.read("second.txt"), repo.read("answer.txt")) == ("good\n", "right\n")
    assert (repo.read("other.txt"), repo.read("helper.txt")) == ("mine\n", "untracked\n")
    assert history(repo) == {"answer.txt", "other.txt", "second.txt"}
    assert repo.git("status", "--porcelain").splitlines() == ["M other.txt", "A  staged.txt", "?? helper.txt"]


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="one more whole session: run by make crash")
def test_what_the_user_has_committed_too_meanwhile_meets_the_goal(repo: Repo) -> None:
    """It was said that the check passes without any change, though it passed with this one."""
    before = dirty(repo)

    def commit() -> None:
        repo.write("answer.txt", "right\n")
        repo.git("commit", "--quiet", "--message", "mine", "answer.txt")

    with ModelServer(Doing([EDIT, DONE], 1, commit)) as server, session_on(server.base_url, repo.root) as session:
        handle = start(session)
        result = end(handle)
        assert result.met, result.why
    assert files(repo) == {**before, "answer.txt": b"right\n"}
    assert repo.git("log", "-1", "--format=%s") == "mine"
    assert (repo.branches, repo.worktrees) == (["main"], 1)
    assert prove(session.folder).ok


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_where_somebody_can_be_asked_they_are(repo: Repo, answer: str) -> None:
    before = dirty(repo)
    with (
        ModelServer(Steps([EDIT, DONE])) as server,
        session_on(server.base_url, repo.root, interactive=True, approvals="ask") as session,
    ):
        watch = Watch(session)
        handle = start(session, base=None)
        question = watch.until("approval.requested")
        assert question.data["action"] == "start from your uncommitted files"
        assert question.data["shown"]["files"] == ["helper.txt", "other.txt", "staged.txt"]
        session.answer(None, answer, by="test")  # type: ignore[arg-type]
        landing = watch.until("approval.requested", since=question.seq)
        shown = landing.data["shown"]
        assert shown.get("your uncommitted changes") == (
            ["helper.txt", "other.txt", "staged.txt"] if answer == "approve" else None
        )
        assert shown["files"] == ["answer.txt"]
        session.answer(None, "approve", by="test")
        result = end(handle)
        assert result.met, result.why
        (based,) = only(session.events(), "goal.based")
        assert bool(based.data["snapshot"]) == (answer == "approve")
    assert files(repo) == {**before, "answer.txt": b"right\n"}


def test_nobody_is_asked_where_nothing_or_only_an_open_notebook_differs(repo: Repo) -> None:
    repo.write("work.ipynb", "{}")
    (repo.root / ".ipynb_checkpoints").mkdir()
    repo.write(".ipynb_checkpoints/work-checkpoint.ipynb", "{}")
    with (
        ModelServer(Steps([EDIT, DONE])) as server,
        session_on(server.base_url, repo.root, interactive=True, approvals="ask") as session,
    ):
        session.read(lambda core: setattr(core, "open_documents", lambda: [repo.root / "work.ipynb"]))
        watch = Watch(session)
        handle = start(session, base=None)
        assert watch.until("approval.requested").data["action"] == "land"
        session.answer(None, "approve", by="test")
        assert end(handle).met
        assert only(session.events(), "goal.based") == []


def test_a_restart_goes_on_from_the_same_snapshot(repo: Repo) -> None:
    before = dirty(repo)
    held = Held([EDIT, DONE], hold=1)
    with ModelServer(held) as server:
        with session_on(server.base_url, repo.root) as session:
            start(session)
            held.wait()
        held.release()
        repo.write("helper.txt", "changed since\n")
        with session_on(server.base_url, repo.root, resume="last") as session:
            handle = session.newest_goal()
            handle.resume()
            assert end(handle).met
            assert prove(session.folder).ok
    assert files(repo) == {**before, "answer.txt": b"right\n", "helper.txt": b"changed since\n"}


def test_a_check_that_is_green_with_the_users_files_is_said_to_be(repo: Repo, tmp_path: Path) -> None:
    repo.write("answer.txt", "right\n")
    with ModelServer(Steps([DONE])) as server, session_on(server.base_url, repo.root) as session:
        result = end(start(session))
    assert result.status == "blocked"
    assert "already green" in result.why
    assert "Work starts from your files as they are, with what is not committed (answer.txt)." in result.why
