"""Session folders on disk: where they are, what they are called, and a list made from heads and tails alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from musecode_jupyter.log.events import MAX_RECORD_BYTES
from musecode_jupyter.log.lock import is_locked
from musecode_jupyter.runtime.errors import UsageProblem

# The last records, among them the last of session.closed and of the goal, as a rule lie in so many bytes.
TAIL_BYTES = 49_152
_HEAD_BYTES = 4_096
# What settles a fork lies in so many bytes from where its own records begin.
_SETTLING_BYTES = 1 << 20
_SETTLED = re.compile(rb'"kind":"session\.settled"')
_STANDS = {
    "goal.met": "met",
    "goal.paused": "paused",
    "goal.cleared": "cleared",
    "goal.set": "running",
    "goal.resumed": "running",
}


@dataclass(frozen=True)
class SessionEntry:
    """A session as listed.

    `state` is live (a process has it open), closed, open (ended without closing), empty (ended before its first event),
    half made (a fork whose making was cut off, and that nobody has worked in) or damaged. `goal` is how its last goal
    stands, where the end of the log tells it: met, paused, running, or why it stopped; else empty. `parent` is the
    session that it was forked from, after event `parent_seq`; `rewound_to` is the one in which work went on after a
    rewind.
    """

    id: str
    folder: Path
    workspace: str
    started: str
    state: str
    events: int
    goal: str = ""
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


def home_of(session: Path) -> Path:
    """The folder below which the session in folder `session` lies with its worktrees."""
    return session.resolve().parent.parent


def worktrees_dir(home: Path) -> Path:
    """The folder that holds the worktrees of all sessions, outside every repository."""
    return home / "worktrees"


def new_id(now: datetime, token: str) -> str:
    """A session id that sorts by time: date, time and four random digits."""
    return f"{now:%Y%m%d-%H%M%S}-{token}"


def list_sessions(home: Path, workspace: Path | None = None) -> list[SessionEntry]:
    """Sessions, newest first, of one workspace or of all; unreadable folders are listed as damaged."""
    root = sessions_dir(home)
    try:
        names = sorted((entry.name for entry in os.scandir(root)), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    place = None if workspace is None else os.path.realpath(workspace)
    entries = (read_entry(root / name) for name in names)
    return [entry for entry in entries if entry is not None and (place is None or entry.workspace == place)]


def sessions_around(home: Path, folder: Path) -> list[SessionEntry]:
    """Sessions, newest first, of the workspaces that `folder` is or lies in, by whatever path it was reached."""
    place = Path(os.path.realpath(folder))
    around = {str(place), *map(str, place.parents)}
    return [entry for entry in list_sessions(home) if entry.workspace in around]


def sessions_text(entries: Sequence[SessionEntry]) -> str:
    """A line per session: id, state, number of events, how its goal stands, workspace."""
    if not entries:
        return ""
    name = max(len(entry.id) for entry in entries)
    state = max(len(entry.state) for entry in entries)
    count = max(len(str(entry.events)) for entry in entries)
    goal = max(len(entry.goal or "-") for entry in entries)
    return "\n".join(
        f"{e.id:<{name}}  {e.state:<{state}}  {e.events:>{count}} events  {e.goal or '-':<{goal}}  "
        f"{e.workspace}{e.relation}"
        for e in entries
    )


def read_entry(folder: Path) -> SessionEntry | None:
    """The entry of one folder, from a read at each end of its journal; None if it holds no journal."""
    try:
        names = sorted(name for name in os.listdir(folder / "journal") if name.endswith(".jsonl"))
    except OSError:
        return None
    if not names:
        return None
    segments = [folder / "journal" / name for name in names]
    first, tail = _first(segments[0]), _tail(segments)
    if first is None and not tail and not any(segment.stat().st_size for segment in segments):
        return SessionEntry(folder.name, folder, "", "", "live" if is_locked(folder) else "empty", 0)
    if first is None:
        return SessionEntry(folder.name, folder, "", "", "damaged", 0)
    last = _newest(tail)
    forked = _forked(segments)
    if is_locked(folder):
        state = "live"
    elif forked and (unfinished := unfinished_fork(folder)) is not None and unfinished.half_made:
        state = "half made"
    else:
        state = "closed" if _closed(tail) else "open"
    return SessionEntry(
        id=folder.name,
        folder=folder,
        workspace=str(first.get("data", {}).get("workspace", "")),
        started=str(first.get("ts", "")),
        state=state,
        events=int(last["seq"]) if last else 0,
        goal=_goal(tail),
        parent=str(forked.get("parent", "")),
        parent_seq=int(forked.get("seq", 0)),
        rewound_to=_rewound(tail),
    )


@dataclass(frozen=True)
class UnfinishedFork:
    """A fork that was cut off before it was settled: of which session, after which event, and whether for a rewind.

    `takes_place` is False for one that was made for a rewind, while its parent does not say that it was rewound: then
    the rewind did not take place, and work goes on in the parent.
    """

    parent: str
    seq: int
    rewind: bool
    takes_place: bool

    @property
    def half_made(self) -> bool:
        """Whether work goes on elsewhere: not after a rewind that took place."""
        return not (self.rewind and self.takes_place)


def unfinished_fork(folder: Path) -> UnfinishedFork | None:
    """What is unfinished of the session in `folder` if it is a fork that was not made to its end; else None."""
    names = sorted(path for path in (folder / "journal").glob("*.jsonl"))
    record = _first(names[-1]) if len(names) > 1 else None
    # Whatever follows in a later segment came after it was settled.
    if record is None or record.get("kind") != "session.forked":
        return None
    with names[-1].open("rb", buffering=0) as file:
        if _SETTLED.search(file.read(_SETTLING_BYTES)):
            return None
    data = record["data"]
    parent = folder.parent / str(data["parent"]) / "journal"
    rewind = bool(data.get("rewind"))
    takes_place = not rewind or not parent.is_dir() or _says_rewound(parent, folder.name)
    return UnfinishedFork(str(data["parent"]), int(data["seq"]), rewind, takes_place)


def require_finished(folder: Path) -> None:
    """Raise UsageProblem if the session in `folder` was made for a rewind that did not take place."""
    fork = unfinished_fork(folder)
    if fork is not None and not fork.takes_place:
        raise UsageProblem(
            f"Session {folder.name} was being made for a rewind that was cut off before it took place: session "
            f"{fork.parent} is as it was. Resume that one, and rewind it again to event {fork.seq}."
        )


def _says_rewound(journal: Path, session: str) -> bool:
    wanted = b'"kind":"session.rewound"'
    for path in sorted(journal.glob("*.jsonl"), reverse=True):
        with path.open("rb") as file:
            for line in file:
                record = _parse(line) if wanted in line else None
                if record is not None and record["data"]["session"] == session:
                    return True
    return False


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
    with segment.open("rb", buffering=0) as file:
        line = file.read(_HEAD_BYTES)
        if b"\n" not in line:
            line += file.read(MAX_RECORD_BYTES)
    return _parse(line.partition(b"\n")[0])


def _tail(segments: list[Path]) -> list[bytes]:
    """The last lines of the journal, the newest first."""
    for segment in reversed(segments):
        with segment.open("rb", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            begin = file.seek(max(0, size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).split(b"\n")
        # The first one is cut, as a rule.
        lines = [line for line in (lines[1:] if begin else lines) if line]
        if any(_parse(line) is not None for line in reversed(lines)):
            return lines[::-1]
    return []


def _newest(tail: list[bytes]) -> dict[str, Any] | None:
    return next((record for record in map(_parse, tail) if record is not None), None)


def _closed(tail: list[bytes]) -> bool:
    # session.closed is followed by nothing but the last state.digest.
    for record in map(_parse, tail):
        if record is not None and record.get("kind") != "state.digest":
            return bool(record.get("kind") == "session.closed")
    return False


def _goal(tail: list[bytes]) -> str:
    """How the goal stands that was spoken of last in the tail."""
    for line in tail:
        if b'"kind":"goal.' in line and (record := _parse(line)) is not None:
            kind = str(record.get("kind"))
            if kind == "goal.stopped":
                return str(record["data"]["state"])
            if kind in _STANDS:
                return _STANDS[kind]
    return ""


def _forked(segments: list[Path]) -> dict[str, Any]:
    """The data of the newest session.forked: it is the first record of a segment, before which all is the parent's."""
    for segment in reversed(segments[1:]):
        record = _first(segment)
        if record is not None and record.get("kind") == "session.forked":
            data = record.get("data")
            return data if isinstance(data, dict) else {}
    return {}


def _rewound(tail: list[bytes]) -> str:
    """The session in which work goes on, if the last thing that happened was a rewind; what a close adds is little."""
    for record in filter(None, map(_parse, tail[:8])):
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
