"""The map of a repository: made cold, again with nothing changed, after one change, rendered; time and memory."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from musecode_jupyter.agents.repomap.answer import Question, answer
from musecode_jupyter.agents.repomap.map import RepoMap
from musecode_jupyter.agents.repomap.rank import Focus
from musecode_jupyter.agents.repomap.read import Kept
from musecode_jupyter.agents.repomap.render import render
from musecode_jupyter.runtime.effects import LiveEffects

ROOT = Path(__file__).resolve().parents[2]
LATER_NS = 10_000_000_000
LOOP = asyncio.new_event_loop()
PACKAGE = 50
"""Modules of one made package."""


def made(root: Path, count: int) -> list[str]:
    """A repository of `count` Python files: packages of modules of 180 lines that use five others each."""
    names = []
    for number in range(count):
        package = f"p{number // PACKAGE:03}"
        folder = root / package
        if number % PACKAGE == 0:
            folder.mkdir()
            (folder / "__init__.py").write_text("")
        lines = [f'"""Module {number} of the bench."""', ""]
        for step in (1, 7, 49, 343, 2401):
            other = (number + step) % count
            lines.append(f"from p{other // PACKAGE:03}.m{other} import work_{other}_0, Thing{other}")
        for part in range(16):
            lines += [
                "",
                f"def work_{number}_{part}(items: list[int], limit: int = {part}) -> int:",
                f'    """Does part {part}."""',
                "    total = 0",
                "    for item in items:",
                f"        total += work_{(number + 1) % count}_0(items) if item > limit else item",
                "    return total",
                "",
            ]
        lines += [
            "",
            f"class Thing{number}:",
            "    value: int",
            "",
            "    def get(self) -> int:",
            "        return self.value",
        ]
        names.append(f"{package}/m{number}.py")
        (root / names[-1]).write_text("\n".join(lines) + "\n")
    return names


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock and of the processor, worker processes included."""
    wall, cpu = time.perf_counter(), sum(os.times()[:4])
    work()
    return time.perf_counter() - wall, sum(os.times()[:4]) - cpu


def mapped(kept: Kept, root: Path, names: list[str], now_ns: int) -> RepoMap:
    """The map as a session makes it, on a loop that goes on."""
    return LOOP.run_until_complete(kept.map(LiveEffects(), root, names, now_ns))


def resident() -> int:
    """Bytes of memory that this process has now (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(name: str, root: Path, names: list[str], rounds: int) -> None:
    """Print a row for each step."""
    cases: dict[str, list[tuple[float, float]]] = {}
    grown = 0

    def case(title: str, work: Callable[[], object]) -> None:
        cases.setdefault(title, []).append(timed(work))

    for _ in range(rounds):
        kept = Kept()
        later = time.time_ns() + LATER_NS
        found: list[RepoMap] = []
        before_cold = resident()
        case("cold", lambda: found.append(mapped(kept, root, names, later)))  # noqa: B023
        case("imports and tests", lambda: (found[0].imports, found[0].tests))  # noqa: B023
        case("first text", lambda: render(found[0], Focus()))  # noqa: B023
        case("text for a question", lambda: render(found[0], Focus(words="does part work")))  # noqa: B023
        grown = max(grown, resident() - before_cold)
        case("a file", lambda: answer(found[0], Question(names[0])))  # noqa: B023
        case("again, unchanged", lambda: mapped(kept, root, names, later))  # noqa: B023
        path = root / names[0]
        before = path.read_bytes()
        path.write_bytes(before + b"\ndef added(): pass\n")
        case("again, one changed", lambda: mapped(kept, root, names, later))  # noqa: B023
        path.write_bytes(before)
    size = sum((root / each).stat().st_size for each in names)
    print(f"{name}: {len(names)} files, {size / 1e6:.1f} MB; the process grew by {grown / 1e6:.0f} MB")
    for title, runs in cases.items():
        wall, cpu = (statistics.median(run[part] for run in runs) for part in (0, 1))
        print(f"  {title:22} {1000 * wall:8.1f} ms  (processor {1000 * cpu:8.1f} ms)")


def main() -> None:
    """Print the figures for this repository and for made ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="*", default=[150, 5_000], help="sizes of the made repositories")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"Python {platform.python_version()}, tree-sitter {version('tree-sitter')}, median of {arguments.rounds}")
    with tempfile.TemporaryDirectory() as scratch:
        # A copy, since one file is changed.
        here = Path(scratch) / "here"
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(here)], check=True)
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=here, capture_output=True, check=True).stdout.decode()
        names = [name for name in listed.split("\0") if name]
        names.sort(key=lambda name: not name.startswith("musecode_jupyter/runtime/loop"))
        measure("this repository", here, names, arguments.rounds)
        for count in arguments.files:
            root = Path(scratch) / str(count)
            root.mkdir()
            measure("made", root, made(root, count), arguments.rounds)


if __name__ == "__main__":
    main()
