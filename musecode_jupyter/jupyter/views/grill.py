"""The attack view: findings as they come, what each angle came to, and what the user says from the buttons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from musecode_jupyter.jupyter.views.grill_html import grill_html, grill_line
from musecode_jupyter.jupyter.views.whole import WholeView

WORDS = ("accept", "reject", "answer")


def grill_action(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a page says to an attack, or None if it is not well formed."""
    kind, number, word, text = (message.get(name) for name in ("type", "number", "word", "text"))
    if kind in {"stop", "resume"}:
        return {"type": kind}
    if kind == "settle" and type(number) is int and word in WORDS and isinstance(text, str):
        return {"type": "settle", "number": number, "word": word, "text": text}
    return None


class GrillView(WholeView):
    """A live attack, as `grill_shown` says it."""

    bundle: ClassVar[str] = "grill"
    what: ClassVar[str] = "grill"

    def action(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        return grill_action(message)

    def static_html(self) -> str:
        return grill_html(self._shown)

    def static_text(self) -> str:
        return grill_line(self._shown)
