"""The attack view in Chromium: what it shows, what its buttons say, and that nothing of a model's is markup."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lab import chromium_page, find_chromium

from musecode_jupyter.jupyter.views.live import read_bundle

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: install one or set MUSECODE_CHROMIUM"),
]
EVIL = "<img src=x onerror=\"document.title='hit'\">"


def finding(number: int, **other: Any) -> dict[str, Any]:
    made = {"number": number, "severity": "blocking", "blocks": True, "opinion": False, "place": "one", "text": EVIL}
    more = {"angles": ["cost", "failure"], "proof": f"evidence: {EVIL}", "change": EVIL, "question": EVIL, "by": ""}
    return {**made, **more, "state": "open", "said": "", **other}


ATTACK: dict[str, Any] = {
    "seq": 9,
    "number": 4,
    "title": "plan 3, version 1",
    "status": "running",
    "standing": "It is under way.",
    "angles": {"cost": "1 found"},
    "asked": None,
    "findings": [finding(5)],
}
HARNESS = """async ([script, grill]) => {
    const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    const view = (await import(url)).default;
    window.sent = [];
    let tell;
    const model = {
        get: () => ({ grill }),
        on: (_, callback) => { tell = callback; },
        off: () => { tell = null; },
        send: (message) => { window.sent.push(message); },
    };
    window.tell = (message) => tell(message);
    window.gone = view.render({ model, el: document.body });
}"""


def test_findings_come_one_by_one_and_each_can_be_answered() -> None:
    built = read_bundle("grill")
    assert built is not None, "run make frontend"
    script, style = built
    with chromium_page(900, 700) as page:
        page.set_content(f"<style>{style}</style>")
        page.evaluate(HARNESS, [script, ATTACK])
        page.get_by_text("Attack on plan 3, version 1: 1 finding, 1 open").wait_for()
        assert page.get_by_text("under way, 1 angles tried").is_visible()
        assert page.locator("img").count() == 0
        page.get_by_label("Your words on finding 5").fill("not so")
        # What is typed stays as another finding comes.
        opinion = finding(6, opinion=True, blocks=False, proof="an opinion")
        two = {**ATTACK, "seq": 10, "findings": [*ATTACK["findings"], opinion]}
        page.evaluate("grill => tell({ type: 'grill', grill })", two)
        page.get_by_text("open: stops nothing").wait_for()
        assert page.get_by_label("Your words on finding 5").input_value() == "not so"
        page.get_by_role("button", name="Reject").first.click()
        page.get_by_text("Reject sent").wait_for()
        page.evaluate("tell({ type: 'refused', problem: 'Finding 5 is rejected already.' })")
        page.get_by_text("Finding 5 is rejected already.").wait_for()
        page.get_by_role("button", name="Stop").click()
        stopped = {"seq": 11, "status": "stopped", "asked": {"finding": 6, "question": None, "text": "How?"}}
        settled = finding(5, state="rejected", said="not so", blocks=False)
        page.evaluate("grill => tell({ type: 'grill', grill })", {**two, **stopped, "findings": [settled, opinion]})
        page.get_by_text("rejected: not so").wait_for()
        assert page.get_by_text("asked now; open: stops nothing").is_visible()
        page.get_by_role("button", name="Go on").click()
        sent = json.loads(page.evaluate("JSON.stringify(window.sent)"))
        settle = {"type": "settle", "number": 5, "word": "reject", "text": "not so"}
        assert sent == [{"type": "grill"}, settle, {"type": "stop"}, {"type": "resume"}]
        page.evaluate("window.gone()")
        assert page.locator("section").count() == 0
        assert page.title() == ""
        assert page.script_errors == []  # type: ignore[attr-defined]
