"""A real kernel in its own process, driven by jupyter_client: cells, interrupts, restarts, kill -9."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

START_S = 90.0
CELL_S = 90.0


def kernel_environment(base_url: str, home: Path, **more: str) -> dict[str, str]:
    """What a kernel needs to work with a scripted model on loopback, and to find the tools of this Python."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "MUSECODE_BASE_URL": base_url,
        "MUSECODE_API": "responses",
        "MUSECODE_MODEL": "muse-spark-1.3",
        "MUSECODE_HOME": str(home),
        # The kernel and the checks that it runs need no plugins; loading them takes longer than the checks.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **more,
    }


@dataclass
class Cell:
    """A cell that was sent: what came out of it so far. `messages` are those of IOPub, in order."""

    msg_id: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    reply: dict[str, Any] | None = None

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        """Contents of the messages of one type."""
        return [m["content"] for m in self.messages if m["header"]["msg_type"] == kind]

    @property
    def idle(self) -> bool:
        return any(content["execution_state"] == "idle" for content in self.of_type("status"))

    def stream(self, name: str) -> str:
        return "".join(content["text"] for content in self.of_type("stream") if content["name"] == name)

    @property
    def stdout(self) -> str:
        return self.stream("stdout")

    @property
    def stderr(self) -> str:
        return self.stream("stderr")

    @property
    def result(self) -> str | None:
        """The text of Out[n], if the cell has one."""
        found = self.of_type("execute_result")
        return found[0]["data"]["text/plain"] if found else None

    @property
    def displays(self) -> list[dict[str, Any]]:
        """The mime bundles of display_data."""
        return [content["data"] for content in self.of_type("display_data")]

    @property
    def error(self) -> str | None:
        """`Name: text` of what the cell raised."""
        assert self.reply is not None, "the cell has not ended"
        content = self.reply["content"]
        return None if content["status"] == "ok" else f"{content.get('ename')}: {content.get('evalue')}"

    @property
    def shown(self) -> list[str]:
        """All that a reader sees below the cell, as text."""
        texts = [content["text"] for content in self.of_type("stream")]
        return texts + [content["evalue"] for content in self.of_type("error")]


class Kernel:
    """Started by making it; `close` ends it. Every wait has a deadline (TimeoutError)."""

    def __init__(self, cwd: Path, environment: Mapping[str, str]) -> None:
        self._cells: dict[str, Cell] = {}
        self.updates: list[dict[str, Any]] = []
        # Sockets in a folder: free ports are found by trying, and two kernels that start at once can clash.
        self._sockets = tempfile.mkdtemp(prefix="kernel-")
        self.manager = KernelManager(
            kernel_name="python3",
            transport="ipc",
            ip=f"{self._sockets}/s",
            connection_file=f"{self._sockets}/connection.json",
        )
        self.manager.start_kernel(cwd=str(cwd), env=dict(environment))
        self.client = self._connect()

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)  # type: ignore[union-attr]

    @property
    def cells(self) -> list[Cell]:
        """All cells that were sent, in order."""
        return list(self._cells.values())

    def send(self, code: str, *, allow_stdin: bool = True) -> Cell:
        """Send a cell and return at once. `allow_stdin` is what makes a front end interactive."""
        cell = Cell(self.client.execute(code, allow_stdin=allow_stdin, stop_on_error=False))
        self._cells[cell.msg_id] = cell
        return cell

    def finish(self, cell: Cell, timeout: float = CELL_S) -> Cell:
        """Wait until the cell has ended."""
        self.wait_until(lambda: cell.idle, timeout, f"the cell did not end; so far: {cell.shown}")
        limit = time.monotonic() + 10
        while cell.reply is None:
            reply = self.client.get_shell_msg(timeout=max(0.0, limit - time.monotonic()))
            owner = self._cells.get(reply["parent_header"].get("msg_id"))
            if owner is not None:
                owner.reply = reply
        return cell

    def execute(self, code: str, *, allow_stdin: bool = True, timeout: float = CELL_S) -> Cell:
        """Send a cell and wait until it has ended."""
        return self.finish(self.send(code, allow_stdin=allow_stdin), timeout)

    def run(self, code: str, *, allow_stdin: bool = True, timeout: float = CELL_S) -> Cell:
        """Like `execute`, for cells that must not raise."""
        cell = self.execute(code, allow_stdin=allow_stdin, timeout=timeout)
        assert cell.error is None, f"{code!r} raised {cell.error}"
        return cell

    def wait_until(self, condition: Callable[[], object], timeout: float, otherwise: str) -> None:
        """Take in messages of IOPub until `condition` holds."""
        limit = time.monotonic() + timeout
        while not condition():
            left = limit - time.monotonic()
            if left <= 0:
                raise TimeoutError(otherwise)
            try:
                self._take(self.client.get_iopub_msg(timeout=min(left, 0.2)))
            except queue.Empty:
                if not self.manager.is_alive():
                    raise RuntimeError(f"the kernel has died; {otherwise}") from None

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def restart(self) -> None:
        """What the restart button does: a shutdown request, then a new process with the same connection."""
        self.client.stop_channels()
        self.manager.restart_kernel()
        self.client = self._connect()

    def shutdown(self) -> None:
        """An orderly end."""
        self.manager.shutdown_kernel()

    def kill9(self) -> None:
        """End the process as a power cut would: no handler runs."""
        os.kill(self.pid, signal.SIGKILL)
        self.manager.shutdown_kernel(now=True)

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _connect(self) -> BlockingKernelClient:
        client = self.manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=START_S)
        return client

    def _take(self, message: dict[str, Any]) -> None:
        if message["header"]["msg_type"] == "update_display_data":
            self.updates.append(message["content"])
        cell = self._cells.get(message["parent_header"].get("msg_id", ""))
        if cell is not None:
            cell.messages.append(message)


StartKernel = Callable[..., Kernel]
