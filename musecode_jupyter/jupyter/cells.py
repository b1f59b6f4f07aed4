"""Remembers the cells that ran in this kernel: sources, outputs with pictures, errors; bounded, and in memory only.

Sources and errors come from IPython's events, outputs from the hooks of ipykernel's streams and displays. A cell is
named by the id that the front end sends with it (JupyterLab does), else by its number as `In[3]`.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from musecode_jupyter.jupyter.output import Output
from musecode_jupyter.tools.pictures import PictureFile

MOST_CELLS = 200
MOST_SOURCE = 16_000
MOST_ERROR = 8_000
MOST_PICTURE_BYTES = 64_000_000
# Magics of ours: a question about "this" never means the cell in which it is asked.
_OURS = re.compile(
    r"\s*(?:\w+\s*=\s*)?%{1,2}(?:muse|goal|plan|grill|approve|deny|(?:re)?load_ext\s+musecode_jupyter)\b"
)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")


@dataclass
class Cell:
    """One cell as it last ran. `number` is IPython's In[number]; `error` the traceback as it was shown."""

    id: str
    number: int
    source: str
    message: str = ""
    running: bool = True
    ename: str = ""
    error: str = ""
    output: Output = field(default_factory=Output)
    clear: bool = False

    @property
    def numbered(self) -> bool:
        """Whether IPython keeps the cell as In[number]; front ends may run cells outside its history."""
        return self.number > 0

    @property
    def ours(self) -> bool:
        """Whether the cell is one of our own magics."""
        return _OURS.match(self.source) is not None

    def state(self) -> str:
        """running, failed with what, or done; what ran before the recording is not known to have failed."""
        if not self.message and not self.ename:
            return "ran, output not recorded"
        return "is running" if self.running else f"failed: {self.ename}" if self.ename else "done"

    def title(self) -> str:
        """Id, number and state in one line."""
        name = f"In[{self.number}]"
        return f"cell {self.id} {f'{name} ' if self.numbered and self.id != name else ''}{self.state()}"

    def pictures(self) -> tuple[PictureFile, ...]:
        """The newest pictures among its outputs."""
        return self.output.pictures(f"cell {self.id}")

    def text(self) -> str:
        """Source, output and error in full, as far as they are kept."""
        parts = [self.title(), "source:", indented(clipped(self.source, MOST_SOURCE))]
        output = plain(str(self.output)).rstrip()
        if output:
            parts += ["output:", indented(output)]
        if self.error:
            parts += ["error:", indented(self.error)]
        return "\n".join(parts)


