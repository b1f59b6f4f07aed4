"""Which label a path has: safe defaults, `.musecode/tiers.toml`, licence files, the user's own word."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple, cast

from musecode_jupyter.guard.labels import ORDER, Clearance, Label
from musecode_jupyter.log.tier_kinds import PathLabel
from musecode_jupyter.runtime.errors import ConfigurationError
from musecode_jupyter.runtime.globs import BadGlob, Glob

FILE: Final = ".musecode/tiers.toml"
MAX_FILE_BYTES: Final = 64_000
MOST_RULES: Final = 500

SECRETS: Final = (
    *(".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.gpg", "*.age"),
    *(
        "id_rsa*",
        "id_dsa*",
        "id_ecdsa*",
        "id_ed25519*",
        ".netrc",
        "_netrc",
        ".pgpass",
        ".npmrc",
        ".pypirc",
        ".htpasswd",
    ),
    *(".git-credentials", "credentials", "credentials.*", "*credentials.json", "service-account*.json", "kubeconfig"),
    *("secret", "secret.*", "*.secret", "secrets", "secrets.*", "*.secrets", "*.tfstate", "*.tfstate.*", "*.tfvars"),
    *(".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker"),
)
"""Private, whatever a file of the repository says; only the user's own word lowers one of them."""

NO_SECRETS: Final = (".env.example", ".env.sample", ".env.template", ".env.dist")

DATA: Final = (
    *("data", "dataset", "datasets", "private", "confidential", "*.csv", "*.tsv", "*.parquet", "*.feather", "*.arrow"),
    *("*.sqlite", "*.sqlite3", "*.db", "*.dump", "*.h5", "*.hdf5", "*.npy", "*.npz", "*.pkl", "*.pickle", "*.mat"),
    *("*.xls", "*.xlsx", "*.sav", "*.dta", "*.sas7bdat", "*.rds", "*.rdata", "*.mbox", "*.eml"),
)
"""Private unless `.musecode/tiers.toml` or the user says otherwise."""

_LICENCE = re.compile(r"(licen[cs]e|copying)([.-].*)?", re.IGNORECASE)
_CLOSED = re.compile(
    r"all rights reserved|proprietary|confidential|not be (copied|distributed|disclosed)", re.IGNORECASE
)
_OPEN = re.compile(
    r"permission is hereby granted|permission to use, copy|redistribution and use|apache license|gnu (lesser |affero )?"
    r"general public|mozilla public|creative commons|public domain|eclipse public|boost software|unlicense",
    re.IGNORECASE,
)
_LICENCE_BYTES = 20_000


class Judged(NamedTuple):
    """The label of a path and the rule that gives it, in words."""

    label: Label
    rule: str


@dataclass(frozen=True)
class TierFile:
    """What `.musecode/tiers.toml` says; `digest` is empty where there is none."""

    rules: tuple[PathLabel, ...] = ()
    standard: Clearance = "private"
    digest: str = ""


@lru_cache(maxsize=4096)
def _glob(pattern: str) -> Glob:
    return Glob(pattern.casefold())


@lru_cache(maxsize=4096)
def _name(*patterns: str) -> re.Pattern[str]:
    """What matches one part of a path that any of the patterns without a slash means."""
    return re.compile("|".join(translate(pattern.casefold()) for pattern in patterns))


def matches(pattern: str, path: str) -> bool:
    """Whether `pattern` means `path` or a folder above it; case does not count, as on some file systems."""
    pattern = pattern.rstrip("/")
    parts = PurePosixPath(path.casefold()).parts
    if "/" not in pattern and "**" not in pattern:
        return any(map(_name(pattern).match, parts))
    glob = _glob(pattern)
    return any(glob.matches("/".join(parts[:length])) for length in range(1, len(parts) + 1))


def is_secret(path: str) -> str:
    """The pattern by which a file holds secrets by its name; empty if none does."""
    return "" if PurePosixPath(path).name.casefold() in NO_SECRETS else _default(SECRETS, path)


def _default(patterns: tuple[str, ...], path: str) -> str:
    """The first of the patterns, names without a slash, that means `path`; empty if none does."""
    # All at once first: this is asked of every file of a tree.
    if not any(map(_name(*patterns).match, PurePosixPath(path.casefold()).parts)):
        return ""
    return next((pattern for pattern in patterns if matches(pattern, path)), "")


def judge_path(path: str, rules: Iterable[PathLabel], own: Sequence[tuple[str, Label]] = ()) -> Judged:
    """The label of `path`, relative to the root of the repository.

    `own` is what the user said, pattern and label, the newest last; it counts first. Of `rules` the last one that
    matches counts; one that only raises, a licence file's, does so whatever the others say.
    """
    for pattern, label in reversed(own):
        if matches(pattern, path):
            return Judged(label, f"{path}: your label for {pattern}")
    if pattern := is_secret(path):
        return Judged("private", f"{path}: secrets by default ({pattern})")
    found = Judged("standard", f"{path}: no rule")
    if pattern := _default(DATA, path):
        found = Judged("private", f"{path}: data by default ({pattern})")
    raised = []
    for rule in rules:
        if matches(rule.pattern, path):
            said = Judged(rule.label, f"{path}: {rule.why}")
            if rule.raises:
                raised.append(said)
            else:
                found = said
    return max([found, *raised], key=_height)


