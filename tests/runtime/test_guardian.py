"""The guardian ends what is registered when the kernel is gone, however it went."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.sandbox_bench import missing

from musecode_jupyter.runtime import reaper
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.runtime.guardian import Guardian

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes through /proc")


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def probes(marker: str) -> set[int]:
    return reaper.find((), (f"\0PROBE={marker}\0".encode(),))


def guardians(prefix: str) -> set[int]:
    """Guardian processes by the prefix in their command line."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if prefix.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                    found.add(int(name))
            except OSError:
                continue
    return found


def sleeps(marker: str) -> list[int]:
    """Probes that have become `sleep`."""
    return [pid for pid in probes(marker) if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"]


def sleeper(marker: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"], env={**os.environ, "PROBE": marker}, start_new_session=True)


KERNEL = """
import asyncio, os, sys
from pathlib import Path
from musecode_jupyter.runtime.guardian import Guardian
from musecode_jupyter.runtime.process import ProcessSpec, run_process
guardian = Guardian.start()
command = "sleep 1000 & setsid sleep 1000 & (trap '' TERM; sleep 1000) & exec sleep 1000"
spec = ProcessSpec(("sh", "-c", command), Path("."), {**os.environ, "PROBE": sys.argv[1]}, Path("output"))
if sys.argv[2] == "fork":
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "30"]) if os.fork() == 0 else __import__("time").sleep(30)
print(guardian.prefix, flush=True)
asyncio.run(run_process(spec, guardian=guardian))
"""


SANDBOXED = """
import asyncio, os, sys
from pathlib import Path
from musecode_jupyter.guard.sandbox import Realm, choose
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.process import ProcessSpec
async def main():
    effects = LiveEffects()
    sandbox = await choose("bubblewrap", None, effects)
    script = "for i in 1 2 3; do (trap '' TERM; env -i PROBE=$PROBE setsid sleep 1000) & done; wait"
    spec = ProcessSpec(("bash", "-c", script), Path.cwd(), {**os.environ, "PROBE": sys.argv[1]}, Path("output"))
    await sandbox.run(spec, Realm(Path.cwd(), True), effects)
asyncio.run(main())
"""


def test_kill_9_of_the_kernel_ends_all_in_the_sandbox(tmp_path: Path) -> None:
    """Processes that clear their environment and leave their session are found by their namespace alone."""
    problem = missing("bubblewrap")
    if problem:
        pytest.skip(problem)
    kernel = subprocess.Popen([sys.executable, "-c", SANDBOXED, tmp_path.name], cwd=tmp_path, start_new_session=True)
    try:
        wait_until(lambda: len(sleeps(tmp_path.name)) == 3)
        kernel.kill()
        kernel.wait()
        wait_until(lambda: not probes(tmp_path.name))
    finally:
        kernel.kill()
        kernel.wait()


@pytest.mark.crash
@pytest.mark.parametrize("forks", ["plain", "fork"])
def test_kill_9_of_the_kernel_ends_its_processes(tmp_path: Path, forks: str) -> None:
    """A forked child that keeps the pipe open would keep the guardian waiting: it must not."""
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL, tmp_path.name, forks],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert kernel.stdout is not None
        prefix = kernel.stdout.readline().strip()
        # sh became the fourth sleep; the subshell is a process beside its own sleep.
        wait_until(lambda: len(probes(tmp_path.name)) >= 4)
        assert guardians(prefix)
        kernel.kill()
        kernel.wait()
        wait_until(lambda: not probes(tmp_path.name))
        wait_until(lambda: not guardians(prefix))
    finally:
        os.killpg(kernel.pid, signal.SIGKILL) if forks == "fork" else kernel.kill()
        kernel.wait()
        assert kernel.stdout is not None
        kernel.stdout.close()


def test_close_ends_registered_groups_and_the_guardian(tmp_path: Path) -> None:
    guardian = Guardian.start()
    child, spared = sleeper(tmp_path.name), sleeper(tmp_path.name)
    try:
        guardian.add(child.pid)
        guardian.add(spared.pid)
        guardian.remove(spared.pid)
        guardian.close()
        guardian.close()
        assert child.wait(20) == -signal.SIGTERM
        wait_until(lambda: not guardians(guardian.prefix))
        assert spared.poll() is None
        with pytest.raises(UsageProblem, match="closed"):
            guardian.add(spared.pid)
        guardian.remove(child.pid)
    finally:
        for process in (child, spared):
            process.kill()
            process.wait()


@pytest.mark.parametrize("notices", ["add", "check"])
def test_killed_guardian_is_replaced_with_the_current_groups(tmp_path: Path, notices: str) -> None:
    guardian = Guardian.start()
    child, other = sleeper(tmp_path.name), sleeper(tmp_path.name)
    try:
        guardian.add(child.pid)
        wait_until(lambda: len(guardians(guardian.prefix)) == 1)
        (old,) = guardians(guardian.prefix)
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: old not in guardians(guardian.prefix))
        if notices == "add":
            guardian.add(other.pid)
        else:
            guardian.check()
        wait_until(lambda: bool(guardians(guardian.prefix)))
        guardian.close()
        assert child.wait(20) == -signal.SIGTERM
    finally:
        guardian.close()
        for process in (child, other):
            process.kill()
            process.wait()


def test_guardian_is_no_child_of_the_kernel() -> None:
    """User code that waits for all its children would wait for the guardian for ever."""
    guardian = Guardian.start()
    try:
        wait_until(lambda: len(guardians(guardian.prefix)) == 1)
        (pid,) = guardians(guardian.prefix)
        status = Path(f"/proc/{pid}/status").read_text()
        assert f"\nPPid:\t{os.getpid()}\n" not in status
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        guardian.check()
        assert guardians(guardian.prefix) == {pid}
    finally:
        guardian.close()


def test_forked_child_cannot_start_processes_and_does_not_close_the_guardian(tmp_path: Path) -> None:
    guardian = Guardian.start()
    child = sleeper(tmp_path.name)
    try:
        guardian.add(child.pid)
        pid = os.fork()
        if pid == 0:
            try:
                guardian.add(os.getpid())
            except UsageProblem:
                guardian.close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        guardian.check()
        assert child.poll() is None
        assert len(guardians(guardian.prefix)) == 1
    finally:
        guardian.close()
        child.kill()
        child.wait()
