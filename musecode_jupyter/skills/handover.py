"""The hand-over of a goal that has ended: what was done, what is left, what to do, how to go on; from the log alone."""

from __future__ import annotations

from musecode_jupyter.log import EventLog
from musecode_jupyter.skills.clause_state import ClausesState
from musecode_jupyter.skills.goal_state import GoalRecord, GoalsState
from musecode_jupyter.workspace.state import WorkspaceState
from musecode_jupyter.workspace.worktrees import some_names

_NEXT = {
    "budget": "give more of the limit that is used up, if what is left is worth it",
    "stalled": "say what to try instead with `%goal steer TEXT`, or change the goal with `%goal edit`",
    "wedged": "say how to get past the call that is made again and again with `%goal steer TEXT`",
    "blocked": "settle what is in the way",
    "stopped": "nothing is in the way",
    "error": "mend the cause; `%muse doctor` looks for what is missing",
    "met": "`%muse diff` shows it, and `%muse undo` takes a landing back",
}


def handover(log: EventLog, goal: int, state: str) -> list[str]:
    """The lines for a goal that ends in `state` now."""
    goals = log.state("goals")
    assert isinstance(goals, GoalsState)
    record = goals.goals[goal]
    lines = [f"Done: {_done(log, goal)}.", f"Left: {_left(log, goal, record, state)}.", f"Next: {_NEXT[state]}."]
    if state != "met":
        lines.append(f"Go on: `{'%goal edit` with a higher limit, then `' if state == 'budget' else ''}%goal resume`.")
    return lines


def _done(log: EventLog, goal: int) -> str:
    workspace = log.state("workspace")
    assert isinstance(workspace, WorkspaceState)
    landed = [merge for merge in workspace.merges.values() if merge.goal == goal and merge.state == "landed"]
    trees = {seq: tree for seq, tree in workspace.worktrees.items() if tree.goal == goal}
    changed: dict[str, None] = {}
    for event in log.events(since=goal):
        if event.kind == "file.changed" and event.data["worktree"] in trees:
            changed[str(event.data["path"])] = None
    parts = [f"{len(landed)} landing{'s' if len(landed) > 1 else ''} on {_branch(landed[-1].ref)}"] if landed else []
    if changed:
        waits = "" if landed else f", on branch {', '.join(tree.branch for tree in trees.values())}, not landed"
        parts.append(f"changed {some_names(sorted(changed))}{waits}")
    return "; ".join(parts) or "nothing was changed"


def _branch(ref: str) -> str:
    return ref.removeprefix("refs/heads/")


def _left(log: EventLog, goal: int, record: GoalRecord, state: str) -> str:
    if state == "met":
        return "nothing"
    if not record.judged:
        return "all of it: nothing was judged yet"
    judged = next(
        e for e in reversed(list(log.events(since=goal))) if e.kind == "goal.judged" and e.data["goal"] == goal
    )
    clauses = log.state("clauses")
    assert isinstance(clauses, ClausesState)
    failing = [f"`{each['command']}` fails" for each in judged.data["checks"] if not each["passed"]]
    failing += [f"`{each['clause']}` does not hold" for each in clauses.goals[goal].verdicts if not each["passed"]]
    return ", ".join(failing) or "to land: all checks passed when it was judged last"
