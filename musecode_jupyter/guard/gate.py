"""The one gate in front of every model call: data tier and budget first, request logged, sent, retried, settled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from hashlib import blake2b

from pydantic import TypeAdapter

from musecode_jupyter.guard.ledger import LedgerState
from musecode_jupyter.guard.patience import Failures
from musecode_jupyter.guard.scopes import Scopes, check_scopes, scopes_of
from musecode_jupyter.guard.tiers import Held, check_pin, error_of, refusal, tiers_of
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.models.catalogue import ModelInfo, cost
from musecode_jupyter.models.chat import ChatClient
from musecode_jupyter.models.endpoint import Endpoint, encoder, make_client
from musecode_jupyter.models.local import LocalModel
from musecode_jupyter.models.model_file import LocalModelFile
from musecode_jupyter.models.prices import Price
from musecode_jupyter.models.types import (
    Final,
    Item,
    ModelClient,
    ModelRequest,
    Picture,
    Usage,
)
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ConfigurationError, LogError, ModelError, MuseError

_ITEMS: TypeAdapter[tuple[Item, ...]] = TypeAdapter(tuple[Item, ...])


@dataclass(frozen=True)
class Completion:
    """What came of a request; `request` and `seq` are the seqs of model.requested and model.completed."""

    request: int
    seq: int
    final: Final

    @property
    def text(self) -> str:
        """The answer's text."""
        return "".join(item.text for item in self.final.items if item.type == "message")


@dataclass
class _Call:
    """One request from its event to its settlement.

    `microusd` and `tokens` are its reserve, the worst case of one attempt; `owed` says that the attempt under way, or
    the last one, may be charged for and is not yet in the log.
    """

    request: ModelRequest
    seq: int
    agent: str
    turn: int
    microusd: int
    tokens: int
    attempts: int = 0
    ttft: float | None = None
    owed: bool = False

    @property
    def estimate(self) -> dict[str, int]:
        """What is owed, as the events say it: the reserve, or surely nothing."""
        return {"cost_microusd": self.microusd if self.owed else 0, "tokens": self.tokens if self.owed else 0}


def digest_of(body: bytes) -> str:
    """BLAKE2b-128 of request bytes, as model.requested records it."""
    return blake2b(body, digest_size=16).hexdigest()


