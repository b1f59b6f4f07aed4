"""Limits of a whole session: what its goals and questions use together, beside the limits of each goal."""

from __future__ import annotations

import pytest
from fixtures.model_scripts import Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, end, only, session_on, start

from musecode_jupyter.runtime.errors import BudgetExceeded, UsageProblem
from musecode_jupyter.session import Session
from musecode_jupyter.session.budget import budget_text, clear_budget, set_budget
from musecode_jupyter.session.replay import prove


def limit(session: Session, **limits: float | int) -> str:
    session.call(lambda core: set_budget(core, **limits))  # type: ignore[arg-type]
    return session.read(budget_text)


def test_a_goal_stops_at_the_limit_of_the_session_and_goes_on_with_a_higher_one(repo: Repo) -> None:
    with ModelServer(Steps([EDIT, DONE])) as server:
        with session_on(server.base_url, repo.root) as session:
            assert session.read(budget_text) == (
                "used or reserved in this session: 0.0000 USD, no limit; 0 tokens, no limit"
            )
            assert limit(session, tokens=1) == "used or reserved in this session: 0.0000 USD, no limit; 0 of 1 tokens"
            handle = start(session, tokens=10_000_000)
            result = end(handle)
            assert result.status == "budget"
            assert "(this session) are used or reserved. `%muse budget` sets what the whole session may use" in (
                result.why
            )
            # The goal's own limit is not what stopped it.
            assert result.more == ""
            assert server.requests == []
        with session_on(server.base_url, repo.root, resume="last") as session:
            assert "0 of 1 tokens" in session.read(budget_text)
            assert limit(session, usd=5.0, tokens=5_000_000).endswith("0.0000 of 5 USD; 0 of 5000000 tokens")
            # What is not given stays.
            assert limit(session, usd=6.0).endswith("of 6 USD; 0 of 5000000 tokens")
            handle = session.newest_goal()
            handle.resume()
            assert end(handle).met
            with pytest.raises(UsageProblem, match=r"tokens are used or reserved already: with a limit of 2 nothing"):
                limit(session, tokens=2)
            session.call(clear_budget)
            assert session.read(budget_text).count("no limit") == 2
            set_ = [event.data for event in only(session.events(), "budget.set")]
            assert [(data["scope"], data["microusd"], data["tokens"]) for data in set_] == [
                ("session", None, 1),
                ("session", 5_000_000, 5_000_000),
                ("session", 6_000_000, 5_000_000),
                ("session", None, None),
            ]
    assert prove(session.folder).problem is None


def test_an_agent_has_a_budget_of_its_own(repo: Repo) -> None:
    with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
        limit(session, calls=1, agent="lead")  # type: ignore[arg-type]
        handle = start(session)
        result = end(handle)
        assert (result.status, len(server.requests)) == ("budget", 1)
        assert "1 of 1 tool calls (agent lead) are used. `%muse budget` sets what agent lead may use" in result.why
        told = limit(session, steps=50, calls=9, agent="lead")  # type: ignore[arg-type]
        assert told.splitlines()[1].endswith("1 of 9 tool calls; 1 of 50 model calls")
        handle.resume()
        assert end(handle).met
    assert prove(session.folder).problem is None


def test_a_day_has_a_budget_over_all_sessions(repo: Repo) -> None:
    """What another session spent is found in its log; its limit holds in every session that is opened afterwards."""
    with ModelServer(Steps([EDIT, DONE])) as server:
        with session_on(server.base_url, repo.root) as one:
            assert end(start(one)).met
            spent, tokens = one.ledger.total.microusd, one.ledger.total.tokens
            assert limit(one, usd=5.0, day=True).splitlines()[1] == (
                f"all sessions today: {spent / 1e6:.4f} of 5 USD; {tokens} tokens, no limit"
            )
        asked = len(server.requests)
        with session_on(server.base_url, repo.root) as other:
            other.call(lambda core: core.day.refresh())
            assert other.read(lambda core: core.day.used()) == (spent, tokens)
            limit(other, tokens=tokens + 1, day=True)
            with pytest.raises(BudgetExceeded, match="all sessions today"):
                other.call(lambda core: core.ask("What did you do?"))
            assert len(server.requests) == asked
            with pytest.raises(UsageProblem, match="A day is limited in money and tokens"):
                limit(other, hours=1.0, day=True)
            other.call(clear_budget)
    for session in (one, other):
        assert prove(session.folder).problem is None


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({}, "What is the limit"),
        ({"usd": 0.0}, "0 USD is none"),
        ({"tokens": -1}, "-1 tokens is"),
        ({"tokens": 5, "agent": "nobody"}, "There is no agent 'nobody'"),
        ({"tokens": 5, "task": 7}, "There is no task 7"),
        ({"disk": 1, "agent": "lead"}, "--disk limits the whole session"),
        ({"disk": 1}, "bytes on disk are used or reserved already"),
    ],
)
def test_what_is_no_limit_is_said_in_a_line(repo: Repo, limits: dict[str, float], says: str) -> None:
    with session_on("http://127.0.0.1:9/v1", repo.root) as session:
        with pytest.raises(UsageProblem, match=says):
            limit(session, **limits)
        assert only(session.events(), "budget.set") == []
