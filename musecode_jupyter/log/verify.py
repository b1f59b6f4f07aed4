"""Checks a session's log from its first byte on: chain, order, blobs, the fold against each state digest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from musecode_jupyter.log.blobs import BlobStore
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Fold, Reducer
from musecode_jupyter.log.journal import unknown
from musecode_jupyter.log.outputs import check_output
from musecode_jupyter.log.record import hydrated
from musecode_jupyter.log.scan import Damage, Record, Scanner, segment_name
from musecode_jupyter.runtime.errors import LogError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: `offset` is in bytes, `field` names the part of the record."""

    seq: int
    segment: str
    offset: int
    field: str
    text: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found; `unfinished` counts the bytes of a last line without its end: no problem.

    `partly` counts the state digests of which some slices could not be compared, because another version of the
    program recorded them; `skipped` has the names of these slices. `gone` counts the whole outputs of commands whose
    files somebody removed.
    """

    events: int
    digests: int
    blobs: int
    unfinished: int
    problems: int
    first_problem: Problem | None
    partly: int = 0
    skipped: tuple[str, ...] = ()
    gone: int = 0

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return self.first_problem is None

    @property
    def not_compared(self) -> str:
        """What was not compared, recorded states or whole outputs, in sentences; empty if everything was."""
        notes = []
        if self.partly:
            notes.append(
                f"In {self.partly} of {self.digests} recorded states these parts were not compared, because another "
                f"version of this program recorded them: {', '.join(self.skipped)}."
            )
        if self.gone:
            notes.append(
                f"The files with the whole output of {self.gone} commands are not there any more: what the agents saw "
                "of them is in the log."
            )
        return " ".join(notes)


def verify(folder: Path, reducers: Iterable[Reducer[Any]] = ()) -> VerifyReport:
    """Check the log of session `folder`; reads only, also beside a writer, and repairs nothing.

    Parameters
    ----------
    folder : Path
        The session folder.
    reducers : iterable of Reducer
        Those that the session was recorded with; slices of others are not checked.

    Raises
    ------
    LogError
        There is no session in `folder`.
    """
    check = _Check(folder, reducers)
    for found in check.scanner.records():
        if isinstance(found, Damage):
            check.problem(found.last_good_seq + 1, found.segment, found.offset, "h", found.text)
        else:
            check.record(found)
    return check.report()


class _Check:
    def __init__(self, folder: Path, reducers: Iterable[Reducer[Any]]) -> None:
        self.scanner = Scanner(folder)
        self._blobs = BlobStore(folder / "blobs")
        self._fold = Fold(reducers)
        self._seen: set[str] = set()
        self._before = ""
        self._events = 0
        self._digests = 0
        self._problems = 0
        self._partly = 0
        self._skipped: set[str] = set()
        self._gone = 0
        self._first: Problem | None = None

    def problem(self, seq: int, segment: int, offset: int, field: str, text: str) -> None:
        self._problems += 1
        if self._first is None:
            self._first = Problem(seq, segment_name(segment), offset, field, text)

    def record(self, record: Record) -> None:
        self._events += 1
        before, self._before = self._before, record.event.h
        at = (record.event.seq, record.segment, record.offset)
        strange = unknown(record)
        if strange is not None:
            self.problem(*at, "kind", f"not known to this version: {strange}")
        for name, ref in record.event.blobs.items():
            if ref.digest not in self._seen:
                self._seen.add(ref.digest)
                if text := self._blobs.check(ref):
                    self.problem(*at, f"blobs.{name}", text)
        try:
            event = hydrated(record.event, self._blobs)
        except LogError as problem:
            self.problem(*at, "data", str(problem))
            return
        if strange is not None:
            return
        if event.kind == "state.digest":
            self._digests += 1
            if event.data["upto"] != event.seq - 1:
                self.problem(*at, "data.upto", f"{event.data['upto']} is not the event before")
            compared = self._fold.compare(event.data)
            for name in compared.differing:
                self.problem(*at, f"state.{name}", "the fold differs from the recorded digest")
            self._partly += bool(compared.skipped)
            self._skipped.update(compared.skipped)
        if event.kind == "tool.finished":
            self._finished(event, at)
        if event.kind == "session.forked":
            self._forked(event, at, before)
        self._fold.apply(event)

    def _finished(self, event: Event, at: tuple[int, int, int]) -> None:
        try:
            text = check_output(self.scanner.folder, event)
        except FileNotFoundError:
            self._gone += 1
            return
        if text:
            self.problem(*at, "data.output_digest", text)

    def _forked(self, event: Event, at: tuple[int, int, int], before: str) -> None:
        if event.data["seq"] != event.seq - 1:
            self.problem(*at, "data.seq", f"{event.data['seq']} is not the event before")
        if event.data["h"] != before:
            self.problem(*at, "data.h", "the record before is not the parent's")
        for name in self._fold.compare(event.data).differing:
            self.problem(*at, f"state.{name}", "the fold differs from the one where the session was forked")

    def report(self) -> VerifyReport:
        return VerifyReport(
            self._events,
            self._digests,
            len(self._seen),
            self.scanner.unfinished,
            self._problems,
            self._first,
            self._partly,
            tuple(sorted(self._skipped)),
            self._gone,
        )
