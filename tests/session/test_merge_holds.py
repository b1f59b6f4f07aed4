"""The merge queue and the user: a branch that moves, changes in the way, questions and answers, stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from fixtures.landing_bench import NOWHERE, merges, start_goal, submit, with_queue, work
from fixtures.session_bench import Repo, Watch, kinds, only, session_on

from musecode_jupyter.agents.landing.queue import MergeQueue, Review, Validator, Verdict
from musecode_jupyter.log.events import Event
from musecode_jupyter.session import Session
from musecode_jupyter.session.replay import prove


@pytest.fixture
def session(repo: Repo) -> Iterator[Session]:
    with session_on(NOWHERE, repo.root) as opened:
        yield opened
    assert prove(opened.folder, commands=False).problem is None


@pytest.fixture
def goal(session: Session, repo: Repo) -> int:
    return start_goal(session, repo)


@contextmanager
def whenever(session: Session, kind: str, deed: Callable[[int], object]) -> Iterator[None]:
    """Do `deed` with its number, from 1, at each durable event of `kind`, before anything else goes on."""
    seen = 0

    def look(event: Event) -> None:
        nonlocal seen
        if event.kind == kind:
            seen += 1
            deed(seen)

    end = session.read(lambda core: core.log.on_durable(look))
    yield
    session.read(lambda core: end())


class TestMovedTarget:
    @pytest.mark.parametrize("times", [1, 3])
    def test_it_starts_over_and_lands_on_what_is_there_then(
        self, repo: Repo, session: Session, goal: int, times: int
    ) -> None:
        def move(number: int) -> None:
            if number <= times:
                repo.commit({"other.txt": f"moved {number}\n"})

        made = work(repo, goal, "a", {"answer.txt": "right\n"}, "grep -q right answer.txt")
        with whenever(session, "merge.landing", move):
            (verdict,) = submit(session, made)
        assert verdict.kind == "landed"
        assert (repo.read("answer.txt"), repo.read("other.txt")) == ("right\n", f"moved {times}\n")
        tested = only(session.events(), "merge.tested")
        assert len(tested) == times + 1
        assert tested[-1].data["tree"] == repo.git("rev-parse", "main^{tree}")
        assert f"started over {times} time" in session.merges()

    def test_after_three_times_it_is_left_to_the_user(self, repo: Repo, session: Session, goal: int) -> None:
        made = work(repo, goal, "a", {"answer.txt": "right\n"})
        with whenever(session, "merge.landing", lambda number: repo.commit({"other.txt": f"moved {number}\n"})):
            (verdict,) = submit(session, made)
        assert (verdict.kind, verdict.report) == ("held", "")
        assert verdict.why == "main moved 4 times while landing. The work is on branch musecode/a."
        assert (repo.read("answer.txt"), repo.read("other.txt")) == ("wrong\n", "moved 4\n")
        assert [merge.state for merge in merges(session).values()] == ["bounced"]
        assert kinds(only(session.events(), "merge.moved")) == ["merge.moved"] * 4

    def test_what_the_user_commits_meanwhile_is_tested_with_the_work(
        self, repo: Repo, session: Session, goal: int
    ) -> None:
        made = work(repo, goal, "a", {"answer.txt": "right\n"}, "! grep -q broken other.txt")

        def break_it(number: int) -> None:
            repo.commit({"other.txt": "broken\n"})

        with whenever(session, "merge.landing", break_it):
            (verdict,) = submit(session, made)
        assert (verdict.kind, verdict.commit) == ("bounced", repo.git("rev-parse", "main"))
        assert repo.read("answer.txt") == "wrong\n"

    def test_a_branch_that_is_gone_is_the_users_turn(self, repo: Repo, session: Session, goal: int) -> None:
        made = work(repo, goal, "a", {"answer.txt": "right\n"})
        repo.git("checkout", "--quiet", "-b", "mine")
        repo.git("branch", "--quiet", "-D", "main")
        (verdict,) = submit(session, made)
        assert verdict.kind == "held"
        assert f"is gone: bring it back, for example with `git branch main {made.base[:10]}`" in verdict.why


class TestInTheWay:
    def test_changes_of_the_users_are_kept_and_others_do_not_matter(
        self, repo: Repo, session: Session, goal: int
    ) -> None:
        repo.write("answer.txt", "mine\n")
        repo.write("stray.txt", "mine\n")
        one, two, three = submit(
            session,
            work(repo, goal, "a", {"answer.txt": "right\n"}),
            work(repo, goal, "b", {"stray.txt": "theirs\n"}),
            work(repo, goal, "c", {"other.txt": "new\n"}),
        )
        assert [one.kind, two.kind, three.kind] == ["held", "held", "landed"]
        assert "your checkout has changes of its own in answer.txt" in one.why
        assert "Nothing was touched; the work is on branch musecode/a. Commit or stash, then resume." in one.why
        assert "changes of its own in stray.txt" in two.why
        assert (repo.read("answer.txt"), repo.read("stray.txt"), repo.read("other.txt")) == (
            "mine\n",
            "mine\n",
            "new\n",
        )

    def test_a_user_who_is_quicker_than_the_move_keeps_their_change(
        self, repo: Repo, session: Session, goal: int
    ) -> None:
        old = repo.git("rev-parse", "main")
        with whenever(session, "merge.landing", lambda number: repo.write("answer.txt", "mine\n")):
            (verdict,) = submit(session, work(repo, goal, "a", {"answer.txt": "right\n"}))
        assert verdict.kind == "held"
        assert "Nothing was landed; the work is on branch musecode/a." in verdict.why
        assert (repo.git("rev-parse", "main"), repo.read("answer.txt")) == (old, "mine\n")

    def test_an_open_notebook_is_not_written_behind_its_back(self, repo: Repo, session: Session, goal: int) -> None:
        def show(core: Any) -> None:
            core.open_documents = lambda: [repo.root / "answer.txt"]

        session.read(show)
        (verdict,) = submit(session, work(repo, goal, "a", {"answer.txt": "right\n"}))
        assert verdict.kind == "held"
        assert "answer.txt, which the work changes, is open in a notebook" in verdict.why

    def test_a_rebase_of_the_branch_is_not_disturbed(self, repo: Repo, session: Session, goal: int) -> None:
        made = work(repo, goal, "a", {"other.txt": "new\n"})
        repo.commit({"answer.txt": "mine\n"})
        repo.git("checkout", "--quiet", "-b", "side", "HEAD^")
        repo.commit({"answer.txt": "side\n"})
        repo.git("checkout", "--quiet", "main")
        tip = repo.git("rev-parse", "main")
        with pytest.raises(Exception, match="rebase"):
            repo.git("rebase", "--quiet", "side")
        (verdict,) = submit(session, made)
        assert verdict.kind == "held"
        assert "A rebase of refs/heads/main is under way" in verdict.why
        assert repo.git("rev-parse", "main") == tip
        assert [merge.state for merge in merges(session).values()] == ["bounced"]


class TestQuestions:
    @contextmanager
    def asked(self, repo: Repo, **chosen: Any) -> Iterator[tuple[Session, Watch, Future[list[Verdict]], Event]]:
        """A submit that waits for the user's answer."""

        async def agrees(*_: object) -> Review:
            return Review(True, "reads well")

        with (
            session_on(NOWHERE, repo.root, interactive=True, approvals="ask") as session,
            ThreadPoolExecutor(1) as pool,
        ):
            watch, goal = Watch(session), start_goal(session, repo)
            made = work(repo, goal, "a", {"answer.txt": "right\n"}, "grep -q right answer.txt", usd=0.25)
            next_one = work(repo, goal, "b", {"other.txt": "new\n"})
            running = pool.submit(submit, session, made, next_one, validators=[Validator("reviewer", agrees)])
            yield session, watch, running, watch.until("approval.requested")
            running.result()
        assert prove(session.folder, commands=False).problem is None

    def test_the_card_has_diff_checks_and_reviews_and_a_yes_lands(self, repo: Repo) -> None:
        with self.asked(repo) as (session, watch, running, question):
            shown = question.data["shown"]
            assert (question.data["action"], question.data["rule"], question.agent) == ("land", "land on main", "a")
            assert "-wrong\n+right\n" in shown["diff"]
            assert (shown["branch"], shown["files"], shown["work"]) == ("main", ["answer.txt"], "work a")
            assert shown["checks"] == ["grep -q right answer.txt: passed"]
            assert (shown["reviews"], shown["usd"]) == (["reviewer: reads well"], 0.25)
            assert shown["tree"] == repo.git("rev-parse", f"{shown['to']}^{{tree}}")
            assert repo.read("answer.txt") == "wrong\n"
            told = session.merges()
            assert f"work a by a: waits for approval {question.seq} to land on main" in told
            assert "work b by b: waits for its turn" in told
            # The rule covers the other one too.
            session.answer(question.seq, "approve_session", by="test")
            verdicts = running.result()
        assert [verdict.kind for verdict in verdicts] == ["landed", "landed"]
        assert len(only(watch.events, "approval.requested")) == 1
        assert (repo.read("answer.txt"), repo.read("other.txt")) == ("right\n", "new\n")

    def test_a_no_holds_it_and_the_next_one_is_asked_about(self, repo: Repo) -> None:
        with self.asked(repo) as (session, watch, running, question):
            session.answer(question.seq, "deny", by="test", why="not today")
            second = watch.until("approval.requested", since=question.seq)
            session.answer(second.seq, "approve", by="test")
            one, two = running.result()
        assert (one.kind, two.kind) == ("held", "landed")
        assert one.why == "Verified, but landing on main was denied (not today). The work is on branch musecode/a."
        assert (repo.read("answer.txt"), repo.read("other.txt")) == ("wrong\n", "new\n")

    def test_a_branch_that_moves_during_the_question_makes_it_a_new_one(self, repo: Repo) -> None:
        with self.asked(repo) as (session, watch, running, question):
            tip = repo.commit({"third.txt": "x\n"})
            session.answer(question.seq, "approve", by="test")
            second = watch.until("approval.requested", since=question.seq)
            assert second.data["shown"]["from"] == tip
            session.answer(second.seq, "approve_session", by="test")
            assert [verdict.kind for verdict in running.result()] == ["landed", "landed"]
        assert repo.read("answer.txt") == "right\n"

    def test_nobody_to_ask_is_a_no(self, repo: Repo) -> None:
        with session_on(NOWHERE, repo.root, approvals="ask") as session:
            (verdict,) = submit(session, work(repo, start_goal(session, repo), "a", {"answer.txt": "right\n"}))
        assert verdict.kind == "held"
        assert "nobody can be asked here" in verdict.why


