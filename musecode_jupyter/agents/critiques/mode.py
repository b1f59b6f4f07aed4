"""How much of a review a landing gets, as the user chose it."""

from __future__ import annotations

from typing import Literal

from musecode_jupyter.runtime.errors import ConfigurationError

ReviewMode = Literal["off", "mechanical", "full"]
MODES: tuple[ReviewMode, ...] = ("off", "mechanical", "full")


def parse_review(text: str | None, profile: str) -> ReviewMode:
    """The mode called `text`, by default as much as a model of this profile can do.

    A `guided` model reviews nothing: only what is proven without one stops its work. ConfigurationError lists the modes
    that there are.
    """
    for mode in MODES:
        if mode == (text or "full"):
            return "mechanical" if mode == "full" and profile == "guided" else mode
    raise ConfigurationError(f"Unknown review {text!r}: MUSECODE_REVIEW is one of {', '.join(MODES)}.")
