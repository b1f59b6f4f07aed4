"""Looks into a journal at places, without reading all of it: the line of an event, lines that hold some bytes, the end.

Nothing is checked here, neither the chain nor the state: what is shown to a reader needs no proof, and a log of
gigabytes or with damage in it is looked into as quickly as any other. `verify` proves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from musecode_jupyter.log.blobs import BlobStore
from musecode_jupyter.log.events import Event, parse_line
from musecode_jupyter.log.record import hydrated, spilled
from musecode_jupyter.log.scan import segment_name, segments
from musecode_jupyter.runtime.errors import LogError

_BLOCK = 1 << 20
# Below this many bytes, going through the lines is no slower than halving them.
_NEAR = 64 << 10
_HEAD = re.compile(rb'\{"v":[0-9]+,"seq":([0-9]{1,18}),')

Finder = Callable[[bytes], Iterable[int]]


class Peek:
    """The journal of one session folder, also of one that a process writes; holds no file open.

    Raises LogError where there is no journal.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unreadable = 0
        """Lines that were passed over so far since they are no records."""
        self._blobs = BlobStore(folder / "blobs")
        segments(folder)

    def last_seq(self) -> int:
        """Number of the last whole record; 0 if there is none."""
        event = next(self.backwards(), None)
        return 0 if event is None else event.seq

    def event(self, seq: int) -> Event | None:
        """Event `seq` with its spilled fields; None if the journal has none that can be read."""
        event = next(self.events(seq - 1, seq), None)
        return None if event is None else self.restored(event)

    def end_of(self, seq: int) -> tuple[int, int] | None:
        """Segment and offset at which the line of event `seq` ends; None if the journal has none that can be read."""
        for number, offset in self._places(seq - 1):
            with self._open(number) as file:
                file.seek(offset)
                while line := file.readline(_BLOCK):
                    offset += len(line)
                    head = _HEAD.match(line)
                    if head is not None and int(head[1]) >= seq:
                        return (number, offset) if int(head[1]) == seq and line.endswith(b"\n") else None
        return None

    def events(self, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        """Events after seq `after` and up to `upto`, spilled fields still in their blobs. Memory is bounded."""
        for line in self._lines(after):
            event = self._parse(line)
            if event is None or event.seq <= after:
                continue
            if upto is not None and event.seq > upto:
                return
            yield event

    def backwards(self) -> Iterator[Event]:
        """Events from the last one on backwards, spilled fields still in their blobs."""
        for number in reversed(segments(self.folder)):
            with self._open(number) as file:
                for line in _from_the_end(file):
                    event = self._parse(line)
                    if event is not None:
                        yield event

    def matching(self, find: Finder, after: int = 0) -> Iterator[Event]:
        """Events after seq `after` whose line has a place that `find` names, spilled fields still in their blobs.

        `find` gets whole lines, many at a time, and answers with positions in ascending order.
        """
        for line in self._found(find, after):
            event = self._parse(line)
            if event is not None and event.seq > after:
                yield event

    def restored(self, event: Event) -> Event:
        """The event with its spilled fields; one whose blob is gone or damaged keeps None there."""
        try:
            return hydrated(event, self._blobs)
        except LogError:
            return event

    def spilled_bytes(self, event: Event) -> Iterator[bytes]:
        """The JSON of each spilled field, unchecked; a blob that cannot be read gives nothing."""
        for ref in spilled(event).values():
            try:
                yield self._blobs.get(ref.digest)
            except LogError:
                continue

    def blob(self, digest: str) -> bytes:
        """The bytes of a blob; LogError if it is missing or damaged."""
        return self._blobs.get(digest)

    def _parse(self, line: bytes) -> Event | None:
        try:
            return parse_line(line)
        except ValueError:
            self.unreadable += 1
            return None

    def _open(self, number: int) -> BinaryIO:
        path = self.folder / "journal" / segment_name(number)
        try:
            return path.open("rb")
        except OSError as problem:
            raise LogError(f"{path} cannot be read ({problem.strerror}); restore the session's folder") from None

    def _lines(self, after: int) -> Iterator[bytes]:
        """Whole lines from a place at or before the record after `after` on."""
        for number, offset in self._places(after):
            with self._open(number) as file:
                file.seek(offset)
                while line := file.readline(_BLOCK):
                    # What is left without its end at the end is a write under way.
                    if line.endswith(b"\n"):
                        yield line

    def _found(self, find: Finder, after: int) -> Iterator[bytes]:
        for number, offset in self._places(after):
            with self._open(number) as file:
                file.seek(offset)
                rest = b""
                while piece := file.read(_BLOCK):
                    block = rest + piece
                    end = block.rfind(b"\n") + 1
                    # A line of megabytes is no record.
                    rest = block[end:] if len(block) - end < _BLOCK else b""
                    done = 0
                    for position in find(block[:end]):
                        if position >= done:
                            done = block.find(b"\n", position) + 1
                            yield block[block.rfind(b"\n", 0, position) + 1 : done]

    def _places(self, after: int) -> Iterator[tuple[int, int]]:
        """Segments to read for what comes after `after`, each with the offset of a line to begin at."""
        numbers = segments(self.folder)
        first = 0
        if after:
            low, high = 0, len(numbers)
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self._begins(numbers[middle]) <= after else (low, middle)
            first = low
        for index in range(first, len(numbers)):
            offset = self._offset(numbers[index], after) if after and index == first else 0
            yield numbers[index], offset

    def _begins(self, number: int) -> int:
        with self._open(number) as file:
            return _next_head(file, 0, None)[0]

    def _offset(self, number: int, seq: int) -> int:
        """Offset of a line at or before that of record `seq` in a segment, and near it."""
        with self._open(number) as file:
            low, high = 0, file.seek(0, 2)
            while high - low > _NEAR:
                middle = (low + high) // 2
                file.seek(middle)
                file.readline(_BLOCK)
                found, offset = _next_head(file, file.tell(), high)
                low, high = (offset, high) if found <= seq else (low, middle)
        return low


def _next_head(file: BinaryIO, offset: int, end: int | None) -> tuple[int, int]:
    """Seq and offset of the first record at or after `offset`, before `end`; a seq beyond all if there is none."""
    file.seek(offset)
    while end is None or offset < end:
        line = file.readline(_BLOCK)
        if not line:
            break
        head = _HEAD.match(line)
        if head is not None and line.endswith(b"\n"):
            return int(head[1]), offset
        offset += len(line)
    return 1 << 62, offset


def _from_the_end(file: BinaryIO) -> Iterator[bytes]:
    """Whole lines of a file, the last one first; what follows the last newline, a write under way, is none."""
    end = file.seek(0, 2)
    size = _NEAR // 4
    rest: bytes | None = None
    while end:
        begin = max(0, end - size)
        file.seek(begin)
        piece = file.read(end - begin)
        end, size = begin, min(2 * size, _BLOCK)
        if rest is None:
            piece = piece[: piece.rfind(b"\n") + 1]
            if not piece:
                continue
            rest = b""
        # The first one may begin before this piece, and a line of megabytes is no record.
        begun, *lines = (piece + rest).split(b"\n")
        rest = begun if len(begun) < _BLOCK else b""
        for line in reversed(lines):
            if line:
                yield line + b"\n"
    if rest:
        yield rest + b"\n"
