"""The fold of tasks: leases end with their process, bounces count, real files widen the declared ones."""

from __future__ import annotations

from typing import Any

from musecode_jupyter.agents.tasks.scheduling import Repository
from musecode_jupyter.agents.tasks.state import TasksReducer, TasksState
from musecode_jupyter.agents.tasks.text import tasks_text
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Fold

GOAL = 3


class Story:
    """A fold that is told events, numbered from 10 on."""

    def __init__(self) -> None:
        self.fold = Fold([TasksReducer()])
        state = self.fold.state("tasks")
        assert isinstance(state, TasksState)
        self.state = state
        self.seq = 9
        self.gen = 1

    def tell(self, kind: str, **data: Any) -> int:
        self.seq += 1
        event = Event(
            v=1,
            b=1,
            label="",
            seq=self.seq,
            ts="2026-01-05T09:00:00+00:00",
            gen=self.gen,
            kind=kind,
            agent="harness",
            turn=0,
            cause=(),
            data={"goal": GOAL, **data},
        )
        self.fold.apply(event)
        return self.seq

    def task(self, name: str, **more: Any) -> int:
        declared = {"accept": ["true"], "reads": [], "writes": [f"{name}.py"], "after": [], "risk": "", "by": "user"}
        return self.tell("task.created", name=name, text=f"do {name}", **{**declared, **more})

    def text(self) -> str:
        return tasks_text(self.state.of_goal(GOAL), Repository(files=("a.py", "b.py", "c.py")))


def test_a_lease_ends_with_the_process_that_gave_it() -> None:
    story = Story()
    task = story.task("a")
    told = story.tell("task.leased", task=task, agent="worker-1", worktree=5, text="Task a: do a")
    assert (story.state.tasks[task].state, story.state.tasks[task].since) == ("leased", told)
    story.gen = 2
    story.tell("session.resumed")
    assert story.state.tasks[task].state == "open"
    story.tell("task.leased", task=task, agent="worker-1", worktree=5, text="")
    assert (story.state.tasks[task].state, story.state.tasks[task].since) == ("leased", told), "it is told once"


def test_real_files_count_beside_the_declared_ones() -> None:
    story = Story()
    task, other = story.task("a"), story.task("b")
    story.tell("task.leased", task=task, agent="worker-1", worktree=5, text="x")
    story.tell("file.observed", worktree=5, path="c.py")
    story.tell("file.changed", worktree=5, path="b.py")
    story.tell("file.changed", worktree=6, path="d.py")
    story.tell("file.changed", worktree=None, path="e.py")
    assert (story.state.tasks[task].read, story.state.tasks[task].written) == (["c.py"], ["b.py"])
    story.tell("task.widened", task=task, reads=["c.py"], writes=["b.py"])
    assert other in story.state.tasks
    assert story.text() == (
        "[10] a: worker-1 works on it\n     do a\n     done when `true` passes\n"
        "     reads (not said); and beyond that: c.py\n     writes a.py; and beyond that: b.py\n"
        "[11] b: not begun\n     do b\n     done when `true` passes\n     reads (not said)\n     writes b.py\n"
        "a and b may not run side by side: both write b.py."
    )


def test_pairs_that_are_in_each_others_way_are_named_and_the_others_counted() -> None:
    story = Story()
    for name, after in (("a", []), ("b", []), ("c", ["b"]), ("d", ["c"])):
        story.task(name, after=after)
    assert story.text().split("\n")[-4:] == [
        "b and c may not run side by side: c comes after b.",
        "b and d may not run side by side: d comes after b.",
        "c and d may not run side by side: d comes after c.",
        "Any other two may run side by side.",
    ]
    story = Story()
    for number in range(64):
        story.task(f"t{number}")
    assert len(story.text().split("\n")) == 64 * 5 + 1


def test_what_bounced_too_often_runs_alone_and_what_waits_goes_on_when_the_goal_is_resumed() -> None:
    story = Story()
    task = story.task("a", after=["z"])
    assert "a: waits for z" in story.text()
    story.tell("task.leased", task=task, agent="worker-1", worktree=5, text="x")
    bounce = {"task": task, "agent": "worker-1", "merge": 9, "why": "it conflicts", "report": "..."}
    story.tell("task.bounced", **bounce, exclusive=False)
    assert "worker-1 works on it, sent back 1 time: it conflicts" in story.text()
    back = story.tell("task.bounced", **bounce, exclusive=True)
    record = story.state.tasks[task]
    assert (record.state, record.exclusive, record.bounces, record.since) == ("open", True, 2, back)
    story.tell("task.paused", task=task, why="denied")
    assert "waits for you, worked on by worker-1: denied" in story.text()
    story.tell("goal.resumed")
    assert story.state.tasks[task].state == "open"
    story.tell("task.abandoned", task=task, why="no idea")
    assert "given up, worked on by worker-1: no idea" in story.text()
    story.gen = 2
    story.tell("goal.resumed")
    assert story.state.tasks[task].state == "abandoned"


def test_graphs_are_counted_not_judgements() -> None:
    """Three judgements of one graph were taken for three graphs, and the goal stalled without another."""
    story = Story()
    story.task("a")
    story.task("b")
    judged = {"tree": "1" * 40, "where": "landing", "report": "no", "passed": False}
    check = {"command": "true", "passed": False, "exit": 1, "call": 5, "seconds": 0.1}
    for _ in range(3):
        last = story.tell("goal.judged", checks=[check], **judged)
    assert story.state.graphs(GOAL) == 1
    assert story.state.plan(GOAL).settled == last
    story.task("c", plan=2)
    story.task("d", plan=2)
    assert story.state.graphs(GOAL) == 2
    assert story.state.plan(GOAL).before == 0
    story.tell("goal.resumed", why="asked", branch=None)
    assert (story.state.plan(GOAL).before, story.state.graphs(GOAL)) == (2, 2), "the user's word gives it new ones"
    trials = story.state.plan(GOAL).trials
    text = tasks_text(story.state.of_goal(GOAL), Repository(), trials)
    assert text.count("done when `true` passes (on tree 1111111111 of your branch: exit 1)") == 4


def test_no_task_is_taken_while_the_goal_rests() -> None:
    story = Story()
    taken, waits = story.task("a"), story.task("b")
    story.tell("task.leased", task=taken, agent="worker-1", worktree=5, text="Task a: do a")
    story.tell("task.paused", task=waits, why="stopped by the user")
    story.tell("goal.paused", why="asked")
    assert [task.state for task in story.state.tasks.values()] == ["open", "paused"]
    assert "[10] a: to go on" in story.text()
    story.tell("goal.resumed", why="asked", branch=None)
    assert [task.state for task in story.state.tasks.values()] == ["open", "open"]
