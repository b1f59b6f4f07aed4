"""One streamed POST: bytes out, server-sent events in, every fault of the transport a `ModelError`."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, NoReturn

from musecode_jupyter.models.failures import Caller, error_object, event_failure, http_failure, is_html
from musecode_jupyter.models.sse import EventParser, EventTooLarge, ServerEvent
from musecode_jupyter.runtime.errors import ConfigurationError, ModelError

if TYPE_CHECKING:
    import httpx

READ_STALL = 120.0
"""Seconds without a byte after which a stream counts as stalled."""

_MAX_ERROR_BYTES = 64 * 1024


def origin_of(dialect: str, base_url: str, api_key: str | None, tier: str) -> str:
    """Digest of the caller, by which opaque reasoning items are bound to it; does not give the key away."""
    text = "\0".join((dialect, base_url.rstrip("/"), tier, api_key or ""))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


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


async def post_events(
    http: httpx.AsyncClient, caller: Caller, body: bytes, *, read_timeout: float
) -> AsyncGenerator[ServerEvent, None]:
    """POST `body` and yield the events of the answer until it ends.

    A clean end of the stream just ends the iteration: the caller knows whether a terminal event came. Close
    the generator (`contextlib.aclosing`) to give the connection back early.

    Raises
    ------
    ModelError
        For every status but 200 and every fault of the transport.
    """
    import httpx

    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream",
        # A compressed stream may be held back by a proxy until its window is full.
        "accept-encoding": "identity",
    }
    if caller.key:
        headers["authorization"] = f"Bearer {caller.key}"
    timeout = httpx.Timeout(connect=10.0, read=read_timeout, write=60.0, pool=10.0)
    response: httpx.Response | None = None
    try:
        request = http.build_request("POST", caller.url, content=body, headers=headers, timeout=timeout)
        response = await http.send(request, stream=True, follow_redirects=False)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code != 200 or kind in ("text/html", "application/json"):
            await _refused(caller, response)
        parser = EventParser()
        async for chunk in response.aiter_bytes():
            for event in parser.feed(chunk):
                yield event
        for event in parser.close():
            yield event
    except EventTooLarge as error:
        raise ModelError(f"{caller.url} sent an answer that cannot be read: {error}", kind="protocol") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise _transport_failure(caller, error, started=response is not None, read_timeout=read_timeout) from None
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
    )


def _transport_failure(caller: Caller, error: Exception, *, started: bool, read_timeout: float) -> ModelError:
    import httpx

    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError | httpx.UnsupportedProtocol):
        return ModelError(
            f"cannot reach {caller.base_url} ({caller.tidy(error, 120) or type(error).__name__}): check that "
            "the server runs and the network, or set MUSECODE_BASE_URL",
            kind="connect",
            retryable=not isinstance(error, httpx.UnsupportedProtocol),
        )
    if isinstance(error, httpx.TimeoutException):
        what = f"no byte for {read_timeout:g} s" if isinstance(error, httpx.ReadTimeout) else type(error).__name__
        return ModelError(f"{caller.base_url} stalled ({what}): try again", kind="timeout", retryable=True)
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        where = "the answer" if started else "the request"
        return ModelError(
            f"the connection to {caller.base_url} broke off during {where}; its outcome is unknown and "
            f"nothing of it is used: try again ({caller.tidy(error, 120) or type(error).__name__})",
            kind="stream_cut",
            retryable=True,
        )
    return ModelError(
        f"{caller.base_url} cannot be spoken to ({type(error).__name__}): check MUSECODE_BASE_URL and the "
        "proxy settings",
        kind="protocol",
    )
