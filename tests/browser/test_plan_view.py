"""The plan view's script in Chromium: what it shows, what its buttons say, and that nothing of a model's is markup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lab import chromium_page, find_chromium

from musecode_jupyter.jupyter.views.live import read_bundle

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one or set MUSECODE_CHROMIUM"),
]
EVIL = "<img src=x onerror=\"document.title='hit'\">"
STEP = {
    "name": "one",
    "goal": EVIL,
    "reads": [],
    "writes": ["one.txt"],
    "after": [],
    "risk": {"level": "low", "why": EVIL},
    "tokens": 2000,
    "trials": [{"command": "test -e one.txt", "ended": "passes", "exit": 0}],
}
PLAN: dict[str, Any] = {
    "number": 4,
    "text": "mend it",
    "status": "proposed",
    "standing": "It waits for you.",
    "version": 2,
    "digest": "d" * 32,
    "document": {
        "goal": "mend it",
        "summary": EVIL,
        "steps": [STEP],
        "denied": "",
        "questions": ["Which word?"],
        "evidence": [{"path": "one.txt", "shows": EVIL, "read": False}],
        "ground": {"uncommitted": ["two.txt"]},
    },
    "answers": {},
    "difference": "+right\n-wrong",
}
HARNESS = """async ([script, plan]) => {
    const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    const view = (await import(url)).default;
    window.sent = [];
    let tell;
    const model = {
        get: () => ({ plan }),
        on: (_, callback) => { tell = callback; },
        off: () => { tell = null; },
        send: (message) => { window.sent.push(message); },
    };
    window.tell = (message) => tell(message);
    window.gone = view.render({ model, el: document.body });
}"""


def test_what_the_buttons_say_and_the_view_shows(tmp_path: Path) -> None:
    built = read_bundle("plan")
    assert built is not None, "run make frontend"
    script, style = built
    with chromium_page(900, 900) as page:
        page.set_content(f"<style>{style}</style>")
        page.evaluate(HARNESS, [script, PLAN])
        page.get_by_text("passes already").wait_for()
        for text in (
            "1. one",
            "never read",
            "It waits for you.",
            "Changed since version 1",
            "about 2,000 tokens",
            "not committed",
        ):
            assert page.get_by_text(text).first.is_visible(), text
        assert page.locator("img").count() == 0
        page.get_by_role("button", name="Approve").click()
        page.get_by_text("Approval sent").wait_for()
        assert page.get_by_role("button", name="Request changes").is_disabled()
        page.evaluate("tell({ type: 'refused', problem: 'Not approved: it has changed.' })")
        page.get_by_text("Not approved: it has changed.").wait_for()
        page.get_by_label("What is to be changed").fill("more")
        page.get_by_role("button", name="Request changes").click()
        page.evaluate("plan => tell({ type: 'plan', plan })", {**PLAN, "status": "writing", "digest": "e" * 32})
        page.get_by_text("version 2, writing").wait_for()
        assert page.get_by_role("button", name="Approve").is_disabled()
        page.evaluate("plan => tell({ type: 'plan', plan })", PLAN)
        page.get_by_text("version 2, proposed").wait_for()
        page.get_by_label("Answer to question 1").fill("right")
        page.keyboard.press("Enter")
        page.evaluate("plan => tell({ type: 'plan', plan })", {**PLAN, "answers": {"1": "right"}})
        page.locator("b", has_text="right").wait_for()
        page.get_by_role("button", name="Cancel").click()
        sent = json.loads(page.evaluate("JSON.stringify(window.sent)"))
        assert sent == [
            {"type": "plan"},
            {"type": "approve", "digest": "d" * 32},
            {"type": "edit", "text": "more"},
            {"type": "answer", "question": 1, "text": "right"},
            {"type": "cancel"},
        ]
        page.evaluate("window.gone()")
        assert page.locator("section").count() == 0
        assert page.title() == ""
        assert page.script_errors == []  # type: ignore[attr-defined]
