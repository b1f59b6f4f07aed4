"""One streamed POST: bytes out, server-sent events in, every fault of the transport a `ModelError`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from musecode_jupyter.models.catalogue import is_other
from musecode_jupyter.models.failures import Caller, error_object, event_failure, http_failure, is_html
from musecode_jupyter.models.sse import EventParser, EventTooLarge, ServerEvent
from musecode_jupyter.runtime.errors import ConfigurationError, ModelError

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True)
class Deadlines:
    """How long one attempt may take, in seconds; a deadline that passes is a `ModelError` of kind `timeout`.

    `connect` is short of the time after which the gate tries no more to reach a dead address. `silence` is the
    longest without a byte: servers read a long prompt, and some think, before the first. `progress` is the longest
    without a whole event other than a ping: keep-alives hold a connection open for ever, and so does a byte now and
    then. `whole` ends an answer that drips: the longest output of the known models, 131,072 tokens, takes less at
    40 tokens a second.
    """

    connect: float = 5.0
    silence: float = 120.0
    progress: float = 600.0
    whole: float = 3600.0


DEADLINES = Deadlines()

MODEL_HEADERS = ("x-model", "x-model-id", "x-served-model", "openai-model")
"""Headers by which servers and gateways say which model has answered."""

_PINGS = frozenset({"ping", "keepalive"})
_MAX_ERROR_BYTES = 64 * 1024


def origin_of(dialect: str, base_url: str, api_key: str | None, tier: str) -> str:
    """Digest of the caller, by which opaque reasoning items are bound to it; does not give the key away."""
    text = "\0".join((dialect, base_url.rstrip("/"), tier, api_key or ""))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def next_origin(origin: str) -> str:
    """The origin of a caller after the server has refused reasoning items of `origin`."""
    return hashlib.blake2b(f"after a refusal\0{origin}".encode(), digest_size=16).hexdigest()


def checked_key(api_key: str | None, key_source: str) -> str | None:
    """`api_key` if it fits into a header; else an error that does not quote it, as the HTTP library's would.

    Raises
    ------
    ConfigurationError
        If the key has spaces, line ends or characters beyond ASCII.
    """
    if api_key and not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise ConfigurationError(
            f"the key in {key_source} has spaces, line ends or non-ASCII characters: copy it without them"
        )
    return api_key or None


def wrong_model(caller: Caller, served: str, how: str) -> ModelError:
    """The error for an answer of another model than the one that was asked for."""
    tier = (
        " and prompts of the contributor tier may be used for training," if "contributor" in served.casefold() else ""
    )
    return ModelError(
        f"{caller.base_url} answered with {caller.tidy(served, 80)!r} although {caller.model!r} was asked for "
        f"({how} it),{tier} so nothing of this answer is used, and no further call is made: check MUSECODE_BASE_URL, "
        f"then `%muse model {caller.model}` goes on",
        kind="wrong_model",
        may_cost=True,
    )


async def post_events(
    http: httpx.AsyncClient, caller: Caller, body: bytes, *, headers: Mapping[str, str], deadlines: Deadlines
) -> AsyncGenerator[ServerEvent, None]:
    """POST `body` and yield the events of the answer until it ends.

    A clean end of the stream just ends the iteration: the caller knows whether a terminal event came. Close
    the generator (`contextlib.aclosing`) to give the connection back early. `headers` are those that name the caller.

    Raises
    ------
    ModelError
        For every status but 200 and every fault of the transport.
    """
    import httpx

    sent = {
        "content-type": "application/json",
        "accept": "text/event-stream",
        # A compressed stream may be held back by a proxy until its window is full.
        "accept-encoding": "identity",
        **headers,
    }
    timeout = httpx.Timeout(connect=deadlines.connect, read=deadlines.silence, write=60.0, pool=10.0)
    clock = asyncio.get_running_loop().time
    whole = clock() + deadlines.whole
    response: httpx.Response | None = None
    try:
        request = http.build_request("POST", caller.url, content=body, headers=sent, timeout=timeout)
        response = await http.send(request, stream=True, follow_redirects=False)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        for name in MODEL_HEADERS:
            if is_other(caller.model, served := response.headers.get(name, "").strip()):
                raise wrong_model(caller, served, f"its header {name} says")
        if response.status_code != 200 or kind in ("text/html", "application/json"):
            await _refused(caller, response)
        parser = EventParser()
        chunks = response.aiter_bytes()
        progress = clock() + deadlines.progress
        some = False
        while True:
            try:
                async with asyncio.timeout_at(min(progress, whole)):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                raise _too_slow(caller, deadlines, late=clock() >= whole) from None
            for event in parser.close() if chunk is None else parser.feed(chunk):
                yield event
                some = True
                if event.event not in _PINGS:
                    # Counted from here: the time that the consumer takes is not the server's.
                    progress = clock() + deadlines.progress
            if chunk is None:
                break
        if not some and kind not in ("", "text/event-stream"):
            raise ModelError(
                f"{caller.url} answered with {caller.tidy(kind, 60)} and not with a model's stream: check "
                "MUSECODE_BASE_URL and MUSECODE_API",
                kind="protocol",
                status=200,
            )
    except EventTooLarge as error:
        raise ModelError(
            f"{caller.url} sent an answer that cannot be read: {error}", kind="protocol", may_cost=True
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError) as error:
        raise _transport_failure(caller, error, started=response is not None, deadlines=deadlines) from None
    finally:
        if response is not None:
            await response.aclose()


async def _refused(caller: Caller, response: httpx.Response) -> NoReturn:
    import httpx

    body = b""
    try:
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) >= _MAX_ERROR_BYTES:
                break
    except httpx.HTTPError:
        # The status alone says enough; a body that breaks off adds nothing.
        pass
    if response.status_code != 200:
        raise http_failure(caller, response.status_code, response.headers, body)
    if is_html(response.headers, body):
        raise ModelError(
            f"{caller.url} answered with an HTML page, not a model's stream: check MUSECODE_BASE_URL and the "
            "proxy settings (a login page of the network?)",
            kind="html_from_proxy",
            status=200,
        )
    text = body.decode("utf-8", "replace")
    error = error_object(text)
    if '"error"' in text and error.get("message"):
        raise event_failure(caller, error)
    raise ModelError(
        f"{caller.url} answered in one piece although a stream was asked for: check MUSECODE_BASE_URL and MUSECODE_API",
        kind="protocol",
        status=200,
        may_cost=True,
    )


def _too_slow(caller: Caller, deadlines: Deadlines, *, late: bool) -> ModelError:
    what = (
        f"its answer had not ended after {deadlines.whole:g} s"
        if late
        else f"nothing but keep-alives or pieces of an event for {deadlines.progress:g} s"
    )
    return ModelError(
        f"{caller.base_url} is too slow ({what}): try again", kind="timeout", retryable=True, may_cost=True
    )


def _transport_failure(caller: Caller, error: Exception, *, started: bool, deadlines: Deadlines) -> ModelError:
    import httpx

    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError | httpx.UnsupportedProtocol):
        return ModelError(
            f"cannot reach {caller.base_url} ({caller.tidy(error, 120) or type(error).__name__}): check that "
            "the server runs and the network, or set MUSECODE_BASE_URL",
            kind="connect",
            retryable=not isinstance(error, httpx.UnsupportedProtocol),
        )
    if isinstance(error, httpx.TimeoutException):
        read = isinstance(error, httpx.ReadTimeout)
        what = f"no byte for {deadlines.silence:g} s" if read else type(error).__name__
        return ModelError(
            f"{caller.base_url} stalled ({what}): try again", kind="timeout", retryable=True, may_cost=read
        )
    if isinstance(error, httpx.DecodingError):
        return ModelError(
            f"{caller.url} sent an answer whose compression is broken: try again, or check the proxy settings",
            kind="protocol",
            retryable=True,
            may_cost=True,
        )
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        where = "the answer" if started else "the request"
        return ModelError(
            f"the connection to {caller.base_url} broke off during {where}; its outcome is unknown and "
            f"nothing of it is used: try again ({caller.tidy(error, 120) or type(error).__name__})",
            kind="stream_cut",
            retryable=True,
            may_cost=not isinstance(error, httpx.WriteError),
        )
    return ModelError(
        f"{caller.base_url} cannot be spoken to ({type(error).__name__}): check MUSECODE_BASE_URL and the "
        "proxy settings",
        kind="protocol",
    )
