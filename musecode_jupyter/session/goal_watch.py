"""Watches a goal that runs: warns of limits at 50, 80 and 95%, and tells an agent whose work does not move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from musecode_jupyter.agents.landing.checks import shorten
from musecode_jupyter.agents.landing.tools import HARNESS
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import Stuck
from musecode_jupyter.session.clauses import clauses_of
from musecode_jupyter.skills.clause_state import ClausesState
from musecode_jupyter.skills.limits import limits_of, share_of_work, used_of
from musecode_jupyter.skills.progress_state import ProgressState

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

PERCENTS = (95, 80, 50)

QUIET_ANSWERS = 30
"""Answers of the model in which nothing moves, after which its agent is told; again after as many; then it stops."""
SAME_CALLS = 6
"""So often one call comes to one result in a row before its agent is told; after twice as many it is wedged."""
PROFILE_CHARS = 1_500

_COUNTED = frozenset(
    {"model.completed", "model.failed", "model.abandoned", "model.retried", "tool.requested", "tool.finished"}
)

OTHER_IDEA = (
    "Nothing has moved for {quiet} of your answers: no file has a content that it did not have before, no more checks "
    "pass, no metric is better. More of the same will not help. Say in one sentence what you took for granted so far, "
    "then try a different class of idea."
)
PROFILE = (
    "Still nothing has moved, for {quiet} of your answers. This is how things stand by the last runs:\n{profile}\n"
    "Begin from these failures, not from what you tried. If you see no way, answer without calling a tool and say what "
    "is in the way."
)
SAME = (
    "You have made one and the same call {same} times in a row, and it came to the same result each time. It will not "
    "come to another one: do something else."
)


def warn(core: SessionCore, event: Event) -> None:
    """Write down each share of a limit that is used since it was looked at last; given to the log as a listener."""
    active = core.goals.active
    if active is None or event.kind not in _COUNTED or not core.log.writable:
        return
    record = core.record(active)
    if record.final or record.status == "paused":
        return
    used, warned = used_of(record, core.now()).recorded, clauses_of(core, active).percents
    used["microusd"] = record.used_microusd
    for name, limit in limits_of(record).recorded.items():
        if limit is None:
            continue
        reached = next((percent for percent in PERCENTS if 100 * used[name] >= percent * limit), 0)
        if reached > warned.get(name, 0):
            said = {"goal": active, "limit": name, "percent": reached, "used": used[name], "of": limit}
            core.log.post("goal.warned", said, agent=HARNESS, cause=(active, event.seq))


def share(core: SessionCore, goal: int) -> float:
    """The share of each limit that the goal may use in its present phase."""
    return share_of_work(core.record(goal), clauses_of(core, goal).clauses.reserve)


def check_progress(core: SessionCore, task: Task) -> None:
    """Tell the agent of `task` where its work does not move; Stuck if it was told before and to no avail."""
    record = core.record(task.goal or 0)
    if core.gate.info.profile == "guided":
        # It tries each suspect once, and gives up by itself.
        return
    state = core.log.state("progress")
    assert isinstance(state, ProgressState)
    if record.workers > 1:
        progress = state.workers.get(task.agent)
    else:
        progress = state.goals[task.goal or 0] if task.agent == record.agent else None
    if progress is None:
        return
    if progress.same >= 2 * SAME_CALLS and progress.told_same:
        _end(core, task, f"One call was made {progress.same} times in a row with one result.", "wedged")
        return
    if progress.same >= SAME_CALLS and not progress.told_same:
        _tell(core, task, "same call", SAME.format(same=progress.same))
    if progress.quiet < (progress.told + 1) * QUIET_ANSWERS:
        return
    if progress.told == 0:
        _tell(core, task, "other idea", OTHER_IDEA.format(quiet=progress.quiet))
    elif progress.told == 1:
        profile = _profile(core.log, task.verify, task.goal or 0)
        _tell(core, task, "profile", PROFILE.format(quiet=progress.quiet, profile=profile))
    else:
        why = f"Nothing has moved for {progress.quiet} answers of the model: no file, no check, no metric."
        _end(core, task, f"{why} The agent was told twice.", "stalled")


def _end(core: SessionCore, task: Task, why: str, state: str) -> None:
    """Stop the goal, or of several workers the one that is stuck: its task waits for the user, the others go on."""
    fan_out = core.fan_out
    if fan_out is None:
        raise Stuck(why, state)
    core.begin(fan_out.stop_worker(task.agent, f"{state}. {why}", by=HARNESS), f"the end of {task.agent}'s task")


def _tell(core: SessionCore, task: Task, step: str, text: str) -> None:
    said = {"goal": task.goal, "agent": task.agent, "step": step, "text": text}
    core.log.post("goal.nudged", said, agent=HARNESS, cause=(task.goal or 0,))


def _profile(log: EventLog, commands: Sequence[str], goal: int) -> str:
    """How each command that decides came out the last time that anybody ran it for the goal."""
    asked: dict[int, str] = {}
    last: dict[str, str] = {}
    clauses = log.state("clauses")
    assert isinstance(clauses, ClausesState)
    # Of a goal with held-out files, what the harness saw is not the agent's to see.
    held = bool(clauses.of(goal).holdout)
    for event in log.events(since=goal):
        data = event.data
        if event.kind == "tool.requested" and data["name"] == "run":
            asked[event.seq] = str(data["arguments"].get("command", ""))
        elif event.kind == "tool.finished" and asked.get(data["call"]) in commands:
            output = "" if held else f":\n{shorten(str(data['output']), PROFILE_CHARS)}"
            last[asked[data["call"]]] = "passes" if data["ok"] else f"fails (exit {data['exit']}){output}"
    return "\n".join(f"- `{command}` {last.get(command, 'was not run yet')}" for command in commands)
