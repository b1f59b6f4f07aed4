"""Reading a long session back: events a second folded to state, the time to resume, a reader beside it, and memory.

Resuming is measured without a snapshot of the state (`first`, as in a copy or after an update of the program) and with
the one that the last close left (`resume`).

Run by hand: `python tests/bench/bench_replay.py [EVENTS] [ROUNDS]`, 100,000 events unless told otherwise; orjson must
be installed. The limit is `orjson.loads` of each line of the same file, which checks and folds nothing; all take turns,
in processes of their own. Seconds are of the wall clock and of the processor, which on a busy machine say different
things.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from long_session import write_long_session

from musecode_jupyter.log import EventLog, Fold, Redactor
from musecode_jupyter.log.scan import Record, Scanner
from musecode_jupyter.log.snapshot import snapshot_path
from musecode_jupyter.session.reducers import all_reducers


def limit(folder: Path) -> None:
    import orjson

    for segment in sorted((folder / "journal").iterdir()):
        with segment.open("rb") as file:
            for line in file:
                orjson.loads(line)


def fold(folder: Path) -> None:
    """What a replay does: every record checked against its chain, parsed and folded."""
    state = Fold(all_reducers())
    for found in Scanner(folder).records():
        assert isinstance(found, Record)
        state.apply(found.event)


def first(folder: Path) -> None:
    """What `open` does without a snapshot of the state; closing is left out."""
    snapshot_path(folder).unlink(missing_ok=True)
    resume(folder)


def resume(folder: Path) -> None:
    """What `open` does from the snapshot that the last close left; closing is left out."""
    EventLog.open(folder, reducers=all_reducers(), redactor=Redactor(), now=lambda: datetime.now(UTC))


def refresh(folder: Path) -> None:
    """A thousand looks of a reader beside a writer that is silent."""
    reader = EventLog.read(folder)
    begin = time.perf_counter()
    for _ in range(1000):
        reader.refresh()
    print(json.dumps({"refresh_us": (time.perf_counter() - begin) * 1000}))


def digest(folder: Path) -> None:
    """What one state digest costs at the end of the session: the first, and the next after one more turn."""
    log = EventLog.open(folder, reducers=all_reducers(), redactor=Redactor(), now=lambda: datetime.now(UTC))
    begin = time.perf_counter()
    log._fold.digests()
    print(json.dumps({"digest_ms": (time.perf_counter() - begin) * 1000}))
    asyncio.run(log.close())


def end(folder: Path) -> None:
    """Opens and closes, which leaves a snapshot; what closing takes."""
    log = EventLog.open(folder, reducers=all_reducers(), redactor=Redactor(), now=lambda: datetime.now(UTC))
    log.post("session.closed", {"reason": "measured"})
    begin = time.process_time()
    asyncio.run(log.close())
    print(json.dumps({"close_ms": (time.process_time() - begin) * 1000}))


PARTS: dict[str, Callable[[Path], None]] = {
    "limit": limit,
    "fold": fold,
    "first": first,
    "end": end,
    "resume": resume,
    "refresh": refresh,
    "digest": digest,
}


def measured(part: str, folder: Path) -> dict[str, Any]:
    """The figures of `part`, run in a process of its own."""
    done = subprocess.run([sys.executable, __file__, part, str(folder)], check=True, capture_output=True, text=True)
    figures: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        figures.update(json.loads(line))
    return figures


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name) / "s"
        write_long_session(folder, events)
        size = sum(path.stat().st_size for path in (folder / "journal").iterdir())
        print(f"{events} events, {size / 1e6:.0f} MB; medians of {rounds} rounds\n")
        taken: dict[str, list[dict[str, Any]]] = {part: [] for part in PARTS}
        for _ in range(rounds):
            for part in PARTS:
                taken[part].append(measured(part, folder))
    print("| | s wall | s processor | events/s | limit / this, by processor | MB at most |")
    print("|---|---|---|---|---|---|")
    for part in ("limit", "fold", "first", "resume"):
        wall, cpu, most = (statistics.median(each[key] for each in taken[part]) for key in ("wall", "cpu", "mb"))
        ratio = statistics.median(
            one["cpu"] / other["cpu"] for one, other in zip(taken["limit"], taken[part], strict=True)
        )
        print(f"| {part} | {wall:.2f} | {cpu:.2f} | {events / wall:.0f} | {ratio:.2f} | {most:.0f} |")
    print(f"\nrefresh of a reader: {statistics.median(each['refresh_us'] for each in taken['refresh']):.0f} us")
    print(f"closing, by processor: {statistics.median(each['close_ms'] for each in taken['end']):.0f} ms")
    print(f"a state digest at the end: {statistics.median(each['digest_ms'] for each in taken['digest']):.1f} ms")


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in PARTS:
        begin, cpu = time.perf_counter(), time.process_time()
        PARTS[sys.argv[1]](Path(sys.argv[2]))
        spent = {"wall": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
        print(json.dumps({**spent, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
    else:
        main()
