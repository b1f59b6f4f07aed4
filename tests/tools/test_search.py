"""Search: lines that match, in a fixed order, bounded whatever the pattern and the files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.search import search


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, data in {
        "b.py": b"def load(path):\r\n    return open(path)\r\n",
        "a.py": b"# load\nvalue = 1\n",
        "src/deep/c.py": b"load()\n",
        "src/d.txt": b"load me\nno end load",
        "latin.txt": "café load\n".encode("latin-1"),
        "utf16.txt": "\ufeffload wide\n".encode("utf-16-le"),
        "image.png": b"\x89PNG\0load",
        "min.js": b"load" + b"x" * 100_000 + b"\nload short\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def names(root: Path) -> list[str]:
    return [os.path.relpath(os.path.join(at, name), root) for at, _, found in os.walk(root) for name in found]


def places(root: Path, pattern: str, *more: str | None, **options: int) -> list[str]:
    result = search(root, pattern, *more, files=names(root), **options)  # type: ignore[arg-type]
    return [f"{match.path}:{match.line}" for match in result.matches]


def test_matches_in_the_order_of_paths_and_lines(root: Path) -> None:
    result = search(root, "load", files=reversed(names(root)))
    assert [(match.path, match.line, match.text) for match in result.matches] == [
        ("a.py", 1, "# load"),
        ("b.py", 1, "def load(path):"),
        ("latin.txt", 1, "café load"),
        ("min.js", 2, "load short"),
        ("src/d.txt", 1, "load me"),
        ("src/d.txt", 2, "no end load"),
        ("src/deep/c.py", 1, "load()"),
        ("utf16.txt", 1, "load wide"),
    ]
    assert set(result.skipped) == {("image.png", "binary"), ("min.js", "long lines")}
    assert not result.truncated
    assert "b.py:1:def load(path):\n" in result.text
    assert "2 files not searched or in part only: image.png (binary), min.js (long lines)" in result.text


def test_anchors_mean_the_line_and_there_is_no_line_after_the_last_ending(root: Path) -> None:
    assert places(root, "^load", "src") == ["src/d.txt:1", "src/deep/c.py:1"]
    assert places(root, r"\)$", "b.py") == ["b.py:2"]
    assert places(root, "^$") == []


def test_path_and_glob_narrow(root: Path) -> None:
    assert places(root, "load", ".", "*.py") == ["a.py:1", "b.py:1", "src/deep/c.py:1"]
    assert places(root, "load", ".", "src/*.py") == []
    assert places(root, "load", ".", "src/**/*.py") == ["src/deep/c.py:1"]
    assert places(root, "load", ".", "./src/**") == ["src/d.txt:1", "src/d.txt:2", "src/deep/c.py:1"]
    assert places(root, "load", ".", "[ac].py") == ["a.py:1", "src/deep/c.py:1"]
    assert places(root, "load", ".", "[!a-b].py") == ["src/deep/c.py:1"]
    assert places(root, "load", "src/deep/c.py") == ["src/deep/c.py:1"]


def test_invalid_pattern_is_searched_as_plain_text_and_says_so(root: Path) -> None:
    result = search(root, "load(", files=names(root))
    assert result.literal
    assert [match.path for match in result.matches] == ["b.py", "src/deep/c.py"]
    assert "not a valid regular expression" in result.text


def test_results_are_bounded(root: Path) -> None:
    (root / "many.txt").write_text("load\n" * 10_000)
    result = search(root, "load", max_results=3, files=names(root))
    assert ([match.path for match in result.matches], result.truncated) == (
        ["a.py", "b.py", "latin.txt"],
        True,
    )
    assert "more than 3 lines match" in result.text
    (root / "wide.txt").write_text("load" + "y" * 1_900)
    assert len(search(root, "load", "wide.txt", files=names(root)).matches[0].text) == 300


def test_exactly_as_many_as_asked_for_is_not_truncated(root: Path) -> None:
    assert not search(root, "load", "src", max_results=3, files=names(root)).truncated
    assert search(root, "load", "src", max_results=2, files=names(root)).truncated


def test_catastrophic_pattern_is_stopped_and_what_was_found_stays(root: Path) -> None:
    """Python's `re` holds the interpreter lock: in a thread such a pattern froze the kernel."""
    (root / "y.txt").write_text("aab\n")
    (root / "z.txt").write_text("a" * 60 + "!\n")
    began = time.monotonic()
    result = search(root, "^(a+)+b$", files=names(root), seconds=1.5)
    assert time.monotonic() - began < 15
    assert result.timed_out
    assert [match.path for match in result.matches] == ["y.txt"]
    assert "not all files were searched" in result.text


def test_links_and_vanished_files_are_not_searched(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("load secret\n")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "link.py").symlink_to("a.py")
    os.mkfifo(root / "fifo")
    result = search(root, "load", files=["out", "link.py", "fifo", "gone.py", "../secret", "a.py"])
    assert [match.path for match in result.matches] == ["a.py"]
    assert ("out", "unreadable") in result.skipped


def test_wrong_arguments_say_what_to_do(root: Path) -> None:
    for arguments, says in (
        (("",), "pattern is empty"),
        (("x", "../outside"), "out of the worktree"),
        (("x", "gone"), "does not exist"),
        (("x", ".", "[z-a].py"), "not a glob"),
    ):
        with pytest.raises(ToolProblem, match=says):
            search(root, *arguments, files=[])


def test_nothing_found_says_how_much_was_searched(root: Path) -> None:
    assert search(root, "absent", ".", "*.py", files=names(root)).text == "[no line matches in 3 files]\n"
