"""Cuts secrets out of text before it is logged, sent or shown: known ones, and what has the form of a key."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic_core import SchemaValidator, core_schema

_SHORTEST_SECRET = 8
# A stream holds back this much at most while it waits for the end of what may be a secret, in characters.
_HELD = 1 << 16
_KEPT = 1 << 12
# More than a value with blanks in it can be long, in characters.
_REACH = 20_000


@dataclass(frozen=True)
class _Pattern:
    """Group `secret` of a match is replaced if `accept` says that its text is one.

    Every match holds one of `hints` as it stands, or one of `folded` once it is in lower case: a look for them costs
    far less than the expression.
    """

    name: str
    hints: tuple[str, ...]
    folded: tuple[str, ...]
    regex: re.Pattern[str]
    accept: Callable[[str], bool]


_WORD = r"(?:[a-z]+|[A-Z][a-z]+|[A-Z]+)[0-9]{0,3}"
# Names, dotted and hyphenated ones too: `settings.api_key2`, `my-password-1`.
_WORDS = re.compile(rf"_*{_WORD}(?:[._-]+{_WORD})*_*\Z")


def _always(_: str) -> bool:
    return True


def _mixed(text: str) -> bool:
    """Digits and letters: words, identifiers and phrases seldom have both in this length."""
    return any(each.isdigit() for each in text) and any(each.isalpha() for each in text)


def _random(text: str) -> bool:
    """Mixed, and at least three bits a character: a drawn value, not a word with a number."""
    if not _mixed(text) or _WORDS.match(text):
        return False
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values()) >= 3.0


def _key_like(text: str) -> bool:
    return _mixed(text) and (len(text) >= 40 or any(each.isupper() for each in text))


# What stands in examples and defaults, and what is code rather than a value.
_PLACEHOLDER = re.compile(
    r"(?i:change[-_]?(?:me|it|this)|your\b.*|your[-_].*|my[-_]?(?:secret|password|token|key)|example.*|placeholder.*"
    r"|dummy.*|fake.*|sample.*|insert.*|replace.*|todo|none|null|true|false|undefined|x{3,}|\*+|\.{2,}|-+"
    r"|(?:password|passwd|pass|secret|token|admin|root|user|test|postgres|mysql|guest|default)[-_]?\d{0,4})\Z"
)
_CODE = re.compile(r"[$`(){}<>\[\]|]|^(?:os|self|config|settings|process|env|getenv)\b|://")


def _value_of(text: str) -> str:
    return text.replace("\\", "").strip("\"'")


def _password_like(text: str) -> bool:
    """A value of a variable that holds a password: anything but a placeholder, code, or one plain word."""
    value = _value_of(text)
    if len(value) < 4 or _PLACEHOLDER.match(value) or _CODE.search(value):
        return False
    return " " in value or len(value) >= 16 or not value.replace("-", "").replace("_", "").isalpha()


def _key_value(text: str) -> bool:
    """A value of a variable that holds a key: letters and digits of some length, not a name or a number."""
    value = _value_of(text)
    if len(value) < 8 or _PLACEHOLDER.match(value) or _CODE.search(value):
        return False
    return _mixed(value) and not _WORDS.match(value)


def _pattern(
    name: str,
    hints: tuple[str, ...],
    regex: str,
    accept: Callable[[str], bool] = _always,
    *,
    folded: tuple[str, ...] = (),
) -> _Pattern:
    # ASCII only: else `ſ` would be an `s` to the expression and not to its hint.
    return _Pattern(name, hints, folded, re.compile(regex, re.ASCII), accept)


# Ends of escapes: what stands behind one stands at the beginning of a word, although the escape ends in a letter.
_ESCAPES = (
    *(r"\\[abfnrtv0]", r"\\x[0-9A-Fa-f]{2}", r"\\u[0-9A-Fa-f]{4}", "%[0-9A-Fa-f]{2}"),
    *(r"\x1b\[[mK]", r"\x1b\[[0-9]m", r"\x1b\[[0-9]{2}m", r"\x1b\[[0-9];[0-9]{2}m"),
)


def _start(first: str, word: str) -> str:
    """Where a word begins with one of `first`: not behind a character of the class `word`, unless that ends an escape.

    The look at the first character spares most places the others.
    """
    return f"(?=[{first}])(?:" + "|".join((f"(?<!{word})", *(f"(?<={escape})" for escape in _ESCAPES))) + ")"


_NAME = (
    r"(?:(?i:(?:api[_-]?key|apikey|secret|secret[_-]?key|access[_-]?key|private[_-]?key|password|passwd"
    r"|access[_-]?token|auth[_-]?token|refresh[_-]?token|bearer[_-]?token|client[_-]?secret))"
    rf"|{_start('T', '[a-z]')}TOKEN|{_start('t', '[A-Za-z_]')}token)"
)
# A variable of an environment, as a shell, a .env file, a YAML file or the repr of a mapping writes it.
_VARIABLE = _start("A-Z0-9", r"[\w$.%-]") + "(?:[A-Z0-9]+_)*"
_SET = r"(?:=|(?:\\?[\"'])[ \t]*:[ \t]*(?=\\?[\"'])|:[ \t]+)"
_OPEN_QUOTE = r"(?:\\?\"[^\"\n\\]{0,4096}|\\?'[^'\n\\]{0,4096})"
_QUOTED = r"\\?\"[^\"\n\\]{1,4096}\\?\"|\\?'[^'\n\\]{1,4096}\\?'"
_BARE = r"[^\s\"'`;&|,\\(){}\[\]<>]{4,4096}(?![(\[{])"
_PASSWORD_WORD = r"(?:PASSWORD|PASSWD|PASSPHRASE|(?<=_)PASS|SECRET|CREDENTIALS?|SECRET_KEY_BASE)"
_KEY_WORD = r"(?:KEY|APIKEY|TOKEN|PAT|COOKIE|DSN|WEBHOOK)"
# A line that may still become a value in quotes, or a header of cookies; a stream holds it back from its beginning.
_LINE_OPEN = re.compile(
    rf"(?:{_VARIABLE}(?:{_PASSWORD_WORD}|{_KEY_WORD}){_SET}{_OPEN_QUOTE}|(?i:cookie)\\?[\"']?:[^\n]{{0,16384}})\Z",
    re.ASCII,
)
_PEM_BEGIN = r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY-----"
_PEM_END = r"-----END (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY-----"
# Stops at the next block, so that a text of many beginnings is not read as many times.
_PEM_BODY = r"(?:[\s\\A-Za-z0-9+/=:,]|-(?!----BEGIN ))"
# What may still become the block above.
_PEM_OPEN = re.compile(rf"-----BEGIN (?:[A-Z0-9]{{1,20}} ){{0,4}}[A-Z0-9]*-{{0,5}}\Z|{_PEM_BEGIN}{_PEM_BODY}*\Z")
_PEM_WHOLE = re.compile(rf"{_PEM_BEGIN}{_PEM_BODY}{{16,16384}}?{_PEM_END}")
# Between a word and its value a match never crosses a line, on which the cuts of a stream rely.
_PATTERNS = (
    _pattern(
        "pem-private-key",
        ("PRIVATE KEY-----",),
        rf"(?P<secret>{_PEM_BEGIN}(?:{_PEM_BODY}{{16,16384}}?{_PEM_END}"
        r"|(?:\s|\\n|\\r)*(?:[A-Za-z0-9+/=]{16,}(?:\s|\\n|\\r)*)+))",
    ),
    _pattern(
        "jwt",
        ("eyJ",),
        _start("e", r"[\w-]") + r"(?P<secret>eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,})",
    ),
    _pattern(
        "github-token",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        _start("g", "[A-Za-z0-9]") + r"(?P<secret>gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})",
    ),
    _pattern("gitlab-token", ("glpat-",), _start("g", r"[\w-]") + r"(?P<secret>glpat-[A-Za-z0-9_-]{20,})"),
    _pattern("slack-token", ("xox",), _start("x", r"[\w-]") + r"(?P<secret>xox[abeoprs]-[A-Za-z0-9-]{10,})", _mixed),
    _pattern(
        "aws-key-id",
        ("AKIA", "ASIA"),
        _start("A", "[A-Za-z0-9]") + r"(?P<secret>(?:AKIA|ASIA)[A-Z0-9]{16})(?![A-Za-z0-9])",
    ),
    _pattern("google-key", ("AIza",), _start("A", r"[\w-]") + r"(?P<secret>AIza[A-Za-z0-9_-]{35})(?![\w-])"),
    _pattern("huggingface-token", ("hf_",), _start("h", "[A-Za-z0-9_]") + r"(?P<secret>hf_[A-Za-z0-9]{30,})"),
    _pattern("meta-key", ("LLM|",), _start("L", "[A-Za-z0-9]") + r"(?P<secret>LLM\|[0-9]{6,}\|[A-Za-z0-9_-]{16,})"),
    _pattern("sk-key", ("sk-",), _start("s", r"[\w-]") + r"(?P<secret>sk-[A-Za-z0-9_-]{20,})", _key_like),
    _pattern(
        "vendor-key",
        (
            *("_live_", "_test_", "npm_", "pypi-AgE", "SG.", "xapp-", "AGE-SECRET-KEY-", "dop_v1_", "dapi", "hvs."),
            *("gsk_", "xai-", "AccountKey=", ":AA", "hooks.slack.com"),
        ),
        _start("A-Za-z0-9", "[A-Za-z0-9_-]")
        + r"(?P<secret>[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|npm_[A-Za-z0-9]{36}|pypi-AgE[\w-]{16,}"
        r"|SG\.[\w-]{20,24}\.[\w-]{40,46}|xapp-[0-9]-[A-Z0-9]{8,}-[0-9]{8,}-[a-f0-9]{32,}|AGE-SECRET-KEY-1[0-9A-Z]{58}"
        r"|dop_v1_[a-f0-9]{64}|dapi[a-f0-9]{32}|hvs\.[\w-]{24,}|gsk_[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{40,}"
        r"|(?<=AccountKey=)[A-Za-z0-9+/]{60,}={0,2}|[0-9]{8,10}:AA[\w-]{33}"
        r"|(?<=hooks\.slack\.com/)services/T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{16,})(?![\w-])",
        _mixed,
    ),
    _pattern(
        "cookie",
        (),
        _start("sScC", r"[\w-]") + r"(?i:(?:set-)?cookie)(?:\\?[\"'])?:[ \t]*(?:\\?[\"'])?"
        r"(?P<secret>[\w.-]{1,128}=(?!\[redacted:)[^\s;\"'\\]{6,4096}"
        r"(?:;[ \t]*[\w.-]{1,128}(?:=[^\s;\"'\\]{0,512})?){0,24})",
        _mixed,
        folded=("cookie",),
    ),
    _pattern(
        "bearer",
        (),
        _start("bB", r"\w") + r"(?i:bearer)[ \t]+(?P<secret>[A-Za-z0-9._~+/=-]{16,})",
        _mixed,
        folded=("bearer",),
    ),
    _pattern(
        "basic-auth",
        (),
        _start("aA", r"\w") + r"(?i:authorization:[ \t]*basic)[ \t]+(?P<secret>[A-Za-z0-9+/=]{8,})",
        folded=("basic",),
    ),
    _pattern(
        "authorization",
        (),
        r"(?i:authorization)(?:\\?[\"'])?[ \t]*[:=][ \t]*(?:\\?[\"'])?(?:[A-Za-z0-9-]{2,20}[ \t]+)?"
        r"(?P<secret>[A-Za-z0-9._~+/=:-]{16,})(?![A-Za-z0-9._~+/=:(\[{-])",
        _random,
        folded=("authorization",),
    ),
    _pattern("url-password", ("://",), r"(?<=://)[^/\s:@\"'\[\]]{0,64}:(?P<secret>[^/\s:@\"'\[\]]{3,})(?=@)"),
    _pattern(
        "assignment",
        ("TOKEN", "token"),
        rf"{_NAME}(?:\\?[\"'])?[ \t]*(?:=|:)[ \t]*(?:\\?[\"'])?"
        r"(?P<secret>[A-Za-z0-9_+/=.~-]{12,})(?![A-Za-z0-9_+/=.~(\[{-])",
        _random,
        folded=(
            *("apikey", "api_key", "api-key", "accesskey", "access_key", "access-key", "secret", "passw"),
            *("privatekey", "private_key", "private-key", "accesstoken", "access_token", "access-token"),
            *("authtoken", "auth_token", "auth-token", "refreshtoken", "refresh_token", "refresh-token"),
            *("bearertoken", "bearer_token", "bearer-token"),
        ),
    ),
    _pattern(
        "password",
        ("PASS", "SECRET", "CREDENTIAL"),
        rf"{_VARIABLE}{_PASSWORD_WORD}{_SET}(?P<secret>{_QUOTED}|{_BARE})",
        _password_like,
    ),
    _pattern(
        "variable",
        ("KEY", "TOKEN", "PAT", "COOKIE", "DSN", "WEBHOOK"),
        rf"{_VARIABLE}{_KEY_WORD}{_SET}(?P<secret>{_QUOTED}|{_BARE})",
        _key_value,
    ),
)
_SECRET_NAME = re.compile(_NAME + r"\Z", re.ASCII)
_PASSWORD_NAME = re.compile(rf"{_VARIABLE}{_PASSWORD_WORD}\Z", re.ASCII)
_KEY_NAME = re.compile(rf"{_VARIABLE}{_KEY_WORD}\Z", re.ASCII)
_LINE_HINT = re.compile(r"[\"']|[Cc][Oo][Oo][Kk][Ii][Ee]")
_WIDE = [pattern for pattern in _PATTERNS if pattern.name in {"password", "variable", "cookie"}]
MARK = re.compile(r"\[redacted:[a-z-]+\]")
"""What stands in the place of a secret."""
_SECRET_VALUE = re.compile(r"[^\s\[]{12,4096}\Z")


def _finder() -> Callable[[str], bool]:
    """A function that says of an ASCII text whether it holds any hint.

    The expressions of pydantic's core are automata: one look at each character for all hints together, a tenth of the
    time that one search for each takes.
    """
    exact = "|".join(re.escape(hint) for pattern in _PATTERNS for hint in pattern.hints)
    folded = "|".join(re.escape(hint) for pattern in _PATTERNS for hint in pattern.folded)
    schema = core_schema.str_schema(pattern=f"{exact}|(?i-u:{folded})", regex_engine="rust-regex")
    return SchemaValidator(schema).isinstance_python


_has_hint = _finder()
# Words after which a stream must not be cut: their value may follow.
_LEAD = re.compile(
    rf"(?:(?i:bearer|basic)|(?i:authorization)(?:\\?[\"'])?[ \t]*[:=][ \t]*(?:\\?[\"'])?[A-Za-z0-9-]{{0,20}}"
    rf"|{_NAME}(?:\\?[\"'])?|(?:{_PASSWORD_WORD}|{_KEY_WORD})\\?[\"']|[=:](?:\\?[\"'])?)[ \t]*\Z",
    re.ASCII,
)
_MARKS = {f"[redacted:{name}]" for name in (*(each.name for each in _PATTERNS), "secret")}


class Redactor:
    """Replaces secrets by `[redacted:<pattern>]`. Deterministic, and without effect on its own results.

    Parameters
    ----------
    secrets : iterable of str
        Values known to be secret, cut out wherever they stand, also as JSON or percent-encoded; those shorter
        than eight characters are left alone because they would hit ordinary text.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        literals: set[str] = set()
        for secret in secrets:
            if len(secret) >= _SHORTEST_SECRET and not any(secret in mark for mark in _MARKS):
                literals |= {secret, json.dumps(secret)[1:-1]}
                if not any("\ud800" <= each <= "\udfff" for each in secret):
                    literals.add(quote(secret, safe=""))
        self.longest = max(map(len, literals), default=0)
        ordered = sorted(literals, key=lambda each: (-len(each), each))
        self._literals = tuple(ordered)
        self._literal = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def text(self, text: str) -> tuple[str, list[str]]:
        """The text without secrets, and the names of the patterns that were hit, sorted."""
        if not self.suspects(text):
            return text, []
        hits: set[str] = set()
        if self._literal is not None:
            text, count = self._literal.subn("[redacted:secret]", text)
            if count:
                hits.add("secret")
        lowered = text.lower()
        for pattern in [each for each in _PATTERNS if _hinted(each, text, lowered)]:
            text = _apply(pattern, text, hits)
        return text, sorted(hits)

    def suspects(self, text: str) -> bool:
        """Whether a text, or a value of which it is the canonical JSON, can hold a secret at all; cheap."""
        # The finder takes no lone surrogates; canonical JSON has none.
        return not text.isascii() or _has_hint(text) or any(literal in text for literal in self._literals)

    def value(self, value: Any) -> tuple[Any, list[str]]:
        """The same for every string in a JSON-like value, keys included; the value itself is not changed."""
        hits: set[str] = set()
        return self._value(value, hits), sorted(hits)

    def stream(self) -> RedactionStream:
        """A redactor for text that comes in pieces."""
        return RedactionStream(self)

    def spans(self, text: str) -> Iterable[tuple[int, int]]:
        """Where known secrets stand in `text`."""
        return [match.span() for match in self._literal.finditer(text)] if self._literal is not None else []

    def _value(self, value: Any, hits: set[str]) -> Any:
        if isinstance(value, str):
            text, found = self.text(value)
            hits.update(found)
            return text
        if isinstance(value, dict):
            return {self._key(key, hits): self._entry(key, each, hits) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(each, hits) for each in value]
        return value

    def _key(self, key: Any, hits: set[str]) -> Any:
        return self._value(key, hits) if isinstance(key, str) else key

    def _entry(self, key: Any, value: Any, hits: set[str]) -> Any:
        value = self._value(value, hits)
        if not (isinstance(value, str) and isinstance(key, str)):
            return value
        for name, known, accept in (
            ("assignment", _SECRET_NAME, lambda text: bool(_SECRET_VALUE.match(text)) and _random(text)),
            ("password", _PASSWORD_NAME, _password_like),
            ("variable", _KEY_NAME, _key_value),
        ):
            if known.search(key) and accept(value):
                hits.add(name)
                return f"[redacted:{name}]"
        return value


