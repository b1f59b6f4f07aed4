"""The base of the live views: bundles, messages that only post to the runtime thread, and the static forms.

The messages are written down in `labextension/src/protocol.ts`. In short: the timeline gets
`{type: events, since, upto, events, header}` (at most one every 100 ms) and `{type: detail, seq, event,
diff?}` and sends `{type: since, seq}`, `{type: detail, seq}`, `{type: stop}`; the approvals get `{type:
approvals, pending}` and send `{type: approvals}` and `{type: answer, approval, digest, decision, why}`; the
critiques get `{type: findings, since, upto, findings}` and send `{type: since, seq}` and `{type: settle,
number, word, text}`; a plan gets `{type: plan, plan}` and sends `{type: plan}`, `{type: approve, digest}`, `{type:
edit, text}`, `{type: answer, question, text}` and `{type: cancel}`; an attack gets `{type: grill, grill}` and sends
`{type: grill}`, `{type: settle, number, word, text}`, `{type: stop}` and `{type: resume}`.

Threads: a view is made on any thread (as a rule that of the cell, so that its comm opens there). From then on
its traits and its comm are used on the runtime thread only. Messages of the front end arrive on whatever
thread the kernel serves comms with; they are posted and not looked at there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import traitlets

STATIC = Path(__file__).resolve().parents[2] / "static"

# Runs a callable soon on the runtime thread; callable from any thread (loop.call_soon_threadsafe).
Post = Callable[[Callable[[], None]], object]
# Runs a callable on the runtime thread after so many seconds; called on that thread (loop.call_later).
CallLater = Callable[[float, Callable[[], None]], object]

# A server that is flooded with output drops messages, ours as well. A view sees that something is missing by what comes
# next, so the newest state is said again after so many seconds of silence, until a flood has most likely passed.
REPEATS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

NOT_BUILT = "The live view is not built: run make frontend in the repository, then restart the kernel."

_log = logging.getLogger(__name__)


def restore_subshell_choice(comm: Any) -> bool:
    """Let messages to this comm go to the subshell that the front end chose; True if there was something to
    restore.

    ipykernel 7.4 sends them to the shell that last published on the comm instead, so that with a view made by
    a cell a click waits until the running cell ends. The attribute is private; where it is missing, nothing
    needs doing.
    """
    if not callable(getattr(comm, "_reply_subshell_for", None)):
        return False
    comm._reply_subshell_for = lambda _data, chosen: chosen
    return True


def read_bundle(name: str) -> tuple[str, str] | None:
    """JavaScript and CSS of the view `name`, or None if the front end has not been built."""
    try:
        script = (STATIC / f"{name}.js").read_text("utf-8")
        style = (STATIC / f"{name}.css").read_text("utf-8")
    except FileNotFoundError:
        return None
    return script, style


class LiveView(anywidget.AnyWidget):  # type: ignore[misc]
    """A view over plain data. Subclasses name their bundle and say what to do with a message.

    Parameters
    ----------
    post
        How to run something on the runtime thread, from any thread.
    call_later
        How to run something there after so many seconds; used on that thread.
    snapshot
        What a view shows before the kernel has spoken, or without one.
    """

    bundle: ClassVar[str] = ""

    snapshot = traitlets.Dict(help="small state for a late view").tag(sync=True)
    _esm = traitlets.Unicode("").tag(sync=True)
    _css = traitlets.Unicode("").tag(sync=True)

    def __init__(self, post: Post, call_later: CallLater, snapshot: Mapping[str, Any]) -> None:
        built = read_bundle(self.bundle)
        script, style = built if built else ("export default { render() {} };", "")
        self.built = built is not None
        self._post = post
        self._call_later = call_later
        self._said = 0
        self._closed = False
        super().__init__(_esm=script, _css=style, snapshot=dict(snapshot))
        restore_subshell_choice(self.comm)
        self.on_msg(self._received)

    def repeat(self) -> None:
        """Say the newest state again, for views that have missed it; on the runtime thread."""
        raise NotImplementedError

    def said(self) -> None:
        """Something was sent: it is said again after some silence. On the runtime thread."""
        self._said += 1
        self._call_later(REPEATS_S[0], partial(self._say_again, self._said, 0))

    def close(self) -> None:
        self._closed = True
        super().close()

    def handle(self, message: Mapping[str, Any]) -> None:
        """React to a message of the front end; on the runtime thread. What is malformed is ignored."""
        raise NotImplementedError

    def static_html(self) -> str:
        """The content now, as HTML without scripts."""
        raise NotImplementedError

    def static_text(self) -> str:
        """The content now, as one deterministic line."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.static_text()

    def _say_again(self, said: int, round_: int) -> None:
        if self._closed or said != self._said:
            return
        self.repeat()
        self.send_state("snapshot")
        if round_ + 1 < len(REPEATS_S):
            self._call_later(REPEATS_S[round_ + 1], partial(self._say_again, said, round_ + 1))

    def _received(self, _widget: object, content: Any, _buffers: object) -> None:
        if isinstance(content, dict):
            self._post(partial(self._handle, content))

    def _handle(self, message: Mapping[str, Any]) -> None:
        try:
            self.handle(message)
        except Exception:
            # A fault in answering a view must not reach the loop that the agents live on.
            _log.exception("a message of the view could not be handled: %s", message.get("type"))

    def _repr_mimebundle_(self, **_kwargs: object) -> tuple[dict[str, Any], dict[str, Any]]:
        data: dict[str, Any] = {}
        metadata: dict[str, Any] = {}
        if self.built:
            data, metadata = super()._repr_mimebundle_() or ({}, {})
        html = self.static_html()
        if not self.built:
            html += f"<p>{NOT_BUILT}</p>"
        return {**data, "text/html": html, "text/plain": self.static_text()}, metadata
