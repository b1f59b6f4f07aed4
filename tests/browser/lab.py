"""A real JupyterLab with folders of its own, a real Chromium, and a notebook driven through its commands."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

TOKEN = "browser-tests"
POLL_MS = 50
CHROMIUM_ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# As Playwright has it where it starts the browser: pages that nobody looks at are no slower.
_ALWAYS_AWAKE = [
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
]
_CHROMIUM_PATHS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_QUIET = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
}


def find_chromium() -> str | None:
    """Path of a Chromium: `MUSECODE_CHROMIUM`, else one on the path."""
    named = os.environ.get("MUSECODE_CHROMIUM")
    if named:
        return named
    return next((found for name in _CHROMIUM_PATHS if (found := shutil.which(name))), None)


@dataclass
class Lab:
    """A running server: `url` ends in a slash, `root` is the folder that it shows, `log` its lines so far."""

    url: str
    root: Path
    log: list[str] = field(default_factory=list)

    @contextmanager
    def folder(self, name: str, **environment: str) -> Iterator[Path]:
        """Where a folder below `root` may be made; its kernels have this environment too, and end with the context."""
        kept = self.root.parent / "environment" / f"{name}.json"
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(environment))
        try:
            yield self.root / name
        finally:
            self.end_kernels()

    def end_kernels(self) -> None:
        """End every kernel, as its user does who goes home."""
        for session in json.loads(self._ask("api/sessions")):
            self._ask(f"api/sessions/{session['id']}", "DELETE")

    def _ask(self, path: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(f"{self.url}{path}?token={TOKEN}", method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            content: bytes = answer.read()
        return content


# One server has the folders of several tests: what their kernels are told is found by the folder that they start in.
_STARTUP = """
import json, os, pathlib
kept = pathlib.Path({root!r}, "environment", pathlib.Path.cwd().name + ".json")
if kept.exists():
    os.environ |= json.loads(kept.read_text())
del json, os, pathlib, kept
"""


@contextmanager
def start_lab(
    root: Path,
    *,
    env: Mapping[str, str] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    timeout: float = 60,
) -> Iterator[Lab]:
    """Run JupyterLab on a free port over `root/work`; its data, configuration and home lie beside it in
    `root`.

    `env` is added to its environment and to that of its kernels; `settings` are JupyterLab's, by file name as
    in `@jupyterlab/notebook-extension/tracker.jupyterlab-settings`. Raises RuntimeError with the server's log
    if it does not come up within `timeout` seconds.
    """
    folders = {
        "HOME": "home",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    environment = dict(os.environ)
    for name, folder in folders.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        environment[name] = str(root / folder)
    work = root / "work"
    work.mkdir(exist_ok=True)
    startup = root / "ipython" / "profile_default" / "startup" / "environment.py"
    startup.parent.mkdir(parents=True, exist_ok=True)
    startup.write_text(_STARTUP.format(root=str(root)))
    for name, values in {**_QUIET, **(settings or {})}.items():
        path = root / "settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    environment.update(env or {})
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0", "--allow-root"),
        f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={work}",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.news_url=None",
    ]
    server = subprocess.Popen(
        command,
        env=environment,
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lab = Lab("", work)
    found: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read_log, args=(server, lab.log, found), daemon=True)
    reader.start()
    try:
        try:
            url = found.get(timeout=timeout)
        except queue.Empty:
            url = None
        if url is None:
            raise RuntimeError("JupyterLab did not start:\n" + "\n".join(lab.log[-40:]))
        _wait_until_served(url, timeout, lab)
        lab.url = url
        yield lab
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        reader.join(5)


def _wait_until_served(url: str, timeout: float, lab: Lab) -> None:
    """The server says its address before it listens there."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            with urllib.request.urlopen(f"{url}api/status?token={TOKEN}", timeout=10):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise RuntimeError("JupyterLab does not answer:\n" + "\n".join(lab.log[-40:])) from None
            time.sleep(0.05)


def _read_log(server: subprocess.Popen[str], log: list[str], found: queue.Queue[str | None]) -> None:
    assert server.stdout is not None
    for line in server.stdout:
        log.append(line.rstrip())
        if match := re.search(r"(http://127\.0\.0\.1:\d+/)lab\?token", line):
            found.put(match[1])
    found.put(None)


def of_lab_alone(stack: str) -> bool:
    """Whether an error came about in JupyterLab's own scripts, or other extensions', with none of ours on the stack.

    A view of ours is loaded from a `blob:`, the extension from a folder of its name.
    """
    frames = re.findall(r"(?:https?|blob|file):[^\s)]+", stack)
    theirs = [each for each in frames if re.search(r"/static/lab/|/lab/extensions/(?!musecode)", each)]
    return bool(frames) and len(theirs) == len(frames) and "blob:" not in stack


