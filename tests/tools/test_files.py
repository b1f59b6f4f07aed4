"""Files of a worktree: paths stay inside, reading is bounded, writing is atomic and checked."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools import files
from musecode_jupyter.tools.files import (
    digest_bytes,
    digest_file,
    read_bytes,
    read_file,
    resolve_inside,
    write_atomic,
)

LONG = pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="many seconds: run by make crash")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("one\ntwo\nthree\n")
    (root / ".git").write_text("gitdir: elsewhere\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret\n")
    return root


def test_paths_inside_resolve(root: Path) -> None:
    for path in ("src/a.py", "./src/../src/a.py", str(root / "src" / "a.py"), "src//a.py"):
        assert resolve_inside(root, path) == root / "src" / "a.py"
    assert resolve_inside(root, ".") == root
    assert resolve_inside(root, "new/file") == root / "new" / "file"
    (root / "link.py").symlink_to("src/a.py")
    assert resolve_inside(root, "link.py") == root / "src" / "a.py"


def test_a_root_reached_through_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert resolve_inside(tmp_path / "alias", "src/a.py") == root / "src" / "a.py"
    assert resolve_inside(tmp_path / "alias", str(tmp_path / "alias" / "src")) == root / "src"
    assert read_file(tmp_path / "alias", "src/a.py").path == "src/a.py"


def bytes_of(root: Path, path: str) -> object:
    return read_bytes(root, path, 100)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("../outside/secret", "out of the worktree"),
        ("src/../../outside/secret", "out of the worktree"),
        ("/etc/passwd", "out of the worktree"),
        ("/proc/self/environ", "out of the worktree"),
        ("out/secret", "out of the worktree"),
        ("out-file", "out of the worktree"),
        ("dangling-out", "out of the worktree"),
        (".git", "inside .git"),
        (".git/config", "inside .git"),
        ("src/.GIT/hooks", "inside .git"),
        ("to-git", "inside .git"),
        ("a\0b", "NUL"),
        ("a\ud800", "lone surrogate"),
        ("", "empty"),
        ("loop", "loop|cannot be|symbolic"),
        ("src/a.py/x", "cannot be reached|Not a directory"),
        ("x" * 5000, "too long"),
        ("gone", "does not exist|no longer there"),
        ("dangling-in", "does not exist|symbolic link"),
    ],
)
@pytest.mark.parametrize(
    "use",
    [
        read_file,
        bytes_of,
        lambda root, path: write_atomic(root, path, b"x", "0" * 64),
    ],
    ids=["read_file", "read_bytes", "write_atomic"],
)
def test_what_is_refused(root: Path, path: str, says: str, use: Callable[[Path, str], object]) -> None:
    (root / "out").symlink_to("../outside")
    (root / "out-file").symlink_to(root.parent / "outside" / "secret")
    (root / "dangling-out").symlink_to("../outside/gone")
    (root / "dangling-in").symlink_to("nothing")
    (root / "to-git").symlink_to(".git")
    (root / "loop").symlink_to("loop")
    if path == "gone" and use is bytes_of:
        assert use(root, path) == ("gone", None)
        return
    # Where links are not followed at all, a last component that is one is refused for that.
    with pytest.raises(ToolProblem, match=f"{says}|is a symbolic link"):
        use(root, path)
    assert (root.parent / "outside" / "secret").read_text() == "secret\n"


def test_special_files_are_not_opened(root: Path) -> None:
    """Opening a FIFO for reading waits for a writer; opening a device may act on it."""
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        where = os.getcwd()
        os.chdir(root)
        try:
            listener.bind("sock")
        finally:
            os.chdir(where)
        for name, kind in (("fifo", "FIFO"), ("sock", "socket")):
            with pytest.raises(ToolProblem, match=kind):
                read_file(root, name)
            with pytest.raises(ToolProblem, match=kind):
                write_atomic(root, name, b"x", "0" * 64)


def test_link_created_between_check_and_open_is_not_followed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between resolving a path and opening it, a directory of it was replaced by a link that leads out."""
    outside = root.parent / "outside"
    (outside / "a.py").write_text("secret\n")
    real = os.path.realpath

    def swap_after_resolving(path: str | Path) -> str:
        resolved = real(path)
        if str(path).endswith("a.py"):
            (root / "src").rename(root / "moved")
            (root / "src").symlink_to(outside)
        return resolved

    monkeypatch.setattr(os.path, "realpath", swap_after_resolving)
    with pytest.raises(ToolProblem, match="cannot be reached"):
        read_file(root, "src/a.py")


