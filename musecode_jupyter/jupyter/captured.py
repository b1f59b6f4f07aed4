"""Executes one piece of code with its output caught: streams, displays, a last expression's value, the traceback."""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import sys
import threading
import traceback
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from IPython.core.displaypub import DisplayPublisher

from musecode_jupyter.jupyter.cells import clipped, plain
from musecode_jupyter.jupyter.output import Output
from musecode_jupyter.runtime.syntax import parse

if TYPE_CHECKING:
    from musecode_jupyter.jupyter.user_code import CodeRequest

MOST_TRACEBACK = 8_000
_FILE = "<musecode {}>"
_sources: set[str] = set()


class Captured:
    """Catches what the code on this thread, and on threads that it starts, prints and displays.

    What escapes, for instance text written to a file descriptor, belongs to a request that no cell has made. Threads
    that ran before print where they did before.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._others: set[int | None] = set()
        self.output = Output()
        self._cell: dict[str, Any] | None = None
        self._own: dict[str, Any] = {}

    def __enter__(self) -> Captured:
        me = threading.get_ident()
        self._others = {thread.ident for thread in threading.enumerate()} - {me}
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        kernel = getattr(self._shell, "kernel", None)
        if kernel is not None:
            self._cell, self._own = self._shell.get_parent(), kernel.session.msg("musecode_code")
            self._shell.set_parent(self._own)
        self._before = sys.stdout, sys.stderr, self._shell.display_pub
        sys.stdout, sys.stderr = _Fork(self, sys.stdout), _Fork(self, sys.stderr)
        self._shell.display_pub = _ForkedPublisher(parent=self._shell, captured=self, original=self._before[2])
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr, self._shell.display_pub = self._before
        if self._cell is not None:
            self._shell.set_parent(self._cell)

    def write_for_others(self, stream: Any, text: str) -> int:
        """Write for a thread of the user's; what has no cell of its own belongs to the one before the code."""
        parent = getattr(stream, "_parent_header", None)
        own = self._own.get("header", {}).get("msg_id")
        if not isinstance(parent, ContextVar) or self._cell is None or stream.parent_header.get("msg_id") != own:
            return int(stream.write(text) or 0)
        token = parent.set(self._cell.get("header", {}))
        try:
            return int(stream.write(text) or 0)
        finally:
            parent.reset(token)

    def mine(self) -> bool:
        """Whether the caller's output belongs to the code."""
        return threading.get_ident() not in self._others


class _Fork(io.TextIOBase):
    """A stream that hands the code's text to the capture and everybody else's to the original."""

    def __init__(self, captured: Captured, original: Any) -> None:
        self._captured = captured
        self._original = original

    def write(self, text: str) -> int:
        if not self._captured.mine():
            return self._captured.write_for_others(self._original, text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._captured.output.add(text)
        return len(text)

    def flush(self) -> None:
        if not self._captured.mine():
            self._original.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _ForkedPublisher(DisplayPublisher):  # type: ignore[misc]
    """The same for `display`."""

    def __init__(self, *, parent: Any, captured: Captured, original: Any) -> None:
        super().__init__(parent=parent)
        self._captured = captured
        self._original = original

    def publish(self, data: Any, metadata: Any = None, **keywords: Any) -> None:
        if self._captured.mine():
            self._captured.output.add_display(data)
        else:
            self._original.publish(data, metadata, **keywords)

    def clear_output(self, wait: bool = False) -> None:
        if not self._captured.mine():
            self._original.clear_output(wait)

    def set_parent(self, parent: Any) -> None:
        """Handed on, since ipykernel sets it on whatever is the publisher."""
        if hasattr(self._original, "set_parent"):
            self._original.set_parent(parent)


def execute(shell: Any, request: CodeRequest, captured: Captured, run: int) -> tuple[tuple[str, ...], bool]:
    """Run the code with its output going to `captured`; returns the names that were kept, and whether it failed.

    Whatever the code raises, sys.exit included, is an answer and goes to `captured` as a traceback; only CodeEnded,
    raised from outside, passes on.
    """
    from musecode_jupyter.jupyter.user_code import CodeEnded

    name = _FILE.format(run)
    space = shell.user_ns if request.own else dict(shell.user_ns)
    try:
        source = shell.transform_cell(request.code)
        _remember(name, source)
        body, last = _compiled(source, name)
        exec(body, space)
        if last is not None:
            value = eval(last, space)
            if value is not None:
                _show(shell, value, captured)
        _flush_figures()
    except CodeEnded as end:
        captured.output.add(_ending(end.why, request))
        raise
    except BaseException as error:
        captured.output.add(_traceback(error, name))
        return (), True
    kept = []
    for wanted in request.keep:
        if wanted in space:
            shell.user_ns[wanted] = space[wanted]
            kept.append(wanted)
        else:
            captured.output.add(f"[{wanted} was not kept: the code did not define it]\n")
    return tuple(kept), False


def forget_sources() -> None:
    """Drop the sources that tracebacks are made with."""
    for name in _sources:
        linecache.cache.pop(name, None)
    _sources.clear()


def _remember(name: str, source: str) -> None:
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    _sources.add(name)


def _compiled(source: str, name: str) -> tuple[Any, Any]:
    tree = parse(source, name)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return compile(tree, name, "exec"), None
    first = ast.Module(tree.body[:-1], tree.type_ignores)
    return compile(first, name, "exec"), compile(ast.Expression(last.value), name, "eval")


def _show(shell: Any, value: Any, captured: Captured) -> None:
    bundle, _ = shell.display_formatter.format(value)
    if bundle:
        captured.output.add_display(bundle)


def _flush_figures() -> None:
    """Show figures now: matplotlib's inline backend would put them into the user's next cell."""
    backend = sys.modules.get("matplotlib_inline.backend_inline")
    if backend is not None:
        backend.flush_figures()


def _traceback(error: BaseException, name: str) -> str:
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename != name:
        at = at.tb_next
    if isinstance(error, SyntaxError) or at is None:
        lines = traceback.format_exception_only(error)
    else:
        lines = traceback.format_exception(type(error), error, at)
    return clipped(plain("".join(lines)), MOST_TRACEBACK)


def _ending(why: str, request: CodeRequest) -> str:
    told = {
        "timeout": f"ended after the limit of {request.limit:g} s",
        "interrupted": "interrupted by the user",
        "stopped": "stopped",
    }
    return f"\n[{told.get(why, why)}]\n"
