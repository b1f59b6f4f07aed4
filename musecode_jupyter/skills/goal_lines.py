"""A goal with its clauses, or a plan that is written: lines that an agent keeps however short its conversation is."""

from __future__ import annotations

from musecode_jupyter.agents.frames import clause_lines
from musecode_jupyter.agents.prompts import LEAD
from musecode_jupyter.log import EventLog
from musecode_jupyter.skills.clause_state import ClausesState
from musecode_jupyter.skills.draft_state import being_drafted, drafts_of
from musecode_jupyter.skills.goal_draft import HOW as DRAFT_HOW
from musecode_jupyter.skills.goal_state import GoalsState
from musecode_jupyter.skills.plan_state import being_written, plans_of
from musecode_jupyter.skills.plan_text import HOW


def goal_lines(log: EventLog, goal: int | None) -> list[str]:
    """The goal with this seq as it stands: its text, what decides it, whether that was found to fail.

    Without a goal it is the plan that the lead writes, or the goal for which it looks for clauses, if it does.
    """
    if goal is None:
        return _plan_lines(log)
    state = log.state("goals")
    assert isinstance(state, GoalsState)
    record = state.goals[goal]
    lines = [f"Goal: {record.text}", "", "It is met when each of these commands exits with 0 in the root:"]
    lines += [f"- `{command}`" for command in record.verify]
    clauses = log.state("clauses")
    assert isinstance(clauses, ClausesState)
    if also := clause_lines(clauses.of(goal).model_dump()):
        lines += ["These hold too:", *also] if record.verify else also
        if not record.verify:
            lines[2] = "It is met when these hold:"
    if record.judged and record.phase != "landing":
        lines.append(f"You said {record.judged} times that it is met, and the commands failed on a clean checkout.")
    plan = next((plan for plan in plans_of(log).plans.values() if goal in plan.goals), None)
    if plan is not None:
        lines.append(f"It does what the plan says that the user approved (digest {plan.digests[-1]}).")
    lines.append("When you believe that it is met, answer without calling a tool.")
    return lines


def _plan_lines(log: EventLog) -> list[str]:
    draft = being_drafted(log, LEAD)
    if draft is not None:
        wanted = drafts_of(log).drafts[draft].text
        return [f"You say what decides a goal; nothing is done before the user has confirmed it: {wanted}", DRAFT_HOW]
    number = being_written(log, LEAD)
    if number is None:
        return []
    plan = plans_of(log).plans[number]
    lines = [f"You write a plan; nothing is done before the user has approved it. It is for: {plan.text}"]
    if plan.verify:
        lines += ["In the end each of these commands is to exit with 0 in the root:"]
        lines += [f"- `{command}`" for command in plan.verify]
    if plan.version:
        lines.append(f"The user wants version {plan.version} (digest {plan.digests[-1]}) changed.")
    return [*lines, HOW]
