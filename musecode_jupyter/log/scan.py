"""Reading a journal record by record, and judging damage: an unfinished last batch, or something worse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

from musecode_jupyter.log.events import GENESIS, SEAL_BYTES, Event, chain, parse_line, split_line
from musecode_jupyter.runtime.errors import LogError

MAX_BATCH_BYTES = 4 << 20
# One batch, one record over it, and room for a file system that extended the file before it filled it.
MAX_TAIL_BYTES = 4 * MAX_BATCH_BYTES
_MAX_LINE = 1 << 20
_MAX_TRIALS = 200_000
# Length of `,"blobs":{}` and what follows it.
_PLAIN_END = 11 + SEAL_BYTES + 1
_SEGMENT = re.compile(r"[0-9]{6,}\.jsonl\Z")
_START = re.compile(rb'\{"v":[0-9]+,"seq":')
_HEAD = re.compile(rb'\{"v":[0-9]+,"seq":([0-9]{1,18}),"ts":"[^"]{0,64}","gen":[0-9]{1,18},"b":([0-9]{1,18}),')
_CLAIM = re.compile(rb'"h":"([0-9a-f]{32})')
_SEAL = re.compile(rb',"h":"[0-9a-f]{32}"\}')
_HEX = re.compile(rb"[0-9a-f]{32}")


class Record(NamedTuple):
    """A good record: its event, spilled fields still in their blobs, and where its line lies, in bytes."""

    event: Event
    segment: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that are not the records that were written.

    `resumed` says that good records follow, so that this cannot be an unfinished last batch.
    """

    segment: int
    offset: int
    size: int
    last_good_seq: int
    text: str
    resumed: bool

    @property
    def segment_name(self) -> str:
        """Name of the segment's file."""
        return segment_name(self.segment)


def segment_name(number: int) -> str:
    """Name of the file of a segment, counted from 1."""
    return f"{number:06d}.jsonl"


def segments(folder: Path) -> list[int]:
    """Numbers of the segments of session `folder`, in order.

    Raises
    ------
    LogError
        There is no journal.
    """
    try:
        names = [path.name for path in (folder / "journal").iterdir()]
    except OSError as problem:
        raise LogError(f"there is no readable session in {folder} ({problem.strerror}); check its id") from None
    return sorted(int(name[:-6]) for name in names if _SEGMENT.match(name))


