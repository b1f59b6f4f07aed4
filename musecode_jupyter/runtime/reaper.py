"""Finds and ends all processes of a session or with a marker; as a script it is the guardian's process.

Only the standard library, and little of it: as a script it has to be up in some ten milliseconds and must not
load anything from the user's environment. It is given the read end of a pipe as its standard input, and the
prefix of all markers as its argument; the pipe carries lines `+pgid token` and `-pgid`. At the end of the
pipe the kernel is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence

MARKER = "MUSECODE_PROCESS"
GRACE = 1.0
LIMIT = 3.0
_PROC = "/proc"


def marks(token: str, *, prefix: bool = False) -> bytes:
    """The bytes to look for in a process's environment: all of a token, or the beginning that many share."""
    return f"\0{MARKER}={token}{'' if prefix else chr(0)}".encode()


def start_time(pid: int) -> bytes | None:
    """When `pid` started, in clock ticks since boot; None if there is no such process or no `/proc`."""
    try:
        return _stat(pid)[19]
    except (OSError, IndexError):
        return None


def _stat(pid: int) -> list[bytes]:
    with open(f"{_PROC}/{pid}/stat", "rb", buffering=0) as file:
        # The command's name is in parentheses and may hold anything, parentheses and spaces too.
        return file.read(4096).rpartition(b")")[2].split()


def _environment(pid: int) -> bytes:
    try:
        with open(f"{_PROC}/{pid}/environ", "rb") as file:
            return b"\0" + file.read(4_000_000)
    except OSError:
        return b""


def find(sessions: Iterable[int], markers: Sequence[bytes]) -> set[int]:
    """Live processes in `sessions`, with one of `markers` in their environment, or descended from such.

    A process that calls setsid keeps the marker; one that clears its environment keeps its session or its
    parent. Without `/proc` only the leaders' own process groups are known, and the answer names the groups'
    leaders.
    """
    wanted = set(sessions)
    if not os.path.isdir(f"{_PROC}/self"):
        return {pgid for pgid in wanted if _group_lives(pgid)}
    me = os.getpid()
    found: set[int] = set()
    children: dict[int, list[int]] = {}
    for name in os.listdir(_PROC):
        if not name.isdigit() or int(name) == me:
            continue
        pid = int(name)
        try:
            state, parent, group, session = _stat(pid)[:4]
        except (OSError, ValueError):
            continue
        if state in (b"Z", b"X"):
            continue
        children.setdefault(int(parent), []).append(pid)
        if int(session) in wanted or int(group) in wanted:
            found.add(pid)
        elif markers:
            environment = _environment(pid)
            if any(marker in environment for marker in markers):
                found.add(pid)
    queue = list(found)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


def _group_lives(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # what macOS answers for a group of which only the unreaped leader is left
        return False
    return True


def _send(pid: int, number: int) -> None:
    try:
        if os.path.isdir(f"{_PROC}/self"):
            os.kill(pid, number)
        else:
            os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def end(
    sessions: Iterable[int],
    markers: Sequence[bytes],
    grace: float = GRACE,
    limit: float = LIMIT,
    spared: Sequence[int] = (),
) -> list[int]:
    """SIGTERM, after `grace` seconds SIGKILL; answers what was still there `limit` seconds later.

    `spared` get no SIGTERM: a process that holds a namespace would take all in it along at once.
    Two empty scans in a row are needed: a process may fork and exit while one scan passes over it.
    """
    wanted = tuple(sessions)
    kill_at = time.monotonic() + grace
    give_up_at = kill_at + limit
    told: set[int] = set()
    empty = 0
    while True:
        alive = find(wanted, markers)
        now = time.monotonic()
        if not alive:
            empty += 1
            if empty == 2:
                return []
            continue
        empty = 0
        if now >= give_up_at:
            return sorted(alive)
        for pid in alive:
            if now >= kill_at:
                _send(pid, signal.SIGKILL)
            elif pid not in told and pid not in spared:
                told.add(pid)
                _send(pid, signal.SIGTERM)
                _send(pid, signal.SIGCONT)  # a stopped process takes no signal but this and SIGKILL
        time.sleep(0.02)


def main(prefix: str) -> None:
    """Hold the pipe until it ends, then end every group that is still registered and every marked process."""
    # Not a child of the kernel: user code that waits for all its children must not wait for this one, and
    # ipykernel kills its children at shutdown.
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, tuple[str, bytes | None]] = {}
    pending = b""
    while chunk := os.read(0, 65_536):
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"+"):
                number_text, _, token = line[1:].decode().partition(" ")
                groups[int(number_text)] = (token, start_time(int(number_text)))
            elif line.startswith(b"-"):
                groups.pop(int(line[1:]), None)
    # A number whose leader is now another process was free in between: its group is gone.
    sessions = [pgid for pgid, (_, since) in groups.items() if start_time(pgid) in (None, since)]
    markers = [marks(prefix, prefix=True), *(marks(token) for token, _ in groups.values() if token)]
    end(sessions, markers)


if __name__ == "__main__":
    main(sys.argv[1])
