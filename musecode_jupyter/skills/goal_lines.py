"""A goal with its clauses in lines, as an agent keeps it however short its conversation is made."""

from __future__ import annotations

from musecode_jupyter.log import EventLog
from musecode_jupyter.skills.goal_state import GoalsState


def goal_lines(log: EventLog, goal: int) -> list[str]:
    """The goal with this seq as it stands: its text, what decides it, whether that was found to fail."""
    state = log.state("goals")
    assert isinstance(state, GoalsState)
    record = state.goals[goal]
    lines = [f"Goal: {record.text}", "", "It is met when each of these commands exits with 0 in the root:"]
    lines += [f"- `{command}`" for command in record.verify]
    if record.judged and record.phase != "landing":
        lines.append(f"You said {record.judged} times that it is met, and the commands failed on a clean checkout.")
    lines.append("When you believe that it is met, answer without calling a tool.")
    return lines
