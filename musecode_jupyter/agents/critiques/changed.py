"""What a check of a change sees: files before and after, what the task says, and how it tells what it found."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from musecode_jupyter.log.critique_kinds import Severity

MAX_CHECKED_BYTES = 1_000_000
"""Larger files are told of, and not read into."""
PLACE_CHARS = 2_000

Side = Literal["new", "old"]


@dataclass(frozen=True)
class ChangedFile:
    """One path that differs: its bytes before and after (None: not there), where they were read.

    `sizes` has both sizes in bytes, known of what was too large to be read too.
    """

    path: str
    before: bytes | None
    after: bytes | None
    sizes: tuple[int, int] = (0, 0)

    @property
    def added(self) -> bool:
        """Whether the path was not there before."""
        return self.before is None and not self.sizes[0]

    @cached_property
    def old(self) -> str | None:
        """The text before; None if there is none, or it is not UTF-8."""
        return _text(self.before)

    @cached_property
    def new(self) -> str | None:
        """The text after."""
        return _text(self.after)

    @cached_property
    def old_tree(self) -> ast.Module | None:
        """The parsed text before; None if it is no Python."""
        return parsed(self.old) if self.is_python else None

    @cached_property
    def new_tree(self) -> ast.Module | None:
        """The parsed text after."""
        return parsed(self.new) if self.is_python else None

    @property
    def is_python(self) -> bool:
        """Whether its name says that it is Python."""
        return self.path.endswith((".py", ".pyi"))

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    @property
    def is_test(self) -> bool:
        """Whether it is a file of tests by the customs of pytest and unittest."""
        return self.is_python and bool(re.match(r"test_.*\.py$|.*_test\.py$|tests?\.py$", self.name))

    @property
    def is_material(self) -> bool:
        """Whether it is something that tests or documents show, and need not be right by itself."""
        folders = self.path.lower().split("/")[:-1]
        return bool({"data", "testdata", "fixtures", "samples", "examples", "templates", "snapshots"} & set(folders))


@dataclass(frozen=True)
class Asked:
    """What the work was to do: its text, and the paths and patterns that it declared to write (none: it did not)."""

    text: str
    writes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """What a check found: proven, at lines `start` to `end` (0: the file as a whole) of one side."""

    check: str
    severity: Severity
    path: str
    start: int
    end: int
    place: str
    text: str
    why: str
    suggestion: str = ""
    side: Side = "new"


def found_at(
    file: ChangedFile,
    check: str,
    severity: Severity,
    lines: tuple[int, int],
    text: str,
    why: str,
    suggestion: str = "",
    *,
    side: Side = "new",
) -> Found:
    """A finding at `lines` of `file`, with what stands there."""
    source = (file.new if side == "new" else file.old) or ""
    start, end = lines
    return Found(check, severity, file.path, start, end, span_text(source, start, end), text, why, suggestion, side)


def span_text(text: str, start: int, end: int) -> str:
    """Lines `start` to `end` of `text`, counted from 1, without the last line's end; shortened if they are many."""
    return shortened("\n".join(lines_of(text)[max(0, start - 1) : end])) if start else ""


def shortened(text: str) -> str:
    """At most `PLACE_CHARS` characters of a text."""
    return text if len(text) <= PLACE_CHARS else f"{text[:PLACE_CHARS]}\n[...]"


def lines_of(text: str) -> list[str]:
    """The lines as git and Python count them: ended by LF, CR LF or CR, and by nothing else."""
    return re.split(r"\r\n|\r|\n", text)


def normal(text: str) -> str:
    """A text by which the same place is known again after it moved or was indented otherwise."""
    return " ".join(text.split())


def parsed(text: str | None) -> ast.Module | None:
    """The syntax tree; None if this Python cannot read the text."""
    if text is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def names_path(text: str, paths: Sequence[str], path: str) -> bool:
    """Whether `text` or one of the declared `paths` names the file `path`."""
    return path in paths or path in text or path.rpartition("/")[2] in text


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
