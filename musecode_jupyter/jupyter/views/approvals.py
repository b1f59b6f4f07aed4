"""The approvals view: the questions that wait for the user, and the answers from the buttons."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from musecode_jupyter.jupyter.views.live import CallLater, LiveView, Post
from musecode_jupyter.jupyter.views.static_html import approvals_html, approvals_text
from musecode_jupyter.session.visible import visible

DECISIONS = ("approve", "approve_session", "approve_workspace", "deny")
State = Literal["pending", "granted", "denied", "expired"]

# The view has places of their own for these; whatever else was shown goes to `more`.
_PLACED = ("cwd", "diff", "usd")


def pending_card(
    seq: int,
    data: Mapping[str, Any],
    *,
    agent: str = "",
    ts: str = "",
    state: State = "pending",
    by: str = "",
    scope: str = "",
    why: str = "",
    usd: float | None = None,
) -> dict[str, Any]:
    """One question as the view shows it, from the data of its `approval.requested` event.

    Everything in `data["shown"]` appears somewhere on the card, because the digest that the user answers to
    covers it. `usd` is the money spent so far; a value in `shown` goes before it.
    """
    shown = {name: visible(value) for name, value in data["shown"].items()}
    tool, command, path = shown.get("tool"), shown.get("command"), shown.get("path")
    placed = set(_PLACED)
    diff = str(shown.get("diff", ""))
    if isinstance(command, str):
        what = command
        placed |= {"command", "tool"}
    elif isinstance(shown.get("code"), str):
        what = shown["code"]
        placed |= {"code"}
    elif isinstance(path, str) and isinstance(shown.get("old"), str) and isinstance(shown.get("new"), str):
        what = f"{tool or data['action']} {path}"
        diff = diff or _replacement(path, shown["old"], shown["new"])
        placed |= {"path", "tool"}
        if diff:
            placed |= {"old", "new"}
    elif "branch" in shown and "to" in shown:
        what = f"move branch {shown['branch']}\nfrom {shown.get('from')}\nto   {shown['to']}"
        placed |= {"branch", "from", "to"}
    elif isinstance(shown.get("commands"), list):
        # One line each: a command may hold what would separate it from the next.
        what = "\n".join(map(str, shown["commands"]))
        placed |= {"commands"}
    else:
        what = ""
    return {
        "approval": seq,
        "state": state,
        "agent": agent,
        "ts": ts,
        "action": str(data["action"]),
        "what": what,
        "cwd": str(shown.get("cwd", "")),
        "diff": diff,
        "digest": str(data["digest"]),
        "rule": str(data.get("rule", "")),
        "why": why,
        "by": by,
        "scope": scope,
        "usd": shown.get("usd", usd),
        "more": {name: value for name, value in shown.items() if name not in placed},
    }


class ApprovalsView(LiveView):
    """The live approvals.

    Parameters
    ----------
    on_action
        Called on the runtime thread with `{"type": "answer", "approval": seq, "digest": as shown, "decision":
        one of DECISIONS, "why": text}`. Compare the digest with that of the pending question before acting.
    post, call_later
        The runtime loop: `loop.call_soon_threadsafe` and `loop.call_later`.
    pending
        Cards made by `pending_card`.
    """

    bundle: ClassVar[str] = "approvals"

    def __init__(
        self,
        on_action: Callable[[dict[str, Any]], None],
        *,
        post: Post,
        call_later: CallLater,
        pending: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._on_action = on_action
        self._pending = list(pending)
        super().__init__(post, call_later, {"pending": self._pending})

    def update(self, pending: Sequence[dict[str, Any]]) -> None:
        """Show these cards, answered ones too, from now on; on the runtime thread."""
        self._pending = list(pending)
        if not self._closed:
            self.snapshot = {"pending": self._pending}
            self.repeat()
            self.said()

    def handle(self, message: Mapping[str, Any]) -> None:
        if self._closed:
            return
        if message.get("type") == "approvals":
            self.repeat()
        elif message.get("type") == "answer":
            self._answer(message)

    def static_html(self) -> str:
        return approvals_html(self._pending)

    def static_text(self) -> str:
        return approvals_text(self._pending)

    def repeat(self) -> None:
        self.send({"type": "approvals", "pending": self._pending})

    def _answer(self, message: Mapping[str, Any]) -> None:
        approval, decision = message.get("approval"), message.get("decision")
        digest, why = message.get("digest"), message.get("why")
        if type(approval) is not int or decision not in DECISIONS or not isinstance(digest, str):
            return
        self._on_action(
            {
                "type": "answer",
                "approval": approval,
                "digest": digest,
                "decision": decision,
                "why": why if isinstance(why, str) else "",
            }
        )


def _replacement(path: str, old: str, new: str) -> str:
    """Old and new text as one diff with all lines, so that nothing of either stays unseen."""
    # Not splitlines: what else it takes for a line end would vanish from the diff.
    before, after = old.split("\n"), new.split("\n")
    lines = difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", n=len(before), lineterm="")
    return "\n".join(lines)
