"""Spells out the characters by which a text can look like another one, or give a terminal orders; pure."""

from __future__ import annotations

from typing import Any

# Control, zero-width and direction characters: with them a text can look like another one.
_HIDDEN = (
    *range(9),
    *range(11, 32),
    *range(127, 160),
    *(0xAD, 0x61C, 0xFEFF),
    *range(0x200B, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
)
_SPELT = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _HIDDEN}


def visible_text(text: str) -> str:
    """A text with the characters that hide or reorder text spelt out; tab and newline stay."""
    return text.translate(_SPELT)


def visible(value: Any) -> Any:
    """The same for every string in a JSON value, keys included."""
    if isinstance(value, str):
        return visible_text(value)
    if isinstance(value, list | tuple):
        return [visible(item) for item in value]
    if isinstance(value, dict):
        return {visible(name): visible(item) for name, item in value.items()}
    return value
