"""The critiques view: findings of reviews as they change, and what the user says of them from the buttons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from musecode_jupyter.jupyter.views.findings_html import critiques_html, critiques_line, most_pressing
from musecode_jupyter.jupyter.views.live import CallLater, LiveView, Post

# Many findings come at once at the end of a review; each is to be seen within a fifth of a second.
FLUSH_S = 0.05
# So many findings does a view without a kernel show: first those that are open and stop the work.
KEPT = 200
WORDS = ("answer", "accept", "withdraw")


def settlement(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a page says of a finding, or None if it is not well formed."""
    number, word, text = message.get("number"), message.get("word"), message.get("text")
    if type(number) is not int or word not in WORDS or not isinstance(text, str):
        return None
    return {"type": "settle", "number": number, "word": word, "text": text}


class CritiquesView(LiveView):
    """The live critiques.

    Parameters
    ----------
    on_action
        Called on the runtime thread with `{"type": "settle", "number": of the finding, "word": one of WORDS, "text"}`.
    post, call_later
        The runtime loop: `loop.call_soon_threadsafe` and `loop.call_later`.
    findings
        Those that there are, as `finding_shown` makes them.
    """

    bundle: ClassVar[str] = "critiques"

    def __init__(
        self,
        on_action: Callable[[dict[str, Any]], None],
        *,
        post: Post,
        call_later: CallLater,
        findings: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._on_action = on_action
        self._findings = {finding["number"]: finding for finding in findings}
        self._sent = self._newest
        self._resting = False
        super().__init__(post, call_later, self._snapshot())

    def feed(self, findings: Sequence[dict[str, Any]]) -> None:
        """Take findings that are new or have changed; on the runtime thread. They are sent within `FLUSH_S`."""
        if self._closed:
            return
        for finding in findings:
            old = self._findings.get(finding["number"])
            if old is None or old["seq"] <= finding["seq"]:
                self._findings[finding["number"]] = finding
        if not self._resting:
            # The first is seen at once; what comes right after it waits to be sent in one message.
            self._rest()
            self.flush()

    def flush(self) -> None:
        """Send what waits, at once; on the runtime thread."""
        if not self._closed and self._newest > self._sent:
            self._say_since(self._sent)

    def handle(self, message: Mapping[str, Any]) -> None:
        if self._closed:
            return
        kind = message.get("type")
        if kind == "since" and isinstance(message.get("seq"), int):
            # Even "nothing more" is an answer: it tells the view that a kernel is there.
            self._say_since(message["seq"])
        elif kind == "settle" and (action := settlement(message)) is not None:
            self._on_action(action)

    def refused(self, number: int, problem: str) -> None:
        """What was said of finding `number` was not taken; on the runtime thread."""
        if not self._closed:
            self.send({"type": "refused", "number": number, "problem": problem})

    def static_html(self) -> str:
        return critiques_html(list(self._findings.values()))

    def static_text(self) -> str:
        return critiques_line(list(self._findings.values()))

    def repeat(self) -> None:
        """Say up to where findings were sent: a view that has fewer asks for the rest."""
        self.send({"type": "findings", "since": self._sent, "upto": self._sent, "findings": []})

    @property
    def _newest(self) -> int:
        return max((finding["seq"] for finding in self._findings.values()), default=0)

    def _rest(self) -> None:
        self._resting = True
        self._call_later(FLUSH_S, self._rested)

    def _rested(self) -> None:
        self._resting = False
        if self._closed:
            return
        if self._newest > self._sent:
            self._rest()
            self.flush()
        self.snapshot = self._snapshot()

    def _say_since(self, since: int) -> None:
        changed = [finding for finding in self._findings.values() if finding["seq"] > since]
        # A message reaches every view: the others drop what they have.
        self._sent = self._newest
        self.send({"type": "findings", "since": min(since, self._sent), "upto": self._sent, "findings": changed})
        self.said()

    def _snapshot(self) -> dict[str, Any]:
        kept = {finding["number"] for finding in most_pressing(list(self._findings.values()), KEPT)}
        return {"findings": [finding for number, finding in self._findings.items() if number in kept]}