class CellBook:
    """The cells of one shell, recorded on the main thread only, not in subshells; used from any thread."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._lock = threading.Lock()
        self._cells: OrderedDict[str, Cell] = OrderedDict()
        self._by_message: dict[str, Cell] = {}
        self._current: Cell | None = None
        self._unnumbered = 0
        self._undo: list[Callable[[], object]] = []

    def attach(self) -> None:
        """Begin to record; undone by `detach`."""
        self._take_last()
        events = self._shell.events
        for name, callback in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
            events.register(name, callback)
            self._undo.append(partial(events.unregister, name, callback))
        for publisher in (self._shell.display_pub, self._shell.displayhook):
            if hasattr(publisher, "register_hook"):
                # Hooks are kept by thread; displays of the user's other threads are not recorded.
                publisher.register_hook(self._hook)
                self._undo.append(partial(publisher.unregister_hook, self._hook))
        streams: tuple[Any, Any] = (sys.stdout, sys.stderr)
        for stream in streams:
            thread = getattr(stream, "pub_thread", None)
            if thread is not None and hasattr(stream, "register_hook"):
                # A stream's hooks belong to the thread that sends.
                thread.schedule(partial(stream.register_hook, self._hook))
                self._undo.append(partial(thread.schedule, partial(stream.unregister_hook, self._hook)))

    def detach(self) -> None:
        """Take back all of `attach`."""
        for undo in reversed(self._undo):
            with contextlib.suppress(ValueError):
                undo()
        self._undo.clear()

    @property
    def running(self) -> Cell | None:
        """The cell that runs on the main thread now, if it began while we recorded."""
        return self._current

    def cells(self) -> list[Cell]:
        """The cells in the order in which they last ran; those from before the recording have a source only."""
        with self._lock:
            known = list(self._cells.values())
        numbers = {cell.number for cell in known if cell.numbered}
        history = self._shell.history_manager.input_hist_raw
        first = min(numbers, default=len(history) - 1)
        earlier = [
            self._with_error(Cell(f"In[{number}]", number, str(history[number]), running=False))
            for number in range(max(1, first - MOST_CELLS), min(first, len(history)))
            if history[number] and number not in numbers
        ]
        return [*earlier, *known]

    def find(self, name: str) -> Cell | None:
        """The cell with this id, or `In[3]`, or `3`."""
        number = re.fullmatch(r"(?:In\s*\[)?(\d+)\]?", name.strip())
        for cell in reversed(self.cells()):
            if cell.id == name.strip() or (number is not None and cell.numbered and cell.number == int(number[1])):
                return cell
        return None

    def failed(self) -> Cell | None:
        """The newest cell, our own magics left aside, if it failed."""
        for cell in reversed(self.cells()):
            if cell.ours or cell.running:
                continue
            if cell.ename:
                return cell
            return self._failed_before_us(cell)
        return None

    def _with_error(self, cell: Cell) -> Cell:
        """A cell from before the recording, with its error where IPython (from 9 on) has kept it."""
        kept = getattr(self._shell.history_manager, "exceptions", {}).get(cell.number)
        if kept:
            cell.ename = str(kept.get("ename", "error"))
            cell.error = clipped(plain("\n".join(map(str, kept.get("traceback", ())))), MOST_ERROR)
        return cell

    def _failed_before_us(self, cell: Cell) -> Cell | None:
        """A cell that failed before anything was recorded, found by what IPython keeps of the last error."""
        if cell.message:
            return None
        history = self._shell.history_manager
        if hasattr(history, "exceptions"):
            return None
        # Before IPython 9 there is only the last error of all, which may be an older one of the same source.
        error = getattr(sys, "last_value", None)
        if cell.number == len(history.input_hist_raw) - 2 and self._shell.last_execution_succeeded:
            return None
        if not isinstance(error, BaseException) or not _raised_in(error, cell.source, self._shell):
            return None
        cell.ename, cell.error = type(error).__name__, shown_error(self._shell, error)
        return cell

    def _before(self, info: Any) -> None:
        if threading.current_thread() is not threading.main_thread() or self._current is not None:
            return
        parent = parent_of(self._shell)
        # Whether execution_count is this cell's or the next one's here depends on the version of IPython.
        number = len(self._shell.history_manager.input_hist_raw) if info.store_history else 0
        given = getattr(info, "cell_id", None) or parent.get("metadata", {}).get("cellId")
        message = str(parent.get("header", {}).get("msg_id", "")) or "none"
        self._current = self._add(str(given or ""), number, str(info.raw_cell), message)

    def _add(self, given: str, number: int, source: str, message: str) -> Cell:
        if not given and not number:
            self._unnumbered += 1
        cell = Cell(given or (f"In[{number}]" if number else f"#{self._unnumbered}"), number, source, message)
        with self._lock:
            old = self._cells.pop(cell.id, None)
            if old is not None:
                self._by_message.pop(old.message, None)
            self._cells[cell.id] = cell
            self._by_message[cell.message] = cell
            while len(self._cells) > MOST_CELLS:
                _, oldest = self._cells.popitem(last=False)
                self._by_message.pop(oldest.message, None)
        return cell

    def _take_last(self) -> None:
        """The cell just before the recording, where it is not in IPython's history."""
        result = self._shell.last_execution_result
        info = getattr(result, "info", None)
        if info is None or not info.raw_cell or info.store_history:
            return
        cell = self._add(str(getattr(info, "cell_id", None) or ""), 0, str(info.raw_cell), "none")
        self._ended(cell, result)

    def _after(self, result: Any) -> None:
        cell = self._current
        if cell is None or threading.current_thread() is not threading.main_thread():
            return
        ran = getattr(getattr(result, "info", None), "raw_cell", None)
        if ran is not None and ran != cell.source:
            return  # a cell inside the cell, by get_ipython().run_cell
        self._current = None
        self._ended(cell, result)
        if cell.numbered and not hasattr(self._shell.displayhook, "register_hook"):
            self._add_result(cell)

    def _ended(self, cell: Cell, result: Any) -> None:
        cell.running = False
        error = getattr(result, "error_before_exec", None) or getattr(result, "error_in_exec", None)
        if error is not None:
            cell.ename = type(error).__name__
            cell.error = shown_error(self._shell, error)
        elif result is None:
            cell.ename = "interrupted"

    def _add_result(self, cell: Cell) -> None:
        """Out[n], where ipykernel has no hook for it."""
        outputs = getattr(self._shell.history_manager, "outputs", {})
        for output in list(outputs.get(cell.number, ())):
            if getattr(output, "output_type", "") == "execute_result":
                cell.output.add_display(output.bundle)

    def _hook(self, message: dict[str, Any]) -> dict[str, Any]:
        # Called for every message that a cell puts out: must neither fail nor change it.
        with contextlib.suppress(Exception):
            self._take(message)
        return message

    def _take(self, message: dict[str, Any]) -> None:
        cell = self._by_message.get(message["parent_header"].get("msg_id", ""))
        kind, content = message["header"]["msg_type"], message["content"]
        if cell is None or kind == "update_display_data":
            return
        if kind == "clear_output":
            cell.clear = True
            return
        if cell.clear:
            cell.clear, cell.output = False, Output()
        if kind == "stream":
            cell.output.add(content["text"])
        else:
            cell.output.add_display(content["data"])
            self._bound_pictures()

    def _bound_pictures(self) -> None:
        with self._lock:
            newest_first = list(reversed(self._cells.values()))
        room = MOST_PICTURE_BYTES
        for cell in newest_first:
            room -= cell.output.picture_bytes
            if room < 0:
                cell.output.drop_pictures()


