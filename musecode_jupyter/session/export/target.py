"""The file that an export writes: whole or not at all, and never over another file unless told to."""

from __future__ import annotations

import contextlib
import os
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from musecode_jupyter.runtime.errors import MuseError, UsageProblem


def check_target(path: Path, session: Path, *, force: bool) -> None:
    """Refuse a path that cannot become the export of the session in folder `session`, before any work is done.

    Raises
    ------
    UsageProblem
        It exists and `force` is not given, is a folder, lies in no folder, or lies inside the session.
    """
    if path.is_dir():
        raise UsageProblem(f"{path} is a folder; name the file to write.")
    if not path.parent.is_dir():
        raise UsageProblem(f"There is no folder {path.parent}; make it, or write elsewhere.")
    if path.parent.resolve().is_relative_to(session.resolve()):
        raise UsageProblem(f"{path} lies inside the session itself; write elsewhere.")
    if os.path.lexists(path) and not force:
        raise UsageProblem(f"{path} exists; --force replaces it.")


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file that appears at `path`, readable by its owner only, once the block has ended without an error.

    Raises
    ------
    UsageProblem
        Somebody else made `path` meanwhile, and `force` is not given.
    MuseError
        The disk takes no more, or the folder cannot be written; nothing is left behind.
    """
    draft: str | None = None
    try:
        descriptor, draft = tempfile.mkstemp(prefix=f".{path.name[:60]}.", suffix=".part", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _place(draft, path, force=force)
    except OSError as problem:
        raise MuseError(
            f"{path} cannot be written ({problem.strerror}); nothing was left there. Free some space or "
            "write elsewhere."
        ) from problem
    finally:
        if draft is not None:
            with contextlib.suppress(OSError):
                os.unlink(draft)


def _place(draft: str, path: Path, *, force: bool) -> None:
    if not force:
        try:
            os.link(draft, path)
        except FileExistsError:
            raise UsageProblem(f"{path} exists by now; --force replaces it.") from None
        except OSError:
            # A file system without hard links: the window between the look and the move cannot be closed.
            if os.path.lexists(path):
                raise UsageProblem(f"{path} exists by now; --force replaces it.") from None
        else:
            return
    os.replace(draft, path)


class Spool:
    """Pieces of several streams, kept in one nameless file until they are put together; memory: 16 bytes a piece."""

    def __init__(self, folder: Path | None) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._pieces: dict[str, array[int]] = {}
        self._end = 0

    def add(self, stream: str, piece: bytes) -> None:
        """Put a piece at the end of a stream."""
        self.fill(stream, self.reserve(stream), piece)

    def reserve(self, stream: str) -> int:
        """A place at the end of a stream for a piece that comes later; its number, from 0 on."""
        index = self._pieces.setdefault(stream, array("Q"))
        index.extend((0, 0))
        return len(index) // 2 - 1

    def fill(self, stream: str, place: int, piece: bytes) -> None:
        """Put a piece where room was reserved for it."""
        self._file.seek(self._end)
        self._file.write(piece)
        self._pieces[stream][2 * place : 2 * place + 2] = array("Q", (self._end, len(piece)))
        self._end += len(piece)

    def count(self, stream: str) -> int:
        """How many pieces a stream has."""
        return len(self._pieces.get(stream, ())) // 2

    def sizes(self, stream: str) -> array[int]:
        """Bytes of each piece of a stream, in order."""
        return self._pieces.get(stream, array("Q"))[1::2]

    def pieces(self, stream: str, first: int = 0) -> Iterator[bytes]:
        """The pieces of a stream in order, from the one numbered `first` on."""
        index = self._pieces.get(stream, array("Q"))
        for at in range(2 * first, len(index), 2):
            self._file.seek(index[at])
            yield self._file.read(index[at + 1])

    def close(self) -> None:
        """Give the file up."""
        self._file.close()
