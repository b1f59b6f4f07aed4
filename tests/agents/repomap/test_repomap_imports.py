"""Imports resolved to files: relative, packages, src layouts, test roots, names that a package passes on; and tests."""

from __future__ import annotations

import pytest

from musecode_jupyter.agents.repomap.map import RepoMap


def imports(files: dict[str, str]) -> dict[str, set[str]]:
    repo = RepoMap.of({path: text.encode() for path, text in files.items()})
    return {path: set(used) for path, used in repo.imports.items()}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (  # relative ones, from a package's module and from its __init__
            {"p/__init__.py": "from . import a", "p/a.py": "from .s.d import t\nfrom . import b", "p/b.py": "",
             "p/s/__init__.py": "", "p/s/d.py": "from ..b import x\nfrom ... import no"},
            {"p/__init__.py": {"p/a.py"}, "p/a.py": {"p/s/d.py", "p/b.py", "p/__init__.py"},
             "p/s/d.py": {"p/b.py"}},
        ),
        (  # a src layout, seen from tests, with a package of the same name installed nowhere
            {"src/p/__init__.py": "", "src/p/a.py": "import p.b", "src/p/b.py": "",
             "tests/test_a.py": "from p import a"},
            {"src/p/a.py": {"src/p/b.py"}, "tests/test_a.py": {"src/p/__init__.py", "src/p/a.py"}},
        ),
        (  # a test sees what lies below its conftest.py's folder, and loads the conftest.py files above
            {"tests/conftest.py": "import os", "tests/fixtures/made.py": "",
             "tests/x/test_y.py": "from fixtures.made import m",
             "conftest.py": "", "fixtures/other.py": ""},
            {"tests/x/test_y.py": {"tests/fixtures/made.py", "tests/conftest.py", "conftest.py"},
             "tests/conftest.py": {"conftest.py"}},
        ),
        (  # what a package passes on, under another name and with a star
            {"p/__init__.py": "from .a import One as Uno\nfrom .b import *", "p/a.py": "class One: pass",
             "p/b.py": "def two(): pass", "m.py": "from p import Uno, two"},
            {"p/__init__.py": {"p/a.py", "p/b.py"}, "m.py": {"p/__init__.py", "p/a.py", "p/b.py"}},
        ),
        (  # circles, also of stars
            {"a.py": "import b\nfrom b import *", "b.py": "import a\nfrom a import *", "c.py": "from a import nothing"},
            {"a.py": {"b.py"}, "b.py": {"a.py"}, "c.py": {"a.py"}},
        ),
        (  # a package without __init__.py; a real one elsewhere comes before it
            {"n/s/m.py": "", "u.py": "import n.s.m\nfrom n.s import m", "tools/json/x.txt": "", "k.py": "import json"},
            {"u.py": {"n/s/m.py"}},
        ),
        (  # a script sees its folder, a module of a package does not
            {"d/run.py": "import helper", "d/helper.py": "", "p/__init__.py": "", "p/a.py": "import z", "p/z.py": ""},
            {"d/run.py": {"d/helper.py"}},
        ),
        (  # in functions, under conditions, beside syntax errors
            {"a.py": "def f():\n    import b\nif T:\n    import c\ndef (\n", "b.py": "", "c.py": ""},
            {"a.py": {"b.py", "c.py"}},
        ),
        (  # names that differ in their case only are two files
            {"Mod.py": "", "mod.py": "", "u.py": "import Mod"},
            {"u.py": {"Mod.py"}},
        ),
        (  # includes, beside and from a root; several of a name are none
            {"k/a.cu": '#include "b.cuh"\n#include <x/c.h>\n#include "d.h"', "k/b.cuh": "", "include/x/c.h": "",
             "one/d.h": "", "two/d.h": ""},
            {"k/a.cu": {"k/b.cuh", "include/x/c.h"}},
        ),
        (  # scripts: endings left out, a folder's index, the name that the compiler will write
            {"s/a.ts": "import './b';\nimport '../c';\nimport x from './d.js';\nimport 'react';", "s/b.tsx": "",
             "c/index.ts": "", "s/d.ts": ""},
            {"s/a.ts": {"s/b.tsx", "c/index.ts", "s/d.ts"}},
        ),
        (
            {"src/main.rs": "mod foo;\nuse crate::foo::bar::Baz;", "src/foo/mod.rs": "mod bar;",
             "src/foo/bar.rs": "use super::x;"},
            {"src/main.rs": {"src/foo/mod.rs", "src/foo/bar.rs"}, "src/foo/mod.rs": {"src/foo/bar.rs"}},
        ),
        (
            {"cmd/main.go": 'import "ex.com/m/pkg/q"', "pkg/q/a.go": "", "pkg/q/a_test.go": ""},
            {"cmd/main.go": {"pkg/q/a.go"}},
        ),
        ({"a.sh": ". lib/x.sh\nsource ../out.sh", "lib/x.sh": ""}, {"a.sh": {"lib/x.sh"}}),
    ],
)  # fmt: skip
def test_imports(files: dict[str, str], expected: dict[str, set[str]]) -> None:
    assert imports(files) == expected


def test_tests_of_a_source_by_name_by_import_and_through_helpers() -> None:
    repo = RepoMap.of(
        {
            "p/__init__.py": b"",
            "p/cache.py": b"",
            "p/other.py": b"from p import cache",
            "p/far.py": b"from p import other",
            "tests/test_cache.py": b"",
            "tests/test_use.py": b"from p.cache import x",
            "tests/helper.py": b"import p.cache",
            "tests/test_through.py": b"import helper",
            "tests/test_far.py": b"import p.far",
        }
    )
    assert repo.tests["p/cache.py"] == ("tests/test_cache.py", "tests/test_through.py", "tests/test_use.py")
    assert repo.tests["p/far.py"] == ("tests/test_far.py",)
    assert repo.affected_tests(["p/cache.py"]) == [
        "tests/test_far.py",
        "tests/test_through.py",
        "tests/test_use.py",
    ]


def test_of_two_sources_of_a_name_a_test_is_given_the_one_it_imports_or_lies_nearest_to() -> None:
    repo = RepoMap.of(
        {
            "a/__init__.py": b"", "a/state.py": b"", "b/__init__.py": b"", "b/state.py": b"", "c/state.py": b"",
            "tests/a/test_state.py": b"", "tests/test_state.py": b"from b.state import x", "x/test_state.py": b"",
        }
    )  # fmt: skip
    assert repo.tests == {"a/state.py": ("tests/a/test_state.py",), "b/state.py": ("tests/test_state.py",)}
