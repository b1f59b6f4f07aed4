"""What landing is lent of a session; taking landings back; and what a restart does with those that were cut off."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from musecode_jupyter.agents.answers import NotedAnswers
from musecode_jupyter.agents.landing import undo as undoing
from musecode_jupyter.agents.landing.queue import discard_left_over
from musecode_jupyter.agents.landing.tools import COMMIT_FIRST, LandingTools
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.session.ground import take_in
from musecode_jupyter.session.store import worktrees_dir
from musecode_jupyter.workspace.git import Git

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

logger = logging.getLogger(__name__)

IN_SHADOW = "Resume takes your changes into the private repository of the folder, and merges the work with them."


def landing_parts(core: SessionCore, goal: int | None, git: Git) -> dict[str, Any]:
    """The fields of `LandingTools` for work on `goal` in the repository `git`."""
    shadow = goal is not None and core.ground(goal).shadow
    return {
        "log": core.log,
        "effects": core.effects,
        "git": git,
        "executor": core.executor,
        "approvals": core.approvals,
        "worktrees": worktrees_dir(core.home),
        "session": core.id,
        "share": core.shared(),
        "open_documents": lambda: core.open_documents(),
        "answers": partial(NotedAnswers, core.log),
        "remedy": IN_SHADOW if shadow else COMMIT_FIRST,
    }


async def undo(core: SessionCore, landing: int) -> str:
    """Take a landing back, whose number is that of its merge; says in a line what was done.

    Raises UsageProblem or GitError, each saying why not; nothing was touched then.
    """
    async with core.undoing:
        merge = core.merges.merges.get(landing)
        tools = await landing_tools(core, None if merge is None else merge.goal)
        if merge is not None and core.ground(merge.goal).shadow:
            # The user's own changes there are no commits of theirs, and would be in the way.
            await take_in(core, tools.git)
        return await undoing.undo(tools, landing)


async def settle_landings(core: SessionCore) -> None:
    """Bring undos to their end that a restart cut off, of which the user is told; remove what merges left behind.

    A landing that was cut off is the queue's to finish.
    """
    merges = core.merges.merges
    if not merges:
        return
    try:
        tools = await landing_tools(core, list(merges.values())[-1].goal)
        await discard_left_over(tools)
        core.notices += await undoing.settle(tools)
    except GitError as problem:
        if any(merge.state == "undoing" for merge in merges.values()):
            core.notices.append(f"An undo was cut off and cannot be finished now: {problem}")


async def clean_up(core: SessionCore) -> None:
    """Remove the worktrees of goals that were met just before a crash."""
    trees = core.workspace_state.worktrees.values()
    for goal in {tree.goal for tree in trees if tree.goal is not None}:
        if core.record(goal).status != "met":
            continue
        try:
            await core.runner(goal, await core.git(goal)).clean_up()
        except GitError as problem:
            logger.warning("worktrees of goal %s are kept: %s", goal, problem)


async def landing_tools(core: SessionCore, goal: int | None) -> LandingTools:
    """What work with worktrees and landings is handed, in the repository in which `goal` works."""
    return LandingTools(**landing_parts(core, goal, await core.git(goal)))
