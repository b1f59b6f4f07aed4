"""Keys are cut out wherever they stand and however the text is split; ordinary code and digests are not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
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
VENDORS = [
    "sk_" + "live_4eC39HqLyjWDarjtT1zdp7dc",
    "npm_" + "a1B2c3D4e5F6" * 3,
    "pypi-" + "AgEIcHlwaS5vcmcCJDU3YjE",
    "SG." + "a1B2c3D4e5F6g7H8i9J0k1" + "." + "a1B2c3D4e5" * 4 + "f6G",
    "AGE-SECRET-KEY-1" + "QPZRY9X8GF" * 5 + "2TVDW0S3",
    "dop_v1_" + "0123456789abcdef" * 4,
    "hvs." + "CAESIJ4a1B2c3D4e5F6g7H8i9J0",
    "123456789:" + "AAEhBOweik9ai2o01d0b4TKf8NGYGYGYGYG",
]
CONTEXT = {
    "bearer": ("Authorization: Bearer ", "a8Kd02nf.Lq93xPz7Rt5", "\n"),
    "basic-auth": ("Authorization: Basic ", "dXNlcjpwYXNz", "\n"),
    "url-password": ("git clone https://user:", "hunter2", "@host/repo.git"),
    "assignment": ("export MY_API_KEY='", "q9X2mfA07LkzT5", "'\n"),
    "authorization": ("Authorization: Token ", "9944b09199c62bcf9418ad846dd0e4bb", "\n"),
    "cookie": ("Cookie: ", "session=abc123def456; csrftoken=xyz789", "\n"),
    "password": ("DB_PASSWORD=", "hunter2", "\n"),
    "variable": ("GH_PAT=", "abc123def456", "\n"),
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
    "PWD=/home/user1/x OLDPWD=/tmp SSH_AUTH_SOCK=/tmp/ssh-1/agent.22 XAUTHORITY=/run/user/1000/gdm GPG_KEY=unset",
    "DB_PASSWORD=changeme POSTGRES_PASSWORD=postgres SECRET_KEY=your-secret-key MYSQL_PASSWORD=$MYSQL_PASSWORD",
    "PASSWORD=$(cat /run/secrets/p1) API_TOKEN=${TOKEN1:-none} SORT_KEY=name MAX_TOKEN=16384 TOKEN=$1 PASS=test",
    "MONKEY=banana1234 TURKEY=12345678a COMPASS=north12345 KEYBOARD=us-intl-2 HOTKEY: ctrl-alt-7 BYPASS=rule12345",
    "PASSWORD: str = Field(min_length=8)\nSECRET_KEY: Final[str]\nTOKEN: dict[str, int]\nAPI_KEY: required, see 2.1",
    'id: 123e4567-e89b-12d3-a456-426614174000 etag=W/"33a64df551425fcc55e4d42a148795d9f25f89d4"',
    "integrity sha512-v2kDEe57lecTulaDIuNTPy3Ry4gLGJ6Z1O3vE1krgXZNrsQ+LFTGHVxVjcXPs17LhbZVGedAJv8XZ1tvj5FvSg==",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    "tests/test_tokens.py::test_a_token_2[key1-value2] PASSED\n  token = tokens[0]; key: int = keys2[0]",
    "cookie: a small biscuit. Set-Cookie is a header; cookies=session.cookies; authorization: see chapter 12",
    "# pass: 12 passed, 3 failed; PASS 10/10 in 0.52s; PASS: test_one_2 (0.1s)",
]


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("around", ["{}", "x = '{}'", "key {} in text", '{{"a": "{}"}}', "<{}>"])
def test_a_key_is_replaced_by_the_name_of_its_pattern(name: str, around: str) -> None:
    text, hits = Redactor().text(around.format(KEYS[name]))
    assert text == around.format(f"[redacted:{name}]")
    assert hits == [name]


BEHIND_ESCAPES: dict[str, Callable[[str], str]] = {
    "repr": lambda text: repr(f"x\n{text}\ty"),
    "bytes": lambda text: repr(f"x\r\n{text}\r\n".encode()),
    "json": lambda text: json.dumps({"source": ["x\t" + text, "\n" + text]}),
    "json in json": lambda text: json.dumps(json.dumps(f"x\n{text}")),
    "unicode": lambda text: f"x\\u003d{text}",
    "url": lambda text: f"x%3D{text}%20y",
    "colour": lambda text: f"\x1b[31m{text}\x1b[0m \x1b[01;31m\x1b[K{text}\x1b[m",
}


@pytest.mark.parametrize("escaped", BEHIND_ESCAPES)
@pytest.mark.parametrize("name", KEYS)
def test_a_key_behind_an_escape_is_seen(name: str, escaped: str) -> None:
    """The `n` of a newline in a repr or in JSON was once taken for the beginning of the word."""
    text, hits = Redactor().text(BEHIND_ESCAPES[escaped](KEYS[name]))
    assert hits == [name]
    assert KEYS[name] not in text


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
    library = Path(json.__file__).parent.parent
    # Code, tests full of keys and values, notebooks' tools: measured, none is hit but what holds a key's form.
    files = sorted([*library.glob("*.py"), *library.glob("http/*.py"), *library.glob("email/*.py")])
    for path in files:
        _, hits = redactor.text(path.read_text(encoding="utf-8", errors="replace"))
        if hits:
            hit.append((path.name, hits))
    assert len(files) > 50
    assert hit == []


@pytest.mark.parametrize("key", VENDORS)
@pytest.mark.parametrize("around", ["{}", "'{}'", "key {} in text", '{{"a": "{}"}}'])
def test_keys_of_many_vendors_are_known_by_their_form(key: str, around: str) -> None:
    assert Redactor().text(around.format(key)) == (around.format("[redacted:vendor-key]"), ["vendor-key"])


ENVIRONMENT = {
    "DB_PASSWORD": "hunter2",
    "POSTGRES_PASSWORD": "correct horse battery",
    "SMTP_PASS": "Tr0ub4dor&3",
    "STRIPE_KEY": "q9X2mfA07LkzT5",
    "GH_PAT": "abc123def456",
    "DJANGO_SECRET": "n0t-so-secret-1",
    "SESSION_TOKEN": "0123456789abcdef",
    "KEY_PASSPHRASE": "opensesame-1",
    "AWS_CREDENTIALS": "a1b2c3d4",
}


@pytest.mark.parametrize(
    "form",
    [
        "{name}={value}",
        "export {name}='{value}'",
        '{name}="{value}"',
        'declare -x {name}="{value}"',
        "      - {name}={value}",
        '      {name}: "{value}"',
        "{{'A': '1', '{name}': '{value}'}}",
        "environ({{'{name}': '{value}', 'B': '2'}})",
        '{{"{name}": "{value}"}}',
        '{{\\"{name}\\": \\"{value}\\"}}',
        "docker run -e {name}='{value}' image",
    ],
)
@pytest.mark.parametrize("name", ENVIRONMENT)
def test_variables_that_hold_secrets_are_redacted_however_they_are_dumped(name: str, form: str) -> None:
    if " " in ENVIRONMENT[name] and "{value}" in form.replace("'{value}'", "").replace('"{value}', ""):
        pytest.skip("a value with blanks needs quotes in this form")
    text, hits = Redactor().text(form.format(name=name, value=ENVIRONMENT[name]))
    assert ENVIRONMENT[name] not in text
    assert name in text
    assert hits
    assert Redactor().text(text) == (text, [])


@pytest.mark.parametrize("escaped", ["repr", "bytes", "json", "json in json"])
def test_variables_in_the_repr_of_a_whole_file_are_redacted(escaped: str) -> None:
    lines = "\n".join(f"{name}={value}" for name, value in ENVIRONMENT.items() if " " not in value)
    text, hits = Redactor().text(BEHIND_ESCAPES[escaped](lines))
    assert hits
    assert not [value for value in ENVIRONMENT.values() if value in text]
    assert all(name in text for name, value in ENVIRONMENT.items() if " " not in value)


def test_a_dumped_environment_and_an_env_file_show_names_only(tmp_path: Path) -> None:
    dotenv = "# settings\nDEBUG=1\n" + "".join(f"{name}='{value}'\n" for name, value in ENVIRONMENT.items())
    (tmp_path / ".env").write_text(dotenv)
    shown = subprocess.run(["cat", ".env"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    # No value with blanks: printenv puts nothing around it by which its end could be told.
    plain = {name: value for name, value in ENVIRONMENT.items() if " " not in value}
    printed = subprocess.run(
        ["printenv"], env=plain | {"DEBUG": "1"}, capture_output=True, text=True, check=True
    ).stdout
    code = "import os; secret = os.environ['STRIPE_KEY']; print(os.environ); raise ValueError(f'STRIPE_KEY={secret}')"
    failed = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True)
    for text in (shown, printed, failed.stdout, failed.stderr):
        redacted, hits = Redactor().text(text)
        assert hits
        assert not [value for value in ENVIRONMENT.values() if value in redacted]
    assert "DEBUG=1" in Redactor().text(shown)[0]


def test_a_mapping_is_redacted_by_the_names_of_its_variables() -> None:
    redacted, hits = Redactor().value({**ENVIRONMENT, "HOME": "/home/u1", "MONKEY": "q9X2mfA07LkzT5"})
    assert [value for value in redacted.values() if not value.startswith("[redacted:")] == [
        "/home/u1",
        "q9X2mfA07LkzT5",
    ]
    assert set(hits) <= {"assignment", "password", "variable"}


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
    st.sampled_from(
        [*(f"{name}='{value}'" for name, value in ENVIRONMENT.items()), *(f"{name}=" for name in ENVIRONMENT), *VENDORS]
    ),
    st.sampled_from(
        ["Cookie: ", "Set-Cookie:", "a=bcdefgh1", "; ", "Authorization: Token ", '"DB_PASSWORD": "', "='a "]
    ),
    st.sampled_from(["-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "MIIEowIBAAKCAQEAx3Kf9q", "@", "://"]),
    st.text(max_size=20),
)
texts = st.lists(pieces, max_size=12).map("".join)


@settings(max_examples=150)
@given(texts, st.lists(st.integers(1, 40), min_size=1, max_size=30))
@example("API_KEY = q9X2mfA07LkzT5", [1])
@example(f"a {PEM} b", [7])
@example("-----BEGIN PRIVATE KEY-----" + 2 * "-----END PRIVATE KEY-----", [1])
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
@example("Cookie: DB_PASSWORD='hunter2'ghp_a1B2c3D4e5a1B2c3D4e5a1B2c3D4e5a1B2c3D4e5sk-proj-a8Kd02nfLq93_xPz7Rt5")
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
