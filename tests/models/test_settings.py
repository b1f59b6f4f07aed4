"""Catalogue, endpoint and recorded answers: prices, tiers, keys, and errors that say what to do."""

from __future__ import annotations

import dataclasses

import httpx
import pytest

from musecode_jupyter.models.catalogue import CATALOGUE, DEFAULT_MODEL, LOCAL_MODEL, cost, lookup
from musecode_jupyter.models.chat import ChatClient
from musecode_jupyter.models.endpoint import (
    META_BASE_URL,
    Endpoint,
    encoder,
    make_client,
    resolve_endpoint,
    secrets,
)
from musecode_jupyter.models.messages import MessagesClient
from musecode_jupyter.models.prices import Price
from musecode_jupyter.models.responses import ResponsesClient
from musecode_jupyter.models.types import (
    Message,
    ModelRequest,
    Reasoning,
    Usage,
)
from musecode_jupyter.runtime.errors import ConfigurationError

KEY = "key-0123456789"
URL = {"MUSECODE_BASE_URL": "http://host:8000/v1", "MUSECODE_MODEL": "m"}


def test_published_prices_and_limits() -> None:
    for model in ("muse-spark-1.3", "muse-spark-1.2", "muse-spark-1.1"):
        info = lookup(model)
        assert (info.price, info.tier) == (Price(1.25, 0.15, 4.25), "standard")
        assert (info.context, info.max_output, info.profile) == (1_048_576, 131_072, "driver")
    assert "max" in lookup("muse-spark-1.3").efforts
    assert "max" not in lookup("muse-spark-1.2").efforts
    assert CATALOGUE["muse-spark-1.3-contributor"].price == Price(0.10, 0.002, 0.20)


def test_local_model_is_free_small_and_guided() -> None:
    info = lookup(LOCAL_MODEL)
    assert (info.price, info.tier, info.profile) == (Price(0, 0, 0), "local", "guided")
    assert (info.context, info.tools, info.json_schema) == (32_768, False, True)


def test_cost_of_tokens_written_into_the_cache() -> None:
    usage = Usage(input=1_000_000, cached=600_000, written=300_000, output=0)
    assert cost(lookup(DEFAULT_MODEL).price, usage) == 683_750


def test_cost_bills_cached_tokens_apart() -> None:
    usage = Usage(input=1_000_000, cached=600_000, output=100_000, reasoning=50_000)
    assert cost(lookup(DEFAULT_MODEL).price, usage) == 1_015_000


@pytest.mark.parametrize(
    "model",
    [
        "muse-spark-1.3-contributor",
        "muse-spark-1.2-contributor",
        "meta/Muse-Spark-1.3-Contributor",
        "x-contributor",
    ],
)
def test_contributor_ids_are_of_the_contributor_tier_whatever_the_gateway(model: str) -> None:
    """The gate goes by the tier: a name in front of an id, or capitals in it, must not hide it."""
    assert lookup(model, price_override="0/0/0").tier == "contributor"


def test_unknown_price_is_refused_and_the_way_to_set_it_named() -> None:
    with pytest.raises(ConfigurationError, match='MUSECODE_PRICE="in/cached/out"'):
        lookup("gpt-x")
    info = lookup("gpt-x", price_override="2/0.5/8")
    assert (info.price, info.profile, info.context) == (Price(2, 0.5, 8), "driver", 128_000)


@pytest.mark.parametrize("price", ["1/2", "a/b/c", "1/2/3/4", "-1/0/0", "nan/0/0", "inf/0/0", "//"])
def test_unreadable_prices(price: str) -> None:
    with pytest.raises(ConfigurationError, match="MUSECODE_PRICE"):
        lookup("gpt-x", price_override=price)


def test_overrides() -> None:
    assert lookup(DEFAULT_MODEL, price_override="1/1/1").price == Price(1, 1, 1)
    assert lookup(LOCAL_MODEL, profile_override="driver").profile == "driver"
    with pytest.raises(ConfigurationError, match="driver or guided"):
        lookup(LOCAL_MODEL, profile_override="wild")


