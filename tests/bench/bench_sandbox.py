"""What the sandbox costs per command, beside the same command run plainly; and what the plain one's watch costs.

Run: python tests/bench/bench_sandbox.py [ROUNDS]. Prints medians in milliseconds; the two take turns, so that the
machine's other load falls on both.
"""

from __future__ import annotations

import asyncio
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fixtures.sandbox_bench import BACKENDS, Bench, bench, missing

from musecode_jupyter.guard.sandbox import gitdirs
from musecode_jupyter.guard.sandbox.bubblewrap import Bubblewrap, find_program, probe
from musecode_jupyter.guard.sandbox.watch import Known, compare, snapshot
from musecode_jupyter.runtime.effects import LiveEffects

COMMANDS = {"true": "true", "git status": "git status", "python": "python -c pass"}


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def row(name: str, values: list[float]) -> str:
    ordered = sorted(values)
    return f"{name:28} median {statistics.median(ordered):7.1f} ms   p90 {ordered[int(0.9 * len(ordered))]:7.1f} ms"


async def commands(places: dict[str, Bench], rounds: int) -> None:
    for name, command in COMMANDS.items():
        taken: dict[str, list[float]] = {backend: [] for backend in places}
        for _ in range(rounds + 1):
            for backend, place in places.items():
                began = time.perf_counter()
                assert (await place.start(command)).result.exit == 0
                taken[backend].append(1000 * (time.perf_counter() - began))
        for backend, values in taken.items():
            print(row(f"{name}, {backend}", values[1:]))
        if len(taken) == 2:
            pairs = zip(taken["bubblewrap"][1:], taken["plain"][1:], strict=True)
            print(row(f"{name}, difference", [inside - outside for inside, outside in pairs]))


def watch(place: Bench, rounds: int) -> None:
    for refs in (3, 1_000, 10_000):
        folder = place.repo / ".git" / "refs" / "heads" / "many"
        folder.mkdir(exist_ok=True)
        value = (place.repo / ".git" / "refs" / "heads" / "main").read_text()
        for number in range(refs if refs > 3 else 0):
            (folder / f"n{number}").write_text(value)
        print(row(f"watch, {refs} loose refs", look(place, rounds)))


def look(place: Bench, rounds: int) -> list[float]:
    """Before and after a command that changes nothing; what was read for the first time is known from then on."""
    dirs, known = gitdirs.find(place.repo), Known()
    assert dirs is not None
    keep = place.base / "keep"
    return [timed(lambda: compare(snapshot(dirs, known), keep, known)) for _ in range(rounds)]


def main(rounds: int) -> None:
    print(f"{platform.platform()}, Python {platform.python_version()}, {rounds} rounds")
    usable = [backend for backend in BACKENDS if not missing(backend)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        places = {name: stack.enter_context(bench(name, Path(folder) / name)) for name in usable}
        asyncio.run(commands(places, rounds))
        inside = places.get("bubblewrap")
        if inside is not None:
            assert isinstance(inside.sandbox, Bubblewrap)
            spec, realm = inside.spec("true"), inside.realm()
            room = inside.sandbox._scratch.room(fresh=False)
            plans = [timed(lambda: inside.sandbox._confine(spec, realm, room)) for _ in range(rounds)]
            print(row("making the plan of mounts", plans))
            program = find_program({"PATH": "/usr/bin"})
            assert program is not None
            probes = [timed(lambda: asyncio.run(probe(program, "deny", LiveEffects()))) for _ in range(rounds)]
            print(row("probe, once per process", probes))
        watch(places["plain"], rounds)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
