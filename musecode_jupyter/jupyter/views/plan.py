"""The plan view: a plan as it is written and stands, and what the user says to it from the buttons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from musecode_jupyter.jupyter.views.live import CallLater, LiveView, Post
from musecode_jupyter.jupyter.views.plan_html import plan_html, plan_line


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


class PlanView(LiveView):
    """A live plan.

    Parameters
    ----------
    on_action
        Called on the runtime thread with what `plan_action` makes of a message.
    post, call_later
        The runtime loop: `loop.call_soon_threadsafe` and `loop.call_later`.
    shown
        The plan as `Plans.shown` says it.
    """

    bundle: ClassVar[str] = "plan"

    def __init__(
        self,
        on_action: Callable[[dict[str, Any]], None],
        *,
        post: Post,
        call_later: CallLater,
        shown: Mapping[str, Any],
    ) -> None:
        self._on_action = on_action
        self._shown = dict(shown)
        super().__init__(post, call_later, {"plan": self._shown})

    @property
    def number(self) -> int:
        """The plan that is shown."""
        return int(self._shown["number"])

    def update(self, shown: Mapping[str, Any]) -> None:
        """Show the plan as it stands by now; on the runtime thread."""
        if self._closed:
            return
        self._shown = dict(shown)
        self.snapshot = {"plan": self._shown}
        self.repeat()
        self.said()

    def handle(self, message: Mapping[str, Any]) -> None:
        if self._closed:
            return
        if message.get("type") == "plan":
            self.repeat()
        elif (action := plan_action(message)) is not None:
            self._on_action(action)

    def refused(self, problem: str) -> None:
        """What the user said was not taken; on the runtime thread."""
        if not self._closed:
            self.send({"type": "refused", "problem": problem})

    def repeat(self) -> None:
        self.send({"type": "plan", "plan": self._shown})

    def static_html(self) -> str:
        return plan_html(self._shown)

    def static_text(self) -> str:
        return plan_line(self._shown)
