"""What a session gives those who review and check work that goes on: tools, and how much of a budget they may use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from musecode_jupyter.agents.critiques.batch_state import BatchesState, Used
from musecode_jupyter.agents.critiques.batches import Batches, Steps
from musecode_jupyter.agents.critiques.review import MAX_STEPS, discard, forget_snapshot, snapshot_name
from musecode_jupyter.agents.prompts import REVIEWERS
from musecode_jupyter.agents.verifier import checks
from musecode_jupyter.agents.verifier.verifier import Verifier
from musecode_jupyter.runtime.errors import MuseError
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.session.clauses import clauses_of
from musecode_jupyter.session.crew import ensure_verifier
from musecode_jupyter.session.landings import landing_tools
from musecode_jupyter.skills.goal import GoalRunner
from musecode_jupyter.skills.goal_state import GoalRecord

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

SHARE = 0.25
"""Of each limit of a goal that the reviews of its batches may use in all."""
LEAST_STEPS = 4
"""Model calls of a reviewer, below which none is asked."""
NO_ROOM = "the goal's budget has no room for it"


def make_batches(core: SessionCore) -> Batches:
    """The reviews of batches of a session; nothing is begun."""
    return Batches(core.log, core.crew.mailbox, partial(_steps, core))


def make_verifier(core: SessionCore) -> Verifier:
    """The checks beside the work of a session; nothing is begun."""
    return Verifier(core.log, core.crew.mailbox, partial(_commands, core), partial(ensure_verifier, core))


def _commands(core: SessionCore, goal: int) -> list[str]:
    # Without the held-out files they would come out otherwise than in a judgement.
    return [] if clauses_of(core, goal).clauses.holdout else core.record(goal).verify


async def run_beside(core: SessionCore, runner: GoalRunner, pausing: Callable[[], bool]) -> GoalRecord:
    """Run a goal, and beside its work the reviews and checks of it; none is under way when it has come to rest."""
    # Under `guided` each edit is a try, which is taken back if it does not help.
    if core.gate.info.profile != "guided":
        core.batches.reviews = runner.reviews
        core.verifier.tools = runner.tools if core.with_verifier else None
    try:
        return await runner.run()
    finally:
        core.batches.reviews = core.verifier.tools = None
        try:
            await _rest(core, gently=pausing())
        except asyncio.CancelledError:
            await to_the_end(_rest(core))
            raise


async def _rest(core: SessionCore, *, gently: bool = False) -> None:
    await asyncio.gather(core.batches.rest(gently=gently), core.verifier.rest(gently=gently))


def _steps(core: SessionCore, goal: int, agent: str) -> Steps:
    """What the limits of the goal leave for each reviewer of a batch, by what its model calls have cost so far.

    The worker goes on meanwhile, and is not to find that its own request has no room.
    """
    record, state = core.record(goal), core.log.state("batches")
    assert isinstance(state, BatchesState)
    used = state.used.get(goal, Used())
    made = max(1, record.model_calls)
    limits = (
        (record.limit_microusd, used.microusd, record.used_microusd / made),
        (record.limit_tokens, used.tokens, record.used_tokens / made),
        (record.limit_steps, used.steps, 1.0),
        (record.limit_calls, used.calls, 1.0),
    )
    steps = float(MAX_STEPS)
    for limit, spent, each in limits:
        if limit is not None and each > 0:
            steps = min(steps, (SHARE * limit - spent) / (each * len(REVIEWERS)))
    if steps < LEAST_STEPS:
        return Steps(0, f"reviews beside the work have used their share of the goal's limits ({SHARE:.0%})")
    return Steps(int(steps)) if _has_room(core, goal, agent) else Steps(0, NO_ROOM)


def _has_room(core: SessionCore, goal: int, agent: str) -> bool:
    """Whether all reviewers and the worker can have a request under way at once, each as large as its last one."""
    record, last = core.record(goal), core.agents.agents[agent].last_answer
    if last is None:
        return False
    request = core.log.get(core.log.get(last).data["request"]).data
    open_now = [reserve for reserve in core.ledger.open.values() if reserve.agent in record.agents]
    at_once = 1 + len(REVIEWERS)
    reserved = sum(each.microusd for each in open_now) + at_once * request["reserved_microusd"]
    tokens = record.used_tokens + sum(each.tokens for each in open_now) + at_once * request["reserved_tokens"]
    return (record.limit_microusd is None or record.used_microusd + reserved <= record.limit_microusd) and (
        record.limit_tokens is None or tokens <= record.limit_tokens
    )


async def settle_batches(core: SessionCore, why: str) -> None:
    """After a restart or in a fork: give up the reviews and checks under way, and drop what they looked at."""
    reviews = {batch.worktree: batch.goal for batch in core.batches.state.open.values()}
    runs = {run.worktree: run.goal for run in core.verifier.state.open.values()}
    core.batches.settle(why)
    core.verifier.settle(why)
    for worktree, goal in {**reviews, **runs}.items():
        try:
            tools = await landing_tools(core, goal)
            if worktree in reviews:
                await forget_snapshot(tools.git, snapshot_name(tools, worktree))
            if worktree in runs:
                await forget_snapshot(tools.git, checks.snapshot_name(tools, worktree))
                await discard(tools, checks.checkout_path(tools, worktree))
        except MuseError:
            # The next one of this worktree drops it.
            continue
