"""Python source is parsed in several threads at once, also while the user's own thread parses."""

from __future__ import annotations

import ast
import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from musecode_jupyter.runtime.syntax import parse

SOURCE = "def f(x):\n    return [a(b(c(d))) + (1 if x else {2: [3, (4, 5)]}) for d in x]\n" * 40


@pytest.fixture
def amid() -> Iterator[list[str]]:
    """Once, while a tree is built, another thread parses; has what it found."""
    found: list[str] = []
    old = gc.get_threshold()

    def other() -> None:
        # Deeper than the first one.
        (lambda: (lambda: found.append(ast.dump(ast.parse("x"))))())()

    def collected(phase: str, _info: object) -> None:
        frame = sys._getframe(1)
        if (
            phase == "start"
            and not found
            and frame.f_code.co_name == "parse"
            and frame.f_code.co_filename == ast.__file__
        ):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

    gc.callbacks.append(collected)
    gc.set_threshold(1)
    yield found
    gc.set_threshold(*old)
    gc.callbacks.remove(collected)


def test_a_thread_that_parses_amid_ours_does_not_spoil_our_tree(amid: list[str]) -> None:
    """A worker's step ended in "AST constructor recursion depth mismatch"."""
    tree = parse(SOURCE)
    gc.set_threshold(700)
    # Later versions collect between instructions only, so not amid.
    assert amid or sys.version_info >= (3, 12)
    assert ast.dump(tree) == ast.dump(ast.parse(SOURCE))


def test_what_is_no_python_is_said_with_its_name() -> None:
    with pytest.raises(SyntaxError) as caught:
        parse("a b", "cell.py")
    assert caught.value.filename == "cell.py"
