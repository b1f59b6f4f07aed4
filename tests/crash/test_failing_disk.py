"""A session whose disk fails at any write or sync: effects stop, what was acknowledged stays, and it goes on later."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from pathlib import Path

import pytest
from fixtures.crash_world import check_calls
from fixtures.model_scripts import AsFar
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, end, run_of, session_on, start

from musecode_jupyter.log import EventLog, journal
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import LogReadOnly, MuseError
from musecode_jupyter.session.crew import LEAD_NAME
from musecode_jupyter.session.replay import prove

LONG = "MUSECODE_CRASH_POINTS" in os.environ
FAULTS = ("write", "sync", "full") if LONG else ("sync",)
RUNS = 8 if LONG else 1

pytestmark = pytest.mark.crash


class FaultyDisk(journal.Disk):
    """The real disk, on which write or sync number `at` fails, or which is full after `at` bytes. Writes are short."""

    def __init__(self, fault: str, at: int) -> None:
        self.fault, self.at = fault, at
        self.writes = self.syncs = self.bytes = 0
        self.failed = False
        self.after = 0
        """Writes and syncs that were asked for after the failure."""

    def write(self, descriptor: int, content: memoryview) -> int:
        self.after += self.failed
        self.writes += 1
        some = content[: max(1, len(content) // 2)]
        if self.fault == "full" and self.bytes + len(some) > self.at:
            self.failed = True
            os.write(descriptor, some[: max(0, self.at - self.bytes)])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.fault == "write" and self.writes == self.at:
            self.failed = True
            os.write(descriptor, some[: len(some) // 2])
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        taken = super().write(descriptor, some)
        self.bytes += taken
        return taken

    def sync(self, descriptor: int) -> None:
        self.after += self.failed
        self.syncs += 1
        if self.fault == "sync" and self.syncs == self.at:
            self.failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "home"))
    return Repo(tmp_path / "repo")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.timeout(300)
def test_a_session_whose_disk_fails_stops_and_goes_on_when_it_works(
    fault: str, run: int, repo: Repo, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a whole run asks for: about 530 writes, 48 to 55 syncs (as the writer groups), 42 kB. The first three syncs
    # open the session; from about the 46th on the goal is met and the session is being closed.
    low, high = {"write": (40, 480), "sync": (6, 48), "full": (16_000, 38_000)}[fault]
    disk = FaultyDisk(fault, low + int((run + rng.random()) * (high - low) / RUNS))
    seen: list[Event] = []
    script = AsFar([run_of("echo ran >> trace.txt"), EDIT, DONE])
    with ModelServer(script) as server:
        # Closing says that the log could not be written, if nobody was told; the lock is free afterwards all the same.
        with monkeypatch.context() as patch, contextlib.suppress(LogReadOnly):
            patch.setattr(journal, "Disk", lambda: disk)
            with session_on(server.base_url, repo.root) as session:
                session.read(lambda core: core.log.on_durable(seen.append))
                handle = start(session)
                try:
                    status = end(handle).status
                except MuseError as error:
                    status = f"raised {error}"
                asked = len(server.requests)
                name, folder, log = session.id, session.folder, session.log
        assert disk.failed, f"{fault} {disk.at} was not reached: {disk.writes}, {disk.syncs}, {disk.bytes}"
        assert disk.after == 0, "it was written to after the failure"
        assert status != "met" or any(event.kind == "goal.met" for event in seen), "met, and not on the disk"
        assert "read-only" in str(log.problem)
        assert ("free some space" in str(log.problem)) == (fault == "full")
        assert len(server.requests) == asked
        with session_on(server.base_url, repo.root, resume=name) as session:
            events = list(session.events())
            assert [(e.seq, e.kind, e.data) for e in seen] == [
                (e.seq, e.kind, e.data) for e in events if seen and seen[0].seq <= e.seq <= seen[-1].seq
            ]
            check_calls(events)
            handle = session.newest_goal() if session.goals.goals else start(session)
            if not handle.result.met:
                handle.resume()
                result = end(handle)
                assert result.met, result.why
            check_calls(list(session.events()), ended={LEAD_NAME})
    assert prove(folder).problem is None
    assert repo.read("answer.txt") == "right\n"
    traces = [path.read_text() for path in repo.root.glob("trace.txt")]
    assert traces in ([], ["ran\n"]), "a command ran twice"
    assert all(event.seq == number for number, event in enumerate(EventLog.read(folder).events(), 1))
