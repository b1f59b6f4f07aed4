"""The `/messages` dialect: request fields, turns, cache marks, thinking, stop reasons, usage, forced answers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fixtures.model_requests import BadRequest, encrypted_for, parse_messages
from fixtures.model_scripts import Answer, Call, Fault, Steps
from fixtures.model_server import ModelServer
from fixtures.model_streams import events_of, frames_of
from hypothesis import given, settings
from test_clients import KEY, parts_of
from test_wire import ASK, READ, RUN, call, request, result, turns

from musecode_jupyter.models.messages import MessagesClient
from musecode_jupyter.models.types import (
    Final,
    Item,
    Message,
    ModelRequest,
    Reasoning,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from musecode_jupyter.runtime.errors import ModelError

CLIENT = MessagesClient(httpx.AsyncClient(), "http://127.0.0.1:1/v1", KEY)
MARK = {"cache_control": {"type": "ephemeral"}}
SCHEMA = {"type": "object", "properties": {"new_line": {"type": "string"}}, "required": ["new_line"]}


def sent(asked: ModelRequest) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(CLIENT.body(asked))
    parse_messages(raw, KEY)
    return raw


def thought(origin: str | None = None, kind: str = "thinking") -> Reasoning:
    payload = {"type": "thinking", "thinking": "hm", "signature": encrypted_for(KEY, "x")}
    if kind == "redacted_thinking":
        payload = {"type": kind, "data": "sealed"}
    return Reasoning(origin=origin or CLIENT.origin, payload=payload)


def test_all_fields() -> None:
    raw = sent(request(tools=(RUN, READ), temperature=0.0, seed=7, max_output_tokens=100, effort="low", cache_key="k"))
    assert raw == {
        "model": "muse-spark-1.3",
        "stream": True,
        "max_tokens": 100,
        "temperature": 0.0,
        "tools": [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in (READ, RUN)
        ],
        "system": [{"type": "text", "text": "Be exact.", **MARK}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "mend it", **MARK}]}],
    }
    assert {"tools", "system", "temperature", "tool_choice"} & sent(request(instructions="")).keys() == set()


def test_results_of_a_turn_stand_first_in_one_message_in_the_order_of_the_calls() -> None:
    raw = sent(
        request(
            ASK,
            Message(role="assistant", text="I read."),
            call("c1"),
            call("c2", "run", '{"command":"x"}'),
            result("c2", "two"),
            Message(role="user", text="hurry"),
            result("c1", "one"),
            Message(role="developer", text="note"),
            Message(role="assistant", text="Done."),
        )
    )
    assert [message["role"] for message in raw["messages"]] == ["user", "assistant", "user", "assistant"]
    assert raw["messages"][1]["content"] == [
        {"type": "text", "text": "I read."},
        {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}},
        {"type": "tool_use", "id": "c2", "name": "run", "input": {"command": "x"}},
    ]
    assert raw["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
        {"type": "tool_result", "tool_use_id": "c2", "content": "two"},
        {"type": "text", "text": "hurry"},
        {"type": "text", "text": "note", **MARK},
    ]


@pytest.mark.parametrize(
    "arguments", ["{", "[1]", "NaN", '{"a":1e400}', '{"a":1,"a":2}', '{"a":' * 40 + "1" + "}" * 40, "x" * 1_000_001]
)
def test_arguments_that_are_no_usable_object_are_quoted(arguments: str) -> None:
    said = sent(request(ASK, call(arguments=arguments), result()))["messages"][1]["content"][0]["input"]
    assert list(said) == ["invalid_arguments"]
    assert said["invalid_arguments"].startswith(arguments[:300])
    assert len(said["invalid_arguments"]) < 400


@pytest.mark.parametrize("call_id", ["", "call:1", "x" * 65, "é", "\ud800"])
def test_call_ids_of_other_apis_are_replaced(call_id: str) -> None:
    sent(request(ASK, call(call_id), result(call_id)))


def test_names_with_a_dot() -> None:
    sent(request(ASK, call(name="functions.run:1"), result()))
    with pytest.raises(ModelError, match="not allowed here"):
        CLIENT.body(request(tools=(ToolSpec(name="a.b", description="", parameters={"type": "object"}),)))


def test_conversation_without_a_message_of_the_user_is_refused() -> None:
    with pytest.raises(ModelError, match="does not begin"):
        CLIENT.body(request(Message(role="assistant", text="x")))


def test_empty_texts_are_no_blocks() -> None:
    raw = sent(request(ASK, Message(role="assistant", text=" \n"), Message(role="user", text="\n")))
    assert [len(message["content"]) for message in raw["messages"]] == [2]


def test_thinking_goes_back_as_it_came_to_where_it_came_from() -> None:
    items = (ASK, thought(), Message(role="assistant", text="I read."), call(), result())
    raw = sent(request(*items))
    assert raw["messages"][1]["content"][0] == {
        "type": "thinking",
        "thinking": "hm",
        "signature": encrypted_for(KEY, "x"),
    }
    redacted = json.loads(CLIENT.body(request(ASK, thought(kind="redacted_thinking"), call(), result())))
    assert redacted["messages"][1]["content"][0] == {"type": "redacted_thinking", "data": "sealed"}


def test_thinking_that_was_not_signed_goes_back_unsigned() -> None:
    """Servers that think and do not sign refuse a turn whose thinking is missing."""
    unsigned = Reasoning(origin=CLIENT.origin, payload={"type": "thinking", "thinking": "hm", "signature": ""})
    raw = json.loads(CLIENT.body(request(ASK, unsigned, call(), result())))
    assert raw["messages"][1]["content"][0] == {"type": "thinking", "thinking": "hm"}


@pytest.mark.parametrize(
    "items",
    [
        (ASK, thought("other"), call(), result()),
        (ASK, thought(), thought("other"), call(), result()),
        (ASK, thought(), Message(role="user", text="stop")),
        (ASK, Reasoning(origin=CLIENT.origin, payload={"type": "thinking"}), call(), result()),
    ],
    ids=["other origin", "mixed turn", "leads to nothing", "nothing in it"],
)
def test_thinking_that_would_be_refused_is_dropped(items: tuple[Item, ...]) -> None:
    sent(request(*items))
    assert b'"thinking"' not in CLIENT.body(request(*items))


@settings(max_examples=40)
@given(turns())
def test_blocks_of_a_request_are_a_prefix_of_the_next_and_the_mark_before_stays(pieces: list[list[Item]]) -> None:
    """Without a mark where the request before ended, a turn of many calls is paid for again, uncached."""
    earlier: list[Any] = []
    for count in range(1, len(pieces) + 1):
        raw = sent(request(*[item for piece in pieces[:count] for item in piece], tools=(RUN, READ)))
        blocks = [(message["role"], dict(block)) for message in raw["messages"] for block in message["content"]]
        marked = [place for place, (_, block) in enumerate(blocks) if block.pop("cache_control", None)]
        assert blocks[: len(earlier)] == earlier
        if blocks[-1][0] == "user":
            assert marked[-1] == len(blocks) - 1
        if (
            earlier
            and earlier[-1][0] == "user"
            and len(blocks) > len(earlier)
            and blocks[len(earlier)][0] == "assistant"
        ):
            assert len(earlier) - 1 in marked
        earlier = blocks


def answer(answered: Answer, asked: ModelRequest | None = None) -> list[Any]:
    with ModelServer(Steps([answered]), api="messages", key=KEY) as server:
        return parts_of("messages", server.base_url, asked)


def final_of(answered: Answer, asked: ModelRequest | None = None) -> Final:
    final = answer(answered, asked)[-1]
    assert isinstance(final, Final)
    return final


def test_a_schema_is_asked_for_by_a_forced_tool_and_its_input_is_the_answer() -> None:
    text = '{"new_line": "return a + b"}'
    with ModelServer(Steps([Answer(text)]), api="messages", key=KEY) as server:
        *deltas, final = parts_of("messages", server.base_url, request(json_schema=SCHEMA))
        raw = server.requests[0].json
    assert raw["tool_choice"] == {"type": "tool", "name": "answer", "disable_parallel_tool_use": True}
    assert [tool["input_schema"] for tool in raw["tools"]] == [SCHEMA]
    assert isinstance(final, Final)
    assert final.items == (Message(role="assistant", text=text),)
    assert "".join(part.text for part in deltas if isinstance(part, TextDelta)) == text


@pytest.mark.parametrize(
    ("reason", "status", "ours"),
    [
        ("end_turn", "completed", None),
        ("tool_use", "completed", None),
        ("stop_sequence", "completed", None),
        ("max_tokens", "incomplete", "max_output_tokens"),
        ("refusal", "incomplete", "refusal"),
        ("pause_turn", "incomplete", "pause_turn"),
        ("model_context_window_exceeded", "incomplete", "model_context_window_exceeded"),
        ("something_new", "incomplete", "something_new"),
    ],
)
def test_stop_reasons(reason: str, status: str, ours: str | None) -> None:
    """Only a known end lets calls through: any other may have come inside one."""
    final = final_of(Answer("I run.", (Call("run", {"command": "ls"}),), fault=Fault("incomplete", code=reason)))
    assert (final.status, final.reason) == (status, ours)
    assert sum(isinstance(item, ToolCall) for item in final.items) == (1 if status == "completed" else 0)


def test_usage_counts_what_was_read_from_and_written_to_the_cache() -> None:
    calls = (Call("run", {"command": "ls"}),)
    with ModelServer(Steps([Answer("I run.", calls), Answer("Done.")]), api="messages", key=KEY) as server:
        first = parts_of("messages", server.base_url)[-1]
        assert isinstance(first, Final)
        call_id = next(item.call_id for item in first.items if isinstance(item, ToolCall))
        more = (*first.items, ToolResult(call_id=call_id, output="x" * 400))
        asked = ModelRequest(
            model="muse-spark-1.3",
            instructions="Be exact.",
            items=(Message(role="user", text="go"), *more),
            tools=(ToolSpec(name="run", description="Run", parameters={"type": "object"}),),
        )
        second = parts_of("messages", server.base_url, asked)[-1]
    assert isinstance(second, Final)
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.cached == 0 < first.usage.written <= first.usage.input
    assert second.usage.cached == first.usage.written
    assert second.usage.input >= second.usage.cached + second.usage.written > second.usage.cached + 90


def test_thinking_is_shown_kept_with_its_seal_and_accepted_back() -> None:
    with ModelServer(
        Steps([Answer("I run.", (Call("run", {}),), reasoning=True), Answer("Done.")]), api="messages", key=KEY
    ) as server:
        *deltas, first = parts_of("messages", server.base_url)
        assert [part.text for part in deltas if isinstance(part, ReasoningDelta)] == ["thinking it over"]
        assert isinstance(first, Final)
        origin = MessagesClient(httpx.AsyncClient(), server.base_url, KEY).origin
        assert [item.origin for item in first.items if isinstance(item, Reasoning)] == [origin]
        call_id = next(item.call_id for item in first.items if isinstance(item, ToolCall))
        items = (Message(role="user", text="go"), *first.items, ToolResult(call_id=call_id, output=""))
        parts_of("messages", server.base_url, request(*items))
        assert b'"thinking":"thinking it over"' in server.requests[1].body


@pytest.mark.parametrize(
    "spoil",
    [
        lambda events: events[:1] + events,
        lambda events: events[1:],
        lambda events: [event for event in events if event[0] != "content_block_stop"],
        lambda events: [event for event in events if event[0] != "content_block_start"],
        lambda events: [event for event in events if event[0] != "message_delta"],
        lambda events: [each for event in events for each in ([event] * (1 + (event[0] == "content_block_start")))],
        lambda events: [each for event in events for each in ([event] * (1 + (event[0] == "content_block_stop")))],
        lambda events: [event for event in events if event[0] != "message_stop"],
    ],
    ids=[
        "two starts",
        "no start",
        "blocks left open",
        "pieces of no block",
        "no reason",
        "blocks begun twice",
        "blocks ended twice",
        "no end",
    ],
)
def test_streams_that_do_not_keep_to_the_protocol_are_no_answer(spoil: Any) -> None:
    from test_faults import parse, parsed, read

    events = events_of(parsed("messages"), Answer("I run.", (Call("run", {"command": "ls"}),)), (9, 0, 0), "")
    read("messages", parse(b"".join(frames_of("messages", events, None)[0])))
    with pytest.raises(ModelError) as caught:
        read("messages", parse(b"".join(frames_of("messages", spoil(events), None)[0])))
    assert caught.value.kind in ("protocol", "stream_cut")
    assert caught.value.retryable


GOOD: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
}
USE = {"type": "tool_use", "id": "c", "name": "run", "input": {}}
TEXT = {"type": "text", "text": "x"}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": ""}
USER = GOOD["messages"][0]


@pytest.mark.parametrize(
    "change",
    [
        {"stop": ["x"]},
        {"max_tokens": 0},
        {"temperature": 1.5},
        {"messages": []},
        {"messages": [{"role": "assistant", "content": [TEXT]}]},
        {"messages": [USER, USER]},
        {"messages": [USER, {"role": "assistant", "content": [USE]}]},
        {"messages": [USER, {"role": "assistant", "content": [USE]}, USER]},
        {"messages": [USER, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [TEXT, RESULT]}]},
        {"messages": [USER, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT, RESULT]}]},
        {"messages": [{"role": "user", "content": [RESULT]}]},
        {"messages": [USER, {"role": "assistant", "content": [{**USE, "id": "a b"}]}]},
        {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": " "}]}]},
        {"messages": [{"role": "user", "content": [{**TEXT, **MARK}] * 5}]},
        {"tools": [{"name": "a.b", "input_schema": {"type": "object"}}]},
        {"tools": [{"name": "a", "input_schema": {}}]},
        {"tools": [{"name": "a", "input_schema": {"type": "object"}}] * 2},
        {"tool_choice": {"type": "tool", "name": "a"}},
        {"system": [{"type": "text", "text": ""}]},
    ],
)
def test_the_strict_server_refuses_what_the_api_refuses(change: dict[str, Any]) -> None:
    parse_messages(GOOD, "")
    with pytest.raises(BadRequest):
        parse_messages({**GOOD, **change}, "")
