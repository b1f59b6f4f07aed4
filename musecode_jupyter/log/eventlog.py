"""The event log of a session: events posted, made durable, read back, and folded into its state."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from musecode_jupyter.log.blobs import BlobStore
from musecode_jupyter.log.events import MAX_RECORD_BYTES, SCHEMA_VERSION, Event, parse_line
from musecode_jupyter.log.fold import Comparison, Fold, Reducer
from musecode_jupyter.log.journal import (
    SEGMENT_BYTES,
    Disk,
    Draft,
    Journal,
    Settled,
    create_folders,
    damaged,
    pack,
    recover,
    unknown,
    unpack,
)
from musecode_jupyter.log.kinds import LogRecovered, SecretRedacted, StateDigest
from musecode_jupyter.log.lock import SessionLock
from musecode_jupyter.log.outputs import keep
from musecode_jupyter.log.payload import Payload
from musecode_jupyter.log.record import checked, draft, hydrated, redacted
from musecode_jupyter.log.redaction import Redactor, redact_file
from musecode_jupyter.log.scan import Damage, Record, Scanner, segment_name, segments
from musecode_jupyter.log.snapshot import SNAPSHOT_EVERY, load, prepared
from musecode_jupyter.runtime.errors import LogError, LogReadOnly

DIGEST_EVERY = 256
# At the opening of a long session the digests in this many bytes at its end are compared: one at least, since the 256
# records from one to the next have fewer bytes. If the fold agrees there, it has what an earlier one says within it.
COMPARED_BYTES = DIGEST_EVERY * MAX_RECORD_BYTES
_MISSING = 2**64 - 1


class EventLabeller(Protocol):
    """Says with which label an event is written."""

    def label(self, kind: str, data: Mapping[str, Any], agent: str, cause: Iterable[int]) -> str:
        """The label of an event that is about to be written, as its envelope says it."""
        ...

    def wrote(self, event: Event) -> None:
        """Told of each event that was posted."""
        ...


class EventLog:
    """The log of one session, used from one thread; made by `create`, `open` or `read`.

    `post` numbers and folds an event at once and queues it; it is durable when `append` or a later `flush`
    returns and when `on_durable` says so. After a failed write every post raises `LogReadOnly`, and `problem`
    holds that error. Other threads reach the log through the loop of its thread only.
    """

    def __init__(
        self,
        folder: Path,
        reducers: Iterable[Reducer[Any]],
        redactor: Redactor,
        now: Callable[[], datetime] | None,
    ) -> None:
        self.folder = folder
        self.labeller: EventLabeller | None = None
        """Gives events their data labels; without one they have those that they are posted with."""
        self.damage: list[Damage] = []
        """Bytes that a reader found damaged, in order; always empty for a writer."""
        self.problems: list[str] = []
        """What else a reader found wrong (blobs, state digests), a line each; always empty for a writer."""
        self.last_seq = 0
        self.generation = 0
        self._reducers = tuple(reducers)
        self._fold = Fold(self._reducers)
        self._redactor = redactor
        self._now = now
        self._blobs = BlobStore(folder / "blobs")
        self._scanner = Scanner(folder)
        self._journal: Journal | None = None
        self._positions: array[int] = array("Q")
        self._since_digest = 0
        self._snapshot_every = SNAPSHOT_EVERY
        self._snapshot_at = 0
        self._compared_from = (0, 0)
        self._pending: dict[int, Event] = {}
        self._pending_blobs: dict[int, dict[str, bytes]] = {}
        self._settled: deque[Settled] = deque()
        self._outbox: list[Draft] = []
        self._running: asyncio.AbstractEventLoop | None = None
        self._handing: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._callbacks: list[Callable[[Event], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._problem: LogReadOnly | None = None
        self._thread: int | None = None

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        reducers: Iterable[Reducer[Any]],
        redactor: Redactor,
        now: Callable[[], datetime],
        segment_bytes: int = SEGMENT_BYTES,
        snapshot_every: int = SNAPSHOT_EVERY,
        disk: Disk | None = None,
    ) -> EventLog:
        """Begin the log of a new session in `folder`.

        Raises
        ------
        LogError
            There is a session in that folder already.
        LogReadOnly
            The folder cannot be written.
        """
        create_folders(folder)
        return cls.open(
            folder,
            reducers=reducers,
            redactor=redactor,
            now=now,
            segment_bytes=segment_bytes,
            snapshot_every=snapshot_every,
            disk=disk,
        )

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        reducers: Iterable[Reducer[Any]],
        redactor: Redactor,
        now: Callable[[], datetime],
        segment_bytes: int = SEGMENT_BYTES,
        snapshot_every: int = SNAPSHOT_EVERY,
        disk: Disk | None = None,
    ) -> EventLog:
        """Go on with a session: take its lock, check every record, fold, cut off an unfinished last batch.

        What was cut off is in `quarantine/` and announced by a `log.recovered` event. What is folded begins at the
        snapshot, if there is a good one; the next is taken `snapshot_every` events later at the earliest.

        Raises
        ------
        LogLocked
            A live process writes this session.
        LogDamaged
            A record was changed, or the fold differs from a state digest near the end (`verify` compares them all).
        LogReadOnly
            The folder cannot be written, or a newer version wrote the log.
        LogError
            There is no session in `folder`.
        """
        lock = SessionLock.acquire(folder)
        previous = lock.previous.generation if lock.previous is not None else 0
        try:
            # At once: the journal may be long, and those who look at the lock file are to see that it is held.
            lock.sign(previous)
            log = cls(folder, reducers, redactor, now)
            log._blobs.sweep()
            log._compared_from = log._last_bytes()
            log._snapshot_every = snapshot_every
            log._scanner = log._at_snapshot() or log._scanner
            recovery = recover(log._scanner, log._visit_strictly)
            log.generation = 1 + max(log._scanner.generation, previous)
            lock.sign(log.generation)
            log._journal = log._start(lock, segment_bytes, disk)
        except OSError as problem:
            lock.release()
            raise LogReadOnly(
                f"cannot go on writing session {folder.name} ({problem.strerror}); check the disk that holds "
                f"{folder}, or open the session for reading"
            ) from problem
        except BaseException:
            lock.release()
            raise
        if recovery is not None:
            log._record_own(
                "log.recovered",
                LogRecovered(
                    segment=recovery.segment,
                    offset=recovery.offset,
                    bytes=recovery.size,
                    quarantine=recovery.quarantine,
                ),
            )
        return log

    @classmethod
    def read(cls, folder: Path, *, reducers: Iterable[Reducer[Any]] = ()) -> EventLog:
        """Open for reading; works beside a writer and with a damaged log (see `damage` and `problems`).

        Raises
        ------
        LogError
            There is no session in `folder`.
        """
        log = cls(folder, reducers, Redactor(), None)
        log._compared_from = log._last_bytes()
        log.refresh()
        return log

    def _start(self, lock: SessionLock, segment_bytes: int, disk: Disk | None) -> Journal:
        self._find_loop()
        return Journal(self.folder, lock, self._scanner, self._when_settled, segment_bytes=segment_bytes, disk=disk)

    @property
    def writable(self) -> bool:
        """Whether `post` can succeed."""
        return self._journal is not None and self._journal.held and self.problem is None

    @property
    def problem(self) -> LogReadOnly | None:
        """The failure that ended writing, if one did."""
        return self._problem or (self._journal.problem if self._journal is not None else None)

    @property
    def durable_seq(self) -> int:
        """The last event that is known to be on the disk."""
        return len(self._positions)

    def post(
        self,
        kind: str,
        data: Payload | Mapping[str, Any],
        *,
        agent: str = "",
        turn: int = 0,
        cause: Iterable[int] = (),
        label: str = "",
        blobs: Mapping[str, bytes] | None = None,
    ) -> Event:
        """Record an event: checked, redacted, numbered and folded now, written soon.

        Parameters
        ----------
        kind, data
            A kind of `log.kinds.KINDS` and its payload.
        agent, turn, cause, label
            As in the envelope; `cause` holds the seqs of the events that led to this one. `label` is the least that
            the event has; "standard" says that it was made of nothing higher, whatever led to it. What holds a secret
            that was cut out of it is private.
        blobs : mapping of str to bytes
            Raw contents to be durable before the event, by name; not redacted.

        Returns
        -------
        Event
            As a reader will see it, except that `b` and `h` are not known yet (0 and empty). Its data must
            not be changed.

        Raises
        ------
        LogError
            Unknown kind, bad data, or a record that cannot be made small enough; nothing was recorded.
        LogReadOnly
            Nothing can be written any more.
        """
        if self._thread is None:
            self._thread = threading.get_ident()
        assert self._thread == threading.get_ident(), "the log is used from the thread of its loop only"
        self._assert_writable()
        text, clean, hits = redacted(self._redactor, kind, checked(kind, data))
        causes = tuple(cause)
        label = self._labelled(kind, clean, agent, causes, "private" if hits else label)
        event, record = draft(
            self._event(kind, clean, agent=agent, turn=turn, cause=causes, label=label), text, blobs or {}
        )
        self._record(event, record)
        if self.labeller is not None:
            self.labeller.wrote(event)
        if hits:
            self._record_own(
                "secret.redacted",
                SecretRedacted(patterns=hits, where=f"data of {kind}"),
                agent=agent,
                turn=turn,
                cause=(event.seq,),
            )
        return event

    async def append(
        self,
        kind: str,
        data: Payload | Mapping[str, Any],
        *,
        agent: str = "",
        turn: int = 0,
        cause: Iterable[int] = (),
        label: str = "",
        blobs: Mapping[str, bytes] | None = None,
    ) -> Event:
        """`post`, and return when the event is durable. Raises as `post`; written even if cancelled."""
        event = self.post(kind, data, agent=agent, turn=turn, cause=cause, label=label, blobs=blobs)
        await self._durable(event.seq)
        return event

    async def flush(self) -> None:
        """Return when every event that was posted so far is durable.

        Raises
        ------
        LogReadOnly
            A write failed.
        """
        await self._durable(self.last_seq)

    async def close(self, reason: str = "closed") -> None:
        """Write a state digest, flush, end the writer and release the lock; the log can still be read.

        `reason` is told to those who post later. A log that has become read-only is closed without an error.
        """
        if self._journal is None or not self._journal.held:
            return
        try:
            if self.problem is None:
                if self._since_digest:
                    self._post_digest(last=True)
                await self.flush()
        except LogReadOnly:
            pass
        finally:
            self._hand_over()
            self._journal.close()
            self._drain()
            self._problem = self.problem or LogReadOnly(
                f"the log of session {self.folder.name} is {reason}; resume the session to go on"
            )

    def on_durable(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call `callback` on the loop for each event once it is durable, in order; returns what ends that."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None

    def events(self, since: int = 0) -> Iterator[Event]:
        """Events after `since`, from the disk, and those that are posted but not yet written.

        Memory is bounded. A reader sees what was written since it was opened.

        Raises
        ------
        LogError
            A field that was spilled to a blob cannot be read back; a reader gets it as None, and a problem.
        """
        self.refresh()
        last = self.last_seq
        seq = since
        while seq < last:
            seq += 1
            if seq > len(self._positions):
                if (event := self._pending.get(seq)) is not None:
                    yield event
                    continue
                self._drain()
                if seq > len(self._positions):
                    return
            while self._positions[seq - 1] == _MISSING:
                seq += 1
            begin = unpack(self._positions[seq - 1])
            for event in self._read(begin, min(last, len(self._positions))):
                seq = event.seq
                yield self._restored(event)

    def get(self, seq: int) -> Event:
        """One event.

        Raises
        ------
        LogError
            There is no such event, or a field of it cannot be read back.
        """
        self.refresh()
        if seq in self._pending:
            return self._pending[seq]
        if not 0 < seq <= len(self._positions) or self._positions[seq - 1] == _MISSING:
            raise LogError(f"session {self.folder.name} has no event {seq}; the last one is {self.last_seq}")
        return hydrated(next(self._read(unpack(self._positions[seq - 1]), seq)), self._blobs)

    def keep_file(self, path: Path) -> str:
        """Cut secrets out of a text file in place, make it durable and answer its digest, for an event. Blocks.

        A file without secrets is left as it is; of a missing one the digest is empty.
        """
        redact_file(self._redactor, path)
        return keep(path)

    def blob(self, digest: str) -> bytes:
        """The bytes of a blob, also of one that is not written yet.

        Raises
        ------
        LogError
            It is missing or damaged.
        """
        self._drain()
        for contents in self._pending_blobs.values():
            if digest in contents:
                return contents[digest]
        return self._blobs.get(digest)

    def state(self, name: str) -> BaseModel:
        """The slice of the reducer called `name` after the last posted event; not to be changed."""
        return self._fold.state(name)

    def digests(self) -> tuple[str, dict[str, str]]:
        """Digest of the state after the last posted event, whole and of each slice by name."""
        return self._fold.digests()

    def shapes(self) -> dict[str, str]:
        """Shape of each slice of the state by name."""
        return self._fold.shapes()

    def refresh(self) -> int:
        """Take in what has been written since; the last seq. Needed by readers only, cheap for the writer."""
        if self._journal is not None:
            self._drain()
            return self.last_seq
        for found in self._scanner.records():
            if isinstance(found, Record):
                if (problem := self._visit(found)) is not None:
                    self.problems.append(problem)
            elif found not in self.damage:
                self.damage.append(found)
        self.generation = self._scanner.generation
        return self.last_seq

    def _find_loop(self) -> None:
        try:
            self._loop = self._running = asyncio.get_running_loop()
        except RuntimeError:
            self._running = None

    def _hand_over(self) -> None:
        self._handing = None
        if self._outbox and self._journal is not None:
            drafts, self._outbox = self._outbox, []
            # A failure is told to those who wait when the batch before settles, and raised by the next post.
            with contextlib.suppress(LogReadOnly):
                self._journal.submit(drafts)

    def _event(
        self, kind: str, data: Mapping[str, Any], *, agent: str, turn: int, cause: tuple[int, ...], label: str
    ) -> Event:
        assert self._now is not None
        now = self._now()
        if now.tzinfo is not UTC:
            now = now.astimezone(UTC)
        ts = f"{now.isoformat(timespec='milliseconds')[:-6]}Z"
        return Event(SCHEMA_VERSION, self.last_seq + 1, ts, self.generation, 0, agent, turn, cause, kind, label, data)

    def _labelled(self, kind: str, data: Mapping[str, Any], agent: str, cause: tuple[int, ...], label: str) -> str:
        """How the envelope says the label of an event; an empty one stands for standard."""
        if label in {"", "private"} and self.labeller is not None:
            label = label or self.labeller.label(kind, data, agent, cause)
        return "" if label == "standard" else label

    def _record_own(
        self,
        kind: str,
        data: Payload,
        *,
        agent: str = "",
        turn: int = 0,
        cause: tuple[int, ...] = (),
        snapshot: str = "",
    ) -> None:
        text, clean, _ = redacted(Redactor(), kind, checked(kind, data))
        event = self._event(kind, clean, agent=agent, turn=turn, cause=cause, label="")
        event, record = draft(event, text, {})
        self._record(event, record._replace(snapshot=snapshot) if snapshot else record)

    def _record(self, event: Event, record: Draft) -> None:
        assert self._journal is not None
        try:
            self._fold.apply(event)
        except Exception as problem:
            # The state may be half changed: nothing that is decided from it may be recorded any more.
            self._problem = LogReadOnly(
                f"the state of session {self.folder.name} could not take {event.kind} ({problem!r}); "
                "start again and resume it"
            )
            raise self._problem from problem
        self.last_seq = event.seq
        self._pending[event.seq] = event
        if record.blobs:
            digests = [ref.digest for ref in event.blobs.values()]
            self._pending_blobs[event.seq] = dict(zip(digests, record.blobs, strict=True))
        self._outbox.append(record)
        self._find_loop()
        if self._running is None:
            self._hand_over()
        elif self._handing is not self._running:
            # At the end of this turn of the loop: what is posted in it is synced together.
            self._handing = self._running
            self._running.call_soon(self._hand_over)
        if event.kind == "state.digest":
            self._since_digest = 0
        else:
            self._since_digest += 1
            if self._since_digest >= DIGEST_EVERY - 1:
                self._post_digest()

    def _post_digest(self, *, last: bool = False) -> None:
        digest, slices = self._fold.digests()
        shapes = self._fold.shapes()
        snapshot = ""
        # The longer the session, the longer takes a snapshot: all of them together stay in proportion to it.
        due = self._snapshot_every // 4 if last else max(self._snapshot_every, self.last_seq // 8)
        if self.last_seq - self._snapshot_at >= due:
            self._snapshot_at = self.last_seq + 1
            snapshot = prepared(self._fold.states_text(), shapes)
        data = StateDigest(digest=digest, upto=self.last_seq, slices=slices, shapes=shapes)
        self._record_own("state.digest", data, snapshot=snapshot)

    def _assert_writable(self) -> None:
        if self.problem is not None:
            raise self.problem
        if self._journal is None:
            raise LogReadOnly(f"session {self.folder.name} is open for reading; resume it to go on")
        if not self._journal.held:
            raise LogReadOnly(
                f"this is a forked child; only the process that opened session {self.folder.name} writes it"
            )

    async def _durable(self, seq: int) -> None:
        # In this order: what settles from here on is told to this loop, what has settled before is taken in now.
        self._find_loop()
        self._drain()
        if seq <= len(self._positions):
            return
        if self.problem is not None:
            raise self.problem
        if self._handing is not self._running:
            self._hand_over()
        assert self._loop is not None
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((seq, future))
        await future

    def _when_settled(self, settled: Settled) -> None:
        """Called in the writer's thread."""
        self._settled.append(settled)
        if self._loop is not None:
            # A closed loop has nobody who waits; the next call on the log takes in what has settled.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        while self._settled:
            settled = self._settled.popleft()
            if settled.problem is not None:
                # Never written, so nobody may read them; `last_seq` still counts them.
                self._pending.clear()
                self._pending_blobs.clear()
                self._fail_waiting(settled.problem)
                continue
            first = len(self._positions) + 1
            self._positions.extend(settled.positions)
            for seq in range(first, settled.last_seq + 1):
                event = self._pending.pop(seq)
                self._pending_blobs.pop(seq, None)
                for callback in tuple(self._callbacks):
                    self._call(callback, event)
            while self._waiting and self._waiting[0][0] <= settled.last_seq:
                _, future = self._waiting.popleft()
                if not future.done():
                    future.set_result(None)

    def _fail_waiting(self, problem: LogReadOnly) -> None:
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(problem)

    def _call(self, callback: Callable[[Event], None], event: Event) -> None:
        try:
            callback(event)
        except Exception as problem:
            # One subscriber's fault must not keep an event from the others, nor an append from returning.
            if self._loop is None:
                raise
            self._loop.call_exception_handler(
                {"message": f"a subscriber of the log failed at event {event.seq}", "exception": problem}
            )

    def _read(self, begin: tuple[int, int], last: int) -> Iterator[Event]:
        """Events from the line at `begin` on, up to seq `last` or to the end of the good ones that follow."""
        number, offset = begin
        path = self.folder / "journal" / segment_name(number)
        try:
            file = path.open("rb")
        except OSError as problem:
            raise LogError(f"{path} cannot be read ({problem.strerror}); restore the session's folder") from problem
        with file:
            file.seek(offset)
            while line := file.readline(MAX_RECORD_BYTES + 1):
                try:
                    event = parse_line(line)
                except ValueError as problem:
                    raise LogError(f"{path} changed at byte {offset}: {problem}; verify the session") from None
                offset += len(line)
                yield event
                following = event.seq
                if following >= last or self._positions[following] != pack(number, offset):
                    return

    def _restored(self, event: Event) -> Event:
        try:
            return hydrated(event, self._blobs)
        except LogError as problem:
            if self._journal is not None:
                raise
            if str(problem) not in self.problems:
                self.problems.append(str(problem))
            return event

    def _at_snapshot(self) -> Scanner | None:
        """A scanner at the event of the snapshot, up to which everything is taken in; None if there is no good one."""
        snapshot = load(self.folder, self._fold.shapes())
        if snapshot is None:
            return None
        scanner, positions = Scanner(self.folder), array("Q")
        line: bytes | None = None
        try:
            for line, segment, offset in scanner.pass_over(snapshot.seq, snapshot.h):
                positions.append(pack(segment, offset))
                if line is not None:
                    # As without a snapshot: a field whose blob is gone is told at once.
                    event = hydrated(parse_line(line), self._blobs)
            if scanner.seq != snapshot.seq or event.kind != "state.digest" or event.data["upto"] != event.seq - 1:
                return None
            fold = Fold(self._reducers)
            fold.restore(snapshot.states)
            if fold.compare(event.data) != Comparison((), ()):
                return None
            fold.apply(event)
        except (LogError, ValueError):
            # Told in full by whoever reads the journal from its beginning, as is done now.
            return None
        self._fold, self._positions = fold, positions
        self.last_seq = self._snapshot_at = event.seq
        return scanner

    def _visit(self, record: Record) -> str | None:
        """Take in a record that was read; what is wrong with it beyond its line, if anything is."""
        event = record.event
        if len(self._positions) < event.seq - 1:
            self._positions.extend([_MISSING] * (event.seq - 1 - len(self._positions)))
        self._positions.append(pack(record.segment, record.offset))
        self.last_seq = event.seq
        if unknown(record) is not None:
            return None
        problem = None
        try:
            event = hydrated(event, self._blobs)
            if event.kind == "state.digest":
                self._since_digest = 0
                if (record.segment, record.offset) >= self._compared_from:
                    problem = self._difference(event)
            else:
                self._since_digest += 1
            self._fold.apply(event)
        except LogError as error:
            return str(error)
        except Exception as error:
            # A reducer met what it cannot take, or data of a kind that an older version wrote differently.
            return f"the state cannot take {event.kind} at event {event.seq} ({error!r})"
        return problem

    def _last_bytes(self) -> tuple[int, int]:
        """Segment and offset at which the last `COMPARED_BYTES` of the journal begin."""
        left = COMPARED_BYTES
        for number in reversed(segments(self.folder)):
            size = (self.folder / "journal" / segment_name(number)).stat().st_size
            if size >= left:
                return number, size - left
            left -= size
        return 0, 0

    def _difference(self, event: Event) -> str | None:
        differing = self._fold.compare(event.data).differing
        if event.data["upto"] != event.seq - 1:
            differing = (*differing, "upto")
        if not differing:
            return None
        return f"the state after event {event.seq - 1} differs from its digest in: {', '.join(differing)}"

    def _visit_strictly(self, record: Record) -> None:
        problem = self._visit(record)
        if problem is not None:
            at = Damage(record.segment, record.offset, record.length, record.event.seq - 1, problem, resumed=True)
            raise damaged(self.folder, at, problem)
