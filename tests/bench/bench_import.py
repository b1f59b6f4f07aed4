"""What `%load_ext musecode_jupyter` costs in a fresh IPython, side by side with `import ipywidgets`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

CASES = {
    "%load_ext musecode_jupyter": "shell.run_line_magic('load_ext', 'musecode_jupyter')",
    "import ipywidgets": "shell.run_cell('import ipywidgets')",
}
PROGRAM = """
import json, sys, time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
modules = len(sys.modules)
began = time.perf_counter()
{statement}
print(json.dumps([time.perf_counter() - began, len(sys.modules) - modules]))
"""
LIMIT_S = 0.3


def measure(statement: str) -> tuple[float, int]:
    """Seconds, and modules imported, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        answer = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(statement=statement)],
            env={**os.environ, "IPYTHONDIR": folder},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    seconds, modules = json.loads(answer.splitlines()[-1])
    return seconds, modules


def main() -> int:
    """Print a table; 1 if the extension takes longer than its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="processes per case, interleaved")
    rounds = parser.parse_args().rounds
    runs: dict[str, list[tuple[float, int]]] = {name: [] for name in CASES}
    for _ in range(rounds + 1):
        for name, statement in CASES.items():
            runs[name].append(measure(statement))
    print(f"{'in a fresh IPython':30} {'median':>9} {'best':>9} {'worst':>9} {'modules':>8}")
    for name, measured in runs.items():
        # The first round fills the file cache.
        seconds = [1000 * run[0] for run in measured[1:]]
        print(
            f"{name:30} {statistics.median(seconds):6.1f} ms {min(seconds):6.1f} ms {max(seconds):6.1f} ms "
            f"{measured[-1][1]:8}"
        )
    ours = statistics.median(run[0] for run in runs["%load_ext musecode_jupyter"][1:])
    print(f"limit of the extension: {1000 * LIMIT_S:.0f} ms, {'kept' if ours < LIMIT_S else 'NOT kept'}")
    return 0 if ours < LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