@pytest.mark.parametrize("model", ["", " muse-spark-1.3", "muse-spark-1.3\n"])
def test_model_ids_are_exact(model: str) -> None:
    with pytest.raises(ConfigurationError, match="MUSECODE_MODEL"):
        lookup(model)


def test_nothing_set_means_local() -> None:
    for environ in ({}, {"MODEL_API_KEY": " ", "MUSECODE_BASE_URL": ""}):
        assert resolve_endpoint(environ) == Endpoint("local", "", LOCAL_MODEL, "")


@pytest.mark.parametrize("name", ["MODEL_API_KEY", "META_API_KEY"])
def test_a_meta_key_means_meta(name: str) -> None:
    endpoint = resolve_endpoint({name: f" {KEY}\n"})
    assert endpoint == Endpoint("responses", META_BASE_URL, DEFAULT_MODEL, name, KEY)


def test_arguments_win_over_the_environment() -> None:
    environ = {"MODEL_API_KEY": KEY, "MUSECODE_MODEL": "muse-spark-1.1", "MUSECODE_API": "responses"}
    endpoint = resolve_endpoint(environ, model="muse-spark-1.2", api="chat", base_url="http://host/v1/")
    assert endpoint == Endpoint("chat", "http://host/v1", "muse-spark-1.2", "MUSECODE_API_KEY", None)


def test_local_is_chosen_by_name_although_there_is_a_key() -> None:
    assert resolve_endpoint({"MODEL_API_KEY": KEY}, api="local").api == "local"
    assert resolve_endpoint({"MODEL_API_KEY": KEY}, model=LOCAL_MODEL).api == "local"


def test_meta_keys_go_to_meta_only() -> None:
    environ = {"MODEL_API_KEY": KEY, **URL}
    assert resolve_endpoint(environ).key is None
    assert resolve_endpoint({**environ, "MUSECODE_API_KEY": "other"}).key == "other"
    assert resolve_endpoint({**environ, "MUSECODE_BASE_URL": "https://API.meta.ai/v1/"}).key == KEY
    for address in (
        "http://api.meta.ai/v1",
        "https://api.meta.ai.evil.example/v1",
        "https://api.meta.ai:8443/v1",
    ):
        assert resolve_endpoint({**environ, "MUSECODE_BASE_URL": address}).key is None


def test_dialect_defaults() -> None:
    assert resolve_endpoint(URL).api == "chat"
    assert resolve_endpoint({**URL, "MUSECODE_API": "responses"}).api == "responses"
    assert resolve_endpoint({**URL, "MUSECODE_BASE_URL": META_BASE_URL}).api == "responses"


@pytest.mark.parametrize(
    ("environ", "hint"),
    [
        ({"MUSECODE_API": "messages"}, "needs an address"),
        ({"MUSECODE_API": "messages", "MODEL_API_KEY": KEY}, "needs an address"),
        ({"MUSECODE_API": "messages", "MUSECODE_BASE_URL": "http://host/v1"}, "MUSECODE_MODEL"),
        ({"MUSECODE_API": "grpc"}, "responses, chat, messages or local"),
        ({"MUSECODE_API": "local", **URL}, "exclude each other"),
        ({"MUSECODE_API": "local", "MUSECODE_MODEL": "m"}, "unset the model"),
        ({"MUSECODE_BASE_URL": "http://host/v1"}, "MUSECODE_MODEL"),
        ({"MUSECODE_MODEL": "muse-spark-1.3"}, "MODEL_API_KEY"),
        ({"MUSECODE_API": "responses"}, "MODEL_API_KEY"),
        ({"MUSECODE_API_KEY": KEY}, "MUSECODE_BASE_URL"),
        ({**URL, "MUSECODE_BASE_URL": "host:8000/v1"}, "https://host/v1"),
        ({**URL, "MUSECODE_BASE_URL": "ftp://host/v1"}, "https://host/v1"),
        ({**URL, "MUSECODE_BASE_URL": "http:///v1"}, "https://host/v1"),
        ({**URL, "MUSECODE_BASE_URL": "http://host:99999/v1"}, "https://host/v1"),
        ({**URL, "MUSECODE_BASE_URL": "http://[::1/v1"}, "https://host/v1"),
        ({**URL, "MUSECODE_BASE_URL": "http://ho st/v1"}, "https://host/v1"),
        ({**URL, "MUSECODE_BASE_URL": f"http://user:{KEY}@host/v1"}, "MUSECODE_API_KEY"),
        ({**URL, "MUSECODE_BASE_URL": f"http://host/v1?key={KEY}"}, "query"),
        ({**URL, "MUSECODE_BASE_URL": "http://host/v1/chat/completions"}, "added here"),
    ],
)
def test_bad_settings_get_one_line_that_says_what_to_do(environ: dict[str, str], hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_endpoint(environ)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)


