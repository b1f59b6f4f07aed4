"""What tokens cost: the table in prices.json, with its date and source, and a package that knows other makers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens; `cached` is for input that the server had cached."""

    input: float
    cached: float
    output: float


_TABLE: Final[dict[str, Any]] = json.loads(
    resources.files("musecode_jupyter.models").joinpath("prices.json").read_text(encoding="utf-8")
)

PRICES: Final = {model: Price(*map(float, numbers)) for model, numbers in _TABLE["prices"].items()}
"""By model id."""
DATED: Final[str] = _TABLE["dated"]
"""The month as of which the table has what its source says."""
SOURCE: Final[str] = _TABLE["source"]


def other_makers_price(model: str) -> Price | None:
    """What the package genai-prices says of `model`, from the table that it brings; no network is asked.

    None where it is not installed (the extra `prices`), does not know the model, or names no price of input or output.
    Where a price rises with the length of the prompt, it is the highest one: what is told of costs is never too low.
    """
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return None
    try:
        _, known = get_snapshot().find_provider_model(model, None, None, None)
    except LookupError:
        return None
    prices = known.get_prices(datetime.now(UTC))
    into, out = _highest(prices.input_mtok), _highest(prices.output_mtok)
    if into is None or out is None:
        return None
    cached = _highest(prices.cache_read_mtok)
    return Price(into, into if cached is None else cached, out)


def _highest(price: Any) -> float | None:
    if price is None:
        return None
    tiers = [each.price for each in getattr(price, "tiers", ())]
    return float(max([getattr(price, "base", price), *tiers]))
