"""Session folders on disk: where they are, what they are called, and a list made from heads and tails alone."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from musecode_jupyter.log.lock import is_locked
from musecode_jupyter.runtime.errors import UsageProblem

TAIL_BYTES = 65_536


@dataclass(frozen=True)
class SessionEntry:
    """A session as listed.

    `state` is live (a process has it open), closed, open (ended without closing), empty (ended before its first event)
    or damaged. `parent` is the session that it was forked from, after event `parent_seq`; `rewound_to` is the one in
    which work went on after a rewind.
    """

    id: str
    folder: Path
    workspace: str
    started: str
    state: str
    events: int
    parent: str = ""
    parent_seq: int = 0
    rewound_to: str = ""

    @property
    def relation(self) -> str:
        """How it stands to other sessions, as the end of a line; empty if it does not."""
        parts = [f"fork of {self.parent} at {self.parent_seq}"] if self.parent else []
        parts += [f"rewound, goes on in {self.rewound_to}"] if self.rewound_to else []
        return f"  ({'; '.join(parts)})" if parts else ""


def sessions_dir(home: Path) -> Path:
    """The folder that holds one folder per session."""
    return home / "sessions"


def worktrees_dir(home: Path) -> Path:
    """The folder that holds the worktrees of all sessions, outside every repository."""
    return home / "worktrees"


def new_id(now: datetime, token: str) -> str:
    """A session id that sorts by time: date, time and four random digits."""
    return f"{now:%Y%m%d-%H%M%S}-{token}"


def list_sessions(home: Path, workspace: Path | None = None) -> list[SessionEntry]:
    """Sessions, newest first, of one workspace or of all; unreadable folders are listed as damaged."""
    root = sessions_dir(home)
    if not root.is_dir():
        return []
    entries = []
    for folder in sorted(root.iterdir(), reverse=True):
        entry = read_entry(folder)
        if entry is not None and (workspace is None or entry.workspace == str(workspace)):
            entries.append(entry)
    return entries


def read_entry(folder: Path) -> SessionEntry | None:
    """The entry of one folder, from the first and the last record of its journal; None if it holds no journal."""
    segments = sorted((folder / "journal").glob("*.jsonl"))
    if not segments:
        return None
    first, last = _first(segments[0]), _last(segments)
    if first is None and not any(segment.stat().st_size for segment in segments):
        return SessionEntry(folder.name, folder, "", "", "live" if is_locked(folder) else "empty", 0)
    if first is None:
        return SessionEntry(folder.name, folder, "", "", "damaged", 0)
    state = "live" if is_locked(folder) else "closed" if last and _closed(segments) else "open"
    forked = _forked(segments)
    return SessionEntry(
        id=folder.name,
        folder=folder,
        workspace=str(first.get("data", {}).get("workspace", "")),
        started=str(first.get("ts", "")),
        state=state,
        events=int(last["seq"]) if last else 0,
        parent=str(forked.get("parent", "")),
        parent_seq=int(forked.get("seq", 0)),
        rewound_to=_rewound(segments),
    )


def find_session(home: Path, name: str) -> Path:
    """The folder of the session called `name`: an id, a unique beginning of one, or a folder; else UsageProblem."""
    direct = Path(os.path.expanduser(name))
    if os.path.isdir(direct / "journal"):
        return direct
    root = sessions_dir(home)
    # Not a glob: a name is no pattern.
    matches = sorted(each for each in root.iterdir() if name and each.name.startswith(name)) if root.is_dir() else []
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageProblem(f"{name!r} could be any of {', '.join(match.name for match in matches[:5])}.")
    raise UsageProblem(f"There is no session {name!r} under {root}. `jupyter musecode sessions` lists them.")


def _first(segment: Path) -> dict[str, Any] | None:
    with segment.open("rb") as file:
        return _parse(file.readline())


def _tail(segments: list[Path]) -> list[dict[str, Any]]:
    for segment in reversed(segments):
        with segment.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().split(b"\n")
        records = [record for record in map(_parse, lines) if record is not None]
        if records:
            return records
    return []


def _last(segments: list[Path]) -> dict[str, Any] | None:
    records = _tail(segments)
    return records[-1] if records else None


def _closed(segments: list[Path]) -> bool:
    # session.closed is followed by nothing but the last state.digest.
    for record in reversed(_tail(segments)):
        if record.get("kind") != "state.digest":
            return bool(record.get("kind") == "session.closed")
    return False


def _forked(segments: list[Path]) -> dict[str, Any]:
    """The data of the newest session.forked: it is the first record of a segment, before which all is the parent's."""
    for segment in reversed(segments[1:]):
        record = _first(segment)
        if record is not None and record.get("kind") == "session.forked":
            data = record.get("data")
            return data if isinstance(data, dict) else {}
    return {}


def _rewound(segments: list[Path]) -> str:
    """The session in which work goes on, if the last thing that happened was a rewind; what a close adds is little."""
    for record in reversed(_tail(segments)[-8:]):
        if record.get("kind") == "session.rewound":
            return str(record.get("data", {}).get("session", ""))
        if record.get("kind") not in {"state.digest", "session.closed", "goal.paused", "agent.state"}:
            return ""
    return ""


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "seq" in record else None
