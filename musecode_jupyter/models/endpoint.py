"""Which model is spoken to, where, in which dialect and with whose key, as the environment says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from musecode_jupyter.models.catalogue import CATALOGUE, DEFAULT_MODEL, LOCAL_MODEL, tier_of
from musecode_jupyter.runtime.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx

    from musecode_jupyter.models.client import HttpClient
    from musecode_jupyter.models.types import ModelClient

META_BASE_URL: Final = "https://api.meta.ai/v1"

Api = Literal["responses", "chat", "messages", "local"]

_APIS: Final[dict[str, Api]] = {
    "responses": "responses",
    "chat": "chat",
    "messages": "messages",
    "local": "local",
}
_META_KEYS = ("MODEL_API_KEY", "META_API_KEY")
_OTHER_KEY = "MUSECODE_API_KEY"
_SECRET_NAME = re.compile(
    r"(^|_)(API_?KEY|ACCESS_KEY|SECRET_KEY|PRIVATE_KEY|TOKEN|SECRET|PASSWORD|PASSWD)$", re.IGNORECASE
)
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
# Shorter values ("none", "test") would blot out ordinary text wherever they occur.
_MIN_SECRET = 8


@dataclass(frozen=True)
class Endpoint:
    """One model at one address. `base_url` is empty for the local model: its server is started when needed.

    `key_source` names the variable that the key came from, or that would be asked for one.
    """

    api: Api
    base_url: str
    model: str
    key_source: str
    key: str | None = field(default=None, repr=False)

    @property
    def remote(self) -> bool:
        """Whether prompts leave this machine; what a gateway on it passes on is not known here."""
        return self.api != "local" and urlsplit(self.base_url).hostname not in _LOOPBACK


def resolve_endpoint(
    environ: Mapping[str, str],
    *,
    model: str | None = None,
    api: str | None = None,
    base_url: str | None = None,
) -> Endpoint:
    """The endpoint that the arguments and, where they are None, the environment ask for.

    No key and no base URL mean the embedded local model. Meta's keys are sent to Meta's host and to this machine
    only; any other address gets `MUSECODE_API_KEY` or none. The default dialect is `responses` at Meta and for
    Meta's model ids, else `chat`.

    Raises
    ------
    ConfigurationError
        For settings that cannot be used or contradict each other.
    """
    model = _given(model, environ, "MUSECODE_MODEL")
    address = _given(base_url, environ, "MUSECODE_BASE_URL")
    dialect = _checked_api(_given(api, environ, "MUSECODE_API"))
    if dialect == "local" or (dialect is None and not address and model == LOCAL_MODEL):
        if address:
            raise ConfigurationError("MUSECODE_API=local and MUSECODE_BASE_URL exclude each other: unset one")
        if model not in (None, LOCAL_MODEL):
            raise ConfigurationError(f"MUSECODE_API=local serves {LOCAL_MODEL} only: unset the model {model!r}")
        return Endpoint(api="local", base_url="", model=LOCAL_MODEL, key_source="")
    if address:
        return _other(environ, _checked_url(address), model, dialect)
    key_source, key = _first_key(environ, _META_KEYS)
    if dialect == "messages":
        raise ConfigurationError(
            "MUSECODE_API=messages needs an address: set MUSECODE_BASE_URL, MUSECODE_MODEL and MUSECODE_API_KEY"
        )
    if key is not None:
        return Endpoint(dialect or "responses", META_BASE_URL, model or DEFAULT_MODEL, key_source, key)
    if environ.get(_OTHER_KEY, "").strip():
        raise ConfigurationError(
            "MUSECODE_API_KEY is set but MUSECODE_BASE_URL is not: set the address too, or put a key of the "
            "Meta Model API into MODEL_API_KEY"
        )
    if model or dialect:
        asked = f"model {model!r}" if model else f"MUSECODE_API={dialect}"
        raise ConfigurationError(
            f"{asked} needs a key or an address: set MODEL_API_KEY (Meta Model API) or MUSECODE_BASE_URL; "
            "with neither key, address, model nor API set, the embedded local model is used"
        )
    return Endpoint(api="local", base_url="", model=LOCAL_MODEL, key_source="")


def make_client(endpoint: Endpoint, http: httpx.AsyncClient) -> ModelClient:
    """The client for an endpoint that has an address.

    Raises
    ------
    ConfigurationError
        For the local endpoint, which has no address before its server runs, and for a bad key.
    """
    if endpoint.api == "local":
        raise ConfigurationError("the local model has no address yet: start its server first")
    return _kind(endpoint.api)(
        http,
        endpoint.base_url,
        endpoint.key,
        key_source=endpoint.key_source,
        tier=tier_of(endpoint.model),
    )


@cache
def encoder(api: str, origin: str) -> ModelClient:
    """A client that only forms request bytes, as the caller `origin` did: for comparing them in a replay."""
    return _kind(api)(_unsent(), "http://127.0.0.1", None, origin=origin)


@cache
def _unsent() -> httpx.AsyncClient:
    """One HTTP client for all encoders, for making one reads the certificates; nothing is ever sent by it."""
    import httpx

    return httpx.AsyncClient()


def _kind(api: str) -> type[HttpClient]:
    """The client of a dialect; the local model speaks `chat`."""
    from musecode_jupyter.models.chat import ChatClient
    from musecode_jupyter.models.messages import MessagesClient
    from musecode_jupyter.models.responses import ResponsesClient

    return {"responses": ResponsesClient, "messages": MessagesClient}.get(api, ChatClient)


def secrets(environ: Mapping[str, str]) -> list[str]:
    """Values that must never be logged, sent or shown: our keys, and what else is named as secret.

    Longest first, so that a secret that contains another is replaced whole. Values under 8 characters are not
    among them.
    """
    values = {value.strip() for name, value in environ.items() if _SECRET_NAME.search(name)}
    return sorted((value for value in values if len(value) >= _MIN_SECRET), key=lambda value: (-len(value), value))


def _other(environ: Mapping[str, str], address: str, model: str | None, dialect: Api | None) -> Endpoint:
    parts = urlsplit(address)
    meta = parts[:2] == urlsplit(META_BASE_URL)[:2]
    # A key of Meta's never goes to another host, but a gateway on this machine may pass it on.
    trusted = meta or parts.hostname in _LOOPBACK
    key_source, key = _first_key(environ, (_OTHER_KEY, *_META_KEYS) if trusted else (_OTHER_KEY,))
    like_meta = meta or dialect == "responses" or model in CATALOGUE
    if model is None and not like_meta:
        raise ConfigurationError("MUSECODE_BASE_URL is set but no model: set MUSECODE_MODEL to an id that it serves")
    return Endpoint(dialect or ("responses" if like_meta else "chat"), address, model or DEFAULT_MODEL, key_source, key)


def _given(argument: str | None, environ: Mapping[str, str], name: str) -> str | None:
    value = argument if argument is not None else environ.get(name, "")
    return value.strip() or None


def _first_key(environ: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str | None]:
    for name in names:
        if value := environ.get(name, "").strip():
            return name, value
    return names[0], None


def _checked_api(value: str | None) -> Api | None:
    if value is None:
        return None
    if value in _APIS:
        return _APIS[value]
    raise ConfigurationError(f"unknown MUSECODE_API {value!r}: use responses, chat, messages or local")


def _checked_url(value: str) -> str:
    """`value` without a slash at its end; errors do not quote it, for it may hold a password."""
    advice = "write it like https://host/v1"
    try:
        parts = urlsplit(value)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        raise ConfigurationError(f"MUSECODE_BASE_URL is not a URL: {advice}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine or re.search(r"\s", value):
        raise ConfigurationError(f"MUSECODE_BASE_URL is not an http or https URL: {advice}")
    if "@" in parts.netloc:
        raise ConfigurationError(f"MUSECODE_BASE_URL holds a user name or password: {advice}, key in MUSECODE_API_KEY")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"MUSECODE_BASE_URL has a query or fragment, which cannot be kept: {advice}")
    path = parts.path.rstrip("/")
    for ending in ("/responses", "/chat/completions", "/messages"):
        if path.endswith(ending):
            raise ConfigurationError(f"MUSECODE_BASE_URL ends in {ending}, which is added here: {advice}")
    return f"{parts.scheme}://{parts.netloc.lower()}{path}"
