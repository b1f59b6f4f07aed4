"""The gate as the one retry owner: how long it tries, what of it is in the log meanwhile, and what it counts."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.fault_runs import VirtualTime
from fixtures.model_scripts import Answer, Call, Fault, ParsedRequest, Steps
from fixtures.model_server import ModelServer

from musecode_jupyter.agents.context import build_request
from musecode_jupyter.guard.gate import Completion, Gate, digest_of, estimate_tokens
from musecode_jupyter.guard.ledger import LedgerState
from musecode_jupyter.guard.patience import BUSY, FAULTY, GARBLED, UNREACHABLE, Failures
from musecode_jupyter.guard.patience import CUT as CUT_OFF
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.redaction import Redactor
from musecode_jupyter.models.catalogue import lookup
from musecode_jupyter.models.endpoint import resolve_endpoint
from musecode_jupyter.models.types import Message, ModelRequest, Picture, Reasoning
from musecode_jupyter.runtime.errors import BudgetExceeded, LogError, ModelError
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.session.replay import prove

MODEL = "muse-spark-1.3"
APIS = pytest.mark.parametrize("api", ["responses", "chat", "messages"])
LIMITED = Answer(fault=Fault("status", status=429, code="rate_limit_exceeded", error_type="rate_limit_error"))
OVERLOADED = Answer(fault=Fault("status", status=529, error_type="overloaded_error"))
CUT = Answer("half of it", fault=Fault("reset"))
GOOD = Answer("hello")


class Bench:
    """A log, a gate on it, and a request of an agent's own view, in one loop."""

    def __init__(self, folder: Path, base_url: str, api: str) -> None:
        self.effects = VirtualTime()
        self.log = EventLog.create(
            folder / "session", reducers=all_reducers(), redactor=Redactor([]), now=self.effects.now
        )
        endpoint = resolve_endpoint({"MUSECODE_API_KEY": "key-0123456789"}, model=MODEL, api=api, base_url=base_url)
        self.gate = Gate(log=self.log, effects=self.effects, endpoint=endpoint, info=lookup(MODEL), scopes=lambda _: [])

    async def ask(self, items: list[Any] | None = None) -> Completion:
        """One question, asked as the guided profile does."""
        await self.gate.ready()
        shown = items or [Message(role="user", text="say hello")]
        view = await self.log.append(
            "agent.view",
            {
                "purpose": "test",
                "instructions": "Be brief.",
                "items": [item.model_dump(mode="json") for item in shown],
                "json_schema": None,
            },
            agent="lead",
        )
        return await self.gate.complete(_request(view, tuple(shown)), agent="lead", turn=1, view=view.seq)

    @property
    def ledger(self) -> LedgerState:
        state = self.log.state("ledger")
        assert isinstance(state, LedgerState)
        return state

    def events(self, kind: str) -> list[Event]:
        return [event for event in self.log.events() if event.kind == kind]


def _request(view: Event, items: tuple[Any, ...]) -> ModelRequest:
    head = {"model": MODEL, "max_output_tokens": 100, "effort": None, "temperature": None, "seed": None}
    return build_request(
        {**head, "cache_key": None}, instructions=view.data["instructions"], items=items, tools=(), json_schema=None
    )


def with_gate(folder: Path, base_url: str, deed: Callable[[Bench], Awaitable[None]], api: str = "responses") -> None:
    """Do `deed` with a gate, then prove the log that it left."""

    async def run() -> None:
        bench = Bench(folder, base_url, api)
        await bench.log.append("agent.created", {"role": "lead", "profile": "driver", "model": MODEL}, agent="lead")
        try:
            await deed(bench)
        finally:
            await bench.effects.aclose()
            await bench.log.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    proof = prove(folder / "session")
    assert proof.ok, proof.problem


@APIS
def test_twenty_times_overloaded_then_good(tmp_path: Path, api: str) -> None:
    """A provider that answered 529 for some minutes ended every run there was."""

    async def deed(bench: Bench) -> None:
        completion = await bench.ask()
        assert completion.text == "hello"
        retried = bench.events("model.retried")
        assert [event.data["attempt"] for event in retried] == list(range(1, 21))
        assert {event.data["error_kind"] for event in retried} == {"overloaded"}
        assert [event.data["wait_s"] for event in retried] == bench.effects.waited
        assert all(0.25 <= wait <= 45 for wait in bench.effects.waited)
        assert bench.events("model.completed")[0].data["attempts"] == 21
        assert bench.ledger.total.microusd == bench.events("model.completed")[0].data["cost_microusd"]

    with ModelServer(Steps([OVERLOADED] * 20 + [GOOD])) as server:
        with_gate(tmp_path, server.base_url, deed, api)
        assert len(server.requests) == 21
        assert len({request.body for request in server.requests}) == 1


