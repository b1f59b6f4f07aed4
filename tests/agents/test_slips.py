"""Slips and their corrections: what one changed token, or two exchanged operands, make of a line."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.agents.slips import corrections, place_of

CONTEXT = """\
    def area(self, width, height):
        scale = self.scale
        return self.round(width * height, scale.digits)
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return self.bytes_read - self.bytes_written", "return self.bytes_read + self.bytes_written"),
        ("x = a + b", "x = a * b"),
        ("x = a * b", "x = a / b"),
        ("x = a // b", "x = a % b"),
        ("x = a ** b", "x = a * b"),
        ("total += item", "total -= item"),
        ("return status > 500", "return status >= 500"),
        ("if a == b:", "if a != b:"),
        ("return a <= b and c < d", "return a < b and c < d"),
        ("return a and b", "return a or b"),
        ("order.move_to_end(key, last=False)", "order.move_to_end(key, last=True)"),
        ("return min(a, b, c)", "return max(a, b, c)"),
        ("return any(found)", "return all(found)"),
        ("if name.startswith(prefix):", "if name.endswith(prefix):"),
        ("return f(a, b)", "return f(b, a)"),
        ("return a / b", "return b / a"),
    ],
)
def test_the_usual_slips_are_corrected(line: str, expected: str) -> None:
    assert expected in corrections(line)
    assert corrections("        " + line + "\r") == corrections(line)


def test_a_number_moves_by_one_and_may_get_a_sign() -> None:
    assert corrections("LIMIT = 3") == ["LIMIT = 4", "LIMIT = 2"]
    assert corrections("x = y[1]") == ["x = y[2]", "x = y[0]", "x = y[-1]"]
    assert "for axis in range(2, -1, -1):" in corrections("for axis in range(2, 0, -1):")
    # Only whole numbers have a next one.
    assert corrections("x = 1.5") == corrections("x = 0x10") == []


@pytest.mark.parametrize(
    "line",
    [
        "x = -y",
        "return -y",
        "if -y:",
        "x = y == -z",
        "x = not -y",
        "f(*args)",
        "f(**options)",
        "print(*args, **options)",
        "def f(*args, **options):",
        "def f(a, /, b, *, c):",
        "first, *rest = row",
        "lambda *args: args",
        "from module import *",
        "yield -y",
    ],
)
def test_signs_and_stars_are_no_operations(line: str) -> None:
    """`if -x` and `x == -y` were once taken for subtractions."""
    comparisons = {line.replace("==", other) for other in ("<", "<=", ">", ">=", "!=")}
    assert set(corrections(line)) <= comparisons | {line.replace("not ", "")}


def test_operations_after_brackets_strings_numbers_and_constants_are_found() -> None:
    for operand in ("f()", "x[y]", "{}", "'a'", "z1", "None"):
        assert f"{operand} + b" in corrections(f"{operand} - b")


def test_names_and_attributes_are_changed_only_with_a_context() -> None:
    line = "return self.round(width * height, scale.digits)"
    assert not [new for new in corrections(line) if "width * width" in new or "self.scale" in new]
    with_names = corrections(line, CONTEXT)
    assert "return self.round(width * width, scale.digits)" in with_names
    assert "return self.round(width * height, width.digits)" in with_names
    assert "return self.round(width * height, scale.scale)" in with_names
    # What is called, keywords of calls, and self stay.
    assert all(new.startswith("return self.round(") for new in with_names)
    assert not [new for new in corrections("f(width=1)", CONTEXT) if "width" not in new]
    assert set(corrections(line)) <= set(with_names)
    assert corrections(line, "def broken(:") == corrections(line, "\0") == corrections(line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("total = combine(a + b,", "total = combine(a - b,"),
        ("return (a < b", "return (a <= b"),
        ("and c < d)", "or c < d)"),
        ("self.time + exponent,", "self.time * exponent,"),
        ("value[a:b] = {", None),
        ("'text' if a > b else [", "'text' if a >= b else ["),
        ('x = a < b and """', 'x = a <= b and """'),
    ],
)
def test_a_line_with_a_bracket_that_closes_later_is_corrected_too(line: str, expected: str | None) -> None:
    assert (expected in corrections(line)) if expected else corrections(line) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("if f(a, b):", "if f(b, a):"),
        ("elif f(a, b):", "elif f(b, a):"),
        ("while a - b:", "while b - a:"),
        ("for x in f(a, b):", "for x in f(b, a):"),
        ("key=f(a, b),", "key=f(b, a),"),
    ],
)
def test_operands_are_exchanged_in_compound_statements(line: str, expected: str) -> None:
    """A condition alone is no statement: calls in `if` and `for` lines were once left out."""
    assert expected in corrections(line)


