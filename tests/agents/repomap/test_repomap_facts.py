"""What the map reads in one file: symbols with lines and signatures in several languages; files that are no code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.agents.repomap.facts import LONGEST_LINE, MOST_BYTES, FileFacts, facts_of
from musecode_jupyter.agents.repomap.languages import LANGUAGES, language_of

PYTHON = b'''"""Keeps stones. More is said below."""
import os
from .a import (b, c as d)
from ..x import *

LIMIT: int = 3

@dataclass(frozen=True)
class Stone:
    """A stone."""
    weight: float
    name: str = ""

    @property
    def heavy(self) -> bool:  # more than most
        return self.weight > LIMIT

@triton.jit(debug=True)
def kernel(
    x,
    n: "constexpr",
):
    def local():
        pass
    text = f"never {Stone} a {'word'}"  # Boulder
    return local
'''


def outline(facts: FileFacts) -> list[tuple[str, str, int, int]]:
    return [(symbol.name, symbol.kind, symbol.start, symbol.end) for symbol in facts.symbols]


def test_python_gives_definitions_with_decorators_fields_and_signatures() -> None:
    facts = facts_of("python", PYTHON)
    assert facts.summary == "Keeps stones. More is said below."
    assert outline(facts) == [
        ("LIMIT", "constant", 6, 6),
        ("Stone", "class", 8, 16),
        ("Stone.heavy", "method", 14, 16),
        ("kernel", "function", 18, 26),
    ]
    assert [symbol.signature for symbol in facts.symbols] == [
        "LIMIT: int = 3",
        "@dataclass class Stone: weight, name",
        "@property def heavy(self) -> bool",
        '@triton.jit def kernel(x, n: "constexpr")',
    ]
    assert [(each.module, each.names) for each in facts.imports] == [
        ("os", ()),
        (".a", (("b", "b"), ("c", "d"))),
        ("..x", (("*", "*"),)),
    ]
    assert facts.lines_of("Stone") == [9, 25], "a name in an f-string is code"
    assert facts.lines_of("LIMIT") == [6, 16]
    assert facts.lines_of("weight", bare=False) == [16]
    assert not any(facts.lines_of(word) for word in ("Boulder", "never", "word", "Keeps"))
    at = facts.at(16)
    assert at is not None
    assert at.name == "Stone.heavy"


def test_a_file_with_syntax_errors_gives_what_can_be_had() -> None:
    facts = facts_of("python", b"def a(x):\n  return 1\n\ndef broken(:\n\nclass B:\n  def after(self): return 2\n")
    assert facts.note == "has syntax errors"
    assert {"a", "B", "B.after"} <= {symbol.name for symbol in facts.symbols}


@pytest.mark.parametrize(
    ("path", "text", "names", "imports"),
    [
        (
            "k.cu",
            '// Scans.\n#include "a/b.cuh"\nnamespace n {\ntemplate <typename T>\n__global__ void scan(T* x) {}\n'
            "class A { public: int f(int a); };\n}\nint* A::g() { return 0; }\nint proto(int a);\n#define MAX(a) a\n",
            [("scan", "function"), ("A", "class"), ("A.f", "method"), ("A.g", "method"), ("proto", "function"),
             ("MAX", "constant")],
            ['"a/b.cuh"'],
        ),
        (
            "v.ts",
            "// Views.\nimport {a} from './a';\nexport * from './b';\nexport class C { m(y: string) { return 1 } }\n"
            "export const g = (a) => a;\ninterface I { a: string }\nconst q = await import('./q');\n",
            [("C", "class"), ("C.m", "method"), ("g", "constant"), ("I", "class"), ("q", "constant")],
            ["./a", "./b", "./q"],
        ),
        ("v.tsx", "export function V(p: P) { return <div>a</div>; }\n", [("V", "function")], []),
        ("m.js", "const z = require('./z');\nfunction f() {}\n", [("z", "constant"), ("f", "function")], ["./z"]),
        (
            "m.rs",
            "use crate::a::{B, C};\nmod foo;\nstruct S { a: i32 }\nimpl S { fn m(&self) {} }\npub fn f() {}\n",
            [("S", "class"), ("S.m", "method"), ("f", "function")],
            ["use crate::a::{B, C};", "mod foo;"],
        ),
        (
            "m.go",
            'package p\nimport "ex.com/m/q"\ntype T struct { a int }\nfunc (t *T) M(a int) {}\nfunc F() {}\n',
            [("T", "class"), ("T.M", "method"), ("F", "function")],
            ['"ex.com/m/q"'],
        ),
        ("m.sh", "# Builds.\n. ./lib.sh\nbuild() { echo; }\n", [("build", "function")], ["./lib.sh"]),
        ("m.md", "# One\n```\n# no\n```\n## Two\n", [("One", "heading"), ("Two", "heading")], []),
    ],
)  # fmt: skip
def test_other_languages(path: str, text: str, names: list[tuple[str, str]], imports: list[str]) -> None:
    facts = facts_of(language_of(path), text.encode())
    assert facts.note == ""
    assert [(symbol.name, symbol.kind) for symbol in facts.symbols] == names
    assert sorted(each.module for each in facts.imports) == sorted(imports)


@pytest.mark.parametrize(
    ("data", "note"),
    [
        (b"x = 1\n\x00\x01", "binary"),
        (b"x = '\xe9'\n", "not UTF-8"),
        (b"x = 1\n" * (MOST_BYTES // 6 + 1), "large"),
        (b"x = " + b"1" * LONGEST_LINE, "minified"),
        (b"(\n" * 7_000, "does not parse"),
    ],
)
def test_files_that_are_listed_without_symbols(data: bytes, note: str) -> None:
    """A query over a file of 300,000 open brackets took five minutes."""
    facts = facts_of("python", data)
    assert (facts.note, facts.size, facts.symbols, facts.uses) == (note, len(data), (), "")


def test_an_empty_file_and_one_with_a_byte_order_mark() -> None:
    assert facts_of("python", b"") == FileFacts("python", 0, 0)
    assert outline(facts_of("python", b"\xef\xbb\xbfdef f(): pass\r\n")) == [("f", "function", 1, 1)]


@given(st.sampled_from(LANGUAGES), st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_no_bytes_break_it_and_the_same_bytes_say_the_same(language: str, data: bytes) -> None:
    facts = facts_of(language, data)
    assert facts == facts_of(language, data)
    for symbol in facts.symbols:
        assert 1 <= symbol.start <= symbol.line <= symbol.end <= facts.lines + 1
        assert "\n" not in symbol.signature
    assert all(lines and int(lines[0]) >= 1 for _, lines in facts.used())