class TestStops:
    @pytest.mark.parametrize(
        "kind", ["merge.enqueued", "merge.checked", "tool.started", "merge.tested", "merge.reviewed", "merge.landing"]
    )
    def test_a_stop_at_any_step_leaves_nothing_half_made(
        self, repo: Repo, session: Session, goal: int, kind: str
    ) -> None:
        old = repo.git("rev-parse", "main")
        one = work(repo, goal, "a", {"answer.txt": "right\n"}, "grep -q right answer.txt")
        two = work(repo, goal, "b", {"other.txt": "new\n"})

        async def agrees(*_: object) -> Review:
            return Review(True)

        async def stop_first(queue: MergeQueue) -> tuple[object, Verdict]:
            first = asyncio.ensure_future(queue.submit(one))
            second = asyncio.ensure_future(queue.submit(two))
            stopping.append(first)
            result = await asyncio.gather(first, return_exceptions=True)
            return result[0], await second

        stopping: list[asyncio.Future[Verdict]] = []
        with whenever(session, kind, lambda number: stopping[0].cancel() if number == 1 else None):
            stopped, verdict = with_queue(session, stop_first, [Validator("reviewer", agrees)])
        assert isinstance(stopped, asyncio.CancelledError)
        assert verdict.kind == "landed"
        landed = kind == "merge.landing"
        assert [merge.state for merge in merges(session).values()] == ["landed" if landed else "bounced", "landed"]
        assert repo.read("answer.txt") == ("right\n" if landed else "wrong\n")
        assert repo.git("rev-parse", "main~2" if landed else "main^") == old
        assert repo.git("status", "--porcelain") == ""
        assert repo.worktrees == 3
        assert session.read(lambda core: dict(core.executor.state.open)) == {}

    def test_one_that_is_stopped_while_it_waits_gives_up_its_turn(
        self, repo: Repo, session: Session, goal: int
    ) -> None:
        works = [work(repo, goal, name, {f"{name}.txt": "x\n"}) for name in "abc"]

        async def stop_second(queue: MergeQueue) -> list[object]:
            checking = asyncio.Event()
            session.log.on_durable(lambda event: checking.set() if event.kind == "merge.checked" else None)
            running = [asyncio.ensure_future(queue.submit(each)) for each in works]
            await checking.wait()
            running[1].cancel()
            return list(await asyncio.gather(*running, return_exceptions=True))

        first, second, third = with_queue(session, stop_second)
        assert isinstance(second, asyncio.CancelledError)
        assert [getattr(verdict, "kind", "") for verdict in (first, third)] == ["landed", "landed"]
        assert [merge.state for merge in merges(session).values()] == ["landed", "bounced", "landed"]
