"""What the work that is reviewed was to do, and which commands its author ran on it; pure functions of the log."""

from __future__ import annotations

from musecode_jupyter.agents.critiques.changed import Asked
from musecode_jupyter.agents.tasks.state import TasksState
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.tools.state import CLOSING

MOST_RUNS = 6


def all_said(log: EventLog, goal: int, agent: str, text: str, until: int | None = None) -> str:
    """What the work was to do in all: its text, that of its goal, and what the user said to whoever works on it.

    Without what came after event `until`, if that is given.
    """
    said = [text]
    for event in log.events(goal - 1):
        if until is not None and event.seq > until:
            break
        data = event.data
        of_goal = event.seq == goal or (event.kind == "goal.edited" and data["goal"] == goal)
        if of_goal or (event.kind == "user.steer" and data["to"] == agent):
            said.append(data["text"] or "")
    return "\n".join(dict.fromkeys(each for each in said if each))


def asked_of(log: EventLog, settled: Event) -> Asked:
    """What the work was to do of which a batch has settled (batch.settled), as far as it was said by then."""
    data = settled.data
    tasks = log.state("tasks")
    assert isinstance(tasks, TasksState)
    task = None if data["task"] is None else tasks.tasks.get(data["task"])
    text, writes = ("", ()) if task is None else (task.spec.goal, task.spec.writes)
    return Asked(all_said(log, data["goal"], data["agent"], text, settled.seq), writes)


def runs_before(log: EventLog, settled: Event) -> tuple[tuple[str, int, bool], ...]:
    """The newest commands that the author ran between the last change and the settling of its batch, with their calls
    and whether they passed: what they printed is of just these files."""
    last = settled.cause[-1]
    asked: dict[int, str] = {}
    ran: list[tuple[str, int, bool]] = []
    for event in log.events(last):
        if event.seq >= settled.seq:
            break
        if event.agent != settled.data["agent"]:
            continue
        if event.kind == "tool.requested" and event.data["name"] == "run":
            asked[event.seq] = event.data["arguments"].get("command", "")
        elif event.kind in CLOSING and event.data["call"] in asked:
            ran.append((asked[event.data["call"]], event.data["call"], bool(event.data.get("ok", False))))
    return tuple(ran[-MOST_RUNS:])
