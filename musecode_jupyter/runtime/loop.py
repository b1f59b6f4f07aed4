"""The runtime thread: one asyncio loop in one daemon thread, beside the user's cells."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

from musecode_jupyter.runtime.errors import Stopped, UsageProblem

_T = TypeVar("_T")
_P = ParamSpec("_P")
_Ts = TypeVarTuple("_Ts")
_POLL = 0.1
_log = logging.getLogger(__name__)
_here = threading.local()


def in_runtime_thread() -> bool:
    """Whether the caller runs in a runtime thread of this process."""
    return getattr(_here, "pid", None) == os.getpid()


def assert_runtime_thread() -> None:
    """Raise RuntimeError unless called in a runtime thread: only there is a session's state touched."""
    if not in_runtime_thread():
        raise RuntimeError(f"called in thread {threading.current_thread().name}, but only the runtime thread may")


class _Helpers(ThreadPoolExecutor):
    """The threads for what blocks; while the interpreter ends, which allows none, the caller does it itself.

    Nothing that runs until the process is gone may take its end for an error of its own, and a session is closed then.
    """

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as refused:
            if not str(refused).startswith("cannot schedule new futures"):
                raise
        done: Future[_T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


class RuntimeThread:
    """Owner of the loop and of everything that runs on it; made by `start`, ended by `stop`.

    Work starts in an empty `contextvars` context: output of work in the background does not go to the cell
    that happened to launch it. After `os.fork` the thread does not exist in the child: there every call
    raises `UsageProblem`.
    """

    def __init__(self) -> None:
        # Not asyncio.new_event_loop(): user code may have set another event loop policy.
        self._loop = asyncio.SelectorEventLoop()
        self._loop.set_default_executor(_Helpers(thread_name_prefix="musecode-helper"))
        self._pid = os.getpid()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="musecode-runtime", daemon=True)

    @classmethod
    def start(cls) -> RuntimeThread:
        """Start the thread; its loop takes work at once."""
        runtime = cls()
        runtime._thread.start()
        return runtime

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop itself, for code that already runs in it."""
        return self._loop

    def is_usable(self) -> bool:
        """Whether work can be submitted: started, not stopped, and not in a forked child."""
        return self._pid == os.getpid() and not self._stopping and self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Run `work` in the background; an exception that ends it is logged, and is the future's too.

        Raises
        ------
        UsageProblem
            The thread was stopped, or this is a forked child.
        """
        future = self._schedule(work)
        future.add_done_callback(_log_exception)
        return future

    def call(
        self,
        work: Coroutine[Any, Any, _T],
        timeout: float | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> _T:
        """Run `work` and wait for what it returns or raises; the waiting thread calls `meanwhile` again and again.

        KeyboardInterrupt ends the waiting only, and so does TimeoutError after `timeout` seconds: the work
        goes on.

        Raises
        ------
        UsageProblem
            The thread was stopped, before or while waiting, or this is a forked child.
        RuntimeError
            Called in the runtime thread, which would wait for itself.
        """
        if in_runtime_thread():
            work.close()
            raise RuntimeError("RuntimeThread.call in the runtime thread would wait for itself: await the coroutine")
        future = self._schedule(work)
        give_up_at = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                left = _POLL if give_up_at is None else min(_POLL, max(give_up_at - time.monotonic(), 0.0))
                # Not future.result(timeout): a TimeoutError of the work itself must not look like ours.
                if concurrent.futures.wait((future,), left).done:
                    return future.result()
                if meanwhile is not None:
                    meanwhile()
                if give_up_at is not None and time.monotonic() >= give_up_at:
                    raise TimeoutError(f"not finished after {timeout:g} s; the work goes on")
                if not self._thread.is_alive() and not future.done():
                    raise UsageProblem("the runtime thread was stopped: reload the extension to go on")
        finally:
            if not future.done():
                future.add_done_callback(_log_exception)

    def post(self, function: Callable[[*_Ts], object], *arguments: *_Ts) -> None:
        """Call `function` soon in the runtime thread; an exception is logged."""
        self._require_usable()
        self._loop.call_soon_threadsafe(function, *arguments, context=Context())

    def stop(self, timeout: float = 10.0) -> bool:
        """Cancel all work, wait at most `timeout` seconds for its cleanup, end the thread; may be repeated.

        Returns
        -------
        bool
            False if the thread still runs, because something in it blocks.
        """
        if in_runtime_thread():
            raise RuntimeError("RuntimeThread.stop in the runtime thread would wait for itself")
        if self._pid != os.getpid():
            return True
        if not self._stopping:
            self._stopping = True
            with contextlib.suppress(RuntimeError):  # closed already: the thread has died
                self._loop.call_soon_threadsafe(self._begin_end, timeout * 0.9, context=Context())
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _require_usable(self) -> None:
        if self._pid != os.getpid():
            raise UsageProblem("this is a forked child: the agents live in the parent process; call from there")
        if not self.is_usable():
            raise UsageProblem("the runtime thread was stopped: reload the extension to go on")

    def _schedule(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        try:
            self._require_usable()
        except UsageProblem:
            work.close()
            raise
        # Not closed on other errors: at a KeyboardInterrupt here the loop may be running it already.
        return Context().run(asyncio.run_coroutine_threadsafe, work, self._loop)

    def _run(self) -> None:
        _here.pid = os.getpid()
        asyncio.set_event_loop(self._loop)
        ended = False
        try:
            while not ended:
                try:
                    self._loop.run_forever()
                    ended = True
                except (KeyboardInterrupt, SystemExit):
                    # One task that calls sys.exit() must not end everybody's loop.
                    _log.exception("work in the runtime thread tried to exit; the thread goes on")
        finally:
            self._stopping = True
            self._loop.close()

    def _begin_end(self, timeout: float) -> None:
        ending = self._loop.create_task(self._end(timeout))
        ending.add_done_callback(lambda _: self._loop.stop())

    async def _end(self, timeout: float) -> None:
        begun_at = time.monotonic()
        give_up_at = begun_at + timeout
        work = asyncio.all_tasks()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                # What appears later is cleanup, for instance the end of a process group: it has half the time.
                if not task.cancelling() and (task in work or time.monotonic() - begun_at >= timeout / 2):
                    task.cancel()
            left = give_up_at - time.monotonic()
            if left <= 0:
                _log.warning("%d tasks did not end in %.1f s", len(tasks), timeout)
                return
            await asyncio.wait(tasks, timeout=min(left, timeout / 2), return_when=asyncio.FIRST_COMPLETED)
        await self._loop.shutdown_asyncgens()


def _log_exception(future: concurrent.futures.Future[Any]) -> None:
    if future.cancelled() or (error := future.exception()) is None:
        return
    if isinstance(error, Stopped):
        _log.info("work in the background: %s", error)
    else:
        _log.error("work in the background failed: %s", error, exc_info=error)
