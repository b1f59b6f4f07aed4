"""The `/chat/completions` dialect of llama.cpp, vLLM, Ollama, SGLang and gateways: request bytes, chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from musecode_jupyter.models.client import Answer, HttpClient, arguments_text, text_of
from musecode_jupyter.models.conversation import (
    Turn,
    arrange,
    check_request,
    data_url,
    dump_json,
    sorted_tools,
    wire_arguments,
    wire_call_id,
    wire_name,
)
from musecode_jupyter.models.failures import Caller, event_failure
from musecode_jupyter.models.metering import usage_of
from musecode_jupyter.models.sse import ServerEvent
from musecode_jupyter.models.types import (
    Final,
    Item,
    Message,
    ModelRequest,
    Picture,
    ReasoningDelta,
    StreamPart,
    TextDelta,
    ToolCall,
    Usage,
)

_MIN_OUTPUT = 16
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# Names that servers are known to give to a proper end.
_COMPLETE = frozenset({"stop", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence", "end_turn"})
_FAILED = frozenset({"error", "abort", "cancelled"})


class ChatClient(HttpClient):
    """`ModelClient` for `POST {base_url}/chat/completions`.

    Reasoning items, `effort` and `cache_key` have no common form among these servers and are not sent. The
    parameters are those of `HttpClient`.
    """

    dialect = "chat"
    path = "/chat/completions"

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

    def _answer(self, caller: Caller, request: ModelRequest) -> Answer:
        return _Answer(caller, self._origin)


def _messages(request: ModelRequest) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    if request.instructions:
        wire.append({"role": "system", "content": request.instructions})
    for entry in arrange(request.items):
        if isinstance(entry, Turn):
            wire += _turn(entry)
        elif isinstance(entry, Picture):
            image = {"type": "image_url", "image_url": {"url": data_url(entry)}}
            wire.append({"role": "user", "content": [{"type": "text", "text": entry.caption}, image]})
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


class _Answer(Answer):
    """What a stream of chunks has said so far; the finish reason ends it, and only its usage may follow."""

    def __init__(self, caller: Caller, origin: str) -> None:
        super().__init__(caller, origin)
        self._finish = ""
        self._text: list[str] = []
        self._refused = False
        self._slots: list[_Slot] = []
        self._by_index: dict[int, _Slot] = {}
        self._usage: Usage | None = None
        self._model: str | None = None
        self._id: str | None = None

    def take(self, event: ServerEvent) -> Iterable[StreamPart]:
        chunk = self.parse(event)
        self._count(chunk.get("usage"))
        if self.ended:
            return ()
        if chunk.get("error"):
            error = chunk["error"]
            raise event_failure(self.caller, error if isinstance(error, dict) else {"message": error})
        self._model = self._model or text_of(chunk.get("model")) or None
        self._id = self._id or text_of(chunk.get("id")) or None
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or choice.get("index"):
            return ()
        delta = choice.get("delta")
        parts = self._delta(delta) if isinstance(delta, dict) else []
        self._finish = text_of(choice.get("finish_reason"))
        if self._finish in _FAILED:
            message = f"the answer ended as {self._finish!r}"
            raise event_failure(self.caller, {"type": "server_error", "message": message})
        self.ended = bool(self._finish)
        return parts

    def final(self) -> Final:
        reason = "refusal" if self._refused else None
        if reason is None and self._finish not in _COMPLETE:
            # A reason that nobody knows may mean that the last call is not whole.
            reason = _INCOMPLETE.get(self._finish, self._finish)
        items: list[Item] = []
        if text := "".join(self._text):
            phase = "commentary" if self._slots and reason is None else None
            items.append(Message(role="assistant", text=text, phase=phase))
        if reason is None:
            items += [ToolCall(call_id=s.call_id, name=s.name, arguments=s.arguments) for s in self._slots]
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
        thought = text_of(delta.get("reasoning_content")) or text_of(delta.get("reasoning"))
        if thought:
            parts.append(ReasoningDelta(thought))
        refusal = text_of(delta.get("refusal"))
        self._refused = self._refused or bool(refusal)
        for piece in (text_of(delta.get("content")), refusal):
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
        call_id, name = text_of(delta.get("id")), text_of(function.get("name"))
        slot = self._slot(delta.get("index"), call_id, name)
        slot.call_id = slot.call_id or call_id
        if name != slot.name:
            slot.name += name
        slot.arguments += arguments_text(function.get("arguments"))

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
