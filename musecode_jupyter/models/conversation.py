"""The order of a conversation on the wire: turns, each with its results behind it, and their JSON."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from musecode_jupyter.models.types import (
    Item,
    Message,
    ModelRequest,
    Reasoning,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from musecode_jupyter.runtime.errors import ModelError

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_.-]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass
class Turn:
    """What the assistant said without interruption, and the results of the calls in it."""

    said: list[Message | Reasoning | ToolCall] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)


def refuse(message: str) -> NoReturn:
    """Fail before anything is sent, for a request that every server would refuse."""
    raise ModelError(message, kind="invalid_request")


def check_request(request: ModelRequest) -> None:
    """Refuse what no dialect can express.

    Raises
    ------
    ModelError
        Kind `invalid_request`.
    """
    if not request.model:
        refuse("the request names no model: set MUSECODE_MODEL")
    if request.tools and request.json_schema is not None:
        refuse("a request can have tools or a JSON schema, not both")
    for tool in request.tools:
        if not _TOOL_NAME.fullmatch(tool.name) or tool.name.count(".") > 1:
            refuse(f"tool name {tool.name!r} is not allowed: letters, digits, _ and -, and one dot at most")


def sorted_tools(request: ModelRequest) -> list[ToolSpec]:
    """Tools by name: the order of registration must not change the cached prefix."""
    return sorted(request.tools, key=lambda tool: tool.name)


def arrange(items: Iterable[Item]) -> list[Message | Turn]:
    """Group items into turns and user or developer messages, each result right behind the turn that called.

    A message that arrived while tools ran stands after their results, as every API wants it. Empty assistant
    messages vanish.

    Raises
    ------
    ModelError
        Kind `invalid_request`, if a call has not exactly one result after it, or a result no call before it.
    """
    arranged: list[Message | Turn] = []
    turn_of: dict[str, Turn] = {}
    answered: set[str] = set()
    open_turn: Turn | None = None
    for item in items:
        if isinstance(item, ToolResult):
            if item.call_id not in turn_of or item.call_id in answered:
                refuse(f"tool result {item.call_id!r} answers no open call")
            answered.add(item.call_id)
            turn_of[item.call_id].results.append(item)
            open_turn = None
        elif isinstance(item, Message) and item.role != "assistant":
            arranged.append(item)
            open_turn = None
        elif isinstance(item, Message) and not item.text:
            continue
        else:
            if open_turn is None:
                open_turn = Turn()
                arranged.append(open_turn)
            open_turn.said.append(item)
            if isinstance(item, ToolCall):
                if item.call_id in turn_of:
                    refuse(f"call id {item.call_id!r} is used by two calls")
                turn_of[item.call_id] = open_turn
    if missing := sorted(turn_of.keys() - answered):
        refuse(f"tool call {missing[0]!r} has no result; every call needs exactly one before the next request")
    for entry in arranged:
        if isinstance(entry, Turn):
            order = {item.call_id: place for place, item in enumerate(entry.said) if isinstance(item, ToolCall)}
            entry.results.sort(key=lambda result: order[result.call_id])
    return arranged


def wire_call_id(call_id: str) -> str:
    """`call_id` itself if it has 1 to 64 characters, else a stable stand-in."""
    if 1 <= len(call_id) <= 64 and not _SURROGATE.search(call_id):
        return call_id
    return "call_" + _digest(call_id.encode("utf-8", "surrogatepass"))


def wire_name(name: str) -> str:
    """A replayed call's function name, made acceptable where the model invented an impossible one."""
    clean = re.sub(r"[^a-zA-Z0-9_.-]", "_", name) or "unknown"
    head, dot, tail = clean.partition(".")
    return head + dot + tail.replace(".", "_")


def wire_arguments(arguments: str) -> str:
    """The model's own text if it is a JSON object, else one that quotes it: servers parse replays."""
    if not arguments.strip():
        return "{}"
    try:
        if isinstance(parse_json(arguments), dict):
            return arguments
    except ValueError:
        pass
    return json.dumps({"invalid_arguments": whole(arguments)}, ensure_ascii=False)


def fresh_call_ids(calls: Iterable[ToolCall], request: ModelRequest, body: bytes) -> Iterator[ToolCall]:
    """Give every call of an answer an id that nothing in the conversation has used.

    Servers are known to send none, or the same ones each turn. A new id is made from the request's bytes and
    the call's place, so that it is the same when the answer is read again.
    """
    used = {item.call_id for item in request.items if isinstance(item, ToolCall)}
    for place, call in enumerate(calls):
        call_id = call.call_id
        if call_id in used or wire_call_id(call_id) != call_id:
            call_id = "call_" + _digest(body + b"#%d" % place)
        used.add(call_id)
        yield call if call_id == call.call_id else call.model_copy(update={"call_id": call_id})


def whole(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced: servers refuse them."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def dump_json(value: Any) -> bytes:
    """Compact UTF-8 JSON in the given key order (a schema's order steers constrained answers).

    Raises
    ------
    ModelError
        Kind `invalid_request`, for NaN, infinities and values that are not JSON.
    """
    try:
        return json.dumps(_whole_tree(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        refuse(f"the request cannot be written as JSON: {error}")


def parse_json(text: str) -> Any:
    """Parse JSON proper: NaN and Infinity are refused with `ValueError`, and so is nesting without end."""

    def no_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(text, parse_constant=no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _whole_tree(value: Any) -> Any:
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, dict):
        return {_whole_tree(key): _whole_tree(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_whole_tree(child) for child in value]
    return value


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()
