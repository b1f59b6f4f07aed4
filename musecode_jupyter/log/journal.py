"""The one writer of a session's journal: group commit in its own thread, recovery of an unfinished end."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from musecode_jupyter.log.blobs import BlobStore, sync_folder, write_all
from musecode_jupyter.log.events import SCHEMA_VERSION, seal
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.log.lock import SessionLock
from musecode_jupyter.log.scan import (
    MAX_BATCH_BYTES,
    MAX_TAIL_BYTES,
    Damage,
    Record,
    Scanner,
    judge_tail,
    segment_name,
    segments,
)
from musecode_jupyter.log.snapshot import keep
from musecode_jupyter.runtime.errors import LogDamaged, LogError, LogReadOnly

SEGMENT_BYTES = 64 << 20
_MAX_BATCH = 1024
_OFFSET_BITS = 40


class Draft(NamedTuple):
    """A record without its batch number and hash, and the blobs that must be durable before it.

    `snapshot` is the state before it, to be kept once the record is durable (see `log/snapshot.py`); empty: none.
    """

    seq: int
    head: bytes
    tail: bytes
    blobs: tuple[bytes, ...] = ()
    snapshot: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of drafts up to `last_seq`: where their lines begin, or why they were not written."""

    last_seq: int
    positions: array[int]
    problem: LogReadOnly | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """Bytes moved from the end of the journal to `quarantine` (a path relative to the session folder)."""

    segment: str
    offset: int
    size: int
    quarantine: str


class Disk:
    """The two system calls whose failure ends all writing."""

    def write(self, descriptor: int, content: memoryview) -> int:
        """Write some of `content`; the number of bytes taken."""
        return os.write(descriptor, content)

    def sync(self, descriptor: int) -> None:
        """Bring the file's bytes and size to the medium."""
        if hasattr(fcntl, "F_FULLFSYNC"):
            # On macOS fsync stops at the drive's own cache.
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        elif hasattr(os, "fdatasync"):
            os.fdatasync(descriptor)
        else:
            os.fsync(descriptor)


def pack(segment: int, offset: int) -> int:
    """Segment and offset in one integer of 64 bits."""
    return segment << _OFFSET_BITS | offset


def unpack(position: int) -> tuple[int, int]:
    """Segment and offset of a `pack`ed position."""
    return position >> _OFFSET_BITS, position & ((1 << _OFFSET_BITS) - 1)


