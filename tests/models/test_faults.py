"""What a stream must not be taken for: cut at every byte, ended twice, gone on after its end, dripping, garbled."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from fixtures.model_scripts import Answer, Call, Fault, ParsedRequest, Steps
from fixtures.model_server import PARSERS, ModelServer
from fixtures.model_streams import events_of, frames_of

from musecode_jupyter.models.chat import ChatClient
from musecode_jupyter.models.client import HttpClient
from musecode_jupyter.models.messages import MessagesClient
from musecode_jupyter.models.responses import ResponsesClient
from musecode_jupyter.models.sse import EventParser, ServerEvent
from musecode_jupyter.models.transport import Deadlines
from musecode_jupyter.models.types import Final, Message, ModelRequest, Reasoning, ToolCall, ToolResult, ToolSpec
from musecode_jupyter.runtime.errors import ModelError

HTTP = httpx.AsyncClient(verify=False, trust_env=False)
CLIENTS: dict[str, type[HttpClient]] = {"responses": ResponsesClient, "chat": ChatClient, "messages": MessagesClient}
APIS = pytest.mark.parametrize("api", CLIENTS)
TOOL = ToolSpec(name="run", description="Run", parameters={"type": "object"})
REQUEST = ModelRequest(
    model="muse-spark-1.3", instructions="Be exact.", items=(Message(role="user", text="go"),), tools=(TOOL,)
)
CALL = Call("run", {"command": "echo é"}, call_id="call_1")
BUSY = Fault("error_event", code="service_overloaded", error_type="overloaded_error")
POISON = (Call("run", {"command": "rm -rf ."}, call_id="call_2"),)


def client_of(api: str) -> HttpClient:
    return CLIENTS[api](HTTP, "http://127.0.0.1:1/v1", None)


def parsed(api: str) -> ParsedRequest:
    return PARSERS[api](json.loads(client_of(api).body(REQUEST)), "")


def payload_of(api: str, answer: Answer) -> bytes:
    """All bytes of the answer's stream."""
    events = events_of(parsed(api), answer, (100, 40, 20), "")
    return b"".join(frames_of(api, events, answer.fault)[0])


async def reading(api: str, events: Iterable[ServerEvent]) -> Final:
    """The answer that the client makes of events; ModelError as it comes."""

    async def given() -> AsyncIterator[ServerEvent]:
        for event in events:
            yield event

    async with aclosing(client_of(api).read(REQUEST, given())) as parts:
        final = [part async for part in parts][-1]
    assert isinstance(final, Final)
    return final


def read(api: str, events: Iterable[ServerEvent]) -> Final:
    """The same, for a test that is not in a loop."""
    return asyncio.run(reading(api, events))


def parse(payload: bytes) -> list[ServerEvent]:
    parser = EventParser()
    return [*parser.feed(payload), *parser.close()]


def over_http(api: str, answer: Answer, **options: Any) -> Final | ModelError:
    """What the client makes of the answer when it comes from a server."""

    async def run(base_url: str) -> Final | ModelError:
        async with httpx.AsyncClient(verify=False, trust_env=False) as http:
            try:
                parts = [part async for part in CLIENTS[api](http, base_url, None, **options).stream(REQUEST)]
            except ModelError as error:
                return error
        assert isinstance(parts[-1], Final)
        return parts[-1]

    with ModelServer(Steps([answer])) as server:
        found = asyncio.run(run(server.base_url))
        assert len(server.requests) == 1, "a client never retries"
        if answer.fault is not None:
            answer.fault.release.set()
    return found


def failed(api: str, answer: Answer, **options: Any) -> ModelError:
    found = over_http(api, answer, **options)
    assert isinstance(found, ModelError), found
    assert "\n" not in str(found)
    return found


def calls_in(final: Final) -> list[tuple[str, Any]]:
    return [(item.name, json.loads(item.arguments)) for item in final.items if isinstance(item, ToolCall)]