def test_read_gives_numbers_digest_and_lines(root: Path) -> None:
    read = read_file(root, "src/a.py", 2, 2)
    data = b"one\ntwo\nthree\n"
    assert (read.text, read.lines) == ("2\ttwo\n[lines 2 to 2 of 3]\n", "two\n")
    assert (read.first_line, read.last_line, read.total_lines, read.truncated) == (2, 2, 3, False)
    assert (read.size, read.data, read.path, read.kind, read.hard_links) == (14, data, "src/a.py", "text", 1)
    assert read.digest == digest_bytes(data) == hashlib.blake2b(data, digest_size=32).hexdigest()
    assert digest_file(root / "src" / "a.py") == read.digest


def test_reading_whole_empty_and_missing_lines(root: Path) -> None:
    assert read_file(root, "src/a.py").text == "1\tone\n2\ttwo\n3\tthree\n"
    assert read_file(root, "src/a.py", 3, 99).lines == "three\n"
    (root / "empty").write_bytes(b"")
    assert (read_file(root, "empty").total_lines, read_file(root, "empty").text) == (0, "[empty is empty]\n")
    (root / "no-end").write_bytes(b"a\nb")
    assert (read_file(root, "no-end").total_lines, read_file(root, "no-end").lines) == (2, "a\nb")
    with pytest.raises(ToolProblem, match="only 3 lines"):
        read_file(root, "src/a.py", 4)
    for start, end in ((0, None), (3, 2)):
        with pytest.raises(ToolProblem, match="do not exist"):
            read_file(root, "src/a.py", start, end)


@pytest.mark.parametrize(
    "data",
    [
        b"a\r\nb\r\nc",
        b"a\rb\rc",
        b"a\r\r\nb\r\r\nc",
        b"\xef\xbb\xbfa\nb\nc",
        "\ufeffa\r\nb\nc".encode("utf-16-le"),
        "\ufeffa\nb\nc".encode("utf-16-be"),
    ],
)
def test_lines_are_the_same_whatever_the_encoding_and_endings(root: Path, data: bytes) -> None:
    (root / "x").write_bytes(data)
    read = read_file(root, "x")
    assert (read.lines, read.total_lines, read.data) == ("a\nb\nc", 3, data)


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16"])
def test_large_files_are_read_like_small_ones(root: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"zeile {number} äöü€\r\n" for number in range(3000))
    (root / "x").write_bytes(text.encode(codec))
    small = read_file(root, "x", 1000, 1500)
    monkeypatch.setattr(files, "_DECODED_WHOLE", 0)
    monkeypatch.setattr(files, "_CHUNK", 997)
    large = read_file(root, "x", 1000, 1500)
    assert large == small
    assert small.lines.splitlines()[0] == "zeile 999 äöü€"
    assert small.total_lines == 3000


def test_too_long_an_answer_is_cut_at_a_line(root: Path) -> None:
    (root / "x").write_text("".join(f"{number:09}\n" for number in range(1000)))
    read = read_file(root, "x", 11, max_bytes=105)
    assert (read.first_line, read.last_line, read.truncated) == (11, 20, True)
    assert read.text.endswith("[lines 11 to 20 of 1000]\n")


def peak_of(work: Callable[[], files.FileRead]) -> tuple[files.FileRead, int]:
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_24_megabytes_in_one_line_take_bounded_memory(root: Path) -> None:
    (root / "x").write_bytes(b"x" * 24_000_000)
    read, peak = peak_of(lambda: read_file(root, "x"))
    assert (read.total_lines, len(read.lines), read.truncated, read.data) == (1, 64_000, True, None)
    assert "longer than can be shown" in read.text
    assert peak < 12_000_000


@pytest.mark.parametrize("size", [200_000_000, pytest.param(2_000_000_000, marks=[LONG, pytest.mark.crash])])
def test_sparse_gigabytes_take_bounded_memory(root: Path, size: int) -> None:
    with open(root / "x", "wb") as file:
        file.write(b"text first\n" * 1000)
        file.truncate(size)
    read, peak = peak_of(lambda: read_file(root, "x", 1, 1))
    assert (read.lines, read.size, read.data) == ("text first\n", size, None)
    assert peak < 12_000_000