class Journal:
    """The journal of a session, open for writing; owner of its lock and of the writer thread.

    `on_settled` is called from the writer thread, once per batch, in order. After the first failed write or
    sync nothing is written any more: the batch, and all later ones, settle with a `LogReadOnly`.
    """

    def __init__(
        self,
        folder: Path,
        lock: SessionLock,
        end: Scanner,
        on_settled: Callable[[Settled], None],
        *,
        segment_bytes: int = SEGMENT_BYTES,
        disk: Disk | None = None,
    ) -> None:
        self.folder = folder
        self.blobs = BlobStore(folder / "blobs")
        self.problem: LogReadOnly | None = None
        self._lock = lock
        self._on_settled = on_settled
        self._segment_bytes = segment_bytes
        self._disk = disk or Disk()
        self._h = end.h
        self._batch = end.batch
        self._segment = end.segment
        self._size = end.offset
        self._taken: tuple[int, str, str] | None = None
        self._descriptor = self._open_segment()
        self._queue: SimpleQueue[list[Draft] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"log {folder.name}", daemon=True)
        self._thread.start()

    @property
    def held(self) -> bool:
        """False after `close`, and in a forked child, which has neither lock nor writer thread."""
        return self._lock.held

    def submit(self, drafts: list[Draft]) -> None:
        """Queue records, to be synced together where they fit one batch; they are durable when they settle.

        Raises
        ------
        LogReadOnly
            Nothing is written any more.
        """
        if self.problem is not None:
            raise self.problem
        if not self._lock.held:
            raise LogReadOnly(
                f"the log of session {self.folder.name} is closed, or this is a forked child of its writer; "
                "write from the process that opened it"
            )
        self._queue.put(drafts)

    def close(self) -> None:
        """Write what is queued, end the thread, release the lock. Without effect in a forked child."""
        if self._lock.held:
            self._queue.put(None)
            self._thread.join()
            self._close_segment()
            self._lock.release()

    def _run(self) -> None:
        waiting: deque[Draft] = deque()
        stop = False
        while not stop or waiting:
            if not waiting:
                drafts = self._queue.get()
                stop = drafts is None
                waiting.extend(drafts or ())
            while not stop and len(waiting) < _MAX_BATCH:
                try:
                    drafts = self._queue.get_nowait()
                except Empty:
                    break
                stop = drafts is None
                waiting.extend(drafts or ())
            batch: list[Draft] = []
            size = 0
            while waiting and len(batch) < _MAX_BATCH and size < MAX_BATCH_BYTES:
                batch.append(waiting.popleft())
                size += len(batch[-1].tail)
            if batch:
                self._settle(batch)

    def _settle(self, batch: list[Draft]) -> None:
        positions: array[int] = array("Q")
        if self.problem is None:
            try:
                positions = self._commit(batch)
            except OSError as problem:
                self.problem = self._failure(problem)
            except BaseException as problem:
                self.problem = LogReadOnly(
                    f"the writer of session {self.folder.name} stopped ({problem!r}); resume it again"
                )
        self._on_settled(Settled(batch[-1].seq, positions, self.problem))
        taken, self._taken = self._taken, None
        if taken is not None and self.problem is None:
            keep(self.folder, *taken)

    def _commit(self, batch: list[Draft]) -> array[int]:
        contents = [content for draft in batch for content in draft.blobs]
        if contents:
            self.blobs.put_all(contents)
        number = self._batch + 1
        mark = b"%d" % number
        lines: list[bytes] = []
        starts: list[int] = []
        size = 0
        h = self._h
        for draft in batch:
            h, line = seal(h, draft.head + mark + draft.tail)
            if draft.snapshot:
                self._taken = (draft.seq, h, draft.snapshot)
            lines.append(line)
            starts.append(size)
            size += len(line)
        if self._size and self._size + size > self._segment_bytes:
            self._close_segment()
            self._segment, self._size = self._segment + 1, 0
            self._descriptor = self._open_segment()
        view = memoryview(b"".join(lines))
        while view:
            view = view[self._disk.write(self._descriptor, view) :]
        self._disk.sync(self._descriptor)
        status = os.fstat(self._descriptor)
        if status.st_nlink == 0:
            raise OSError(errno.ENOENT, "the session's folder was removed")
        if status.st_size != self._size + size:
            raise OSError(errno.EBUSY, "another program changed the journal")
        base = pack(self._segment, self._size)
        self._h, self._batch, self._size = h, number, self._size + size
        return array("Q", [base + start for start in starts])

    def _open_segment(self) -> int:
        path = self.folder / "journal" / segment_name(self._segment)
        new = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.lseek(descriptor, self._size, os.SEEK_SET)
            if new:
                os.fsync(descriptor)
                sync_folder(path.parent)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _close_segment(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _failure(self, problem: OSError) -> LogReadOnly:
        if problem.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            advice = "free some space"
        else:
            advice = f"check the disk that holds {self.folder}"
        return LogReadOnly(
            f"the log of session {self.folder.name} could not be written ({problem.strerror}): the session "
            f"is read-only and nothing more is run; {advice}, then start again and resume it"
        )


def recover(scanner: Scanner, visit: Callable[[Record], None]) -> Recovery | None:
    """Check the journal of a session whose lock is held, and cut off an unfinished last batch.

    Parameters
    ----------
    scanner : Scanner
        At the beginning, or after records that are known to be good; moved on to the last good record.
    visit : callable
        Called with every good record, in order.

    Raises
    ------
    LogDamaged
        The damage is more than an unfinished last batch.
    LogReadOnly
        The journal holds what only a newer version understands, or cannot be written.
    """
    folder = scanner.folder
    foreign: str | None = None
    damage: Damage | None = None
    for found in scanner.records():
        if isinstance(found, Damage):
            damage = found
            break
        foreign = foreign or unknown(found)
        visit(found)
    if foreign is not None:
        raise LogReadOnly(
            f"session {folder.name} was written by a newer version ({foreign}); update this program to go on "
            "with it, or open the session for reading"
        )
    if damage is None and scanner.unfinished:
        damage = Damage(scanner.segment, scanner.offset, scanner.unfinished, scanner.seq, "the line is cut off", False)
    if damage is None:
        return None
    path = folder / "journal" / damage.segment_name
    refusal = damage.text if damage.resumed else None
    if refusal is None and damage.segment != segments(folder)[-1]:
        refusal = f"{damage.text}, and another segment follows"
    if refusal is None:
        with path.open("rb") as file:
            file.seek(damage.offset)
            tail = file.read(min(damage.size, MAX_TAIL_BYTES + 1))
            refusal = judge_tail(tail, scanner.h, scanner.seq, scanner.batch)
    if refusal is not None:
        raise damaged(folder, damage, refusal)
    try:
        return _quarantine(folder, path, damage)
    except OSError as problem:
        raise LogReadOnly(
            f"the end of {path} is torn and cannot be repaired ({problem.strerror}); free some space or make "
            "the folder writable, or open the session for reading"
        ) from problem


def unknown(record: Record) -> str | None:
    """What of a record this version does not understand; none if it understands it."""
    event = record.event
    if event.v > SCHEMA_VERSION:
        return f"schema {event.v} at event {event.seq}"
    return None if event.kind in KINDS else f"kind {event.kind!r} at event {event.seq}"


def damaged(folder: Path, damage: Damage, text: str) -> LogDamaged:
    """The error for damage that must not be repaired."""
    return LogDamaged(
        f"the journal of session {folder.name} is damaged at byte {damage.offset} of {damage.segment_name}: "
        f"{text}. Events up to {damage.last_good_seq} are good and can be read; `jupyter musecode verify "
        f"{folder.name}` says what is wrong, and `jupyter musecode fork {folder.name} {damage.last_good_seq}` makes a "
        "new session that goes on from there",
        segment=damage.segment_name,
        offset=damage.offset,
        last_good_seq=damage.last_good_seq,
    )


def _quarantine(folder: Path, path: Path, damage: Damage) -> Recovery:
    store = folder / "quarantine"
    if not store.is_dir():
        store.mkdir(mode=0o700)
        sync_folder(folder)
    number = 1 + sum(1 for _ in store.glob("*.bytes"))
    kept = store / f"{path.stem}-{damage.offset}-{number}.bytes"
    with path.open("rb") as file:
        file.seek(damage.offset)
        content = file.read()
    descriptor = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(store)
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, damage.offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Recovery(path.name, damage.offset, len(content), f"quarantine/{kept.name}")


def create_folders(folder: Path) -> None:
    """Make the folder of a new session, durable with its entries.

    Raises
    ------
    LogError
        There is a session already.
    LogReadOnly
        The folder cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "journal").mkdir(mode=0o700)
        (folder / "blobs").mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder)
        sync_folder(folder.parent)
    except FileExistsError:
        raise LogError(f"there is a session in {folder} already; open it, or choose another id") from None
    except OSError as problem:
        raise LogReadOnly(
            f"cannot make the session folder {folder} ({problem.strerror}); choose one that can be written"
        ) from problem
