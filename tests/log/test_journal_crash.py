"""Real processes killed, forked, starved of disk or refused: what was acknowledged is there afterwards."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from journal_samples import create, message, reducers, reopen, segment, texts_of, write_session
from log_programs import without_flock

from musecode_jupyter.log import EventLog, verify
from musecode_jupyter.log.journal import Disk
from musecode_jupyter.log.lock import SessionLock, is_held, is_locked, read_holder
from musecode_jupyter.runtime.errors import LogLocked, LogReadOnly

PROGRAMS = Path(__file__).with_name("log_programs.py")


@contextmanager
def program(name: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    # Unbuffered: two lines that come at once would leave the second one in a buffer, where `select` does not see it.
    process = subprocess.Popen(
        [sys.executable, str(PROGRAMS), name, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def line(process: subprocess.Popen[bytes], seconds: float = 30.0) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    assert ready, "the program said nothing"
    return process.stdout.readline().decode().strip()


@pytest.mark.crash
def test_what_was_acknowledged_before_a_kill_is_there_after_it(tmp_path: Path, rng: random.Random) -> None:
    folder = tmp_path / "s"
    highest = 0
    for _ in range(6):
        with program("write", folder) as process:
            assert process.stdout is not None
            seen = [int(line(process))]
            deadline = time.monotonic() + rng.uniform(0.0, 0.4)
            while (left := deadline - time.monotonic()) > 0:
                if select.select([process.stdout], [], [], left)[0]:
                    seen.append(int(process.stdout.readline()))
            process.send_signal(signal.SIGKILL)
            seen += [int(each) for each in process.stdout.read().split(b"\n")[:-1]]
        report = verify(folder, reducers())
        assert report.ok, report.first_problem
        assert report.events >= max(seen)
        assert set(range(1, max(seen) + 1)) == {
            event.seq for event in EventLog.read(folder).events() if event.seq <= max(seen)
        }
        log = reopen(folder)
        assert log.last_seq >= max(seen) > highest
        highest = max(seen)
        asyncio.run(log.close())
        assert verify(folder, reducers()).ok


@pytest.fixture
def flock_or_lockf(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The ending of a program's name; with `-by-lockf` this process has no flock either."""
    if request.param:
        monkeypatch.setattr(fcntl, "flock", fcntl.flock)
        without_flock()
    return str(request.param)


both_locks = pytest.mark.parametrize("flock_or_lockf", ["", "-by-lockf"], ids=["flock", "lockf"], indirect=True)


@pytest.mark.crash
@both_locks
def test_a_second_process_is_refused_and_told_by_whom_and_may_read(tmp_path: Path, flock_or_lockf: str) -> None:
    folder = tmp_path / "s"
    with program(f"hold{flock_or_lockf}", folder) as process:
        assert line(process) == "ready"
        with pytest.raises(LogLocked, match=rf"written by process {process.pid} .*open the session for reading"):
            reopen(folder)
        assert texts_of(EventLog.read(folder)) == ["held"]
        assert process.stdin is not None
        process.stdin.write(b"end\n")
        process.stdin.flush()
        assert process.wait(30) == 0
        log = reopen(folder)
        assert log.generation == 2
        asyncio.run(log.close())


@both_locks
def test_a_second_opening_in_the_same_process_is_refused(tmp_path: Path, flock_or_lockf: str) -> None:
    """A lock of lockf does not exclude its own process, and is lost when the process closes any copy of the file."""
    log = create(tmp_path / "s")
    for _ in range(2):
        with pytest.raises(LogLocked, match=f"process {os.getpid()}"):
            reopen(tmp_path / "s")
    assert is_locked(tmp_path / "s")
    holder = read_holder(tmp_path / "s")
    assert holder is not None
    assert holder.pid == os.getpid()
    with program(f"take{flock_or_lockf}", tmp_path / "s") as other:
        assert line(other).startswith(f"refused: session s is being written by process {os.getpid()}")
    log.post("user.message", message("still the writer"))
    asyncio.run(log.close())
    asyncio.run(reopen(tmp_path / "s").close())


