"""The tools, and the runner of a goal put together: the same for a live session and for one that is run again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from musecode_jupyter.agents.claims.tools import CLAIM_TOOLS
from musecode_jupyter.agents.claims.validator import claims_validator
from musecode_jupyter.agents.guided import LOCATE
from musecode_jupyter.agents.landing.queue import MergeQueue, check_path
from musecode_jupyter.agents.repomap.tool import MAP
from musecode_jupyter.agents.tasks.propose import PROPOSE_TASKS
from musecode_jupyter.agents.tasks.scheduling import Repository
from musecode_jupyter.skills.dirty_goal import DirtyGoalRunner
from musecode_jupyter.skills.fan_out import FanOutRunner, FanOutTools
from musecode_jupyter.skills.goal import GoalRunner, GoalTools
from musecode_jupyter.skills.ground_state import GroundsState
from musecode_jupyter.tools.builtin import BUILTIN
from musecode_jupyter.workspace.history import read_history

REPLAYS = 3
"""Goes up with every change of the code by which the same answers lead to other commands.

What was recorded under another number is not run again; chain, fold and prompts are checked all the same.
"""

TOOLS = (*BUILTIN, LOCATE, MAP, PROPOSE_TASKS, *CLAIM_TOOLS)
"""The tools of agents and of this program, beside those of a host."""


def goal_runner(
    tools: GoalTools,
    goal: int,
    *,
    workers: int,
    worker: Callable[[str], Awaitable[None]],
    halt: Callable[[int, str], None],
    guided: bool,
    several: type[FanOutRunner] = FanOutRunner,
) -> GoalRunner:
    """The runner of `goal`. `worker` makes an agent, `halt` has all of the goal's agents rest (see FanOutTools).

    `several` is the runner for several workers.
    """
    if workers == 1:
        grounds = tools.log.state("grounds")
        assert isinstance(grounds, GroundsState)
        return (DirtyGoalRunner if grounds.goals[goal].snapshot else GoalRunner)(tools, goal)

    async def history() -> Repository:
        past = await read_history(tools.git)
        return Repository(together=past.together, commits=past.commits)

    queue = MergeQueue(tools, [claims_validator(tools, check_path(tools, goal))])
    return several(tools, FanOutTools(queue=queue, worker=worker, halt=halt, guided=guided, history=history), goal)
