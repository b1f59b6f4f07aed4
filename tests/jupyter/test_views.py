"""The Python side of the views: summaries, totals, batches, answers, static forms."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from musecode_jupyter.jupyter.views import live as live_module
from musecode_jupyter.jupyter.views.approvals import ApprovalsView, pending_card
from musecode_jupyter.jupyter.views.live import REPEATS_S, restore_subshell_choice
from musecode_jupyter.jupyter.views.static_html import (
    approvals_html,
    approvals_table,
    approvals_text,
    timeline_html,
    timeline_text,
)
from musecode_jupyter.jupyter.views.timeline import BATCH, TAIL, TimelineView
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.kinds import KINDS
from musecode_jupyter.session.lines import events_table
from musecode_jupyter.session.summary import TEXT_LIMIT, one_line, summarise
from musecode_jupyter.session.totals import Totals

SPECIAL = {
    "effect": "write",
    "decision": "allow",
    "scope": "once",
    "where": "baseline",
    "shown": {"command": "make"},
    "arguments": {"path": "a.py"},
    "usage": {"input": 100, "cached": 40, "output": 7, "reasoning": 0},
    "output": "first\nlast\n",
}


def sample(annotation: Any, name: str) -> Any:
    """A value of this type."""
    if name in SPECIAL:
        return SPECIAL[name]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return args[0]
    if origin in {typing.Union, types.UnionType}:
        return sample(args[0], name)
    if origin is list:
        return [sample(args[0], "")]
    if origin is dict:
        return {}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return payload(annotation)
    if annotation is Any:
        return {}
    return {str: f"<{name}>", int: 5, float: 1.5, bool: True}[annotation]


def payload(model: type[BaseModel]) -> dict[str, Any]:
    hints = typing.get_type_hints(model)
    return {name: sample(hints[name], name) for name in model.model_fields}


def event(kind: str, seq: int = 1, agent: str = "lead", **data: Any) -> Event:
    full = {**payload(KINDS[kind]), **data} if kind in KINDS else data
    ts = (datetime(2026, 3, 2, 9, 30, tzinfo=UTC) + timedelta(seconds=seq)).isoformat()
    return Event(1, seq, ts, 1, 1, agent, 0, (), kind, "private", full)


class Runtime:
    """A loop that runs what was posted when told to, and timers when their time has come."""

    def __init__(self) -> None:
        self.posted: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def post(self, call: Callable[[], None]) -> None:
        self.posted.append(call)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((seconds, call))

    def run(self) -> None:
        while self.posted:
            self.posted.pop(0)()

    def fire(self, seconds: float) -> None:
        due = [call for after, call in self.timers if after <= seconds]
        self.timers = [(after, call) for after, call in self.timers if after > seconds]
        for call in due:
            call()


class Source:
    def __init__(self, count: int) -> None:
        self.events = [summarise(event("user.message", seq)) for seq in range(1, count + 1)]

    def summaries(self, since: int) -> list[dict[str, Any]]:
        return self.events[since:]

    def detail(self, seq: int) -> dict[str, Any]:
        if seq > len(self.events):
            raise KeyError(seq)
        return {"event": {"seq": seq}, "diff": "+x"}

    def grow(self, count: int) -> list[dict[str, Any]]:
        start = len(self.events)
        self.events += [summarise(event("user.message", seq)) for seq in range(start + 1, start + count + 1)]
        return self.events[start:]


def sent(view: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    monkeypatch.setattr(view, "send", lambda content, buffers=None: messages.append(content))
    return messages


def timeline(source: Source, runtime: Runtime, **options: Any) -> TimelineView:
    return TimelineView(source, lambda action: None, post=runtime.post, call_later=runtime.later, **options)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_has_a_line_of_its_own_and_json_values(kind: str) -> None:
    summary = summarise(event(kind))
    assert summary["text"]
    assert "\n" not in summary["text"]
    assert not re.search(r"\b\w+=", summary["text"]), "falls back to the text of unknown kinds"
    assert json.loads(json.dumps(summary)) == summary


def test_unknown_kind_is_shown_by_its_fields() -> None:
    assert summarise(event("future.kind", colour="red"))["text"] == "colour=red"


def test_closing_events_name_the_event_that_opened_them() -> None:
    assert summarise(event("model.completed", request=17))["ref"] == 17
    assert summarise(event("tool.finished", call=18))["ref"] == 18
    assert summarise(event("approval.granted", approval=19))["ref"] == 19
    assert summarise(event("tool.requested"))["ref"] is None


@pytest.mark.parametrize(
    ("kind", "data", "ok"),
    [
        ("tool.finished", {"ok": False}, False),
        ("tool.finished", {"ok": True}, True),
        ("goal.judged", {"passed": False}, False),
        ("goal.stopped", {"state": "stalled"}, False),
        ("goal.stopped", {"state": "stopped"}, None),
        ("approval.denied", {}, None),
        ("model.completed", {"status": "incomplete"}, False),
        ("merge.checked", {"conflicts": ["a.py"]}, False),
        ("goal.met", {}, True),
    ],
)
def test_outcome(kind: str, data: dict[str, Any], ok: bool | None) -> None:
    assert summarise(event(kind, **data))["ok"] is ok


@given(st.text(max_size=2000))
def test_line_is_one_line_and_bounded(text: str) -> None:
    line = one_line(text, TEXT_LIMIT)
    assert len(line) <= TEXT_LIMIT
    assert len(line.splitlines()) <= 1


def test_text_of_a_model_answer_says_what_it_did_and_what_it_cost() -> None:
    items = [{"type": "tool_call", "name": "run", "call_id": "1", "arguments": "{}"}]
    done = event("model.completed", items=items, cost_microusd=2_100, estimated=False, seconds=2.4)
    assert summarise(done)["text"] == "calls run | 100 tokens in (40% cached), 7 out, $0.0021, 2.4 s"


def test_totals_follow_the_goal_and_add_up() -> None:
    totals = Totals()
    log = [
        event("goal.set", 1, "", text="repair", microusd=None),
        event("model.requested", 2),
        event("approval.requested", 3),
        event("model.completed", 4, request=2, cost_microusd=500_000, estimated=False),
        event("tool.requested", 5),
        event("tool.finished", 6, call=5, ok=False),
        event("tool.requested", 7),
        event("goal.paused", 8, "", goal=1, why="asked"),
    ]
    for one in log:
        totals.add(summarise(one))
        totals.add(summarise(one))
    header = totals.header()
    assert header["goal"] == {"seq": 1, "text": "repair", "state": "paused", "why": "asked"}
    assert (header["events"], header["running"], header["pending"], header["errors"]) == (8, 1, 1, 1)
    assert (header["input_tokens"], header["cached_tokens"], header["output_tokens"]) == (100, 40, 7)
    assert (header["usd"], header["estimated"], header["agents"]) == (0.5, False, 1)
    totals.add(summarise(event("goal.met", 9, "", goal=1)))
    assert totals.header()["goal"]["state"] == "met"


def test_events_are_sent_in_one_batch_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, source = Runtime(), Source(3)
    view = timeline(source, runtime, initial=source.events)
    messages = sent(view, monkeypatch)
    for _ in range(50):
        view.feed(source.grow(1))
    assert messages == []
    assert [after for after, _ in runtime.timers if after < 1] == [0.1]
    runtime.fire(0.1)
    assert [(m["since"], m["upto"], len(m["events"])) for m in messages] == [(3, 53, 50)]
    assert messages[0]["header"]["events"] == 53
    runtime.fire(0.1)
    assert len(messages) == 1


def test_question_since_is_answered_in_contiguous_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, source = Runtime(), Source(2 * BATCH + 5)
    view = timeline(source, runtime, initial=source.events)
    messages = sent(view, monkeypatch)
    view._received(view, {"type": "since", "seq": 0}, [])
    assert messages == [], "a message of the front end is only posted"
    runtime.run()
    view.feed(source.grow(2))
    for _ in range(4):
        runtime.fire(0.1)
    ends = [(m["since"], m["upto"]) for m in messages]
    assert ends == [(0, BATCH), (BATCH, 2 * BATCH), (2 * BATCH, 2 * BATCH + 7)]
    assert [e["seq"] for m in messages for e in m["events"]] == list(range(1, 2 * BATCH + 8))


def test_question_since_is_answered_even_if_there_is_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, source = Runtime(), Source(3)
    view = timeline(source, runtime, initial=source.events)
    messages = sent(view, monkeypatch)
    view._received(view, {"type": "since", "seq": 3}, [])
    runtime.run()
    assert [(m["since"], m["upto"], m["events"]) for m in messages] == [(3, 3, [])]


def test_hole_in_what_is_fed_is_filled_from_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, source = Runtime(), Source(2)
    view = timeline(source, runtime, initial=source.events)
    messages = sent(view, monkeypatch)
    source.grow(3)
    view.feed(source.grow(1))
    runtime.fire(0.1)
    assert [e["seq"] for e in messages[0]["events"]] == [3, 4, 5, 6]
    assert view.header()["events"] == 6


def test_the_newest_state_is_said_again_after_silence_until_it_has_surely_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that is flooded drops messages: what was lost last was never missed."""
    runtime, source = Runtime(), Source(2)
    lost: list[dict[str, Any]] = []
    view = TimelineView(source, lost.append, post=runtime.post, call_later=runtime.later, initial=source.events)
    messages = sent(view, monkeypatch)
    view.feed(source.grow(1))
    runtime.fire(0.1)
    view.feed(source.grow(1))
    runtime.fire(0.1)
    for seconds in REPEATS_S:
        runtime.fire(seconds)
    runtime.fire(1000)
    ends = [(m["since"], m["upto"], len(m["events"])) for m in messages]
    assert ends == [(2, 3, 1), (3, 4, 1), *[(4, 4, 0)] * len(REPEATS_S)]
    # A view that has missed them asks, and is told once more; that other output may be lost is told as well.
    view._received(view, {"type": "since", "seq": 3}, [])
    runtime.run()
    assert [e["seq"] for e in messages[-1]["events"]] == [4]
    assert lost == [{"type": "lost"}]


