"""Request bytes of the dialects: what is sent, what never is, and what stays equal from turn to turn."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import httpx
import pytest
from fixtures.model_requests import encrypted_for, parse_chat, parse_messages, parse_responses
from hypothesis import given, settings
from hypothesis import strategies as st

from musecode_jupyter.agents.context import build_request
from musecode_jupyter.models.chat import ChatClient
from musecode_jupyter.models.client import HttpClient
from musecode_jupyter.models.messages import MessagesClient
from musecode_jupyter.models.responses import ResponsesClient
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
from musecode_jupyter.runtime.errors import ConfigurationError, ModelError

KEY = "key-0123456789"
HTTP = httpx.AsyncClient()
RESPONSES = ResponsesClient(HTTP, "http://127.0.0.1:1/v1", KEY)
CHAT = ChatClient(HTTP, "http://127.0.0.1:1/v1", KEY)
MESSAGES = MessagesClient(HTTP, "http://127.0.0.1:1/v1", KEY)
PARSERS = {RESPONSES: parse_responses, CHAT: parse_chat, MESSAGES: parse_messages}
ALL = pytest.mark.parametrize("client", PARSERS, ids=["responses", "chat", "messages"])

READ = ToolSpec(name="read", description="Read lines", parameters={"type": "object", "properties": {"path": {}}})
RUN = ToolSpec(name="run", description="Run", parameters={"type": "object", "properties": {"command": {}}})
ASK = Message(role="user", text="mend it")


def request(*items: Item, **fields: Any) -> ModelRequest:
    return ModelRequest(**{"model": "muse-spark-1.3", "instructions": "Be exact.", "items": items or (ASK,), **fields})


def call(call_id: str = "c1", name: str = "read", arguments: str = '{"path":"a"}') -> ToolCall:
    return ToolCall(call_id=call_id, name=name, arguments=arguments)


def result(call_id: str = "c1", output: str = "text") -> ToolResult:
    return ToolResult(call_id=call_id, output=output)


def thought(origin: str | None = None, content: str = "x") -> Reasoning:
    payload = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": _sealed(content)}
    return Reasoning(origin=origin or RESPONSES.origin, payload=payload)


def _sealed(content: str) -> str:
    return encrypted_for(f"Bearer {KEY}", content)


def sent(client: HttpClient, asked: ModelRequest) -> dict[str, Any]:
    """The request as JSON, after the strict server's own checks."""
    raw: dict[str, Any] = json.loads(client.body(asked))
    PARSERS[client](raw, KEY if client is MESSAGES else f"Bearer {KEY}")
    return raw


def test_responses_fields() -> None:
    raw = sent(RESPONSES, request(tools=(RUN, READ), effort="high", max_output_tokens=3, cache_key="lead", seed=1))
    assert raw == {
        "model": "muse-spark-1.3",
        "stream": True,
        "store": False,
        "truncation": "disabled",
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 16,
        "reasoning": {"effort": "high"},
        "prompt_cache_key": "lead",
        "parallel_tool_calls": True,
        "tools": [
            {"type": "function", **READ.model_dump(), "strict": False},
            {"type": "function", **RUN.model_dump(), "strict": False},
        ],
        "instructions": "Be exact.",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "mend it"}]}],
    }


def test_responses_without_options_sends_none_of_them() -> None:
    raw = sent(RESPONSES, request(instructions="", temperature=0.5))
    absent = {
        "tools",
        "parallel_tool_calls",
        "tool_choice",
        "reasoning",
        "text",
        "instructions",
        "temperature",
    }
    assert not absent & raw.keys()


def test_output_limit_is_the_models_own_at_most() -> None:
    assert sent(RESPONSES, request(max_output_tokens=10**9))["max_output_tokens"] == 131_072


