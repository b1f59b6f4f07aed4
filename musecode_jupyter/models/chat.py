"""The `/chat/completions` dialect of llama.cpp, vLLM, Ollama, SGLang and gateways: request bytes, chunks."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from musecode_jupyter.models.conversation import (
    Turn,
    arrange,
    check_request,
    dump_json,
    fresh_call_ids,
    parse_json,
    sorted_tools,
    wire_arguments,
    wire_call_id,
    wire_name,
)
from musecode_jupyter.models.failures import Caller, event_failure
from musecode_jupyter.models.metering import usage_of
from musecode_jupyter.models.transport import READ_STALL, checked_key, origin_of, post_events
from musecode_jupyter.models.types import (
    Final,
    Item,
    Message,
    ModelRequest,
    ReasoningDelta,
    StreamPart,
    TextDelta,
    ToolCall,
    Usage,
)
from musecode_jupyter.runtime.errors import ModelError

if TYPE_CHECKING:
    import httpx

_MIN_OUTPUT = 16
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ChatClient:
    """`ModelClient` for `POST {base_url}/chat/completions`, always streaming.

    Reasoning items, `effort` and `cache_key` have no common form among these servers and are not sent. The
    parameters are those of `ResponsesClient`.

    Raises
    ------
    ConfigurationError
        If the key cannot be put into a header.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        base_url: str,
        api_key: str | None,
        *,
        key_source: str = "MUSECODE_API_KEY",
        tier: str = "standard",
        read_timeout: float = READ_STALL,
    ) -> None:
        self._http = http
        self._base_url = base_url.rstrip("/")
        self._key = checked_key(api_key, key_source)
        self._key_source = key_source
        self._read_timeout = read_timeout
        self._origin = origin_of("chat", base_url, self._key, tier)

    @property
    def origin(self) -> str:
        """Digest of endpoint, key and tier; this dialect has no reasoning items to bind to it."""
        return self._origin

    def body(self, request: ModelRequest) -> bytes:
        """The exact bytes of `request`; messages come last, so that they are a prefix of the next request's.

        Raises
        ------
        ModelError
            Kind `invalid_request`, for what no server accepts.
        """
        check_request(request)
        wire: dict[str, Any] = {
            "model": request.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": max(_MIN_OUTPUT, request.max_output_tokens),
        }
        if request.temperature is not None:
            wire["temperature"] = request.temperature
        if request.seed is not None:
            wire["seed"] = request.seed
        if request.json_schema is not None:
            form = {"name": "answer", "schema": request.json_schema, "strict": True}
            wire["response_format"] = {"type": "json_schema", "json_schema": form}
        if request.tools:
            wire["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for tool in sorted_tools(request)
            ]
        wire["messages"] = _messages(request)
        return dump_json(wire)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Send `body(request)`; yield deltas, then exactly one `Final`.

        Raises
        ------
        ModelError
            For every failure; a stream that ends before a finish reason is one (`stream_cut`).
        """
        body = self.body(request)
        caller = Caller(
            url=f"{self._base_url}/chat/completions",
            base_url=self._base_url,
            key_source=self._key_source,
            key=self._key,
            model=request.model,
        )
        answer = _Answer(caller)
        try:
            async with aclosing(post_events(self._http, caller, body, read_timeout=self._read_timeout)) as events:
                async for event in events:
                    if event.is_done:
                        break
                    for part in answer.take(event.data):
                        yield part
        except ModelError as error:
            # After the finish reason only the usage and `[DONE]` can be missing.
            if not answer.finish or error.kind not in ("stream_cut", "timeout"):
                raise
        if not answer.finish:
            raise ModelError(
                f"the stream from {self._base_url} ended without a finish reason; its outcome is unknown and "
                "nothing of it is used: try again",
                kind="stream_cut",
                retryable=True,
            )
        yield answer.final(request, body)


def _messages(request: ModelRequest) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    if request.instructions:
        wire.append({"role": "system", "content": request.instructions})
    for entry in arrange(request.items):
        if isinstance(entry, Turn):
            wire += _turn(entry)
        else:
            # Few of these servers' templates know the developer role; all know system.
            wire.append({"role": "system" if entry.role == "developer" else "user", "content": entry.text})
    return wire


def _turn(turn: Turn) -> list[dict[str, Any]]:
    """One assistant message with all text and calls of the turn, then a tool message for each call."""
    text = "\n\n".join(item.text for item in turn.said if isinstance(item, Message))
    calls = [
        {
            "id": wire_call_id(item.call_id),
            "type": "function",
            "function": {"name": wire_name(item.name), "arguments": wire_arguments(item.arguments)},
        }
        for item in turn.said
        if isinstance(item, ToolCall)
    ]
    if not text and not calls:
        return []
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = calls
    results = [
        {"role": "tool", "tool_call_id": wire_call_id(result.call_id), "content": result.output}
        for result in turn.results
    ]
    return [message, *results]


@dataclass
class _Slot:
    """A tool call that is still arriving."""

    call_id: str = ""
    name: str = ""
    arguments: str = ""


class _Answer:
    """What a stream has said so far."""

    def __init__(self, caller: Caller) -> None:
        self.finish = ""
        self._caller = caller
        self._text: list[str] = []
        self._refused = False
        self._slots: list[_Slot] = []
        self._by_index: dict[int, _Slot] = {}
        self._usage: Usage | None = None
        self._model: str | None = None
        self._id: str | None = None

    def take(self, data: str) -> list[StreamPart]:
        """One chunk's parts of the answer."""
        try:
            chunk = parse_json(data)
        except ValueError:
            chunk = None
        if not isinstance(chunk, dict):
            raise ModelError(
                f"{self._caller.url} sent a chunk that is no JSON object: try again, or check MUSECODE_API",
                kind="protocol",
                retryable=True,
            )
        if chunk.get("error"):
            error = chunk["error"]
            raise event_failure(self._caller, error if isinstance(error, dict) else {"message": error})
        self._model = self._model or _text(chunk.get("model")) or None
        self._id = self._id or _text(chunk.get("id")) or None
        self._count(chunk.get("usage"))
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or choice.get("index"):
            return []
        delta = choice.get("delta")
        parts = self._delta(delta) if isinstance(delta, dict) else []
        finish = _text(choice.get("finish_reason"))
        if finish == "error":
            raise event_failure(self._caller, {"type": "server_error", "message": "the answer ended in an error"})
        self.finish = finish or self.finish
        return parts

    def final(self, request: ModelRequest, body: bytes) -> Final:
        """The whole answer, once a finish reason has come."""
        reason = "refusal" if self._refused else _INCOMPLETE.get(self.finish)
        items: list[Item] = []
        if text := "".join(self._text):
            phase = "commentary" if self._slots and reason is None else None
            items.append(Message(role="assistant", text=text, phase=phase))
        if reason is None:
            calls = [ToolCall(call_id=s.call_id, name=s.name, arguments=s.arguments) for s in self._slots]
            items += fresh_call_ids(calls, request, body)
        return Final(
            status="completed" if reason is None else "incomplete",
            # An incomplete answer may end inside a call's arguments: none of its calls is handed on.
            items=tuple(items),
            usage=self._usage,
            model=self._model,
            response_id=self._id,
            reason=reason,
        )

    def _delta(self, delta: Mapping[str, Any]) -> list[StreamPart]:
        parts: list[StreamPart] = []
        thought = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
        if thought:
            parts.append(ReasoningDelta(thought))
        refusal = _text(delta.get("refusal"))
        self._refused = self._refused or bool(refusal)
        for piece in (_text(delta.get("content")), refusal):
            if piece:
                self._text.append(piece)
                parts.append(TextDelta(piece))
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                self._call(call)
        return parts

    def _call(self, delta: Mapping[str, Any]) -> None:
        function = delta.get("function")
        function = function if isinstance(function, dict) else {}
        call_id, name = _text(delta.get("id")), _text(function.get("name"))
        slot = self._slot(delta.get("index"), call_id, name)
        slot.call_id = slot.call_id or call_id
        if name != slot.name:
            slot.name += name
        arguments = function.get("arguments")
        # Ollama and some gateways send the arguments as an object, whole.
        slot.arguments += json.dumps(arguments) if isinstance(arguments, dict) else _text(arguments)

    def _slot(self, index: object, call_id: str, name: str) -> _Slot:
        """Where a piece belongs: by index, unless another id shows that every call is counted as index 0."""
        slot = self._by_index.get(index) if isinstance(index, int) else (self._slots[-1] if self._slots else None)
        other_id = slot is not None and call_id and slot.call_id and call_id != slot.call_id
        unnumbered = not isinstance(index, int) and slot is not None and bool(name) and not call_id
        if slot is None or other_id or unnumbered:
            slot = _Slot()
            self._slots.append(slot)
        if isinstance(index, int):
            self._by_index[index] = slot
        return slot

    def _count(self, raw: object) -> None:
        if isinstance(raw, dict):
            self._usage = (
                usage_of(
                    raw.get("prompt_tokens"),
                    raw.get("completion_tokens"),
                    raw.get("prompt_tokens_details"),
                    raw.get("completion_tokens_details"),
                )
                or self._usage
            )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
