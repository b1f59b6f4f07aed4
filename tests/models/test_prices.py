"""The table of prices: dated and complete; what is not in it is asked of a package or refused, never taken for free."""

from __future__ import annotations

import re
import sys

import pytest

from musecode_jupyter.models.catalogue import CATALOGUE, contributor_price, lookup
from musecode_jupyter.models.prices import DATED, PRICES, SOURCE, Price, other_makers_price
from musecode_jupyter.runtime.errors import ConfigurationError


def test_every_known_model_has_its_price_from_the_dated_table() -> None:
    assert {model: info.price for model, info in CATALOGUE.items()} == PRICES
    assert re.fullmatch(r"\d{4}-\d{2}", DATED)
    assert "documentation" in SOURCE
    assert PRICES["muse-spark-1.3"] == Price(1.25, 0.15, 4.25)
    assert contributor_price("muse-spark-1.3") == Price(0.10, 0.002, 0.20)
    assert contributor_price("muse-spark-1.1") is None


def test_models_of_other_makers_have_their_highest_price() -> None:
    pytest.importorskip("genai_prices", reason="the extra `prices` is not installed")
    known = lookup("gpt-4o").price
    assert 0 < known.cached < known.input < known.output
    tiered = other_makers_price("gemini-2.5-pro")
    assert tiered is not None
    assert tiered.input >= 2.5, "the price beyond 200,000 tokens"
    assert lookup("gpt-4o", price_override="1/1/1").price == Price(1, 1, 1)


def test_an_unknown_price_is_refused_with_and_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="MUSECODE_PRICE"):
            lookup("no-such-model-of-anybody")
        monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)
    assert other_makers_price("gpt-4o") is None
