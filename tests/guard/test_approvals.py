"""Questions: the same one is asked once, the first answer counts, and what has changed meanwhile voids it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from musecode_jupyter.guard.approvals import Answer, Approvals, ApprovalsReducer
from musecode_jupyter.guard.policy import action_digest
from musecode_jupyter.guard.rules import Rule, Rules, RulesReducer
from musecode_jupyter.log import EventLog, Redactor
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import UsageProblem

PATH = "/usr/bin:/bin"
LANDING = Rule(form="landing", text="main")


class Desk:
    """Approvals on a real log, and tasks that ask."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.rules = Rules(log, LiveEffects(), PATH)
        self.approvals = Approvals(log, self.rules)
        self._changed = asyncio.Event()
        log.on_durable(lambda _event: self._changed.set())

    def ask(self, what: str = "ls", **more: Any) -> asyncio.Task[Answer]:
        return asyncio.ensure_future(
            self.approvals.ask("run", f"run: {what}", {"command": what, "cwd": "/w"}, agent="lead", **more)
        )

    async def asked(self, count: int = 1) -> list[int]:
        """Wait until `count` questions are pending; their numbers."""
        await self.until(lambda: len(self.approvals.state.pending) >= count)
        return list(self.approvals.state.pending)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds`, which is asked anew after each durable event."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.log.events()]


def at_desk(tmp_path: Path, work: Callable[[Desk], Awaitable[None]]) -> None:
    async def session() -> None:
        log = EventLog.create(
            tmp_path / "session",
            reducers=[ApprovalsReducer(), RulesReducer()],
            redactor=Redactor(),
            now=lambda: datetime.now(UTC),
        )
        try:
            await work(Desk(log))
        finally:
            await log.close()

    asyncio.run(asyncio.wait_for(session(), 60))


def test_fifty_identical_requests_are_one_question(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        waiting = [desk.ask() for _ in range(50)]
        [number] = await desk.asked()
        other = desk.ask("ls -a")
        assert len(await desk.asked(2)) == 2
        await desk.approvals.answer(number, "approve", by="widget")
        answers = await asyncio.gather(*waiting)
        assert {(answer.granted, answer.approval) for answer in answers} == {(True, number)}
        assert not other.done()
        await desk.approvals.answer(None, "deny", by="magic", why="no")
        assert (await other).why == "no"
        assert desk.kinds() == ["approval.requested"] * 2 + ["approval.granted", "approval.denied"]

    at_desk(tmp_path, work)


def test_cancelling_one_leaves_the_question_to_the_rest_and_the_last_withdraws_it(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        first, second, third = desk.ask(), desk.ask(), desk.ask()
        [number] = await desk.asked()
        for task in (first, third):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert list(desk.approvals.state.pending) == [number]
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert desk.kinds() == ["approval.requested", "approval.expired"]
        with pytest.raises(UsageProblem, match="it was withdrawn, the action was stopped"):
            await desk.approvals.answer(number, "approve", by="magic")
        # The same thing asked later is a new question: no answer is left over for it.
        again = desk.ask()
        assert await desk.asked() != [number]
        again.cancel()

    at_desk(tmp_path, work)


def test_the_first_answer_counts_and_the_other_door_is_told(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        task = desk.ask()
        [number] = await desk.asked()
        results = await asyncio.gather(
            desk.approvals.answer(number, "approve", by="widget"),
            desk.approvals.answer(number, "deny", by="magic"),
            desk.approvals.answer(number, "approve", by="panel"),
            return_exceptions=True,
        )
        assert (await task).granted
        assert [type(result) for result in results[1:]] == [UsageProblem] * 2
        assert f"Approval {number} is not pending any more: it was granted from the widget" in str(results[1])
        assert desk.kinds() == ["approval.requested", "approval.granted"]

    at_desk(tmp_path, work)


def test_an_answer_is_durable_before_anybody_acts_on_it(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        seen: list[int] = []

        async def act() -> None:
            answer = await desk.approvals.ask("run", "run: ls", {}, agent="lead")
            granted = next(e.seq for e in desk.log.events(since=answer.approval) if e.kind == "approval.granted")
            seen.append(desk.log.durable_seq - granted)

        acting = asyncio.ensure_future(act())
        [number] = await desk.asked()
        # Stopping whoever answers does not lose the answer.
        answering = asyncio.ensure_future(desk.approvals.answer(number, "approve", by="magic"))
        await asyncio.sleep(0)
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        await acting
        assert seen[0] >= 0

    at_desk(tmp_path, work)


def test_the_same_request_after_the_answer_is_asked_anew(tmp_path: Path) -> None:
    """An answer for once is not taken by whoever comes while it is being written down."""

    async def work(desk: Desk) -> None:
        first = desk.ask()
        [number] = await desk.asked()
        answering = asyncio.ensure_future(desk.approvals.answer(number, "approve", by="magic"))
        await asyncio.sleep(0)
        assert not desk.approvals.state.pending
        late = desk.ask()
        [again] = await desk.asked()
        assert again != number
        await answering
        assert (await first).granted
        assert not late.done()
        late.cancel()

    at_desk(tmp_path, work)


def test_a_yes_for_longer_puts_the_offered_rule_in_force(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        home, repository = tmp_path / "home", tmp_path / "repo"
        repository.mkdir()
        assert await desk.rules.open(home, repository) == ""
        for decision, scope in (("approve_session", "session"), ("approve_workspace", "workspace")):
            task = desk.ask(offer=LANDING)
            [number] = await desk.asked()
            given = await desk.approvals.answer(number, decision, by="magic")  # type: ignore[arg-type]
            assert (given.scope, given.note, (await task).granted) == (scope, "", True)
        assert [(held.rule, held.scope) for held in desk.rules.state.held.values()] == [
            (LANDING, "session"),
            (LANDING, "workspace"),
        ]
        added = [event for event in desk.log.events() if event.kind == "rule.added"]
        assert [event.data["approval"] for event in added] == [1, 4]

    at_desk(tmp_path, work)


def test_a_yes_for_longer_that_no_rule_can_hold_is_a_yes_for_once_and_says_why(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        task = desk.ask(no_rule="command substitution")
        [number] = await desk.asked()
        given = await desk.approvals.answer(number, "approve_session", by="magic")
        assert (given.scope, given.note) == ("once", "No rule can cover it: command substitution.")
        assert (await task).granted
        # The workspace's file is not known here, so the rule cannot be kept.
        task = desk.ask(offer=LANDING)
        [number] = await desk.asked()
        given = await desk.approvals.answer(number, "approve_workspace", by="magic")
        assert given.scope == "once"
        assert "session rules" in given.note
        assert (await task).granted
        assert desk.rules.state.held == {}

    at_desk(tmp_path, work)


def test_an_answer_to_something_else_than_was_shown_answers_nothing(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        task = desk.ask()
        [number] = await desk.asked()
        with pytest.raises(UsageProblem, match="nothing was answered"):
            await desk.approvals.answer(number, "approve", by="widget", digest=action_digest("run", {"command": "rm"}))
        assert not task.done()
        for wrong in (0, -1, number + 1, 10**9):
            with pytest.raises(UsageProblem, match="not pending any more"):
                await desk.approvals.answer(wrong, "approve", by="magic")
        await desk.approvals.answer(
            number, "approve", by="widget", digest=action_digest("run", {"cwd": "/w", "command": "ls"})
        )
        assert (await task).granted

    at_desk(tmp_path, work)


def test_a_question_that_nobody_waits_for_cannot_be_answered(tmp_path: Path) -> None:
    """A question in the log of an earlier process was answerable until the restart had withdrawn it."""

    async def work(desk: Desk) -> None:
        task = desk.ask()
        [number] = await desk.asked()
        await desk.log.flush()
        other = Approvals(desk.log, desk.rules)
        with pytest.raises(UsageProblem, match="Nobody waits"):
            await other.answer(number, "approve", by="magic")
        other.expire_all("the session was restarted")
        with pytest.raises(UsageProblem, match="withdrawn, the session was restarted"):
            await other.answer(number, "approve", by="magic")
        assert "approval.granted" not in desk.kinds()
        task.cancel()

    at_desk(tmp_path, work)


steps = st.lists(
    st.tuples(st.sampled_from(["ask a", "ask b", "cancel", "approve", "deny", "session"]), st.integers(0, 5)),
    max_size=25,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_whatever_happens_everyone_gets_the_one_answer_to_their_question(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, int]]
) -> None:
    async def work(desk: Desk) -> None:
        tasks: list[tuple[str, asyncio.Task[Answer]]] = []
        for move, which in moves:
            if move.startswith("ask"):
                tasks.append((move[4:], desk.ask(move[4:])))
                await asyncio.sleep(0)
            elif move == "cancel" and tasks:
                tasks[which % len(tasks)][1].cancel()
                await asyncio.sleep(0)
            elif pending := list(desk.approvals.state.pending):
                decision = {"approve": "approve", "deny": "deny", "session": "approve_session"}.get(move)
                if decision:
                    await desk.approvals.answer(pending[which % len(pending)], decision, by="test")  # type: ignore[arg-type]
        ending = asyncio.gather(*(task for _, task in tasks), return_exceptions=True)
        while not ending.done():
            for number in list(desk.approvals.state.pending):
                await desk.approvals.answer(number, "deny", by="test")
            await asyncio.wait([ending], timeout=0.01)
        results = ending.result()
        ends = [e for e in desk.log.events() if e.kind.startswith("approval.") and e.kind != "approval.requested"]
        answered = {e.data["approval"]: e.kind for e in ends}
        asked = {e.seq: e.data["shown"]["command"] for e in desk.log.events() if e.kind == "approval.requested"}
        assert answered.keys() == asked.keys()
        assert len(answered) == len(ends)
        for (what, _), result in zip(tasks, results, strict=True):
            if isinstance(result, Answer):
                assert asked[result.approval] == what
                assert answered[result.approval] == ("approval.granted" if result.granted else "approval.denied")
            else:
                assert isinstance(result, asyncio.CancelledError)

    at_desk(tmp_path_factory.mktemp("desk"), work)
