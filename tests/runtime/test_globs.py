"""Globs: what they mean, and that none of them takes long."""

from __future__ import annotations

import pytest

from musecode_jupyter.agents.tasks.graph import expand
from musecode_jupyter.runtime.globs import BadGlob, Glob


@pytest.mark.parametrize(
    ("glob", "meant", "not_meant"),
    [
        ("*.py", ["a.py", "src/deep/a.py"], ["a.pyc", "a.py/b"]),
        ("src/**/*.py", ["src/a.py", "src/b/c/a.py"], ["a.py", "srca.py", "src/a.js"]),
        ("src/*", ["src/a"], ["src/a/b", "src"]),
        ("./a?[bc].[!x]", ["aab.y"], ["a/b.y", "aab.x", "aab./"]),
        ("src/**", ["src/a", "src/a/b"], ["src"]),
        ("[", ["[", "a/["], ["a"]),
        ("[a-c]x", ["bx"], ["dx", "-x"]),
        ("**/x", ["x", "a/x"], ["ax", "/x"]),
        ("a\nb*", ["a\nb", "a\nb\n"], ["a"]),
    ],
)
def test_what_a_glob_means(glob: str, meant: list[str], not_meant: list[str]) -> None:
    wanted = Glob(glob)
    assert [path for path in [*meant, *not_meant] if wanted.matches(path)] == meant


@pytest.mark.parametrize("glob", ["**a" * 20 + "b", "*a" * 20 + "b", "**/" * 300 + "x*y", "*" * 900 + "b"])
def test_no_glob_takes_long_whatever_it_holds(glob: str) -> None:
    """An expression of `re` would try these for longer than anybody waits."""
    assert expand([glob], ["a/" * 50 + "a" * 50]) == frozenset()


@pytest.mark.parametrize("glob", ["[z-a]", "[a-\\d]", "*" * 1_001])
def test_what_is_none_is_refused(glob: str) -> None:
    with pytest.raises(BadGlob):
        Glob(glob)