class RedactionStream:
    """Redacts text that comes in pieces as if it had come in one.

    What `feed` returns is safe to show; the rest is held back until it can no longer be the beginning of a
    secret, at the latest after 65,536 characters. `finish` returns what is left.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        self._hits: set[str] = set()

    @property
    def hits(self) -> list[str]:
        """Names of the patterns that were hit so far, sorted."""
        return sorted(self._hits)

    def feed(self, piece: str) -> str:
        """Take the next piece; return what can be shown."""
        self._held += piece
        cut = self._cut()
        return self._emit(cut) if cut else ""

    def finish(self) -> str:
        """Return what is left; the stream is as new afterwards."""
        return self._emit(len(self._held))

    def _emit(self, cut: int) -> str:
        ready, self._held = self._held[:cut], self._held[cut:]
        text, hits = self._redactor.text(ready)
        self._hits.update(hits)
        return text

    def _cut(self) -> int:
        """The last place that no match, known or still to come, can reach over."""
        text = self._held
        limit = len(text) - max(self._redactor.longest - 1, 0)
        spans = list(self._redactor.spans(text))
        begin = text.rfind("-----BEGIN ")
        if begin >= 0:
            # The one pattern that goes over lines.
            spans += [match.span() for match in _PATTERNS[0].regex.finditer(text)]
            # An end after too little to be a key may be a part of the body of one that ends later.
            if _PEM_OPEN.match(text, begin) and not _PEM_WHOLE.match(text, begin):
                limit = min(limit, begin)
        line = max(text.rfind("\n") + 1, len(text) - _REACH, 0)
        if _LINE_HINT.search(text, line) and (opened := _LINE_OPEN.search(text, line)):
            limit = min(limit, opened.start())
        cut = limit
        while cut > 0:
            cut = max(text.rfind(" ", 0, cut), text.rfind("\n", 0, cut), text.rfind("\t", 0, cut)) + 1
            inside = [start for start, end in (*spans, *_wide_spans(text, cut)) if start < cut < end]
            if inside:
                cut = inside[0]
            elif text[cut - 1 : cut] == "\n" or not _LEAD.search(text, max(0, cut - 256), cut):
                break
            else:
                cut -= 1
        # Text without any place to cut goes out as it is redacted now, but for an end longer than most keys.
        return len(text) - _KEPT if len(text) - cut > _HELD else max(cut, 0)


def _wide_spans(text: str, cut: int) -> list[tuple[int, int]]:
    """Where values with blanks in them stand around `cut`."""
    if not cut:
        return []
    first, last = max(0, cut - _REACH), cut + _REACH
    return [match.span() for pattern in _WIDE for match in pattern.regex.finditer(text, first, last)]


def _hinted(pattern: _Pattern, text: str, lowered: str) -> bool:
    return any(hint in text for hint in pattern.hints) or any(hint in lowered for hint in pattern.folded)


def _apply(pattern: _Pattern, text: str, hits: set[str]) -> str:
    def replace(match: re.Match[str]) -> str:
        secret = match["secret"]
        if not pattern.accept(secret):
            return match[0]
        hits.add(pattern.name)
        begin, end = match.start("secret") - match.start(), match.end("secret") - match.start()
        return f"{match[0][:begin]}[redacted:{pattern.name}]{match[0][end:]}"

    return pattern.regex.sub(replace, text)


def redact_file(redactor: Redactor, path: Path, piece: int = 1 << 16) -> None:
    """Cut secrets out of the file at `path`, keeping its mode; bytes that are not UTF-8 survive.

    Memory is bounded by `piece` bytes and the longest match. A missing file is none of ours.
    """
    if not path.is_file():
        return
    stream = redactor.stream()
    clean = path.with_name(path.name + ".clean")
    with (
        path.open(encoding="utf-8", errors="surrogateescape", newline="") as source,
        clean.open("w", encoding="utf-8", errors="surrogateescape", newline="") as target,
    ):
        while text := source.read(piece):
            target.write(stream.feed(text))
        target.write(stream.finish())
    if stream.hits:
        clean.chmod(path.stat().st_mode & 0o777)
        clean.replace(path)
    else:
        clean.unlink()
