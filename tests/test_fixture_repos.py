"""The fixture repositories: each fails before its known repair and passes after it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _load() -> ModuleType:
    path = Path(__file__).parent / "fixtures" / "make_repo.py"
    spec = importlib.util.spec_from_file_location("fixture_make_repo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


make_repo = _load()


def _pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _git(folder: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_there_are_at_least_five_repositories() -> None:
    assert len(make_repo.names()) >= 5


@pytest.mark.parametrize("name", make_repo.names())
def test_each_repository_fails_until_its_one_line_is_repaired(name: str, tmp_path: Path) -> None:
    folder = make_repo.make_repo(name, tmp_path / "repo")
    sources = [
        path
        for path in folder.rglob("*.py")
        if path.parent.name != "tests" and path.name not in {"conftest.py", "__init__.py"}
    ]
    assert 4 <= len(sources) <= 8

    before = _pytest(folder)
    assert before.returncode == 1, before.stdout
    assert re.search(r"\d+ failed, \d+ passed", before.stdout), "some tests must pass from the start"

    (edit,) = make_repo.repair(name)
    lines = (folder / edit.path).read_text("utf-8").split("\n")
    assert lines.count(edit.old) == 1
    lines[lines.index(edit.old)] = edit.new
    (folder / edit.path).write_text("\n".join(lines), "utf-8")
    after = _pytest(folder)
    assert after.returncode == 0, after.stdout
    assert _git(folder, "status", "--porcelain") == f"M {edit.path}"


def test_the_commit_is_the_same_everywhere(tmp_path: Path) -> None:
    name = make_repo.names()[0]
    first = make_repo.make_repo(name, tmp_path / "first")
    second = make_repo.make_repo(name, tmp_path / "second")
    assert _git(first, "rev-parse", "main") == _git(second, "rev-parse", "HEAD")
    assert _git(first, "rev-list", "--count", "HEAD") == "1"
    assert _git(first, "status", "--porcelain") == ""


def test_a_used_folder_and_an_unknown_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine", "utf-8")
    with pytest.raises(ValueError, match="not an empty folder"):
        make_repo.make_repo(make_repo.names()[0], tmp_path)
    with pytest.raises(ValueError, match="there are: "):
        make_repo.make_repo("nowhere", tmp_path / "new")
