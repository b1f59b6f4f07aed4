"""Reads what a check printed: which tests failed, where their tracebacks went, and the part worth showing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_SUMMARY = re.compile(r"^(?:FAILED|ERROR) (\S+\.py)(?:::(\S+))?(?: - (.*))?", re.MULTILINE)
_HEADER = re.compile(r"^_{2,} (?:ERROR (?:at \w+ of|collecting) )?(\S+?)(?:\[.*\])? _{2,}$")
_PLACE = re.compile(r"^(\S[^:]*\.py):(\d+): ")
_TRACE = re.compile(r'^\s*File "([^"]+\.py)", line (\d+)')


@dataclass(frozen=True)
class FailingTest:
    """A test that failed: its file, its name without parameters, what it said, and where the traceback went.

    `frames` are (path, line) from the test to the point of failure, with paths relative to the repository.
    """

    path: str
    name: str
    message: str
    frames: tuple[tuple[str, int], ...]


def failing_tests(output: str, files: Sequence[str] = ()) -> list[FailingTest]:
    """The failing tests that pytest's output shows, in its order.

    Parameters
    ----------
    output
        What `pytest -q` printed, with its usual tracebacks and summary.
    files
        Paths of the repository's files, relative to its root, to which absolute paths are shortened.
    """
    sections = _sections(output)
    found: list[FailingTest] = []
    for match in _SUMMARY.finditer(output):
        path, node, said = match.group(1), match.group(2) or "", match.group(3) or ""
        name = re.sub(r"\[.*", "", node).replace("::", ".")
        path = relative(path, files)
        if any(test.path == path and test.name == name for test in found):
            continue
        lines = sections.get(name, sections.get(path, []))
        frames = [(relative(p, files), n) for p, n in frames_of(lines)]
        said_more = "\n".join(line[2:].strip() for line in lines if line.startswith("E "))
        found.append(FailingTest(path, name, said_more or said, tuple(frames)))
    return found


def excerpt(output: str, limit: int = 22) -> str:
    """The part of a check's output that says most: the first failure, at most `limit` lines."""
    lines = output.splitlines()
    start = next((i for i, line in enumerate(lines) if _HEADER.match(line.strip())), None)
    if start is None:
        return "\n".join(lines[-limit:])
    end = next(
        (i for i in range(start + 1, len(lines)) if _HEADER.match(lines[i]) or lines[i].startswith("=====")),
        len(lines),
    )
    kept = [
        line.rstrip()
        for line in lines[start + 1 : end]
        if line.strip() and not re.fullmatch(r"[_ ]+|\s*\^+|E\s*(Use -v.*)?", line.rstrip())
    ]
    if len(kept) > limit:
        kept = [*kept[: limit // 3], "...", *kept[-(limit - limit // 3 - 1) :]]
    return "\n".join(kept)


def _sections(output: str) -> dict[str, list[str]]:
    """Lines of each failure by the name in its header."""
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in output.splitlines():
        header = _HEADER.match(line.strip())
        if header:
            current = sections.setdefault(header.group(1).replace("::", "."), [])
        elif line.startswith("====="):
            current = None
        elif current is not None:
            current.append(line)
    return sections


def frames_of(lines: Sequence[str]) -> list[tuple[str, int]]:
    """Every place (path, line) that a traceback names, in its order."""
    matches = (_PLACE.match(line) or _TRACE.match(line) for line in lines)
    return [(match.group(1), int(match.group(2))) for match in matches if match]


def relative(path: str, files: Sequence[str]) -> str:
    """The path as the repository knows it: an absolute one is shortened to the longest known end."""
    path = path.replace("\\", "/").removeprefix("./")
    if path in files:
        return path
    inside = [known for known in files if path.endswith(f"/{known}")]
    return max(inside, key=len, default=path)