class Scanner:
    """A position in a journal, moved forward over good records by `records`, which may be called again.

    Of the last good record: `seq`, `h`, `batch`, `generation`, and its end as `segment` and `offset` (bytes).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seq = 0
        self.h = GENESIS
        self.batch = 0
        self.generation = 0
        self.segment = 1
        self.offset = 0
        self.unfinished = 0
        """Bytes of a line without its newline at the very end: a write under way, or one that was cut off."""

    def records(self) -> Iterator[Record | Damage]:
        """Good records from here on, and the damage between and after them. Memory is bounded."""
        self.unfinished = 0
        present = segments(self.folder)
        last = present[-1] if present else 0
        for number in range(self.segment, last + 1):
            if number != self.segment:
                self.segment, self.offset = number, 0
            try:
                file = (self.folder / "journal" / segment_name(number)).open("rb")
            except FileNotFoundError:
                yield Damage(number, 0, 0, self.seq, "the segment is missing", resumed=True)
                self.h = ""
                continue
            with file:
                yield from self._segment(file, number == last)

    def pass_over(self, seq: int, h: str) -> Iterator[tuple[bytes | None, int, int]]:
        """The first `seq` records by their hashes alone, if that of the last of them is `h`: its line, segment, offset.

        Only at the beginning. Such records are byte for byte those that somebody found good before, since each hash
        stands for all bytes up to it. Records with blobs give their lines, others None. Ends where a record does not
        follow the one before it; the position moves only once the last of them has come.
        """
        own, count, begin = GENESIS.encode("ascii"), 0, 0
        for number in segments(self.folder):
            offset = 0
            with (self.folder / "journal" / segment_name(number)).open("rb") as file:
                while line := file.readline(_MAX_LINE):
                    own = blake2b(own + line[: -SEAL_BYTES - 1], digest_size=16).hexdigest().encode("ascii")
                    if line[-SEAL_BYTES - 1 :] != b',"h":"%b"}\n' % own:
                        return
                    count += 1
                    begin, offset = offset, offset + len(line)
                    if count == seq:
                        if own.decode("ascii") == h:
                            self._jump(line, number, offset)
                            yield line, number, begin
                        return
                    yield line if line[-_PLAIN_END : -SEAL_BYTES - 1] != b',"blobs":{}' else None, number, begin

    def _jump(self, line: bytes, segment: int, offset: int) -> None:
        event = parse_line(line)
        self.seq, self.h, self.batch, self.generation = event.seq, event.h, event.b, event.gen
        self.segment, self.offset = segment, offset

    def _segment(self, file: BinaryIO, is_last: bool) -> Iterator[Record | Damage]:
        file.seek(self.offset)
        while line := file.readline(_MAX_LINE):
            if is_last and not line.endswith(b"\n") and len(line) < _MAX_LINE:
                if isinstance(self._check(line[:-1] + b"\n", self.h), Event):
                    # No write that is cut off leaves this: after a record nothing but its newline is written.
                    yield self._damage(len(line), "the record's newline is another byte", resumed=False)
                else:
                    self.unfinished = len(line)
                return
            found = self._follows(line) or self._check(line, self.h)
            if type(found) is Event:
                yield self._advance(found, len(line))
                continue
            assert isinstance(found, str)
            damage, event, length = self._resynchronise(file, line, found)
            yield damage
            if event is None:
                if is_last:
                    return
                self.offset += damage.size
                # The next segment can only be trusted by its own chain, from its first line on.
                self.h = ""
                return
            self.offset += damage.size
            yield self._advance(event, length)

    def _advance(self, event: Event, length: int) -> Record:
        record = Record(event, self.segment, self.offset, length)
        self.seq, self.h, self.batch, self.generation = event.seq, event.h, event.b, event.gen
        self.offset += length
        return record

    def _follows(self, line: bytes) -> Event | None:
        """What `_check` says of a good record, in half the time; nothing of one that is not, or may not be."""
        h = chain(self.h, line[: -SEAL_BYTES - 1])
        if not self.h or not line.endswith(b',"h":"%b"}\n' % h.encode("ascii")):
            return None
        try:
            event = parse_line(line)
        except ValueError:
            return None
        follows = event.seq == self.seq + 1 and (event.b == self.batch or event.b == self.batch + 1)
        return event if follows else None

    def _check(self, line: bytes, previous: str) -> Event | str:
        """The event, if the line is the record that follows `previous`; else what is wrong with it."""
        parts = split_line(line[:-1]) if line.endswith(b"\n") else None
        if parts is None:
            return "the line does not end as a record does"
        # An empty `previous` follows a segment that is damaged to its end.
        if previous and chain(previous, parts[0]) != parts[1]:
            return "the hash does not match the bytes of the record and of those before it"
        try:
            event = parse_line(line)
        except ValueError as problem:
            return str(problem)
        if previous and event.seq != self.seq + 1:
            return f"event {event.seq} follows event {self.seq}"
        if previous and event.b != self.batch and event.b != self.batch + 1:
            return f"batch {event.b} follows batch {self.batch}"
        return event

    def _resynchronise(self, file: BinaryIO, bad: bytes, text: str) -> tuple[Damage, Event | None, int]:
        """From a bad line on to the next record that continues the line before it."""
        size = len(bad)
        before = bad
        while line := file.readline(_MAX_LINE):
            parts = split_line(line[:-1])
            if parts is not None and any(chain(h, parts[0]) == parts[1] for h in {self.h, *self._hashes(before)} if h):
                with suppress(ValueError):
                    event = parse_line(line)
                    if event.seq > self.seq:
                        return self._damage(size, text, resumed=True), event, len(line)
            size += len(line)
            before = line
        return self._damage(size, text, resumed=False), None, 0

    def _damage(self, size: int, text: str, *, resumed: bool) -> Damage:
        return Damage(self.segment, self.offset, size, self.seq, text, resumed)

    def _hashes(self, line: bytes) -> set[str]:
        """What a bad line, as it stands, could have as its hash."""
        found = {each.decode("ascii") for each in _CLAIM.findall(line) + _HEX.findall(line[-64:])}
        return found | {chain(self.h, line[:-41])}


def judge_tail(tail: bytes, h: str, seq: int, batch: int) -> str | None:
    """Whether `tail`, all bytes after the last good record, can be an unfinished last batch.

    A batch is written once, after the one before it was synced, and nothing is written after a failure. So no
    record in the tail may continue another record, and what can be read of them must belong to one batch, the
    last good record's or the next, and to the place after that record.

    Parameters
    ----------
    tail : bytes
        From the first bad record on, to the end of the last segment.
    h, seq, batch
        Of the last good record.

    Returns
    -------
    str or None
        Why it cannot be one; none if it can.
    """
    if len(tail) > MAX_TAIL_BYTES:
        return f"more than {MAX_TAIL_BYTES} damaged bytes are not one batch"
    pieces: list[bytes] = []
    claims = {each.decode("ascii") for each in _CLAIM.findall(tail)}
    for number, line in enumerate(tail.split(b"\n")):
        starts = [match.start() for match in _START.finditer(line)]
        cuts = [0, *(start for start in starts if start), len(line)]
        pieces += [line[begin:end] for begin, end in pairwise(cuts) if end > begin]
        claims |= {each.decode("ascii") for each in _HEX.findall(line[-64:])}
        if number == 0:
            claims |= {chain(h, line[:-40])}
    if len(pieces) * (len(claims) + 1) > _MAX_TRIALS:
        return "there are more damaged records than one batch holds"
    batches: set[int] = set()
    for number, piece in enumerate(pieces):
        seals = list(_SEAL.finditer(piece))
        if seals:
            body, own = piece[: seals[-1].start()], seals[-1].group()[6:38].decode("ascii")
            # The first one may be whole and lack its newline only.
            before = claims - {own, h} if number == 0 else (claims - {own}) | {h}
            if any(chain(each, body) == own for each in before):
                return "records that were written after the damaged ones are whole"
        if head := _HEAD.match(piece):
            if number == 0 and int(head[1]) != seq + 1:
                return f"event {int(head[1])} stands after event {seq}"
            batches.add(int(head[2]))
    if len(batches) > 1 or not batches <= {batch, batch + 1}:
        return f"the damaged records are of batch {', '.join(map(str, sorted(batches)))}, after batch {batch}"
    return None
