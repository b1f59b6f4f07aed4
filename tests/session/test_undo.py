"""Taking a landing back: the branch as it was, a revert on top, or one line that says why not and nothing touched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.landing_bench import MAIN, NOWHERE, merges, start_goal, submit, work
from fixtures.model_scripts import Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, end, kinds, only, session_on, start

from musecode_jupyter.agents.landing.work import Work
from musecode_jupyter.runtime.errors import GitError, UsageProblem
from musecode_jupyter.session import Session
from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.session.landings import undo
from musecode_jupyter.session.replay import prove


@pytest.fixture
def session(repo: Repo) -> Iterator[Session]:
    with session_on(NOWHERE, repo.root) as opened:
        yield opened
    assert prove(opened.folder, commands=False).problem is None


def land(session: Session, repo: Repo, name: str, files: dict[str, str | None]) -> int:
    """The number of a landing on main with `files`."""
    goal = next(iter(session.goals.goals), None) or start_goal(session, repo)
    (verdict,) = submit(session, work(repo, goal, name, files))
    assert verdict.kind == "landed", verdict.why
    return verdict.merge


def assert_refused(session: Session, repo: Repo, landing: int, *said: str) -> None:
    """An undo that is one line and leaves everything as it is."""
    before = (repo.git("rev-parse", "main"), repo.git("status", "--porcelain"), session.log.last_seq)
    with pytest.raises(UsageProblem) as caught:
        session.undo(landing)
    for words in said:
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (repo.git("rev-parse", "main"), repo.git("status", "--porcelain"), session.log.last_seq) == before


class TestBack:
    def test_a_branch_where_the_landing_put_it_goes_back(self, repo: Repo, session: Session) -> None:
        old = repo.git("rev-parse", "main")
        landing = land(session, repo, "a", {"answer.txt": "right\n", "new.txt": "new\n"})
        new = repo.git("rev-parse", "main")
        repo.write("other.txt", "not committed\n")
        said = session.undo(landing)
        assert said.startswith(f"Landing {landing} is undone: main is at {old[:10]} now. ")
        assert repo.git("rev-parse", "main") == old
        assert (repo.read("answer.txt"), repo.read("other.txt")) == ("wrong\n", "not committed\n")
        assert not (repo.root / "new.txt").exists()
        assert repo.git("status", "--porcelain") == "M other.txt"
        (intent,), (undone,) = only(session.events(), "merge.undoing"), only(session.events(), "merge.undone")
        assert intent.data["files"] == ["answer.txt", "new.txt"]
        assert (undone.data["old"], undone.data["new"]) == (new, old)
        assert repo.git("rev-parse", undone.data["backup"]) == new
        assert merges(session)[landing].state == "undone"
        assert_refused(session, repo, landing, "it was undone already")

    def test_landings_go_back_one_by_one_and_can_land_again(self, repo: Repo, session: Session) -> None:
        base = repo.git("rev-parse", "main")
        first = land(session, repo, "a", {"answer.txt": "right\n"})
        second = land(session, repo, "b", {"answer.txt": "righter\n"})
        session.undo(second)
        session.undo(first)
        assert repo.read("answer.txt") == "wrong\n"
        goal = next(iter(session.goals.goals))
        same = Work(
            goal, None, "again", "a", 0, repo.git("rev-parse", "musecode/a"), base, "musecode/a", MAIN, ("true",)
        )
        (verdict,) = submit(session, same)
        assert (verdict.kind, repo.read("answer.txt")) == ("landed", "right\n")
        session.undo(verdict.merge)
        assert repo.read("answer.txt") == "wrong\n"
        assert repo.git("status", "--porcelain") == ""

    def test_the_landing_of_a_goal_with_one_worker_is_undone_too(self, repo: Repo) -> None:
        with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
            assert end(start(session)).met
            (landed,) = only(session.events(), "merge.landed")
            session.undo(landed.data["merge"])
            assert prove(session.folder).problem is None
        assert repo.read("answer.txt") == "wrong\n"
        assert repo.git("status", "--porcelain") == ""

    def test_the_branch_goes_back_where_it_is_checked_out_nowhere(self, repo: Repo, session: Session) -> None:
        old = repo.git("rev-parse", "main")
        repo.git("checkout", "--quiet", "-b", "mine")
        landing = land(session, repo, "a", {"answer.txt": "right\n"})
        repo.write("answer.txt", "mine\n")
        assert "main is checked out nowhere" in session.undo(landing)
        assert (repo.git("rev-parse", "main"), repo.read("answer.txt")) == (old, "mine\n")


class TestRevert:
    def test_a_branch_that_moved_on_gets_a_commit_that_takes_it_out(self, repo: Repo, session: Session) -> None:
        landing = land(session, repo, "a", {"answer.txt": "right\n", "new.txt": "new\n"})
        tip = repo.commit({"other.txt": "later\n"})
        session.undo(landing)
        assert repo.git("rev-parse", "main^") == tip
        assert (repo.read("answer.txt"), repo.read("other.txt")) == ("wrong\n", "later\n")
        assert not (repo.root / "new.txt").exists()
        assert repo.git("status", "--porcelain") == ""
        assert repo.git("log", "-1", "--format=%s") == f"Undo landing {landing} (work a)"
        (undone,) = only(session.events(), "merge.undone")
        assert repo.git("rev-parse", undone.data["backup"]) == tip

    def test_the_first_of_two_landings_is_taken_out_from_under_the_second(self, repo: Repo, session: Session) -> None:
        base = repo.git("rev-parse", "main")
        first = land(session, repo, "a", {"answer.txt": "right\n"})
        goal = next(iter(session.goals.goals))
        (second,) = submit(session, work(repo, goal, "b", {"other.txt": "new\n"}, base=base))
        session.undo(first)
        assert (repo.read("answer.txt"), repo.read("other.txt")) == ("wrong\n", "new\n")
        session.undo(second.merge)
        assert (repo.read("answer.txt"), repo.read("other.txt")) == ("wrong\n", "other\n")

    def test_a_later_change_of_the_same_lines_is_in_the_way(self, repo: Repo, session: Session) -> None:
        landing = land(session, repo, "a", {"answer.txt": "right\n"})
        repo.commit({"answer.txt": "righter\n"})
        assert_refused(session, repo, landing, "main has changed answer.txt since", "Nothing was touched")

    def test_what_the_user_took_out_already_is_not_taken_out_again(self, repo: Repo, session: Session) -> None:
        landing = land(session, repo, "a", {"answer.txt": "right\n"})
        repo.commit({"answer.txt": "wrong\n"})
        assert_refused(session, repo, landing, f"Nothing of landing {landing} is left on main")

    def test_a_branch_that_the_user_reset_holds_nothing_to_undo(self, repo: Repo, session: Session) -> None:
        landing = land(session, repo, "a", {"answer.txt": "right\n"})
        repo.git("reset", "--quiet", "--hard", "HEAD^")
        assert_refused(session, repo, landing, f"main does not hold landing {landing} any more")


class TestRefused:
    @pytest.mark.parametrize("later", [False, True])
    def test_changes_of_the_users_in_the_same_file(self, repo: Repo, session: Session, later: bool) -> None:
        landing = land(session, repo, "a", {"answer.txt": "right\n"})
        if later:
            repo.commit({"other.txt": "later\n"})
        repo.write("answer.txt", "mine\n")
        assert_refused(session, repo, landing, "Your checkout has changes of its own in answer.txt", "Commit or stash")
        assert repo.read("answer.txt") == "mine\n"

    def test_a_file_that_is_open_in_a_notebook(self, repo: Repo, session: Session) -> None:
        landing = land(session, repo, "a", {"answer.txt": "right\n"})
        opened: list[Path] = [repo.root / "answer.txt"]

        def show(core: SessionCore) -> None:
            core.open_documents = lambda: opened

        session.read(show)
        assert_refused(session, repo, landing, "answer.txt, which the undo changes, is open in a notebook")
        opened.clear()
        session.undo(landing)
        assert repo.read("answer.txt") == "wrong\n"

    def test_no_such_landing_and_one_that_did_not_land(self, repo: Repo, session: Session) -> None:
        goal = start_goal(session, repo)
        (bounced,) = submit(session, work(repo, goal, "a", {"a.txt": "a\n"}, "false"))
        assert_refused(session, repo, bounced.merge, "it did not land", "`%muse merges` lists them")
        assert_refused(session, repo, 4711, "There is no landing 4711 in this session")

    def test_a_branch_that_is_gone(self, repo: Repo, session: Session) -> None:
        landing = land(session, repo, "a", {"answer.txt": "right\n"})
        repo.git("checkout", "--quiet", "-b", "mine")
        repo.git("branch", "--quiet", "-D", "main")
        with pytest.raises(UsageProblem, match=r"The branch main, on which .* landed, is gone"):
            session.undo(landing)

    def test_a_merge_under_way_in_the_checkout(self, repo: Repo, session: Session) -> None:
        landing = land(session, repo, "a", {"answer.txt": "right\n"})
        repo.git("checkout", "--quiet", "-b", "side")
        repo.commit({"other.txt": "side\n"})
        repo.git("checkout", "--quiet", "main")
        repo.git("merge", "--quiet", "--no-ff", "--no-commit", "side")
        tip = repo.git("rev-parse", "main")
        with pytest.raises(GitError, match="A merge is under way"):
            session.undo(landing)
        assert repo.git("rev-parse", "main") == tip
        assert "merge.undoing" not in kinds(session.events())

    def test_two_at_once_undo_it_once(self, repo: Repo, session: Session) -> None:
        landing = land(session, repo, "a", {"answer.txt": "right\n"})

        async def both(core: SessionCore) -> list[str | BaseException]:
            return await asyncio.gather(undo(core, landing), undo(core, landing), return_exceptions=True)

        outcomes = session.call(both)
        assert [type(outcome) for outcome in outcomes] == [str, UsageProblem]

    def test_a_user_who_is_quicker_than_the_move_keeps_their_change(self, repo: Repo, session: Session) -> None:
        """The change comes between the check and the move: the branch is taken to where it was."""
        landing = land(session, repo, "a", {"answer.txt": "right\n"})
        tip = repo.git("rev-parse", "main")
        stop = session.read(
            lambda core: core.log.on_durable(
                lambda event: repo.write("answer.txt", "mine\n") if event.kind == "merge.undoing" else None
            )
        )
        with pytest.raises(UsageProblem, match=r"is not undone: .* your own changes are in the way"):
            session.undo(landing)
        assert (repo.git("rev-parse", "main"), repo.read("answer.txt")) == (tip, "mine\n")
        assert merges(session)[landing].state == "landed"
        repo.write("answer.txt", "right\n")
        stop()
        session.undo(landing)
        assert repo.read("answer.txt") == "wrong\n"
