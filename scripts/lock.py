"""Writes constraints.txt: the exact versions in the environment of the Python that runs this program.

The `kernels` extra is large and not needed to develop the rest, so the environment does not hold it; its pins
stay as they are in the file. Change those two together by hand: a torch release works with one triton.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
HEADER = "# The versions that the tests run with, on Python 3.11. Written by `make lock`.\n"


def requirement_name(line: str) -> str:
    """The normalised project name at the head of a requirement line."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]).lower()


def main() -> None:
    frozen = subprocess.run(
        [sys.executable, "-m", "pip", "freeze", "--exclude-editable"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    pins = {requirement_name(line): line for line in frozen.splitlines() if "==" in line}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    kernels = {requirement_name(requirement) for requirement in extras["kernels"]}
    for line in CONSTRAINTS.read_text().splitlines() if CONSTRAINTS.exists() else []:
        if requirement_name(line) in kernels:
            pins.setdefault(requirement_name(line), line)
    missing = kernels - pins.keys()
    if missing:
        sys.exit(f"No pin for {', '.join(sorted(missing))}: add it to constraints.txt, then `make lock` again.")
    CONSTRAINTS.write_text(HEADER + "".join(f"{pins[name]}\n" for name in sorted(pins)))
    print(f"{CONSTRAINTS.name}: {len(pins)} versions")


if __name__ == "__main__":
    main()
