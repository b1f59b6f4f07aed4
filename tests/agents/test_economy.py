"""When an agent is worth keeping, by published prices; and what cold starts would have cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.agents.economy import AgentUse, EconomyReducer, EconomyState, Numbers, cold_cost, decide
from musecode_jupyter.log.events import Event
from musecode_jupyter.models.catalogue import CATALOGUE
from musecode_jupyter.models.prices import Price

STANDARD = CATALOGUE["muse-spark-1.3"].price
CONTRIBUTOR = CATALOGUE["muse-spark-1.3-contributor"].price
COLD = 40_000


def numbers(held: int, price: Price = STANDARD, *, warm: bool = True, requests: float = 8.0) -> Numbers:
    return Numbers(
        held=held, cold=COLD, head=2_000, carried=4_000, kept=12_000, requests=requests, warm=warm, price=price
    )


def break_even(price: Price, *, warm: bool) -> float:
    """The size of a conversation, as a multiple of a cold agent's, from which keeping it costs more than a new one."""
    held = COLD // 4
    while decide(numbers(held, price, warm=warm)).action == "keep":
        held += 200
    return held / COLD


def test_the_published_prices() -> None:
    assert (Price(1.25, 0.15, 4.25), Price(0.10, 0.002, 0.20)) == (STANDARD, CONTRIBUTOR)


@pytest.mark.parametrize(
    ("price", "warm", "least", "most"),
    [
        (STANDARD, True, 1.9, 2.5),
        (STANDARD, False, 1.1, 1.4),
        (CONTRIBUTOR, True, 6.0, 10.0),
        (CONTRIBUTOR, False, 1.0, 1.4),
    ],
)
def test_an_agent_is_kept_up_to_about_twice_what_a_new_one_reads(
    price: Price, warm: bool, least: float, most: float
) -> None:
    """With a cache that has expired much less; where cached tokens are nearly free, much more."""
    assert least < break_even(price, warm=warm) < most


def test_a_cold_start_by_hand() -> None:
    """2,000 tokens of instructions, 38,000 read in 38/12 rounds, then 8 requests of 40,000 cached tokens."""
    rounds = 38_000 / 12_000
    usd = 2_000 * 1.25 + 38_000 * 1.25 + rounds * 21_000 * 0.15 + rounds * 300 * 4.25 + 8 * COLD * 0.15
    assert cold_cost(numbers(1)) == pytest.approx(usd / 1e6)


def test_with_nothing_to_do_it_is_retired() -> None:
    assert decide(numbers(30_000, requests=0)).action == "retire"
    assert decide(numbers(30_000, requests=0), ("keep", "compact")).action == "keep"


def test_what_it_was_decided_from_is_told() -> None:
    given_numbers = numbers(150_000, warm=False)
    decision = decide(given_numbers)
    told = decision.told(given_numbers)
    assert decision.action == "reseed"
    assert told["held"] == 150_000
    assert told["price_cached"] == 0.15
    assert told["usd_keep"] > told["usd_retire"] > told["usd_reseed"]


@given(
    st.integers(0, 400_000), st.integers(0, 400_000), st.integers(0, 60), st.booleans(), st.sampled_from([1, 2, 3, 4])
)
def test_keeping_never_costs_more_than_the_way_that_is_taken(
    held: int, cold: int, requests: int, warm: bool, share: int
) -> None:
    each = replace(
        numbers(held, warm=warm, requests=requests), cold=cold, kept=held // share, carried=held // (2 * share)
    )
    decision = decide(each)
    costs = {name: getattr(decision, name) for name in ("keep", "compact", "reseed", "retire")}
    if requests:
        assert costs[decision.action] <= costs["retire"]
    assert all(cost >= 0 for cost in costs.values())


def test_without_a_price_everybody_is_kept() -> None:
    assert decide(numbers(10**6, Price(0.0, 0.0, 0.0))).action == "keep"


def folded(*events: tuple[str, str, dict[str, object]]) -> EconomyState:
    reducer, state = EconomyReducer(), EconomyReducer().initial()
    for seq, (kind, agent, data) in enumerate(events, 1):
        reducer.apply(state, Event(2, seq, "", 1, 1, agent, 0, (), kind, "", data))
    return state


