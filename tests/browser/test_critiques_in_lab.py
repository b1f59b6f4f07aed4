"""Findings in a real JupyterLab: they appear on their diff, take the user's word, and outlive a reload."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.crew_scripts import edit
from fixtures.model_scripts import Answer, Steps
from fixtures.model_server import ModelServer
from fixtures.review_scripts import Reviewed, finding, span
from fixtures.session_bench import Repo
from lab import Lab, Notebook, chromium_page, find_chromium, start_lab, write_notebook

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one or set MUSECODE_CHROMIUM"),
]
BEFORE = "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total\n"
CELLS = [
    "%load_ext musecode_jupyter",
    "goal = %goal 'mean divides' --verify 'python -c \"import stats; assert stats.mean([2, 4]) == 3\"'",
    "%muse critiques",
]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    work = Steps([edit("stats.py", "return total", "return total / len(values)"), Answer("It is done.")])
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
        monkeypatch.setenv("MUSECODE_BASE_URL", server.base_url)
        monkeypatch.setenv("MUSECODE_MODEL", "muse-spark-1.3")
        monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("MUSECODE_REVIEW", "full")
        with start_lab(tmp_path / "lab") as lab:
            repo = Repo(lab.root / "stats")
            repo.commit({"stats.py": BEFORE})
            write_notebook(lab.root / "stats" / "critiques.ipynb", CELLS)
            yield lab


def test_findings_appear_take_an_answer_and_are_there_after_a_reload(lab: Lab) -> None:
    with chromium_page(height=1300) as page:
        notebook = Notebook(page, lab, "stats/critiques.ipynb")
        notebook.run(0)
        notebook.run(1)
        notebook.run(2)
        view = notebook.output(2).locator(".muse-critiques")
        card = view.locator("article", has_text="An empty list is divided by zero.")
        card.wait_for(timeout=90_000)
        place = card.locator(".muse-d-place")
        assert place.inner_text().split() == [">", "5", "+", "return", "total", "/", "len(values)"]
        assert card.locator("strong").inner_text() == "blocking"
        assert "open: stops landing" in card.locator("summary").inner_text()
        view.locator("article", has_text="statistics.mean").locator("summary", has_text="an opinion").wait_for()
        # The goal has stopped by the time that a click would be lost in a card that is drawn again.
        notebook.output(1).locator(".muse-state", has_text="blocked").wait_for(timeout=90_000)
        shot(notebook, "critiques-light")
        notebook.theme(dark=True)
        shot(notebook, "critiques-dark")
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
        assert not notebook.output(2).locator(".muse-kept").is_visible(), "it is told twice"
        assert page.script_errors == []  # type: ignore[attr-defined]
        notebook.command("docmanager:save")
        page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
    saved = json.loads((lab.root / "stats" / "critiques.ipynb").read_text())
    stored = saved["cells"][2]["outputs"][0]["data"]
    assert "Critiques(findings=3" in "".join(stored["text/plain"])
    assert "An empty list is divided by zero." in "".join(stored["text/html"])
    with chromium_page(height=1300) as page:
        notebook = Notebook(page, lab, "stats/critiques.ipynb")
        view = notebook.output(2).locator(".muse-critiques")
        view.locator("summary", has_text="answered: Callers never pass one.").wait_for(timeout=30_000)
        assert view.locator("article").count() == 3


def shot(notebook: Notebook, name: str) -> None:
    folder = os.environ.get("BROWSER_SHOTS")
    if folder:
        notebook.output(2).scroll_into_view_if_needed()
        notebook.page.screenshot(path=Path(folder) / f"{name}.png")
