"""A goal in a real JupyterLab: the cell returns at once, the timeline fills, a click lets the work land."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.make_repo import make_repo
from fixtures.model_server import ModelServer, RepairModel, load_repairs
from lab import Lab, Notebook, chromium_page, find_chromium, write_notebook

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one or set MUSECODE_CHROMIUM"),
]
CELLS = [
    "%load_ext musecode_jupyter",
    'goal = %goal "make the tests pass" --verify "python -m pytest -q"',
    "6 * 7",
    # Nothing that the kernel's main shell serves can arrive while this runs.
    "import time\n"
    "end = time.monotonic() + 90\n"
    "while goal.status not in ('met', 'blocked') and time.monotonic() < end:\n"
    "    time.sleep(0.05)\n"
    "print('seen by a blocking cell:', goal.status)",
    "%goal",
    "%muse diff",
]


@pytest.fixture
def lab(jupyter: Lab, tmp_path: Path) -> Iterator[Lab]:
    with ModelServer(RepairModel(load_repairs("intervals"))) as server:
        environment = {
            "MUSECODE_BASE_URL": server.base_url,
            "MUSECODE_MODEL": "muse-spark-1.3",
            "MUSECODE_HOME": str(tmp_path / "home"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        with jupyter.folder("goal", **environment) as folder:
            make_repo("intervals", folder)
            write_notebook(folder / "goal.ipynb", CELLS)
            yield jupyter


def test_goal_is_met_after_a_click_on_approve(lab: Lab, chromium: str) -> None:
    repo = lab.root / "goal"
    with chromium_page(height=1200, running=chromium) as page:
        notebook = Notebook(page, lab, "goal/goal.ipynb")
        notebook.run(0)
        assert notebook.text(0) == ""
        notebook.run(1)
        timeline = notebook.output(1).locator(".muse-timeline")
        timeline.locator(".muse-row").first.wait_for()
        notebook.run(2)
        notebook.wait_text(2, "42")

        notebook.run(3, wait=False)
        approve = notebook.output(1).get_by_role("button", name="Approve once")
        approve.wait_for(timeout=90_000)
        assert commits(repo) == 1
        shot(page, "goal-approve")
        approve.click()
        notebook.wait_text(3, "seen by a blocking cell: met", timeout=60)
        assert commits(repo) == 2

        notebook.run(4)
        notebook.wait_text(4, "met")
        notebook.run(5)
        notebook.wait_text(5, "+        return self.start < other.end and other.start < self.end")
        timeline.get_by_text("met", exact=True).first.wait_for()
        assert not notebook.output(1).locator(".muse-kept").is_visible(), "it is told twice"
        shot(page, "goal-met")
        # What is saved tells how it ended, with or without a kernel.
        notebook.command("docmanager:save")
        saved = json.loads((repo / "goal.ipynb").read_text())
        stored = saved["cells"][1]["outputs"][0]["data"]
        assert "goal met" in "".join(stored["text/html"])
        assert "application/vnd.jupyter.widget-view+json" in stored
        assert page.script_errors == []  # type: ignore[attr-defined]
    lab.end_kernels()
    with chromium_page(height=1200, running=chromium) as page:
        # Opened again, beside a kernel that knows nothing of it: how it ended can still be read.
        notebook = Notebook(page, lab, "goal/goal.ipynb")
        shot(page, "goal-reopened")
        kept = notebook.output(1).locator(".muse-kept")
        kept.get_by_text("goal met").first.wait_for(timeout=30_000)
        assert "asked by lead) granted" in kept.inner_text()


def commits(repo: Path) -> int:
    log = subprocess.run(["git", "log", "--oneline"], cwd=repo, capture_output=True, check=True)
    return log.stdout.count(b"\n")


def shot(page: object, name: str) -> None:
    folder = os.environ.get("BROWSER_SHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")  # type: ignore[attr-defined]
