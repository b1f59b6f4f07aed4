"""Which Python file imports which, as scheduling is told."""

from __future__ import annotations

from pathlib import Path

from musecode_jupyter.agents.tasks.facts import imports_of, read_imports


def test_imports_of_every_form() -> None:
    sources = {
        "src/pkg/__init__.py": "",
        "src/pkg/a.py": "import os\nimport pkg.b\n",
        "src/pkg/b.py": "from . import c\nfrom .sub.d import thing\n",
        "src/pkg/c.py": "from pkg import a as other\n",
        "src/pkg/sub/d.py": "from .. import c\nfrom ..b import x\n",
        "broken.py": "def (",
        "alone.py": "x = 1\n",
    }
    assert imports_of(sources) == {
        "src/pkg/a.py": {"src/pkg/b.py"},
        "src/pkg/b.py": {"src/pkg/c.py", "src/pkg/sub/d.py", "src/pkg/__init__.py"},
        "src/pkg/c.py": {"src/pkg/a.py", "src/pkg/__init__.py"},
        "src/pkg/sub/d.py": {"src/pkg/c.py", "src/pkg/b.py", "src/pkg/__init__.py"},
    }


def test_files_that_cannot_be_read_import_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b\n")
    (tmp_path / "b.py").write_bytes(b"\xff\xfe not python")
    assert read_imports(tmp_path, ["a.py", "b.py", "gone.py", "notes.txt"]) == {"a.py": {"b.py"}}
