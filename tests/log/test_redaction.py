"""Keys are cut out wherever they stand and however the text is split; ordinary code and digests are not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from musecode_jupyter.log import Redactor

# Put together here, so that no scanner takes this file for a leak.
PEM = (
    "-----BEGIN RSA "
    + "PRIVATE KEY-----\n"
    + ("MIIEowIBAAKCAQEAx3Kf9q" * 3 + "\n") * 4
    + "q1==\n-----END RSA PRIVATE KEY-----"
)
KEYS = {
    "sk-key": "sk-" + "proj-a8Kd02nfLq93_xPz7Rt5",
    "github-token": "ghp_" + "a1B2c3D4e5" * 4,
    "gitlab-token": "glpat-" + "Ab3dEf6hIj9kLm2nOp5q",
    "slack-token": "xoxb-" + "123456789012-abcDEF456",
    "aws-key-id": "AKIA" + "IOSFODNN7EXAMPLE",
    "google-key": "AIza" + "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q",
    "huggingface-token": "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ012345",
    "meta-key": "LLM|" + "1234567890|AbCdEfGhIjKlMnOpQrSt",
    "jwt": "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLTEyMw",
    "pem-private-key": PEM,
}
CONTEXT = {
    "bearer": ("Authorization: Bearer ", "a8Kd02nf.Lq93xPz7Rt5", "\n"),
    "basic-auth": ("Authorization: Basic ", "dXNlcjpwYXNz", "\n"),
    "url-password": ("git clone https://user:", "hunter2", "@host/repo.git"),
    "assignment": ("export MY_API_KEY='", "q9X2mfA07LkzT5", "'\n"),
}
ORDINARY = [
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8 sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e464",
    "secret_hash = e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "max_tokens=16384, next_token = tokens[i], token: str = tokenizer.bos_token",
    "api_key = os.environ['MODEL_API_KEY']\nclient = Client(api_key=api_key, password=self.password)",
    "settings.api_key = config.api_key2\npassword = getpass.getpass()\nsecret_key: str | None = None",
    "def access_token(self) -> str:\n    return self._access_token1",
    "API_KEY=changeme PASSWORD=password123 TOKEN=<your-token-here>",
    "class='sk-fading-circle-with-many-words sk-circle10' risk-assessment-of-the-desk-lamp-2",
    "http://localhost:8888/lab?x=1 ssh://git@github.com:22/a/b and a://b:c/d@e",
    "a bearer of bad news; bearer authentication-and-authorization is described elsewhere",
    "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkq\n-----END CERTIFICATE-----",
    "if text.startswith('-----BEGIN PRIVATE KEY-----'): raise",
    "eyJ is how a token starts; AKIA too; xoxo; ghp_ and hf_ are prefixes",
    "cache_key='muse:lead:9fceb02d0ae598e95dc970b74767f193' digest=q9X2mfA07LkzT5 keyboard: us",
]


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("around", ["{}", "x = '{}'", "key {} in text", '{{"a": "{}"}}', "<{}>"])
def test_a_key_is_replaced_by_the_name_of_its_pattern(name: str, around: str) -> None:
    text, hits = Redactor().text(around.format(KEYS[name]))
    assert text == around.format(f"[redacted:{name}]")
    assert hits == [name]


@pytest.mark.parametrize("name", CONTEXT)
def test_a_value_is_replaced_where_its_place_tells_that_it_is_secret(name: str) -> None:
    before, secret, after = CONTEXT[name]
    assert Redactor().text(before + secret + after) == (f"{before}[redacted:{name}]{after}", [name])


@pytest.mark.parametrize(
    "text",
    [
        "OPENAI_API_KEY=q9X2mfA07LkzT5vb",
        'api_key: "q9X2mfA07LkzT5vb"',
        "{'client_secret': 'q9X2mfA07LkzT5vb'}",
        '{\\"password\\": \\"q9X2mfA07LkzT5vb\\"}',
        "db.password = q9X2mfA07LkzT5vb",
        "x-api-key: q9X2mfA07LkzT5vb",
        "GITHUB_TOKEN=0123456789abcdef0123456789abcdef01234567",
    ],
)
def test_assignments_of_every_notation_are_seen(text: str) -> None:
    redacted, hits = Redactor().text(text)
    assert hits == ["assignment"]
    assert "q9X2" not in redacted
    assert "0123" not in redacted


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert Redactor(["a-known-secret"]).text(text) == (text, [])
    stream = Redactor().stream()
    assert stream.feed(text) + stream.finish() == text


def test_the_standard_library_holds_hardly_anything_that_is_taken_for_a_secret() -> None:
    """A redactor that hits ordinary code makes files unreadable for the agent."""
    redactor = Redactor()
    hit = []
    files = sorted(Path(json.__file__).parent.parent.glob("[a-m]*.py"))
    for path in files:
        _, hits = redactor.text(path.read_text(encoding="utf-8", errors="replace"))
        if hits:
            hit.append((path.name, hits))
    assert len(files) > 50
    assert hit == []


def test_known_secrets_are_replaced_also_in_json_and_in_urls() -> None:
    secret = 'pass "word" ä/1'
    redactor = Redactor([secret, "short", "hunter2hunter2", "hunter2hunter2-longer"])
    for text in (secret, json.dumps(secret)[1:-1], "pass%20%22word%22%20%C3%A4%2F1"):
        assert redactor.text(f"<{text}>") == ("<[redacted:secret]>", ["secret"])
    assert redactor.text("short hunter2hunter2-longer.") == ("short [redacted:secret].", ["secret"])


def test_values_are_redacted_at_every_depth_and_by_the_name_of_their_key() -> None:
    value = {
        "env": {"MY_API_KEY": "q9X2mfA07LkzT5", "PATH": "q9X2mfA07LkzT5"},
        "n": [1, None, (KEYS["sk-key"],)],
    }
    redacted, hits = Redactor().value(value)
    assert redacted == {
        "env": {"MY_API_KEY": "[redacted:assignment]", "PATH": "q9X2mfA07LkzT5"},
        "n": [1, None, ["[redacted:sk-key]"]],
    }
    assert hits == ["assignment", "sk-key"]
    assert value["env"] == {"MY_API_KEY": "q9X2mfA07LkzT5", "PATH": "q9X2mfA07LkzT5"}


SECRETS = ["correct horse battery", "s3cr3t-value-1"]
pieces = st.one_of(
    st.sampled_from([*KEYS.values(), *("".join(each) for each in CONTEXT.values()), *ORDINARY, *SECRETS]),
    st.sampled_from(
        ["API_KEY", "password", "Bearer", "TOKEN", " ", "=", ": ", "'", '"', "\n", "\t", "sk-", "-----BEGIN "]
    ),
    st.sampled_from(["-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "MIIEowIBAAKCAQEAx3Kf9q", "@", "://"]),
    st.text(max_size=20),
)
texts = st.lists(pieces, max_size=12).map("".join)


@settings(max_examples=150)
@given(texts, st.lists(st.integers(1, 40), min_size=1, max_size=30))
@example("API_KEY = q9X2mfA07LkzT5", [1])
@example(f"a {PEM} b", [7])
def test_a_stream_gives_what_the_whole_text_gives_however_it_is_split(text: str, sizes: list[int]) -> None:
    """A key that was split over two chunks of a model's answer was shown."""
    redactor = Redactor(SECRETS)
    stream = redactor.stream()
    parts, at, turn = [], 0, 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        parts.append(stream.feed(text[at : at + size]))
        at, turn = at + size, turn + 1
    parts.append(stream.finish())
    assert ("".join(parts), stream.hits) == redactor.text(text)


