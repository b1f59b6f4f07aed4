"""Follows a session that another process writes: events as they come, up to its end or to damage; never takes its lock.

What is given out is durable: the reader brings the journal's file to the disk itself before it tells of a line.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from musecode_jupyter.log.blobs import BlobStore
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.lock import is_held
from musecode_jupyter.log.peek import Peek
from musecode_jupyter.log.record import hydrated
from musecode_jupyter.log.scan import Damage, Scanner, segment_name, segments
from musecode_jupyter.runtime.errors import LogError

LAST = 10
_BATCH = 256


def tail(folder: Path, count: int = LAST, wait: Callable[[], object] | None = None) -> Iterator[Event | Damage]:
    """The last `count` events and, with `wait`, those that come, until the session is closed or nobody writes it.

    The chain is checked from the first of them on, and damage ends it: the last thing given is the damage. `wait` is
    called between two looks at the journal. Raises LogError if there is no journal.
    """
    scanner, closed = _before_the_last(folder, count)
    blobs = BlobStore(folder / "blobs")
    looked: object = None
    while True:
        # Asked first: what a writer wrote before it ended is then seen by the look that follows.
        held = is_held(folder)
        end = _end(folder)
        if end != looked:
            looked = end
            came = scanner.records()
            while batch := list(islice(came, _BATCH)):
                _to_disk(folder)
                for found in batch:
                    if isinstance(found, Damage):
                        yield found
                        return
                    closed = found.event.kind == "session.closed" or (closed and found.event.kind == "state.digest")
                    yield _restored(found.event, blobs)
        elif closed:
            return
        if wait is None or not held:
            return
        wait()


def _before_the_last(folder: Path, count: int) -> tuple[Scanner, bool]:
    """A scanner that goes on with the last `count` events that can be read, and whether they end the session."""
    peek = Peek(folder)
    scanner = Scanner(folder)
    newest = next((event for event in peek.backwards() if event.kind != "state.digest"), None)
    before = next(islice(peek.backwards(), count, None), None)
    place = None if before is None else peek.end_of(before.seq)
    if before is not None and place is not None:
        scanner.seq, scanner.h, scanner.batch, scanner.generation = before.seq, before.h, before.b, before.gen
        scanner.segment, scanner.offset = place
    return scanner, newest is not None and newest.kind == "session.closed"


def _end(folder: Path) -> tuple[int, int]:
    """Number and size of the newest segment: where nothing was written, they are as before."""
    numbers = segments(folder)
    if not numbers:
        return 0, 0
    with contextlib.suppress(FileNotFoundError):
        return numbers[-1], (folder / "journal" / segment_name(numbers[-1])).stat().st_size
    return numbers[-1], -1


def _to_disk(folder: Path) -> None:
    """Bring the newest segment to the disk; the writer did so with the others when it went on to that one."""
    descriptor = os.open(folder / "journal" / segment_name(segments(folder)[-1]), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as problem:
        # Where nothing can be written, all is on the disk.
        if problem.errno not in {errno.EROFS, errno.EINVAL, errno.ENOTSUP}:
            raise LogError(f"the disk that holds {folder} fails ({problem.strerror}); verify the session") from problem
    finally:
        os.close(descriptor)


def _restored(event: Event, blobs: BlobStore) -> Event:
    try:
        return hydrated(event, blobs)
    except LogError:
        return event