def test_detail_is_answered_and_an_unknown_event_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, source = Runtime(), Source(2)
    view = timeline(source, runtime, initial=source.events)
    messages = sent(view, monkeypatch)
    for seq in (2, 9):
        view._received(view, {"type": "detail", "seq": seq}, [])
    runtime.run()
    assert messages == [
        {"type": "detail", "seq": 2, "event": {"seq": 2}, "diff": "+x"},
        {"type": "detail", "seq": 9, "event": None},
    ]


@pytest.mark.parametrize("content", ["since", None, {}, {"type": "since"}, {"type": "since", "seq": "1"}, {"type": 3}])
def test_malformed_message_is_ignored(content: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, source = Runtime(), Source(2)
    view = timeline(source, runtime, initial=source.events)
    messages = sent(view, monkeypatch)
    view._received(view, content, [])
    runtime.run()
    assert messages == []


def test_snapshot_holds_the_last_events_and_is_not_sent_with_each_batch() -> None:
    runtime, source = Runtime(), Source(0)
    view = timeline(source, runtime)
    runtime.run()
    view.feed(source.grow(TAIL + 50))
    runtime.fire(0.1)
    assert view.snapshot["events"] == []
    view.flush()
    assert [e["seq"] for e in view.snapshot["events"]] == list(range(51, TAIL + 51))
    assert view.snapshot["header"]["events"] == TAIL + 50


def test_closed_view_sends_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, source = Runtime(), Source(1)
    view = timeline(source, runtime, initial=source.events)
    messages = sent(view, monkeypatch)
    view.feed(source.grow(1))
    view.close()
    view.feed(source.grow(1))
    runtime.fire(10)
    view.flush()
    assert messages == []


def test_stop_reaches_the_runtime_thread() -> None:
    runtime, source = Runtime(), Source(1)
    actions: list[dict[str, Any]] = []
    view = TimelineView(source, actions.append, post=runtime.post, call_later=runtime.later, initial=source.events)
    view._received(view, {"type": "stop"}, [])
    assert actions == []
    runtime.run()
    assert actions == [{"type": "stop"}]


def test_bundle_of_the_view_and_its_static_forms_are_put_out_together() -> None:
    runtime, source = Runtime(), Source(3)
    data, _ = timeline(source, runtime, initial=source.events)._repr_mimebundle_()
    assert data["text/plain"] == "Timeline(events=3)"
    assert "3 events" in data["text/html"]
    if live_module.read_bundle("timeline"):
        assert "application/vnd.jupyter.widget-view+json" in data


def test_view_that_was_not_built_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(live_module, "STATIC", tmp_path)
    runtime, source = Runtime(), Source(3)
    data, _ = timeline(source, runtime, initial=source.events)._repr_mimebundle_()
    assert sorted(data) == ["text/html", "text/plain"]
    assert "make frontend" in data["text/html"]


CARD = {"action": "run", "rule": "run: make", "digest": "ab" * 16}


def test_all_that_was_shown_is_on_the_card() -> None:
    """The answer is to a digest over all of `shown`; a field without a place would be signed unseen."""
    shown = {
        "tool": "run",
        "command": "make x",
        "cwd": "/w",
        "timeout": 5.0,
        "environment": ["PATH"],
        "new_field": "z",
    }
    card = pending_card(3, {**CARD, "shown": shown}, agent="lead")
    assert (card["what"], card["cwd"]) == ("make x", "/w")
    assert card["more"] == {"timeout": 5.0, "environment": ["PATH"], "new_field": "z"}


def test_edit_is_shown_as_a_diff_with_every_line() -> None:
    old = "\n".join(f"line {i}" for i in range(30))
    shown = {"tool": "edit", "path": "a.py", "old": old, "new": old.replace("line 7", "seven"), "cwd": "/w"}
    card = pending_card(3, {**CARD, "shown": shown})
    assert card["what"] == "edit a.py"
    lines = card["diff"].splitlines()
    assert "-line 7" in lines
    assert "+seven" in lines
    assert all(f" line {i}" in lines for i in range(30) if i != 7)


@pytest.mark.parametrize(("old", "new"), [("a\r\nb", "a\nb"), ("a", "a\n"), ("a\x0cb", "a\nb"), ("a", "a")])
def test_edit_that_a_diff_over_lines_hides_is_seen_on_the_card(old: str, new: str) -> None:
    """Line ends and form feeds were split away, and the card showed an edit without any change."""
    card = pending_card(3, {**CARD, "shown": {"tool": "edit", "path": "a.py", "old": old, "new": new}})
    assert card["diff"] or {"old", "new"} <= set(card["more"])


def test_characters_that_hide_or_reorder_text_are_spelt_out() -> None:
    """A command must not look harmless because it turns the direction of its text."""
    shown = {"command": "rm a\u202e b\u200b\x1b[8m", "note": ["x\u2066"]}
    card = pending_card(3, {**CARD, "shown": shown})
    assert card["what"] == "rm a\\u202e b\\u200b\\x1b[8m"
    assert card["more"] == {"note": ["x\\u2066"]}


def test_landing_shows_branch_diff_files_and_money() -> None:
    shown = {
        "branch": "main",
        "from": "c1",
        "to": "c2",
        "files": ["a.py"],
        "diff": "+x",
        "checks": ["ok"],
        "usd": 0.5,
    }
    card = pending_card(3, {**CARD, "action": "land", "shown": shown})
    assert card["what"] == "move branch main\nfrom c1\nto   c2"
    assert (card["diff"], card["usd"]) == ("+x", 0.5)
    assert card["more"] == {"files": ["a.py"], "checks": ["ok"]}


def test_answer_is_checked_and_posted() -> None:
    runtime = Runtime()
    actions: list[dict[str, Any]] = []
    view = ApprovalsView(
        actions.append, post=runtime.post, call_later=runtime.later, pending=[pending_card(3, {**CARD, "shown": {}})]
    )
    good = {"type": "answer", "approval": 3, "digest": "ab" * 16, "decision": "deny", "why": "no"}
    bad = [
        {**good, "decision": "yes"},
        {**good, "approval": "3"},
        {**good, "approval": True},
        {**good, "digest": None},
    ]
    for message in [*bad, good]:
        view._received(view, message, [])
    assert actions == []
    runtime.run()
    assert actions == [good]


def test_list_of_approvals_is_sent_at_each_change_and_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    view = ApprovalsView(lambda action: None, post=runtime.post, call_later=runtime.later)
    messages = sent(view, monkeypatch)
    card = pending_card(3, {**CARD, "shown": {}})
    view.update([card])
    view._received(view, {"type": "approvals"}, [])
    runtime.run()
    assert messages == [{"type": "approvals", "pending": [card]}] * 2
    assert view.snapshot == {"pending": [card]}
    for seconds in REPEATS_S:
        runtime.fire(seconds)
    assert messages == [{"type": "approvals", "pending": [card]}] * (2 + len(REPEATS_S))
    assert repr(view) == "Approvals(pending=1)"


def test_comm_of_this_ipykernel_can_be_told_to_keep_the_front_ends_choice() -> None:
    """ipykernel 7.4 sends a widget's messages to the shell that last published: a click waited for a cell."""
    import ipykernel
    from ipykernel.comm.comm import BaseComm

    comm = BaseComm(target_name="test")
    if ipykernel.version_info[:2] == (7, 4):
        assert hasattr(comm, "_reply_subshell_for"), "gone: measure whether clicks still wait"
    else:
        pytest.skip(f"ipykernel {ipykernel.__version__} is not the version with this fault")
    comm._reply_subshell_id = "shell of the cell"
    assert comm._reply_subshell_for({}, "front end's choice") == "shell of the cell"
    assert restore_subshell_choice(comm)
    assert comm._reply_subshell_for({}, "front end's choice") == "front end's choice"


def test_other_comms_are_left_alone() -> None:
    assert not restore_subshell_choice(object())


HOSTILE = "<img src=x onerror=alert(1)> & \"'"


def test_static_forms_escape_what_agents_wrote() -> None:
    summary = summarise(event("user.message", text=HOSTILE, to="lead"))
    header = Totals([summarise(event("goal.set", 1, text=HOSTILE, microusd=None))]).header()
    card = pending_card(1, {**CARD, "shown": {"command": HOSTILE, HOSTILE: HOSTILE}})
    for html in (timeline_html([summary], header), approvals_html([card])):
        assert "<img" not in html
        assert "&lt;img" in html


def test_plain_text_has_no_times_ids_or_costs() -> None:
    summaries = [summarise(event("user.message", seq)) for seq in (1, 2, 3)]
    assert timeline_text(summaries, Totals(summaries).header()) == "Timeline(events=3)"
    assert timeline_text(summaries, {}) == "Timeline(events=3)"
    assert approvals_text([]) == "Approvals(pending=0)"


def test_table_has_a_line_per_event_and_marks_failures() -> None:
    summaries = [
        summarise(event("tool.requested", 8, name="run", arguments={"command": "make"}, purpose="")),
        summarise(event("tool.finished", 9, call=8, ok=False, exit=2, seconds=0.0, output="boom\n")),
    ]
    assert events_table(summaries) == (
        "8  09:30:08  lead    tool.requested  run make\n9  09:30:09  lead  ! tool.finished   exit 2: boom"
    )
    assert events_table([]) == "No events."


def test_table_of_approvals_says_how_to_answer() -> None:
    text = approvals_table([pending_card(3, {**CARD, "shown": {"command": "make", "cwd": "/w"}}, agent="lead")])
    assert "    make\n    in /w\n" in text
    assert "%approve 3" in text
    assert approvals_table([]) == "No approval is pending."
