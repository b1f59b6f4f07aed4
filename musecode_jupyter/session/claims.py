"""What the user does with claims: looks at them, with a look at the files first, and takes one back."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.claims import text
from musecode_jupyter.agents.claims.rechecks import MECHANICAL, recheck
from musecode_jupyter.agents.claims.retract import correct, dependents, fallout, quarantine, resting_tasks
from musecode_jupyter.agents.claims.state import Claim, ClaimsState
from musecode_jupyter.agents.mail.state import Priority
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import GitError, UsageProblem
from musecode_jupyter.tools.registry import Place
from musecode_jupyter.workspace.git import Git

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


def claims_state(core: SessionCore) -> ClaimsState:
    """Claims as folded."""
    state = core.log.state("claims")
    assert isinstance(state, ClaimsState)
    return state


async def claims_text(core: SessionCore) -> str:
    """What the crew believes; what claims rest on is looked at again first, so that a change of a file shows."""
    await look_again(core)
    return text.claims_text(claims_state(core))


async def why_text(core: SessionCore, number: int) -> str:
    """What claim `number` rests on; UsageProblem if there is none."""
    await look_again(core)
    await core.log.flush()
    return text.why_text(core.log, number)


async def look_again(core: SessionCore) -> None:
    """Look whether files and queries are as claims have them, in the user's checkout or the worktree of each."""
    if not core.log.writable:
        return
    state = claims_state(core)
    tree = await _tree(core)
    for number, claim in list(state.claims.items()):
        if claim.replaced or not _can_be_seen(claim, tree):
            continue
        worktree = next((each.worktree for each in claim.evidence), None)
        record = None if worktree is None else core.workspace_state.worktrees.get(worktree)
        if record is not None and record.created and not record.removing:
            git = await Git.at_worktree(Path(record.path), core.effects)
            place = Place(git.root, worktree, partial(git.list_files, None))
        else:
            place = core.own_place()
        await recheck(
            core.log,
            core.effects,
            number,
            place.root,
            place.list_files,
            worktree=place.worktree,
            agent=HARNESS,
            tree=tree,
        )


def _can_be_seen(claim: Claim, tree: str) -> bool:
    """Whether a look at the files can tell anything new of the claim."""
    if not claim.evidence or any(not each.holds for each in claim.evidence):
        return False
    if any(each.kind == "command" and not (each.tree and tree) for each in claim.evidence):
        return False
    return not claim.changed or claim.type in MECHANICAL or all(each.tree for each in claim.evidence)


async def _tree(core: SessionCore) -> str:
    try:
        git = await core.git()
        return await git.tree_of((await git.head()).commit)
    except GitError:
        return ""


async def retract(core: SessionCore, number: int, why: str) -> str:
    """Take claim `number` back for the user, tell whoever has it, and say what it touches.

    Raises UsageProblem if there is no such claim or it is taken back already.
    """
    claim = claims_state(core).claims.get(number)
    if claim is None:
        raise UsageProblem(f"There is no claim {number}; `%muse claims` lists them.")
    if claim.retracted:
        raise UsageProblem(f"Claim {number} is taken back already.")
    await core.log.append("claim.retracted", {"claim": number, "why": why}, agent="user", cause=(number,))
    await core.log.flush()
    card = fallout(core.log, number).card()
    card = _with_tasks(card, await pause_tasks(core, number)) + pause_goal(core, number)
    correct(core.log, partial(_say, core), only=(number,), urgent=True)
    await core.log.flush()
    return card


def send_corrections(core: SessionCore) -> None:
    """Tell all who have claims before them that went out since they were told last; sends nothing twice."""
    if claims_state(core).claims:
        correct(core.log, partial(_say, core))
        quarantine(core.log, partial(_say, core))


