"""The clients of all APIs against a real server on loopback: answers, usage, ids, and all that can go wrong."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from fixtures.model_server import Answer, Call, Fault, ModelServer, Steps

from musecode_jupyter.models.chat import ChatClient
from musecode_jupyter.models.messages import MessagesClient
from musecode_jupyter.models.responses import ResponsesClient
from musecode_jupyter.models.transport import Deadlines
from musecode_jupyter.models.types import (
    Final,
    Item,
    Message,
    ModelRequest,
    Reasoning,
    ReasoningDelta,
    StreamPart,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from musecode_jupyter.runtime.errors import ModelError

KEY = "key-0123456789"
CLIENTS = {"responses": ResponsesClient, "chat": ChatClient, "messages": MessagesClient}
APIS = pytest.mark.parametrize("api", CLIENTS)
TOOL = ToolSpec(name="run", description="Run", parameters={"type": "object"})
ASK = Message(role="user", text="go")
CALLS = (Call("run", {"command": "ls é"}), Call("run", {"command": "pwd"}))


def ask(*items: Item, **fields: Any) -> ModelRequest:
    fixed = {"model": "muse-spark-1.3", "instructions": "Be exact.", "tools": (TOOL,)}
    return ModelRequest(**{**fixed, "items": items or (ASK,), **fields})


def plain_http() -> httpx.AsyncClient:
    """A client for loopback only; reading the certificates each time would take longer than the tests."""
    return httpx.AsyncClient(verify=False, trust_env=False)


def parts_of(
    api: str, base_url: str, request: ModelRequest | None = None, *, key: str | None = KEY, **options: Any
) -> list[StreamPart]:
    async def collect() -> list[StreamPart]:
        async with plain_http() as http:
            client = CLIENTS[api](http, base_url, key, **options)
            async with aclosing(client.stream(request or ask())) as stream:
                return [part async for part in stream]

    return asyncio.run(collect())


async def end_of(stream: AsyncIterator[StreamPart]) -> Final | ModelError:
    """What a stream ended in."""
    try:
        parts = [part async for part in stream]
    except ModelError as error:
        return error
    assert isinstance(parts[-1], Final)
    return parts[-1]


def answer_of(api: str, answer: Answer, request: ModelRequest | None = None, **options: Any) -> Final:
    with ModelServer(Steps([answer]), key=KEY) as server:
        final = parts_of(api, server.base_url, request, **options)[-1]
    assert isinstance(final, Final)
    return final


def failure_of(api: str, fault: Fault, request: ModelRequest | None = None, **options: Any) -> ModelError:
    with ModelServer(Steps([Answer("hm", CALLS, fault=fault)]), key=KEY) as server:
        with pytest.raises(ModelError) as caught:
            parts_of(api, server.base_url, request, **options)
        assert len(server.requests) == 1, "a client never retries"
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def calls_in(final: Final) -> list[tuple[str, Any]]:
    return [(item.name, json.loads(item.arguments)) for item in final.items if isinstance(item, ToolCall)]


EXPECTED_CALLS = [("run", {"command": "ls é"}), ("run", {"command": "pwd"})]


@APIS
def test_text_reasoning_calls_and_usage(api: str) -> None:
    with ModelServer(Steps([Answer("Grüße, 世界", CALLS, reasoning=True)]), key=KEY) as server:
        *deltas, final = parts_of(api, server.base_url)
        headers = server.requests[0].headers
    if api == "messages":
        assert (headers["x-api-key"], headers["anthropic-version"]) == (KEY, "2023-06-01")
        assert "authorization" not in headers
    else:
        assert headers["authorization"] == f"Bearer {KEY}"
    assert "".join(part.text for part in deltas if isinstance(part, TextDelta)) == "Grüße, 世界"
    assert [part.text for part in deltas if isinstance(part, ReasoningDelta)] == ["thinking it over"]
    assert isinstance(final, Final)
    assert (final.status, final.model, final.reason) == ("completed", "muse-spark-1.3", None)
    message = next(item for item in final.items if isinstance(item, Message))
    assert (message.text, message.phase) == ("Grüße, 世界", "commentary")
    assert calls_in(final) == EXPECTED_CALLS
    assert sum(isinstance(item, Reasoning) for item in final.items) == (0 if api == "chat" else 1)
    assert final.usage is not None
    assert final.usage.input > final.usage.cached == 0 < final.usage.output


@APIS
def test_next_turn_is_valid_and_mostly_cached(api: str) -> None:
    with ModelServer(Steps([Answer("I run.", CALLS, reasoning=True), Answer("Done.")]), key=KEY) as server:
        first = parts_of(api, server.base_url)[-1]
        assert isinstance(first, Final)
        ids = [item.call_id for item in first.items if isinstance(item, ToolCall)]
        results = [ToolResult(call_id=call_id, output="x" * 50) for call_id in ids]
        second = parts_of(api, server.base_url, ask(ASK, *first.items, *results))[-1]
    assert isinstance(second, Final)
    assert second.items == (Message(role="assistant", text="Done."),)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.cached >= first.usage.input - 2


@pytest.mark.parametrize(
    ("api", "kind"),
    [
        (api, kind)
        for api in CLIENTS
        for kind in ("bytewise", "crlf", "cr", "duplicates", "unknown_events", "no_done", "gzip")
        # Repeated events of `messages` cannot be told from new ones, and spoil the answer.
        if (api, kind) != ("messages", "duplicates")
    ],
)
def test_unusual_but_lawful_streams(api: str, kind: str) -> None:
    """UTF-8 split over chunks, repeated and unknown events, other line ends: each broke a client."""
    with ModelServer(Steps([Answer("Grüße, 世界", CALLS, fault=Fault(kind))]), key=KEY) as server:
        *deltas, final = parts_of(api, server.base_url)
    assert "".join(part.text for part in deltas if isinstance(part, TextDelta)) == "Grüße, 世界"
    assert isinstance(final, Final)
    assert final.status == "completed"
    assert calls_in(final) == EXPECTED_CALLS


@APIS
def test_missing_usage_is_none_not_zero(api: str) -> None:
    assert answer_of(api, Answer("x", fault=Fault("no_usage"))).usage is None


@APIS
@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_incomplete_answer_carries_text_but_no_calls(api: str, reason: str) -> None:
    final = answer_of(api, Answer("half", CALLS, fault=Fault("incomplete", code=reason)))
    assert (final.status, final.reason) == ("incomplete", reason)
    assert [item.text for item in final.items if isinstance(item, Message)] == ["half"]
    assert calls_in(final) == []


@APIS
def test_refusal_is_incomplete_with_its_text(api: str) -> None:
    final = answer_of(api, Answer("I will not.", fault=Fault("refusal")))
    assert (final.status, final.reason) == ("incomplete", "refusal")
    assert [item.text for item in final.items if isinstance(item, Message)] == ["I will not."]


@APIS
@pytest.mark.parametrize("kind", ["eof", "hangup", "reset"])
def test_stream_that_breaks_off_is_an_unknown_outcome(api: str, kind: str) -> None:
    """A connection reset inside tool arguments once ran a truncated command."""
    error = failure_of(api, Fault(kind))
    assert (error.kind, error.retryable) == ("stream_cut", True)


@APIS
def test_stream_cut_anywhere_never_gives_a_wrong_answer(api: str, rng: random.Random) -> None:
    step = rng.choice([13, 17, 19])

    async def sweep() -> list[int]:
        accepted: list[int] = []
        answer = Answer("", (Call("run", {"c": "é"}, call_id="c1"),))
        with ModelServer(Steps([answer])) as server:
            async with plain_http() as http:
                client = CLIENTS[api](http, server.base_url, None)
                at = 0
                while len(accepted) < 2:
                    fault = Fault("eof", at=at)
                    server.script = Steps([dataclasses.replace(answer, fault=fault)])
                    outcome = await end_of(client.stream(ask()))
                    if isinstance(outcome, ModelError):
                        assert outcome.kind in ("stream_cut", "protocol")
                        assert outcome.retryable
                        assert not accepted, "once the end has come, nothing later can break the answer"
                    else:
                        assert calls_in(outcome) == [("run", {"c": "é"})]
                        accepted.append(at)
                    at += step
        return accepted

    assert asyncio.run(sweep())


@APIS
def test_stall_is_a_timeout(api: str) -> None:
    fault = Fault("stall")
    error = failure_of(api, fault, deadlines=Deadlines(silence=0.2))
    fault.release.set()
    assert (error.kind, error.retryable) == ("timeout", True)


@APIS
def test_pause_shorter_than_a_stall_is_nothing(api: str) -> None:
    fault = Fault("stall")

    async def run() -> StreamPart:
        with ModelServer(Steps([Answer("slow but steady", fault=fault)])) as server:
            async with plain_http() as http:
                client = CLIENTS[api](http, server.base_url, None)
                stream = client.stream(ask())
                assert isinstance(await anext(stream), TextDelta)
                fault.release.set()
                return [part async for part in stream][-1]

    assert isinstance(asyncio.run(run()), Final)


@APIS
def test_cancelling_leaves_at_once_and_closes_the_connection(api: str) -> None:
    fault = Fault("stall", at=0)

    async def run() -> None:
        with ModelServer(Steps([Answer("never", fault=fault)])) as server:
            async with plain_http() as http:
                client = CLIENTS[api](http, server.base_url, None)

                async def consume() -> None:
                    async with aclosing(client.stream(ask())) as stream:
                        async for _ in stream:
                            raise AssertionError("nothing was sent")

                task = asyncio.create_task(consume())
                await asyncio.to_thread(server.wait_for, 1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                fault.release.set()

    asyncio.run(asyncio.wait_for(run(), 20))


STATUS_CASES = [
    (400, None, "invalid_request_error", "bad field", "invalid_request", False),
    (400, "context_length_exceeded", "invalid_request_error", "too long", "context_too_long", False),
    (400, None, "invalid_request_error", "maximum context length is 10", "context_too_long", False),
    (400, "content_policy_violation", "invalid_request_error", "no", "content_policy", False),
    (401, "invalid_api_key", "authentication_error", f"wrong key {KEY}", "auth", False),
    (402, "billing_not_configured", "billing_error", "pay", "billing", False),
    (403, None, "authentication_error", "no", "auth", False),
    (404, "model_not_found", "invalid_request_error", "what model", "not_found", False),
    (413, "payload_too_large", "invalid_request_error", "big", "context_too_long", False),
    (429, "rate_limit_exceeded", "rate_limit_error", "slow", "rate_limited", True),
    (429, "insufficient_quota", "billing_error", "pay", "billing", False),
    (500, None, "server_error", "oops\nover two lines", "server_error", True),
    (503, "service_overloaded", "server_error", "busy", "overloaded", True),
    (503, None, "server_error", "loading the model", "overloaded", True),
    (503, "server_shutting_down", "server_error", "bye", "server_error", True),
    (504, "gateway_timeout", "server_error", "late", "server_error", True),
    (529, None, "overloaded_error", "busy", "overloaded", True),
    (413, None, "request_too_large", "big", "context_too_long", False),
    (404, None, "not_found_error", "what model", "not_found", False),
]


@APIS
@pytest.mark.parametrize(("status", "code", "error_type", "message", "kind", "retryable"), STATUS_CASES)
def test_statuses(
    api: str, status: int, code: str | None, error_type: str, message: str, kind: str, retryable: bool
) -> None:
    fault = Fault("status", status=status, code=code, error_type=error_type, message=message)
    error = failure_of(api, fault)
    assert (error.kind, error.status, error.retryable, error.retry_after) == (kind, status, retryable, None)


@APIS
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "60"}, 60.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:00:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 -99999999999999999999"}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after(api: str, status: int, headers: dict[str, str], seconds: float | None) -> None:
    assert failure_of(api, Fault("status", status=status, headers=headers)).retry_after == seconds


@APIS
def test_messages_say_what_to_do(api: str) -> None:
    def message(**fault: Any) -> str:
        return str(failure_of(api, Fault(**fault), key_source="MODEL_API_KEY"))

    assert "set MODEL_API_KEY" in message(kind="status", status=401)
    unknown = message(kind="status", status=404, code="model_not_found")
    assert "'muse-spark-1.3'" in unknown
    assert "MUSECODE_MODEL" in unknown
    assert "MUSECODE_BASE_URL" in message(kind="empty_404")
    assert "https://else.example" in message(kind="redirect", message="https://else.example/v1?token=secret")


@APIS
def test_key_is_cut_out_of_what_the_server_says(api: str) -> None:
    error = failure_of(api, Fault("status", status=401, message=f"Incorrect API key provided: {KEY}"))
    assert "[redacted]" in str(error)


@APIS
def test_html_from_a_proxy(api: str) -> None:
    error = failure_of(api, Fault("html", status=502, headers={"retry-after": "3"}))
    assert (error.kind, error.retryable, error.retry_after) == ("html_from_proxy", True, 3.0)
    assert "<" not in str(error)
    login = failure_of(api, Fault("html", status=200))
    assert (login.kind, login.retryable) == ("html_from_proxy", False)


@APIS
@pytest.mark.parametrize("kind", ["error_event", "failed"])
@pytest.mark.parametrize(
    ("code", "error_type", "expected", "retryable"),
    [
        ("server_error", "server_error", "server_error", True),
        (None, "server_error", "server_error", True),
        ("rate_limit_exceeded", "rate_limit_error", "rate_limited", True),
        ("content_policy_violation", "invalid_request_error", "content_policy", False),
    ],
)
def test_error_inside_a_200_stream(
    api: str, kind: str, code: str | None, error_type: str, expected: str, retryable: bool
) -> None:
    said = "no\nmore" if expected != "content_policy" else "no\nmore: content policy"
    error = failure_of(api, Fault(kind, code=code, error_type=error_type, message=said))
    assert (error.kind, error.retryable) == (expected, retryable)
    assert "no more" in str(error)


@APIS
def test_nobody_listens(api: str) -> None:
    with ModelServer(Steps([Answer("x")])) as server:
        base_url = server.base_url
    with pytest.raises(ModelError, match="MUSECODE_BASE_URL") as caught:
        parts_of(api, base_url)
    assert (caught.value.kind, caught.value.retryable) == ("connect", True)
    assert base_url in str(caught.value)


@APIS
def test_wrong_path_and_wrong_key(api: str) -> None:
    with ModelServer(Steps([Answer("x")]), key=KEY) as server:
        with pytest.raises(ModelError) as path:
            parts_of(api, server.base_url.removesuffix("/v1"))
        with pytest.raises(ModelError) as none:
            parts_of(api, server.base_url, key=None)
    assert path.value.kind == "not_found"
    assert none.value.kind == "auth"
    assert "wants a key" in str(none.value)


@APIS
@pytest.mark.parametrize("call_id", ["", "same", "x" * 65])
def test_call_ids_are_usable_and_new(api: str, call_id: str) -> None:
    """Some servers send no ids, or `call_0` in every turn; results then went to the wrong call."""
    twice = [Call("run", {"n": 1}, call_id=call_id), Call("run", {"n": 2}, call_id=call_id)]
    earlier = (ToolCall(call_id="same", name="run", arguments="{}"), ToolResult(call_id="same", output="x"))
    request = ask(ASK, *earlier)
    finals = [answer_of(api, Answer(calls=twice), request) for _ in range(2)]
    ids = [item.call_id for item in finals[0].items if isinstance(item, ToolCall)]
    assert len(ids) == 2
    assert len({*ids, "same"}) == 3
    assert all(1 <= len(one) <= 64 for one in ids)
    assert finals[0].items == finals[1].items


def test_reasoning_of_another_key_is_named_as_such() -> None:
    """If the server refuses reasoning items, the gate can send again without them."""
    with ModelServer(Steps([Answer("I run.", CALLS, reasoning=True), Answer("x")])) as server:

        async def run() -> None:
            async with plain_http() as http:
                client = ResponsesClient(http, server.base_url, "first-key")
                first = [part async for part in client.stream(ask())][-1]
                assert isinstance(first, Final)
                said = [
                    item.model_copy(update={"payload": {**item.payload, "encrypted_content": "enc.foreign"}})
                    if isinstance(item, Reasoning)
                    else item
                    for item in first.items
                ]
                results = [ToolResult(call_id=c.call_id, output="") for c in said if isinstance(c, ToolCall)]
                async for _ in client.stream(ask(ASK, *said, *results)):
                    raise AssertionError("the server must refuse this")

        with pytest.raises(ModelError) as caught:
            asyncio.run(run())
    assert (caught.value.kind, caught.value.status, caught.value.retryable) == (
        "foreign_reasoning",
        400,
        False,
    )