def test_what_cold_starts_would_have_cost_is_counted_from_the_second_piece_of_work_on() -> None:
    opened = ("session.opened", "", {"price": [1.25, 0.15, 4.25]})
    seeded = ("agent.seeded", "lead", {"instructions": "x" * 3_500, "tools": []})
    seen = ("file.observed", "lead", {"path": "a.py", "size": 7_000})
    again = ("file.observed", "lead", {"path": "a.py", "size": 3_500})
    huge = ("file.observed", "lead", {"path": "big", "size": 10**9})
    work = ("user.message", "user", {"to": "lead"})
    assert folded(opened, seeded, seen, work).counterfactual("lead") == (0, 0.0)
    tokens, usd = folded(opened, seeded, work, seen, again, work).counterfactual("lead")
    assert tokens == 1_000 + 1_000
    assert usd == pytest.approx((2_000 * 1.25 + (1_000 * 0.15 * 1_500 + 1_000 * 300 * 4.25) / 12_000) / 1e6)
    assert folded(opened, seeded, work, huge, work).counterfactual("lead")[0] < 20_000
    assert folded(opened).counterfactual("nobody") == (0, 0.0)


def worked(*reads: int, agent: str = "explorer") -> AgentUse:
    """An agent that was asked once for each of `reads`, and read a new file of so many tokens each time."""
    events: list[tuple[str, str, dict[str, object]]] = [
        ("session.opened", "", {"price": [1.25, 0.15, 4.25]}),
        ("agent.seeded", agent, {"instructions": "x" * 3_500, "tools": []}),
    ]
    for number, tokens in enumerate(reads):
        events += [("agent.woken", agent, {}), ("file.observed", agent, {"path": f"{number}", "size": 3.5 * tokens})]
    return folded(*events).agents[agent]


@pytest.mark.parametrize(
    ("reads", "needed"),
    [
        # Nothing is known yet of what later work needs: it may be all.
        ((), 1_000),
        ((4_000,), 5_000),
        # What it knows is what it is asked about: a new agent would read all that again.
        ((4_000, 0), 5_000),
        ((4_000, 3_000, 1_000, 0, 0), 1_000 + 4_000 - 333),
        # It reads as much as a new agent each time: what it knows spares nothing.
        ((4_000, 4_000, 4_000), 1_000),
        ((4_000, 4_000, 5_000, 3_000), 2_000),
        # It came to know more in a later piece, which spares it reading now.
        ((0, 0, 9_000, 0, 0, 0), 1_000 + 9_000),
    ],
)
def test_a_new_agent_reads_what_work_needs_and_not_all_that_was_ever_read(reads: tuple[int, ...], needed: int) -> None:
    assert worked(*reads).needed(begun=False) == needed
    assert worked(*reads, 0).needed(begun=True) == needed, "work that has only begun tells nothing"


def test_who_is_asked_about_new_things_each_time_is_not_kept_for_all_it_read() -> None:
    """Thirty files of 4,000 tokens, each needed once: what an agent holds of them is no reason to keep it."""
    for reads, action in (([4_000] * 30, "retire"), ([4_000] * 4 + [0] * 3, "keep")):
        use = worked(*reads)
        held = 1_000 + sum(reads)
        spared = Numbers(held, use.needed(False), use.head, use.head, held, 2.0, True, STANDARD)
        assert decide(spared, ("keep", "retire")).action == action


def test_each_question_to_one_that_stands_is_a_piece_of_work() -> None:
    use = worked(4_000, 0, 0)
    assert use.begins == 3
    assert use.cold_tokens == 2 * 5_000


def test_who_takes_the_name_of_another_begins_with_nothing_spared() -> None:
    reducer, state = EconomyReducer(), EconomyState(agents={"explorer": worked(4_000, 0, 0)})
    reducer.apply(state, Event(2, 99, "", 1, 1, "explorer", 0, (), "agent.retired", "", {"why": "", "numbers": {}}))
    assert state.agents["explorer"].needed(begun=False) == 1_000


def test_use_is_counted_by_model_with_reserves_where_the_server_counts_nothing() -> None:
    def asked(model: str) -> tuple[str, str, dict[str, object]]:
        return "model.requested", "lead", {"model": model, "reserved_tokens": 900}

    usage = {"input": 100, "cached": 60, "output": 7}
    state = folded(
        asked("a"),
        ("model.completed", "lead", {"request": 1, "cost_microusd": 500_000, "usage": usage}),
        asked("b"),
        ("model.retried", "lead", {"request": 3, "cost_microusd": 100_000, "tokens": 50}),
        ("model.completed", "lead", {"request": 3, "cost_microusd": 200_000, "usage": None}),
        asked("a"),
        ("model.failed", "lead", {"request": 6, "cost_microusd": 100_000, "tokens": 30}),
    )
    one, other = (state.agents["lead"].models[name] for name in "ab")
    assert (one.input, one.cached, one.output, one.calls, one.estimated) == (130, 60, 7, 1, 0)
    assert (other.input, other.calls, other.estimated) == (950, 1, 1)
    assert (one.microusd, other.microusd) == (600_000, 300_000)
    assert state.open == {}