def test_a_retry_is_in_the_log_before_it_is_waited_for(tmp_path: Path) -> None:
    """A run that waited for a minute showed nothing but an open request."""
    seen: list[list[str]] = []

    async def deed(bench: Bench) -> None:
        async def sleep(seconds: float) -> None:
            assert bench.log.durable_seq == bench.log.last_seq, "what is waited for is on the disk"
            seen.append([event.kind for event in bench.log.events()][-1:])

        bench.effects.sleep = sleep  # type: ignore[method-assign]
        await bench.ask()

    with ModelServer(Steps([LIMITED, LIMITED, GOOD])) as server:
        with_gate(tmp_path, server.base_url, deed)
    assert seen == [["model.retried"]] * 2


def test_what_a_server_asks_for_is_waited_unless_it_is_beyond_all_patience(tmp_path: Path) -> None:
    """An hour that was asked for was cut to two minutes, and the server asked in vain eight times."""

    def limited(seconds: str) -> Answer:
        return Answer(fault=Fault("status", status=429, headers={"retry-after": seconds}))

    async def deed(bench: Bench) -> None:
        await bench.ask()
        assert bench.effects.waited == [60.0, 0.5, 300.0]
        with pytest.raises(ModelError, match="wait 3600 s"):
            await bench.ask()
        assert bench.effects.waited == [60.0, 0.5, 300.0]

    script = Steps([limited("60"), limited("0"), limited("300"), GOOD, limited("3600")])
    with ModelServer(script) as server:
        with_gate(tmp_path, server.base_url, deed)
        assert len(server.requests) == 5


@pytest.mark.parametrize(("answer", "attempts"), [(LIMITED, BUSY.attempts), (CUT, 5)])
def test_patience_ends_and_says_how_often_it_was_tried(tmp_path: Path, answer: Answer, attempts: int) -> None:
    async def deed(bench: Bench) -> None:
        with pytest.raises(ModelError):
            await bench.ask()
        failed = bench.events("model.failed")[0]
        assert failed.data["attempts"] == attempts
        assert len(bench.events("model.retried")) == attempts - 1
        assert sum(bench.effects.waited) <= BUSY.seconds

    with ModelServer(Steps([answer])) as server:
        with_gate(tmp_path, server.base_url, deed)
        assert len(server.requests) == attempts


def test_a_dead_endpoint_is_said_to_be_dead_within_fifteen_seconds(tmp_path: Path) -> None:
    """A closed port was tried for a minute, in silence as far as the user could see."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"

    async def deed(bench: Bench) -> None:
        began = bench.effects.monotonic()
        with pytest.raises(ModelError, match="cannot reach"):
            await bench.ask()
        assert bench.effects.monotonic() - began <= 15
        assert len(bench.events("model.retried")) >= 3
        assert bench.ledger.total.microusd == 0

    with_gate(tmp_path, base_url, deed)


def test_an_address_that_swallows_packets_is_given_up_as_fast() -> None:
    """Its attempts take the transport's whole deadline, and count into the time that is tried."""
    effects = VirtualTime()
    failures = Failures(effects)
    error = ModelError("no", kind="connect", retryable=True)
    began = effects.monotonic()
    while True:
        asyncio.run(effects.sleep(5.0))
        wait = failures.wait(error)
        if wait is None:
            break
        asyncio.run(effects.sleep(wait))
    assert effects.monotonic() - began <= 5.0 + UNREACHABLE.seconds + 5.0


def test_each_class_of_failure_has_its_own_patience() -> None:
    effects = VirtualTime()
    failures = Failures(effects)
    busy = ModelError("busy", kind="overloaded", retryable=True, retry_after=60.0)
    for _ in range(10):
        wait = failures.wait(busy)
        assert wait is not None
        asyncio.run(effects.sleep(wait))
    assert failures.wait(ModelError("restarting", kind="connect", retryable=True)) is not None
    assert failures.wait(ModelError("no", kind="auth")) is None
    garbled = ModelError("what?", kind="protocol", retryable=True)
    assert [failures.wait(garbled) is None for _ in range(3)] == [False, False, True]


