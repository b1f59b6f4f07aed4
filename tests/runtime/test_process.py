"""The process runner: how commands end, what is shown of their output, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from musecode_jupyter.runtime import reaper
from musecode_jupyter.runtime.guardian import Guardian
from musecode_jupyter.runtime.loop import RuntimeThread
from musecode_jupyter.runtime.process import STATUS_FD, ProcessResult, ProcessSpec, Started, run_process


@pytest.fixture(scope="module")
def guardian() -> Iterator[Guardian]:
    guardian = Guardian.start()
    yield guardian
    guardian.close()


@pytest.fixture
def run(guardian: Guardian, tmp_path: Path) -> Callable[..., ProcessResult]:
    def run(*argv: str, env: dict[str, str] | None = None, **options: Any) -> ProcessResult:
        spec = ProcessSpec(
            argv, options.pop("cwd", tmp_path), {**os.environ, **(env or {})}, tmp_path / "output", **options
        )
        return asyncio.run(run_process(spec, guardian=guardian))

    return run


def running(marker: str) -> set[int]:
    """Processes whose command line or environment carries `marker`."""
    return reaper.find((), (f"\0PROBE={marker}\0".encode(),))


def test_exit_status_output_and_mode(run: Callable[..., ProcessResult]) -> None:
    result = run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (result.exit, result.ended, result.text) == (3, "exited", "out\nerr\n")
    assert result.output.read_bytes() == b"out\nerr\n"
    assert result.output_bytes == 8
    assert stat.S_IMODE(result.output.stat().st_mode) == 0o600


def test_death_by_signal_is_negative(run: Callable[..., ProcessResult]) -> None:
    result = run("sh", "-c", "kill -SEGV $$")
    assert (result.exit, result.ended) == (-signal.SIGSEGV, "exited")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("no-such-command-here",), "no-such-command-here: No such file or directory"),
        (("/etc/passwd",), "Permission denied"),
        (("echo", "a\0b"), "NUL"),
        (("echo", "\ud800"), "surrogates"),
    ],
)
def test_what_cannot_start_says_why(run: Callable[..., ProcessResult], argv: tuple[str, ...], says: str) -> None:
    result = run(*argv)
    assert (result.exit, result.ended) == (None, "not started")
    assert says in result.text


def test_missing_directory_and_output_folder_say_why(
    run: Callable[..., ProcessResult], guardian: Guardian, tmp_path: Path
) -> None:
    result = run("true", cwd=tmp_path / "gone")
    assert result.ended == "not started"
    assert "gone" in result.text
    spec = ProcessSpec(("true",), tmp_path, {}, tmp_path / "gone" / "output")
    result = asyncio.run(run_process(spec, guardian=guardian))
    assert result.ended == "not started"
    assert "output file" in result.text


def test_environment_and_arguments_arrive_as_given(run: Callable[..., ProcessResult]) -> None:
    """A launcher in a C locale must neither add LC_CTYPE nor change bytes that are not UTF-8."""
    code = "import os,sys; print(ascii(sys.argv[1:]), sorted(k for k in os.environ if k[:2] in ('LC', 'XQ')))"
    result = run(sys.executable, "-c", code, "\udcff", "", "x y", env={"XQ": "1", "PYTHONCOERCECLOCALE": "0"})
    expected = [*sorted(name for name in os.environ if name.startswith("LC")), "XQ"]
    assert result.text == f"['\\udcff', '', 'x y'] {expected}\n"


@pytest.mark.parametrize(
    "command",
    ["read x; echo got $x", "cat", "less /etc/passwd >/dev/null", "cat </dev/tty", "python3 -c 'input()'"],
)
def test_nothing_waits_for_a_user(run: Callable[..., ProcessResult], command: str) -> None:
    assert run("sh", "-c", command, timeout=20).ended == "exited"


def test_commit_without_message_does_not_hang(run: Callable[..., ProcessResult], tmp_path: Path) -> None:
    script = "git init -q . && git -c user.name=a -c user.email=a@b commit --allow-empty"
    result = run("sh", "-c", script, env={"GIT_EDITOR": "false"}, timeout=20)
    assert result.ended == "exited"
    assert result.exit != 0


def test_wall_limit_ends_a_command_that_ignores_sigterm(run: Callable[..., ProcessResult]) -> None:
    result = run("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done", timeout=0.5)
    assert (result.exit, result.ended) == (-signal.SIGKILL, "timeout")
    assert result.text.startswith("ready\n")
    assert 0.5 <= result.seconds < 10


LEFTOVERS = {
    "nohup": "nohup sleep 1000 & echo started",
    "double fork": "(sh -c 'sleep 1000 & sleep 1000 &' &); sleep 0.2",
    "setsid": "setsid sleep 1000 & sleep 0.2",
    "setsid twice": "setsid sh -c 'setsid sleep 1000 & exec sleep 1000' & sleep 0.2",
    "ignores TERM": "(trap '' TERM; sleep 1000) & sleep 0.2",
    "stopped": "sleep 1000 & kill -STOP $!",
}


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize("command", LEFTOVERS.values(), ids=LEFTOVERS.keys())
def test_what_a_command_leaves_behind_is_ended(run: Callable[..., ProcessResult], command: str, tmp_path: Path) -> None:
    marker = tmp_path.name
    result = run("sh", "-c", command, env={"PROBE": marker}, timeout=30)
    assert (result.exit, result.ended) == (0, "exited")
    assert running(marker) == set()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_descendants_without_session_and_environment_are_ended(
    run: Callable[..., ProcessResult], tmp_path: Path
) -> None:
    """A hanging test runner has workers in clean environments and new sessions; they must go too."""
    code = (
        "import subprocess, sys, time\n"
        "worker = [sys.executable, '-c', 'import time; time.sleep(1000)']\n"
        f"p = subprocess.Popen(worker, env={{'PROBE': {tmp_path.name!r}}}, start_new_session=True)\n"
        "time.sleep(1000)"
    )
    assert run(sys.executable, "-c", code, timeout=1.0).ended == "timeout"
    assert running(tmp_path.name) == set()


def test_fifty_megabytes_in_one_line_are_shown_as_head_and_tail(run: Callable[..., ProcessResult]) -> None:
    code = "import sys; sys.stdout.write('a' * 25_000_000 + 'b' * 25_000_000)"
    result = run(sys.executable, "-c", code)
    assert (result.exit, result.ended, result.output_bytes) == (0, "exited", 50_000_000)
    assert result.text == "a" * 4_000 + "\n[... 49988000 bytes cut ...]\n" + "b" * 8_000


def test_output_limit_ends_the_command(run: Callable[..., ProcessResult]) -> None:
    result = run("cat", "/dev/zero", output_limit=100_000, timeout=60)
    assert result.ended == "output"
    assert result.output_bytes == result.output.stat().st_size == 100_000


def test_too_much_output_is_told_even_if_the_command_was_faster_than_the_watch(
    run: Callable[..., ProcessResult],
) -> None:
    result = run("head", "-c", "100001", "/dev/zero", output_limit=100_000)
    assert (result.ended, result.output_bytes) == ("output", 100_000)


def test_limit_does_not_apply_to_files_the_command_writes(run: Callable[..., ProcessResult], tmp_path: Path) -> None:
    result = run("sh", "-c", "head -c 1000000 /dev/zero > big; echo done", output_limit=1_000)
    assert (result.exit, result.text) == (0, "done\n")
    assert (tmp_path / "big").stat().st_size == 1_000_000


def test_too_many_processes_end_the_command(run: Callable[..., ProcessResult], tmp_path: Path) -> None:
    code = "import os, time\nfor _ in range(60):\n    if os.fork() == 0:\n        time.sleep(1000)\ntime.sleep(1000)"
    result = run(sys.executable, "-c", code, env={"PROBE": tmp_path.name}, process_limit=20, timeout=60)
    assert result.ended == "processes"
    assert running(tmp_path.name) == set()


WRAPPER = """#!/bin/bash
# As bubblewrap: option, descriptor, then the command; exits with its status, and says so if it was started.
descriptor=$2; shift 2
[ "$1" = broken ] && { echo "wrapper: no such place" >&2; exit 1; }
"$@"; status=$?
echo '{ "exit-code": '$status' }' >&$descriptor
exit $status
"""


def test_a_wrapper_that_fails_is_no_failing_command(run: Callable[..., ProcessResult], tmp_path: Path) -> None:
    (tmp_path / "wrapper").write_text(WRAPPER)
    (tmp_path / "wrapper").chmod(0o755)
    wrapper = (str(tmp_path / "wrapper"), "--status", STATUS_FD)
    result = run("sh", "-c", "echo out; exit 1", wrapper=wrapper)
    assert (result.exit, result.ended, result.text) == (1, "exited", "out\n")
    result = run("true", wrapper=(*wrapper, "broken"))
    assert (result.exit, result.ended, result.text) == (None, "not started", "wrapper: no such place")
    result = run("true", wrapper=(str(tmp_path / "nowhere"),))
    assert (result.exit, result.ended) == (None, "not started")
    assert "nowhere: No such file or directory" in result.text
    result = run("sh", "-c", "kill -KILL $PPID; sleep 1000", wrapper=wrapper)
    assert (result.exit, result.ended) == (-signal.SIGKILL, "exited")


def test_binary_output_and_cut_characters(run: Callable[..., ProcessResult]) -> None:
    result = run(sys.executable, "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)))")
    assert result.text == bytes(range(256)).decode("utf-8", "replace")
    code = "import sys; sys.stdout.buffer.write('€'.encode() * 1000)"
    result = run(sys.executable, "-c", code, head=10, tail=10)
    assert result.text == "€€€\n[... 2982 bytes cut ...]\n€€€"


def test_cancellation_ends_the_group_first(guardian: Guardian, tmp_path: Path) -> None:
    async def scenario() -> Started:
        started: asyncio.Future[Started] = asyncio.get_running_loop().create_future()
        spec = ProcessSpec(("sh", "-c", "sleep 1000 & sleep 1000"), tmp_path, dict(os.environ), tmp_path / "output")
        task = asyncio.create_task(run_process(spec, guardian=guardian, on_started=started.set_result))
        pid = (await started).pid
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # impatience does not cut the cleanup short
        with pytest.raises(asyncio.CancelledError):
            await task
        assert reaper.find((pid,), ()) == set()
        return await started

    started = asyncio.run(scenario())
    assert started.pid == started.pgid


def test_error_of_the_callback_ends_the_command(guardian: Guardian, tmp_path: Path) -> None:
    seen: list[int] = []

    def refuse(started: Started) -> None:
        seen.append(started.pid)
        raise ValueError("journal is read-only")

    spec = ProcessSpec(("sleep", "1000"), tmp_path, dict(os.environ), tmp_path / "output")
    with pytest.raises(ValueError, match="read-only"):
        asyncio.run(run_process(spec, guardian=guardian, on_started=refuse))
    assert reaper.find(seen, ()) == set()


def test_parallel_commands_on_the_runtime_thread(guardian: Guardian, tmp_path: Path) -> None:
    """Child watchers of asyncio need the main thread in some versions; the runner must not use them."""

    async def many() -> list[ProcessResult]:
        def one(number: int) -> ProcessSpec:
            return ProcessSpec(
                ("sh", "-c", f"echo {number}; exit {number}"),
                tmp_path,
                dict(os.environ),
                tmp_path / f"{number}",
            )

        return await asyncio.gather(*(run_process(one(number), guardian=guardian) for number in range(8)))

    runtime = RuntimeThread.start()
    try:
        results = runtime.call(many(), timeout=60)
    finally:
        assert runtime.stop()
    assert [result.exit for result in results] == list(range(8))
    assert [result.text for result in results] == [f"{number}\n" for number in range(8)]
    assert threading.main_thread().is_alive()


SIGNALS = """
import asyncio, os, signal, sys
from pathlib import Path
from musecode_jupyter.runtime.guardian import Guardian
from musecode_jupyter.runtime.process import ProcessSpec, run_process
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
code = "import signal; print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGCHLD))"
spec = ProcessSpec((sys.executable, "-c", code), Path("."), dict(os.environ), Path("output"))
result = asyncio.run(run_process(spec, guardian=Guardian.start()))
print(result.exit, result.ended, result.text)
"""


def test_ignored_signals_of_the_kernel_are_not_inherited_and_a_lost_status_is_no_success(
    tmp_path: Path,
) -> None:
    """ipykernel ignores SIGINT between cells; with SIGCHLD ignored, subprocess reports exit 0 for all."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("None exited <built-in function default_int_handler> 0\n"), done
    assert "exit status is lost" in done.stdout
