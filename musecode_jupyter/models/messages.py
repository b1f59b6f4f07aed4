"""The `/messages` dialect of Anthropic and of servers compatible with it: request bytes, and its event stream."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from musecode_jupyter.models.catalogue import CATALOGUE
from musecode_jupyter.models.client import Answer, HttpClient, arguments_text, text_of
from musecode_jupyter.models.conversation import (
    Turn,
    arguments_object,
    arrange,
    check_request,
    dump_json,
    quoted_arguments,
    refuse,
    sorted_tools,
    wire_name,
)
from musecode_jupyter.models.failures import Caller, event_failure
from musecode_jupyter.models.metering import is_count
from musecode_jupyter.models.sse import ServerEvent
from musecode_jupyter.models.types import (
    Final,
    Item,
    Message,
    ModelRequest,
    Picture,
    Reasoning,
    ReasoningDelta,
    StreamPart,
    TextDelta,
    ToolCall,
    Usage,
)

API_VERSION = "2023-06-01"
"""The version of the protocol, sent with every request; the only one that compatible servers know."""

ANSWER_TOOL = "answer"
"""The tool that the model is made to call where an answer must fit a schema: this dialect has no other way."""

_CACHED = {"type": "ephemeral"}
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_COMPLETE = frozenset({"end_turn", "tool_use", "stop_sequence"})
_INCOMPLETE = {"max_tokens": "max_output_tokens"}


class MessagesClient(HttpClient):
    """`ModelClient` for `POST {base_url}/messages`.

    Thinking is not asked for, as compatible servers have no common form for it, but what comes of it is kept and sent
    back to where it came from. `effort`, `seed` and `cache_key` are not sent. The parameters are those of `HttpClient`.
    """

    dialect = "messages"
    path = "/messages"

    def _headers(self) -> dict[str, str]:
        version = {"anthropic-version": API_VERSION}
        return {**version, "x-api-key": self._key} if self._key else version

    def body(self, request: ModelRequest) -> bytes:
        """The exact bytes of `request`.

        Its blocks are a prefix of the next request's, apart from `cache_control`. Those marks stand at the end of the
        instructions, at the end of the request before and at the end of this one: the server looks for an earlier mark
        over few blocks only, and a turn of many calls has more.

        Raises
        ------
        ModelError
            Kind `invalid_request`, for what the API is known to refuse.
        """
        check_request(request)
        known = CATALOGUE.get(request.model)
        limit = max(1, request.max_output_tokens)
        wire: dict[str, Any] = {
            "model": request.model,
            "stream": True,
            "max_tokens": min(limit, known.max_output) if known else limit,
        }
        if request.temperature is not None:
            wire["temperature"] = request.temperature
        tools = [_tool(tool.name, tool.description, tool.parameters) for tool in sorted_tools(request)]
        if request.json_schema is not None:
            tools = [_tool(ANSWER_TOOL, "Give the answer.", request.json_schema)]
            wire["tool_choice"] = {"type": "tool", "name": ANSWER_TOOL, "disable_parallel_tool_use": True}
        if tools:
            wire["tools"] = tools
        if request.instructions.strip():
            # Tools come before the instructions in what the server caches, so one mark covers both.
            wire["system"] = [{"type": "text", "text": request.instructions, "cache_control": _CACHED}]
        wire["messages"] = self._messages(request)
        return dump_json(wire)

    def _carries_reasoning(self, body: bytes) -> bool:
        return b'{"type":"thinking"' in body or b'{"type":"redacted_thinking"' in body

    def _answer(self, caller: Caller, request: ModelRequest) -> Answer:
        return _Answer(caller, self._origin, constrained=request.json_schema is not None)

    def _messages(self, request: ModelRequest) -> list[dict[str, Any]]:
        """Alternating messages; the results of a turn stand first in the user's message behind it."""
        wire: list[dict[str, Any]] = []
        for entry in arrange(request.items):
            if isinstance(entry, Message):
                # A text without anything to see is refused; a message always says something here.
                _add(wire, "user", [{"type": "text", "text": entry.text if entry.text.strip() else "(empty)"}])
            elif isinstance(entry, Picture):
                source = {"type": "base64", "media_type": entry.mime, "data": entry.data}
                _add(wire, "user", [{"type": "text", "text": entry.caption}, {"type": "image", "source": source}])
            elif blocks := self._said(entry):
                _add(wire, "assistant", blocks)
                results = [
                    {"type": "tool_result", "tool_use_id": _call_id(result.call_id), "content": result.output}
                    for result in entry.results
                ]
                if results:
                    _add(wire, "user", results)
        if not wire or wire[0]["role"] != "user":
            refuse("the conversation does not begin with a message of the user")
        ends = [message["content"][-1] for message in wire if message["role"] == "user"]
        for block in ends[-2:]:
            block["cache_control"] = _CACHED
        return wire

    def _said(self, turn: Turn) -> list[dict[str, Any]]:
        """What the assistant said as blocks; thinking only where its turn is whole, ours, and goes on to something."""
        blocks: list[dict[str, Any]] = []
        thoughts = [item for item in turn.said if isinstance(item, Reasoning)]
        keep = all(item.origin == self._origin and _thought(item.payload) is not None for item in thoughts)
        for item in turn.said:
            if isinstance(item, Reasoning):
                thought = _thought(item.payload) if keep else None
                if thought is not None:
                    blocks.append(thought)
            elif isinstance(item, ToolCall):
                name = wire_name(item.name).replace(".", "_")
                blocks.append(
                    {"type": "tool_use", "id": _call_id(item.call_id), "name": name, "input": _input(item.arguments)}
                )
            elif item.text.strip():
                blocks.append({"type": "text", "text": item.text})
        return blocks if any(block["type"] in ("text", "tool_use") for block in blocks) else []


