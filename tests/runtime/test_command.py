"""Short programs whose output is the answer: deadlines, cancellation, what cannot be started, SIGCHLD ignored."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from musecode_jupyter.runtime.command import Command, run_command
from musecode_jupyter.runtime.effects import LiveEffects


def command(tmp_path: Path, *argv: str, **more: object) -> Command:
    return Command(argv, tmp_path, {"PATH": os.environ["PATH"]}, **more)  # type: ignore[arg-type]


def test_the_answer_is_status_and_output(tmp_path: Path) -> None:
    script = "cat; echo problem >&2; exit 3"
    answer = asyncio.run(LiveEffects().ask(command(tmp_path, "sh", "-c", script, input=b"a\0b")))
    assert (answer.code, answer.out, answer.err) == (3, b"a\0b", "problem\n")


def test_without_input_there_is_nothing_to_read(tmp_path: Path) -> None:
    assert asyncio.run(run_command(command(tmp_path, "cat"))).out == b""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_after_the_deadline_the_whole_group_is_ended(tmp_path: Path) -> None:
    script = "sleep 600 & echo $! > child; wait"
    with pytest.raises(TimeoutError):
        asyncio.run(run_command(command(tmp_path, "sh", "-c", script, timeout=0.5)))
    assert not alive(int((tmp_path / "child").read_text()))


def test_a_cancelled_command_is_ended(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "running")

    async def run() -> int:
        script = "echo $$ > running; exec sleep 600"
        task = asyncio.create_task(run_command(command(tmp_path, "sh", "-c", script)))
        pid = int(await asyncio.to_thread((tmp_path / "running").read_text))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pid

    assert not alive(asyncio.run(run()))


class Boom(Exception):
    pass


def test_a_command_cancelled_amid_its_start_does_not_hang(tmp_path: Path) -> None:
    """A sibling that fails at once has the loop cancel what is just being started."""

    async def fails() -> None:
        raise Boom

    async def both() -> None:
        one, other = (run_command(command(tmp_path, "sh", "-c", "exit 0")) for _ in range(2))
        await asyncio.gather(one, fails(), other)

    for _ in range(5):
        with pytest.raises(Boom):
            asyncio.run(both())


def test_what_a_program_leaves_behind_does_not_hold_up_its_end(tmp_path: Path) -> None:
    script = "setsid sleep 600 & echo $! > child; echo done"
    try:
        answer = asyncio.run(run_command(command(tmp_path, "sh", "-c", script, timeout=30)))
        assert (answer.code, answer.out) == (0, b"done\n")
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_large_input_and_output(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    assert asyncio.run(run_command(command(tmp_path, "cat", input=data))).out == data


def test_what_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(run_command(command(tmp_path, "no-such-program")))


def test_an_ignored_sigchld_is_said_and_not_taken_for_success(tmp_path: Path) -> None:
    """With SIGCHLD ignored the system keeps no exit status: a failing git command looked like a strange success."""
    program = f"""
import asyncio, signal
from pathlib import Path
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
try:
    asyncio.run(Git.discover(Path({str(tmp_path)!r}), LiveEffects()))
except GitError as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "signal.signal(signal.SIGCHLD, signal.SIG_DFL)" in done.stdout
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