def _height(judged: Judged) -> int:
    return ORDER[judged.label]


def read_tier_file(root: Path) -> TierFile:
    """The file below `root`, if there is one. Blocks.

    Raises
    ------
    ConfigurationError
        It cannot be read or understood; the message names the line. Nothing is guessed, since a rule that is missed
        would open what was meant to be closed.
    """
    path = root / FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return TierFile()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}): mend or remove it.") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigurationError(f"{path} is no plain file: mend or remove it.")
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{path} has more than {MAX_FILE_BYTES} bytes: shorten it.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigurationError(f"{path}, line {line}: it is no UTF-8: save it as UTF-8.") from None
    return parse_tier_file(text, str(path))


def parse_tier_file(text: str, name: str = FILE) -> TierFile:
    """What the text of the file says; raises as `read_tier_file`."""
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        said = str(error)
        at = re.search(r"\(at line (\d+), column \d+\)", said)
        line = int(at[1]) if at else len(text.splitlines()) or 1
        what = said[: at.start()].strip() if at else said
        raise ConfigurationError(f"{name}, line {line}: it is no TOML ({what}): mend or remove the file.") from None
    for table in content:
        if table not in {"paths", "clearance"}:
            raise _wrong(name, text, table, f"there is no table {table!r}: use [paths] and [clearance]")
    rules = []
    for pattern, label in _table(content, "paths", name, text).items():
        where = f"{FILE}, line {_line(text, pattern)}"
        if not isinstance(label, str) or label not in ORDER:
            raise _wrong(name, text, pattern, f"{label!r} is no label: use {', '.join(map(repr, ORDER))}")
        if (
            not pattern.strip("/ ")
            or pattern.startswith("/")
            or ".." in PurePosixPath(pattern).parts
            or "\\" in pattern
        ):
            raise _wrong(name, text, pattern, f"{pattern!r} is no path below the root of the repository")
        try:
            _glob(pattern.rstrip("/"))
        except BadGlob as error:
            raise _wrong(name, text, pattern, f"{pattern!r} is no glob: {error}") from None
        if label != "private" and (secret := is_secret(pattern)):
            raise _wrong(
                name,
                text,
                pattern,
                f"{pattern!r} holds secrets by default ({secret}), which no file can lower: "
                f"`%muse tier label {pattern} {label}` is your own word for it",
            )
        rules.append(PathLabel(pattern=pattern, label=cast(Label, label), why=f"{pattern} ({where})"))
    if len(rules) > MOST_RULES:
        raise ConfigurationError(f"{name} has {len(rules)} rules; at most {MOST_RULES} are taken.")
    standard: Clearance = "private"
    for key, value in _table(content, "clearance", name, text).items():
        if key != "standard" or value not in ("standard", "private"):
            raise _wrong(name, text, key, "[clearance] takes standard = 'standard' or 'private'")
        standard = "standard" if value == "standard" else "private"
    return TierFile(tuple(rules), standard, blake2b(text.encode(), digest_size=16).hexdigest())


def _table(content: dict[str, object], table: str, name: str, text: str) -> dict[str, object]:
    found = content.get(table, {})
    if not isinstance(found, dict):
        raise _wrong(name, text, table, f"{table} is no table: write [{table}]")
    return found


def _line(text: str, key: str) -> int:
    """The line in which `key` stands, as near as can be said once the text is parsed."""
    key_in = re.compile(rf"""(?:^|[\s.\['"]){re.escape(key)}['"]?\s*[=\].]""")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("#") and key_in.search(line):
            return number
    return 1


def _wrong(name: str, text: str, key: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"{name}, line {_line(text, key)}: {what}. Mend or remove the file.")


def licence_rules(root: Path, files: Iterable[str]) -> tuple[PathLabel, ...]:
    """What licence files among `files` raise: the folder of one that reserves all rights is private. Blocks.

    A licence lowers nothing: that others may copy a work does not say that its owner wants prompts about it used.
    """
    found = []
    for name in sorted(files):
        path = PurePosixPath(name)
        if not _LICENCE.fullmatch(path.name):
            continue
        try:
            descriptor = os.open(root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                text = file.read(_LICENCE_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        if _CLOSED.search(text) and not _OPEN.search(text):
            folder = "" if path.parent == PurePosixPath(".") else f"{path.parent}/"
            why = f"{name} reserves all rights"
            found.append(PathLabel(pattern=f"{folder}**", label="private", why=why, raises=True))
    return tuple(found[:MOST_RULES])
