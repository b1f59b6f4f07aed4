"""Follows the journals below a home folder while another process writes them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_S = 0.005

Record = dict[str, Any]


def sessions(home: Path) -> list[Path]:
    """Session folders, oldest first."""
    return sorted(path.parent for path in (home / "sessions").glob("*/journal"))


def records(folder: Path) -> list[Record]:
    """The whole lines of a session's journal."""
    lines = []
    for segment in sorted((folder / "journal").glob("*.jsonl")):
        lines += segment.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def wait_for(
    home: Path, condition: Callable[[list[Record]], object], timeout: float = 90.0, *, session: int = -1
) -> list[Record]:
    """Wait until `condition` holds for the records of a session, by default the newest; returns them."""
    limit = time.monotonic() + timeout
    while True:
        found = sessions(home)
        seen = records(found[session]) if found else []
        if condition(seen):
            return seen
        if time.monotonic() > limit:
            raise TimeoutError(f"the journal ends with {[record['kind'] for record in seen[-5:]]}")
        time.sleep(POLL_S)


def wait_for_kind(home: Path, kind: str, count: int = 1) -> Record:
    """Wait for the `count`-th record of a kind in the newest session."""

    def matching(seen: list[Record]) -> list[Record]:
        return [record for record in seen if record["kind"] == kind]

    return matching(wait_for(home, lambda seen: len(matching(seen)) >= count))[count - 1]
