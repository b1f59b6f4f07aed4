"""Findings in a real JupyterLab: they appear beside the work, in cell and panel, take the user's word, and are kept."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.crew_scripts import edit, read
from fixtures.model_scripts import Answer, ParsedRequest, Steps
from fixtures.model_server import ModelServer
from fixtures.review_scripts import Reviewed, finding, span
from fixtures.session_bench import Repo
from lab import Lab, Notebook, chromium_page, find_chromium, write_notebook

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one or set MUSECODE_CHROMIUM"),
]
BEFORE = "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total\n"
CELLS = [
    "%load_ext musecode_jupyter",
    "goal = %goal 'mean divides' --verify 'python -c \"import stats; assert stats.mean([2, 4]) == 3\"'",
    "%muse critiques",
    "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
]
# How many rows of a list can be seen, once what was asked to be drawn is drawn.
IN_SIGHT = """async list => {
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    const { top, bottom } = list.getBoundingClientRect();
    return [...list.querySelectorAll(".muse-row")].filter(row => {
        const place = row.getBoundingClientRect();
        return place.bottom > top && place.top < bottom;
    }).length;
}"""

go_on = threading.Event()


class Working(Steps):
    """The lead: it changes a file, looks at it, so that its change has settled, and has to be let go on from there."""

    def __call__(self, request: ParsedRequest) -> Answer:
        answer = super().__call__(request)
        if not answer.calls:
            go_on.wait(120)
        return answer


@pytest.fixture
def lab(jupyter: Lab, tmp_path: Path) -> Iterator[Lab]:
    change = edit("stats.py", "return total", "return total / len(values)")
    work = Working([change, read("stats.py"), Answer("It is done.")])
    empty = finding(
        "stats.py",
        5,
        "An empty list is divided by zero.",
        span("stats.py", 5, "    return total / len(values)"),
        kind="crash",
        suggestion="Raise ValueError with a message for an empty list.",
    )
    long = finding("stats.py", 3, "statistics.mean does all of this.", severity="note", kind="complexity", end_line=5)
    loop = finding(
        "stats.py", 3, "sum() says it in a word.", span("stats.py", 3, "for value in values:"), severity="minor"
    )
    script = Reviewed(work, {"correctness": [[empty], []], "simplicity": [[loop, long], []]})
    with ModelServer(script) as server:
        environment = {
            "MUSECODE_BASE_URL": server.base_url,
            "MUSECODE_MODEL": "muse-spark-1.3",
            "MUSECODE_HOME": str(tmp_path / "home"),
            "MUSECODE_REVIEW": "full",
        }
        with jupyter.folder("stats", **environment) as folder:
            repo = Repo(folder)
            repo.commit({"stats.py": BEFORE})
            write_notebook(folder / "critiques.ipynb", CELLS)
            yield jupyter
            go_on.set()


def test_findings_appear_beside_the_work_take_a_word_and_are_kept(lab: Lab, chromium: str) -> None:
    with chromium_page(height=1300, running=chromium) as page:
        notebook = Notebook(page, lab, "stats/critiques.ipynb")
        notebook.run(0)
        notebook.run(1)
        notebook.run(2)
        # Raised by reviewers of a change that has settled, while the lead works.
        view = notebook.output(2).locator(".muse-critiques")
        card = view.locator("article", has_text="An empty list is divided by zero.")
        card.wait_for(timeout=90_000)
        place = card.locator(".muse-d-place")
        assert place.inner_text().split() == [">", "5", "+", "return", "total", "/", "len(values)"]
        assert card.locator("strong").inner_text() == "blocking"
        assert "open: stops the landing" in card.locator("summary").inner_text()
        assert notebook.output(1).locator(".muse-state").inner_text() == "running"
        view.locator("article", has_text="statistics.mean").locator("summary", has_text="an opinion").wait_for()

        # The panel has them too; what is said there reaches the cell.
        page.get_by_role("button", name="agents at work", exact=True).click()
        panel = page.locator("#musecode-panel .muse-critiques")
        panel.locator("article", has_text="An empty list").locator(".muse-d-place").wait_for()
        loop = panel.locator("article", has_text="sum() says it in a word.")
        loop.get_by_role("button", name="Withdraw").click()
        view.locator("article", has_text="sum() says it").locator("summary", has_text="withdrawn").wait_for()
        shot(notebook, "panel-findings-light")
        go_on.set()
        page.get_by_role("button", name="1 finding to settle", exact=True).wait_for(timeout=90_000)
        notebook.theme(dark=True)
        # The page is hidden for a moment as it changes its theme: a list drawn then showed nothing from then on.
        assert notebook.output(1).locator(".muse-list").evaluate(IN_SIGHT) >= 10
        shot(notebook, "panel-findings-dark")
        notebook.theme(dark=False)
        # By the keyboard alone: the card closes and opens, and its buttons can be reached.
        card.locator("summary").focus()
        page.keyboard.press("Enter")
        place.wait_for(state="hidden")
        page.keyboard.press("Enter")
        place.wait_for()
        card.get_by_label("Your words").fill("Callers never pass one.")
        page.keyboard.press("Enter")
        card.locator("summary", has_text="answered: Callers never pass one.").wait_for()
        panel.locator("summary", has_text="answered: Callers never pass one.").wait_for()
        page.locator(".muse-lab-status").wait_for(state="hidden")
        assert not notebook.output(2).locator(".muse-kept").is_visible(), "it is told twice"
        notebook.command("docmanager:save")
        page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
        assert page.script_errors == []  # type: ignore[attr-defined]
    saved = json.loads((lab.root / "stats" / "critiques.ipynb").read_text())
    stored = saved["cells"][2]["outputs"][0]["data"]
    assert "Critiques(findings=3" in "".join(stored["text/plain"])
    assert "An empty list is divided by zero." in "".join(stored["text/html"])
    with chromium_page(height=1300, running=chromium) as page:
        notebook = Notebook(page, lab, "stats/critiques.ipynb")
        view = notebook.output(2).locator(".muse-critiques")
        view.locator("summary", has_text="answered: Callers never pass one.").wait_for(timeout=30_000)
        assert view.locator("article").count() == 3
        # A page that was loaded while nothing runs has them in its panel, and knows when the kernel has ended.
        notebook.command("musecode:show")
        panel = page.locator("#musecode-panel .muse-critiques")
        panel.locator("summary", has_text="answered: Callers never pass one.").wait_for()
        notebook.run(3, wait=False)
        panel.get_by_text("The kernel has ended.").wait_for()
        assert panel.get_by_role("button", name="Answer").is_disabled()
        shot(notebook, "panel-gone")


def shot(notebook: Notebook, name: str) -> None:
    folder = os.environ.get("BROWSER_SHOTS")
    if folder:
        notebook.output(2).scroll_into_view_if_needed()
        notebook.page.screenshot(path=Path(folder) / f"{name}.png")
