"""The order of a conversation on the wire: turns, each with its results behind it, and their JSON."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from musecode_jupyter.models.types import (
    Item,
    Message,
    ModelRequest,
    Picture,
    Reasoning,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from musecode_jupyter.runtime.errors import ModelError

MAX_ARGUMENT_CHARS = 1_000_000
"""Longest argument text of a call that is accepted, and sent back whole; the largest file that may be edited at once
is smaller, and a model's output limit much smaller."""

MAX_ARGUMENT_DEPTH = 32
"""Deepest nesting of a call's arguments; none of the tools has more than two levels."""

_LARGEST_INTEGER = 2**63
_QUOTED = 300
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


def arrange(items: Iterable[Item]) -> list[Message | Picture | Turn]:
    """Group items into turns, pictures and user or developer messages, each result right behind the turn that called.

    What arrived while tools ran stands after their results, as every API wants it. Empty assistant messages vanish.

    Raises
    ------
    ModelError
        Kind `invalid_request`, if a call has not exactly one result after it, or a result no call before it.
    """
    arranged: list[Message | Picture | Turn] = []
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
        elif isinstance(item, Picture) or (isinstance(item, Message) and item.role != "assistant"):
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


def data_url(picture: Picture) -> str:
    """The picture as a `data:` URL (RFC 2397)."""
    return f"data:{picture.mime};base64,{picture.data}"


def wire_call_id(call_id: str) -> str:
    """`call_id` itself if it has 1 to 64 characters, else a stable stand-in."""
    if 1 <= len(call_id) <= 64 and not _SURROGATE.search(call_id):
        return call_id
    return "call_" + _digest(call_id.encode("utf-8", "surrogatepass"))


def wire_name(name: str) -> str:
    """A replayed call's function name, made acceptable where the model invented an impossible one."""
    clean = re.sub(r"[^a-zA-Z0-9_.-]", "_", name[:64]) or "unknown"
    head, dot, tail = clean.partition(".")
    return head + dot + tail.replace(".", "_")


def wire_arguments(arguments: str) -> str:
    """The model's own text if it is a JSON object, else one that quotes it: servers parse replays."""
    if not arguments.strip():
        return "{}"
    if len(arguments) <= MAX_ARGUMENT_CHARS:
        try:
            if isinstance(parse_json(arguments), dict):
                return arguments
        except ValueError:
            pass
    return json.dumps(quoted_arguments(arguments), ensure_ascii=False)


def quoted_arguments(arguments: str) -> dict[str, Any]:
    """An object that shows arguments which are no object; of a text that is too long, its beginning."""
    text = whole(arguments)
    if len(text) > MAX_ARGUMENT_CHARS:
        text = f"{text[:_QUOTED]} [... {len(text) - _QUOTED} more characters]"
    return {"invalid_arguments": text}


def arguments_object(arguments: str) -> dict[str, Any]:
    """The arguments of a call as they may be acted on; no text means no arguments.

    Raises
    ------
    ValueError
        Not one JSON object, or one that cannot be logged, sent or used as it is; says why, for the model.
    """
    if len(arguments) > MAX_ARGUMENT_CHARS:
        raise ValueError(
            f"they have {len(arguments)} characters, {MAX_ARGUMENT_CHARS} at most are taken: do it in several calls"
        )
    try:
        value = json.loads(
            arguments.strip() or "{}",
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_integer,
            object_pairs_hook=_no_duplicates,
        )
    except RecursionError:
        raise ValueError(f"nested more than {MAX_ARGUMENT_DEPTH} deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"one JSON object is wanted, not {type(value).__name__}")
    if not shallow(value, MAX_ARGUMENT_DEPTH):
        raise ValueError(f"nested more than {MAX_ARGUMENT_DEPTH} deep")
    if _SURROGATE.search(arguments) or ("\\ud" in arguments.lower() and _torn(value)):
        raise ValueError("they hold half of a surrogate pair: write the character itself")
    return value


def shallow(value: Any, depth: int) -> bool:
    """Whether `value`, as JSON gives it, is nested at most `depth` deep; what is deeper cannot be written again."""
    level = [value]
    for _ in range(depth):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return True
    return not any(isinstance(each, dict | list) for each in level)


def _torn(value: Any) -> bool:
    if isinstance(value, str):
        return _SURROGATE.search(value) is not None
    if isinstance(value, dict):
        return any(_torn(key) or _torn(child) for key, child in value.items())
    return isinstance(value, list) and any(_torn(child) for child in value)


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
    """Parse JSON proper: `ValueError` for NaN, Infinity, numbers beyond a float, and nesting without end."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _integer(text: str) -> int:
    # Longer ones are not even parsed: the time grows with the square of the digits.
    if len(text) > 20 or abs(number := int(text)) >= _LARGEST_INTEGER:
        raise ValueError(f"the number {text[:20]}{'...' if len(text) > 20 else ''} is too large")
    return number


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


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
