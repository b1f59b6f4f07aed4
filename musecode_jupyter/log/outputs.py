"""Whole outputs of commands: files beside the journal, durable before the event that holds their digest."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path, PurePath

from musecode_jupyter.log.blobs import sync_folder
from musecode_jupyter.log.events import Event

FOLDER = "outputs"
"""Of the session's folder, that in which they lie."""


def keep(path: Path) -> str:
    """Make the file at `path` durable and answer its BLAKE2b-256, in hexadecimal; empty if there is no such file."""
    try:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            digest = _digest(path)
    except FileNotFoundError:
        return ""
    sync_folder(path.parent)
    return digest


def check_output(folder: Path, finished: Event) -> str | None:
    """What is wrong with the file that `finished`, a tool.finished of the session in `folder`, tells of.

    None if nothing is. One that somebody removed to save room is no damage: the event shows what was seen of it; see
    `is_gone`.
    """
    path = _path(folder, finished)
    if path is None:
        return None
    try:
        if _digest(path) == finished.data["output_digest"]:
            return None
        return f"{FOLDER}/{path.name} is not what the command printed"
    except FileNotFoundError:
        return None
    except OSError as problem:
        return f"{FOLDER}/{path.name} cannot be read ({problem.strerror})"


def is_gone(folder: Path, finished: Event) -> bool:
    """Whether there was a file of this output, and there is none any more."""
    path = _path(folder, finished)
    return path is not None and not path.exists()


def _path(folder: Path, finished: Event) -> Path | None:
    """Where it lies in `folder`, which may have been moved since; None if the event says no digest."""
    if not finished.data.get("output_digest"):
        return None
    return folder / FOLDER / PurePath(finished.data["output_path"]).name


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=32)).hexdigest()
