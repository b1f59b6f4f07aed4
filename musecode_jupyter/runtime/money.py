"""Money as the log has it: whole micro-dollars (a millionth of a US dollar), so that sums are exact in any order."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

MICRO: Final = 1_000_000
"""Micro-dollars in a US dollar."""

# Below this a fraction of a dollar is what arithmetic with floats left over, not money: a millionth of a micro-dollar.
_DIGITS: Final = 12


def in_usd(microusd: int) -> float:
    """US dollars, for showing and for users' code; never to be added up again."""
    return microusd / MICRO


def spent_microusd(usd: float) -> int:
    """Micro-dollars of money that is or may be spent: rounded up, so that a sum is never less than the truth."""
    return math.ceil(_exact(usd))


def limit_microusd(usd: float) -> int:
    """Micro-dollars of a limit: rounded down, so that no more is spent than the user allowed."""
    return math.floor(_exact(usd))


def _exact(usd: float) -> Decimal:
    return round(Decimal(repr(usd)), _DIGITS) * MICRO
