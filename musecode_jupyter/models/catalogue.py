"""The models that are known: ids, tiers, limits and what each can do; their prices are in prices.json."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal, cast

from musecode_jupyter.models.prices import DATED, PRICES, Price, other_makers_price
from musecode_jupyter.models.types import Usage
from musecode_jupyter.runtime.errors import ConfigurationError

LOCAL_MODEL: Final = "qwen2.5-coder-1.5b-instruct-q4_k_m"
DEFAULT_MODEL: Final = "muse-spark-1.3"

Tier = Literal["standard", "contributor", "local"]
Profile = Literal["driver", "guided"]

CACHE_WRITE: Final = 1.25
"""What a token written into the cache costs in input tokens: Anthropic's published factor for five minutes."""

MOST_ANSWER: Final = 16_384
LEAST_CONTEXT: Final = 2_048

_EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh")


@dataclass(frozen=True)
class ModelInfo:
    """What the harness must know of one model.

    `context` and `max_output` are tokens; input and output share the context.
    `efforts` empty means that the accepted values of `reasoning.effort` are not known or that there are none.
    """

    id: str
    price: Price
    tier: Tier
    context: int
    max_output: int
    profile: Profile
    tools: bool
    parallel_calls: bool
    json_schema: bool
    reasoning_items: bool
    pictures: bool
    efforts: tuple[str, ...]

    @property
    def recorded(self) -> dict[str, object]:
        """What of it a session records, since what is decided about conversations follows from it."""
        return {"room": self.room, "price": [self.price.input, self.price.cached, self.price.output]}

    @property
    def answer_tokens(self) -> int:
        """Tokens that an answer to a conversation may have: what the model can, and no more than leaves room."""
        return min(MOST_ANSWER, self.max_output, self.context // 4)

    @property
    def room(self) -> int:
        """Tokens that a prompt may have, so that the answer fits into the context as well."""
        return self.context - self.answer_tokens


def _spark(model: str, tier: Tier, efforts: tuple[str, ...] = _EFFORTS) -> ModelInfo:
    return ModelInfo(
        id=model,
        price=PRICES[model],
        tier=tier,
        context=1_048_576,
        max_output=131_072,
        profile="driver",
        tools=True,
        parallel_calls=True,
        json_schema=True,
        reasoning_items=True,
        pictures=True,
        efforts=efforts,
    )


CATALOGUE: Final[dict[str, ModelInfo]] = {
    info.id: info
    for info in (
        _spark("muse-spark-1.3", "standard", (*_EFFORTS, "max")),
        _spark("muse-spark-1.2", "standard"),
        _spark("muse-spark-1.1", "standard"),
        _spark("muse-spark-1.3-contributor", "contributor"),
        _spark("muse-spark-1.2-contributor", "contributor"),
        ModelInfo(
            id=LOCAL_MODEL,
            price=PRICES[LOCAL_MODEL],
            tier="local",
            context=32_768,
            max_output=4_096,
            profile="guided",
            tools=False,
            parallel_calls=False,
            json_schema=True,
            reasoning_items=False,
            pictures=False,
            efforts=(),
        ),
    )
}


def contributor_price(model: str) -> Price | None:
    """What the contributor tier of `model` costs; None where there is none, as for a local one or another maker's."""
    if tier_of(model) == "contributor":
        return CATALOGUE[model].price if model in CATALOGUE else None
    known = CATALOGUE.get(f"{model}-contributor")
    return None if known is None else known.price


def tier_of(model: str) -> Tier:
    """The tier that a model id selects; the id alone decides it, whatever gateway it is sent through."""
    if "contributor" in model.casefold():
        return "contributor"
    return "local" if model == LOCAL_MODEL else "standard"


def is_other(pinned: str, served: str) -> bool:
    """Whether an answer that says it is of model `served` cannot be one of `pinned`.

    A gateway may put its own name before an id, and a server a date or build behind it. Other makers' servers answer
    with names of files or of versions, which prove nothing; another tier, or another model that is known here, does.
    """
    if not served or served == pinned:
        return False
    if (tier_of(served) == "contributor") != (tier_of(pinned) == "contributor"):
        return True
    name = served.rpartition("/")[2]
    ours = pinned.rpartition("/")[2]
    if name == ours:
        return False
    if name in CATALOGUE:
        return True
    return (
        ours in CATALOGUE
        and CATALOGUE[ours].tier != "local"
        and not name.startswith((f"{ours}-", f"{ours}@", f"{ours}:"))
    )


def lookup(
    model: str,
    *,
    price_override: str | None = None,
    profile_override: str | None = None,
    pictures_override: str | None = None,
    context_override: str | None = None,
) -> ModelInfo:
    """What is known of `model`, with the user's price, profile, context and word on pictures in place of ours if given.

    Parameters
    ----------
    price_override
        `"input/cached/output"` in US dollars per million tokens (the value of `MUSECODE_PRICE`).
    profile_override
        `"driver"` or `"guided"`.
    pictures_override
        `"yes"` or `"no"` (the value of `MUSECODE_PICTURES`): whether the model takes pictures.
    context_override
        Tokens of context (the value of `MUSECODE_CONTEXT`), such as a server of the user's own was started with.

    Raises
    ------
    ConfigurationError
        For an unknown price that is not given, and an override that cannot be read. Whether a model of the contributor
        tier may be used is the gate's to say.
    """
    if not model or model != model.strip():
        raise ConfigurationError("the model id is empty or has spaces around it: set MUSECODE_MODEL to an exact id")
    price = parse_price(price_override) if price_override else None
    known = CATALOGUE.get(model)
    if known is None and price is None:
        price = other_makers_price(model)
    if known is None and price is None:
        raise ConfigurationError(
            f"the price of model {model!r} is unknown (table of {DATED}; the extra `prices` knows other makers'): set "
            'MUSECODE_PRICE="in/cached/out" in USD per million tokens ("0/0/0" for a server of your own)'
        )
    info = known or ModelInfo(
        id=model,
        price=Price(0.0, 0.0, 0.0),
        tier=tier_of(model),
        context=128_000,
        max_output=16_384,
        profile="driver",
        tools=True,
        parallel_calls=True,
        json_schema=True,
        reasoning_items=True,
        pictures=False,
        efforts=(),
    )
    if price is not None:
        info = replace(info, price=price)
    if profile_override:
        if profile_override not in ("driver", "guided"):
            raise ConfigurationError(f"unknown profile {profile_override!r}: use driver or guided")
        info = replace(info, profile=cast(Profile, profile_override))
    if pictures_override:
        if pictures_override not in ("yes", "no"):
            raise ConfigurationError(f"MUSECODE_PICTURES={pictures_override!r} cannot be read: use yes or no")
        info = replace(info, pictures=pictures_override == "yes")
    if context_override:
        digits = context_override.replace("_", "")
        if not (digits.isascii() and digits.isdecimal() and int(digits) >= LEAST_CONTEXT):
            raise ConfigurationError(
                f"MUSECODE_CONTEXT={context_override!r} cannot be read: give tokens, {LEAST_CONTEXT} or more"
            )
        info = replace(info, context=int(digits))
    return info


def parse_price(text: str) -> Price:
    """Read `"input/cached/output"`, US dollars per million tokens.

    Raises
    ------
    ConfigurationError
        If the text is not three finite numbers of at least zero.
    """
    try:
        numbers = [float(part) for part in text.split("/")]
    except ValueError:
        numbers = []
    if len(numbers) != 3 or not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ConfigurationError(
            f'MUSECODE_PRICE={text!r} cannot be read: write "in/cached/out" in USD per million tokens, '
            'like "1.25/0.15/4.25"'
        )
    return Price(*numbers)


def cost(price: Price, usage: Usage) -> int:
    """Micro-dollars for one call, rounded up; cached and written tokens are part of the input, reasoning of the output.

    A price in dollars per million tokens is one in micro-dollars per token. It is taken as it is written in decimals.
    """
    into, cached, out = (Fraction(repr(each)) for each in (price.input, price.cached, price.output))
    fresh = max(0, usage.input - usage.cached - usage.written)
    written = usage.written * Fraction(CACHE_WRITE)
    return math.ceil((fresh + written) * into + usage.cached * cached + usage.output * out)
