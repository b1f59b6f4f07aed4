"""The Python side of the critiques view: deltas by seq, what the buttons say, the forms without JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from musecode_jupyter.agents.critiques.state import CritiquesReducer, CritiquesState
from musecode_jupyter.jupyter.views.critiques import FLUSH_S, KEPT, CritiquesView
from musecode_jupyter.jupyter.views.findings_html import critiques_html, critiques_text, rows
from musecode_jupyter.log.events import Event
from musecode_jupyter.session.critiques import finding_of, finding_shown, findings_shown, findings_since

PLACE = {"path": "a.py", "start": 2, "end": 2, "text": "x = 1", "side": "new"}
RAISED = {
    "goal": 1,
    "task": None,
    "worktree": None,
    "merge": 5,
    "base": "b",
    "tree": "t",
    "check": "crash",
    "severity": "blocking",
    "place": PLACE,
    "text": "It <b>fails</b>.",
    "why": "",
    "evidence": [{"form": "command", "path": "", "start": 0, "end": 0, "call": 3, "text": "1 failed"}],
    "suggestion": "Do not.",
    "passes": ["correctness", "tests"],
    "hunk": "@@ -1,2 +1,2 @@\n a\n-x = 0\n+x = 1",
}


class Findings:
    """A log of findings and a loop that runs what was asked for later when told to."""

    def __init__(self) -> None:
        self.state = CritiquesState()
        self.seq = 9
        self.later: list[tuple[float, Callable[[], None]]] = []

    def happens(self, kind: str, agent: str = "harness", **data: Any) -> dict[str, Any]:
        self.seq += 1
        event = Event(1, self.seq, "2026-03-02T09:30:00Z", 1, 1, agent, 0, (), kind, "private", data)
        CritiquesReducer().apply(self.state, event)
        number = finding_of(event)
        assert number is not None
        return finding_shown(self.state.findings[number])

    def view(self, actions: list[dict[str, Any]]) -> tuple[CritiquesView, list[dict[str, Any]]]:
        sent: list[dict[str, Any]] = []
        view = CritiquesView(
            actions.append,
            post=lambda work: work(),
            call_later=lambda after, work: self.later.append((after, work)),
            findings=findings_shown(self.state),
        )
        view.send = lambda content, buffers=None: sent.append(content)
        return view, sent

    def pass_time(self) -> None:
        """What was asked for within the time of a flush happens."""
        due = [work for after, work in self.later if after <= FLUSH_S]
        self.later = [each for each in self.later if each[0] > FLUSH_S]
        for work in due:
            work()


def test_only_what_changed_is_sent_and_a_view_with_a_gap_gets_the_rest() -> None:
    log = Findings()
    log.happens("critique.raised", **RAISED)
    view, sent = log.view([])
    view.handle({"type": "since", "seq": 0})
    assert (sent[-1]["since"], sent[-1]["upto"], len(sent[-1]["findings"])) == (0, 10, 1)
    view.feed([log.happens("critique.raised", **{**RAISED, "check": "other"})])
    assert [f["number"] for f in sent[-1]["findings"]] == [11], "the first is sent at once"
    view.feed([log.happens("critique.answered", "user", critique=10, answer="answered", text="so")])
    view.feed([log.happens("critique.withdrawn", "user", critique=11, why="")])
    assert len(sent) == 2, "one message for what comes right after it"
    log.pass_time()
    assert (sent[-1]["since"], sent[-1]["upto"]) == (11, 13)
    assert {f["number"]: f["state"] for f in sent[-1]["findings"]} == {10: "answered", 11: "withdrawn"}
    log.pass_time()
    assert len(sent) == 3
    view.handle({"type": "since", "seq": 12})
    assert [f["number"] for f in sent[-1]["findings"]] == [11]
    assert [f["number"] for f in view.snapshot["findings"]] == [10, 11]


@pytest.mark.parametrize(
    "message",
    [
        {"type": "settle", "number": True, "word": "answer", "text": ""},
        {"type": "settle", "number": 10, "word": "delete", "text": ""},
        {"type": "settle", "number": 10, "word": "answer", "text": 3},
        {"type": "since", "seq": "0"},
        {},
    ],
)
def test_a_message_that_is_none_is_left_alone(message: dict[str, Any]) -> None:
    actions: list[dict[str, Any]] = []
    view, sent = Findings().view(actions)
    view.handle(message)
    assert (actions, sent) == ([], [])


def test_a_click_says_what_the_user_says() -> None:
    actions: list[dict[str, Any]] = []
    view, _ = Findings().view(actions)
    view.handle({"type": "settle", "number": 10, "word": "withdraw", "text": "wrong"})
    assert actions == [{"type": "settle", "number": 10, "word": "withdraw", "text": "wrong"}]


def test_a_word_that_is_not_taken_is_told_until_the_view_is_closed() -> None:
    """The view said for ever that it was sent."""
    view, sent = Findings().view([])
    view.refused(10, "Finding 10 is fixed already.")
    assert sent == [{"type": "refused", "number": 10, "problem": "Finding 10 is fixed already."}]
    view.close()
    view.refused(10, "again")
    assert len(sent) == 1


def test_the_panel_gets_what_has_changed_since_it_asked() -> None:
    log = Findings()
    assert findings_since(log.state, 0) == {"since": 0, "upto": 0, "findings": []}
    log.happens("critique.raised", **RAISED)
    log.happens("critique.raised", **{**RAISED, "check": "other"})
    log.happens("critique.answered", "user", critique=10, answer="accepted", text="")
    said = findings_since(log.state, 11)
    assert (said["since"], said["upto"]) == (11, 12)
    assert [(f["number"], f["accepted"]) for f in said["findings"]] == [(10, True)]
    # A page that knows more than there is, from another session, has nothing taken back by this.
    assert findings_since(log.state, 40) == {"since": 40, "upto": 40, "findings": []}


def test_the_forms_without_scripts_tell_all_and_run_nothing() -> None:
    log = Findings()
    log.happens("critique.raised", **{**RAISED, "severity": "note", "evidence": []})
    log.happens("critique.raised", **RAISED)
    view, _ = log.view([])
    assert repr(view) == "Critiques(findings=2, open=2, blocking=1)"
    text = critiques_text(findings_shown(log.state))
    assert text.splitlines()[0] == "11 blocking crash at a.py:2 [open: stops landing 5]"
    assert ">   2 +x = 1" in text
    assert "Command 3 printed:" in text
    assert "Suggested: Do not." in text
    assert "raised by correctness, tests; about goal 1" in text
    assert "10 note crash at a.py:2 [open: an opinion, stops nothing]" in text
    assert text.endswith("To settle one: `%muse critiques answer 11 TEXT`, `accept 11` or `withdraw 11`.")
    html = critiques_html(findings_shown(log.state))
    assert "It &lt;b&gt;fails&lt;/b&gt;." in html
    assert html.index("#11") < html.index("#10")
    assert critiques_text([]) == "No findings."


def test_a_place_that_was_taken_away_is_marked_on_its_own_side() -> None:
    shown = rows(str(RAISED["hunk"]), {**PLACE, "side": "old"})
    assert [row for row in shown if row.startswith(">")] == ["> 2   -x = 0"]


def test_without_a_kernel_a_view_shows_what_stops_the_work_however_many_came_after_it() -> None:
    log = Findings()
    first = log.happens("critique.raised", **RAISED)
    minor = log.happens("critique.raised", **{**RAISED, "severity": "minor"})
    for _ in range(KEPT + 50):
        closed = log.happens("critique.raised", **RAISED)
        log.happens("critique.fixed", critique=closed["number"], tree="t", why="gone")
    newest = log.happens("critique.fixed", critique=closed["number"], tree="t", why="gone")
    view, _ = log.view([])
    for kept in (view.snapshot["findings"], view._snapshot()["findings"]):
        numbers = [each["number"] for each in kept]
        assert len(numbers) == KEPT
        assert numbers == sorted(numbers)
        assert {first["number"], minor["number"], newest["number"]} <= set(numbers)