def _tool(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    if "." in name or len(name) > 64:
        refuse(f"tool name {name[:80]!r} is not allowed here: at most 64 letters, digits, _ and -")
    return {"name": name, "description": description, "input_schema": schema}


def _add(wire: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    if wire and wire[-1]["role"] == role:
        wire[-1]["content"] += blocks
    else:
        wire.append({"role": role, "content": blocks})


def _call_id(call_id: str) -> str:
    """`call_id` itself if this API takes it, else a stable stand-in."""
    if _CALL_ID.fullmatch(call_id):
        return call_id
    return "call_" + hashlib.blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _input(arguments: str) -> dict[str, Any]:
    """The arguments as the object that this API wants, or one that quotes them."""
    try:
        return arguments_object(arguments)
    except ValueError:
        return quoted_arguments(arguments)


def _thought(payload: Mapping[str, Any]) -> dict[str, Any] | None:
    """A block of thinking as it came, which is how it must go back; None for what is none.

    Compatible servers that do not sign it want it back all the same, and it goes to nobody else.
    """
    kind = payload.get("type")
    thinking, signature = text_of(payload.get("thinking")), text_of(payload.get("signature"))
    if kind == "thinking" and (thinking or signature):
        block = {"type": kind, "thinking": thinking}
        return {**block, "signature": signature} if signature else block
    if kind == "redacted_thinking" and text_of(payload.get("data")):
        return {"type": kind, "data": payload["data"]}
    return None


@dataclass
class _Block:
    """A content block that is arriving or has arrived; `open` until the server closes it."""

    kind: str
    start: Mapping[str, Any]
    text: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)
    open: bool = True


class _Answer(Answer):
    """What a stream of `/messages` has said so far.

    Its events have no numbers, so that a repeated piece cannot be told from a new one; a repeated start or end can,
    and spoils the answer.
    """

    def __init__(self, caller: Caller, origin: str, *, constrained: bool) -> None:
        super().__init__(caller, origin)
        self._constrained = constrained
        self._started = False
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, int] = {}
        self._reason = ""
        self._model: str | None = None
        self._id: str | None = None

    def take(self, event: ServerEvent) -> Iterable[StreamPart]:
        data = self.parse(event)
        kind = text_of(data.get("type")) or event.event
        if kind == "error":
            error = data.get("error")
            raise event_failure(self.caller, error if isinstance(error, dict) else {"message": error})
        if kind == "message_start":
            self._start(data)
        elif kind in ("content_block_start", "content_block_delta", "content_block_stop"):
            part = self._block(kind, data)
            return () if part is None else (part,)
        elif kind == "message_delta":
            delta = data.get("delta")
            if isinstance(delta, dict):
                self._reason = text_of(delta.get("stop_reason")) or self._reason
            self._count(data.get("usage"), final=True)
        elif kind == "message_stop":
            self._stop()
        return ()

    def final(self) -> Final:
        complete = self._reason in _COMPLETE
        items: list[Item] = []
        for _, block in sorted(self._blocks.items()):
            items += self._items(block, complete=complete)
        if complete and any(isinstance(item, ToolCall) for item in items):
            items = [
                item.model_copy(update={"phase": "commentary"}) if isinstance(item, Message) else item for item in items
            ]
        return Final(
            status="completed" if complete else "incomplete",
            # An incomplete answer may end inside a call's input: none of its calls is handed on.
            items=tuple(items),
            usage=self._counted(),
            model=self._model,
            response_id=self._id,
            reason=None if complete else _INCOMPLETE.get(self._reason, self._reason),
        )

    def _start(self, data: Mapping[str, Any]) -> None:
        if self._started:
            raise self.broken("began its answer twice")
        self._started = True
        message = data.get("message")
        if isinstance(message, dict):
            self._model = text_of(message.get("model")) or None
            self._id = text_of(message.get("id")) or None
            self._count(message.get("usage"), final=False)

    def _block(self, kind: str, data: Mapping[str, Any]) -> StreamPart | None:
        index = data.get("index")
        if not isinstance(index, int):
            raise self.broken(f"sent {kind} without an index")
        if kind == "content_block_start":
            start = data.get("content_block")
            if index in self._blocks or not isinstance(start, dict):
                raise self.broken(f"began block {index} twice, or without saying what it is")
            self._blocks[index] = _Block(text_of(start.get("type")), start)
            return None
        block = self._blocks.get(index)
        if block is None or not block.open:
            raise self.broken(f"sent a piece of block {index}, which is not open")
        if kind == "content_block_stop":
            block.open = False
            return None
        delta = data.get("delta")
        return self._delta(block, delta) if isinstance(delta, dict) else None

    def _delta(self, block: _Block, delta: Mapping[str, Any]) -> StreamPart | None:
        kind = delta.get("type")
        if kind == "text_delta" and block.kind == "text":
            piece = text_of(delta.get("text"))
            block.text.append(piece)
            return TextDelta(piece) if piece else None
        if kind == "input_json_delta" and block.kind == "tool_use":
            piece = text_of(delta.get("partial_json"))
            block.text.append(piece)
            return TextDelta(piece) if piece and self._constrained else None
        if kind == "thinking_delta" and block.kind == "thinking":
            piece = text_of(delta.get("thinking"))
            block.text.append(piece)
            return ReasoningDelta(piece) if piece else None
        if kind == "signature_delta" and block.kind == "thinking":
            block.signature.append(text_of(delta.get("signature")))
        return None

    def _stop(self) -> None:
        if not self._started or not self._reason:
            raise self.broken("ended its answer without a beginning or a reason")
        if any(block.open for block in self._blocks.values()):
            raise self.broken("ended its answer inside a block")
        self.ended = self.closed = True

    def _items(self, block: _Block, *, complete: bool) -> list[Item]:
        text = "".join(block.text)
        if block.kind == "text":
            text = text or text_of(block.start.get("text"))
            return [Message(role="assistant", text=text)] if text else []
        if block.kind == "thinking":
            signature = "".join(block.signature) or text_of(block.start.get("signature"))
            thinking = text or text_of(block.start.get("thinking"))
            payload = {"type": "thinking", "thinking": thinking, "signature": signature}
            return [Reasoning(origin=self.origin, payload=payload)]
        if block.kind == "redacted_thinking":
            payload = {"type": "redacted_thinking", "data": text_of(block.start.get("data"))}
            return [Reasoning(origin=self.origin, payload=payload)]
        if block.kind != "tool_use" or not complete:
            return []
        whole = block.start.get("input")
        # Some servers send the input at once, in the beginning of the block.
        arguments = text or arguments_text(whole) or "{}"
        if self._constrained:
            return [Message(role="assistant", text=arguments)]
        name, call_id = text_of(block.start.get("name")), text_of(block.start.get("id"))
        return [ToolCall(call_id=call_id, name=name, arguments=arguments)]

    def _count(self, raw: object, *, final: bool) -> None:
        """Take counts over; each is for the whole answer, and what was made is only known at its end."""
        if isinstance(raw, dict):
            for name, value in raw.items():
                if is_count(value) and (final or name != "output_tokens"):
                    self._usage[name] = value

    def _counted(self) -> Usage | None:
        if not {"input_tokens", "output_tokens"} <= self._usage.keys():
            return None
        cached = self._usage.get("cache_read_input_tokens", 0)
        written = self._usage.get("cache_creation_input_tokens", 0)
        # What was read from or written to the cache is not part of input_tokens here.
        return Usage(
            input=self._usage["input_tokens"] + cached + written,
            output=self._usage["output_tokens"],
            cached=cached,
            written=written,
        )
