"""Every test of this floor: a home and a repository of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.session_bench import Repo


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of sessions and worktrees."""
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")
