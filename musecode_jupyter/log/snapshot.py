"""Keeps a disposable copy of the folded state beside the journal, so that a long session is resumed without folding it.

It is never the truth. It holds the state before one state.digest event and that event's hash. It counts only if its own
bytes are whole, the same version of the program wrote it for slices of the same shapes, the journal has a record with
that hash at that place, and the state has the digest that the record says. Otherwise the state is folded from the
beginning. `verify` does not look at it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from musecode_jupyter._version import __version__
from musecode_jupyter.log.blobs import write_all
from musecode_jupyter.log.events import canonical, parse_json

SNAPSHOT_EVERY = 4096
"""Events at least from one snapshot to the next."""
_NAME = "state.snapshot"
_FORM = 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state before event `seq`, a state.digest with the hash `h`: the plain JSON of each slice by name."""

    seq: int
    h: str
    states: Mapping[str, Any]


def snapshot_path(folder: Path) -> Path:
    """The file of the snapshot of session `folder`."""
    return folder / _NAME


def prepared(states: str, shapes: Mapping[str, str]) -> str:
    """What `keep` writes; `states` is the JSON of the slices by name."""
    return f'"form":{_FORM},"version":{canonical(__version__)},"shapes":{canonical(shapes)},"states":{states}}}'


def keep(folder: Path, seq: int, h: str, text: str) -> None:
    """Put the `prepared` snapshot in the place of the one before; not synced, and without effect if that fails."""
    body = f'{{"seq":{seq},"h":{canonical(h)},{text}'.encode("ascii")
    temporary = folder / f"{_NAME}.new"
    with contextlib.suppress(OSError):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(descriptor, _sum(body) + b"\n" + body)
        except OSError:
            temporary.unlink()
            raise
        finally:
            os.close(descriptor)
        temporary.rename(snapshot_path(folder))


def load(folder: Path, shapes: Mapping[str, str]) -> Snapshot | None:
    """The snapshot of session `folder`, if there is a whole one that this version wrote for slices of these shapes."""
    try:
        content = snapshot_path(folder).read_bytes()
    except OSError:
        return None
    if content[:33] != _sum(content[33:]) + b"\n":
        return None
    found = parse_json(content[33:])
    if (found["form"], found["version"], found["shapes"]) != (_FORM, __version__, dict(shapes)):
        return None
    return Snapshot(found["seq"], found["h"], found["states"])


def _sum(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).hexdigest().encode("ascii")
