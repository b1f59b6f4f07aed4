"""The base of views that show one thing, which is sent as a whole each time that it changes: a plan, an attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from musecode_jupyter.jupyter.views.live import CallLater, LiveView, Post


class WholeView(LiveView):
    """A live view of one thing; subclasses name it, and say what a page may ask for.

    Parameters
    ----------
    on_action
        Called on the runtime thread with what `action` makes of a message.
    post, call_later
        The runtime loop: `loop.call_soon_threadsafe` and `loop.call_later`.
    shown
        What is shown, as plain data.
    """

    what: ClassVar[str] = ""

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
        super().__init__(post, call_later, {self.what: self._shown})

    @property
    def number(self) -> int:
        """The number of what is shown."""
        return int(self._shown["number"])

    def action(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a page asks for, or None if it is not well formed."""
        raise NotImplementedError

    def update(self, shown: Mapping[str, Any]) -> None:
        """Show it as it stands by now; on the runtime thread."""
        if self._closed:
            return
        self._shown = dict(shown)
        self.snapshot = {self.what: self._shown}
        self.repeat()
        self.said()

    def handle(self, message: Mapping[str, Any]) -> None:
        if self._closed:
            return
        if message.get("type") == self.what:
            self.repeat()
        elif (action := self.action(message)) is not None:
            self._on_action(action)

    def refused(self, problem: str) -> None:
        """What the user said was not taken; on the runtime thread."""
        if not self._closed:
            self.send({"type": "refused", "problem": problem})

    def repeat(self) -> None:
        self.send({"type": self.what, self.what: self._shown})
