"""The tools, and the runner of a goal put together: the same for a live session and for one that is run again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from musecode_jupyter.agents.claims.tools import CLAIM_TOOLS
from musecode_jupyter.agents.claims.validator import claims_validator
from musecode_jupyter.agents.critiques.finding_tool import REVIEW_ONLY
from musecode_jupyter.agents.critiques.gate import gate
from musecode_jupyter.agents.critiques.mode import ReviewMode
from musecode_jupyter.agents.critiques.review import Change, Reviews
from musecode_jupyter.agents.follow_ups import FOLLOW_UP_TOOL
from musecode_jupyter.agents.guided import LOCATE
from musecode_jupyter.agents.landing.queue import MergeQueue, check_path
from musecode_jupyter.agents.repomap.tool import MAP
from musecode_jupyter.agents.tasks.propose import PROPOSE_TASKS
from musecode_jupyter.agents.tasks.scheduling import Repository
from musecode_jupyter.skills.clause_judge import forbid_validator
from musecode_jupyter.skills.clause_state import ClausesState
from musecode_jupyter.skills.dirty_goal import DirtyGoalRunner
from musecode_jupyter.skills.draft_tool import PROPOSE_GOAL_TOOL
from musecode_jupyter.skills.fan_out import FanOutRunner, FanOutTools
from musecode_jupyter.skills.goal import GoalRunner, GoalTools
from musecode_jupyter.skills.ground_state import GroundsState
from musecode_jupyter.skills.plan_tool import PROPOSE_PLAN_TOOL
from musecode_jupyter.tools.builtin import BUILTIN
from musecode_jupyter.workspace.history import read_history

REPLAYS = 8
"""Goes up with every change of the code by which the same answers lead to other commands.

What was recorded under another number is not run again; chain, fold and prompts are checked all the same.
"""

TOOLS = (
    *(*BUILTIN, LOCATE, MAP, PROPOSE_TASKS, PROPOSE_PLAN_TOOL, PROPOSE_GOAL_TOOL),
    *(*CLAIM_TOOLS, *REVIEW_ONLY, FOLLOW_UP_TOOL),
)
"""The tools of agents and of this program, beside those of a host; which agent is offered which is its role's."""


def goal_runner(
    tools: GoalTools,
    goal: int,
    *,
    workers: int,
    agent: Callable[[str, str], Awaitable[None]],
    halt: Callable[[int, str], None],
    guided: bool,
    review: ReviewMode,
    make_way: Callable[[Change], Awaitable[None]] | None = None,
    several: type[FanOutRunner] = FanOutRunner,
) -> GoalRunner:
    """The runner of `goal`. `agent` makes an agent of a name and role, `halt` has all of the goal's agents rest (see
    FanOutTools).

    `review` says how much is reviewed before a landing, `make_way` is awaited before that (see Reviews); `several` is
    the runner for several workers.
    """
    reviews = Reviews(tools, tools.loop, review, lambda name: agent(name, "reviewer"))
    if make_way is not None:
        reviews = replace(reviews, make_way=make_way)
    tools = replace(tools, reviews=reviews)
    if workers == 1:
        grounds = tools.log.state("grounds")
        assert isinstance(grounds, GroundsState)
        return (DirtyGoalRunner if grounds.goals[goal].snapshot else GoalRunner)(tools, goal)

    async def history() -> Repository:
        past = await read_history(tools.git)
        return Repository(together=past.together, commits=past.commits)

    clauses = tools.log.state("clauses")
    assert isinstance(clauses, ClausesState)
    claims = claims_validator(tools, check_path(tools, goal))
    validators = [claims] if review == "off" else [claims, gate(reviews)]
    if clauses.of(goal).forbid:
        validators.insert(0, forbid_validator(tools, goal))
    queue = MergeQueue(tools, validators)
    fan_out = FanOutTools(
        queue=queue, worker=lambda name: agent(name, "worker"), halt=halt, guided=guided, history=history
    )
    return several(tools, fan_out, goal)
