"""Runs approved code in the user's kernel, on its main thread, between the user's cells and never in the middle of one.

Code is asked for from any thread and waits in a queue. The main thread takes it up when no cell runs: a cell is
running from the moment its execute request is handled until that has ended, which is known by wrapping the kernel's
handler of execute requests; a callback on the kernel's loop alone would also run while a cell awaits. A cell that waits
for the agents themselves (`%muse ask`, `g.wait()`, `await g`) lends its wait through `serve`, since else both would
wait for ever.

What the code prints and displays is captured; what escapes the capture belongs to a message that no cell has. Code is
Python and IPython's syntax without `await`: it runs in one piece, so no cell can begin amid it either.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

from musecode_jupyter.jupyter.captured import Captured, execute, forget_sources
from musecode_jupyter.tools.pictures import PictureFile

Ending = Literal["finished", "failed", "timeout", "interrupted", "stopped"]
# A time limit or a stop that code swallows, or that a finalizer of it did, is enforced again after so many seconds.
AGAIN_S = 1.0
# While another shell message is handled, the queue is looked at again after so many seconds.
RETRY_S = 0.05


@dataclass(frozen=True)
class CodeRequest:
    """Code to run. `own` runs it in the user's own namespace, else in a copy of it: names that are bound there stay
    apart, the objects themselves are shared. `keep` names what the user's namespace gets at the end. `limit` is in
    seconds of running."""

    code: str
    own: bool = False
    keep: tuple[str, ...] = ()
    limit: float = 60.0


@dataclass(frozen=True)
class CodeResult:
    """How it went. `output` is what was printed and displayed, the value of a last expression, or the traceback."""

    ended: Ending
    output: str
    seconds: float
    kept: tuple[str, ...] = ()
    pictures: tuple[PictureFile, ...] = ()


@dataclass
class _Job:
    request: CodeRequest
    on_state: Callable[[str], object]
    future: Future[CodeResult] = field(default_factory=Future)
    over: threading.Event = field(default_factory=threading.Event)
    unwanted: bool = False


class CodeEnded(KeyboardInterrupt):
    """Raised in the code that runs, by the interrupt key, the time limit or a stop."""

    def __init__(self, why: Ending) -> None:
        super().__init__(why)
        self.why = why


class UserCode:
    """The queue of one kernel. `kernel` is None in a terminal, where code runs only when the user types it."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._kernel: Any = getattr(shell, "kernel", None)
        self._queue: deque[_Job] = deque()
        self._handler: Callable[..., Any] | None = None
        self._wrapper: Callable[..., Any] | None = None
        self._cells = 0
        self._guard = threading.Lock()
        self._armed: _Job | None = None
        self._running: _Job | None = None
        self._why: Ending = "interrupted"
        self._runs = 0

    @property
    def possible(self) -> bool:
        """Whether code of agents can run here at all: there is a kernel with a loop."""
        return self._kernel is not None and getattr(self._kernel, "io_loop", None) is not None

    @property
    def busy(self) -> bool:
        """Whether a cell, or another message of the main shell, is being handled."""
        lock = getattr(self._kernel, "_main_asyncio_lock", None)
        return self._cells > 0 or (lock is not None and lock.locked())

    def attach(self) -> None:
        """Begin to watch the cells; on the main thread, in a cell, or in a subshell."""
        if not self.possible:
            return
        handlers = self._kernel.shell_handlers
        original = self._handler = handlers["execute_request"]

        async def execute_request(stream: Any, ident: Any, parent: Any) -> None:
            if threading.current_thread() is not threading.main_thread():
                await _awaited(original(stream, ident, parent))
                return
            self._cells += 1
            try:
                await _awaited(original(stream, ident, parent))
            finally:
                self._cells -= 1
                self._wake()

        self._wrapper = handlers["execute_request"] = execute_request
        if threading.current_thread() is threading.main_thread():
            # The cell that we are in is not under the wrapper.
            self._cells = 1
            self._shell.events.register("post_execute", self._first_cell_ends)

    def detach(self) -> None:
        """Take back all of `attach`; code that waits is not run."""
        self._forget_first_cell()
        if self._kernel is not None and self._handler is not None:
            handlers = self._kernel.shell_handlers
            if handlers.get("execute_request") is self._wrapper:
                handlers["execute_request"] = self._handler
        self._handler = self._wrapper = None
        while self._queue:
            self._queue.popleft().future.cancel()
        forget_sources()

    def submit(self, request: CodeRequest, on_state: Callable[[str], object]) -> Future[CodeResult]:
        """Queue code; from any thread. `on_state` is called with "waiting" at once if a cell holds it up, and with
        "running" when it begins. Cancelling the future withdraws the code, `stop` ends it while it runs."""
        job = _Job(request, on_state)
        if self.busy:
            on_state("waiting")
        self._queue.append(job)
        self._kernel.io_loop.add_callback(self._take_up)
        return job.future

    def stop(self, future: Future[CodeResult]) -> None:
        """Withdraw code, or end it if it runs; from any thread."""
        if future.cancel():
            return
        job = self._running
        if job is not None and job.future is future:
            # It may be about to begin, before there is anything to interrupt.
            job.unwanted = True
        self._end(lambda armed: armed.future is future, "stopped")

    def serve(self) -> None:
        """Run what waits, now: called by a wait of ours inside a cell. Does nothing off the main thread."""
        if threading.current_thread() is threading.main_thread() and self._armed is None:
            self._run_queue()

    def typed(self, request: CodeRequest) -> CodeResult:
        """Run code that the user typed: in that cell if it is one of the main thread, else between two cells of it."""
        if threading.current_thread() is threading.main_thread():
            return self._run(_Job(request, lambda _state: None))

        def tell(state: str) -> None:
            if state == "waiting":
                print("Waits for the running cell.")

        future = self.submit(request, tell)
        try:
            return future.result()
        except BaseException:
            self.stop(future)
            raise

    def _wake(self) -> None:
        if self._queue:
            self._kernel.io_loop.add_callback(self._take_up)

    def _take_up(self) -> None:
        if not self._queue or self._armed is not None:
            return
        if self._cells > 0:
            return  # the end of the cell wakes us
        if self.busy:
            asyncio.get_running_loop().call_later(RETRY_S, self._take_up)
            return
        with self._busy_kernel():
            self._run_queue()

    def _run_queue(self) -> None:
        while self._queue:
            job = self._running = self._queue.popleft()
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                result = self._run(job)
            except BaseException as error:
                job.future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
                if not isinstance(error, Exception):
                    raise
            else:
                job.future.set_result(result)

    def _run(self, job: _Job) -> CodeResult:
        self._runs += 1
        self._why = "interrupted"
        captured = Captured(self._shell)
        ended: Ending = "finished"
        kept: tuple[str, ...] = ()
        watch = threading.Thread(target=self._watch, args=(job,), name="musecode-limit", daemon=True)
        job.on_state("running")
        began = time.monotonic()
        with captured:
            # Between cells the kernel ignores the interrupt key.
            before = signal.signal(signal.SIGINT, self._interrupted)
            try:
                try:
                    self._armed = job
                    if job.unwanted:
                        raise CodeEnded("stopped")
                    watch.start()
                    kept, failed = execute(self._shell, job.request, captured, self._runs)
                    ended = "failed" if failed else "finished"
                finally:
                    # A plain assignment: a signal cannot come between, as it could on the way into a function.
                    self._armed = None
            except CodeEnded as end:
                ended = end.why
            finally:
                with self._guard:
                    # Whoever was about to send a signal has sent it by now, and the handler has let it pass.
                    pass
                signal.signal(signal.SIGINT, before)
        job.over.set()
        if watch.ident is not None:
            watch.join()
        return CodeResult(
            ended,
            str(captured.output),
            time.monotonic() - began,
            kept,
            captured.output.pictures("what the code showed"),
        )

    def _interrupted(self, _signum: int, _frame: FrameType | None) -> None:
        if self._armed is not None:
            raise CodeEnded(self._why)

    def _watch(self, job: _Job) -> None:
        until = time.monotonic() + job.request.limit
        while not job.over.wait(min(AGAIN_S, max(0.0, until - time.monotonic())) or AGAIN_S):
            if job.unwanted:
                self._end(lambda armed: armed is job, "stopped")
            elif time.monotonic() >= until:
                self._end(lambda armed: armed is job, "timeout")

    def _end(self, which: Callable[[_Job], bool], why: Ending) -> None:
        # The lock is why a late signal cannot hit the cell that comes next: the end of a run waits for it.
        with self._guard:
            armed = self._armed
            if armed is not None and which(armed):
                self._why = why
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    @contextlib.contextmanager
    def _busy_kernel(self) -> Iterator[None]:
        """Let front ends show the kernel as busy while code runs between cells."""
        kernel = self._kernel
        parent = kernel.session.msg("musecode_code")

        def publish(state: str) -> None:
            kernel.session.send(kernel.iopub_socket, "status", {"execution_state": state}, parent=parent)

        publish("busy")
        try:
            yield
        finally:
            publish("idle")

    def _first_cell_ends(self) -> None:
        self._forget_first_cell()
        self._wake()

    def _forget_first_cell(self) -> None:
        with contextlib.suppress(ValueError):
            self._shell.events.unregister("post_execute", self._first_cell_ends)
            self._cells -= 1


async def _awaited(result: Any) -> None:
    if inspect.isawaitable(result):
        await result
