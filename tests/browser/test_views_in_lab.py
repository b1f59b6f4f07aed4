"""The views in a real JupyterLab: rows appear, detail opens, a click is served while a cell blocks."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lab import Lab, Notebook, chromium_page, find_chromium, start_lab, write_notebook

from musecode_jupyter.jupyter.views.live import read_bundle

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one or set MUSECODE_CHROMIUM"),
]
HERE = Path(__file__).parent
CELLS = [
    "from synthetic import Demo\ndemo = Demo()\ndemo.timeline",
    "demo.approvals",
    # Nothing that the kernel's main shell serves can arrive while this runs.
    "import time\n"
    "demo.ask(70, 'make release')\n"
    "end = time.monotonic() + 30\n"
    "while not demo.actions and time.monotonic() < end:\n"
    "    time.sleep(0.02)\n"
    "print('received', demo.actions)",
    "demo.write(lambda s: s.ask_model('worker', 1.0, text='a new voice'))",
    # The server drops what is more than a hundred messages a second (a thousand by default), ours as well.
    "import time\n"
    "shell = get_ipython()\n"
    "def update(n):\n"
    "    shell.display_pub.publish({'text/plain': str(n)}, transient={'display_id': 'flood'}, update=n > 0)\n"
    "sent, said, start = 0, False, time.monotonic()\n"
    "while (now := time.monotonic() - start) < 4:\n"
    "    if sent < now * 5000:\n"
    "        update(sent)\n"
    "        sent += 1\n"
    "    if now > 3 and not said:\n"
    "        said = True\n"
    "        demo.write(lambda s: s.ask_model('worker', 1.0, text='said in the flood'))\n"
    "        demo.ask(71, 'make dikes')\n"
    "print('updates:', sent)",
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    (folder / "config").mkdir()
    # A slow machine does not make 5,000 messages a second; what counts is that they are many times what is let through.
    limits = {"ServerApp": {"iopub_msg_rate_limit": 100}}
    (folder / "config" / "jupyter_server_config.json").write_text(json.dumps(limits))
    with start_lab(folder) as lab:
        shutil.copy(HERE / "synthetic.py", lab.root)
        write_notebook(lab.root / "views.ipynb", CELLS)
        yield lab


@pytest.fixture(scope="module")
def page(chromium: str) -> Iterator[Page]:
    with chromium_page(running=chromium) as page:
        yield page


@pytest.fixture(scope="module")
def notebook(page: Page, lab: Lab) -> Notebook:
    assert read_bundle("timeline") is not None, "the views are not built: make frontend"
    notebook = Notebook(page, lab, "views.ipynb")
    notebook.run(0)
    return notebook


def shot(page: Page, name: str) -> None:
    folder = os.environ.get("BROWSER_SHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_events_appear_and_a_click_shows_detail_with_causes_and_diff(notebook: Notebook) -> None:
    view = notebook.output(0).locator(".muse-timeline")
    view.locator(".muse-row").first.wait_for()
    assert "Make the reservation tests pass" in view.locator(".muse-goal").inner_text()
    view.get_by_label("Filter events by text").fill("file.changed")
    rows = view.locator(".muse-row")
    rows.filter(has_text="changed inventory/stock.py").click()
    detail = view.locator(".muse-detail")
    detail.locator(".muse-d-add", has_text="if count > free").wait_for()
    causes = detail.locator(".muse-link")
    assert "tool.requested" in causes.first.inner_text()
    shot(notebook.page, "light")
    causes.first.click()
    detail.locator("strong", has_text="tool.requested").wait_for()


def test_list_is_driven_by_the_keyboard(notebook: Notebook) -> None:
    view = notebook.output(0).locator(".muse-timeline")
    view.get_by_label("Filter events by text").fill("")
    view.get_by_role("listbox", name="Events").focus()
    notebook.page.keyboard.press("Home")
    view.locator(".muse-detail strong", has_text="session.opened").wait_for()
    notebook.page.keyboard.press("ArrowDown")
    chosen = view.get_by_role("option", selected=True)
    assert "agent.created" in chosen.inner_text()


def test_new_events_arrive_and_the_tail_is_followed(notebook: Notebook) -> None:
    view = notebook.output(0).locator(".muse-timeline")
    view.get_by_label("Keep the newest events in sight").click()
    notebook.run(3)
    view.locator(".muse-row", has_text="a new voice").wait_for()


def test_approval_is_received_while_a_cell_blocks(notebook: Notebook) -> None:
    """ipykernel 7.4 sent a view's messages to the shell that made it: a click waited for the running cell."""
    notebook.run(1)
    view = notebook.output(1).locator(".muse-approvals")
    view.locator("article", has_text="pip install").wait_for()
    shot(notebook.page, "approvals")
    notebook.run(2, wait=False)
    notebook.page.wait_for_function(
        "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'busy'"
    )
    # Asked while the cell runs: that the kernel published on this comm just now is what misled it.
    card = view.locator("article", has_text="make release")
    card.get_by_role("button", name="Approve once").click()
    card.locator(".muse-card-state", has_text="approved once").wait_for()
    notebook.wait_text(2, "'approval': 70")
    assert "'decision': 'approve'" in notebook.text(2)


def test_what_was_lost_in_a_flood_of_output_comes_again(notebook: Notebook, lab: Lab) -> None:
    """The last message of ours was lost: no later one showed that it was missing."""
    notebook.run(4)
    assert any("IOPub message rate exceeded" in line for line in lab.log)
    view = notebook.output(0).locator(".muse-timeline")
    view.get_by_label("Filter events by text").fill("said in the flood")
    view.locator(".muse-row", has_text="said in the flood").wait_for(timeout=20_000)
    notebook.output(1).locator("article", has_text="make dikes").wait_for(timeout=20_000)


def test_denial_carries_its_reason(notebook: Notebook) -> None:
    card = notebook.output(1).locator(".muse-approvals article", has_text="move branch")
    card.get_by_label("Reason for a denial").fill("not before the release")
    card.get_by_role("button", name="Deny").click()
    card.locator(".muse-card-state", has_text="denied by you: not before the release").wait_for()


def test_dark_theme_and_no_script_errors(notebook: Notebook) -> None:
    notebook.theme(dark=True)
    shot(notebook.page, "dark")
    notebook.theme(dark=False)
    assert notebook.page.script_errors == []  # type: ignore[attr-defined]
