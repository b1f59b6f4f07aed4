"""One rule for what a call came to: the ledger, the day, a goal, `%muse cost` and the header agree with the journal."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fixtures.written_log import START, Entry, completed, requested, write_log
from hypothesis import given, settings
from hypothesis import strategies as st

from musecode_jupyter.guard.ledger import LedgerReducer, LedgerState, Spent
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import SCHEMA_VERSION, Event
from musecode_jupyter.log.fold import Fold
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.session.cost import CostReport, report
from musecode_jupyter.session.day import spent_on
from musecode_jupyter.session.summary import summarise
from musecode_jupyter.session.totals import Totals

AGENTS = ("lead", "worker-1", "reviewer-1")
MODELS = ("muse-spark-1.3", "muse-spark-1.3-contributor")
USAGES = st.none() | st.builds(
    lambda read, cached, out: {"input": read, "cached": min(read, cached), "output": out, "reasoning": 0},
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "agent": st.sampled_from(AGENTS),
            "model": st.sampled_from(MODELS),
            "reserve": st.integers(0, 10**7),
            "cost": st.integers(0, 10**7),
            "usage": USAGES,
            "attempts": st.lists(st.integers(0, 10**6), max_size=2),
            "end": st.sampled_from(["model.completed", "model.failed", "model.abandoned", ""]),
            "waits": st.integers(0, 3),
            "hours": st.sampled_from([0.0, 0.001, 9.0]),
        }
    ),
    max_size=12,
)


def ended(request: int, call: dict[str, Any]) -> dict[str, Any]:
    if call["end"] == "model.completed":
        given = None if call["usage"] is None else {**call["usage"], "written": 0}
        return completed(request, text="x", usage=given, cost_microusd=call["cost"], estimated=given is None)
    spent = {"request": request, "cost_microusd": call["cost"], "tokens": call["reserve"] // 7}
    if call["end"] == "model.abandoned":
        return {**spent, "why": "cut off"}
    return {**spent, "error_kind": "server", "error": "no", "seconds": 1.0, "attempts": 1}


def entries_of(calls: list[dict[str, Any]]) -> list[Entry]:
    """The calls as events, up to four of them under way at once."""
    made = [
        Entry("agent.created", {"role": "lead", "profile": "driver", "model": MODELS[0]}, agent=name) for name in AGENTS
    ]
    waiting: list[tuple[int, int, dict[str, Any]]] = []

    def end(seq: int, call: dict[str, Any]) -> None:
        if call["end"]:
            made.append(Entry(call["end"], ended(seq, call), agent=call["agent"], after=3600 * call["hours"]))

    for call in calls:
        asked = requested(model=call["model"], reserved_microusd=call["reserve"], reserved_tokens=call["reserve"] // 7)
        made.append(Entry("model.requested", asked, agent=call["agent"]))
        seq = len(made)
        for number, cost in enumerate(call["attempts"], 1):
            failed = {"request": seq, "attempt": number, "wait_s": 0.0, "error_kind": "server", "error": "no"}
            made.append(Entry("model.retried", {**failed, "cost_microusd": cost, "tokens": cost}, agent=call["agent"]))
        waiting.append((call["waits"], seq, call))
        for each in [each for each in waiting if each[0] <= 0]:
            end(*each[1:])
        waiting = [(left - 1, at, of) for left, at, of in waiting if left > 0]
    for each in waiting:
        end(*each[1:])
    return made


def events_of(calls: list[dict[str, Any]]) -> list[Event]:
    """The same in memory, as a reader has them."""
    now, made = START, []
    for seq, entry in enumerate(entries_of(calls), 1):
        now += timedelta(seconds=entry.after)
        assert not callable(entry.data)
        data = KINDS[entry.kind].model_validate(dict(entry.data)).model_dump()
        made.append(Event(SCHEMA_VERSION, seq, now.isoformat(), 1, seq, entry.agent, 0, (), entry.kind, "", data))
    return made


@settings(max_examples=60, deadline=None)
@given(CALLS)
def test_every_sum_of_a_random_log_is_that_of_its_events_to_the_micro_dollar(calls: list[dict[str, Any]]) -> None:
    events = events_of(calls)
    spent: Counter[str] = Counter()
    for event in events:
        if event.kind.startswith("model.") and "cost_microusd" in event.data:
            spent[event.agent] += event.data["cost_microusd"]
    found: list[CostReport] = []
    ledgers: list[LedgerState] = []
    headers: list[dict[str, Any]] = []
    # Three times: what is found is a function of the log.
    for _ in range(3):
        fold, header = Fold([LedgerReducer()]), Totals()
        for event in events:
            fold.apply(event)
            header.add(summarise(event))
        ledger = fold.state("ledger")
        assert isinstance(ledger, LedgerState)
        ledgers.append(ledger)
        found.append(report(events))
        headers.append(header.header())
    assert ledgers[0] == ledgers[1] == ledgers[2]
    assert found[0] == found[1] == found[2]
    assert headers[0] == headers[1] == headers[2]
    ledger, costs = ledgers[0], found[0]
    assert costs.total.microusd == ledger.total.microusd == spent.total()
    assert headers[0]["usd"] == spent.total() / 1e6
    assert sum(each.microusd for each in ledger.by_day.values()) == spent.total()
    for name, mine in ledger.by_agent.items():
        one = costs.agents[name]
        for each in ("microusd", "reserved", "calls", "failed", "input", "cached", "output"):
            assert getattr(one, each) == getattr(mine, each), each
        assert one.microusd == spent[name]
    assert sum(each.microusd for each in costs.tiers.values()) == spent.total()


@settings(max_examples=8, deadline=None)
@given(CALLS)
def test_a_day_reads_the_same_off_the_end_of_a_journal(calls: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        write_log(path, entries_of(calls))
        fold = Fold([LedgerReducer()])
        asked_on: dict[int, str] = {}
        for event in EventLog.read(path).events():
            asked_on[event.seq] = event.ts[:10]
            fold.apply(event)
        ledger = fold.state("ledger")
        assert isinstance(ledger, LedgerState)
        for day in {f"{START + timedelta(days=n):%Y-%m-%d}" for n in range(6)}:
            mine = ledger.by_day.get(day, Spent())
            # What is under way counts with its reserve, on the day that is looked at from.
            waiting = [reserve for seq, reserve in ledger.open.items() if asked_on[seq] >= day]
            assert spent_on(path, day) == (
                mine.microusd + sum(each.microusd for each in waiting),
                mine.tokens + sum(each.tokens for each in waiting),
            )
