"""The list of sessions: states from heads and tails alone, names that are found, folders that hold nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from musecode_jupyter.log import EventLog, Redactor
from musecode_jupyter.log.lock import is_locked
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.store import find_session, list_sessions, new_id, sessions_dir

OPENED = {
    "version": "0",
    "model": "m",
    "api": "chat",
    "profile": "driver",
    "approvals": "deny",
}


async def write(home: Path, name: str, workspace: str, *, close: bool) -> EventLog:
    folder = sessions_dir(home) / name
    log = EventLog.create(folder, reducers=[], redactor=Redactor([]), now=lambda: datetime.now(UTC))
    await log.append("session.opened", {"session": name, "workspace": workspace, **OPENED})
    if close:
        await log.append("session.closed", {"reason": "done"})
        await log.close()
    return log


def test_states_come_from_the_lock_and_the_last_record(tmp_path: Path) -> None:
    async def run() -> None:
        await write(tmp_path, "20260101-000000-aaaa", "/a", close=True)
        live = await write(tmp_path, "20260102-000000-bbbb", "/b", close=False)
        entries = list_sessions(tmp_path)
        assert [(e.id[-4:], e.state, e.workspace) for e in entries] == [
            ("bbbb", "live", "/b"),
            ("aaaa", "closed", "/a"),
        ]
        await live.close()
        # The log was ended, the session was not: that is what a crash leaves.
        assert [e.state for e in list_sessions(tmp_path, Path("/b"))] == ["open"]

    asyncio.run(run())


def test_looking_at_a_lock_does_not_take_it(tmp_path: Path) -> None:
    async def run() -> None:
        log = await write(tmp_path, "20260101-000000-aaaa", "/a", close=False)
        code = (
            "import sys; from pathlib import Path; from musecode_jupyter.log.lock import is_locked; "
            "print(is_locked(Path(sys.argv[1])))"
        )
        look = [sys.executable, "-c", code, str(log.folder)]
        assert (await asyncio.to_thread(subprocess.check_output, look, text=True)).strip() == "True"
        assert is_locked(log.folder)
        await log.append("session.closed", {"reason": "still the writer"})
        await log.close()
        assert (await asyncio.to_thread(subprocess.check_output, look, text=True)).strip() == "False"
        assert not is_locked(log.folder)

    asyncio.run(run())


def test_a_session_is_found_by_a_unique_beginning_or_its_folder(tmp_path: Path) -> None:
    asyncio.run(write(tmp_path, "20260101-000000-aaaa", "/a", close=True))
    asyncio.run(write(tmp_path, "20260101-000001-bbbb", "/a", close=True))
    folder = sessions_dir(tmp_path) / "20260101-000001-bbbb"
    assert find_session(tmp_path, "20260101-000001") == folder
    assert find_session(tmp_path, str(folder)) == folder
    with pytest.raises(UsageProblem, match="could be any of"):
        find_session(tmp_path, "20260101")
    with pytest.raises(UsageProblem, match="no session 'x'"):
        find_session(tmp_path, "x")


@pytest.mark.parametrize(
    "name", ["", "*", "**", "2026*", "[2]", "?", "..", "/", "\0", "x" * 5000, "~nobody-at-all", "~"]
)
def test_a_name_is_no_pattern_and_no_name_is_an_unexpected_error(tmp_path: Path, name: str) -> None:
    """`*` once found folders inside the sessions, and `**` ended in a ValueError."""
    asyncio.run(write(tmp_path, "20260101-000000-aaaa", "/a", close=True))
    with pytest.raises(UsageProblem, match="no session"):
        find_session(tmp_path, name)


def test_ids_sort_by_time() -> None:
    early = new_id(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "ffff")
    late = new_id(datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC), "0000")
    assert early == "20260102-030405-ffff"
    assert early < late


def test_an_empty_or_foreign_folder_is_not_a_session(tmp_path: Path) -> None:
    (sessions_dir(tmp_path) / "empty").mkdir(parents=True)
    journal = sessions_dir(tmp_path) / "broken" / "journal"
    journal.mkdir(parents=True)
    (journal / "000001.jsonl").write_bytes(b"not a record\n")
    assert [(e.id, e.state) for e in list_sessions(tmp_path)] == [("broken", "damaged")]
    assert list_sessions(tmp_path / "nowhere") == []
