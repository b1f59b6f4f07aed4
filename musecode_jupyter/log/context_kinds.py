"""What the events say that keep the conversations of agents short: masked, compacted, pinned."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from musecode_jupyter.log.payload import Payload


class MaskedCall(Payload):
    """One tool call whose output is not shown any more."""

    call: int
    result: int = Field(description="seq of the event that holds the output")
    line: str = Field(description="what a prompt says in its place")


class ContextMasked(Payload):
    """From here on, the prompts of the envelope's `agent` have a line in place of each of these outputs."""

    calls: list[MaskedCall]
    output: int = Field(description="tokens of tool output that was shown before, estimated")
    saved: int = Field(description="tokens that the lines save, estimated")
    point: int = Field(description="tokens of tool output at which masking is due")


class ContextCompacted(Payload):
    """The conversation of the envelope's `agent` goes on with `text` in place of all that came before event `cut`."""

    how: Literal["compact", "reseed"] = Field(
        description="compact: with a summary and the newest steps; reseed: anew, from facts alone"
    )
    why: str
    cut: int | None = Field(description="seq of the first event of the conversation that stays; none: nothing stays")
    text: str = Field(description="the message that the conversation now begins with")
    summary: int | None = Field(default=None, description="seq of the model.completed that holds the summary, if any")
    before: int = Field(description="tokens of the prompt, estimated")
    after: int = Field(description="the same with `text` in place of what is left out")
    numbers: dict[str, float] = Field(default_factory=dict, description="what the decision was made from")
    claims: list[int] = Field(default_factory=list, description="the claims that `text` carries, verified ones")


class ContextPinned(Payload):
    """The user wants an event of the conversation of agent `to` to stay in it word for word, or no longer."""

    to: str
    item: int = Field(description="seq of the event")
    pinned: bool = True


CONTEXT_KINDS: dict[str, type[Payload]] = {
    "context.masked": ContextMasked,
    "context.compacted": ContextCompacted,
    "context.pinned": ContextPinned,
}
