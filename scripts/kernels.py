"""Runs the tests of the face on each supported version of ipykernel, or on those that are named.

Usage: python scripts/kernels.py [VERSION ...] [-- arguments for pytest]
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fixtures.kernel_versions import VERSIONS, before_others, kernel_folder  # noqa: E402

# Where the kernel's own parts matter: messages, comms, the control channel, subshells, interrupts and restarts.
TESTS = [
    f"tests/jupyter/test_{name}.py"
    for name in ("completion", "magics", "notebook", "rules_magic", "run_all", "user_code", "views")
]


def main(argv: Sequence[str]) -> int:
    """0 if all tests pass on all versions."""
    words = list(argv)
    more = words[words.index("--") + 1 :] if "--" in words else []
    versions = words[: words.index("--")] if "--" in words else words
    failed = []
    for version in versions or VERSIONS:
        folder = kernel_folder(version, ROOT / ".data" / "kernels")
        print(f"== ipykernel {version}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", "auto", "--dist", "loadscope"]
        done = subprocess.run([*command, *(more or TESTS)], cwd=ROOT, env=before_others(folder), check=False)
        if done.returncode:
            failed.append(version)
    print(f"failed on: {', '.join(failed)}" if failed else "passed on all")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
