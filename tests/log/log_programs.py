"""Writers that the tests of the log start as processes of their own, to kill or to starve them."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import sys
from pathlib import Path

from journal_samples import create, message, reopen

from musecode_jupyter.log import EventLog
from musecode_jupyter.log.lock import is_locked
from musecode_jupyter.runtime.errors import LogError, LogLocked, LogReadOnly


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def write_for_ever(folder: Path) -> None:
    """Eight producers; prints the seq of every event after it was acknowledged, one write per line."""
    log = reopen(folder) if folder.exists() else create(folder, segment_bytes=20_000)

    async def produce(name: str) -> None:
        n = 0
        while True:
            n += 1
            size = 40_000 if n % 25 == 0 else 50 + n % 700
            event = await log.append("user.message", message("x" * size, name))
            os.write(1, b"%d\n" % event.seq)

    await asyncio.gather(*(produce(f"p{k}") for k in range(8)))


def without_flock() -> None:
    """As on a file system without BSD locks, an older NFS for one."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    fcntl.flock = refuse


async def hold_by_lockf(folder: Path) -> None:
    without_flock()
    await hold(folder)


async def fork_by_lockf(folder: Path) -> None:
    without_flock()
    await fork(folder)


async def take(folder: Path) -> None:
    try:
        log = reopen(folder)
    except LogLocked as problem:
        say(f"refused: {problem}")
    else:
        say("taken")
        await log.close()


async def take_by_lockf(folder: Path) -> None:
    without_flock()
    await take(folder)


async def hold(folder: Path) -> None:
    log = create(folder)
    await log.append("user.message", message("held"))
    say("ready")
    sys.stdin.readline()
    await log.close()


async def fork(folder: Path) -> None:
    """A forked child that outlives this process, as a worker of a data loader in the user's cell does."""
    log = create(folder)
    await log.append("user.message", message("parent"))
    child = os.fork()
    if child == 0:
        try:
            log.post("user.message", message("child"))
            say("the child could post")
        except LogReadOnly as problem:
            say(f"child {os.getpid()} {problem}")
        # Closing in the child must not end the parent's log.
        log._journal.close() if log._journal else None
        sys.stdin.read()
        os._exit(0)
    await log.append("user.message", message("parent again"))
    say(f"parent has {log.durable_seq}")
    sys.stdin.read()


async def starve(folder: Path) -> None:
    """The kernel refuses to let a file grow over 60,000 bytes, as on a full disk."""
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    log = create(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    done = 0
    try:
        for _ in range(1000):
            await log.append("user.message", message("y" * 1000))
            done += 1
    except LogReadOnly as problem:
        say(f"{done} {problem}")
    try:
        await log.append("user.message", message("z"))
        say("wrote after a failure")
    except LogReadOnly:
        say("stays read-only")
    await log.close()


async def look(folder: Path) -> None:
    say("looking")
    while True:
        is_locked(folder)


def unprivileged(folder: Path) -> None:
    """Root may write anywhere, so the right to is given up first."""
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    for what in (lambda: reopen(folder), lambda: create(folder / "new")):
        try:
            what()
            say("opened for writing")
        except LogError as problem:
            say(f"{type(problem).__name__} {problem}")
    say(f"{EventLog.read(folder).last_seq}")


if __name__ == "__main__":
    program, path = sys.argv[1], Path(sys.argv[2])
    if program == "unprivileged":
        unprivileged(path)
    else:
        programs = {
            "write": write_for_ever,
            "hold": hold,
            "hold-by-lockf": hold_by_lockf,
            "fork": fork,
            "fork-by-lockf": fork_by_lockf,
            "take": take,
            "take-by-lockf": take_by_lockf,
            "starve": starve,
            "look": look,
        }
        asyncio.run(programs[program](path))
