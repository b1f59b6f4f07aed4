"""The base of what events say, and what several kinds of them have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Payload(BaseModel):
    """The `data` of an event."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Check(Payload):
    """One verify command that the harness ran: `call` is its tool call."""

    command: str
    call: int
    passed: bool
    exit: int | None = None
    seconds: float = 0.0