def estimate_tokens(body: bytes, pictures: Iterable[Picture] = ()) -> int:
    """Upper estimate of the tokens of a request: 2.5 bytes of JSON a token, more than any tokenizer here needs.

    Of `pictures`, which are in the body as base64, not the bytes count but the pixels: 196 a token, the patch of
    14 by 14 that is the smallest in use, and at least 1,200, what a small one costs where it is cut into tiles.
    """
    size, tokens = len(body), 16
    for picture in pictures:
        size -= len(picture.data)
        tokens += max(1_200, picture.width * picture.height // 196)
    return size * 2 // 5 + tokens


def request_bytes(api: str, origin: str, request: ModelRequest) -> bytes:
    """The bytes that `request` had when it was sent by the caller `origin` through `api`; nothing is sent."""
    return encoder(api, origin).body(request)


class Gate:
    """Owner of the model client (and of the embedded model's server); used on the runtime thread.

    `before_wait` is called with the agent before each wait for another attempt, and raises what is to end the request.
    `before` is awaited before a request is built, to learn what `scopes` must know of the world. `admission` is held
    once the reserve of an attempt is durable: what it gives is awaited, and raises BudgetExceeded where the reserves of
    other processes leave no room for it. Each of two that reserve at once sees the other's reserve, or is seen by it.
    `parts` gives what a prompt of an agent is made of, by the agent and by the question beside its conversation if it
    is one; `why` says why a part has its label.
    """

    def __init__(
        self,
        *,
        log: EventLog,
        effects: Effects,
        endpoint: Endpoint,
        info: ModelInfo,
        scopes: Scopes,
        local_file: LocalModelFile | None = None,
        before_wait: Callable[[str], None] = lambda _agent: None,
        before: Callable[[], Awaitable[None]] | None = None,
        admission: Callable[[], AbstractAsyncContextManager[Callable[[], Awaitable[None]]]] | None = None,
        parts: Callable[[str, int | None], Sequence[Held]] = lambda _agent, _view: (),
        why: Callable[[Held], str] = lambda _part: "",
    ) -> None:
        self._log = log
        self._effects = effects
        self.endpoint = endpoint
        self.info = info
        self._local = None if local_file is None else LocalModel(local_file, alias=endpoint.model)
        self._scopes = scopes
        self._client: ModelClient | None = None
        self._before_wait = before_wait
        self._before = before
        self._admission = admission
        self._parts = parts
        self._why = why
        self._connecting = asyncio.Lock()
        self._waits: dict[str, asyncio.Future[None]] = {}

    @property
    def model(self) -> str:
        """The pinned model id."""
        return self.endpoint.model

    @property
    def room(self) -> int:
        """Tokens that a prompt may have."""
        return self.info.room

    @property
    def price(self) -> Price:
        """What tokens cost."""
        return self.info.price

    async def ready(self, agent: str = "") -> None:
        """Connect for `agent`, starting the embedded model's server if need be.

        Separate from `complete`, so that nothing can change the conversation between the building of a request and
        its model.requested event: `complete` logs the request before its first wait.
        """
        await self._connect()
        if self._before is not None:
            await self._before()

    async def complete(
        self,
        request: ModelRequest,
        *,
        agent: str,
        turn: int,
        view: int | None,
        purpose: str = "",
        cause: tuple[int, ...] = (),
    ) -> Completion:
        """Send `request` and wait for its end.

        Raises TierBlocked, WrongModel and BudgetExceeded before anything is sent (the last also before it is sent
        again), ModelError after the last attempt. Whatever may
        be charged for without a usage keeps its reserve as the estimate: an answer that says none, an attempt that
        broke off, a request that was cancelled.
        """
        if request.model != self.endpoint.model:
            raise ConfigurationError(f"Request for model {request.model!r}, but {self.endpoint.model!r} is pinned.")
        client = self._client
        if client is None:
            raise RuntimeError("Gate.ready() comes before the request is built")
        await self._check_tier(agent, turn, view, cause)
        body = client.body(request)
        self._check_bytes(body)
        prompt = estimate_tokens(body, [item for item in request.items if isinstance(item, Picture)])
        tokens = prompt + request.max_output_tokens
        microusd = cost(self.price, Usage(input=prompt, output=request.max_output_tokens))
        self._reserve(agent, microusd, tokens)
        event = self._log.post(
            "model.requested",
            {
                "model": request.model,
                "api": self.endpoint.api,
                "view": view,
                "items": len(request.items),
                "max_output_tokens": request.max_output_tokens,
                "effort": request.effort,
                "temperature": request.temperature,
                "seed": request.seed,
                "cache_key": request.cache_key,
                "pictures": request.pictures,
                "origin": client.origin,
                "digest": digest_of(body),
                "bytes": len(body),
                "reserved_microusd": microusd,
                "reserved_tokens": tokens,
                "purpose": purpose,
            },
            agent=agent,
            turn=turn,
            cause=cause,
        )
        return await self._settle(_Call(request, event.seq, agent, turn, microusd, tokens), client)

    async def _check_tier(self, agent: str, turn: int, view: int | None, cause: tuple[int, ...]) -> None:
        """Raise TierBlocked if a part of the prompt may not go to the pinned model; that is in the log then."""
        state = tiers_of(self._log)
        check_pin(state)
        if state.model not in {"", self.model}:
            raise ConfigurationError(f"Requests would go to {self.model!r}, but {state.model!r} is pinned.")
        found = refusal(state, lambda: self._parts(agent, view), self.model)
        if found is None:
            return
        why = "" if found.part is None else self._why(found.part)
        error = error_of(self.model, found, why)
        await self._log.append(
            "tier.blocked",
            {
                "model": self.model,
                "clearance": found.clearance,
                "part": None if found.part is None else found.part.seq,
                "label": found.label,
                "rule": why or found.rule,
                "error": str(error),
            },
            agent=agent,
            turn=turn,
            cause=cause,
        )
        raise error

    def _check_bytes(self, body: bytes) -> None:
        """The pin is proven by the bytes that are sent: they begin with the model's id, in every dialect."""
        if not body.startswith(b'{"model":%s,' % json.dumps(self.endpoint.model).encode()):
            raise ConfigurationError(f"A request names another model than {self.endpoint.model!r}, which is pinned.")

    def repin(self, endpoint: Endpoint, info: ModelInfo) -> None:
        """Send to another model from here on; nothing is under way."""
        if self._local is not None or endpoint.api == "local":
            raise ConfigurationError("The embedded model is chosen when a session begins.")
        self.endpoint, self.info, self._client = endpoint, info, None

    def _reserve(self, agent: str, microusd: int, tokens: int) -> None:
        ledger = self._log.state("ledger")
        assert isinstance(ledger, LedgerState)
        check_scopes([*scopes_of(ledger, agent), *self._scopes(agent)], microusd, tokens)

    async def _send(self, call: _Call, client: ModelClient, admission: AsyncExitStack) -> Final:
        """Attempt after attempt, each failure in the log while it is waited; ModelError after the last."""
        failures = Failures(self._effects)
        reformed = False
        while True:
            call.attempts += 1
            call.owed = True
            try:
                final, call.ttft = await self._attempt(client, call.request)
                return final
            except ModelError as error:
                call.owed = error.may_cost
                changed: dict[str, object] = {}
                if error.kind == "foreign_reasoning" and not reformed:
                    # The server does not take back what it, or another, has sealed: once more without.
                    before, client = client.body(call.request), client.without_reasoning()
                    body = client.body(call.request)
                    if body == before:
                        raise
                    self._check_bytes(body)
                    reformed, wait = True, 0.0
                    changed = {"origin": client.origin, "digest": digest_of(body), "bytes": len(body)}
                    self._client = client
                elif (waits := failures.wait(error)) is not None:
                    wait = waits
                else:
                    raise
                if call.owed:
                    # The reserve covers the attempt that failed; the next one needs one of its own.
                    self._reserve(call.agent, call.microusd, call.tokens)
                failed = {"attempt": call.attempts, "error": str(error), "error_kind": error.kind, "wait_s": wait}
                owed = call.owed
                self._post(call, "model.retried", **failed, **call.estimate, **changed)
                call.owed = False
                await (self._admit(admission) if owed else self._log.flush())
            if wait:
                await self._wait(call.agent, wait)
            if self._local is not None:
                client = await self._connect()

    async def _wait(self, agent: str, seconds: float) -> None:
        """Sleep before the next attempt; `end_wait` ends it with its error."""
        self._before_wait(agent)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleep = asyncio.ensure_future(self._effects.sleep(seconds))
        self._waits[agent] = ended
        try:
            await asyncio.wait({sleep, ended}, return_when=asyncio.FIRST_COMPLETED)
            (ended if ended.done() else sleep).result()
        finally:
            del self._waits[agent]
            sleep.cancel()
            ended.cancel()

    def end_wait(self, agent: str, error: MuseError) -> bool:
        """End `agent`'s request with `error` if it waits for its next attempt, which can take half an hour.

        Returns whether it waited; a request that is under way is left to its end.
        """
        waiting = self._waits.get(agent)
        if waiting is None or waiting.done():
            return False
        waiting.set_exception(error)
        return True

    async def _settle(self, call: _Call, client: ModelClient) -> Completion:
        """Send, and close the request by exactly one event whatever comes."""
        async with AsyncExitStack() as admission:
            # Where it is not admitted, that is durable too before others look.
            return await self._settled(call, client, admission)

    async def _admit(self, admission: AsyncExitStack) -> None:
        """Have the reserve durable, and seen to be within what all processes together may use."""
        if self._admission is None:
            await self._log.flush()
            return
        look = await admission.enter_async_context(self._admission())
        await self._log.flush()
        await look()
        await admission.aclose()

    async def _settled(self, call: _Call, client: ModelClient, admission: AsyncExitStack) -> Completion:
        started = self._effects.monotonic()
        try:
            # Durable before anything is sent.
            await self._admit(admission)
            final = await self._send(call, client, admission)
            logged = {
                "status": final.status,
                "reason": final.reason,
                "items": [item.model_dump(mode="json") for item in final.items],
                "usage": None if final.usage is None else final.usage.model_dump(),
                "cost_microusd": call.microusd if final.usage is None else cost(self.price, final.usage),
                "served_model": final.model,
                "response_id": final.response_id,
            }
        except asyncio.CancelledError:
            self._post(call, "model.abandoned", why="stopped while the answer was awaited", **call.estimate)
            raise
        except LogError:
            raise
        except Exception as error:
            self._post(
                call,
                "model.failed",
                error=str(error) or type(error).__name__,
                error_kind=error.kind if isinstance(error, ModelError) else type(error).__name__,
                attempts=call.attempts,
                seconds=self._effects.monotonic() - started,
                **call.estimate,
            )
            await self._log.flush()
            raise
        completed = self._post(
            call,
            "model.completed",
            **logged,
            estimated=final.usage is None,
            ttft_s=call.ttft,
            seconds=self._effects.monotonic() - started,
            attempts=call.attempts,
        )
        await self._log.flush()
        return Completion(call.seq, completed.seq, _as_logged(completed.data["items"], final))

    def _post(self, call: _Call, kind: str, **data: object) -> Event:
        return self._log.post(kind, {"request": call.seq, **data}, agent=call.agent, turn=call.turn, cause=(call.seq,))

    async def _attempt(self, client: ModelClient, request: ModelRequest) -> tuple[Final, float | None]:
        started = self._effects.monotonic()
        ttft: float | None = None
        async with aclosing(client.stream(request)) as stream:
            async for part in stream:
                if ttft is None:
                    ttft = self._effects.monotonic() - started
                if isinstance(part, Final):
                    return part, ttft
        raise ModelError("The model's stream ended without an end.", kind="stream_cut", retryable=True, may_cost=True)

    async def _connect(self) -> ModelClient:
        async with self._connecting:
            if self._local is not None:
                base_url, key = await self._local.start()
                self._client = ChatClient(self._effects.http(), base_url, key)
            elif self._client is None:
                self._client = make_client(self.endpoint, self._effects.http())
            return self._client

    async def aclose(self) -> None:
        """End the embedded model's server, if this gate started one."""
        if self._local is not None:
            await self._local.aclose()


def _as_logged(items: list[dict[str, object]], final: Final) -> Final:
    # What the log holds is what everybody acts on, secrets cut out included.
    return replace(final, items=_ITEMS.validate_python(items))