def parent_of(shell: Any) -> dict[str, Any]:
    """The request that this thread's output belongs to; empty outside a kernel."""
    get_parent = getattr(shell, "get_parent", None)
    parent = get_parent() if get_parent is not None else {}
    return parent if isinstance(parent, dict) else {}


def shown_error(shell: Any, error: BaseException) -> str:
    """The traceback as the user saw it, without colours; made anew only where IPython kept none of this error."""
    name = type(error).__name__
    lines = getattr(shell, "_last_traceback", None) or []
    text = plain("\n".join(map(str, lines)))
    if name not in text.rsplit("\n\n", 1)[-1]:
        import traceback

        at = error.__traceback__
        while at is not None and os.sep + "IPython" + os.sep in at.tb_frame.f_code.co_filename:
            at = at.tb_next
        text = "".join(traceback.format_exception(type(error), error, at)).rstrip()
    return clipped(text, MOST_ERROR)


def plain(text: str) -> str:
    """Without colours, and of a line that was written over only the last state."""
    lines = _ANSI.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def clipped(text: str, most: int) -> str:
    """At most about `most` characters: a quarter from the beginning, the rest from the end."""
    if len(text) <= most:
        return text
    head = most // 4
    return f"{text[:head]}\n[... {len(text) - most} characters left out ...]\n{text[head - most :]}"


def indented(text: str) -> str:
    """Each line four columns in, so that no line of a cell looks like one of ours."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def overview(cells: Iterable[Cell], most: int = 40) -> str:
    """A line per cell: id, state, and how its source begins."""
    lines = []
    for cell in list(cells)[-most:]:
        source = cell.source.strip().splitlines() or [""]
        more = f" (+{len(source) - 1} lines)" if len(source) > 1 else ""
        lines.append(f"{cell.title()} | {source[0][:100]}{more}")
    return "\n".join(lines) or "No cells were run yet."


def _raised_in(error: BaseException, source: str, shell: Any) -> bool:
    """Whether the traceback passes through a cell with this source."""
    import linecache

    files = [error.filename] if isinstance(error, SyntaxError) and error.filename else []
    at = error.__traceback__
    while at is not None:
        files.append(at.tb_frame.f_code.co_filename)
        at = at.tb_next
    wanted = {source.strip(), shell.transform_cell(source).strip()}
    return any("".join(linecache.getlines(name)).strip() in wanted for name in files)