@APIS
def test_a_stream_cut_at_any_byte_gives_the_whole_call_or_none(api: str) -> None:
    """A stream that breaks off inside a call's arguments once ran the command as far as it had come."""
    payload = payload_of(api, Answer("", (CALL,)))

    async def cut_everywhere() -> int:
        whole = 0
        for size in range(len(payload)):
            try:
                found: Final | ModelError = await reading(api, parse(payload[:size]))
            except ModelError as error:
                found = error
            if isinstance(found, ModelError):
                assert found.kind in ("stream_cut", "protocol"), found
                assert (found.retryable, found.may_cost) == (True, True)
                assert not whole, "once the answer is whole, nothing that is missing behind it can spoil it"
            else:
                assert calls_in(found) == [("run", {"command": "echo é"})]
                whole += 1
        return whole

    assert 0 < asyncio.run(cut_everywhere()) < len(payload) // 2


@APIS
@pytest.mark.parametrize("kind", ["second_end", "after_end"])
def test_what_comes_after_the_end_is_not_part_of_the_answer(api: str, kind: str) -> None:
    found = over_http(api, Answer("I run it.", (CALL,), fault=Fault(kind, extra=POISON)))
    assert isinstance(found, Final)
    assert calls_in(found) == [("run", {"command": "echo é"})]
    assert [item.text for item in found.items if isinstance(item, Message)] == ["I run it."]
    assert found.usage is not None


@APIS
def test_an_answer_in_a_wrong_content_type_is_read_all_the_same(api: str) -> None:
    found = over_http(api, Answer("", (CALL,), fault=Fault("content_type", message="text/plain; charset=utf-8")))
    assert isinstance(found, Final)
    assert calls_in(found) == [("run", {"command": "echo é"})]


@APIS
def test_an_answer_without_any_event_in_a_wrong_content_type_names_that_type(api: str) -> None:
    error = failed(api, Answer("x", fault=Fault("empty", headers={"content-type": "application/octet-stream"})))
    assert (error.kind, error.retryable) == ("protocol", False)
    assert "application/octet-stream" in str(error)
    assert "MUSECODE_BASE_URL" in str(error)


@APIS
@pytest.mark.parametrize(
    ("fault", "kind", "retryable", "may_cost"),
    [
        (Fault("empty"), "stream_cut", True, True),
        (Fault("json"), "protocol", False, True),
        (Fault("bad_gzip"), "protocol", True, True),
        (Fault("redirect", message="https://else.example/v1"), "protocol", False, False),
        (Fault("status", status=500), "server_error", True, False),
        (Fault("status", status=504), "server_error", True, True),
        (Fault("html", status=504), "html_from_proxy", True, True),
        (Fault("html", status=502), "html_from_proxy", True, False),
        (Fault("status", status=429), "rate_limited", True, False),
        (Fault("reset"), "stream_cut", True, True),
        (Fault("hangup"), "stream_cut", True, True),
        (BUSY, "overloaded", True, True),
    ],
    ids=lambda value: f"{value.kind}-{value.status}" if isinstance(value, Fault) else None,
)
def test_what_a_fault_is_and_whether_it_may_be_charged_for(
    api: str, fault: Fault, kind: str, retryable: bool, may_cost: bool
) -> None:
    error = failed(api, Answer("hm", (CALL,), fault=fault))
    assert (error.kind, error.retryable, error.may_cost) == (kind, retryable, may_cost)


@APIS
def test_an_error_before_the_first_piece_is_not_charged_for(api: str) -> None:
    error = failed(api, Answer("", fault=BUSY))
    assert (error.kind, error.may_cost) == ("overloaded", False)


@APIS
@pytest.mark.parametrize(
    ("deadlines", "says"),
    [(Deadlines(progress=0.3), "nothing but keep-alives"), (Deadlines(whole=0.3), "had not ended after 0.3 s")],
)
def test_an_answer_that_drips_is_a_timeout(api: str, deadlines: Deadlines, says: str) -> None:
    """Comments kept a stream alive for ever: no read deadline sees a connection on which a byte comes now and then."""
    error = failed(api, Answer("", (CALL,), fault=Fault("drip", share=0.5)), deadlines=deadlines)
    assert (error.kind, error.retryable, error.may_cost) == ("timeout", True, True)
    assert says in str(error)


def test_pings_are_no_progress() -> None:
    error = failed("messages", Answer("", fault=Fault("stall", share=0.9)), deadlines=Deadlines(silence=0.2))
    assert error.kind == "timeout"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 70 + ".example"])
