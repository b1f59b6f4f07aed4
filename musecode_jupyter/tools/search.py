"""Searching the lines of a worktree's files for a regular expression, bounded in time, memory and output."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import musecode_jupyter
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.runtime.globs import BadGlob, Glob
from musecode_jupyter.runtime.guardian import PYTHON
from musecode_jupyter.tools.encoding import shown
from musecode_jupyter.tools.paths import real_root, resolve_inside

SECONDS = 20.0
_WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
from musecode_jupyter.tools.search_worker import main
main()
"""


@dataclass(frozen=True)
class Match:
    """A matching line: path relative to the root, number from 1, its text (long ones cut)."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class SearchResult:
    """Matches in the order of paths and lines.

    `truncated`: there are more than were asked for. `timed_out`: not every file was searched. `literal`: the
    pattern is no regular expression and was searched for as plain text. `skipped` names files that were
    searched in part or not at all, with the reason: "binary", "unreadable" (a link, too large), "long lines".
    `text` says all of it.
    """

    matches: tuple[Match, ...]
    truncated: bool
    timed_out: bool
    literal: bool
    skipped: tuple[tuple[str, str], ...]
    text: str


def search(
    root: Path,
    pattern: str,
    path: str = ".",
    glob: str | None = None,
    max_results: int = 100,
    *,
    files: Iterable[str],
    seconds: float = SECONDS,
) -> SearchResult:
    """Search `files` (relative to `root`, as git lists them) below `path` that match `glob`, line by line.

    A `glob` without a slash is compared with the file's name; `**` stands for any directories. Links are not
    followed. It runs in a process of its own, ended after `seconds`; see `search_worker` for why.

    Raises
    ------
    ToolProblem
        The pattern is empty, or `path` leads out of `root` or does not exist.
    """
    if not pattern:
        raise ToolProblem("The pattern is empty. Send a regular expression.")
    base = resolve_inside(root, path)
    if not base.exists():
        raise ToolProblem(f"{path} does not exist. Search in `.`, or list a directory to find the right path.")
    below = base.relative_to(real_root(root)).parts
    literal = False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        literal = True
    try:
        wanted = Glob(glob) if glob else None
    except BadGlob as error:
        raise ToolProblem(f"{(glob or '')[:200]} is not a glob: {error}. Send one like *.py or src/**/*.py.") from None
    chosen = sorted(
        name
        for name in set(files)
        if PurePosixPath(name).parts[: len(below)] == below and (wanted is None or wanted.matches(name))
    )
    request = {
        "root": str(root),
        "pattern": re.escape(pattern) if literal else pattern,
        "files": chosen,
        "max_results": max_results,
        "seconds": seconds,
    }
    records, finished = _run_worker(json.dumps(request), seconds)
    found = [Match(shown(name), number, shown(line)) for name, lines, _ in records for number, line in lines]
    skipped = tuple((shown(name), reason) for name, _, reason in records if reason)
    matches = tuple(found[:max_results])
    truncated = len(found) > max_results
    text = _describe(matches, truncated, not finished, literal, skipped, len(chosen), seconds)
    return SearchResult(matches, truncated, not finished, literal, skipped, text)


def _run_worker(request: str, seconds: float) -> tuple[list[tuple[str, list[tuple[int, str]], str | None]], bool]:
    """The worker's records, and whether it went through all files."""
    package_parent = str(Path(musecode_jupyter.__file__).parent.parent)
    with subprocess.Popen(
        [PYTHON, "-I", "-S", "-c", _WORKER, package_parent],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
        encoding="utf-8",
    ) as process:
        try:
            output, _ = process.communicate(request, timeout=seconds + 5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        except BaseException:
            process.kill()
            raise
    records: list[tuple[str, list[tuple[int, str]], str | None]] = []
    for line in output.splitlines():
        with contextlib.suppress(ValueError):  # cut by the alarm
            record = json.loads(line)
            if record is None:
                return records, True
            records.append(record)
    return records, False


def _describe(
    matches: tuple[Match, ...],
    truncated: bool,
    timed_out: bool,
    literal: bool,
    skipped: tuple[tuple[str, str], ...],
    searched: int,
    seconds: float,
) -> str:
    lines = []
    if literal:
        lines.append("[the pattern is not a valid regular expression; it was searched for as plain text]")
    lines += [f"{match.path}:{match.line}:{match.text}" for match in matches]
    if truncated:
        lines.append(f"[more than {len(matches)} lines match; narrow the pattern, path or glob]")
    if timed_out:
        lines.append(f"[stopped after {seconds:g} s, not all files were searched; use a simpler pattern]")
    if skipped:
        names = ", ".join(f"{name} ({reason})" for name, reason in skipped[:5])
        lines.append(f"[{len(skipped)} files not searched or in part only: {names}{', ...' if skipped[5:] else ''}]")
    if not matches and not timed_out:
        lines.append(f"[no line matches in {searched} files]")
    return "\n".join(lines) + "\n"
