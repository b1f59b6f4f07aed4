"""The one streaming interface between the agents and every model API: items in, stream parts out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Message(_Wire):
    """A message of the conversation. `phase` is kept for replay ("commentary" before a call)."""

    type: Literal["message"] = "message"
    role: Literal["developer", "user", "assistant"]
    text: str
    phase: str | None = None


class Reasoning(_Wire):
    """An opaque reasoning item, valid only for the caller (`origin`) that received it."""

    type: Literal["reasoning"] = "reasoning"
    origin: str
    payload: dict[str, Any]


class ToolCall(_Wire):
    """A call made by the model; `arguments` is the model's own text, which need not be JSON."""

    type: Literal["tool_call"] = "tool_call"
    call_id: str
    name: str
    arguments: str


class ToolResult(_Wire):
    """The one result of a tool call."""

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    output: str


class Picture(_Wire):
    """A picture shown to the model as the user's, with a line that says what it is.

    `data` is base64, `width` and `height` are pixels, `instead` is said to a model that takes no pictures.
    """

    type: Literal["picture"] = "picture"
    caption: str
    mime: str
    width: int
    height: int
    data: str
    instead: str

    def in_words(self) -> Message:
        """What stands in its place for a model that takes no pictures."""
        return Message(role="user", text=self.instead)


Item = Annotated[Message | Reasoning | ToolCall | ToolResult | Picture, Field(discriminator="type")]


class ToolSpec(_Wire):
    """A tool as shown to the model; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class ModelRequest(_Wire):
    """All that determines the bytes of one request.

    `json_schema` asks for an answer constrained to that schema; `tools` and `json_schema` exclude each other.
    `pictures` says that the model takes pictures; without it there are none among `items`.
    """

    model: str
    instructions: str
    items: tuple[Item, ...]
    tools: tuple[ToolSpec, ...] = ()
    json_schema: dict[str, Any] | None = None
    max_output_tokens: int = 16_384
    effort: str | None = None
    temperature: float | None = None
    seed: int | None = None
    cache_key: str | None = None
    pictures: bool = False


class Usage(_Wire):
    """Tokens as counted by the server; `cached` and `written` are part of `input`, `reasoning` is part of `output`.

    `written` is what the server was asked to write into its cache, where it says so and charges for it.
    """

    input: int
    output: int
    cached: int = 0
    reasoning: int = 0
    written: int = 0


@dataclass(frozen=True)
class TextDelta:
    """A piece of answer text."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """A piece of a reasoning summary, for display only."""

    text: str


@dataclass(frozen=True)
class Final:
    """The end of a stream that ended properly.

    `status` is "completed" or "incomplete" (`reason` then says why: max_output_tokens, content_filter, refusal, or
    pause_turn: the server wants the answer back, to go on with it).
    `usage` is None when the server sent none. Only a Final carries tool calls: none from a broken stream is ever run.
    """

    status: Literal["completed", "incomplete"]
    items: tuple[Item, ...]
    usage: Usage | None
    model: str | None = None
    response_id: str | None = None
    reason: str | None = None


StreamPart = TextDelta | ReasoningDelta | Final


class ModelClient(Protocol):
    """One API dialect at one endpoint. Never retries; raises `runtime.errors.ModelError` for every failure."""

    @property
    def origin(self) -> str:
        """Digest of endpoint and key, by which opaque reasoning items are bound to their caller."""
        ...

    def without_reasoning(self) -> ModelClient:
        """The same with another `origin`, so that no reasoning item received so far is sent: the server refused one."""
        ...

    def body(self, request: ModelRequest) -> bytes:
        """The exact bytes that `stream` sends for `request`; pure, so that a replay can compare them."""
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Send `body(request)`; yield deltas, then exactly one `Final`, or raise `ModelError`."""
        ...