def test_what_may_be_charged_for_is_not_tried_as_often_as_what_is_not() -> None:
    """A provider that began to answer and then was overloaded, fifty times over, would have been paid fifty times."""
    failures = Failures(VirtualTime())
    begun = ModelError("busy", kind="overloaded", retryable=True, may_cost=True)
    assert [failures.wait(begun) is None for _ in range(CUT_OFF.attempts)] == [False] * (CUT_OFF.attempts - 1) + [True]


KINDS = ("connect", "rate_limited", "overloaded", "server_error", "stream_cut", "timeout", "protocol", "new_kind")


def test_no_sequence_of_failures_is_tried_for_ever(rng: random.Random) -> None:
    classes = (UNREACHABLE, BUSY, FAULTY, CUT_OFF, GARBLED)
    for _ in range(50):
        effects = VirtualTime()
        failures = Failures(effects)
        kinds = rng.sample(KINDS, rng.randint(1, len(KINDS)))
        attempts = 1
        while True:
            effects.waited.append(rng.choice([0.0, 0.01, 5.0, 120.0]))
            error = ModelError(
                "x",
                kind=rng.choice(kinds),
                retryable=True,
                may_cost=rng.random() < 0.3,
                retry_after=rng.choice([None, None, 0.0, 7.0, 60.0, 1e9]),
            )
            wait = failures.wait(error)
            if wait is None:
                break
            assert 0.25 <= wait <= max(each.seconds for each in classes)
            effects.waited.append(wait)
            attempts += 1
        assert attempts <= sum(each.attempts for each in classes)


@APIS
def test_an_attempt_that_broke_off_is_counted_at_its_reserve(tmp_path: Path, api: str) -> None:
    """What a cut answer cost was nowhere: a flaky line spent a multiple of the budget."""

    async def deed(bench: Bench) -> None:
        await bench.ask()
        requested = bench.events("model.requested")[0].data
        retried = bench.events("model.retried")
        completed = bench.events("model.completed")[0].data
        assert [event.data["cost_microusd"] for event in retried] == [requested["reserved_microusd"], 0]
        assert [event.data["tokens"] for event in retried] == [requested["reserved_tokens"], 0]
        total = bench.ledger.total
        assert total.microusd == (requested["reserved_microusd"] + completed["cost_microusd"])
        usage = completed["usage"]
        assert total.tokens == requested["reserved_tokens"] + usage["input"] + usage["output"]
        assert bench.ledger.by_agent["lead"] == total
        assert bench.ledger.open == {}

    with ModelServer(Steps([CUT, LIMITED, GOOD])) as server:
        with_gate(tmp_path, server.base_url, deed, api)


@pytest.mark.parametrize("what", ["usd", "tokens"])
def test_the_next_attempt_must_fit_into_the_budget_too(tmp_path: Path, what: str) -> None:
    async def deed(bench: Bench) -> None:
        await bench.ask()
        reserve = bench.events("model.requested")[0].data
        used = bench.ledger.total.model_copy()
        # One attempt fits, and not two.
        microusd = used.microusd + reserve["reserved_microusd"] * 3 // 2
        tokens = used.tokens + reserve["reserved_tokens"] * 3 // 2
        limits = {"microusd": microusd, "tokens": None} if what == "usd" else {"microusd": None, "tokens": tokens}
        await bench.log.append("budget.set", limits)
        with pytest.raises(BudgetExceeded) as caught:
            await bench.ask()
        assert caught.value.scope == f"session {what}"
        failed = bench.events("model.failed")[0].data
        assert failed["attempts"] == 1
        assert (failed["cost_microusd"], failed["tokens"]) == (reserve["reserved_microusd"], reserve["reserved_tokens"])
        assert bench.ledger.total.microusd == used.microusd + reserve["reserved_microusd"]
        assert bench.ledger.open == {}

    with ModelServer(Steps([GOOD, CUT, GOOD])) as server:
        with_gate(tmp_path, server.base_url, deed)
        assert len(server.requests) == 2


