"""How long a failed model request is tried again: every number of the one retry owner, the gate, with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ModelError


@dataclass(frozen=True)
class Patience:
    """Limits for one class of failures of one request.

    `attempts` in all; no attempt starts later than `seconds` after the first failure of the class. Waits double from
    `FIRST_S` up to `cap` seconds, unless the server names one.
    """

    attempts: int
    seconds: float
    cap: float


FIRST_S: Final = 0.5
"""The first wait, as the API's documentation asks; also the least, whatever a server says."""

# A closed port or an unknown name rarely mends itself while somebody waits, and fails within milliseconds; an address
# that swallows packets takes the transport's 5 s an attempt. So a dead endpoint is said to be dead after 15 s at most.
UNREACHABLE: Final = Patience(attempts=8, seconds=10.0, cap=4.0)

# Nothing is wrong with the request, nothing is charged, and it passes: providers are known to answer 529 for minutes.
# Half an hour, so that a run over night survives a bad spell, and one that does not pass ends well before the morning.
BUSY: Final = Patience(attempts=50, seconds=1800.0, cap=30.0)

# Faults on the server's side, and pages of a gateway: a deployment takes a minute or two.
FAULTY: Final = Patience(attempts=8, seconds=300.0, cap=30.0)

# Each attempt may be charged for, and a stall takes two minutes before it is one.
CUT: Final = Patience(attempts=5, seconds=900.0, cap=8.0)

# A server that does not keep to its dialect learns nothing by waiting; once is chance.
GARBLED: Final = Patience(attempts=3, seconds=300.0, cap=2.0)

_CLASSES: Final = {
    "connect": UNREACHABLE,
    "rate_limited": BUSY,
    "overloaded": BUSY,
    "stream_cut": CUT,
    "timeout": CUT,
    "protocol": GARBLED,
}


@dataclass
class Failures:
    """What has gone wrong so far with one request: how often, and since when, by class."""

    effects: Effects
    _counts: dict[Patience, int] = field(default_factory=dict)
    _since: dict[Patience, float] = field(default_factory=dict)

    def wait(self, error: ModelError) -> float | None:
        """Seconds to wait before the next attempt, or None if `error` is the last word."""
        if not error.retryable:
            return None
        patience = _CLASSES.get(error.kind, FAULTY)
        if error.may_cost and patience in (BUSY, FAULTY):
            # It had begun to answer, or a gateway had handed the request on: as dear as one that was cut.
            patience = CUT
        now = self.effects.monotonic()
        count = self._counts[patience] = self._counts.get(patience, 0) + 1
        since = self._since.setdefault(patience, now)
        if error.retry_after is not None:
            wait = max(FIRST_S, error.retry_after)
        else:
            # Half to one and a half, so that agents which failed together do not come back together.
            jitter = 0.5 + int(self.effects.token(2), 16) / 65_536
            wait = min(FIRST_S * 2.0 ** (count - 1), patience.cap) * jitter
        if count >= patience.attempts or now - since + wait > patience.seconds:
            return None
        return wait
