"""A small repository for every test of this floor."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_repository import Repository


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    root = tmp_path / "repo"
    root.mkdir()
    repository = Repository(root)
    repository.git("init", "-q", "-b", "main")
    lines = "".join(f"line {n}\n" for n in range(1, 21))
    repository.commit({"a.txt": lines, "b.txt": "b\n", "dir/c.txt": "c\n", ".gitignore": "*.log\nbuild/\n"})
    return repository
