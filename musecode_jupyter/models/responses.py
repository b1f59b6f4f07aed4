"""The `/responses` dialect of Meta's Model API and of OpenAI: request bytes, and its event stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from musecode_jupyter.models.catalogue import CATALOGUE
from musecode_jupyter.models.client import Answer, HttpClient, arguments_text, text_of
from musecode_jupyter.models.conversation import (
    Turn,
    arrange,
    check_request,
    data_url,
    dump_json,
    refuse,
    shallow,
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
    Reasoning,
    ReasoningDelta,
    StreamPart,
    TextDelta,
    ToolCall,
    Usage,
)

_MIN_OUTPUT = 16
_MAX_DEPTH = 16


class ResponsesClient(HttpClient):
    """`ModelClient` for `POST {base_url}/responses` (`store: false`).

    `temperature` and `seed` have no place in this dialect and are not sent. The parameters are those of `HttpClient`.
    """

    dialect = "responses"
    path = "/responses"

    def body(self, request: ModelRequest) -> bytes:
        """The exact bytes of `request`; items come last, so that they are a prefix of the next request's.

        Raises
        ------
        ModelError
            Kind `invalid_request`, for what the API is known to refuse.
        """
        check_request(request)
        known = CATALOGUE.get(request.model)
        limit = max(_MIN_OUTPUT, request.max_output_tokens)
        wire: dict[str, Any] = {
            "model": request.model,
            "stream": True,
            "store": False,
            "truncation": "disabled",
            "include": ["reasoning.encrypted_content"],
            "max_output_tokens": min(limit, known.max_output) if known else limit,
        }
        if request.effort is not None:
            allowed = known.efforts if known else ()
            if request.effort == "none" or (allowed and request.effort not in allowed):
                refuse(
                    f"{request.model} has no effort {request.effort!r}: use {', '.join(allowed) or 'minimal to xhigh'}"
                )
            wire["reasoning"] = {"effort": request.effort}
        if request.json_schema is not None:
            form = {"type": "json_schema", "name": "answer", "schema": request.json_schema, "strict": True}
            wire["text"] = {"format": form}
        if request.cache_key is not None:
            wire["prompt_cache_key"] = request.cache_key
        if request.tools:
            wire["parallel_tool_calls"] = True
            wire["tools"] = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": False,
                }
                for tool in sorted_tools(request)
            ]
        if request.instructions:
            wire["instructions"] = request.instructions
        wire["input"] = self._input(request)
        return dump_json(wire)

    def _answer(self, caller: Caller, request: ModelRequest) -> Answer:
        return _Answer(caller, self._origin)

    def _carries_reasoning(self, body: bytes) -> bool:
        return b'"type":"reasoning"' in body

    def _input(self, request: ModelRequest) -> list[dict[str, Any]]:
        wire: list[dict[str, Any]] = []
        for entry in arrange(request.items):
            if isinstance(entry, Message):
                content = [{"type": "input_text", "text": entry.text}]
                wire.append({"type": "message", "role": entry.role, "content": content})
                continue
            if isinstance(entry, Picture):
                caption = {"type": "input_text", "text": entry.caption}
                image = {"type": "input_image", "image_url": data_url(entry), "detail": "auto"}
                wire.append({"type": "message", "role": "user", "content": [caption, image]})
                continue
            keep_reasoning = self._may_replay_reasoning(entry)
            for item in entry.said:
                if isinstance(item, Reasoning):
                    if keep_reasoning:
                        wire.append(_reasoning(item))
                elif isinstance(item, ToolCall):
                    wire.append(
                        {
                            "type": "function_call",
                            "call_id": wire_call_id(item.call_id),
                            "name": wire_name(item.name),
                            "arguments": wire_arguments(item.arguments),
                        }
                    )
                else:
                    content = [{"type": "output_text", "text": item.text}]
                    message = {"type": "message", "role": "assistant", "content": content}
                    wire.append(message if item.phase is None else {**message, "phase": item.phase})
            wire += [
                {
                    "type": "function_call_output",
                    "call_id": wire_call_id(result.call_id),
                    "output": result.output,
                }
                for result in entry.results
            ]
        return wire

    def _may_replay_reasoning(self, turn: Turn) -> bool:
        """Whole turns are kept or dropped: all items ours, readable, and followed by what they led to."""
        reasoning = [item for item in turn.said if isinstance(item, Reasoning)]
        return not isinstance(turn.said[-1], Reasoning) and all(
            item.origin == self._origin and isinstance(item.payload.get("encrypted_content"), str) for item in reasoning
        )


class _Answer(Answer):
    """What a stream of `/responses` has said so far; its terminal event repeats the whole answer."""

    def __init__(self, caller: Caller, origin: str) -> None:
        super().__init__(caller, origin)
        self._done: dict[int, dict[str, Any]] = {}
        self._announced: set[int] = set()
        self._text: list[str] = []
        self._previous = ""
        self._final: Final | None = None

    def take(self, event: ServerEvent) -> Iterable[StreamPart]:
        # A numbered event that comes twice in a row is a repetition by the server or a proxy.
        if event.data == self._previous and '"sequence_number"' in self._previous:
            return ()
        self._previous = event.data
        part = self._take(event.event, self.parse(event))
        return () if part is None else (part,)

    def final(self) -> Final:
        assert self._final is not None
        return self._final

    def _take(self, name: str, event: Mapping[str, Any]) -> StreamPart | None:
        kind = str(event.get("type") or name)
        if kind == "error" or (not event.get("type") and "error" in event):
            error = event.get("error")
            raise event_failure(self.caller, error if isinstance(error, dict) else _flat_error(event))
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            return self._text_delta(event)
        if kind == "response.reasoning_summary_text.delta":
            delta = text_of(event.get("delta"))
            return ReasoningDelta(delta) if delta else None
        if kind in ("response.output_item.added", "response.output_item.done"):
            self._output_item(kind, event)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            response = event.get("response")
            self._final = self._end(kind, response if isinstance(response, dict) else {})
            self.ended = self.closed = True
        return None

    def _text_delta(self, event: Mapping[str, Any]) -> TextDelta | None:
        delta = text_of(event.get("delta"))
        if not delta:
            return None
        self._text.append(delta)
        return TextDelta(delta)

    def _output_item(self, kind: str, event: Mapping[str, Any]) -> None:
        item, index = event.get("item"), event.get("output_index")
        if not isinstance(item, dict):
            return
        place = index if isinstance(index, int) else len(self._done)
        if kind.endswith(".done"):
            self._done[place] = item
        elif item.get("type") == "function_call":
            self._announced.add(place)

    def _end(self, kind: str, response: Mapping[str, Any]) -> Final:
        # Some servers name the end by the event, others by the status inside it; the worse of the two counts.
        status = str(response.get("status") or "")
        if kind == "response.failed" or status in ("failed", "cancelled"):
            error = response.get("error")
            if not isinstance(error, dict):
                error = {"message": f"the response ended as {status or 'failed'}"}
            raise event_failure(self.caller, error)
        output = _objects(response.get("output"))
        complete = kind == "response.completed" and status in ("", "completed")
        if not output:
            if complete and self._announced - self._done.keys():
                raise self.broken("completed without the tool call that it had begun")
            output = [self._done[place] for place in sorted(self._done)]
        if complete and any(raw.get("type") == "function_call" and raw.get("status") == "incomplete" for raw in output):
            raise self.broken("completed with a tool call that it calls incomplete")
        items, refused = self._items(output)
        if not any(isinstance(item, Message) for item in items) and self._text and not output:
            items.append(Message(role="assistant", text="".join(self._text)))
        details = response.get("incomplete_details")
        reason = str(details.get("reason") or "unknown") if isinstance(details, dict) else "unknown"
        if refused:
            complete, reason = False, "refusal"
        return Final(
            status="completed" if complete else "incomplete",
            # An incomplete answer may end inside a call's arguments: none of its calls is handed on.
            items=tuple(items if complete else [item for item in items if not isinstance(item, ToolCall)]),
            usage=_usage(response.get("usage")),
            model=_text_or_none(response.get("model")),
            response_id=_text_or_none(response.get("id")),
            reason=None if complete else reason,
        )

    def _items(self, output: list[dict[str, Any]]) -> tuple[list[Item], bool]:
        items: list[Item] = []
        refused = False
        for raw in output:
            kind = raw.get("type")
            if kind == "reasoning":
                # What is nested deeper than any known item could not be logged or sent again.
                if shallow(raw, _MAX_DEPTH):
                    items.append(Reasoning(origin=self.origin, payload=raw))
            elif kind == "message":
                content = raw.get("content")
                parts = _objects(content)
                refused = refused or any(part.get("type") == "refusal" for part in parts)
                # Some servers send the text itself in the place of its parts.
                text = text_of(content) or "".join(
                    text_of(part.get("text")) or text_of(part.get("refusal")) for part in parts
                )
                if text:
                    items.append(Message(role="assistant", text=text, phase=_text_or_none(raw.get("phase"))))
            elif kind == "function_call":
                call = ToolCall(
                    call_id=str(raw.get("call_id") or ""),
                    name=str(raw.get("name") or ""),
                    arguments=arguments_text(raw.get("arguments")),
                )
                # The same call under the same id is one call that was sent twice, never two.
                if not call.call_id or call not in items:
                    items.append(call)
        return items, refused


def _reasoning(item: Reasoning) -> dict[str, Any]:
    summary = item.payload.get("summary")
    return {
        "type": "reasoning",
        "summary": summary if isinstance(summary, list) else [],
        "encrypted_content": item.payload["encrypted_content"],
    }


def _objects(value: object) -> list[dict[str, Any]]:
    """The objects in a list; none if it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _flat_error(event: Mapping[str, Any]) -> dict[str, Any]:
    """An `error` event without an inner object: its `type` only says that it is an error."""
    return {name: value for name, value in event.items() if name in ("code", "message", "param")}


def _text_or_none(value: object) -> str | None:
    return text_of(value) or None


def _usage(raw: object) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    return usage_of(
        raw.get("input_tokens"),
        raw.get("output_tokens"),
        raw.get("input_tokens_details"),
        raw.get("output_tokens_details"),
    )
