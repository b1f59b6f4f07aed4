"""Parses Python source in any thread, several at a time or not."""

from __future__ import annotations

import ast
import threading

MOST_TRIES = 8
_ONE = threading.RLock()


def parse(source: str, name: str = "<unknown>") -> ast.Module:
    """The syntax tree of `source`, which errors call `name`.

    CPython before 3.13 counts the depth of the tree that it builds in one place for all threads, and gives up with a
    SystemError ("AST constructor recursion depth mismatch") where two threads build at once. Ours take turns; against
    a thread of the user's that parses meanwhile helps only another try.

    Raises
    ------
    SyntaxError, ValueError, RecursionError
        As `ast.parse`.
    """
    for _ in range(MOST_TRIES):
        with _ONE:
            try:
                return ast.parse(source, name)
            except SystemError:
                continue
    raise ValueError("the source cannot be parsed while another thread goes on parsing")