def test_chat_fields() -> None:
    raw = sent(CHAT, request(tools=(RUN, READ), temperature=0.0, seed=7, max_output_tokens=100, effort="low"))
    assert raw == {
        "model": "muse-spark-1.3",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 100,
        "temperature": 0.0,
        "seed": 7,
        "tools": [
            {"type": "function", "function": READ.model_dump()},
            {"type": "function", "function": RUN.model_dump()},
        ],
        "messages": [{"role": "system", "content": "Be exact."}, {"role": "user", "content": "mend it"}],
    }


def test_json_schema_keeps_the_order_of_its_properties() -> None:
    schema = {"type": "object", "properties": {"thought": {}, "old_line": {}, "new_line": {}}}
    asked = request(json_schema=schema)
    assert sent(RESPONSES, asked)["text"]["format"]["schema"] == schema
    form = sent(CHAT, asked)["response_format"]
    assert form == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }
    for client in (RESPONSES, CHAT):
        body = client.body(asked)
        assert body.index(b"thought") < body.index(b"old_line") < body.index(b"new_line")


def test_responses_items_keep_order_and_phase() -> None:
    raw = sent(
        RESPONSES,
        request(
            Message(role="developer", text="note"),
            ASK,
            thought(),
            Message(role="assistant", text="I read.", phase="commentary"),
            call("c1"),
            call("c2", "run", '{"command":"x"}'),
            result("c1"),
            result("c2"),
            Message(role="assistant", text="Done."),
            Message(role="user", text="more"),
        ),
    )
    kinds = [item.get("role", item["type"]) for item in raw["input"]]
    assert kinds == [
        "developer", "user", "reasoning", "assistant", "function_call", "function_call",
        "function_call_output", "function_call_output", "assistant", "user",
    ]  # fmt: skip
    assert raw["input"][2] == {"type": "reasoning", "summary": [], "encrypted_content": _sealed("x")}
    assert raw["input"][3]["phase"] == "commentary"
    assert "phase" not in raw["input"][8]


@pytest.mark.parametrize(
    "items",
    [
        (ASK, thought("other"), call(), result()),
        (ASK, thought(), Message(role="user", text="stop")),
        (ASK, thought()),
        (ASK, call(), thought(), result()),
        (ASK, thought(), thought("other"), call(), result()),
        (ASK, thought(), Message(role="assistant", text=""), Message(role="user", text="more")),
        (ASK, Reasoning(origin=RESPONSES.origin, payload={"summary": []}), call(), result()),
    ],
    ids=["other origin", "before user", "at end", "after call", "mixed turn", "before nothing", "unreadable"],
)
def test_reasoning_that_would_be_refused_is_dropped_with_its_turn(items: tuple[Item, ...]) -> None:
    """A session resumed with another key sent reasoning items of the old one and got 400 for ever."""
    assert b"encrypted_content" not in RESPONSES.body(request(*items)).replace(b"reasoning.encrypted_content", b"")
    sent(RESPONSES, request(*items))


def test_origin_is_bound_to_key_address_tier_and_dialect_and_hides_the_key() -> None:
    def origin(url: str = "http://h/v1", key: str | None = "k1", tier: str = "standard") -> str:
        return ResponsesClient(HTTP, url, key, tier=tier).origin

    others = [origin("http://g/v1"), origin(key="k2"), origin(key=None), origin(tier="contributor")]
    others += [client(HTTP, "http://h/v1", "k1").origin for client in (ChatClient, MessagesClient)]
    assert len({origin(), *others}) == 7
    assert origin() == origin("http://h/v1/")
    assert "k1" not in origin()


def test_chat_groups_one_turn_into_one_assistant_message() -> None:
    raw = sent(
        CHAT,
        request(
            ASK,
            thought(),
            Message(role="assistant", text="I read."),
            call("c1"),
            call("c2"),
            result("c2", "two"),
            Message(role="user", text="hurry"),
            result("c1", "one"),
            Message(role="developer", text="note"),
        ),
    )
    first, second = raw["messages"][2]["tool_calls"]
    assert (first["id"], second["id"]) == ("c1", "c2")
    assert raw["messages"][2]["content"] == "I read."
    assert raw["messages"][3:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "user", "content": "hurry"},
        {"role": "system", "content": "note"},
    ]


