"""`propose_goal`: how the lead hands in the clauses of a goal; what is wrong with them is told at once, in one line."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import ToolProblem, UsageProblem
from musecode_jupyter.skills.clauses import ClauseOptions, check_options, options_of, parse_metric
from musecode_jupyter.skills.draft_state import PROPOSE_GOAL, being_drafted, drafts_of
from musecode_jupyter.skills.plan_tool import check_tries_of, newest_taken
from musecode_jupyter.tools.registry import Arguments, Outcome, Tool, ToolContext

MOST_CLAUSES = 8
"""Of one kind, so many may be proposed: the user is to read each of them."""


class ProposedGoal(Arguments):
    """Arguments of `propose_goal`; short, as they are in every prompt of the lead: what asks for them explains them."""

    verify: list[str]
    metrics: list[str] = Field(default_factory=list, description="'NAME >= X vs HEAD'")
    measure: str = Field(default="", description="prints NAME=value")
    forbid: list[str] = Field(default_factory=list, description="'import NAME', or globs of paths")
    why: str


def merged(user: ClauseOptions, proposed: ProposedGoal) -> ClauseOptions:
    """The clauses that the goal would have: all that the user gave, and what is proposed beside it."""
    return ClauseOptions(
        forbid=tuple(dict.fromkeys([*user.forbid, *proposed.forbid])),
        holdout=user.holdout,
        metric=tuple(proposed.metrics),
        measure=proposed.measure.strip() or None,
        reserve=user.reserve,
    )


async def _propose(context: ToolContext, goal: ProposedGoal) -> Outcome:
    draft = being_drafted(context.log, context.agent)
    if draft is None:
        raise ToolProblem("Nobody wants clauses of you now: the user asks for them with %goal.")
    found = problems(goal, options_of(drafts_of(context.log).drafts[draft].spec["clauses"]))
    if found:
        raise ToolProblem(f"The clauses cannot be taken. {' '.join(found)}")
    return Outcome("Taken. The commands are run next, and the user is asked.")


def problems(goal: ProposedGoal, user: ClauseOptions) -> list[str]:
    """What is wrong with the clauses by themselves, a sentence each."""
    found = []
    if not goal.verify and not goal.metrics:
        found.append("Nothing decides the goal: give a command in `verify`, or a metric.")
    if any(not command.strip() for command in goal.verify):
        found.append("A command in `verify` is empty.")
    for name, given in (("verify", goal.verify), ("metrics", goal.metrics), ("forbid", goal.forbid)):
        if len(given) > MOST_CLAUSES:
            found.append(f"There are {len(given)} in `{name}`: give {MOST_CLAUSES} at most.")
    if not goal.why.strip():
        found.append("`why` is empty.")
    try:
        check_options(merged(user, goal), goal.verify)
        baselines = {parse_metric(text).baseline for text in goal.metrics}
        if baselines - {"", "HEAD"}:
            found.append("A metric is compared with HEAD, or with nothing.")
    except UsageProblem as problem:
        found.append(str(problem))
    return found


PROPOSE_GOAL_TOOL = Tool(
    name=PROPOSE_GOAL,
    description="Hand in what decides a goal. Only where the user's message asks for it.",
    arguments=ProposedGoal,
    effect="read",
    run=_propose,
)


def clauses_handed_in(events: Sequence[Event], agent: str) -> ProposedGoal | None:
    """The newest clauses that `agent` handed in, and that were taken, among `events`."""
    found = newest_taken(events, agent, PROPOSE_GOAL)
    return None if found is None else ProposedGoal.model_validate(found)


def check_draft_tries(log: EventLog, agent: str) -> None:
    """Raise PlanStalled where the agent has handed in too many proposals in a row that cannot be taken."""
    draft = being_drafted(log, agent)
    if draft is not None:
        check_tries_of(log, agent, PROPOSE_GOAL, draft, "No clauses were handed in")
