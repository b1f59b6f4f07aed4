"""What one event says that a model call came to: the one rule by which all sums of money and tokens are made; pure."""

from __future__ import annotations

from dataclasses import dataclass

from musecode_jupyter.log.events import Event

ENDS = frozenset({"model.completed", "model.failed", "model.abandoned"})
"""Each request ends in one of them."""
PAID = ENDS | {"model.retried"}
"""Kinds that may cost something: an attempt that failed, and the end of a request."""


@dataclass(frozen=True)
class Settled:
    """One attempt or request. `microusd` is money, `estimated` what of it no usage confirmed.

    `input` counts the cached tokens too. Where the server counted none but may charge, `input` has the tokens that were
    reserved. `calls` is 1 for an answer, `failed` for a request that ended without one; an attempt is neither.
    """

    microusd: int = 0
    estimated: int = 0
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
        """Input and output together."""
        return self.input + self.output


def settled(event: Event, reserved_tokens: int = 0) -> Settled:
    """What an event of `PAID` counts for; `reserved_tokens` are those of its request, 0 where that is not known."""
    data = event.data
    microusd = data.get("cost_microusd", 0)
    if event.kind != "model.completed":
        return Settled(microusd, microusd, data.get("tokens", 0), failed=int(event.kind in ENDS))
    usage, seconds = data["usage"], data.get("seconds", 0.0)
    if usage is None:
        return Settled(microusd, microusd, reserved_tokens, calls=1, estimated_calls=1, seconds=seconds)
    return Settled(
        microusd,
        0,
        usage["input"],
        usage["cached"],
        usage["output"],
        usage["reasoning"],
        calls=1,
        seconds=seconds,
    )