@pytest.mark.crash
@both_locks
def test_a_forked_child_keeps_no_lock_when_its_parent_is_killed(tmp_path: Path, flock_or_lockf: str) -> None:
    """A forked data loader worker of the user's cell held the lock after the kernel was killed with -9."""
    folder = tmp_path / "s"
    with program(f"fork{flock_or_lockf}", folder) as process:
        said = sorted([line(process), line(process)])
        assert said[1] == "parent has 2"
        word, pid, refusal = said[0].split(" ", 2)
        assert word == "child"
        assert "forked child" in refusal
        with pytest.raises(LogLocked):
            reopen(folder)
        process.kill()
        process.wait()
        try:
            os.kill(int(pid), 0)
            log = reopen(folder)
            assert texts_of(log) == ["parent", "parent again"]
            asyncio.run(log.close())
        finally:
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.crash
def test_a_full_disk_ends_the_writing_and_the_log_goes_on_once_there_is_room(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with program("starve", folder) as process:
        done, text = line(process).split(" ", 1)
        assert "File too large" in text
        assert "free some space" in text
        assert line(process) == "stays read-only"
        assert process.wait(30) == 0
    assert 40 <= int(done) < 60
    assert segment(folder).stat().st_size <= 60_000
    log = reopen(folder)
    assert len(texts_of(log)) >= int(done)
    asyncio.run(log.append("user.message", message("room again")))
    asyncio.run(log.close())
    assert verify(folder, reducers()).ok


class FailingDisk(Disk):
    """A disk whose nth write or sync fails, and which counts what is asked of it afterwards."""

    def __init__(self, *, write: int = 0, sync: int = 0, code: int = errno.EIO) -> None:
        self.writes = self.syncs = 0
        self.fail_write, self.fail_sync, self.code = write, sync, code
        self.after = 0
        self.failed = False

    def write(self, descriptor: int, content: memoryview) -> int:
        self.after += self.failed
        self.writes += 1
        if self.writes == self.fail_write:
            self.failed = True
            os.write(descriptor, content[:30])
            raise OSError(self.code, os.strerror(self.code))
        # Every write is short, as a signal or a quota can make it.
        return super().write(descriptor, content[: max(1, len(content) // 2)])

    def sync(self, descriptor: int) -> None:
        self.after += self.failed
        self.syncs += 1
        if self.syncs == self.fail_sync:
            self.failed = True
            raise OSError(self.code, os.strerror(self.code))
        super().sync(descriptor)


@pytest.mark.parametrize("disk", [FailingDisk(write=40), FailingDisk(sync=4)], ids=["write", "sync"])
def test_nothing_is_written_after_a_failed_write_or_sync(tmp_path: Path, disk: FailingDisk) -> None:
    """A retry after a failed fsync reports success for pages that the kernel has already dropped."""

    async def run() -> None:
        log = create(tmp_path / "s", disk=disk)
        done = []

        async def write() -> None:
            for n in range(100):
                done.append((await log.append("user.message", message(str(n)))).seq)

        with pytest.raises(LogReadOnly, match=r"Input/output error.*read-only.*check the disk"):
            await write()
        results = await asyncio.gather(
            *(log.append("user.message", message("later")) for _ in range(5)), return_exceptions=True
        )
        assert all(isinstance(each, LogReadOnly) for each in results)
        with pytest.raises(LogReadOnly):
            log.post("user.message", message("later"))
        with pytest.raises(LogReadOnly):
            await log.flush()
        assert not log.writable
        assert log.problem is not None
        assert [event.seq for event in log.events()] == done
        await log.close()
        assert disk.failed
        assert disk.after == 0
        again = reopen(tmp_path / "s")
        assert len(texts_of(again)) >= len(done) > 0
        await again.close()

    asyncio.run(run())
    assert verify(tmp_path / "s", reducers()).ok


def test_all_that_wait_are_told_when_a_write_fails(tmp_path: Path) -> None:
    async def run() -> None:
        log = create(tmp_path / "s", disk=FailingDisk(sync=2))
        await log.append("user.message", message("good"))
        results = await asyncio.gather(
            *(log.append("user.message", message(str(n))) for n in range(20)),
            log.flush(),
            return_exceptions=True,
        )
        assert all(isinstance(each, LogReadOnly) for each in results)
        await log.close()

    asyncio.run(run())


def test_a_folder_that_is_removed_under_the_writer_is_noticed(tmp_path: Path) -> None:
    """Writes to a file without a name succeed, and everything is lost when it is closed."""

    async def run() -> None:
        log = create(tmp_path / "s")
        await log.append("user.message", message("good"))
        shutil.rmtree(tmp_path / "s")
        with pytest.raises(LogReadOnly, match="folder was removed"):
            await log.append("user.message", message("lost"))
        await log.close()

    asyncio.run(run())


def test_a_journal_that_another_program_changes_is_noticed(tmp_path: Path) -> None:
    async def run() -> None:
        log = create(tmp_path / "s")
        await log.append("user.message", message("good"))
        with segment(tmp_path / "s").open("ab") as file:
            file.write(b"x" * 5000)
        with pytest.raises(LogReadOnly, match="another program"):
            await log.append("user.message", message("lost"))
        await log.close()

    asyncio.run(run())


def test_a_folder_that_cannot_be_written_is_refused_clearly_and_read() -> None:
    # Not below pytest's own folder, which is closed to the user that the program becomes.
    import tempfile

    outer = Path(tempfile.mkdtemp())
    folder = outer / "s"
    try:
        write_session(folder, ["x"])
        outer.chmod(0o755)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        with program("unprivileged", folder) as process:
            opened, created, last = line(process), line(process), line(process)
        assert opened.startswith("LogReadOnly cannot write in")
        assert "make the folder writable, or open the session for reading" in opened
        assert created.startswith("LogReadOnly cannot make the session folder")
        assert last == "2"
    finally:
        for path in (folder, *(each for each in folder.rglob("*") if each.is_dir())):
            path.chmod(0o755)
        shutil.rmtree(outer)


def test_the_lock_says_who_holds_it(tmp_path: Path) -> None:
    log = create(tmp_path / "s")
    holder = json.loads((tmp_path / "s" / "lock").read_text())
    assert (holder["pid"], holder["generation"]) == (os.getpid(), 1)
    assert set(holder) == {"pid", "started", "boot", "host", "generation", "held"}
    assert is_held(tmp_path / "s")
    asyncio.run(log.close())
    assert not is_held(tmp_path / "s"), "this process lives, but released it"
    path = tmp_path / "s" / "lock"
    path.write_text(json.dumps({**holder, "host": "elsewhere"}))
    assert is_held(tmp_path / "s"), "whether it lives cannot be told from here"
    assert not is_locked(tmp_path / "s"), "the lock tells it"
    path.write_text(json.dumps({**holder, "started": holder["started"] - 1}))
    assert not is_held(tmp_path / "s"), "another process of this number"
    asyncio.run(reopen(tmp_path / "s").close())


def test_looking_whether_a_session_is_written_never_refuses_its_writer(tmp_path: Path) -> None:
    """Looking took the free lock for an instant: `%muse sessions` in one kernel refused the resume in another."""
    asyncio.run(create(tmp_path / "s").close())
    with program("look", tmp_path / "s") as other:
        assert line(other) == "looking"
        for _ in range(300):
            SessionLock.acquire(tmp_path / "s").release()
