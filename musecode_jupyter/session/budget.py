"""Limits of a whole session, beside those of its goals: set by the user, told with what is used of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from musecode_jupyter.runtime.errors import UsageProblem

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


async def set_budget(core: SessionCore, usd: float | None = None, tokens: int | None = None) -> None:
    """Limit what all model calls of the session may cost together, in USD, and their tokens; None leaves a limit.

    Raises UsageProblem if nothing is given, or a limit is none or used up already.
    """
    ledger = core.ledger
    used = {"usd": ledger.total.usd + ledger.reserved_usd, "tokens": ledger.total.tokens + ledger.reserved_tokens}
    given = {name: value for name, value in (("usd", usd), ("tokens", tokens)) if value is not None}
    if not given:
        raise UsageProblem("What is the limit? Give money, tokens or both.")
    for name, value in given.items():
        if not 0 < value < float("inf"):
            raise UsageProblem(f"A limit of {value:g} {_UNITS[name]} is none: it must be more than 0.")
        if value <= used[name]:
            raise UsageProblem(
                f"{used[name]:.6g} {_UNITS[name]} are used or reserved already: with a limit of {value:g} nothing more "
                "could be asked. Give more."
            )
    limits = {"usd": ledger.limit_usd, "tokens": ledger.limit_tokens} | given
    await core.log.append("budget.set", limits, agent="user")


async def clear_budget(core: SessionCore) -> None:
    """Take the limits of the session away; those of its goals stay."""
    await core.log.append("budget.set", {"usd": None, "tokens": None}, agent="user")


def budget_text(core: SessionCore) -> str:
    """What is used of the limits of the session, in a line."""
    ledger = core.ledger
    usd, tokens = ledger.total.usd + ledger.reserved_usd, ledger.total.tokens + ledger.reserved_tokens
    money = f"{usd:.4f} USD, no limit" if ledger.limit_usd is None else f"{usd:.4f} of {ledger.limit_usd:g} USD"
    count = f"{tokens} tokens, no limit" if ledger.limit_tokens is None else f"{tokens} of {ledger.limit_tokens} tokens"
    return f"used or reserved in this session: {money}; {count}"


_UNITS = {"usd": "USD", "tokens": "tokens"}
