"""The one gate in front of every model call: budget reserved first, request logged, sent, retried, settled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from hashlib import blake2b

from pydantic import TypeAdapter

from musecode_jupyter.guard.ledger import LedgerState, Scope, Scopes, check_scopes
from musecode_jupyter.log import EventLog
from musecode_jupyter.models.catalogue import ModelInfo, cost
from musecode_jupyter.models.chat import ChatClient
from musecode_jupyter.models.endpoint import Endpoint, encoder, make_client
from musecode_jupyter.models.local import LocalModel
from musecode_jupyter.models.model_file import LocalModelFile
from musecode_jupyter.models.recorded import RecordedClient
from musecode_jupyter.models.types import (
    Final,
    Item,
    ModelClient,
    ModelRequest,
    TextDelta,
    Usage,
)
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ConfigurationError, ModelError

_ITEMS: TypeAdapter[tuple[Item, ...]] = TypeAdapter(tuple[Item, ...])

MAX_ATTEMPTS = 8
BACKOFF_S = 0.5
BACKOFF_CAP_S = 30.0
RETRY_AFTER_CAP_S = 120.0


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


def digest_of(body: bytes) -> str:
    """BLAKE2b-128 of request bytes, as model.requested records it."""
    return blake2b(body, digest_size=16).hexdigest()


def estimate_tokens(body: bytes) -> int:
    """Upper estimate of the tokens of a request: 2.5 bytes of JSON a token, more than any tokenizer here needs."""
    return len(body) * 2 // 5 + 16


def request_bytes(api: str, origin: str, request: ModelRequest) -> bytes:
    """The bytes that `request` had when it was sent by the caller `origin` through `api`; nothing is sent."""
    return encoder(api, origin).body(request)


def recorded_client(api: str, origin: str, answers: Sequence[tuple[str, Final | ModelError]]) -> ModelClient:
    """A client that answers from `answers` (request digest, answer), in order; nothing is sent."""
    return RecordedClient(encoder(api, origin), answers)


class Gate:
    """Owner of the model client (and of the embedded model's server); used on the runtime thread.

    `client` is given in a replay; otherwise the gate makes the one for `endpoint`.
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
        client: ModelClient | None = None,
    ) -> None:
        self._log = log
        self._effects = effects
        self.endpoint = endpoint
        self.info = info
        self._local = None if local_file is None or client else LocalModel(local_file, alias=endpoint.model)
        self._scopes = scopes
        self._client = client
        self._connecting = asyncio.Lock()

    @property
    def model(self) -> str:
        """The pinned model id."""
        return self.endpoint.model

    async def ready(self) -> None:
        """Connect, starting the embedded model's server if need be.

        Separate from `complete`, so that nothing can change the conversation between the building of a request and
        its model.requested event: `complete` logs the request before its first wait.
        """
        await self._connect()

    async def complete(
        self,
        request: ModelRequest,
        *,
        agent: str,
        turn: int,
        view: int | None,
        purpose: str = "",
        cause: tuple[int, ...] = (),
        on_text: Callable[[str], None] | None = None,
    ) -> Completion:
        """Send `request` and wait for its end.

        Raises BudgetExceeded before anything is sent, ModelError after the last attempt. Cancellation abandons
        the request and keeps its reserve as the estimate of its cost.
        """
        if request.model != self.endpoint.model:
            raise ConfigurationError(f"Request for model {request.model!r}, but {self.endpoint.model!r} is pinned.")
        client = self._client
        if client is None:
            raise RuntimeError("Gate.ready() comes before the request is built")
        body = client.body(request)
        tokens = estimate_tokens(body) + request.max_output_tokens
        usd = cost(self.info, Usage(input=estimate_tokens(body), output=request.max_output_tokens))
        self._reserve(agent, usd, tokens)
        event = await self._log.append(
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
                "origin": client.origin,
                "digest": digest_of(body),
                "bytes": len(body),
                "reserved_usd": usd,
                "reserved_tokens": tokens,
                "purpose": purpose,
            },
            agent=agent,
            turn=turn,
            cause=cause,
        )
        return await self._send(client, request, event.seq, agent=agent, turn=turn, usd=usd, on_text=on_text)

    def _reserve(self, agent: str, usd: float, tokens: int) -> None:
        ledger = self._log.state("ledger")
        assert isinstance(ledger, LedgerState)
        session = Scope(
            "this session",
            ledger.limit_usd,
            ledger.total.usd + ledger.reserved_usd,
            ledger.limit_tokens,
            ledger.total.tokens + ledger.reserved_tokens,
        )
        check_scopes([session, *self._scopes(agent)], usd, tokens)

    async def _send(
        self,
        client: ModelClient,
        request: ModelRequest,
        seq: int,
        *,
        agent: str,
        turn: int,
        usd: float,
        on_text: Callable[[str], None] | None,
    ) -> Completion:
        started = self._effects.monotonic()
        attempt = 0
        try:
            while True:
                attempt += 1
                try:
                    final, ttft = await self._attempt(client, request, on_text)
                    break
                except ModelError as error:
                    wait = _wait_before(attempt, error, self._effects)
                    if wait is None:
                        raise
                    await self._log.append(
                        "model.retried",
                        {"request": seq, "attempt": attempt, "error": str(error), "wait_s": wait},
                        agent=agent,
                        turn=turn,
                        cause=(seq,),
                    )
                    await self._effects.sleep(wait)
                    client = await self._connect()
        except ModelError as error:
            await self._log.append(
                "model.failed",
                {
                    "request": seq,
                    "error": str(error),
                    "error_kind": error.kind,
                    "attempts": attempt,
                    "seconds": self._effects.monotonic() - started,
                    # A stream that was cut may have been charged; its reserve stays as the estimate.
                    "cost_usd": usd if error.kind in {"stream_cut", "timeout"} else 0.0,
                },
                agent=agent,
                turn=turn,
                cause=(seq,),
            )
            raise
        except asyncio.CancelledError:
            self._log.post(
                "model.abandoned",
                {"request": seq, "why": "stopped while the answer was awaited", "cost_usd": usd},
                agent=agent,
                turn=turn,
                cause=(seq,),
            )
            raise
        completed = await self._log.append(
            "model.completed",
            {
                "request": seq,
                "status": final.status,
                "reason": final.reason,
                "items": [item.model_dump(mode="json") for item in final.items],
                "usage": None if final.usage is None else final.usage.model_dump(),
                "cost_usd": usd if final.usage is None else cost(self.info, final.usage),
                "estimated": final.usage is None,
                "ttft_s": ttft,
                "seconds": self._effects.monotonic() - started,
                "attempts": attempt,
                "served_model": final.model,
                "response_id": final.response_id,
            },
            agent=agent,
            turn=turn,
            cause=(seq,),
        )
        return Completion(seq, completed.seq, _as_logged(completed.data["items"], final))

    async def _attempt(
        self, client: ModelClient, request: ModelRequest, on_text: Callable[[str], None] | None
    ) -> tuple[Final, float | None]:
        started = self._effects.monotonic()
        ttft: float | None = None
        async with aclosing(client.stream(request)) as stream:
            async for part in stream:
                if ttft is None:
                    ttft = self._effects.monotonic() - started
                if isinstance(part, Final):
                    return part, ttft
                if on_text is not None and isinstance(part, TextDelta):
                    on_text(part.text)
        raise ModelError("The model's stream ended without an end.", kind="stream_cut", retryable=True)

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


def _wait_before(attempt: int, error: ModelError, effects: Effects) -> float | None:
    if not error.retryable or attempt >= MAX_ATTEMPTS:
        return None
    if error.retry_after is not None:
        return min(error.retry_after, RETRY_AFTER_CAP_S)
    backoff = min(BACKOFF_S * 2.0 ** (attempt - 1), BACKOFF_CAP_S)
    return backoff * (0.5 + int(effects.token(2), 16) / 131_072)


def _as_logged(items: list[dict[str, object]], final: Final) -> Final:
    # What the log holds is what everybody acts on, secrets cut out included.
    return replace(final, items=_ITEMS.validate_python(items))
