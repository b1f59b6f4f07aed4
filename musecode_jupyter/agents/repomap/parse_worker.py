"""The process that parses: for each given file two JSON lines, what it is before it is parsed and what it says after.

A process, because tree-sitter holds the interpreter lock while it parses, and its recovery from errors has no bound:
8 KB of `/*` take Python's grammar half a minute, 40 KB minutes and gigabytes. Timers that the system keeps end this
process even in the middle of a parse; which of them it was says by its signal what was at fault.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from musecode_jupyter.agents.repomap.facts import MOST_BYTES, FileFacts, Import, Symbol, facts_of
from musecode_jupyter.agents.repomap.languages import GRAMMARS, grammar
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.files import digest_bytes, read_bytes

FILE_TIMER = signal.SIGPROF
"""Ends the process when one file has used up its time of the processor."""
RUN_TIMER = signal.SIGALRM
"""Ends the process when the run has used up its time by the clock."""

_MOST_MEMORY = 1 << 30
"""Bytes of addresses; of ordinary files the process takes about a tenth of it."""


def as_json(facts: FileFacts) -> list[Any]:
    """`facts` as what JSON can hold."""
    symbols = [[each.name, each.kind, each.start, each.end, each.line, each.signature] for each in facts.symbols]
    imports = [[each.module, each.names] for each in facts.imports]
    return [
        facts.language,
        facts.size,
        facts.lines,
        facts.note,
        facts.summary,
        symbols,
        imports,
        facts.uses,
        facts.fields,
    ]


def from_json(value: list[Any]) -> FileFacts:
    """The facts of which `as_json` made `value`."""
    language, size, lines, note, summary, symbols, imports, uses, fields = value
    return FileFacts(
        language,
        size,
        lines,
        note,
        summary,
        tuple(Symbol(*each) for each in symbols),
        tuple(Import(module, tuple((name, alias) for name, alias in names)) for module, names in imports),
        uses,
        tuple(fields),
    )


def main() -> None:
    """Read the request from stdin, with files as [path, language, seconds of the processor]; answer for each in order.

    First a line [digest, size], or null for a file that cannot be read; then, if it can, a line with its facts.
    """
    request = json.load(sys.stdin)
    for number in (FILE_TIMER, RUN_TIMER):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {FILE_TIMER, RUN_TIMER})
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    for limit, most in ((resource.RLIMIT_AS, _MOST_MEMORY), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # not every system has them all
            resource.setrlimit(limit, (most, resource.getrlimit(limit)[1]))
    root = Path(request["root"])
    for name, language, seconds in request["files"]:
        try:
            data = read_bytes(root, name, limit=MOST_BYTES)[1]
        except (ToolProblem, OSError):
            data = None
        if data is None:
            print("null", flush=True)
            continue
        print(json.dumps([digest_bytes(data), len(data)]), flush=True)
        if language in GRAMMARS:
            grammar(language)  # loading it is not at the cost of the first file
        signal.setitimer(signal.ITIMER_PROF, seconds)
        facts = facts_of(language, data)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(as_json(facts)), flush=True)
    os._exit(0)
