"""What the clients of all dialects share: endpoint, key and origin, and the one way in which an answer is read."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from musecode_jupyter.models import transport
from musecode_jupyter.models.catalogue import is_other
from musecode_jupyter.models.conversation import MAX_ARGUMENT_DEPTH, fresh_call_ids, parse_json, shallow
from musecode_jupyter.models.failures import Caller
from musecode_jupyter.models.sse import ServerEvent
from musecode_jupyter.models.transport import Deadlines, checked_key, next_origin, origin_of, post_events, wrong_model
from musecode_jupyter.models.types import Final, ModelRequest, StreamPart, ToolCall
from musecode_jupyter.runtime.errors import ModelError

if TYPE_CHECKING:
    import httpx


class Answer(ABC):
    """What a stream has said so far, in one dialect.

    `ended` says that the answer is whole: what comes after that is not part of it, and cannot undo it. `closed` says
    that nothing is worth waiting for any more.
    """

    def __init__(self, caller: Caller, origin: str) -> None:
        self.caller = caller
        self.origin = origin
        self.ended = False
        self.closed = False

    @abstractmethod
    def take(self, event: ServerEvent) -> Iterable[StreamPart]:
        """One event's parts of the answer; ModelError for an event that reports or is a failure."""

    @abstractmethod
    def final(self) -> Final:
        """The whole answer, once it has ended."""

    def parse(self, event: ServerEvent) -> dict[str, Any]:
        """The event's JSON object, or ModelError."""
        try:
            value = parse_json(event.data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self.broken("sent an event that is no JSON object")
        return value

    def broken(self, what: str) -> ModelError:
        """The error for a stream that does not keep to its dialect."""
        return ModelError(
            f"{self.caller.url} {what}; nothing of this answer is used: try again, or check MUSECODE_API",
            kind="protocol",
            retryable=True,
            may_cost=True,
        )


class HttpClient(ABC):
    """Base of the `ModelClient`s that speak HTTP; stateless and always streaming.

    Parameters
    ----------
    http
        The process's HTTP client; not closed here.
    base_url
        Up to and including the version, e.g. `https://api.meta.ai/v1`.
    key_source
        Name of the environment variable that the key came from, or would come from; for messages.
    tier
        Data tier of the model ids sent, part of `origin`: reasoning items are bound to it.
    deadlines
        Of one attempt; `transport.DEADLINES` if None.
    origin
        Of a recorded caller, whose request bytes are to be formed again.

    Raises
    ------
    ConfigurationError
        If the key cannot be put into a header.
    """

    dialect: ClassVar[str]
    path: ClassVar[str]

    def __init__(
        self,
        http: httpx.AsyncClient,
        base_url: str,
        api_key: str | None,
        *,
        key_source: str = "MUSECODE_API_KEY",
        tier: str = "standard",
        deadlines: Deadlines | None = None,
        origin: str | None = None,
    ) -> None:
        self._http = http
        self._base_url = base_url.rstrip("/")
        self._key = checked_key(api_key, key_source)
        self._key_source = key_source
        self._deadlines = deadlines
        self._origin = origin or origin_of(self.dialect, base_url, self._key, tier)

    @property
    def origin(self) -> str:
        """Digest of dialect, endpoint, key and tier, by which reasoning items are bound to their caller."""
        return self._origin

    def without_reasoning(self) -> Self:
        """The same caller with another origin, so that no reasoning item received so far is sent; always the same."""
        other = copy.copy(self)
        other._origin = next_origin(self._origin)
        return other

    @abstractmethod
    def body(self, request: ModelRequest) -> bytes:
        """The exact bytes of `request`; items come last, so that they are a prefix of the next request's.

        Raises
        ------
        ModelError
            Kind `invalid_request`, for what the API is known to refuse.
        """

    @abstractmethod
    def _answer(self, caller: Caller, request: ModelRequest) -> Answer:
        """What collects the events of an answer to `request`."""

    def _headers(self) -> dict[str, str]:
        """The headers that name the caller."""
        return {"authorization": f"Bearer {self._key}"} if self._key else {}

    def _caller(self, request: ModelRequest, body: bytes) -> Caller:
        return Caller(
            url=f"{self._base_url}{self.path}",
            base_url=self._base_url,
            key_source=self._key_source,
            key=self._key,
            model=request.model,
            carries_reasoning=self._carries_reasoning(body),
        )

    def _carries_reasoning(self, body: bytes) -> bool:
        """Whether request bytes hold reasoning items, which a server may refuse as not its own."""
        return False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Send `body(request)`; yield deltas, then exactly one `Final`.

        Raises
        ------
        ModelError
            For every failure; a stream that ends without a terminal event is one (`stream_cut`).
        """
        body = self.body(request)
        events = post_events(
            self._http,
            self._caller(request, body),
            body,
            headers=self._headers(),
            deadlines=self._deadlines or transport.DEADLINES,
        )
        final: Final | None = None
        async with aclosing(events), aclosing(self.read(request, events)) as parts:
            async for part in parts:
                if isinstance(part, Final):
                    final = part
                else:
                    yield part
        # The connection is given back by now, even if a consumer stops at the Final without closing this.
        assert final is not None
        yield final

    async def read(self, request: ModelRequest, events: AsyncIterator[ServerEvent]) -> AsyncGenerator[StreamPart, None]:
        """The parts of an answer to `request` whose `events` have come from wherever; raises as `stream`."""
        body = self.body(request)
        answer = self._answer(self._caller(request, body), request)
        begun = False
        try:
            async for event in events:
                if event.is_done:
                    break
                for part in answer.take(event):
                    begun = True
                    yield part
                if answer.closed:
                    break
        except ModelError as error:
            # Once the answer is whole, only its usage and the mark of the end can be missing.
            if not answer.ended:
                error.may_cost |= begun
                raise
        if not answer.ended:
            raise ModelError(
                f"the stream from {self._base_url} ended without a terminal event; its outcome is unknown, "
                "and nothing of it is used: try again",
                kind="stream_cut",
                retryable=True,
                may_cost=True,
            )
        final = answer.final()
        if is_other(request.model, final.model or ""):
            raise wrong_model(answer.caller, final.model or "", "its answer names")
        calls = fresh_call_ids([item for item in final.items if isinstance(item, ToolCall)], request, body)
        items = tuple(next(calls) if isinstance(item, ToolCall) else item for item in final.items)
        yield replace(final, items=items)


def text_of(value: object) -> str:
    """`value` if it is a string, else nothing."""
    return value if isinstance(value, str) else ""


def arguments_text(value: object) -> str:
    """The text of a call's arguments, which some servers and gateways send as an object."""
    if isinstance(value, dict):
        return json.dumps(value) if shallow(value, MAX_ARGUMENT_DEPTH) else "{ nested too deeply"
    return text_of(value)
