"""The limits of a goal: which may be set, what is used of each, when they end it, and what gives it more."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from musecode_jupyter.runtime.errors import BudgetExceeded, UsageProblem
from musecode_jupyter.runtime.money import in_usd, limit_microusd
from musecode_jupyter.skills.goal_state import GoalRecord

OPTIONS = {
    "usd": "--budget",
    "tokens": "--tokens",
    "calls": "--calls",
    "hours": "--hours",
    "steps": "--steps",
}
"""The option that sets each limit, the same in a notebook and on the command line."""


@dataclass(frozen=True)
class Limits:
    """USD, tokens, tool calls, hours in which the goal runs, model calls (`steps`). None: none is given."""

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    hours: float | None = None
    steps: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Those that are given, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def recorded(self) -> dict[str, Any]:
        """All of them as events record them, with money in micro-dollars."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        usd = found.pop("usd")
        return {"microusd": None if usd is None else limit_microusd(usd), **found}

    def check(self) -> None:
        """Raise UsageProblem unless every limit is a number above 0."""
        for name, limit in self.given.items():
            if not (math.isfinite(limit) and limit > 0):
                raise UsageProblem(f"{OPTIONS[name]} {limit:g} is no limit: give a number above 0, or leave it out.")

    def over(self, older: Limits) -> Limits:
        """These limits, and those of `older` where none is given here."""
        return Limits(**older.given | self.given)


def limits_of(record: GoalRecord) -> Limits:
    """The limits that the goal has now."""
    return Limits(record.limit_usd, record.limit_tokens, record.limit_calls, record.limit_hours, record.limit_steps)


def used_of(record: GoalRecord, now: datetime) -> Limits:
    """What is used of each so far."""
    return Limits(
        record.used_usd, record.used_tokens, record.tool_calls, record.seconds(now) / 3600, record.model_calls
    )


def share_of_work(record: GoalRecord, reserve: float) -> float:
    """The share of each limit that may be used in the goal's present phase: the reserve is for the verification."""
    return 1.0 - reserve if record.phase in {"preparing", "working"} else 1.0


def check_limits(record: GoalRecord, now: datetime, share: float = 1.0) -> None:
    """Raise BudgetExceeded if a limit of the goal other than money and tokens is used up (the gate holds those).

    `share` is how much of each may be used.
    """
    limits, used = limits_of(record).given, used_of(record, now).given
    for name in ("steps", "calls", "hours"):
        if name in limits and used[name] >= share * limits[name]:
            verb = "are over" if name == "hours" else "are used"
            kept = f"; {1 - share:.0%} are kept for the last verification" if share < 1 else ""
            raise BudgetExceeded(f"{_share(name, used[name], limits[name])} {verb}{kept}.", scope=name)


def check_room(record: GoalRecord, new: Limits, now: datetime) -> None:
    """Raise UsageProblem if a limit in `new` is used up already."""
    used = used_of(record, now).given
    for name, limit in new.given.items():
        if used[name] >= limit:
            raise UsageProblem(
                f"{OPTIONS[name]} {limit:g} is used up already ({_share(name, used[name], limit)}): give more."
            )


def more(record: GoalRecord, reserve: float = 0.0) -> str:
    """The option with a value that lets a goal go on which a budget stopped, as one writes it; empty otherwise."""
    limits = limits_of(record).given
    if record.status != "budget" or record.exceeded not in limits:
        return ""
    name = record.exceeded
    limit = limits[name]
    used = used_of(record, datetime.min).given[name]
    needed = record.needed or 0.0
    least = max(2 * limit, used + limit, (in_usd(math.ceil(needed)) if name == "usd" else needed) / (1 - reserve))
    return f"{OPTIONS[name]} {_rounded_up(least, whole=isinstance(limit, int))}"


def duration(seconds: float) -> str:
    """A time as a person says it: 0.5 s, 12 s, 5 min, 3.5 h."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _share(name: str, used: float, limit: float) -> str:
    if name == "hours":
        return f"{duration(used * 3600)} of {duration(limit * 3600)}"
    if name == "usd":
        return f"{used:.4f} of {limit:g} USD"
    what = {"tokens": "tokens", "calls": "tool calls", "steps": "model calls"}[name]
    return f"{used:.0f} of {limit:.0f} {what}"


def _rounded_up(value: float, *, whole: bool) -> str:
    """`value` with two significant digits, never less than it is."""
    digits = 1 - math.floor(math.log10(value))
    if whole:
        digits = min(digits, 0)
    rounded = round(value, digits)
    if rounded < value:
        rounded = round(rounded + 10.0**-digits, digits)
    return f"{rounded:.0f}" if whole else f"{rounded:.{max(digits, 0)}f}"