def test_binary_files_are_named_not_shown(root: Path) -> None:
    (root / "x").write_bytes(b"\x7fELF\0\0")
    read = read_file(root, "x")
    assert (read.kind, read.lines, read.text) == (
        "binary",
        "",
        "[x is a binary file of 6 bytes; it is not shown]\n",
    )
    assert read.digest == digest_bytes(b"\x7fELF\0\0")


def test_a_directory_lists_its_entries(root: Path) -> None:
    (root / "b").symlink_to("src")
    read = read_file(root, ".")
    assert (read.kind, read.lines, read.digest, read.data) == ("directory", "b@\nsrc/\n", "", None)
    assert read_file(root, "src").lines == "a.py\n"


def test_write_keeps_the_mode_and_leaves_no_temporary_file(root: Path) -> None:
    path = root / "src" / "a.py"
    path.chmod(0o750)
    written = write_atomic(root, "src/a.py", b"new\n", digest_file(path))
    assert path.read_bytes() == b"new\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert (written.path, written.digest, written.size) == ("src/a.py", digest_file(path), 4)
    assert os.listdir(root / "src") == ["a.py"]


def test_write_refuses_what_has_changed(root: Path) -> None:
    path = root / "src" / "a.py"
    seen = digest_file(path)
    path.write_text("by the user\n")
    with pytest.raises(ToolProblem, match="has changed since"):
        write_atomic(root, "src/a.py", b"new\n", seen)
    with pytest.raises(ToolProblem, match="exists already"):
        write_atomic(root, "src/a.py", b"new\n", None)
    path.unlink()
    with pytest.raises(ToolProblem, match="no longer there"):
        write_atomic(root, "src/a.py", b"new\n", seen)
    assert os.listdir(root / "src") == []


def test_change_while_the_new_content_is_written_is_not_overwritten(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor saved the file after its digest was compared, before the new content took its name."""
    path = root / "src" / "a.py"
    seen = digest_file(path)
    real = os.fsync

    def save_meanwhile(descriptor: int) -> None:
        real(descriptor)
        path.write_text("by the user\n")

    monkeypatch.setattr(os, "fsync", save_meanwhile)
    with pytest.raises(ToolProblem, match="has changed since"):
        write_atomic(root, "src/a.py", b"new\n", seen)
    assert path.read_text() == "by the user\n"
    assert os.listdir(root / "src") == ["a.py"]


def test_create_makes_directories_and_follows_the_umask(root: Path) -> None:
    old = os.umask(0o027)
    try:
        write_atomic(root, "new/deep/x.py", b"x", None)
    finally:
        os.umask(old)
    assert (root / "new" / "deep" / "x.py").read_bytes() == b"x"
    assert stat.S_IMODE((root / "new" / "deep" / "x.py").stat().st_mode) == 0o640


def test_a_file_with_other_names_is_not_written(root: Path) -> None:
    path = root / "src" / "a.py"
    os.link(path, root.parent / "outside" / "other")
    assert read_file(root, "src/a.py").hard_links == 2
    with pytest.raises(ToolProblem, match="2 names of one file"):
        write_atomic(root, "src/a.py", b"new", digest_file(path))
    assert (root.parent / "outside" / "other").read_text() == "one\ntwo\nthree\n"


def test_write_through_a_link_is_refused(root: Path) -> None:
    (root / "link").symlink_to("src/a.py")
    with pytest.raises(ToolProblem, match="symbolic link"):
        write_atomic(root, "link", b"x", digest_file(root / "src" / "a.py"))
    with pytest.raises(ToolProblem, match="symbolic link"):
        write_atomic(root, "link", b"x", None)


def test_disk_full_changes_nothing_and_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    path = root / "src" / "a.py"
    seen = digest_file(path)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ToolProblem, match=r"No space left on device\. Nothing was changed"):
        write_atomic(root, "src/a.py", b"new", seen)
    monkeypatch.undo()
    assert digest_file(path) == seen
    assert os.listdir(root / "src") == ["a.py"]


def test_read_bytes_gives_content_or_none_and_has_a_limit(root: Path) -> None:
    assert read_bytes(root, "src/a.py", 14) == ("src/a.py", b"one\ntwo\nthree\n")
    assert read_bytes(root, "nowhere/x", 10) == ("nowhere/x", None)
    with pytest.raises(ToolProblem, match="14 bytes"):
        read_bytes(root, "src/a.py", 13)
    with pytest.raises(ToolProblem, match="directory"):
        read_bytes(root, "src", 13)