@ALL
@pytest.mark.parametrize(
    "items",
    [
        (ASK, call()),
        (ASK, result()),
        (ASK, call(), result(), result()),
        (ASK, call(), call(), result()),
        (result(), call()),
    ],
    ids=["no result", "no call", "two results", "one id twice", "result first"],
)
def test_unpaired_calls_are_refused_before_anything_is_sent(client: HttpClient, items: tuple[Item, ...]) -> None:
    with pytest.raises(ModelError, match="c1") as caught:
        client.body(request(*items))
    assert (caught.value.kind, caught.value.retryable) == ("invalid_request", False)


@ALL
@pytest.mark.parametrize("call_id", ["", "x" * 65, "x" * 64, "\ud800"])
def test_call_ids_of_other_servers_fit(client: HttpClient, call_id: str) -> None:
    sent(client, request(ASK, call(call_id), result(call_id)))


@ALL
@pytest.mark.parametrize("arguments", ["", "{", "[1]", '"x"', "NaN", '{"a": NaN}', "\ud800", "[" * 100_000])
def test_arguments_that_are_no_json_object_are_quoted(client: HttpClient, arguments: str) -> None:
    """Servers parse replayed arguments: a call once cut short made every later request fail."""
    sent(client, request(ASK, call(arguments=arguments), result()))


@ALL
@pytest.mark.parametrize("name", ["", "functions.run:1", "a.b.c", "läs", "x y"])
def test_impossible_function_names_are_made_possible(client: HttpClient, name: str) -> None:
    sent(client, request(ASK, call(name=name), result()))


@ALL
def test_lone_surrogates_are_replaced_and_pairs_joined(client: HttpClient) -> None:
    text = client.body(request(Message(role="user", text="\ud83d\ude00 \ud800 é"))).decode()
    assert "\U0001f600 \ufffd é" in text


