"""The fold of mail: letters that are on their way, or in a conversation and not acknowledged yet."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from musecode_jupyter.log.events import Event

Priority = Literal["interrupt", "next", "digest"]


class Letter(BaseModel):
    """One message; `delivered` says that it is in the conversation of `to`, whose turn with it has not ended yet."""

    sender: str
    to: str
    priority: Priority
    topic: str
    text: str
    claims: list[int] = Field(default_factory=list)
    asks: bool = False
    reply_to: int | None = None
    delivered: bool = False


class MailState(BaseModel):
    """`letters` by seq of mail.sent, in their order. One that was acknowledged or dropped is gone from here."""

    letters: dict[int, Letter] = Field(default_factory=dict)

    def waiting(self, to: str) -> dict[int, Letter]:
        """What `to` has not got yet, in the order in which it was sent."""
        return {seq: letter for seq, letter in self.letters.items() if letter.to == to and not letter.delivered}

    def unread(self, to: str) -> dict[int, Letter]:
        """What `to` has got in a turn that has not ended."""
        return {seq: letter for seq, letter in self.letters.items() if letter.to == to and letter.delivered}


class MailReducer:
    """Folds mail.* events."""

    name = "mail"
    kinds = frozenset({"mail.sent", "mail.delivered", "mail.acknowledged", "mail.dropped"})

    def initial(self) -> MailState:
        return MailState()

    def apply(self, state: MailState, event: Event) -> None:
        data = event.data
        if event.kind == "mail.sent":
            state.letters[event.seq] = Letter(
                sender=event.agent,
                to=data["to"],
                priority=data["priority"],
                topic=data["topic"],
                text=data["text"],
                claims=list(data["claims"]),
                asks=data["asks"],
                reply_to=data["reply_to"],
            )
        elif event.kind == "mail.delivered":
            state.letters[data["mail"]].delivered = True
        elif event.kind in {"mail.acknowledged", "mail.dropped"}:
            state.letters.pop(data["mail"], None)
