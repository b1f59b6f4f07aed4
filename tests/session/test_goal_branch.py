"""The user's branch during a goal: moved, broken by a merge, deleted, or left for another one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import (
    CHECK,
    DONE,
    EDIT,
    MODEL,
    Doing,
    Repo,
    agent_branch,
    end,
    only,
    results,
    said,
    session_on,
    start,
)

from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.session.replay import prove


class TestMovedBranch:
    def test_what_lands_on_a_branch_that_moved_is_the_verified_merge(self, repo: Repo) -> None:
        with (
            ModelServer(Doing([EDIT, DONE], 1, lambda: repo.commit({"other.txt": "moved\n"}))) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            result = end(start(session, CHECK, "test -e other.txt"))
            judged = only(session.events(), "goal.judged")[-1]
        assert result.met
        assert repo.git("rev-parse", "HEAD") == result.commit
        assert judged.data["tree"] == repo.git("rev-parse", "HEAD^{tree}")
        assert len(repo.git("log", "-1", "--format=%P").split()) == 2
        assert (repo.read("answer.txt"), repo.read("other.txt")) == ("right\n", "moved\n")
        assert repo.git("status", "--porcelain") == ""

    @pytest.mark.parametrize(("amended", "status"), [({}, "met"), ({"answer.txt": "user's\n"}, "blocked")])
    def test_what_the_user_takes_off_the_branch_does_not_come_back(
        self, repo: Repo, amended: dict[str, str], status: str
    ) -> None:
        repo.commit({"secret.txt": "not to be published\n"})

        def rewrite() -> None:
            repo.git("reset", "-q", "--hard", "HEAD~1")
            for name, text in amended.items():
                repo.write(name, text)
            repo.git("commit", "-q", "-a", "--amend", "-m", "amended")

        with (
            ModelServer(Doing([EDIT, DONE], 1, rewrite)) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            handle = start(session)
            result = end(handle)
            assert result.status == status, result.why
            branch = agent_branch(handle)
        assert "secret.txt" not in repo.git("log", "--format=", "--name-only", "main").split()
        if amended:
            assert "was rewritten meanwhile" in result.why
            assert repo.git("show", f"{branch}:answer.txt") == "right"
        assert repo.read("answer.txt") == amended.get("answer.txt", "right\n")
        assert repo.git("status", "--porcelain") == ""

    def test_a_merge_that_fails_the_check_does_not_land(self, repo: Repo) -> None:
        broken = "! grep -q broken other.txt"
        with (
            ModelServer(Doing([EDIT, DONE], 1, lambda: repo.commit({"other.txt": "broken\n"}))) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            result = end(start(session, CHECK, broken))
        assert result.status == "stalled"
        assert repo.read("answer.txt") == "wrong\n"
        assert repo.git("status", "--porcelain") == ""

    def test_the_user_who_changes_the_branch_keeps_it(self, repo: Repo) -> None:
        """The work lands on the branch that the goal was set on, wherever the user is by then."""
        with (
            ModelServer(Doing([EDIT, DONE], 1, lambda: repo.git("checkout", "--quiet", "-b", "mine"))) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            assert end(start(session)).met
        assert repo.git("symbolic-ref", "--short", "HEAD") == "mine"
        assert repo.read("answer.txt") == "wrong\n"
        assert repo.git("show", "main:answer.txt") == "right"
        assert repo.git("status", "--porcelain") == ""

    def test_changes_in_a_checkout_of_another_branch_are_not_in_the_way(self, repo: Repo) -> None:
        """The same file, changed by the user on a branch that does not move, stopped the landing."""

        def leave_and_change() -> None:
            repo.git("checkout", "--quiet", "-b", "mine")
            repo.write("answer.txt", "mine\n")

        with (
            ModelServer(Doing([EDIT, DONE], 1, leave_and_change)) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            result = end(start(session))
        assert result.met, result.why
        assert repo.git("show", "main:answer.txt") == "right"
        assert repo.read("answer.txt") == "mine\n"

    def test_changes_in_another_checkout_of_the_branch_are_in_the_way(self, repo: Repo, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"

        def leave_and_change() -> None:
            repo.git("checkout", "--quiet", "-b", "mine")
            repo.git("worktree", "add", "--quiet", str(elsewhere), "main")
            (elsewhere / "answer.txt").write_text("mine\n")

        with (
            ModelServer(Doing([EDIT, DONE], 1, leave_and_change)) as server,
            session_on(server.base_url, repo.root) as session,
        ):
            result = end(start(session))
        assert result.status == "blocked"
        assert f"the checkout {elsewhere} has changes of its own in answer.txt" in result.why
        assert repo.git("show", "main:answer.txt") == "wrong"
        assert (elsewhere / "answer.txt").read_text() == "mine\n"

    def test_a_merge_that_breaks_the_check_is_repaired_with_the_users_commits_in_hand(self, repo: Repo) -> None:
        """The agent was told of a failure in files that its worktree did not have, and could not repair it."""
        repo.commit({"lib.py": "def area(width, height):\n    return width + height\n"})
        check = "python -c 'import use; use.check()'"
        repo.commit({"use.py": "from lib import area\n\n\ndef check():\n    assert area(2, 3) == 6\n"})
        correct = Answer("", [Call("edit", {"path": "lib.py", "old": "width + height", "new": "width * height"})])
        # Another file, so that it merges; it calls the function in a way that the agent's work does not know.
        users = "from lib import area\n\n\ndef check():\n    assert area(2, 3) == 6\n    assert area(2) == 4\n"
        look = Answer("", [Call("read", {"path": "use.py"})])
        adapt = Answer("", [Call("edit", {"path": "lib.py", "old": "(width, height)", "new": "(width, height=2)"})])
        script = Doing([correct, DONE, look, adapt, DONE], 1, lambda: repo.commit({"use.py": users}))
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session, check)
            result = end(handle)
            events, folder = session.events(), session.folder
        assert result.met, result.why
        theirs = repo.git("rev-list", "--max-count=1", "HEAD", "--", "use.py")
        (updated,) = only(events, "worktree.updated")
        assert updated.data["target"] == theirs
        assert updated.data["files"] == ["use.py"]
        report = said(server.requests[2].json)[-1]
        assert "the user changed use.py" in report
        assert f"`{check}` does not pass" in report
        assert "area(2) == 4" in results(server.requests[3].json)[-1]
        # What landed holds both, and the diff told as the agent's is only its own.
        assert repo.read("use.py") == users
        assert repo.read("lib.py") == "def area(width, height=2):\n    return width * height\n"
        assert repo.git("merge-base", "--is-ancestor", theirs, "HEAD") == ""
        assert repo.git("status", "--porcelain") == ""
        assert repo.branches == ["main"]
        assert prove(folder).problem is None
        landed = only(events, "merge.landed")[0]
        assert landed.data["old"] == theirs
        assert repo.git("diff", "--name-only", theirs, "HEAD") == "lib.py"

    def test_the_diff_so_far_is_the_agents_own_after_the_users_commits_came_in(self, repo: Repo) -> None:
        broken = "! grep -q broken other.txt"
        script = Doing([EDIT, DONE], 1, lambda: repo.commit({"other.txt": "broken\n"}))
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session, CHECK, broken)
            assert end(handle).status == "stalled"
            diff = handle.diff()
            assert len(only(session.events(), "worktree.updated")) == 1
        assert "+right" in diff
        assert "broken" not in diff


class TestNoBranch:
    def test_a_branch_that_is_deleted_meanwhile_blocks_and_says_how_to_bring_it_back(self, repo: Repo) -> None:
        def leave() -> None:
            repo.git("checkout", "--quiet", "-b", "mine")
            repo.git("branch", "--quiet", "-D", "main")

        script = Doing([EDIT, DONE], 1, leave)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session)
            base = repo.git("rev-parse", "HEAD")
            result = end(handle)
            assert result.status == "blocked"
            assert "The branch main, on which the work is to land, is gone" in result.why
            assert agent_branch(handle) in result.why
            with pytest.raises(UsageProblem, match="is gone: bring it back") as caught:
                handle.resume()
            command = re.search(r"`git (branch main \w+)`", str(caught.value))
            assert command is not None
            repo.git(*command[1].split())
            note = session.resume_goal(handle.number)
            assert note == "HEAD is on mine now; the work still lands on main."
            result = end(handle)
        assert result.met
        assert "main is checked out nowhere" in result.checkout
        assert (repo.git("rev-parse", "mine"), repo.git("rev-parse", "main")) == (base, result.commit)
        assert repo.read("answer.txt") == "wrong\n"
        assert repo.git("status", "--porcelain") == ""
        assert len(server.requests) == 2

    def test_head_that_is_detached_meanwhile_does_not_stop_the_landing(self, repo: Repo) -> None:
        with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            handle = start(session, steps=1)
            assert end(handle).status == "budget"
            handle.edit(steps=9)
            repo.git("checkout", "--quiet", "--detach")
            note = session.resume_goal(handle.number)
            assert note == "HEAD is detached now; the work still lands on main."
            result = end(handle)
            assert result.met
            assert "main is checked out nowhere" in result.checkout
        assert repo.git("show", "main:answer.txt") == "right"
        assert repo.read("answer.txt") == "wrong\n"

    def test_a_goal_of_an_older_log_without_a_branch_takes_the_one_of_its_resume(self, repo: Repo) -> None:
        """Goals could start where HEAD is detached, and were blocked when all was done."""
        repo.git("checkout", "--quiet", "--detach")
        base = repo.git("rev-parse", "HEAD")
        old = {"text": "say right", "verify": [CHECK], "agent": "lead", "branch": None, "base": base, "model": MODEL}

        async def as_it_was(core: SessionCore) -> int:
            number = (await core.log.append("goal.set", old, agent="user")).seq
            await core.log.append("goal.paused", {"goal": number, "why": "closed"}, agent="lead", cause=(number,))
            return number

        with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            handle = session.handle(session.call(as_it_was))
            with pytest.raises(UsageProblem, match="HEAD is detached in"):
                handle.resume()
            assert handle.status == "paused"
            assert server.requests == []
            repo.git("checkout", "--quiet", "-b", "mine")
            assert session.resume_goal(handle.number) == "The work lands on mine."
            assert end(handle).met
            assert prove(session.folder).problem is None
        assert repo.git("show", "mine:answer.txt") == "right"
        assert repo.git("show", "main:answer.txt") == "wrong"
