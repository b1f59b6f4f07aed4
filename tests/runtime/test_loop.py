"""The runtime thread: work beside the cells, waiting that can be interrupted, forks, bounded stopping."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.runtime.loop import RuntimeThread, assert_runtime_thread, in_runtime_thread

CELL: contextvars.ContextVar[str] = contextvars.ContextVar("CELL", default="none")


@pytest.fixture
def runtime() -> Iterator[RuntimeThread]:
    runtime = RuntimeThread.start()
    yield runtime
    assert runtime.stop()


async def answer(value: int) -> int:
    return value


def test_call_returns_and_raises_what_the_work_does(runtime: RuntimeThread) -> None:
    async def fail() -> None:
        raise TimeoutError("of the work itself")

    assert runtime.call(answer(3)) == 3
    with pytest.raises(TimeoutError, match="itself"):
        runtime.call(fail(), timeout=20)


def test_thread_knows_itself(runtime: RuntimeThread) -> None:
    async def look() -> bool:
        assert_runtime_thread()
        return in_runtime_thread()

    assert runtime.call(look())
    assert not in_runtime_thread()
    with pytest.raises(RuntimeError, match="only the runtime thread"):
        assert_runtime_thread()


def test_work_does_not_see_the_context_of_the_cell(runtime: RuntimeThread) -> None:
    """Output of background work went to the cell that had launched it, through a context variable."""
    seen: list[str] = []
    posted = threading.Event()

    async def look() -> tuple[str, str]:
        return CELL.get(), await asyncio.to_thread(CELL.get)

    def note() -> None:
        seen.append(CELL.get())
        posted.set()

    CELL.set("cell 7")
    assert runtime.call(look()) == ("none", "none")
    assert runtime.submit(look()).result(20) == ("none", "none")
    runtime.post(note)
    assert posted.wait(20)
    assert seen == ["none"]


def test_timeout_ends_the_waiting_only(runtime: RuntimeThread) -> None:
    go, done = threading.Event(), threading.Event()

    async def work() -> None:
        await asyncio.to_thread(go.wait, 20)
        done.set()

    with pytest.raises(TimeoutError, match="goes on"):
        runtime.call(work(), timeout=0.05)
    go.set()
    assert done.wait(20)


def test_interrupt_ends_the_waiting_only(runtime: RuntimeThread) -> None:
    started, go, done = threading.Event(), threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        await asyncio.to_thread(go.wait, 20)
        done.set()

    def interrupt() -> None:
        started.wait(20)
        signal.raise_signal(signal.SIGINT)

    presser = threading.Thread(target=interrupt)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        runtime.call(work())
    presser.join()
    assert not done.is_set()
    go.set()
    assert done.wait(20)


def test_exceptions_in_the_background_are_logged(runtime: RuntimeThread, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("lost otherwise")

    with caplog.at_level(logging.ERROR):
        future = runtime.submit(fail())
        with pytest.raises(ValueError, match="lost"):
            future.result(20)
        runtime.post(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
        runtime.call(answer(1))
    assert "lost otherwise" in caplog.text
    assert "division by zero" in caplog.text


def test_work_that_exits_does_not_end_the_loop(runtime: RuntimeThread) -> None:
    async def leave() -> None:
        sys.exit(3)

    with pytest.raises(SystemExit):
        runtime.call(leave())
    assert runtime.call(answer(4)) == 4


def test_waiting_for_itself_is_refused(runtime: RuntimeThread) -> None:
    async def wrong() -> str:
        try:
            runtime.call(answer(1))
        except RuntimeError as error:
            return str(error)
        return ""

    assert "wait for itself" in runtime.call(wrong())


def test_stop_cancels_and_waits_for_cleanup() -> None:
    runtime = RuntimeThread.start()
    started = threading.Event()
    order: list[str] = []

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(order.append, "cleaned up")

    runtime.submit(work())
    assert started.wait(20)
    assert runtime.stop()
    assert runtime.stop()
    assert order == ["cleaned up"]
    assert not runtime.is_usable()
    for use in (
        lambda: runtime.call(answer(1)),
        lambda: runtime.submit(answer(1)),
        lambda: runtime.post(print),
    ):
        with pytest.raises(UsageProblem, match="stopped"):
            use()


def test_stop_lets_cleanup_run_that_is_a_task_of_its_own() -> None:
    """A git that was stopped with the thread once went on: the task that was to end it was cancelled before it ran."""
    runtime = RuntimeThread.start()
    started = threading.Event()
    order: list[str] = []

    async def cleanup() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        order.append("cleaned up")

    async def work() -> None:
        waits = asyncio.ensure_future(asyncio.Event().wait())
        started.set()
        try:
            await waits
        finally:
            await asyncio.shield(cleanup())

    runtime.submit(work())
    assert started.wait(20)
    assert runtime.stop()
    assert order == ["cleaned up"]


def test_stop_is_bounded() -> None:
    runtime = RuntimeThread.start()
    started, release = threading.Event(), threading.Event()

    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    runtime.submit(stubborn())
    assert started.wait(20)
    began = time.monotonic()
    runtime.stop(timeout=0.3)
    assert time.monotonic() - began < 5
    release.set()


def test_waiting_ends_when_the_thread_is_stopped() -> None:
    runtime = RuntimeThread.start()
    started = threading.Event()
    ended: list[BaseException] = []

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            runtime.call(work())
        except BaseException as error:
            ended.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert started.wait(20)
    assert runtime.stop()
    waiter.join(20)
    assert not waiter.is_alive()
    assert len(ended) == 1


def test_forked_child_gets_a_clear_error_and_the_parent_goes_on(runtime: RuntimeThread) -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            runtime.call(answer(1))
        except UsageProblem as error:
            code = 7 if "forked child" in str(error) and not runtime.is_usable() and runtime.stop() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert runtime.call(answer(5)) == 5


def test_interpreter_exits_while_work_is_running() -> None:
    code = (
        "import asyncio\n"
        "from musecode_jupyter.runtime.loop import RuntimeThread\n"
        "RuntimeThread.start().submit(asyncio.sleep(1000))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


AT_THE_END = """
import asyncio, atexit, sys, tempfile, pathlib
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.loop import RuntimeThread
from musecode_jupyter.runtime.process import ProcessSpec

runtime, effects, folder = RuntimeThread.start(), LiveEffects(), pathlib.Path(tempfile.mkdtemp())

def spec(command):
    return ProcessSpec(argv=("/bin/sh", "-c", command), cwd=folder, env={}, output=folder / "out", timeout=30)

async def fails():
    raise await asyncio.to_thread(lambda: OSError("of the work itself"))

running = runtime.submit(effects.run(spec(f"until test -e {folder}/end; do sleep 0.05; done; echo told")))

@atexit.register
def last():
    print(runtime.call(effects.disk(lambda: "disk"), 30), runtime.call(asyncio.to_thread(lambda: "thread"), 30))
    (folder / "end").touch()
    print(running.result(30).ended, running.result().text, runtime.call(effects.run(spec("exit 3")), 30).exit)
    try:
        runtime.call(fails(), 30)
    except OSError as error:
        print(error)
    runtime.call(effects.aclose(), 30)
"""


def test_work_goes_on_while_the_interpreter_ends() -> None:
    """No thread can be started then: a command that ran was ended for it, and its check taken for one that failed."""
    ran = subprocess.run([sys.executable, "-c", AT_THE_END], timeout=90, check=False, capture_output=True, text=True)
    assert ran.stdout.split("\n") == ["disk thread", "exited told", " 3", "of the work itself", ""], ran.stderr