def test_a_name_that_cannot_be_resolved_is_a_connection_that_failed(host: str) -> None:
    async def run() -> None:
        async with httpx.AsyncClient(verify=False, trust_env=False) as http:
            async for _ in ChatClient(http, f"http://{host}/v1", None).stream(REQUEST):
                raise AssertionError("nobody can answer")

    with pytest.raises(ModelError) as caught:
        asyncio.run(run())
    assert caught.value.kind in ("connect", "protocol")
    assert not caught.value.may_cost


def test_a_completed_response_whose_call_is_incomplete_is_no_answer() -> None:
    events = events_of(parsed("responses"), Answer("", (CALL,)), (1, 0, 0), "")
    events[-1][1]["response"]["output"][0]["status"] = "incomplete"
    payload = b"".join(frames_of("responses", events, None)[0])
    with pytest.raises(ModelError, match="calls incomplete"):
        read("responses", parse(payload))


@pytest.mark.parametrize(
    ("finish", "ends"),
    [
        ("tool_calls", "completed"),
        ("stop", "completed"),
        ("function_call", "completed"),
        ("length", "incomplete"),
        ("content_filter", "incomplete"),
        ("something_new", "incomplete"),
        ("abort", "failed"),
        ("error", "failed"),
    ],
)
def test_only_a_known_finish_lets_calls_through(finish: str, ends: str) -> None:
    """An engine that aborts a request says so in the finish reason; its half call was taken for a whole one."""
    usual, said = b'"finish_reason": "tool_calls"', b'"finish_reason": "%b"' % finish.encode()
    payload = payload_of("chat", Answer("", (CALL,))).replace(usual, said)
    if ends == "failed":
        with pytest.raises(ModelError, match=finish):
            read("chat", parse(payload))
        return
    final = read("chat", parse(payload))
    assert final.status == ends
    assert len(calls_in(final)) == (1 if ends == "completed" else 0)


@APIS
def test_an_answer_of_the_contributor_model_is_not_used(api: str) -> None:
    """A gateway answered 19 of 19 calls with the contributor model though the standard one was pinned."""
    payload = payload_of(api, Answer("x", (CALL,)))
    with pytest.raises(ModelError, match=r"'muse-spark-1\.3-Contributor' although 'muse-spark-1\.3'") as caught:
        read(api, parse(payload.replace(b'"muse-spark-1.3"', b'"muse-spark-1.3-Contributor"')))
    assert (caught.value.kind, caught.value.retryable, caught.value.may_cost) == ("wrong_model", False, True)
    # Names of versions, files and gateways differ from what is asked for, and are none of our business.
    assert (
        read(api, parse(payload.replace(b'"muse-spark-1.3"', b'"muse-spark-1.3-0612"'))).model == "muse-spark-1.3-0612"
    )


@APIS
@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN", "Infinity", "1" * 5000])
def test_numbers_that_no_log_can_hold_spoil_the_answer_only(api: str, number: str) -> None:
    """An infinite number in a reasoning item could not be written to the log, which ended the session."""
    payload = payload_of(api, Answer("x"))
    spoilt = payload.replace(b"data: {", b'data: {"extra": %b, ' % number.encode(), 3)
    with pytest.raises(ModelError) as caught:
        read(api, parse(spoilt))
    assert (caught.value.kind, caught.value.retryable) == ("protocol", True)


@APIS
@pytest.mark.parametrize("count", ["1e3", "-1", "true", "10000000000000", '"5"', "null"])
def test_counts_that_are_none_leave_the_estimate(api: str, count: str) -> None:
    name = {"responses": "input_tokens", "chat": "prompt_tokens", "messages": "input_tokens"}[api]
    payload = payload_of(api, Answer("x"))
    start = payload.index(b'"%b": ' % name.encode()) + len(name) + 4
    end = min(payload.index(b",", start), payload.index(b"}", start))
    final = read(api, parse(payload[:start] + count.encode() + payload[end:]))
    assert final.usage is None


