"""Copies the first records of a session into the folder of a new one, byte for byte, with the blobs that they name."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from musecode_jupyter.log.blobs import BlobStore, sync_folder
from musecode_jupyter.log.events import BlobRef
from musecode_jupyter.log.journal import create_folders, unknown
from musecode_jupyter.log.scan import Damage, Scanner, segment_name
from musecode_jupyter.runtime.errors import LogError, LogReadOnly


@dataclass(frozen=True, slots=True)
class Prefix:
    """What was copied: records 1 to `seq`, the last of which has the hash `h`, and how many blobs they name."""

    seq: int
    h: str
    blobs: int


def copy_prefix(source: Path, target: Path, seq: int) -> Prefix:
    """Begin session `target` with records 1 to `seq` of session `source`, which is only read; blocks.

    The bytes are the same, so the chain goes on from the last of them. What is written next comes into a segment of
    its own, whose first line tells where the session comes from. Blobs, which never change, are hard links where that
    is possible. All is durable on return. `seq` may lie within a batch.

    Raises
    ------
    LogError
        There is no such session or event, the source is damaged up to it, or `target` is a session already.
    LogReadOnly
        `target` cannot be written, or the source holds what only a newer version understands.
    """
    scanner = Scanner(source)
    blobs: dict[str, BlobRef] = {}
    for found in scanner.records():
        if isinstance(found, Damage):
            raise LogError(
                f"the journal of session {source.name} is damaged at byte {found.offset} of {found.segment_name}; "
                f"it can be forked up to event {found.last_good_seq}"
            )
        if (strange := unknown(found)) is not None:
            raise LogReadOnly(
                f"session {source.name} was written by a newer version ({strange}); update this program to fork it"
            )
        blobs.update((ref.digest, ref) for ref in found.event.blobs.values())
        if scanner.seq >= seq:
            break
    if seq < 1 or scanner.seq != seq:
        raise LogError(f"session {source.name} has no event {seq}; it has 1 to {scanner.seq}")
    create_folders(target)
    try:
        _copy_blobs(source, target, blobs)
        for number in range(1, scanner.segment + 1):
            name = segment_name(number)
            size = scanner.offset if number == scanner.segment else None
            _copy(source / "journal" / name, target / "journal" / name, size)
        _copy(None, target / "journal" / segment_name(scanner.segment + 1), 0)
        sync_folder(target / "journal")
    except OSError as problem:
        raise LogReadOnly(
            f"session {source.name} cannot be copied to {target} ({problem.strerror}); free some space, or make the "
            "folder writable"
        ) from problem
    return Prefix(seq, scanner.h, len(blobs))


def _copy_blobs(source: Path, target: Path, blobs: dict[str, BlobRef]) -> None:
    old, new = BlobStore(source / "blobs"), BlobStore(target / "blobs")
    folders = set()
    for digest, ref in blobs.items():
        if (wrong := old.check(ref)) is not None:
            raise LogError(f"{wrong}, so session {source.name} cannot be forked there")
        path = new.path_of(digest)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        folders.add(path.parent)
        try:
            os.link(old.path_of(digest), path)
        except OSError:
            _copy(old.path_of(digest), path, None)
    for folder in sorted(folders):
        sync_folder(folder)
    sync_folder(target / "blobs")


def _copy(source: Path | None, target: Path, size: int | None) -> None:
    """The first `size` bytes of a file (None: all), in a new file that is durable."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as new:
        if source is not None:
            with source.open("rb") as old:
                if size is None:
                    shutil.copyfileobj(old, new)
                else:
                    left = size
                    while left and (piece := old.read(min(left, 1 << 20))):
                        new.write(piece)
                        left -= len(piece)
        new.flush()
        os.fsync(new.fileno())