@pytest.mark.parametrize("answer", [LIMITED, CUT], ids=["nothing charged", "may be charged"])
def test_stopped_while_waiting_owes_nothing_more(tmp_path: Path, answer: Answer) -> None:
    async def deed(bench: Bench) -> None:
        waiting = asyncio.Event()

        async def sleep(seconds: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

        bench.effects.sleep = sleep  # type: ignore[method-assign]
        task = asyncio.ensure_future(bench.ask())
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        abandoned = bench.events("model.abandoned")[0].data
        assert (abandoned["cost_microusd"], abandoned["tokens"]) == (0, 0)
        reserve = bench.events("model.requested")[0].data["reserved_microusd"]
        assert bench.ledger.total.microusd == (reserve if answer is CUT else 0)
        assert bench.ledger.open == {}

    with ModelServer(Steps([answer])) as server:
        with_gate(tmp_path, server.base_url, deed)


def test_stopped_while_the_answer_comes_keeps_the_reserve(tmp_path: Path) -> None:
    fault = Fault("stall", at=0)

    async def deed(bench: Bench) -> None:
        task = asyncio.ensure_future(bench.ask())
        await asyncio.to_thread(server.wait_for, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        requested = bench.events("model.requested")[0].data
        abandoned = bench.events("model.abandoned")[0].data
        assert (abandoned["cost_microusd"], abandoned["tokens"]) == (
            requested["reserved_microusd"],
            requested["reserved_tokens"],
        )
        assert bench.ledger.total.tokens == requested["reserved_tokens"]

    with ModelServer(Steps([Answer("never", fault=fault)])) as server:
        with_gate(tmp_path, server.base_url, deed)


def test_stopped_before_anything_is_sent_leaves_no_request_open(tmp_path: Path) -> None:
    """A stop between a request's event and its first wait left its reserve in the budget for the whole session."""

    async def deed(bench: Bench) -> None:
        await bench.gate.ready()
        view = await bench.log.append(
            "agent.view",
            {"purpose": "test", "instructions": "", "items": [], "json_schema": None},
            agent="lead",
        )
        request = _request(view, (Message(role="user", text="x"),))
        task = asyncio.ensure_future(bench.gate.complete(request, agent="lead", turn=1, view=None))
        # One turn of the loop: the event is posted, and its writing is waited for.
        await asyncio.sleep(0)
        assert len(bench.events("model.requested")) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert bench.ledger.open == {}
        abandoned = bench.events("model.abandoned")
        assert [event.data["cost_microusd"] for event in abandoned] == [0]

    async def run() -> None:
        bench = Bench(tmp_path, "http://127.0.0.1:9/v1", "responses")
        await deed(bench)
        await bench.effects.aclose()
        await bench.log.close()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_reasoning_that_the_provider_refuses_is_left_out_once_and_said_so(tmp_path: Path, api: str) -> None:
    """History of another provider, or of a key that was renewed, was refused for the rest of the session."""
    payload = {"type": "thinking", "thinking": "", "signature": "", "summary": [], "encrypted_content": ""}

    async def deed(bench: Bench) -> None:
        await bench.gate.ready()
        client = bench.gate._client
        assert client is not None
        before = client.origin
        foreign = {**payload, "signature": "enc.foreign", "encrypted_content": "enc.foreign"}
        items = [
            Message(role="user", text="say hello"),
            Reasoning(origin=before, payload=foreign),
            Message(role="assistant", text="hello"),
            Message(role="user", text="once more"),
        ]
        completion = await bench.ask(items)
        assert completion.text == "hello"
        retried = bench.events("model.retried")
        assert [(e.data["error_kind"], e.data["wait_s"]) for e in retried] == [("foreign_reasoning", 0.0)]
        assert bench.effects.waited == []
        assert retried[0].data["digest"] == digest_of(server.requests[1].body)
        assert retried[0].data["bytes"] == len(server.requests[1].body)
        assert b"enc.foreign" not in server.requests[1].body
        assert bench.ledger.total.failed == 0
        # From here on nothing of it is sent, and what comes new is kept.
        await bench.ask(items)
        assert len(server.requests) == 3
        origins = {e.data["origin"] for e in bench.events("model.requested")}
        assert origins == {before, client.without_reasoning().origin}
        assert client.origin == before, "a request that is under way keeps its bytes"

    with ModelServer(Steps([GOOD])) as server:
        with_gate(tmp_path, server.base_url, deed, api)
        assert [request.status for request in server.requests] == [400, 200, 200]


def test_a_provider_that_refuses_what_has_no_reasoning_is_an_error_at_once(tmp_path: Path) -> None:
    always = Answer(
        fault=Fault("status", status=400, code="invalid_encrypted_content", error_type="invalid_request_error")
    )

    async def deed(bench: Bench) -> None:
        with pytest.raises(ModelError) as caught:
            await bench.ask()
        assert caught.value.kind == "foreign_reasoning"
        assert bench.events("model.retried") == []

    with ModelServer(Steps([always])) as server:
        with_gate(tmp_path, server.base_url, deed)
        assert len(server.requests) == 1


def test_an_error_that_nobody_thought_of_settles_the_request(tmp_path: Path) -> None:
    async def deed(bench: Bench) -> None:
        await bench.gate.ready()

        class Broken:
            origin = ""

            def body(self, request: ModelRequest) -> bytes:
                return b'{"model":"%s",}' % MODEL.encode()

            def stream(self, request: ModelRequest) -> Any:
                raise RuntimeError("a bug")

        bench.gate._client = Broken()  # type: ignore[assignment]
        request = ModelRequest(model=MODEL, instructions="", items=(Message(role="user", text="x"),))
        with pytest.raises(RuntimeError, match="a bug"):
            await bench.gate.complete(request, agent="lead", turn=1, view=None)
        failed = bench.events("model.failed")[0].data
        assert (failed["error"], failed["error_kind"]) == ("a bug", "RuntimeError")
        assert failed["cost_microusd"] > 0, "nobody knows how far it came"
        assert bench.ledger.open == {}

    async def run() -> None:
        bench = Bench(tmp_path, "http://127.0.0.1:9/v1", "responses")
        await deed(bench)
        await bench.effects.aclose()
        await bench.log.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_ten_calls_at_once_near_the_limit_reserve_before_they_are_sent(tmp_path: Path) -> None:
    """Ten parallel calls at 99 % of the budget all went out, for each saw the same money left."""
    allowed = 3
    go = threading.Event()

    def held(request: ParsedRequest) -> Answer:
        assert go.wait(60)
        return GOOD

    async def deed(bench: Bench) -> None:
        go.set()
        await bench.ask()
        go.clear()
        reserve = bench.events("model.requested")[0].data["reserved_microusd"]
        limit = bench.ledger.total.microusd + reserve * allowed + reserve // 2
        await bench.log.append("budget.set", {"microusd": limit, "tokens": None})
        asked = [asyncio.ensure_future(bench.ask()) for _ in range(10)]
        refused = [await each for each in itertools.islice(asyncio.as_completed([_error(a) for a in asked]), 7)]
        assert [type(error) for error in refused] == [BudgetExceeded] * 7
        go.set()
        await asyncio.gather(*asked, return_exceptions=True)
        assert sum(each.exception() is None for each in asked) == allowed
        assert bench.ledger.total.microusd <= limit

    with ModelServer(held) as server:
        with_gate(tmp_path, server.base_url, deed)
        assert len(server.requests) == 1 + allowed


async def _error(asked: asyncio.Future[Completion]) -> BaseException | None:
    await asyncio.wait([asked])
    return asked.exception()


def test_calls_need_a_log_that_can_be_written(tmp_path: Path) -> None:
    async def deed(bench: Bench) -> None:
        await bench.gate.ready()
        await bench.log.close()
        request = ModelRequest(model=MODEL, instructions="", items=(Message(role="user", text="x"),))
        with pytest.raises(LogError):
            await bench.gate.complete(request, agent="lead", turn=1, view=None)

    async def run() -> None:
        bench = Bench(tmp_path, server.base_url, "responses")
        await deed(bench)
        await bench.effects.aclose()

    with ModelServer(Steps([Answer("", (Call("run", {}),))])) as server:
        asyncio.run(asyncio.wait_for(run(), 60))
        assert server.requests == []


def test_the_reserve_of_a_picture_is_by_its_pixels_not_its_bytes() -> None:
    """A photograph's base64 counted as text would be more than any context takes."""
    photo = Picture(caption="A", mime="image/jpeg", width=1_400, height=1_400, data="A" * 2_000_000, instead="A")
    icon = Picture(caption="B", mime="image/png", width=16, height=16, data="A" * 400, instead="B")
    body = b"x" * (1_000 + 2_000_400)
    assert estimate_tokens(body, [photo, icon]) == 400 + 10_000 + 1_200 + 16