MISFITS: tuple[Any, ...] = (
    None,
    True,
    -1,
    7,
    10**30,
    1.5,
    "",
    "x",
    "\ud800",
    [],
    [1],
    [None],
    {},
    {"a": 1},
    [{"text": 5}],
)


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to everything in a JSON value."""
    yield place
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places_in(child, (*place, key))


def with_misfit(value: Any, place: tuple[Any, ...], misfit: Any) -> Any:
    """A copy of `value` with something else at `place`."""
    if not place:
        return misfit
    copy = value.copy()
    copy[place[0]] = with_misfit(value[place[0]], place[1:], misfit)
    return copy


@APIS
def test_a_value_of_another_type_anywhere_is_read_or_is_an_error_with_advice(api: str, rng: random.Random) -> None:
    """A number in the place of the list of outputs once ended the goal as an unexpected TypeError."""
    answer = Answer("hello", (CALL,), reasoning=True)
    events = [ServerEvent(name, json.dumps(data)) for name, data in events_of(parsed(api), answer, (9, 4, 2), "")]
    ways = [(at, place) for at, event in enumerate(events) for place in places_in(json.loads(event.data))]

    async def all_of(cases: Iterable[tuple[int, tuple[Any, ...], Any]]) -> None:
        for at, place, misfit in cases:
            data = json.dumps(with_misfit(json.loads(events[at].data), place, misfit))
            try:
                final = await reading(api, [*events[:at], ServerEvent(events[at].event, data), *events[at + 1 :]])
            except ModelError:
                continue
            results = [ToolResult(call_id=each.call_id, output="") for each in final.items if each.type == "tool_call"]
            on = Message(role="user", text="go on")
            client_of(api).body(REQUEST.model_copy(update={"items": (*REQUEST.items, *final.items, *results, on)}))

    last = [(len(events) - 1, place, misfit) for at, place in ways if at == len(events) - 1 for misfit in MISFITS]
    asyncio.run(all_of([*last, *((*rng.choice(ways), rng.choice(MISFITS)) for _ in range(500))]))


def test_text_that_is_not_divided_into_parts_is_read() -> None:
    events = events_of(parsed("responses"), Answer("hello"), (1, 0, 0), "")
    events[-1][1]["response"]["output"][0]["content"] = "hello"
    final = read("responses", parse(b"".join(frames_of("responses", events, None)[0])))
    assert [item.text for item in final.items if isinstance(item, Message)] == ["hello"]


def test_deep_reasoning_items_are_left_out() -> None:
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    events = events_of(parsed("responses"), Answer("x", reasoning=True), (1, 0, 0), "")
    events[-1][1]["response"]["output"][0]["summary"] = deep
    final = read("responses", parse(b"".join(frames_of("responses", events, None)[0])))
    assert [item.type for item in final.items] == ["message"]


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_reasoning_that_was_refused_is_not_sent_again_and_new_one_is(api: str) -> None:
    client = client_of(api)
    payload = {"type": "thinking", "thinking": "", "signature": "x", "summary": [], "encrypted_content": "x"}

    def turn() -> tuple[Any, ...]:
        said = Message(role="assistant", text="said")
        return (Reasoning(origin=client.origin, payload=payload), said, Message(role="user", text="on"))

    old = turn()
    request = REQUEST.model_copy(update={"items": (*REQUEST.items, *old)})
    before = client.origin
    assert b'"x"' in client.body(request)
    client = client.without_reasoning()
    assert client.origin != before
    assert b'"x"' not in client.body(request)
    later = request.model_copy(update={"items": (*request.items, *turn())})
    assert client.body(later).count(b'"x"') == 1
    assert client_of(api).without_reasoning().origin == client.origin, "a second refusal must come to the same origin"


@APIS
def test_arguments_sent_as_an_object_are_taken(api: str) -> None:
    arguments = {"command": "ls"}
    events = events_of(parsed(api), Answer("", (Call("run", "", call_id="c"),)), (1, 0, 0), "")
    for _, data in events:
        if api == "chat" and data.get("choices") and "tool_calls" in data["choices"][0]["delta"]:
            data["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] = arguments
        elif api == "messages" and data.get("content_block", {}).get("type") == "tool_use":
            data["content_block"]["input"] = arguments
        elif api == "responses" and "response" in data:
            for item in data["response"]["output"]:
                item["arguments"] = arguments
    final = read(api, parse(b"".join(frames_of(api, events, None)[0])))
    assert calls_in(final) == [("run", arguments)]
