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


def check_output(folder: Path, finished: Event) -> str:
    """What is wrong with the file that `finished`, a tool.finished of the session in `folder`, tells of; empty if
    nothing is.

    The folder may have been moved since. Raises FileNotFoundError for one that somebody removed, to save room: that is
    no damage, the event shows what was seen of it.
    """
    if not finished.data.get("output_digest"):
        return ""
    path = folder / FOLDER / PurePath(finished.data["output_path"]).name
    try:
        same = _digest(path) == finished.data["output_digest"]
    except FileNotFoundError:
        raise
    except OSError as problem:
        return f"{FOLDER}/{path.name} cannot be read ({problem.strerror})"
    return "" if same else f"{FOLDER}/{path.name} is not what the command printed"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=32)).hexdigest()
