"""What a server's refusal means: status, headers and error object become one `ModelError` with advice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from musecode_jupyter.models.conversation import parse_json
from musecode_jupyter.runtime.errors import ModelError

_BY_CODE = {
    "invalid_api_key": "auth",
    "model_not_found": "not_found",
    "rate_limit_exceeded": "rate_limited",
    "server_error": "server_error",
    "server_shutting_down": "server_error",
    "service_overloaded": "overloaded",
    "backend_unavailable": "server_error",
    "gateway_timeout": "server_error",
    "payload_too_large": "context_too_long",
    "context_length_exceeded": "context_too_long",
    "exceed_context_size_error": "context_too_long",
    "content_policy_violation": "content_policy",
    "billing_not_configured": "billing",
    "insufficient_quota": "billing",
    "invalid_encrypted_content": "foreign_reasoning",
}
_BY_TYPE = {
    "authentication_error": "auth",
    "permission_error": "auth",
    "rate_limit_error": "rate_limited",
    "server_error": "server_error",
    "api_error": "server_error",
    "timeout_error": "timeout",
    "overloaded_error": "overloaded",
    "not_found_error": "not_found",
    "request_too_large": "context_too_long",
    "billing_error": "billing",
    "exceed_context_size_error": "context_too_long",
}
_BY_STATUS = {
    401: "auth",
    402: "billing",
    403: "auth",
    404: "not_found",
    408: "timeout",
    413: "context_too_long",
}
_RETRYABLE = {"rate_limited", "overloaded", "server_error", "timeout"}

_CONTEXT = re.compile(
    r"context.{0,40}(length|window|size|limit|exceed)|exceed.{0,40}context|prompt is too long"
    r"|too many (input )?tokens",
    re.IGNORECASE | re.DOTALL,
)
_FOREIGN = re.compile(r"encrypted|reasoning[ _]items?|signature|thinking[` ]+block", re.IGNORECASE)
_POLICY = re.compile(r"content[ _]policy|safety", re.IGNORECASE)


@dataclass(frozen=True)
class Caller:
    """Who sends a request, and to where, as far as messages name it; the key is there to be cut out."""

    url: str
    base_url: str
    key_source: str
    key: str | None = field(repr=False)
    model: str = ""
    carries_reasoning: bool = False

    def tidy(self, text: object, limit: int = 300) -> str:
        """Server text as one short line without the key."""
        line = " ".join(str(text).split())
        if self.key:
            line = line.replace(self.key, "[redacted]")
        return line if len(line) <= limit else line[: limit - 3] + "..."


def http_failure(caller: Caller, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """The error for an answer whose status is not 200."""
    wait = retry_after(headers)
    text = body.decode("utf-8", "replace").strip()
    if 300 <= status < 400:
        goal = urlsplit(headers.get("location", ""))
        where = f"{goal.scheme}://{goal.netloc.rpartition('@')[2]}" if goal.netloc else "another path"
        return ModelError(
            f"{caller.url} redirects ({status}) to {caller.tidy(where)}: set MUSECODE_BASE_URL to the final address",
            kind="protocol",
            status=status,
        )
    if status >= 500 and is_html(headers, body):
        return ModelError(
            f"a proxy or gateway answered {status} with an HTML page instead of {caller.url}: try again "
            "later, or check MUSECODE_BASE_URL and the proxy settings",
            kind="html_from_proxy",
            status=status,
            retryable=True,
            retry_after=wait,
            may_cost=status == 504,
        )
    if status == 404 and not text:
        return ModelError(
            f"{caller.url} does not exist (404, empty body): the path of MUSECODE_BASE_URL is probably wrong "
            "(it usually ends in /v1), or the server does not offer this MUSECODE_API",
            kind="not_found",
            status=status,
        )
    error = {} if is_html(headers, body) else error_object(text)
    return _failure(caller, error, status, wait)


def event_failure(caller: Caller, error: Mapping[str, Any]) -> ModelError:
    """The error for an error object that arrived inside a stream."""
    return _failure(caller, error, None, None)


def is_html(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether an answer is a web page, as proxies and captive portals send."""
    start = body.lstrip()[:15].lower()
    return "text/html" in headers.get("content-type", "").lower() or start.startswith((b"<!doctype", b"<html"))


