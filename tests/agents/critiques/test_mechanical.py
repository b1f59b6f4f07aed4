"""What is proven about a change without a model: each check finds its fault, and leaves honest changes alone."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.agents.critiques.changed import Asked, ChangedFile, Found
from musecode_jupyter.agents.critiques.hunks import hunk_around
from musecode_jupyter.agents.critiques.mechanical import check_files, stands_in

TASK = Asked("Make the checks pass.")
TEST = """
    import pytest
    from shop import price

    class TestPrice:
        def test_zero(self):
            assert price(0) == 0

    def test_two():
        assert price(2) == 5
        assert price(4) == 10

    def test_bad():
        with pytest.raises(ValueError):
            price(-1)
"""


def text(source: str) -> bytes:
    return textwrap.dedent(source).lstrip("\n").encode()


def changed(path: str, before: str | bytes | None, after: str | bytes | None) -> ChangedFile:
    old, new = (text(each) if isinstance(each, str) else each for each in (before, after))
    return ChangedFile(path, old, new, (len(old or b""), len(new or b"")))


def found(*files: ChangedFile, task: Asked = TASK) -> list[tuple[str, str]]:
    return [(each.check, each.severity) for each in check_files(files, task)]


def one(*files: ChangedFile, task: Asked = TASK) -> Found:
    (finding,) = check_files(files, task)
    return finding


def test_what_cannot_be_read_any_more_is_found_at_its_line() -> None:
    finding = one(changed("shop.py", "def f():\n    return 1\n", "def f():\n    return (1\n"))
    assert (finding.check, finding.severity, finding.start, finding.place) == (
        "syntax-error",
        "blocking",
        2,
        "    return (1",
    )
    assert found(changed("a.json", '{"a": 1}', '{"a": 1')) == [("syntax-error", "blocking")]
    assert found(changed("a.toml", "a = 1", "a = ")) == [("syntax-error", "blocking")]


@pytest.mark.parametrize(
    ("path", "before", "severity"),
    [
        # It could not be read before either.
        ("shop.py", "def f(:\n", None),
        # What a linter is tried on.
        ("tests/data/broken.py", None, "minor"),
        # Comments are no JSON, and a new file may be read by whoever takes them.
        ("settings.json", None, "major"),
        ("shop.py", None, "blocking"),
    ],
)
def test_what_may_be_meant_so_stops_nothing(path: str, before: str | None, severity: str | None) -> None:
    assert found(changed(path, before, "def g(:\n")) == ([] if severity is None else [("syntax-error", severity)])


def test_a_name_that_became_undefined_is_found_and_one_that_was_is_not() -> None:
    before = "import os\n\ndef f():\n    return os.sep + other\n"
    after = "X = 1\n\ndef f():\n    return os.sep + other\n"
    finding = one(changed("shop.py", before, after))
    assert (finding.check, finding.severity, finding.start) == ("undefined-name", "blocking", 4)
    assert "`os`" in finding.text


@pytest.mark.parametrize(
    ("source", "severity"),
    [
        ("def f():\n    return _('hello')\n", "major"),
        ("exec(open('names').read())\n\nprint(value)\n", "major"),
        ("def f(a: 'Later') -> Other:\n    return a\n", "major"),
        ("def f():\n    return value  # noqa: F821\n", None),
        ("from os import *\n\nprint(sep)\n", None),
        ("try:\n    unicode\nexcept NameError:\n    pass\n", None),
        ("def f():\n    return len([])\n", None),
    ],
)
def test_names_that_may_come_from_elsewhere_stop_nothing(source: str, severity: str | None) -> None:
    assert {weight for _, weight in found(changed("shop.py", "", source))} == ({severity} if severity else set())


def test_a_conflict_that_was_left_is_found_and_text_about_one_is_not_in_the_way() -> None:
    conflict = "<<<<<<< ours\na\n=======\nb\n>>>>>>> theirs\n"
    finding = one(changed("notes.cfg", "a\n", conflict))
    assert (finding.check, finding.severity, finding.start, finding.end) == ("conflict-marker", "blocking", 1, 5)
    assert found(changed("notes.cfg", conflict, conflict + "more\n")) == []
    assert found(changed("merging.md", "a\n", conflict)) == [("conflict-marker", "major")]
    assert found(changed("test_merge.py", "", f'TEXT = """\n{conflict}"""\n')) == [("conflict-marker", "major")]
    assert found(changed("title.rst", "a\n", "Title\n=======\n\ntext\n")) == []


def test_a_debugger_that_was_left_is_found_unless_the_task_is_about_it() -> None:
    file = changed("shop.py", "def f():\n    return 1\n", "def f():\n    breakpoint()\n    return 1\n")
    assert found(file) == [("debugging", "blocking")]
    assert found(file, task=Asked("Add a --pdb option that stops in the debugger.")) == [("debugging", "note")]
    trace = "def f():\n    import pdb; pdb.set_trace()\n"
    assert sorted(found(changed("shop.py", None, trace))) == [("debugging", "blocking"), ("debugging", "minor")]
    assert found(changed("shop.py", trace, trace + "\nX = 1\n")) == []


def test_a_secret_is_found_and_shown_to_nobody() -> None:
    key = "sk-" + "a1B2" * 12
    finding = one(changed("shop.py", "X = 1\n", f"X = 1\nKEY = '{key}'\n"))
    assert (finding.check, finding.severity, finding.start) == ("secret", "blocking", 2)
    assert key not in repr(finding)
    assert found(changed("tests/test_shop.py", "X = 1\n", f"X = 1\nKEY = '{key}'\n")) == [("secret", "major")]
    assert found(changed("shop.py", f"KEY = '{key}'\n", f"X = 1\nKEY = '{key}'\n")) == []
    body = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ" + "abcd" * 3] * 4)
    pem = f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n"
    finding = one(changed("key.txt", "", pem))
    assert (finding.check, finding.severity) == ("secret", "blocking")
    assert body[:20] not in repr(finding)


def test_large_and_binary_files_are_told_of_and_stop_nothing() -> None:
    assert found(changed("a.bin", None, b"\0\1\2")) == [("binary-file", "minor")]
    assert found(ChangedFile("a.csv", None, None, (0, 5_000_000))) == [("large-file", "major")]
    assert found(ChangedFile("a.csv", None, None, (6_000_000, 5_000_000))) == []


def test_a_file_that_the_task_does_not_declare_is_told_of() -> None:
    task = Asked("Mend it.", ("src/*.py", "new.txt"))
    files = [changed(path, "1\n", "2\n") for path in ("src/a.py", "new.txt", "other.txt")]
    assert found(*files, task=task) == [("undeclared-file", "minor")]


def weaker(change: dict[str, str], task: Asked = TASK) -> list[tuple[str, str, int]]:
    after = textwrap.dedent(TEST).lstrip("\n")
    for old, new in change.items():
        assert old in after
        after = after.replace(old, new)
    file = ChangedFile("tests/test_shop.py", text(TEST), after.encode(), (1, 1))
    return [(each.check, each.severity, each.start) for each in check_files([file], task)]


@pytest.mark.parametrize(
    ("change", "check", "line"),
    [
        ({"price(2) == 5": "price(2) == 6"}, "expected-value", 9),
        ({"    assert price(4) == 10\n": ""}, "assert-removed", 10),
        ({"def test_two():": "@pytest.mark.skip\ndef test_two():"}, "test-skipped", 8),
        ({"def test_two():": "@pytest.mark.xfail(reason='later')\ndef test_two():"}, "test-skipped", 8),
        ({"class TestPrice:": "@pytest.mark.skip\nclass TestPrice:"}, "test-skipped", 4),
        ({"def test_two():\n": "def test_two():\n    pytest.skip('no')\n"}, "test-skipped", 9),
        ({"def test_two():\n": "def test_two():\n    return\n"}, "test-skipped", 9),
        ({"class TestPrice:": "pytestmark = pytest.mark.skip\n\nclass TestPrice:"}, "test-skipped", 4),
        ({"def test_bad():\n    with pytest.raises(ValueError):\n        price(-1)\n": ""}, "test-deleted", 12),
        ({"    with pytest.raises(ValueError):\n        price(-1)": "    price(1)"}, "assert-removed", 13),
        ({"def test_two(": "def check_two("}, "test-deleted", 8),
    ],
)
def test_a_weaker_test_is_found_at_its_place(change: dict[str, str], check: str, line: int) -> None:
    assert weaker(change) == [(check, "blocking", line)]
    assert weaker(change, Asked("Update the tests to the new prices.")) == [(check, "note", line)]
    assert weaker(change, Asked("Correct tests/test_shop.py.")) == [(check, "note", line)]
    assert weaker(change, Asked("Mend it.", ("tests/test_shop.py",))) == [(check, "note", line)]
    assert weaker(change, Asked("Fix the failing tests.")) == [(check, "major", line)]
    assert weaker(change, Asked("Fix it. Do not change the tests.")) == [(check, "blocking", line)]


@pytest.mark.parametrize(
    "change",
    [
        {"assert price(4) == 10": "assert price(4) == 10\n    assert price(6) == 15"},
        {"def test_two(": "def test_two_pieces("},
        {"assert price(2) == 5": 'assert price(2) == 5, "two"'},
        {"def test_zero(self):": 'def test_zero(self):\n        """Nothing costs nothing."""'},
        {"import pytest\n": "import pytest\n\npytest.importorskip('shop')\n"},
        {"from shop import price": "from shop.prices import price"},
    ],
)
def test_tests_that_stay_as_strong_are_left_alone(change: dict[str, str]) -> None:
    assert weaker(change) == []


def test_tests_may_move_and_go_with_what_they_tested() -> None:
    gone = changed("tests/test_shop.py", TEST, None)
    assert {check for check, _ in found(gone)} == {"test-deleted"}
    assert found(gone, changed("tests/test_price.py", None, TEST)) == []
    source = changed("shop.py", "def price(n):\n    return n * 2.5\n", "def cost(n):\n    return n * 2.5\n")
    assert found(gone, source) == [("test-deleted", "note")] * 3


@given(st.text(), st.text())
def test_no_text_breaks_the_checks(before: str, after: str) -> None:
    for path in ("a.py", "test_a.py", "a.json", "a.toml", "a.txt"):
        old, new = before.encode("utf-8", "surrogatepass"), after.encode("utf-8", "surrogatepass")
        check_files([ChangedFile(path, old, new, (len(old), len(new)))], TASK)
    assert check_files([ChangedFile("test_a.py", new, new, (1, 1))], TASK) == [], "what is the same has no faults"


LINES = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=8)


@given(LINES, LINES, st.integers(1, 8))
def test_a_hunk_holds_its_place_and_true_line_numbers(old: list[str], new: list[str], line: int) -> None:
    hunk = hunk_around("".join(f"{each}\n" for each in old), "".join(f"{each}\n" for each in new), line, line, "new")
    if old == new or not hunk:
        return
    head, *rows = hunk.split("\n")
    first = int(head.split("+")[1].split(",")[0])
    after = [row[1:] for row in rows if row[0] != "-"]
    assert after == new[first - 1 : first - 1 + len(after)] or not after
    if new and line <= len(new):
        assert first <= line < first + len(after)


@given(LINES, LINES, LINES)
def test_a_place_is_known_again_however_it_is_indented(head: list[str], place: list[str], tail: list[str]) -> None:
    text = "\n".join([*head, *(f"    {line}" for line in place), *tail])
    assert stands_in("\n".join(place), text) or not text.strip()
    assert not stands_in("d\n" + "\n".join(place), text)