def heed(core: SessionCore, event: Event) -> None:
    """Once an agent finds a claim not to be so, or takes its own back: what rests on it waits, and the user is told."""
    if event.kind == "claim.challenged" or (event.kind == "claim.retracted" and event.agent != "user"):
        number = event.data["claim"]
        standing = claims_state(core).standing(number)
        if standing.label not in {"contradicted", "retracted"} or standing.at != event.seq:
            return
        card = fallout(core.log, number).card()
        if core.fan_out is None:
            core.notices.append(card + pause_goal(core, number))
            correct(core.log, partial(_say, core), only=(number,), urgent=True)
        else:
            core.begin(_went_out(core, number, card), f"fallout of claim {number}")


async def _went_out(core: SessionCore, number: int, card: str) -> None:
    waiting = await pause_tasks(core, number, by=HARNESS)
    core.notices.append(_with_tasks(card, waiting))
    correct(core.log, partial(_say, core), only=(number,), urgent=True)


def _with_tasks(card: str, waiting: list[str]) -> str:
    """The one card of a claim that went out."""
    if not waiting:
        return card
    return f"{card}\nThese tasks wait; `%goal resume` goes on with them: {', '.join(waiting)}."


async def pause_tasks(core: SessionCore, number: int, by: str = "user") -> list[str]:
    """Have the tasks wait whose workers are at work and rely on claim `number`, or on what falls with it.

    Returns their names. Work that relies on what is only stale goes on: its worker is told.
    """
    state, crew = claims_state(core), core.fan_out
    if crew is None:
        return []
    resting = [
        task
        for task in dict.fromkeys(task for claim in _fallen(state, number) for task in resting_tasks(state, claim))
        if not _found_by(state, number, state.tasks[task].agent)
    ]
    why = f"stopped, because its work relies on claim {number}"
    # All at once: none of them hands its work in while another one is waited for.
    stopped = await asyncio.gather(
        *(crew.stop_worker(state.tasks[task].agent, why, by) for task in resting), return_exceptions=True
    )
    for error in stopped:
        # One that has ended meanwhile, or waits already, is no trouble.
        if isinstance(error, BaseException) and not isinstance(error, UsageProblem):
            raise error
    return [
        crew.tasks[task].spec.name
        for task, said in zip(resting, stopped, strict=True)
        if isinstance(said, str) and crew.tasks[task].state == "paused"
    ]


def pause_goal(core: SessionCore, number: int) -> str:
    """Have a goal with one worker pause whose work relies on claim `number`, or on what falls with it; says so.

    It comes to rest between two steps, as where the user asks for that. As it goes on, its agent is told before its
    first request what is known of the claim.
    """
    state, goal = claims_state(core), core.goals.active
    if goal is None:
        return ""
    record, worktree = core.record(goal), core.workspace_state.of_goal(goal)
    if record.workers > 1 or _found_by(state, number, record.agent):
        return ""
    if not any(state.relies(record.agent, each, worktree) for each in _fallen(state, number)):
        return ""
    if record.cleared or record.status == "met":
        return ""
    told = f"Its work relies on this: {record.agent} is told before it goes on."
    if record.status != "running" or not core.busy:
        return f"\nGoal {goal} is {record.status}. {told}"
    core.pause(goal, f"stopped, because its work relies on claim {number}")
    return f"\nGoal {goal} pauses before the next step; `%goal resume` goes on with it. {told}"


def _fallen(state: ClaimsState, number: int) -> list[int]:
    """Claim `number`, which went out, and those that fell with it."""
    how = state.standings()
    return [number, *(each for each in dependents(state, number) if how[each].lost)]


def _found_by(state: ClaimsState, number: int, agent: str) -> bool:
    """Whether it was the agent itself that found the claim not to be so, or took it back: it goes on knowing that."""
    claim = state.claims[number]
    return claim.retracted_by == agent or claim.doubted_by(agent)


def _say(
    core: SessionCore,
    to: str,
    *,
    topic: str,
    text: str,
    priority: Priority,
    claims: tuple[int, ...] = (),
    cause: tuple[int, ...] = (),
) -> None:
    """Tell an agent what was taken back: it reads it before its next step."""
    if to in core.agents.agents:
        core.crew.mailbox.send(
            HARNESS, to, subject="claim", topic=topic, text=text, priority=priority, claims=claims, cause=cause
        )