@settings(max_examples=150)
@given(texts)
def test_redaction_changes_nothing_more_the_second_time(text: str) -> None:
    redactor = Redactor(SECRETS)
    once, _ = redactor.text(text)
    assert redactor.text(once) == (once, [])


def test_a_stream_shows_words_as_they_come() -> None:
    stream = Redactor().stream()
    assert stream.feed("Reading the file now, th") == "Reading the file now, "
    assert stream.feed("en the tests.\n") == "then the tests.\n"


def test_a_stream_without_a_place_to_cut_is_bounded() -> None:
    stream = Redactor().stream()
    shown = "".join(stream.feed("x" * 1000) for _ in range(1000))
    assert len(shown) > 900_000
    assert len(shown + stream.finish()) == 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "a" * 300_000,
        "A1_" * 100_000,
        "password" * 30_000,
        "://a:" * 50_000,
        "-----BEGIN PRIVATE KEY-----" * 10_000,
        "= " * 100_000,
    ],
    ids=["letters", "name", "keyword", "urls", "pem", "leads"],
)
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    Redactor().text(text)
    assert time.process_time() - began < 5


def test_results_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from musecode_jupyter.log import Redactor;"
        "print(Redactor(['abcdefgh1', 'abcdefgh12', 'bcdefgh123']).text('abcdefgh123'))"
    )
    results = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(results) == 1