def error_object(text: str) -> dict[str, Any]:
    """The `error` member of a JSON answer; other text becomes its message."""
    try:
        value = parse_json(text)
    except ValueError:
        return {"message": text}
    error = value.get("error", value) if isinstance(value, dict) else value
    return error if isinstance(error, dict) else {"message": text if error is None else str(error)}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by `Retry-After`: a number, or a date, read against the answer's own `Date`."""
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", value):
        return float(value)
    try:
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(headers.get("date", ""))
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return max(0.0, wait.total_seconds())


def _failure(caller: Caller, error: Mapping[str, Any], status: int | None, wait: float | None) -> ModelError:
    kind = _kind(caller, error, status)
    # A status decides alone whether the same bytes may be sent again; inside a stream only the kind can.
    if status is None or kind == "billing":
        retryable = kind in _RETRYABLE
    else:
        retryable = status in (408, 429) or status >= 500
    said = caller.tidy(error.get("message") or error.get("code") or error.get("type") or "")
    advice = _advice(caller, kind, status, str(error.get("code") or ""), wait)
    return ModelError(
        f"{advice} (server: {said})" if said else advice,
        kind=kind,
        status=status,
        retryable=retryable,
        retry_after=wait,
        # A gateway that gave up waiting has handed the request on.
        may_cost=status == 504,
    )


def _kind(caller: Caller, error: Mapping[str, Any], status: int | None) -> str:
    code, kind_of_error = str(error.get("code") or ""), str(error.get("type") or "")
    named = _BY_CODE.get(code) or _BY_TYPE.get(kind_of_error)
    if status is not None:
        if status in (503, 529):
            return "server_error" if _BY_CODE.get(code) == "server_error" else "overloaded"
        if status >= 500:
            return "overloaded" if named == "overloaded" else "server_error"
        if status == 429:
            return "billing" if named == "billing" else "rate_limited"
        if status == 403 and named == "content_policy":
            return named
        if status in _BY_STATUS:
            return _BY_STATUS[status]
    if named:
        return named
    text = f"{code} {error.get('param') or ''} {error.get('message') or ''}"
    if _CONTEXT.search(text):
        return "context_too_long"
    if caller.carries_reasoning and _FOREIGN.search(text):
        return "foreign_reasoning"
    if _POLICY.search(text):
        return "content_policy"
    if status is None and kind_of_error not in ("invalid_request_error", "invalid_request"):
        return "server_error"
    return "invalid_request"


def _advice(caller: Caller, kind: str, status: int | None, code: str, wait: float | None) -> str:
    host = urlsplit(caller.base_url).netloc
    label = f"{status} {code}".strip() if status is not None else (code or "error in the stream")
    if kind == "auth":
        problem = "refused the key" if caller.key else "wants a key"
        return f"{host} {problem} ({label}): set {caller.key_source} to a valid key"
    if kind == "billing":
        return f"{host} wants billing to be set up ({label}): add a payment method or credit to the account"
    if kind == "not_found":
        if code == "model_not_found":
            return (
                f"{host} does not know the model {caller.model!r} ({label}): choose another with "
                "MUSECODE_MODEL or %muse model ID"
            )
        return f"{caller.url} was not found ({label}): check MUSECODE_BASE_URL, MUSECODE_API and MUSECODE_MODEL"
    if kind == "rate_limited":
        return f"{host} limits the rate of requests ({label}): {_pause(wait)}, or run fewer agents at once"
    if kind == "context_too_long":
        return f"the request is too long for {caller.model!r} ({label}): compact it or read less at once"
    if kind == "foreign_reasoning":
        return f"{host} refuses reasoning items that it did not make for this key ({label}): send without them"
    if kind == "content_policy":
        return f"{host} refused the request by its content policy ({label}): change what is asked"
    if kind == "timeout":
        return f"{host} gave up waiting ({label}): try again"
    if kind == "overloaded":
        return f"{host} is overloaded ({label}): {_pause(wait)}"
    if kind == "server_error":
        return f"{host} failed on its side ({label}): try again later"
    return f"{host} refused the request as invalid ({label})"


def _pause(wait: float | None) -> str:
    return f"wait {wait:g} s" if wait is not None else "wait a little"