@contextmanager
def start_chromium(folder: Path, timeout: float = 60) -> Iterator[str]:
    """A Chromium of its own, with its profile in `folder`; yields the address that `chromium_page` takes.

    The scripts of JupyterLab that it has once loaded and compiled serve all pages of the server.
    """
    executable = find_chromium()
    assert executable is not None, "no Chromium: set MUSECODE_CHROMIUM"
    command = [executable, *CHROMIUM_ARGS, *_ALWAYS_AWAKE, f"--user-data-dir={folder}", "--remote-debugging-port=0"]
    with subprocess.Popen(
        [*command, "about:blank"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            # It writes down its port, then its path, once it listens.
            said, deadline = folder / "DevToolsActivePort", time.monotonic() + timeout
            while not said.exists() or said.read_text().count("\n") < 1:
                assert process.poll() is None, "Chromium has ended"
                assert time.monotonic() < deadline, "Chromium does not start"
                time.sleep(0.02)
            port, path = said.read_text().split()
            yield f"ws://127.0.0.1:{port}{path}"
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def chromium_page(width: int = 1400, height: int = 1000, *, running: str | None = None) -> Iterator[Page]:
    """A page in a new Chromium, or in one that is `running`; errors of our scripts are collected in the list
    `page.script_errors`."""
    from playwright.sync_api import sync_playwright

    executable = find_chromium()
    assert executable is not None, "no Chromium: set MUSECODE_CHROMIUM"
    with sync_playwright() as playwright:
        if running is None:
            browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_ARGS)
            page = browser.new_page(viewport={"width": width, "height": height})
        else:
            browser = playwright.chromium.connect_over_cdp(running)
            page = browser.contexts[0].new_page()
            page.set_viewport_size({"width": width, "height": height})
        try:
            errors: list[str] = []
            page.on(
                "pageerror",
                lambda error: None if of_lab_alone(error.stack or "") else errors.append(error.stack or str(error)),
            )
            page.script_errors = errors  # type: ignore[attr-defined]
            yield page
        finally:
            page.close()
            browser.close()


def write_notebook(path: Path, cells: Sequence[str]) -> None:
    """A notebook of code cells."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


class Notebook:
    """One notebook open in JupyterLab.

    Parameters
    ----------
    page, lab
        From `chromium_page` and `start_lab`.
    name
        Path of the notebook below `lab.root`.
    timeout
        Seconds within which the kernel must be there.
    """

    def __init__(self, page: Page, lab: Lab, name: str, timeout: float = 90) -> None:
        self.page = page
        page.goto(f"{lab.url}lab/tree/{name}?token={TOKEN}&reset", wait_until="domcontentloaded")
        deadline = timeout * 1000
        # Not at each frame, by default: a page that has frames to draw has less time to load.
        page.wait_for_function(
            "window.jupyterapp?.shell?.currentWidget?.sessionContext", timeout=deadline, polling=POLL_MS
        )
        page.wait_for_function(
            "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'",
            timeout=deadline,
            polling=POLL_MS,
        )

    def run(self, index: int, wait: bool = True) -> None:
        """Run a cell and go on at once, or `wait` for its end; then AssertionError if it put out an error."""
        self.page.evaluate(
            """async ([index, wait]) => {
                const notebook = window.jupyterapp.shell.currentWidget.content;
                notebook.activeCellIndex = index;
                notebook.deselectAll();
                const done = window.jupyterapp.commands.execute("notebook:run-cell");
                if (wait) await done;
            }""",
            [index, wait],
        )
        if wait:
            failed = self.page.evaluate(
                """index => {
                    const cell = window.jupyterapp.shell.currentWidget.content.widgets[index];
                    return cell.model.sharedModel.toJSON().outputs.some(o => o.output_type === "error");
                }""",
                index,
            )
            assert not failed, self.text(index)

    def cell(self, index: int) -> Locator:
        """The whole cell."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def output(self, index: int) -> Locator:
        """What the cell has put out."""
        return self.cell(index).locator(".jp-Cell-outputArea")

    def text(self, index: int) -> str:
        """All text outputs of a cell, joined; from the model, so that rendering does not matter."""
        outputs = self.page.evaluate(
            """index => {
                const cell = window.jupyterapp.shell.currentWidget.content.widgets[index];
                return cell.model.sharedModel.toJSON().outputs;
            }""",
            index,
        )
        parts = []
        for output in outputs:
            if output["output_type"] == "stream":
                parts.append(_joined(output["text"]))
            elif output["output_type"] == "error":
                parts.append(f"{output['ename']}: {output['evalue']}")
            else:
                parts.append(_joined(output["data"].get("text/plain", "")))
        return "".join(parts)

    def wait_text(self, index: int, text: str, timeout: float = 30) -> None:
        """Until the outputs of a cell contain `text`; AssertionError with what is there otherwise."""
        deadline = time.monotonic() + timeout
        while text not in self.text(index):
            assert time.monotonic() < deadline, f"cell {index} put out: {self.text(index)!r}"
            self.page.wait_for_timeout(50)

    def busy(self) -> bool:
        """Whether a cell of the main shell is running."""
        return bool(
            self.page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'busy'")
        )

    def command(self, name: str, **arguments: Any) -> None:
        """Execute one of JupyterLab's commands."""
        self.page.evaluate("([name, args]) => window.jupyterapp.commands.execute(name, args)", [name, arguments])

    def theme(self, dark: bool) -> None:
        """Switch JupyterLab's theme and wait until it is in force."""
        self.command("apputils:change-theme", theme="JupyterLab Dark" if dark else "JupyterLab Light")
        self.page.wait_for_function(f"document.body.dataset.jpThemeLight === '{str(not dark).lower()}'")


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