def test_key_is_in_no_repr() -> None:
    endpoint = resolve_endpoint({"MODEL_API_KEY": KEY})
    assert KEY not in repr(endpoint)
    assert KEY not in repr(make_client(endpoint, httpx.AsyncClient()))


def test_make_client_by_dialect() -> None:
    http = httpx.AsyncClient()
    assert isinstance(make_client(resolve_endpoint({"MODEL_API_KEY": KEY}), http), ResponsesClient)
    assert isinstance(make_client(resolve_endpoint(URL), http), ChatClient)
    assert isinstance(make_client(resolve_endpoint(URL, api="messages"), http), MessagesClient)
    with pytest.raises(ConfigurationError, match="local"):
        make_client(resolve_endpoint({}), http)
    with pytest.raises(ConfigurationError, match="MODEL_API_KEY"):
        make_client(resolve_endpoint({"MODEL_API_KEY": "two words"}), http)


@pytest.mark.parametrize("api", ["responses", "chat", "messages"])
def test_encoder_forms_the_bytes_of_a_caller_whose_key_is_gone(api: str) -> None:
    """A replay has the origin from the log, but neither the key nor the address."""
    client = make_client(resolve_endpoint({**URL, "MUSECODE_API_KEY": KEY}, api=api), httpx.AsyncClient())
    payload = {"type": "thinking", "thinking": "", "signature": "x", "summary": [], "encrypted_content": "x"}
    thought = Reasoning(origin=client.origin, payload=payload)
    said = (REQUEST.items[0], thought, Message(role="assistant", text="hello"), REQUEST.items[0])
    request = REQUEST.model_copy(update={"items": said})
    assert encoder(api, client.origin).body(request) == client.body(request)
    assert (b'"x"' in client.body(request)) == (api != "chat")


def test_secrets_are_longest_first_and_leave_ordinary_words_alone() -> None:
    environ = {
        "MODEL_API_KEY": KEY,
        "GITHUB_TOKEN": KEY + "-longer",
        "META_API_KEY": KEY,
        "MUSECODE_API_KEY": "none",
        "TOKENIZERS_PARALLELISM": "false-false",
        "HOME": "/home/somebody",
    }
    assert secrets(environ) == [KEY + "-longer", KEY]


REQUEST = ModelRequest(model="m", instructions="", items=(Message(role="user", text="hi"),))


def test_model_info_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        lookup(DEFAULT_MODEL).tier = "local"  # type: ignore[misc]


def test_meta_key_reaches_a_gateway_on_this_machine() -> None:
    environ = {"MODEL_API_KEY": "key-of-meta", "MUSECODE_BASE_URL": "http://127.0.0.1:8123/v1"}
    endpoint = resolve_endpoint({**environ, "MUSECODE_MODEL": "muse-spark-1.3"})
    assert (endpoint.api, endpoint.key, endpoint.key_source) == ("responses", "key-of-meta", "MODEL_API_KEY")
    elsewhere = {
        **environ,
        "MUSECODE_BASE_URL": "https://models.example/v1",
        "MUSECODE_MODEL": "muse-spark-1.3",
    }
    assert resolve_endpoint(elsewhere).key is None
