"""The JupyterLab extension: questions that wait are found after a page reload amid a cell, and answered from there."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fixtures.make_repo import make_repo
from fixtures.model_server import Answer, Call, ModelServer, ParsedRequest, RepairModel, load_repairs
from lab import TOKEN, Lab, Notebook, chromium_page, find_chromium, write_notebook

import musecode_jupyter

if TYPE_CHECKING:
    from playwright.sync_api import Page

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
    f'goal = %goal "make the check pass" --base head --verify "{CHECK}"',
    BLOCKING,
    "print('how it ended:', goal.status)",
]
PROPOSAL = [
    "value = 1\nvalue / 0",
    "%load_ext musecode_jupyter",
    "%muse cells on",
    "%muse ask mend it",
    "'a neighbour'",
]

SET_SOURCE = """source =>
    window.jupyterapp.shell.currentWidget.content.widgets[0].model.sharedModel.setSource(source)
"""


def script(request: ParsedRequest) -> Answer:
    """Repairs the repository for a goal; asked to mend a cell, proposes another source for it."""
    texts = [item["text"] for item in request.items if item["type"] == "message" and item["role"] == "user"]
    if texts[-1] != "mend it":
        return RepairModel(load_repairs("intervals"))(request)
    if request.items[-1]["type"] == "tool_result":
        return Answer(str(request.items[-1]["output"]))
    cell = re.search(r"cell (\S+) .*failed: ", texts[-2])
    assert cell is not None
    return Answer("", [Call("propose_cell", {"cell": cell[1], "source": "value = 1\nvalue / 2", "why": "No zero."})])


@pytest.fixture(scope="module")
def lab(jupyter: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with ModelServer(script) as server:
        environment = {
            "MUSECODE_BASE_URL": server.base_url,
            "MUSECODE_MODEL": "muse-spark-1.3",
            "MUSECODE_HOME": str(tmp_path_factory.mktemp("control")),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        with jupyter.folder("control", **environment) as folder:
            make_repo("intervals", folder)
            write_notebook(folder / "control.ipynb", CELLS)
            write_notebook(folder / "proposal.ipynb", PROPOSAL)
            yield jupyter


def test_a_question_is_answered_after_a_reload_amid_a_cell(lab: Lab, chromium: str) -> None:
    with chromium_page(height=1200, running=chromium) as page:
        notebook = Notebook(page, lab, "control/control.ipynb")
        notebook.run(0)
        notebook.run(1)
        status = page.get_by_role("button", name="1 approval waits", exact=True)
        status.wait_for(timeout=60_000)
        notebook.command("docmanager:save")
        notebook.run(2, wait=False)
        page.wait_for_function("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'busy'")
        page.goto(f"{lab.url}lab/tree/control/control.ipynb?token={TOKEN}", wait_until="domcontentloaded")
        status.wait_for(timeout=60_000)
        status.click()
        panel = page.locator("#musecode-panel")
        panel.get_by_text("land on", exact=False).or_(panel.get_by_text("move branch")).first.wait_for()
        shot(page, "panel")
        panel.get_by_role("button", name="Approve once").click()
        # The reloaded page does not know the cell that runs; the kernel does, and says how it went.
        page.wait_for_function("document.querySelector('.muse-lab-status').hidden", timeout=60_000)
        notebook.run(3)
        notebook.wait_text(3, "how it ended: met")
        assert page.script_errors == []  # type: ignore[attr-defined]


def test_a_cell_is_changed_once_the_user_agrees_and_its_neighbours_are_not(lab: Lab, chromium: str) -> None:
    with chromium_page(height=1200, running=chromium) as page:
        notebook = Notebook(page, lab, "control/proposal.ipynb")
        # At first the kernel knows the cell by its number only: it ran before there was anybody to note its id.
        mended = ["value = 1\nvalue / 2", *PROPOSAL[1:]]
        for number in (1, 2):
            page.evaluate(
                SET_SOURCE,
                PROPOSAL[0],
            )
            notebook.run(0, wait=False)
            notebook.wait_text(0, "ZeroDivisionError")
            notebook.run(1)
            notebook.run(2)
            notebook.run(3, wait=False)
            panel = page.locator("#musecode-panel")
            page.get_by_role("button", name="1 approval waits", exact=True).click(timeout=60_000)
            card = panel.locator("article", has_text="value / 2").last
            shot(page, f"proposal-{number}")
            card.get_by_role("button", name="Approve once").click()
            notebook.wait_text(3, "The user agreed, and the notebook has the new source. It has not been run.")
            assert sources(page) == mended
        # A cell that was changed since it ran is left alone.
        page.evaluate(
            SET_SOURCE,
            PROPOSAL[0],
        )
        notebook.run(0, wait=False)
        notebook.wait_text(0, "ZeroDivisionError")
        notebook.run(3, wait=False)
        page.get_by_role("button", name="1 approval waits", exact=True).wait_for(timeout=60_000)
        page.evaluate(
            SET_SOURCE,
            "mine",
        )
        panel.get_by_role("button", name="Approve once").click()
        notebook.wait_text(3, "The cell was not changed: the cell was changed since it ran.")
        assert sources(page) == ["mine", *PROPOSAL[1:]]
        assert page.script_errors == []  # type: ignore[attr-defined]


def sources(page: Page) -> list[str]:
    return list(
        page.evaluate("window.jupyterapp.shell.currentWidget.content.widgets.map(w => w.model.sharedModel.getSource())")
    )


def test_the_built_extension_is_the_one_that_is_installed() -> None:
    built = Path(musecode_jupyter.__file__).parent / "static" / "lab" / "package.json"
    installed = Path(sys.prefix) / "share" / "jupyter" / "labextensions" / "musecode-jupyter" / "package.json"
    assert json.loads(installed.read_text()) == json.loads(built.read_text()), "run: make frontend"


def shot(page: object, name: str) -> None:
    folder = os.environ.get("BROWSER_SHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")  # type: ignore[attr-defined]
