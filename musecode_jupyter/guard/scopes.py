"""Budgets: what each scope may use, and the refusal of a step that would go over one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from musecode_jupyter.guard.ledger import LedgerState, Limit, Spent, seconds_between
from musecode_jupyter.runtime.errors import BudgetExceeded
from musecode_jupyter.runtime.money import in_usd

DIMENSIONS = {
    "microusd": "USD",
    "tokens": "tokens",
    "calls": "tool calls",
    "steps": "model calls",
    "hours": "hours",
    "processes": "processes",
    "disk": "bytes on disk",
}
"""What a budget may limit, each with its unit as the user reads it."""


@dataclass(frozen=True)
class Scope:
    """One budget: its name, its limits (None: no limit) and what is used or reserved of it already, in micro-dollars.

    `kind` begins the scope that the error names, and `remedy` says what to do.
    """

    name: str
    limit_microusd: int | None
    used_microusd: int
    limit_tokens: int | None
    used_tokens: int
    kind: str = ""
    remedy: str = "Raise the budget to go on."
    limit_steps: int | None = None
    used_steps: int = 0


Scopes = Callable[[str], list[Scope]]


def check_scopes(scopes: list[Scope], microusd: int, tokens: int) -> None:
    """Raise BudgetExceeded if a model call of `microusd` and `tokens` would go over a limit of any scope."""
    for scope in scopes:
        if scope.limit_microusd is not None and scope.used_microusd + microusd > scope.limit_microusd:
            raise BudgetExceeded(
                f"The next model call could cost {in_usd(microusd):.4f} USD; {in_usd(scope.used_microusd):.4f} of "
                f"{in_usd(scope.limit_microusd):g} USD ({scope.name}) are used or reserved. {scope.remedy}",
                scope=f"{scope.kind}usd",
                needed=scope.used_microusd + microusd,
            )
        if scope.limit_tokens is not None and scope.used_tokens + tokens > scope.limit_tokens:
            raise BudgetExceeded(
                f"The next model call could take {tokens} tokens; {scope.used_tokens} of {scope.limit_tokens} "
                f"({scope.name}) are used or reserved. {scope.remedy}",
                scope=f"{scope.kind}tokens",
                needed=scope.used_tokens + tokens,
            )
        if scope.limit_steps is not None and scope.used_steps >= scope.limit_steps:
            raise BudgetExceeded(
                f"{scope.used_steps} of {scope.limit_steps} model calls ({scope.name}) are used or under way. "
                f"{scope.remedy}",
                scope=f"{scope.kind}steps",
                needed=scope.used_steps + 1,
            )


def named(scope: str) -> str:
    """A scope of the ledger as a message names it."""
    return "this session" if scope == "session" else scope


def scopes_of(ledger: LedgerState, agent: str) -> list[Scope]:
    """The budgets of the session, of `agent` and of the task that it works on, where they have limits."""
    return [_scope(ledger, key, limit) for key, limit in _limits_for(ledger, agent)]


def check_step(ledger: LedgerState, agent: str, now: datetime, disk: int = 0) -> None:
    """Raise BudgetExceeded where no tool call, process, hour or byte is left to `agent` (else: `check_scopes`).

    `disk` are the bytes that the session holds on disk.
    """
    for key, limit in _limits_for(ledger, agent):
        used = used_of(ledger, key, now) | {"disk": disk}
        for name in ("calls", "processes", "hours", "disk"):
            most = getattr(limit, name)
            if most is not None and used[name] >= most:
                raise BudgetExceeded(
                    f"{number(name, used[name])} of {amount(name, most)} ({named(key)}) are used. {_remedy(key)}",
                    scope=f"{key.split()[0]} {name}",
                )


def used_of(ledger: LedgerState, key: str, now: datetime) -> dict[str, float]:
    """What is used or reserved of each dimension of a scope."""
    spent, waiting = _spent(ledger, key), _waiting(ledger, key)
    return {
        "microusd": spent.microusd + sum(ledger.open[seq].microusd for seq in waiting),
        "tokens": spent.tokens + sum(ledger.open[seq].tokens for seq in waiting),
        "calls": spent.tools,
        "steps": spent.calls + spent.failed + len(waiting),
        "hours": _seconds(ledger, key, spent, now) / 3600,
        "processes": spent.processes,
    }


def amount(name: str, value: float) -> str:
    """A limit of a dimension, with its unit."""
    return f"{value / 1e6:g} MB on disk" if name == "disk" else f"{value:g} {DIMENSIONS[name]}"


def number(name: str, value: float) -> str:
    """What is used of a dimension, in the unit of `amount`."""
    return f"{value / 1e6:.3f}" if name == "disk" else f"{value:.3g}"


def _seconds(ledger: LedgerState, key: str, spent: Spent, now: datetime) -> float:
    """Of the session: in which a process has it open; of an agent or a task: in which agents were at work on it."""
    what, _, name = key.partition(" ")
    if what == "session":
        return ledger.seconds(now)
    mine = [
        since
        for agent, since in ledger.working.items()
        if name == (agent if what == "agent" else str(ledger.tasks.get(agent)))
    ]
    return spent.worked + sum(seconds_between(since, now) for since in mine)


def _limits_for(ledger: LedgerState, agent: str) -> list[tuple[str, Limit]]:
    keys = ["session", f"agent {agent}", f"task {ledger.tasks.get(agent, '')}"]
    return [(key, ledger.limits[key]) for key in keys if key in ledger.limits]


def _scope(ledger: LedgerState, key: str, limit: Limit) -> Scope:
    spent, waiting = _spent(ledger, key), _waiting(ledger, key)
    return Scope(
        named(key),
        limit.microusd,
        spent.microusd + sum(ledger.open[seq].microusd for seq in waiting),
        limit.tokens,
        spent.tokens + sum(ledger.open[seq].tokens for seq in waiting),
        kind=f"{key.split()[0]} ",
        remedy=_remedy(key),
        limit_steps=limit.steps,
        used_steps=spent.calls + spent.failed + len(waiting),
    )


def _spent(ledger: LedgerState, key: str) -> Spent:
    what, _, name = key.partition(" ")
    if what == "session":
        return ledger.total
    found = ledger.by_agent.get(name) if what == "agent" else ledger.by_task.get(int(name))
    return found or Spent()


def _waiting(ledger: LedgerState, key: str) -> list[int]:
    what, _, name = key.partition(" ")
    return [
        seq
        for seq, reserve in ledger.open.items()
        if what == "session" or name == (reserve.agent if what == "agent" else str(reserve.task))
    ]


def _remedy(key: str) -> str:
    if key == "session":
        return "`%muse budget` sets what the whole session may use: raise that to go on."
    what, _, name = key.partition(" ")
    return f"`%muse budget` sets what {what} {name} may use (--{what} {name}): raise that to go on."
