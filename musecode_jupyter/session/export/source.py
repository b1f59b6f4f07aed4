"""The events of a session for an export: one pass over its journal, up to the first damage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_origin

from musecode_jupyter.log.blobs import BlobStore
from musecode_jupyter.log.events import SCHEMA_VERSION, Event
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.log.record import hydrated, spilled
from musecode_jupyter.log.scan import MAX_TAIL_BYTES, Damage, Record, Scanner, judge_tail, segments
from musecode_jupyter.runtime.errors import LogError, UsageProblem
from musecode_jupyter.session.export.mask import Mask

LOST = "[not readable: the blob is missing or damaged]"


class EventSource:
    """Reads a session, also beside its writer; nothing is repaired and nothing is kept in memory.

    `name` is what the export calls the session. After a pass, `notes` says in sentences what the export lacks, and
    `damaged` whether the log is damaged: an unfinished last batch, which nobody was told is saved, is a note and no
    damage.

    Parameters
    ----------
    folder
        The session folder.
    complete
        Fields that an older version did not write yet have their default, and what only a newer version understands is
        refused; else events are as they are in the journal.
    """

    def __init__(self, folder: Path, *, complete: bool = True) -> None:
        self.folder = folder
        self.name = folder.name
        self.blobs = BlobStore(folder / "blobs")
        self.notes: list[str] = []
        self.damaged = False
        self.count = 0
        self._mask: Mask | None = None
        self._complete = complete

    def mask(self, mask: Mask) -> None:
        """From here on nobody sees what `mask` takes out; to be called before the pass."""
        self._mask = mask
        self.name = mask.session(self.folder.name)

    def events(self) -> Iterator[Event]:
        """Events in order, spilled fields back in place; one that cannot be read back is empty, and a note.

        Raises
        ------
        LogError
            There is no session in the folder, or the disk does not give it back.
        UsageProblem
            It has no event that can be read, or a newer version wrote it.
        """
        scanner = Scanner(self.folder)
        for found in self._found(scanner):
            if isinstance(found, Damage):
                self._damage(scanner, found)
                break
            try:
                event = hydrated(found.event, self.blobs)
            except LogError:
                # Not in the error's words: they hold the place of the blob on this disk, and notes are exported.
                self.damaged = True
                lost = ", ".join(spilled(found.event))
                self.notes.append(f"Event {found.event.seq} lacks {lost}: a blob is missing or damaged.")
                event = _without_lost(found.event)
            self.count += 1
            if self._complete:
                event = self._completed(event)
            yield event if self._mask is None else self._mask.event(event)
        if scanner.unfinished:
            self.notes.append(
                f"{scanner.unfinished} bytes after event {scanner.seq} are no whole line yet and are left out."
            )
        if not self.count:
            said = " ".join(self.notes) or "It has no events yet."
            raise UsageProblem(f"There is nothing to export from session {self.folder.name}. {said}")

    def _found(self, scanner: Scanner) -> Iterator[Record | Damage]:
        # Else it would be taken for an error of the file that is written.
        try:
            yield from scanner.records()
        except OSError as problem:
            raise LogError(
                f"the journal of session {self.folder.name} cannot be read after event {scanner.seq} "
                f"({problem.strerror}); check the disk that holds {self.folder}"
            ) from problem

    def _completed(self, event: Event) -> Event:
        if event.v > SCHEMA_VERSION:
            raise UsageProblem(
                f"Session {self.folder.name} was written by a newer version (schema {event.v} at event {event.seq}): "
                "update this program, or export jsonl, which takes events as they are."
            )
        kind = KINDS.get(event.kind)
        missing = kind.model_fields.keys() - event.data.keys() if kind is not None else ()
        if kind is None or not missing:
            return event
        defaults = {
            name: each.get_default(call_default_factory=True)
            for name, each in kind.model_fields.items()
            if name in missing and not each.is_required()
        }
        return replace(event, data={**event.data, **defaults})

    def _damage(self, scanner: Scanner, damage: Damage) -> None:
        if not damage.resumed and damage.segment == segments(self.folder)[-1]:
            with (self.folder / "journal" / damage.segment_name).open("rb") as file:
                file.seek(damage.offset)
                tail = file.read(MAX_TAIL_BYTES + 1)
            if judge_tail(tail, scanner.h, scanner.seq, scanner.batch) is None:
                self.notes.append(
                    f"{damage.size} bytes after event {damage.last_good_seq} are an unfinished batch and are left out."
                )
                return
        self.damaged = True
        self.notes.append(
            f"The log is damaged at byte {damage.offset} of {damage.segment_name}: this is what comes before, up to "
            f"event {damage.last_good_seq}; `jupyter musecode verify` says what is wrong."
        )


def _without_lost(event: Event) -> Event:
    """The event with something of the right type in place of fields whose blob cannot be read."""
    kind = KINDS.get(event.kind)
    data = dict(event.data)
    for name in spilled(event):
        origin = get_origin(kind.model_fields[name].annotation) if kind and name in kind.model_fields else str
        data[name] = [] if origin is list else {} if origin is dict else LOST
    return replace(event, data=data)
