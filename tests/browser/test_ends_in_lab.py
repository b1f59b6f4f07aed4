"""JupyterLab when something ends: a question by Stop, a kernel by restart or death, the extension by unloading."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fixtures.make_repo import make_repo
from fixtures.model_server import Answer, ModelServer, ParsedRequest, RepairModel, load_repairs
from lab import Lab, Notebook, chromium_page, find_chromium, write_notebook

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.crash,
    pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="half a minute: run by make crash"),
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one or set MUSECODE_CHROMIUM"),
]
CHECK = "grep -q 'self.start < other.end' scheduler/interval.py"
CELLS = [
    "%load_ext musecode_jupyter",
    "%muse ask hold this",
    f'goal = %goal "make the check pass" --verify "{CHECK}"',
    "%muse resume",
    "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "%unload_ext musecode_jupyter",
]
LOAD, HOLD, GOAL, RESUME, KILL, UNLOAD = range(len(CELLS))
RESTART = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
# Every request of the page to the kernel that has neither its reply nor been given up.
COUNT = """() => {
    const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
    const send = kernel.sendControlMessage.bind(kernel);
    window.unanswered = 0;
    kernel.sendControlMessage = (...message) => {
        const future = send(...message);
        window.unanswered++;
        future.done.catch(() => null).then(() => window.unanswered--);
        return future;
    };
}"""
IDLE = "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"

released = threading.Event()


def script(request: ParsedRequest) -> Answer:
    """Repairs the repository for a goal; a question is not answered until `released`."""
    if any(item["type"] == "message" and item["text"].startswith("Goal: ") for item in request.items):
        return RepairModel(load_repairs("intervals"))(request)
    released.wait(120)
    return Answer("late")


@pytest.fixture
def lab(jupyter: Lab, tmp_path: Path) -> Iterator[Lab]:
    with ModelServer(script) as server:
        environment = {
            "MUSECODE_BASE_URL": server.base_url,
            "MUSECODE_MODEL": "muse-spark-1.3",
            "MUSECODE_HOME": str(tmp_path / "home"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        with jupyter.folder("ends", **environment) as folder:
            make_repo("intervals", folder)
            write_notebook(folder / "ends.ipynb", CELLS)
            yield jupyter
            released.set()


def status(page: Page) -> Locator:
    return page.locator(".muse-lab-status")


def panel(page: Page) -> Locator:
    return page.locator("#musecode-panel")


def waits(page: Page) -> None:
    page.get_by_role("button", name="1 approval waits", exact=True).wait_for(timeout=60_000)
    panel(page).locator(".muse-card-state", has_text="waits").wait_for(state="attached")


def test_nothing_is_left_of_what_has_ended(lab: Lab, chromium: str) -> None:
    with chromium_page(height=1200, running=chromium) as page:
        notebook = Notebook(page, lab, "ends/ends.ipynb")
        notebook.run(LOAD)
        notebook.run(HOLD, wait=False)
        page.get_by_role("button", name="agents at work", exact=True).click(timeout=60_000)
        panel(page).get_by_role("button", name="Stop").click()
        notebook.wait_text(HOLD, "The question was ended: stopped from the page.")
        status(page).wait_for(state="hidden")

        notebook.run(GOAL)
        waits(page)
        page.evaluate(RESTART)
        # The question has gone with the kernel: until somebody resumes, nobody waits for an answer.
        status(page).wait_for(state="hidden")
        assert panel(page).locator(".muse-card").count() == 0
        page.wait_for_function(IDLE)
        notebook.run(LOAD)
        notebook.run(RESUME)
        waits(page)

        page.evaluate(COUNT)
        notebook.run(UNLOAD)
        status(page).wait_for(state="hidden")
        # Nobody is there who would answer: what waits for an answer hears nothing new, of a question for instance.
        assert page.evaluate("window.unanswered") == 0
        assert panel(page).locator(".muse-card-state", has_text="waits").count() == 0
        notebook.run(LOAD)
        notebook.run(GOAL)
        waits(page)

        notebook.run(KILL, wait=False)
        status(page).wait_for(state="hidden")
        assert panel(page).locator(".muse-card").count() == 0
        assert page.script_errors == []  # type: ignore[attr-defined]
