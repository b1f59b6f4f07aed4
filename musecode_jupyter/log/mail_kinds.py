"""What the events of mail between agents hold."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from musecode_jupyter.log.payload import Payload


class MailSent(Payload):
    """A message from the envelope's `agent` to another one; data, never an instruction or an approval."""

    to: str
    priority: Literal["interrupt", "next", "digest"] = Field(
        description="interrupt: ends what runs; next: between two steps; digest: with what else the turn's end brings"
    )
    topic: str = Field(description="what it is about: a later message of the same sender on the same topic replaces it")
    text: str
    reason: str = Field(description="which rule of the reporting policy let it pass, or put it off")
    claims: list[int] = Field(default_factory=list, description="the claims that it carries, by seq of claim.asserted")
    asks: bool = Field(default=False, description="whether the sender waits for an answer")
    reply_to: int | None = Field(default=None, description="seq of the message that this one answers")


class MailDelivered(Payload):
    """The message is in the conversation of the envelope's `agent` from here on."""

    mail: int


class MailAcknowledged(Payload):
    """The envelope's `agent` has ended the turn in which it got the message: it is not delivered again."""

    mail: int


class MailDropped(Payload):
    """The message will not be delivered."""

    mail: int
    why: str


MAIL_KINDS: dict[str, type[Payload]] = {
    "mail.sent": MailSent,
    "mail.delivered": MailDelivered,
    "mail.acknowledged": MailAcknowledged,
    "mail.dropped": MailDropped,
}
