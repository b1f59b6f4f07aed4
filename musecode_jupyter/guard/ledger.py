"""What has been spent and reserved, folded from the log: tokens, money and calls, in total and per agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, Field

from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice
from musecode_jupyter.runtime.errors import BudgetExceeded


class Spent(Slice):
    """Money in USD, tokens as the server counted them (`estimated_calls` had no usage), calls that were settled.

    Where the server counted none, but may charge, `usd` and `input` hold the reserve: after a missing usage, and after
    an attempt or request that broke off.
    """

    usd: float = 0.0
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    calls: int = 0
    failed: int = 0
    estimated_calls: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input + self.output


class Reserve(BaseModel):
    """Worst case of a request that is under way."""

    agent: str
    usd: float
    tokens: int
    view: int | None


class LedgerState(BaseModel):
    """`open` by seq of model.requested."""

    total: Spent = Field(default_factory=Spent)
    by_agent: dict[str, Spent] = Field(default_factory=dict)
    open: dict[int, Reserve] = Field(default_factory=dict)
    limit_usd: float | None = None
    limit_tokens: int | None = None

    @property
    def reserved_usd(self) -> float:
        """Sum of the open reserves in USD."""
        return sum(reserve.usd for reserve in self.open.values())

    @property
    def reserved_tokens(self) -> int:
        """Sum of the open reserves in tokens."""
        return sum(reserve.tokens for reserve in self.open.values())


class LedgerReducer:
    """Folds model.* and budget.* events."""

    name = "ledger"
    kinds = frozenset(
        {
            *("model.requested", "model.retried", "model.completed", "model.failed", "model.abandoned"),
            *("session.forked", "budget.set"),
        }
    )

    def initial(self) -> LedgerState:
        return LedgerState()

    def apply(self, state: LedgerState, event: Event) -> None:
        data = event.data
        if event.kind == "model.requested":
            state.open[event.seq] = Reserve(
                agent=event.agent, usd=data["reserved_usd"], tokens=data["reserved_tokens"], view=data["view"]
            )
        elif event.kind == "model.retried":
            for spent in (state.total, state.by_agent.setdefault(event.agent, Spent())):
                _estimate(spent, event)
        elif event.kind in {"model.completed", "model.failed", "model.abandoned"}:
            reserve = state.open.pop(data["request"], None)
            for spent in (state.total, state.by_agent.setdefault(event.agent, Spent())):
                _settle(spent, event, reserve)
        elif event.kind == "session.forked":
            # They are settled in the session that sent them: counted here too, money would be spent twice.
            for reserve in state.open.values():
                reserve.usd, reserve.tokens = 0.0, 0
        elif event.kind == "budget.set":
            state.limit_usd, state.limit_tokens = data["usd"], data["tokens"]


def _settle(spent: Spent, event: Event, reserve: Reserve | None) -> None:
    data = event.data
    if event.kind == "model.completed":
        spent.usd += data["cost_usd"]
        spent.calls += 1
        spent.seconds += data["seconds"]
        usage = data["usage"]
        if usage is None:
            spent.estimated_calls += 1
            spent.input += reserve.tokens if reserve else 0
        else:
            spent.input += usage["input"]
            spent.cached += usage["cached"]
            spent.output += usage["output"]
            spent.reasoning += usage["reasoning"]
    else:
        spent.failed += 1
        _estimate(spent, event)


def _estimate(spent: Spent, event: Event) -> None:
    """Count what an attempt or request without an end may have cost; older events say no tokens."""
    spent.usd += event.data.get("cost_usd", 0.0)
    spent.input += event.data.get("tokens", 0)


@dataclass(frozen=True)
class Scope:
    """One budget: its name, its limits (None: no limit) and what is used or reserved of it already.

    `kind` begins the scope that the error names, and `remedy` says what to do.
    """

    name: str
    limit_usd: float | None
    used_usd: float
    limit_tokens: int | None
    used_tokens: int
    kind: str = ""
    remedy: str = "Raise the budget to go on."


Scopes = Callable[[str], list[Scope]]


def check_scopes(scopes: list[Scope], usd: float, tokens: int) -> None:
    """Raise BudgetExceeded if `usd` or `tokens` more would go over a limit of any scope."""
    for scope in scopes:
        if scope.limit_usd is not None and scope.used_usd + usd > scope.limit_usd:
            raise BudgetExceeded(
                f"The next model call could cost {usd:.4f} USD; {scope.used_usd:.4f} of {scope.limit_usd:g} USD "
                f"({scope.name}) are used or reserved. {scope.remedy}",
                scope=f"{scope.kind}usd",
                needed=scope.used_usd + usd,
            )
        if scope.limit_tokens is not None and scope.used_tokens + tokens > scope.limit_tokens:
            raise BudgetExceeded(
                f"The next model call could take {tokens} tokens; {scope.used_tokens} of {scope.limit_tokens} "
                f"({scope.name}) are used or reserved. {scope.remedy}",
                scope=f"{scope.kind}tokens",
                needed=scope.used_tokens + tokens,
            )
