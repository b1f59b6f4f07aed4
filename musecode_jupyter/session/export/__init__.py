"""A session as one file for other tools and people: JSON lines, ATIF, a trace, OTLP, an HTML page."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from musecode_jupyter.log.redaction import Redactor
from musecode_jupyter.runtime.errors import MuseError, UsageProblem
from musecode_jupyter.session.export import atif, chrome, html, jsonl, otel
from musecode_jupyter.session.export.mask import Mask
from musecode_jupyter.session.export.source import EventSource
from musecode_jupyter.session.export.target import check_target, new_file

FORMATS: Final = ("jsonl", "atif", "chrome", "otel", "html")
STDOUT: Final = "-"


@dataclass(frozen=True)
class Exported:
    """What was written; `notes` says what it lacks, `damaged` that the log is damaged after its last event."""

    path: str
    format: str
    events: int
    redacted: bool
    damaged: bool
    notes: tuple[str, ...]


def export(
    folder: Path,
    format: str,
    path: str,
    *,
    key: bytes | None = None,
    force: bool = False,
    redactor: Redactor | None = None,
) -> Exported:
    """Write the session in `folder` to the file `path`; the session may be live, closed, crashed or damaged.

    Reads the journal once, with bounded memory, and writes the whole file or none. Two exports of the same events are
    equal byte for byte; redacted ones if they have the same key.

    Parameters
    ----------
    folder
        The session folder.
    format
        One of `FORMATS`.
    path
        The file to write, or `-` for standard output.
    key
        Masks all that the user would not share (see `Mask`): random bytes, 16 to 64, to be thrown away. None: as it is.
    force
        Replace a file that is there.
    redactor
        Takes secrets out of what is made from contents of files, which the log keeps as they are.

    Raises
    ------
    UsageProblem
        No such format, nothing to export, or a path that cannot be.
    LogError
        There is no session in `folder`.
    MuseError
        The file cannot be written; nothing was left there.
    """
    if format not in FORMATS:
        raise UsageProblem(f"There is no format {format!r}: take {', '.join(FORMATS)}.")
    source = EventSource(folder, complete=format != "jsonl")
    if key is not None:
        source.mask(Mask(key))
    place = None if path == STDOUT else Path(path).expanduser()
    if place is not None:
        check_target(place, folder, force=force)
    with _opened(place, force=force) as out:
        beside = None if place is None else place.parent
        if format == "jsonl":
            jsonl.write(source, out)
        elif format == "atif":
            atif.write(source, out, beside)
        elif format == "chrome":
            chrome.write(source, out)
        elif format == "otel":
            otel.write(source, out)
        else:
            html.write(source, out, beside, _cleaner(redactor or Redactor()), redacted=key is not None)
    return Exported(path, format, source.count, key is not None, source.damaged, tuple(source.notes))


@contextmanager
def _opened(place: Path | None, *, force: bool) -> Iterator[BinaryIO]:
    if place is None:
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as problem:
            raise MuseError(
                f"standard output takes no more ({problem.strerror}); write to a file with -o."
            ) from problem
        return
    with new_file(place, force=force) as file:
        yield file


def _cleaner(redactor: Redactor) -> Callable[[str], str]:
    return lambda text: redactor.text(text)[0]
