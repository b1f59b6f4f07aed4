"""Token counts as servers report them, checked before anything is billed by them."""

from __future__ import annotations

from typing import TypeGuard

from musecode_jupyter.models.types import Usage

# Far beyond any context; more is a fault of the server, and would overflow what is computed from it.
_MOST = 10**12


def usage_of(given: object, made: object, given_details: object, made_details: object) -> Usage | None:
    """Tokens given to and made by a model, with the cached and reasoning parts where their details say so.

    None if either total is missing or no count, so that the estimate made before the call is kept.
    """
    if not (is_count(given) and is_count(made)):
        return None
    cached = given_details.get("cached_tokens") if isinstance(given_details, dict) else 0
    reasoning = made_details.get("reasoning_tokens") if isinstance(made_details, dict) else 0
    return Usage(
        input=given,
        output=made,
        cached=min(cached, given) if is_count(cached) else 0,
        reasoning=min(reasoning, made) if is_count(reasoning) else 0,
    )


def is_count(value: object) -> TypeGuard[int]:
    """Whether `value` can be a number of tokens."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
