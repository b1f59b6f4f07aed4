"""Paths that try to leave the worktree, by their form or by what is put in their place meanwhile."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.binding import tree_digest
from musecode_jupyter.tools.files import digest_bytes, digest_file, read_bytes, read_file, write_atomic
from musecode_jupyter.tools.paths import is_git, resolve_inside

INSIDE = b"inside\n"
SECRET = b"secret\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_bytes(INSIDE)
    (root / ".git").write_text("gitdir: elsewhere\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.py").write_bytes(SECRET)
    return root


def outside_is_as_it_was(root: Path) -> bool:
    outside = root.parent / "outside"
    return [path.name for path in outside.iterdir()] == ["a.py"] and (outside / "a.py").read_bytes() == SECRET


@pytest.mark.parametrize(
    "name",
    [
        ".git",
        ".GIT",
        ".Git",
        ".git.",
        ".git ",
        ".git. .",
        "GIT~1",
        "git~1",
        ".git::$INDEX_ALLOCATION",
        ".g\u200cit",
        "\ufeff.git",
    ],
)
@pytest.mark.parametrize("form", ["{}", "{}/hooks/pre-commit", "src/{}/config", "./src/../{}", "{}/", "new/{}/x"])
def test_git_is_refused_under_all_its_names(name: str, form: str, root: Path) -> None:
    path = form.format(name)
    for use in (
        resolve_inside,
        read_file,
        lambda r, p: read_bytes(r, p, 100),
        lambda r, p: write_atomic(r, p, b"x", None),
    ):
        with pytest.raises(ToolProblem, match=r"inside \.git"):
            use(root, path)
    assert (root / ".git").read_text() == "gitdir: elsewhere\n"


@pytest.mark.parametrize("name", [".gitignore", ".github", "git", ".git2", "a.git", ".gitattributes", "x.git."])
def test_names_that_only_look_like_it_are_ordinary(name: str, root: Path) -> None:
    assert not is_git(name)
    write_atomic(root, name, b"x", None)
    assert read_bytes(root, name, 10) == (name, b"x")


@pytest.mark.parametrize(
    "form", ["src/a.py/", "src/a.py/.", "src/./a.py", "src//a.py", "./src/a.py", "src/../src/a.py"]
)
def test_slashes_and_dots_name_the_same_file_or_none(form: str, root: Path) -> None:
    assert read_file(root, form).path == "src/a.py"
    try:
        write_atomic(root, form, b"new\n", digest_bytes(INSIDE))
    except ToolProblem:
        assert (root / "src" / "a.py").read_bytes() == INSIDE
    else:
        assert (root / "src" / "a.py").read_bytes() == b"new\n"


@pytest.mark.parametrize("path", [".", "./", "src", "src/", "src/.", "src/..", "..", "../tree", "/"])
def test_a_folder_is_not_written(path: str, root: Path) -> None:
    for expected in (None, "0" * 64):
        with pytest.raises(ToolProblem):
            write_atomic(root, path, b"x", expected)
    assert sorted(os.listdir(root)) == [".git", "src"]


@pytest.mark.parametrize("path", ["n" * 256, "d" * 256 + "/x", "/".join(["d" * 200] * 30), "x/" * 3000 + "x"])
def test_names_that_are_too_long_are_refused_in_one_line(path: str, root: Path) -> None:
    for use in (read_file, lambda r, p: read_bytes(r, p, 100), lambda r, p: write_atomic(r, p, b"x", None)):
        with pytest.raises(ToolProblem, match="too long"):
            use(root, path)
    assert sorted(os.listdir(root)) == [".git", "src"]


def test_names_that_are_no_text_are_listed_and_refused(root: Path) -> None:
    raw = os.fsencode(root) + b"/caf\xe9.txt"
    with open(raw, "wb") as file:
        file.write(b"x")
    assert "caf\ufffd.txt" in read_file(root, ".").text or "caf" in read_file(root, ".").text
    with pytest.raises(ToolProblem, match="lone surrogate"):
        read_file(root, "caf\udce9.txt")
    assert tree_digest(root, ["caf\udce9.txt"]) != tree_digest(root, [])


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="no devices here")
@pytest.mark.parametrize(
    "target", ["/dev/zero", "/proc/self/environ", "/dev/stdin", "/proc/self/fd/0", "/proc/self/root"]
)
def test_links_to_devices_and_proc_are_refused(target: str, root: Path) -> None:
    (root / "link").symlink_to(target)
    for path in ("link", "link/etc/passwd"):
        for use in (read_file, lambda r, p: read_bytes(r, p, 100), lambda r, p: write_atomic(r, p, b"x", None)):
            with pytest.raises(ToolProblem):
                use(root, path)


def test_what_a_killed_write_left_does_not_make_a_file_unwritable(root: Path) -> None:
    """A new file has two names for a moment; a process killed then left a file that no edit took any more."""
    left = root / "src" / ".musecode-0123456789abcdef.tmp"
    os.link(root / "src" / "a.py", left)
    write_atomic(root, "src/a.py", b"new\n", digest_bytes(INSIDE))
    assert os.listdir(root / "src") == ["a.py"]
    os.link(root / "src" / "a.py", root / "src" / ".musecode-mine.tmp")
    with pytest.raises(ToolProblem, match="2 names"):
        write_atomic(root, "src/a.py", b"newer\n", digest_bytes(b"new\n"))


# --- races ---------------------------------------------------------------------------------------------


class Swapping:
    """A thread that exchanges two things under one name for another, again and again."""

    def __init__(self, swap: Callable[[], None]) -> None:
        self._swap = swap
        self._end = threading.Event()
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._end.is_set():
            self._swap()
            self._began.set()

    def __enter__(self) -> None:
        self._thread.start()
        assert self._began.wait(30)

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def folder_for_link(root: Path) -> Callable[[], None]:
    """`src` is the folder, then a link to the folder outside, then the folder."""

    def put(make: Callable[[], object]) -> None:
        while True:
            try:
                make()
                return
            except OSError:  # a write has made the folder anew meanwhile
                shutil.rmtree(root / "src", ignore_errors=True)

    def swap() -> None:
        (root / "src").rename(root / "kept")
        put(lambda: (root / "src").symlink_to("../outside"))
        (root / "src").unlink()
        put(lambda: (root / "kept").rename(root / "src"))

    return swap


def file_for_link(root: Path) -> Callable[[], None]:
    """`src/a.py` is the file, then a link to the one outside, by renames, so that one of them is always there."""

    def swap() -> None:
        (root / "src" / "link").symlink_to(root.parent / "outside" / "a.py")
        (root / "src" / "link").rename(root / "src" / "a.py")
        (root / "src" / "new").write_bytes(INSIDE)
        (root / "src" / "new").rename(root / "src" / "a.py")

    return swap


def file_for_fifo(root: Path) -> Callable[[], None]:
    """`src/a.py` is the file, then a FIFO that nobody writes to."""

    def swap() -> None:
        os.mkfifo(root / "src" / "fifo")
        (root / "src" / "fifo").rename(root / "src" / "a.py")
        (root / "src" / "new").write_bytes(INSIDE)
        (root / "src" / "new").rename(root / "src" / "a.py")

    return swap


@pytest.mark.parametrize("exchange", [folder_for_link, file_for_link, file_for_fifo])
def test_no_exchange_between_check_and_open_leads_out(
    exchange: Callable[[Path], Callable[[], None]], root: Path
) -> None:
    """A link put in place between the check of a path and its opening."""
    answered = refused = 0
    with Swapping(exchange(root)):
        for turn in range(900):
            try:
                if turn % 3 == 0:
                    assert read_file(root, "src/a.py").data in (INSIDE, b"")
                elif turn % 3 == 1:
                    assert read_bytes(root, "src/a.py", 100)[1] in (INSIDE, b"", None)
                else:
                    assert tree_digest(root, ["src/a.py"])
                answered += 1
            except ToolProblem:
                refused += 1
    assert answered > 0
    assert refused > 0
    assert outside_is_as_it_was(root)


@pytest.mark.parametrize("exchange", [folder_for_link, file_for_link, file_for_fifo])
def test_no_exchange_makes_a_write_land_outside(exchange: Callable[[Path], Callable[[], None]], root: Path) -> None:
    written = 0
    with Swapping(exchange(root)):
        for turn in range(150):
            try:
                if turn % 2:
                    write_atomic(root, f"src/new{turn}.py", b"new\n", None)
                else:
                    write_atomic(root, "src/a.py", INSIDE, digest_bytes(INSIDE))
                written += 1
            except ToolProblem:
                pass
    assert written > 0
    assert outside_is_as_it_was(root)
    assert (root / "src").is_dir()
    assert not (root / "src").is_symlink()


def test_a_file_that_gets_another_name_before_the_write_is_refused_or_left_alone(root: Path) -> None:
    """The other name, outside, never shows what is written here."""
    other = root.parent / "other"

    def swap() -> None:
        try:
            os.link(root / "src" / "a.py", other)
        except FileNotFoundError:
            return
        other.unlink()

    with Swapping(swap):
        for turn in range(150):
            content = f"{turn}\n".encode()
            try:
                write_atomic(root, "src/a.py", content, digest_file(root / "src" / "a.py"))
            except ToolProblem:
                continue
            assert (root / "src" / "a.py").read_bytes() == content
    assert stat.S_ISREG((root / "src" / "a.py").lstat().st_mode)


parts = st.sampled_from(
    ["..", ".", "", "src", "a.py", "out", "in", "loop", "dangling", "deep", "b", ".git", "~", "…", "x y"]
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(parts, min_size=1, max_size=7), st.booleans())
def test_whatever_a_path_is_made_of_it_stays_inside(root: Path, names: list[str], absolute: bool) -> None:
    for link, target in (("out", "../outside"), ("in", "src"), ("loop", "loop"), ("dangling", "../gone")):
        if not (root / link).is_symlink():
            (root / link).symlink_to(target)
    path = "/".join(names)
    if absolute:
        path = f"{root}/{path}"
    try:
        found = resolve_inside(root, path)
    except ToolProblem:
        pass
    else:
        assert found == root or root in found.parents
        assert ".git" not in found.relative_to(root).parts
    for use in (read_file, lambda r, p: write_atomic(r, p, b"x", "0" * 64)):
        try:
            result = use(root, path)
        except ToolProblem:
            continue
        assert getattr(result, "data", b"") != SECRET
    assert outside_is_as_it_was(root)
    assert not (root.parent / "gone").exists()
