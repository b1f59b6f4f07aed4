"""`propose_plan`: how the lead hands in a plan; what is wrong with it is told at once, in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from musecode_jupyter.agents.claims.tools import claims_of
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import MuseError, ToolProblem
from musecode_jupyter.skills.plan_document import ProposedPlan, problems
from musecode_jupyter.skills.plan_state import PROPOSE_PLAN, being_written, plans_of
from musecode_jupyter.tools.registry import Outcome, Tool, ToolContext

MAX_TRIES = 4
"""So often in a row a plan that cannot be taken may be handed in, before nobody is asked any more."""


class PlanStalled(MuseError):
    """No plan, or no proposal of clauses, came that could be taken."""


async def _propose(context: ToolContext, plan: ProposedPlan) -> Outcome:
    if being_written(context.log, context.agent) is None:
        raise ToolProblem("Nobody wants a plan of you now: the user asks for one with %plan.")
    found = problems(plan, await context.place.list_files())
    found += _wrong_claims(context.log, plan)
    if found:
        raise ToolProblem(f"The plan cannot be taken. {' '.join(found)}")
    return Outcome(f"Taken: {', '.join(step.name for step in plan.steps)}. The commands of its steps are run next.")


def _wrong_claims(log: EventLog, plan: ProposedPlan) -> list[str]:
    standings = claims_of(log).standings()
    found = []
    for number in plan.claims:
        standing = standings.get(number)
        if standing is None:
            found.append(f"There is no claim {number}. Leave it out.")
        elif standing.out:
            found.append(f"Claim {number} does not stand ({standing.label}). Look again, or leave it out.")
    return found


PROPOSE_PLAN_TOOL = Tool(
    name=PROPOSE_PLAN,
    description="Hand in a plan, for the user to approve. Only where the user's message asks for a plan.",
    arguments=ProposedPlan,
    effect="read",
    run=_propose,
)


def handed_in(events: Sequence[Event], agent: str) -> ProposedPlan | None:
    """The newest plan that `agent` handed in, and that was taken, among `events`."""
    found = newest_taken(events, agent, PROPOSE_PLAN)
    return None if found is None else ProposedPlan.model_validate(found)


def newest_taken(events: Sequence[Event], agent: str, tool: str) -> Mapping[str, Any] | None:
    """The arguments of the newest call of `tool` by `agent` that came out well, among `events`."""
    asked: dict[int, Mapping[str, Any]] = {}
    found: Mapping[str, Any] | None = None
    for event in events:
        if event.kind == "tool.requested" and event.data["name"] == tool and event.agent == agent:
            asked[event.seq] = event.data["arguments"]
        elif event.kind == "tool.finished" and event.data["call"] in asked:
            found = asked[event.data["call"]]
    return found


def check_tries(log: EventLog, agent: str) -> None:
    """Raise PlanStalled where the agent has handed in too many plans in a row that cannot be taken."""
    plan = being_written(log, agent)
    if plan is not None:
        check_tries_of(log, agent, PROPOSE_PLAN, plans_of(log).plans[plan].since, "No plan was handed in")


def check_tries_of(log: EventLog, agent: str, tool: str, since: int, what: str) -> None:
    """Raise PlanStalled where calls of `tool` by `agent` since an event failed too often in a row."""
    calls: set[int] = set()
    failed, last = 0, ""
    for event in log.events(since=since):
        if event.kind == "tool.requested" and event.data["name"] == tool and event.agent == agent:
            calls.add(event.seq)
        elif event.kind == "tool.failed" and event.data["call"] in calls:
            failed, last = failed + 1, event.data["output"]
        elif event.kind == "tool.finished" and event.data["call"] in calls:
            failed = 0
    if failed >= MAX_TRIES:
        raise PlanStalled(f"{what} that can be taken, in {failed} tries. The last one: {last}")
