"""What the project promises around its code: commands exist, the wheel is whole, no registry is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import musecode_jupyter

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Composed from pieces, so that this file does not itself hold what it looks for.
REGISTRIES = re.compile(
    "|".join(("py" + r"pi\.org", "python" + r"hosted\.org", "registry" + r"\.npmjs", "registry" + r"\.yarnpkg"))
    + "|--(extra-)?index"
    + "-url|--find"
    + "-links"
)


def project_files() -> list[Path]:
    """Files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: there is no list of the project's own files")
    files = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    return [file for file in files if file.is_file()]


def fenced_lines(document: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [
        line.strip() for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S) for line in block.splitlines()
    ]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_make_commands_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))
    named = {match[1] for line in fenced_lines(document) if (match := re.match(r"make ([a-z-]+)", line))}
    assert named <= targets, f"{document} names what the Makefile does not have: {sorted(named - targets)}"


def test_the_two_commands_are_in_the_readme() -> None:
    lines = fenced_lines("README.md")
    assert any(line.startswith("make demo") for line in lines)
    assert any(line.startswith("make test") for line in lines)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documented_files_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    linked = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    named = re.findall(r"`((?:musecode_jupyter|tests|scripts|labextension|notebooks|binder|docs)/[\w./-]+)`", text)
    missing = sorted({name for name in [*linked, *named] if not (ROOT / name).exists()})
    assert not missing, f"{document} names files that are not there: {missing}"


def test_make_alone_prints_the_targets() -> None:
    printed = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for target in ("install", "demo", "lab", "test", "lint", "notebooks", "crash", "bench", "frontend"):
        assert f"make {target} " in printed


def test_no_file_names_a_package_registry() -> None:
    """A lock file that held the addresses of the registry it was made with could be used nowhere else."""
    found = []
    for file in project_files():
        for number, line in enumerate(file.read_bytes().decode("utf-8", "replace").splitlines(), 1):
            if REGISTRIES.search(line):
                found.append(f"{file.relative_to(ROOT)}:{number}")
    assert not found, found
    assert '"resolved": "http' not in (ROOT / "labextension" / "package-lock.json").read_text(encoding="utf-8")


def test_extras_are_the_documented_ones() -> None:
    assert set(PROJECT["optional-dependencies"]) == {"local", "kernels", "cluster", "prices", "dev"}


def test_every_dependency_is_pinned_for_the_tests() -> None:
    pinned = {
        re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower()
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    requirements = [
        *PROJECT["dependencies"],
        *(r for extra in PROJECT["optional-dependencies"].values() for r in extra),
    ]
    names = {re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower() for requirement in requirements}
    assert names <= pinned, f"run `make lock`: {sorted(names - pinned)}"


def test_the_version_is_importable_and_is_the_built_one() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", musecode_jupyter.__version__)


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_wheel_holds_the_modules_and_the_built_views(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"musecode_jupyter-{musecode_jupyter.__version__}-py3-none-any")
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "musecode_jupyter"
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= names, sorted(expected - names)
    build = (ROOT / "labextension" / "build.mjs").read_text(encoding="utf-8")
    views = re.findall(r'^ *(\w+): "src/views/', build, re.M)
    assert views, "no views are built"
    for view in views:
        assert f"musecode_jupyter/static/{view}.js" in names, "build the front end first: make frontend"
    assert not [name for name in names if name.startswith(("tests/", "labextension/", "scripts/"))]
