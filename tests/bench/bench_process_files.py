"""What it costs to look after each process at what it did to its worktree's files, beside one `git status`.

Run: python tests/bench/bench_process_files.py [FILES] [ROUNDS]. Prints milliseconds, medians of the rounds, for a
process that changes nothing in a clean worktree, nothing in one with edits, and one file.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from musecode_jupyter.log import EventLog, Redactor
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.tools.files import digest_bytes
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.process_files import ProcessFiles
from musecode_jupyter.workspace.worktrees import create_worktree

OPENED = {"version": "0", "model": "m", "api": "chat", "profile": "driver", "approvals": "deny"}


def repository(root: Path, files: int) -> Path:
    for n in range(files):
        path = root / f"d{n % 50}" / f"f{n}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"x = {n}\n" * 20)
    identity = ["-c", "user.name=User", "-c", "user.email=user@example.org"]
    for args in (["init", "-q", "-b", "main"], ["add", "-A"], [*identity, "commit", "-q", "-m", "base"]):
        subprocess.run(["git", *args], cwd=root, check=True)
    return root


async def measure(folder: Path, files: int, rounds: int) -> dict[str, float]:
    root = repository(folder / "repo", files)
    effects = LiveEffects()
    log = EventLog.create(folder / "s", reducers=all_reducers(), redactor=Redactor(), now=lambda: datetime.now(UTC))
    await log.append("session.opened", {"session": "s", "workspace": str(root), **OPENED})
    git = await Git.discover(root, effects)
    base, path = (await git.head()).commit, folder / "tree"
    creating = {"goal": None, "path": str(path), "branch": "musecode/s/1", "base": base}
    tree = (await log.append("worktree.creating", creating)).seq
    inside = await create_worktree(git, path, "musecode/s/1", base)
    await log.append("worktree.created", {"worktree": tree, "path": str(path)})
    keeper = ProcessFiles(log, effects, "s")
    seconds: dict[str, list[float]] = {}

    async def timed(name: str, work: Callable[[], Awaitable[object]], expected: object = None) -> None:
        start = time.perf_counter()
        answer = await work()
        seconds.setdefault(name, []).append(time.perf_counter() - start)
        assert expected is None or answer == expected, (name, answer)

    async def keep() -> str:
        return await keeper.keep(tree, path, None)

    await timed("clean, the first time", keep, "same")
    for _ in range(rounds):
        await timed("git status", inside.changes)
        await timed("clean", keep, "same")
    for n in range(rounds):
        data = b"edited %d\n" % n
        (path / "d0" / "f0.py").write_bytes(data)
        change = {"worktree": tree, "path": "d0/f0.py", "before": None, "after": digest_bytes(data)}
        await log.append("file.changed", change, blobs={"after": data})
        await timed("edits, nothing else", keep, "same")
        (path / "d1" / "f1.py").write_bytes(data)
        await timed("one file changed", keep, "kept")
    await log.close()
    await effects.aclose()
    return {name: 1000 * statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    given = [int(word) for word in sys.argv[1:]]
    files, rounds = (*given, *(1000, 20)[len(given) :])
    with tempfile.TemporaryDirectory() as folder:
        for name, ms in asyncio.run(measure(Path(folder), files, rounds)).items():
            print(f"{name:24} {ms:7.1f} ms")


if __name__ == "__main__":
    main()
