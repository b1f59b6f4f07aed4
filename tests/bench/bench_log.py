"""Acknowledged events a second of the log, beside a bare group-commit loop of the same bytes, and a plain file.

Run by hand: `python tests/bench/bench_log.py [SECONDS] [ROUNDS]`. For 1, 8 and 32 producers, each of which waits for
its event before the next, the three take turns. The limit does what any durable log must: producers of one loop hand
ready-made lines to one thread, which writes what is there, calls fdatasync once and wakes them. The plain file encodes
each event with the standard library and writes it without any sync, as most agents keep their sessions.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue

from musecode_jupyter.log import EventLog, Redactor

TEXT = "ran the tests: 3 failed, 41 passed; the first failure is in tests/test_queue.py, line 88. " * 4
DATA = {"call": 7, "output": TEXT, "ok": False, "exit": 1, "seconds": 1.25}
Entry = tuple[bytes, asyncio.Future[None]]


async def produce(producers: int, seconds: float, append: Callable[[], Awaitable[object]]) -> tuple[float, list[float]]:
    """Events a second, and the seconds that each one took."""
    taken: list[float] = []
    end = time.perf_counter() + seconds

    async def one() -> None:
        while (begin := time.perf_counter()) < end:
            await append()
            taken.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(producers)))
    return len(taken) / (time.perf_counter() - begin), taken


async def measure_log(folder: Path, producers: int, seconds: float) -> tuple[float, list[float], bytes]:
    log = EventLog.create(folder, reducers=[], redactor=Redactor(["a-known-secret"]), now=lambda: datetime.now(UTC))
    rate, taken = await produce(
        producers, seconds, lambda: log.append("tool.finished", DATA, agent="lead", turn=3, cause=(5, 7))
    )
    await log.close()
    return rate, taken, (folder / "journal" / "000001.jsonl").read_bytes().splitlines(keepends=True)[0]


async def measure_limit(path: Path, producers: int, seconds: float, line: bytes) -> tuple[float, list[float]]:
    queue: SimpleQueue[Entry | None] = SimpleQueue()
    loop = asyncio.get_running_loop()

    def wake(batch: list[Entry]) -> None:
        for _, future in batch:
            future.set_result(None)

    def write() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
        while (entry := queue.get()) is not None:
            batch = [entry]
            while True:
                try:
                    more = queue.get_nowait()
                except Empty:
                    break
                assert more is not None
                batch.append(more)
            os.write(descriptor, b"".join(each for each, _ in batch))
            os.fdatasync(descriptor)
            loop.call_soon_threadsafe(wake, batch)
        os.close(descriptor)

    async def append() -> None:
        future: asyncio.Future[None] = loop.create_future()
        queue.put((line, future))
        await future

    thread = threading.Thread(target=write)
    thread.start()
    result = await produce(producers, seconds, append)
    queue.put(None)
    thread.join()
    return result


async def measure_plain(path: Path, producers: int, seconds: float) -> tuple[float, list[float]]:
    with path.open("w", encoding="ascii") as file:

        async def append() -> None:
            now = datetime.now(UTC).isoformat()
            file.write(json.dumps({"ts": now, "kind": "tool.finished", "agent": "lead", "data": DATA}) + "\n")
            file.flush()
            await asyncio.sleep(0)

        return await produce(producers, seconds, append)


def milliseconds(taken: list[float], part: int) -> float:
    return statistics.quantiles(taken, n=100)[part - 1] * 1000


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print("| producers | | events/s | p50 ms | p99 ms | log / this |")
    print("|---|---|---|---|---|---|")
    # The folder of the working directory, since the temporary one may lie in memory.
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        for producers in (1, 8, 32):
            rates: dict[str, list[float]] = {"log": [], "limit": [], "plain file, no sync": []}
            times: dict[str, list[float]] = {which: [] for which in rates}
            for number in range(rounds):
                name = Path(folder) / f"{producers}-{number}"
                rate, taken, line = asyncio.run(measure_log(name, producers, seconds))
                results = {
                    "log": (rate, taken),
                    "limit": asyncio.run(measure_limit(name.with_suffix(".raw"), producers, seconds, line)),
                    "plain file, no sync": asyncio.run(measure_plain(name.with_suffix(".txt"), producers, seconds)),
                }
                for which, (rate, taken) in results.items():
                    rates[which].append(rate)
                    times[which] += taken
            for which in rates:
                part = statistics.median(a / b for a, b in zip(rates["log"], rates[which], strict=True))
                print(
                    f"| {producers} | {which} | {statistics.median(rates[which]):.0f} | "
                    f"{milliseconds(times[which], 50):.2f} | {milliseconds(times[which], 99):.2f} | "
                    f"{'' if which == 'log' else f'{part:.2f}'} |"
                )
    print(f"\nLine of {len(line)} bytes; {rounds} rounds of {seconds:g} s each, medians of the rounds.")


if __name__ == "__main__":
    main()
