"""The plan view: a plan as it is written and stands, and what the user says to it from the buttons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from musecode_jupyter.jupyter.views.plan_html import plan_html, plan_line
from musecode_jupyter.jupyter.views.whole import WholeView


def plan_action(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a page says to a plan, or None if it is not well formed."""
    kind, digest, text = message.get("type"), message.get("digest"), message.get("text")
    if kind == "approve" and isinstance(digest, str) and digest:
        return {"type": "approve", "digest": digest}
    if kind == "edit" and isinstance(text, str):
        return {"type": "edit", "text": text}
    if kind == "answer" and isinstance(text, str) and type(message.get("question")) is int:
        return {"type": "answer", "question": message["question"], "text": text}
    return {"type": "cancel"} if kind == "cancel" else None


class PlanView(WholeView):
    """A live plan, as `Plans.shown` says it."""

    bundle: ClassVar[str] = "plan"
    what: ClassVar[str] = "plan"

    def action(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        return plan_action(message)

    def static_html(self) -> str:
        return plan_html(self._shown)

    def static_text(self) -> str:
        return plan_line(self._shown)
