"""Faults of any file that are proven by its text: conflict markers, secrets, large or binary additions, wrong place."""

from __future__ import annotations

import re
from collections.abc import Iterator

from musecode_jupyter.agents.critiques.changed import (
    MAX_CHECKED_BYTES,
    Asked,
    ChangedFile,
    Found,
    found_at,
    lines_of,
    shortened,
)
from musecode_jupyter.agents.tasks.graph import expand
from musecode_jupyter.log.critique_kinds import Severity
from musecode_jupyter.log.redaction import Redactor

_OURS = re.compile(r"<{7} \S")
_THEIRS = re.compile(r">{7} \S")
_PROSE = (".md", ".rst", ".txt", ".adoc", ".patch", ".diff")
# A form that nothing but a key has; others may as well be the value of an example.
_CERTAIN = frozenset(
    {
        *("pem-private-key", "github-token", "gitlab-token", "slack-token", "aws-key-id", "google-key"),
        *("huggingface-token", "meta-key", "sk-key", "vendor-key", "secret"),
    }
)
LARGE_BYTES = MAX_CHECKED_BYTES


def conflict_markers(file: ChangedFile, _asked: Asked) -> Iterator[Found]:
    """Both sides of a conflict in the text, where there was none before."""
    if file.new is None or (file.old is not None and _conflict(file.old) is not None):
        return
    lines = _conflict(file.new)
    if lines is None:
        return
    severity: Severity = "blocking"
    why = "A merge was not finished: both sides stand in the file."
    if file.path.endswith(_PROSE) or file.is_material or file.new_tree is not None:
        severity, why = "major", "It may be shown as text: the file can be read all the same."
    yield found_at(file, "conflict-marker", severity, lines, "The marks of a conflict are left in the file.", why)


def _conflict(text: str) -> tuple[int, int] | None:
    """First and last line of the first conflict, from its opening mark to its closing one, with the middle between."""
    start = middle = 0
    for number, line in enumerate(lines_of(text), 1):
        if _OURS.match(line):
            start, middle = number, 0
        elif line == "=======" and start:
            middle = number
        elif _THEIRS.match(line) and middle:
            return start, number
    return None


def secrets(file: ChangedFile, _asked: Asked) -> Iterator[Found]:
    """What has the form of a key or a password, on lines that were not there before."""
    if file.new is None:
        return
    redactor = Redactor()
    if not redactor.suspects(file.new):
        return
    for start, end, clean, hits in _hits(redactor, file):
        certain = bool(_CERTAIN & set(hits)) and not (file.is_test or file.is_material)
        severity: Severity = "blocking" if certain else "major"
        why = (
            "What has once been committed is in the history for good."
            if certain
            else "It has the form of a secret, and may be an example."
        )
        # The value itself is shown to nobody, the worker who wrote it included.
        yield Found(
            "secret",
            severity,
            file.path,
            start,
            end,
            clean,
            f"What stands here looks like a secret ({', '.join(hits)}).",
            why,
            "Take it from the environment, or from a file that git ignores.",
        )


def _hits(redactor: Redactor, file: ChangedFile) -> Iterator[tuple[int, int, str, list[str]]]:
    """First and last line, text without the secret, and patterns, of what looks like one on new lines.

    A key of several lines shows only in all of them.
    """
    known, lines = set(lines_of(file.old or "")), lines_of(file.new or "")
    start = 0
    while start < len(lines):
        end = start
        while end < len(lines) and lines[end] not in known:
            end += 1
        single = False
        for number in range(start, end):
            clean, hits = redactor.text(lines[number])
            if hits:
                single = True
                yield number + 1, number + 1, clean, hits
        clean, hits = redactor.text("\n".join(lines[start:end]))
        if hits and not single:
            yield start + 1, end, shortened(clean), hits
        start = end + 1


def additions(file: ChangedFile, _asked: Asked) -> Iterator[Found]:
    """A large file, or one that is no text, that the change adds."""
    size = file.sizes[1]
    if not file.added or not size:
        return
    if size > LARGE_BYTES:
        text = f"{file.path} is new and has {size:,} bytes."
        yield _whole(file, "large-file", "major", text, "Every clone of the repository carries it from now on.")
    elif file.after is not None and b"\0" in file.after:
        text = f"{file.path} is new and is no text ({size:,} bytes)."
        yield _whole(file, "binary-file", "minor", text, "What is in it cannot be reviewed as a diff.")


def outside(file: ChangedFile, asked: Asked) -> Iterator[Found]:
    """A file that the task did not say it would change."""
    if not asked.writes or file.path in expand(asked.writes, {file.path}):
        return
    text = f"{file.path} is none of the files that the task declares ({', '.join(asked.writes)})."
    why = "A task may touch more than it foresaw; whoever lands it should know."
    yield _whole(file, "undeclared-file", "minor", text, why)


def _whole(file: ChangedFile, check: str, severity: Severity, text: str, why: str) -> Found:
    return Found(check, severity, file.path, 0, 0, "", text, why, side="new" if file.sizes[1] else "old")
