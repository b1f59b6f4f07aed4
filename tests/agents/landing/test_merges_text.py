"""The text of `%muse merges`: a function of the folded log, for merges in every state."""

from __future__ import annotations

from typing import Any

from musecode_jupyter.agents.landing.history import NONE, merges_text
from musecode_jupyter.agents.landing.state import MergesReducer, MergesState
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.kinds import KINDS

BASE, WORK, TARGET, MERGED, TREE = (letter * 40 for letter in "bwtmf")
QUEUE = {"agent": "w1", "title": "parse dates", "task": 3, "base": BASE, "kept": "musecode/w1"}
CHECKED = {"target": TARGET, "tree": TREE, "commit": MERGED, "conflicts": []}
MOVE = {"ref": "refs/heads/main", "old": TARGET, "new": MERGED, "backup": "refs/musecode/backup/s/10"}
GOAL = 2


class Story:
    """Events folded one after the other; the first merge has number 10."""

    def __init__(self) -> None:
        self.reducer = MergesReducer()
        self.state = self.reducer.initial()
        self.seq = 9

    def tell(self, kind: str, **data: Any) -> int:
        self.seq += 1
        checked = KINDS[kind].model_validate(data).model_dump()
        self.reducer.apply(self.state, Event(1, self.seq, "", 1, 0, "harness", 0, (), kind, "", checked))
        return self.seq

    def enqueue(self, **more: Any) -> int:
        return self.tell(
            "merge.enqueued", goal=GOAL, commit=WORK, tree=TREE, ref="refs/heads/main", **{**QUEUE, **more}
        )

    def test(self, merge: int, passed: bool = True, purpose: str = "acceptance", **more: Any) -> None:
        checks = [{"command": "pytest -q", "call": 1, "passed": passed}]
        self.tell(
            "merge.tested", merge=merge, tree=TREE, commit=MERGED, purpose=purpose, checks=checks, passed=passed, **more
        )

    def text(self, **waiting: int) -> str:
        return merges_text(self.state, waiting, {GOAL: "make the tests pass\nall of them"})


def test_nothing_yet() -> None:
    assert merges_text(MergesState(), {}, {}) == NONE


def test_a_merge_on_its_way_to_the_branch() -> None:
    story = Story()
    one, two = story.enqueue(), story.enqueue(title="parse times", agent="w2")
    assert story.text() == (
        "In the queue:\n"
        "  10  parse dates by w1: is being checked against main\n"
        "  11  parse times by w2: waits for its turn"
    )
    story.tell("merge.checked", merge=one, **CHECKED, suspect=["a.py"])
    assert "10  parse dates by w1: is being tested\n      read for it and changed since: a.py" in story.text()
    story.test(one, flaky=["pytest -q"])
    story.test(one, purpose="affected")
    story.tell("merge.reviewed", merge=one, tree=TREE, validator="reviewer", ok=True, why="reads well")
    assert story.text(**{MERGED: 30}) == (
        "In the queue:\n"
        "  10  parse dates by w1: waits for approval 30 to land on main\n"
        "      read for it and changed since: a.py\n"
        "      tree ffffffffff, acceptance: passed `pytest -q`\n"
        "      failed once, then passed twice: `pytest -q`\n"
        "      tree ffffffffff, what it touches: passed `pytest -q`\n"
        "      tree ffffffffff, reviewer agrees: reads well\n"
        "  11  parse times by w2: waits for its turn"
    )
    story.tell("merge.landing", merge=one, files=["a.py"], **MOVE)
    assert "10  parse dates by w1: is moving main" in story.text()
    story.tell("merge.moved", merge=one, ref=MOVE["ref"], expected=TARGET, found=BASE)
    assert "10  parse dates by w1: starts over, since main moved\n  11" in story.text()
    story.tell("merge.checked", merge=one, **CHECKED)
    story.test(one)
    story.tell("merge.landed", merge=one, checkout="updated", **MOVE)
    assert story.text() == (
        "In the queue:\n"
        "  11  parse times by w2: is being checked against main\n"
        "Ended:\n"
        "  10  parse dates by w1: landed on main: tttttttttt to mmmmmmmmmm\n"
        "      tree ffffffffff, acceptance: passed `pytest -q`\n"
        "      started over 1 time, since main moved"
    )
    story.tell("merge.checked", merge=two, **{**CHECKED, "tree": None, "commit": None, "conflicts": ["a.py"]})
    story.tell("merge.bounced", merge=two, why="It conflicts with main in a.py.", kept="musecode/w2")
    assert story.text().endswith(
        "  11  parse times by w2: did not land: It conflicts with main in a.py.; kept on musecode/w2\n"
        "      conflicts in a.py"
    )


def test_a_landing_that_is_taken_back() -> None:
    story = Story()
    one = story.enqueue()
    story.tell("merge.checked", merge=one, **CHECKED)
    story.tell("merge.landed", merge=one, checkout="updated", **MOVE)
    back = {
        "merge": one,
        "ref": MOVE["ref"],
        "old": MERGED,
        "new": TARGET,
        "backup": "refs/musecode/backup/s/10-undo-1",
    }
    story.tell("merge.undoing", files=[], **back)
    assert story.text() == "In the queue:\n  10  parse dates by w1: is being undone on main"
    story.tell("merge.stays", merge=one, why="your own changes are in the way")
    assert story.text().endswith(
        "landed on main: tttttttttt to mmmmmmmmmm; not undone: your own changes are in the way"
    )
    story.tell("merge.undoing", files=[], **back)
    story.tell("merge.undone", checkout="updated", **back)
    assert story.text() == "Ended:\n  10  parse dates by w1: undone: main went to tttttttttt"
    assert story.state.merges[one].undos == 2


def test_a_goal_with_one_worker_has_its_judgement_as_evidence() -> None:
    story = Story()
    alone = {"agent": "", "title": "", "task": None, "base": "", "kept": ""}
    judged = {"goal": GOAL, "commit": MERGED, "tree": TREE, "where": "landing"}
    for passed in (False, True):
        merge = story.enqueue(**alone)
        story.tell("merge.checked", merge=merge, **CHECKED)
        checks = [{"command": "pytest -q", "call": 1, "passed": passed}]
        story.tell("goal.judged", **judged, passed=passed, checks=checks)
    story.enqueue(**alone)
    assert story.text() == (
        "In the queue:\n"
        "  16  make the tests pass: is being checked against main\n"
        "Ended:\n"
        "  10  make the tests pass: did not pass\n"
        "      tree ffffffffff, the goal's checks: failed `pytest -q`\n"
        "  13  make the tests pass: given up for a later one\n"
        "      tree ffffffffff, the goal's checks: passed `pytest -q`"
    )


def test_merges_of_a_log_from_before_the_queue_are_told() -> None:
    """Events of older versions have none of the newer fields."""
    story = Story()
    old = {"goal": GOAL, "commit": WORK, "tree": TREE, "ref": "refs/heads/main"}
    event = Event(1, 10, "", 1, 0, "harness", 0, (), "merge.enqueued", "", old)
    story.reducer.apply(story.state, event)
    event = Event(1, 11, "", 1, 0, "harness", 0, (), "merge.checked", "", {"merge": 10, **CHECKED})
    story.reducer.apply(story.state, event)
    assert story.text() == "In the queue:\n  10  make the tests pass: is being tested"
