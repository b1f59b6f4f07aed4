"""Budgets of several scopes at once: whatever the order of reserves and settlements, none is ever exceeded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musecode_jupyter.guard.ledger import LedgerReducer, LedgerState
from musecode_jupyter.guard.scopes import check_scopes, check_step, scopes_of, used_of
from musecode_jupyter.log.events import SCHEMA_VERSION, Event
from musecode_jupyter.runtime.errors import BudgetExceeded

AGENTS = ("lead", "worker-1", "worker-2")
SPENT_BEFORE = 990_000
LIMIT = 1_000_000


class Calls:
    """Model calls on one ledger, each reserved and settled as the gate does it: check and event without a wait."""

    def __init__(self) -> None:
        self.reducer, self.ledger, self.seq = LedgerReducer(), LedgerState(), 0
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def happens(self, kind: str, by: str, /, **data: Any) -> int:
        self.seq += 1
        at = self.now.isoformat()
        self.reducer.apply(self.ledger, Event(SCHEMA_VERSION, self.seq, at, 1, self.seq, by, 0, (), kind, "", data))
        return self.seq

    def begin(self, agent: str, reserve: int) -> int | None:
        try:
            check_scopes(scopes_of(self.ledger, agent), reserve, reserve)
        except BudgetExceeded:
            return None
        return self.happens(
            "model.requested", agent, reserved_microusd=reserve, reserved_tokens=reserve, view=None, model="m"
        )

    def spent(self) -> int:
        return self.ledger.total.microusd + self.ledger.reserved_microusd


@settings(max_examples=60)
@given(st.data())
def test_ten_parallel_calls_at_99_percent_of_a_budget_never_exceed_it(data: st.DataObject) -> None:
    """A reserve counts in every scope from its event on, so that two calls cannot both see the last room."""
    calls = Calls()
    calls.happens("task.leased", "harness", task=7, agent="worker-1", goal=1, text="x")
    for agent in AGENTS:
        calls.happens("model.abandoned", agent, request=0, cost_microusd=SPENT_BEFORE // len(AGENTS), tokens=0)
    limits = {
        ("session", ""): LIMIT,
        ("agent", "worker-1"): SPENT_BEFORE // len(AGENTS) + data.draw(st.integers(1, 9_000)),
        ("task", "7"): data.draw(st.integers(1, 9_000)),
    }
    for (scope, name), most in limits.items():
        calls.happens("budget.set", "user", scope=scope, name=name, microusd=most, tokens=None)
    asked = [
        (agent, data.draw(st.integers(1, 12_000)))
        for agent in data.draw(st.lists(st.sampled_from(AGENTS), min_size=10, max_size=10))
    ]
    open_now: dict[int, tuple[str, int]] = {}
    while asked or open_now:
        if asked and (not open_now or data.draw(st.booleans())):
            agent, reserve = asked.pop()
            seq = calls.begin(agent, reserve)
            if seq is not None:
                open_now[seq] = (agent, reserve)
        else:
            seq = data.draw(st.sampled_from(sorted(open_now)))
            agent, reserve = open_now.pop(seq)
            # No usage, or a call that broke off: the reserve is kept as the estimate.
            cost = data.draw(st.sampled_from([reserve, reserve // 2, 0]))
            end = data.draw(st.sampled_from(["model.completed", "model.failed", "model.abandoned"]))
            usage = None if cost == reserve else {"input": cost, "cached": 0, "output": 0, "reasoning": 0}
            calls.happens(end, agent, request=seq, cost_microusd=cost, usage=usage, seconds=0.0, tokens=cost)
        ledger = calls.ledger
        assert calls.spent() <= LIMIT
        for (scope, name), most in limits.items():
            found = (
                ledger.by_agent.get(name) if scope == "agent" else ledger.by_task.get(7) if scope == "task" else None
            )
            waiting = [
                reserve.microusd
                for reserve in ledger.open.values()
                if (scope == "agent" and reserve.agent == name) or (scope == "task" and reserve.task == 7)
            ]
            assert (found.microusd if found else 0) + sum(waiting) <= most
    assert calls.ledger.total.microusd == sum(each.microusd for each in calls.ledger.by_agent.values())


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ({"steps": 2}, "2 of 2 model calls"),
        ({"calls": 2}, "2 of 2 tool calls"),
        ({"processes": 1}, "1 of 1 processes"),
        ({"hours": 0.5}, "1.5 of 0.5 hours"),
    ],
)
def test_each_dimension_ends_what_comes_next(limit: dict[str, float], says: str) -> None:
    calls = Calls()
    calls.happens("session.opened", "")
    assert calls.begin("lead", 5) is not None
    calls.happens("model.failed", "lead", request=2, cost_microusd=0, tokens=0)
    assert calls.begin("lead", 5) is not None
    for effect in ("process", "read"):
        calls.happens("tool.started", "lead", effect=effect, call=9)
    calls.happens("budget.set", "user", scope="session", name="", microusd=None, tokens=None, **limit)
    later = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=1.5)

    def next_step() -> None:
        check_step(calls.ledger, "lead", later)
        check_scopes(scopes_of(calls.ledger, "lead"), 1, 1)

    with pytest.raises(BudgetExceeded, match=says) as caught:
        next_step()
    assert caught.value.scope == f"session {next(iter(limit))}"


def test_hours_of_agents_and_tasks_are_those_of_work() -> None:
    """An agent that waits uses none; what it works on next begins with none; a restart ends what ran."""
    calls, begun = Calls(), datetime(2026, 1, 1, tzinfo=UTC)

    def at(hours: float, kind: str, by: str, **data: Any) -> None:
        calls.now = begun + timedelta(hours=hours)
        calls.happens(kind, by, **data)

    def used(hours: float) -> tuple[float, float, float]:
        return tuple(
            round(used_of(calls.ledger, key, begun + timedelta(hours=hours))["hours"], 9)
            for key in ("agent worker-1", "task 7", "task 8")
        )  # type: ignore[return-value]

    at(0, "session.opened", "")
    at(1, "task.leased", "harness", task=7, agent="worker-1", goal=1, text="x")
    at(1, "agent.state", "worker-1", state="running", why="")
    assert used(3) == (2, 2, 0)
    at(4, "agent.state", "worker-1", state="waiting", why="")
    assert used(9) == (3, 3, 0)
    at(9, "agent.state", "worker-1", state="running", why="")
    at(10, "task.leased", "harness", task=8, agent="worker-1", goal=1, text="y")
    at(12, "tool.started", "worker-1", effect="read", call=1)
    assert used(13) == (7, 4, 3)
    # Killed after the last event; nothing is at work until it goes on.
    at(20, "session.resumed", "")
    assert used(25) == (6, 4, 2)
    calls.happens("budget.set", "user", scope="task", name="8", microusd=None, tokens=None, hours=2.0)
    with pytest.raises(BudgetExceeded, match=r"2 of 2 hours \(task 8\) are used"):
        check_step(calls.ledger, "worker-1", begun + timedelta(hours=25))


def test_bytes_on_disk_end_what_comes_next() -> None:
    calls = Calls()
    calls.happens("budget.set", "user", scope="session", name="", microusd=None, tokens=None, disk=2_000_000)
    check_step(calls.ledger, "lead", datetime(2026, 1, 1, tzinfo=UTC), 1_999_999)
    with pytest.raises(BudgetExceeded, match=r"2\.500 of 2 MB on disk \(this session\) are used"):
        check_step(calls.ledger, "lead", datetime(2026, 1, 1, tzinfo=UTC), 2_500_000)