@ALL
@pytest.mark.parametrize(
    "fields",
    [
        {"tools": (READ,), "json_schema": {}},
        {"tools": (ToolSpec(name="a.b.c", description="", parameters={}),)},
        {"tools": (ToolSpec(name="", description="", parameters={}),)},
        {"tools": (ToolSpec(name="a", description="", parameters={"x": float("nan")}),)},
        {"model": ""},
    ],
)
def test_requests_that_no_server_takes_are_refused(client: HttpClient, fields: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as caught:
        client.body(request(**fields))
    assert caught.value.kind == "invalid_request"


@pytest.mark.parametrize(
    ("model", "effort"), [("muse-spark-1.3", "none"), ("muse-spark-1.2", "max"), ("other", "none")]
)
def test_refused_efforts_are_not_sent(model: str, effort: str) -> None:
    with pytest.raises(ModelError, match="effort"):
        RESPONSES.body(request(model=model, effort=effort))


@ALL
def test_model_in_the_bytes_is_the_requests(client: HttpClient) -> None:
    for model in ("muse-spark-1.2", "muse-spark-1.3", 'odd"id'):
        assert json.loads(client.body(request(model=model)))["model"] == model


@pytest.mark.parametrize("key", ["a b", "a\nb", "schlüssel"])
def test_key_that_fits_no_header_is_refused_unquoted(key: str) -> None:
    """The HTTP library quotes an illegal header, key included, in its error."""
    with pytest.raises(ConfigurationError, match="MODEL_API_KEY") as caught:
        ResponsesClient(HTTP, "http://h/v1", key, key_source="MODEL_API_KEY")
    assert key not in str(caught.value)


_WORDS = st.text(st.characters(exclude_categories=[]), max_size=8)


@st.composite
def turns(draw: st.DrawFn) -> list[list[Item]]:
    """A conversation as pieces, each of which ends where a request may be made."""
    pieces: list[list[Item]] = [[ASK]]
    number = 0
    for _ in range(draw(st.integers(1, 5))):
        said: list[Item] = []
        if draw(st.booleans()):
            said.append(thought(draw(st.sampled_from([None, "other"]))))
        if draw(st.booleans()):
            said.append(Message(role="assistant", text=draw(_WORDS), phase=draw(st.sampled_from([None, "commentary"]))))
        ids = [f"c{number + place}" for place in range(draw(st.integers(0, 3)))]
        number += len(ids)
        said += [call(call_id, arguments=draw(_WORDS)) for call_id in ids]
        after: list[Item] = [result(call_id, draw(_WORDS)) for call_id in draw(st.permutations(ids))]
        if not ids or draw(st.booleans()):
            after.insert(draw(st.integers(0, len(after))), Message(role="user", text=draw(_WORDS)))
        pieces.append(said + after)
    return pieces


@settings(max_examples=40)
@given(turns(), st.randoms(use_true_random=False))
def test_items_of_a_request_are_a_byte_prefix_of_the_next(pieces: list[list[Item]], rng: random.Random) -> None:
    """Caching works on identical prefixes; tools shuffled at registration once cost every cached token."""
    for client in (RESPONSES, CHAT):
        previous = b""
        for count in range(1, len(pieces) + 1):
            tools = rng.sample([READ, RUN], 2)
            asked = request(*[item for piece in pieces[:count] for item in piece], tools=tuple(tools))
            body = client.body(asked)
            sent(client, asked)
            assert body == client.body(asked)
            assert body.startswith(previous)
            previous = body.removesuffix(b"]}")


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n and the rest").decode()
SHOWN = Picture(
    caption="Picture 1 of cell a",
    mime="image/png",
    width=3,
    height=2,
    data=PNG,
    instead="Picture 1 of cell a (not shown: this model takes no pictures)",
)


def test_a_picture_in_each_dialect() -> None:
    responses = sent(RESPONSES, request(ASK, SHOWN, pictures=True))["input"][-1]
    assert responses == {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "Picture 1 of cell a"},
            {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
        ],
    }
    chat = sent(CHAT, request(ASK, SHOWN, pictures=True))["messages"][-1]
    assert chat == {
        "role": "user",
        "content": [
            {"type": "text", "text": "Picture 1 of cell a"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        ],
    }
    messages = sent(MESSAGES, request(ASK, SHOWN, pictures=True))["messages"]
    assert [block["type"] for block in messages[0]["content"]] == ["text", "text", "image"]
    assert messages[0]["content"][-1]["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}


@ALL
def test_pictures_of_two_parallel_results_stand_behind_both(client: HttpClient) -> None:
    """No API takes anything between the results of one turn."""
    first = (ASK, call("c1"), call("c2"), result("c1"), SHOWN, result("c2"), SHOWN)
    whole = request(*first, Message(role="assistant", text="seen"), ASK, pictures=True)
    sent(client, request(*first, pictures=True))
    raw = sent(client, whole)
    kinds = [item["type"] for item in PARSERS[client](raw, KEY if client is MESSAGES else f"Bearer {KEY}").items]
    assert [kind for kind in kinds if kind in ("tool_result", "picture")] == ["tool_result"] * 2 + ["picture"] * 2


@ALL
def test_a_picture_is_told_of_in_words_where_the_model_takes_none(client: HttpClient) -> None:
    asked = build_request(
        {
            "model": "muse-spark-1.3",
            "max_output_tokens": 100,
            "effort": None,
            "temperature": None,
            "seed": None,
            "cache_key": None,
        },
        instructions="",
        items=(ASK, SHOWN),
        tools=(),
        json_schema=None,
    )
    text = json.dumps(sent(client, asked))
    assert PNG not in text
    assert "Picture 1 of cell a (not shown: this model takes no pictures)" in text
