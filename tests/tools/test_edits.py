"""Edits: bytes in, bytes out. Encodings, marks and line endings stay, and errors say what a model can do."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.edits import apply_edit
from musecode_jupyter.tools.encoding import decode, shown

BEFORE_AFTER = {
    "lf": (b"a\nb\nc\n", b"a\nX\nY\nc\n"),
    "crlf": (b"a\r\nb\r\nc\r\n", b"a\r\nX\r\nY\r\nc\r\n"),
    "cr": (b"a\rb\rc\r", b"a\rX\rY\rc\r"),
    "cr cr lf": (b"a\r\r\nb\r\r\nc\r\r\n", b"a\r\r\nX\r\r\nY\r\r\nc\r\r\n"),
    "mixed": (b"a\r\nb\nc\r\n", b"a\r\nX\nY\nc\r\n"),
    "mixed the other way": (b"a\nb\r\nc\n", b"a\nX\r\nY\r\nc\n"),
    "no ending at the end": (b"a\r\nb\r\nc", b"a\r\nX\r\nY\r\nc"),
    "utf-8 mark": (b"\xef\xbb\xbfa\r\nb\r\nc", b"\xef\xbb\xbfa\r\nX\r\nY\r\nc"),
    "utf-16 le": ("\ufeffa\r\nb\r\nc".encode("utf-16-le"), "\ufeffa\r\nX\r\nY\r\nc".encode("utf-16-le")),
    "utf-16 be": ("\ufeffa\nb\nc".encode("utf-16-be"), "\ufeffa\nX\nY\nc".encode("utf-16-be")),
    "utf-32": ("\ufeffa\nb\nc".encode("utf-32-le"), "\ufeffa\nX\nY\nc".encode("utf-32-le")),
    "latin-1": (b"\xe9\na\nb\nc\n\xff", b"\xe9\na\nX\nY\nc\n\xff"),
    "gbk": ("中文\na\nb\nc\n".encode("gbk"), "中文\na\nX\nY\nc\n".encode("gbk")),
    "utf-8 with a broken byte": ("äöü\na\nb\nc\n".encode() + b"\xff", "äöü\na\nX\nY\nc\n".encode() + b"\xff"),
}


@pytest.mark.parametrize(("before", "after"), BEFORE_AFTER.values(), ids=BEFORE_AFTER.keys())
def test_encoding_mark_and_endings_stay(before: bytes, after: bytes) -> None:
    assert apply_edit(before, "a\nb\nc", "a\nX\nY\nc").data == after


def test_lines_kept_within_the_replaced_text_keep_their_endings() -> None:
    """An inserted line shifted the endings of all lines below it in the replaced text."""
    before = b"a\r\nb\r\nc\nd\r\ne\n"
    assert apply_edit(before, "a\nb\nc\nd\ne\n", "a\nN\nb\nc\nd\nE\n").data == b"a\r\nN\r\nb\r\nc\nd\r\nE\n"


def test_model_may_send_other_endings_and_the_mark() -> None:
    assert apply_edit(b"a\nb\n", "a\r\nb", "a\r\nc").data == b"a\nc\n"
    assert apply_edit(b"\xef\xbb\xbfa\r\nb\r\n", "\ufeffa\nb", "\ufeffz\nb").data == b"\xef\xbb\xbfz\r\nb\r\n"


def test_a_new_last_line_takes_the_ending_of_the_line_before() -> None:
    assert apply_edit(b"a\r\nb", "b", "b\nc").data == b"a\r\nb\r\nc"
    assert apply_edit(b"b", "b", "b\nc").data == b"b\nc"


def test_text_of_a_latin_1_file_is_matched_and_written() -> None:
    edit = apply_edit("# café\nx = 1\n".encode("latin-1"), "# café", "# déjà")
    assert edit.data == "# déjà\nx = 1\n".encode("latin-1")
    with pytest.raises(ToolProblem, match=r"not UTF-8 and '\\u20ac'"):
        apply_edit("# café\n".encode("latin-1"), "# ", "€ ")


def test_lines_touched_are_told_for_the_new_content() -> None:
    edit = apply_edit(b"1\n2\n3\n", "2\n", "x\ny\n")
    assert (edit.count, edit.first_line, edit.last_line) == (1, 2, 3)
    edit = apply_edit(b"a\nb\na\n", "a", "c\nd", replace_all=True)
    assert (edit.data, edit.count, edit.first_line, edit.last_line) == (b"c\nd\nb\nc\nd\n", 2, 1, 5)
    edit = apply_edit(b"1\n2\n3\n", "2\n", "")
    assert (edit.first_line, edit.last_line) == (2, 2)


def test_more_than_one_place_is_refused_with_the_lines() -> None:
    with pytest.raises(ToolProblem, match="3 times, at lines 1, 3, 4"):
        apply_edit(b"x\ny\nx\nx\n", "x", "z")
    with pytest.raises(ToolProblem, match="2 times"):  # they overlap: which one is meant is not known
        apply_edit(b"aaa", "aa", "b")


@pytest.mark.parametrize(
    ("data", "old", "new", "says"),
    [
        (b"a\n", "", "b", "empty, which creates a new file"),
        (b"a\n", "a", "a", "equal"),
        (b"a\n", "a\r\n", "a\n", "equal"),
        (b"a\0b", "a", "b", "binary"),
        (b"\xff\xfea", "a", "b", "binary"),
        (b"x\nlast", "last\n", "b\n", "leave out the last one"),
        (
            b"def f( x ):\n\treturn 1\n",
            "def f(x):\n    return 1",
            "y",
            r"spaces only; .*\n1\tdef f\( x \):\n2\t\treturn 1",
        ),
        (
            b"a\nb\ndef total(items, tax):\n",
            "def total(items):",
            "y",
            r"nearest lines.*\n3\tdef total\(items, tax\):",
        ),
        (b"abc\n", "something else entirely", "y", "No line is like it"),
        (b"", "a", "b", "No line is like it"),
    ],
)
def test_errors_say_what_to_do(data: bytes, old: str, new: str, says: str) -> None:
    with pytest.raises(ToolProblem) as caught:
        apply_edit(data, old, new)
    assert re.search(says, str(caught.value), re.DOTALL), str(caught.value)


def test_one_line_of_24_megabytes() -> None:
    data = b"x" * 12_000_000 + b"NEEDLE" + b"y" * 12_000_000
    edit = apply_edit(data, "NEEDLE", "thread")
    assert edit.data == data.replace(b"NEEDLE", b"thread")
    with pytest.raises(ToolProblem, match="No line is like it"):
        apply_edit(data, "absent", "b")


ENDINGS = st.sampled_from(["\n", "\r\n", "\r", "\r\r\n"])
WORDS = st.text(st.sampled_from("ab é中\u2028\x0c\t"), max_size=6)
LINES = st.lists(st.tuples(WORDS, ENDINGS), max_size=8)
CODECS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1", "gbk"])


def encoded(lines: list[tuple[str, str]], codec: str) -> bytes:
    return "".join(map("".join, lines)).encode(codec, "replace")


@given(LINES, LINES, st.lists(st.tuples(st.just("MIDDLE"), ENDINGS), min_size=1, max_size=3), LINES, CODECS)
def test_bytes_outside_the_edit_are_unchanged(
    before: list[tuple[str, str]],
    new_lines: list[tuple[str, str]],
    middle: list[tuple[str, str]],
    after: list[tuple[str, str]],
    codec: str,
) -> None:
    # Without the `s` and `e` a lone CR before or after would join the ending beside it.
    data = encoded([*before, ("s", ""), *middle, ("e", ""), *after], codec)
    old = "MIDDLE\n" * len(middle)
    new = "N" + "".join(f"{word}\n" for word, _ in new_lines).encode("ascii", "ignore").decode()
    edit = apply_edit(data, old, new)
    start = encoded([*before, ("s", "")], codec)
    end = encoded([*before, ("s", ""), *middle, ("e", ""), *after], codec)[
        len(encoded([*before, ("s", ""), *middle], codec)) :
    ]
    assert edit.data.startswith(start)
    assert edit.data.endswith(end)
    core = edit.data[len(start) : len(edit.data) - len(end)]
    if codec == "utf-16":
        core_text = core.decode("utf-16-le")
    else:
        core_text = core.decode("utf-8" if codec.startswith("utf-8") else "latin-1")
    assert re.sub(r"\r*\n|\r", "\n", core_text) == new
    assert set(re.findall(r"\r*\n|\r", core_text)) <= {ending for _, ending in middle} | {"\n"}


@given(st.binary(max_size=200))
def test_decoding_any_bytes_loses_nothing(data: bytes) -> None:
    decoded = decode(data)
    if decoded is not None:
        assert decoded.bom + decoded.encode(decoded.text) == data
        shown(decoded.text).encode()


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_random_bytes_around_an_edit_survive(before: bytes, after: bytes) -> None:
    data = before + b"\n<<NEEDLE>>\n" + after
    if decode(data) is None or data.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        return
    assert apply_edit(data, "<<NEEDLE>>", "<<thread>>").data == before + b"\n<<thread>>\n" + after
