"""Money in micro-dollars: sums are exact and independent of order, and what older sessions recorded is upgraded."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from fixtures.written_log import Entry, completed, requested, write_log
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.guard.ledger import LedgerReducer, LedgerState
from musecode_jupyter.log import EventLog, Fold
from musecode_jupyter.log.events import SCHEMA_VERSION, Event
from musecode_jupyter.log.upcast import upcast
from musecode_jupyter.models.catalogue import CACHE_WRITE, cost
from musecode_jupyter.models.prices import Price
from musecode_jupyter.models.types import Usage
from musecode_jupyter.runtime.money import limit_microusd, spent_microusd
from musecode_jupyter.session.reducers import all_reducers

PRICES = st.sampled_from([Price(1.25, 0.15, 4.25), Price(0.10, 0.002, 0.20), Price(0.0, 0.0, 0.0), Price(3.0, 0.3, 15)])
TOKENS = st.integers(0, 2_000_000)


def event(seq: int, kind: str, agent: str = "lead", v: int = SCHEMA_VERSION, **data: object) -> Event:
    return Event(v, seq, "2026-01-01T00:00:00+00:00", 1, seq, agent, 0, (), kind, "", data)


@given(PRICES, TOKENS, TOKENS, TOKENS, TOKENS)
def test_a_call_costs_the_next_whole_micro_dollar(
    price: Price, fresh: int, cached: int, written: int, out: int
) -> None:
    usage = Usage(input=fresh + cached + written, cached=cached, written=written, output=out)
    into, from_cache, given_out = (Fraction(str(each)) for each in (price.input, price.cached, price.output))
    exact = (fresh + written * Fraction(CACHE_WRITE)) * into + cached * from_cache + out * given_out
    found = cost(price, usage)
    assert isinstance(found, int)
    assert exact <= found < exact + 1


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40), st.integers())
def test_sums_are_exact_whatever_the_order_in_which_calls_end(costs: list[int], seed: int) -> None:
    """Sums of dollars as floats were not: 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1."""
    spent = [
        event(n, "model.abandoned", f"agent-{n % 3}", request=0, cost_microusd=each) for n, each in enumerate(costs)
    ]
    shuffled = list(spent)
    Random(seed).shuffle(shuffled)
    totals = []
    for order in (spent, shuffled):
        reducer, state = LedgerReducer(), LedgerState()
        for each in order:
            reducer.apply(state, each)
        assert state.total.microusd == sum(costs) == sum(agent.microusd for agent in state.by_agent.values())
        totals.append({name: agent.microusd for name, agent in state.by_agent.items()})
    assert totals[0] == totals[1]


def test_three_replays_have_equal_totals(tmp_path: Path) -> None:
    entries = [
        Entry("agent.created", {"role": "lead", "profile": "driver", "model": "muse-spark-1.3"}),
        *(
            entry
            for n in range(1, 60, 2)
            for entry in (Entry("model.requested", requested()), Entry("model.completed", completed(n + 1)))
        ),
    ]
    write_log(tmp_path / "s", entries)
    found = []
    for _ in range(3):
        fold = Fold(all_reducers())
        for each in EventLog.read(tmp_path / "s").events():
            fold.apply(each)
        ledger = fold.state("ledger")
        assert isinstance(ledger, LedgerState)
        assert ledger.total.microusd == 30 * 250_000
        found.append(fold.digest())
    assert len(set(found)) == 1


@given(st.decimals(0, 10_000, places=9))
def test_spending_is_rounded_up_and_limits_down(usd: object) -> None:
    exact = Fraction(str(usd)) * 1_000_000
    spent, limit = spent_microusd(float(str(usd))), limit_microusd(float(str(usd)))
    assert exact <= spent < exact + 1
    assert limit <= exact < limit + 1


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("model.requested", {"reserved_usd": 0.1 + 0.2, "items": 1}, {"reserved_microusd": 300_000, "items": 1}),
        ("model.completed", {"cost_usd": 0.0021}, {"cost_microusd": 2_100}),
        ("model.failed", {"cost_usd": 0.0000001}, {"cost_microusd": 1}),
        ("model.retried", {}, {}),
        ("budget.set", {"usd": None, "tokens": 5}, {"microusd": None, "tokens": 5}),
        ("goal.set", {"usd": 5.0}, {"microusd": 5_000_000}),
        ("goal.edited", {"old": {}, "new": {"usd": 4.35}}, {"old": {}, "new": {"microusd": 4_350_000}}),
        ("session.forked", {"usd": 0.5}, {"microusd": 500_000}),
        ("budget.exceeded", {"scope": "session usd", "needed": 5.5}, {"scope": "session usd", "needed": 5_500_000}),
        ("budget.exceeded", {"scope": "tokens", "needed": 9.0}, {"scope": "tokens", "needed": 9.0}),
    ],
)
def test_dollars_of_version_2_become_micro_dollars(
    kind: str, before: dict[str, object], after: dict[str, object]
) -> None:
    old = event(1, kind, v=2, **before)
    assert upcast(old).data == after
    assert old.data == before
