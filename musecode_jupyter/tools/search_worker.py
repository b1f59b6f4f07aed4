"""The process that searches: a regular expression over the lines of given files, one JSON line out for each
match.

A process, because Python's `re` cannot be interrupted and holds the interpreter lock: in a thread, one
catastrophic pattern would freeze the user's kernel. An alarm ends this process even in the middle of a match.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.encoding import ENDING, decode
from musecode_jupyter.tools.files import read_bytes

LONGEST_LINE = 2_000
LARGEST_FILE = 8_000_000
SHOWN_LINE = 300


def search_file(root: Path, path: str, expression: re.Pattern[str]) -> tuple[list[tuple[int, str]], str | None]:
    """Matching lines with their numbers, and why the file (or a part) was skipped."""
    try:
        # A link is skipped by this, not followed: what it leads to is searched under its own path.
        data = read_bytes(root, path, LARGEST_FILE)[1]
    except ToolProblem:
        return [], "unreadable"
    if data is None:
        return [], None
    decoded = decode(data)
    if decoded is None:
        return [], "binary"
    found: list[tuple[int, str]] = []
    long_lines = False
    lines = ENDING.split(decoded.text)
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            long_lines = True
        elif expression.search(line):
            found.append((number, line[:SHOWN_LINE]))
    return found, "long lines" if long_lines else None


def main() -> None:
    """Read the request from stdin; write a JSON array for each file with something to say, then null."""
    request = json.load(sys.stdin)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    expression = re.compile(request["pattern"])
    left = request["max_results"] + 1
    for path in request["files"]:
        found, skipped = search_file(Path(request["root"]), path, expression)
        if found or skipped:
            print(json.dumps([path, found[:left], skipped]), flush=True)
        left -= len(found)
        if left <= 0:
            break
    print("null", flush=True)
    os._exit(0)