def test_exchanged_operands_keep_their_meaning() -> None:
    """`(a + b) / c` once became `(c) / a + b`."""
    assert "x = c / (a + b)" in corrections("x = (a + b) / c")
    assert "x = c - (a - b)" in corrections("x = a - b - c")
    assert "x = f((c), a + b)" in corrections("x = f((a + b), c)")


def test_a_dropped_not_leaves_no_gap() -> None:
    assert corrections("if not x:") == ["if x:"]
    assert corrections("return x not in y") == ["return x in y"]
    assert corrections("not x,") == ["x,"]


def test_text_and_comments_stay() -> None:
    assert corrections("x = 'a and b < 1'  # min or 3") == []
    assert "y" not in "".join(new for new in corrections("x = f'and {x} or'", "def f(x):\n    return x"))
    assert not [new for new in corrections("x = f'a or {x} and'") if "a and" in new]


def test_places_are_right_after_letters_of_more_than_one_byte() -> None:
    assert "größe = f(ß, 'äö')" in corrections("größe = f('äö', ß)")
    assert "x = '\U0001f600é', b / ä" in corrections("x = '\U0001f600é', ä / b")
    assert "x = '\U0001f600', a <= ü" in corrections("x = '\U0001f600', a < ü")
    assert all("é" in new for new in corrections("x = f'é{a - b}é{g(a, b)}'"))


def test_a_line_break_written_in_an_f_string_stays_one_line() -> None:
    assert not [new for new in corrections("x = f'{a}\\n' % b") if "\n" in new]


def test_the_place_of_a_correction_is_the_token_that_changed() -> None:
    line = "    if a < b and c <= 10:"
    assert place_of(line, "if a <= b and c <= 10:") == place_of(line, "if a > b and c <= 10:") == 5
    assert place_of(line, "if a < b and c < 10:") == 15
    assert place_of(line, "if a < b and c <= 11:") == place_of(line, "if a < b and c <= -10:") == 18


_WORDS = (
    *("a", "b", "self.x", "f(", "g(", "append(", "min", "ß", "\U0001f600", "0", "1", "17", "2.5", "None", "True"),
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        ";",
        "=",
        "==",
        "<",
        "<=",
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "**",
        "+=",
        "->",
    ),
    *("and", "or", "not", "in", "is", "if", "elif", "else", "for", "return", "lambda", "yield", "await", "@", "!"),
    *("'é'", "f'{a-b}'", "f'\\n' %", '"', '"""', "#", "\\", "\t", "\0", "\f", "\r"),
)


@given(
    st.one_of(st.lists(st.sampled_from(_WORDS), max_size=14).map(" ".join), st.text(max_size=30)).filter(
        lambda line: "\n" not in line
    ),
    st.sampled_from(["", CONTEXT]),
)
def test_any_line_has_corrections_that_differ_from_it_and_stay_one_line(line: str, context: str) -> None:
    found = corrections(line, context)
    assert line.strip() not in found
    assert len(found) == len(set(found))
    assert not [new for new in found if "\n" in new]
    assert corrections(line, context) == found


@given(
    st.recursive(
        st.sampled_from(["a", "b.c", "1", "'é'", "-a", "not a"]),
        lambda part: (
            st.tuples(part, st.sampled_from(["+", "-", "/", "%", "**", "<", "and"]), part).map(
                lambda t: f"({t[0]}) {t[1]} ({t[2]})"
            )
            | st.tuples(part, part).map(lambda t: f"f({t[0]}, {t[1]})")
        ),
        max_leaves=6,
    )
)
def test_corrections_of_an_expression_parse(expression: str) -> None:
    for new in corrections(f"x = {expression}"):
        ast.parse(new)
