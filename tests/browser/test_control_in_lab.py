"""The JupyterLab extension: questions that wait are found after a page reload amid a cell, and answered from there."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.make_repo import make_repo
from fixtures.model_server import Answer, Call, ModelServer, ParsedRequest, RepairModel, load_repairs
from lab import TOKEN, Lab, Notebook, chromium_page, find_chromium, start_lab, write_notebook

import musecode_jupyter

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one or set MUSECODE_CHROMIUM"),
]
CHECK = "grep -q 'self.start < other.end' scheduler/interval.py"
BLOCKING = (
    "import time\n"
    "end = time.monotonic() + 60\n"
    "while goal.status not in ('met', 'blocked', 'stopped') and time.monotonic() < end:\n"
    "    time.sleep(0.05)\n"
    "print('seen by a blocking cell:', goal.status)"
)
CELLS = [
    "%load_ext musecode_jupyter",
    f'goal = %goal "make the check pass" --verify "{CHECK}"',
    BLOCKING,
    "print('how it ended:', goal.status)",
]
PROPOSAL = [
    "%load_ext musecode_jupyter",
    "%muse cells on",
    "value = 1\nvalue / 0",
    "%muse ask mend it",
    "'a neighbour'",
]


def script(request: ParsedRequest) -> Answer:
    """Repairs the repository for a goal; asked to mend a cell, proposes another source for it."""
    texts = [item["text"] for item in request.items if item["type"] == "message" and item["role"] == "user"]
    if texts[-1] != "mend it":
        return RepairModel(load_repairs("intervals"))(request)
    if request.items[-1]["type"] == "tool_result":
        return Answer(str(request.items[-1]["output"]))
    cell = re.search(r"cell (\S+) In\[\d+\] failed", texts[-2])
    assert cell is not None
    return Answer("", [Call("propose_cell", {"cell": cell[1], "source": "value = 1\nvalue / 2", "why": "No zero."})])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("control")
    with ModelServer(script) as server:
        environment = {
            "MUSECODE_BASE_URL": server.base_url,
            "MUSECODE_MODEL": "muse-spark-1.3",
            "MUSECODE_HOME": str(folder / "home"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        with start_lab(folder / "lab", env=environment) as lab:
            make_repo("intervals", lab.root / "intervals")
            write_notebook(lab.root / "intervals" / "control.ipynb", CELLS)
            write_notebook(lab.root / "intervals" / "proposal.ipynb", PROPOSAL)
            yield lab


def test_a_question_is_answered_after_a_reload_amid_a_cell(lab: Lab) -> None:
    with chromium_page(height=1200) as page:
        notebook = Notebook(page, lab, "intervals/control.ipynb")
        notebook.run(0)
        notebook.run(1)
        status = page.get_by_role("button", name="1 approval waits", exact=True)
        status.wait_for(timeout=60_000)
        notebook.command("docmanager:save")
        notebook.run(2, wait=False)
        page.wait_for_function("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'busy'")
        page.goto(f"{lab.url}lab/tree/intervals/control.ipynb?token={TOKEN}", wait_until="domcontentloaded")
        status.wait_for(timeout=60_000)
        status.click()
        panel = page.locator("#musecode-panel")
        panel.get_by_text("land on", exact=False).or_(panel.get_by_text("move branch")).first.wait_for()
        shot(page, "panel")
        panel.get_by_role("button", name="Approve once").click()
        # The reloaded page does not know the cell that runs; the kernel does, and says how it went.
        page.wait_for_function("document.querySelector('.muse-lab-status').hidden", timeout=60_000)
        fresh = Notebook(page, lab, "intervals/control.ipynb")
        fresh.run(3)
        fresh.wait_text(3, "how it ended: met")
        assert page.script_errors == []  # type: ignore[attr-defined]


def test_a_cell_is_changed_once_the_user_agrees_and_its_neighbours_are_not(lab: Lab) -> None:
    with chromium_page(height=1200) as page:
        notebook = Notebook(page, lab, "intervals/proposal.ipynb")
        notebook.run(0)
        notebook.run(1)
        notebook.run(2, wait=False)
        notebook.wait_text(2, "ZeroDivisionError")
        notebook.run(3, wait=False)
        panel = page.locator("#musecode-panel")
        page.get_by_role("button", name="1 approval waits", exact=True).click(timeout=60_000)
        panel.locator(".muse-d-add", has_text="value / 2").wait_for()
        shot(page, "proposal")
        panel.get_by_role("button", name="Approve once").click()
        notebook.wait_text(3, "The user agreed, and the notebook has the new source. It has not been run.")
        sources = page.evaluate(
            "window.jupyterapp.shell.currentWidget.content.widgets.map(w => w.model.sharedModel.getSource())"
        )
        assert sources == [*PROPOSAL[:2], "value = 1\nvalue / 2", *PROPOSAL[3:]]
        assert page.script_errors == []  # type: ignore[attr-defined]


def test_the_built_extension_is_the_one_that_is_installed() -> None:
    built = Path(musecode_jupyter.__file__).parent / "static" / "lab" / "package.json"
    installed = Path(sys.prefix) / "share" / "jupyter" / "labextensions" / "musecode-jupyter" / "package.json"
    assert json.loads(installed.read_text()) == json.loads(built.read_text()), "run: make frontend"


def shot(page: object, name: str) -> None:
    folder = os.environ.get("BROWSER_SHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")  # type: ignore[attr-defined]
