"""Makes a session's agents, and its standing crew if the user wants one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.claims.tools import CLAIM, claims_of
from musecode_jupyter.agents.crew import Crew
from musecode_jupyter.agents.critiques.batch_state import REVIEWER
from musecode_jupyter.agents.critiques.text import critiques_of
from musecode_jupyter.agents.driver import Driver
from musecode_jupyter.agents.economy import decide
from musecode_jupyter.agents.follow_ups import MOST_TURNS, follow_ups_of
from musecode_jupyter.agents.mail.box import Mailbox
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.prompts import ASK, LEAD, REVIEWERS
from musecode_jupyter.agents.roles import offered
from musecode_jupyter.agents.roles.state import role_of, standing
from musecode_jupyter.agents.tasks.state import OVER, TasksState
from musecode_jupyter.agents.verifier.state import VERIFIER
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.skills.goal_state import GoalsState

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


LEAD_NAME = LEAD
ROOM = 0.75
"""Of each limit of a goal: beyond that no agent begins a next step that it has set for itself."""
_ENDS = frozenset({"goal.met", "goal.cleared", "task.done", "task.abandoned", "critique.reviewed"})


def make_crew(core: SessionCore) -> Crew:
    """The crew of a session; nothing is begun."""
    core.log.on_durable(partial(_release, core))
    core.log.on_durable(partial(_look_again, core))
    box = Mailbox(core.log, core.executor.underway.end, lambda: claims_of(core.log).standings())
    return Crew(
        core.log, core.loop, box, partial(_goal_of, core), partial(_outlived, core), partial(_make_standing, core)
    )


async def _make_standing(core: SessionCore, name: str) -> None:
    await ensure_agent(core, name, name)


def _outlived(core: SessionCore, task: Task) -> tuple[str, dict[str, float]] | None:
    """Why the agent is to give way to a new one as it begins other work, with the numbers; None if it is not."""
    mind = core.loop.mind
    found = mind.context.outlived(task, core.now()) if isinstance(mind, Driver) else None
    if found is None:
        return None
    decision, numbers = found
    why = f"keeping it would cost {decision.keep:.4f} USD for the work to come, a new agent {decision.retire:.4f} USD"
    return why, decision.told(numbers)


async def take_up(core: SessionCore, name: str, role_name: str) -> None:
    """Have a worker or reviewer there that is to be given work; one that costs more than a new one gives way to it.

    Not amid work: what is told of that is in its conversation alone.
    """
    record = core.agents.agents.get(name)
    if record is not None and record.state != "retired" and name not in awaited(core.log):
        found = _outlived(core, Task(name, core.own_place(), 0, core.goals.active))
        if found is not None:
            await core.crew.retire(name, *found)
    await ensure_agent(core, name, role_name)
    if CLAIM in (offered(core.log, name) or ()):
        core.crew.say_what_is_verified(name)


async def retire(core: SessionCore, name: str, why: str) -> None:
    """End an agent to which no work can come any more, if it is there."""
    record = core.agents.agents.get(name)
    mind = core.loop.mind
    if record is None or record.state == "retired" or not isinstance(mind, Driver):
        return
    told: dict[str, float] = {}
    if record.last_answer is not None:
        numbers = replace(mind.context.numbers(Task(name, core.own_place(), 0), core.now()), requests=0.0)
        told = decide(numbers).told(numbers)
    await core.crew.retire(name, why, told, for_good=True)


def awaited(log: EventLog) -> set[str]:
    """The agents with something to go on with: those that stand, workers of tasks and reviewers of changes that wait.

    Nothing waits of a goal that is met or was cleared.
    """
    goals, tasks = log.state("goals"), log.state("tasks")
    assert isinstance(goals, GoalsState)
    assert isinstance(tasks, TasksState)
    left = {number for number, goal in goals.goals.items() if goal.status != "met" and not goal.cleared}
    names = {LEAD_NAME, *standing(log)}
    names |= {task.agent for task in tasks.tasks.values() if task.goal in left and task.state not in OVER}
    for name, put in critiques_of(log).passes.items():
        goal = log.get(put.seq).data["goal"]
        if not put.complete and (goal is None or goal in left):
            names.add(name)
    return names


async def suspend(core: SessionCore, why: str) -> None:
    """After a restart: who has something to go on with is suspended, with all that it held; the others are idle."""
    waits = awaited(core.log)
    for name, record in core.agents.agents.items():
        state = "suspended" if name in waits else "idle"
        if record.state not in {state, "retired"}:
            await core.log.append("agent.state", {"state": state, "why": why}, agent=name)


def _release(core: SessionCore, event: Event) -> None:
    """Once the work is over with which suspended agents were to go on, they are idle."""
    if event.kind not in _ENDS or not core.log.writable:
        return
    suspended = [name for name, record in core.agents.agents.items() if record.state == "suspended"]
    if not suspended:
        return
    waits = awaited(core.log)
    for name in suspended:
        if name not in waits:
            core.log.post("agent.state", {"state": "idle", "why": "its work is over"}, agent=name, cause=(event.seq,))


def _goal_of(core: SessionCore, agent: str) -> int | None:
    """The goal that `agent` works on now."""
    active = core.goals.active
    if active is None:
        return None
    record = core.goals.goals[active]
    # What agents do by themselves is done for the goal that is worked on.
    return active if (agent in record.agents or agent == HARNESS) and not record.final else None


def _look_again(core: SessionCore, event: Event) -> None:
    """Have agents begin the next steps that have come due with a landing, within the budget of its goal."""
    if event.kind == "merge.landed" and core.log.writable and core.crew.opened:
        take_up_steps(core)


def take_up_steps(core: SessionCore, *, cut_off: bool = False) -> None:
    """Have agents begin the next steps that have come due, and with `cut_off` go on with those that a restart ended."""
    state = follow_ups_of(core.log)
    left = MOST_TURNS - state.turns if core.with_crew and _has_room(core) else 0
    if cut_off:
        left -= core.crew.go_on_looking(core.own_place(), left)
    for number, due in list(state.due.items()):
        core.crew.look_again(number, due, core.own_place(), wake=left > 0)
        left -= 1


def _has_room(core: SessionCore) -> bool:
    active = core.goals.active
    if active is None or core.goals.goals[active].final:
        return True
    goal = core.goals.goals[active]
    used = (
        (goal.limit_microusd, goal.used_microusd),
        (goal.limit_tokens, goal.used_tokens),
        (goal.limit_steps, goal.model_calls),
        (goal.limit_calls, goal.tool_calls),
    )
    return all(limit is None or spent <= ROOM * limit for limit, spent in used)


async def make_agents(core: SessionCore) -> None:
    """Make the lead and the standing agents; what is there and is to be as it is stays."""
    await ensure_agent(core, LEAD_NAME, "lead")
    await ensure_crew(core)


async def ensure_crew(core: SessionCore) -> None:
    """Make the standing agents, and who looks at all work. Under `guided` there are none: nobody could ask them."""
    if not core.with_crew:
        return
    for name in standing(core.log):
        await ensure_agent(core, name, name)
    if core.settings.review_mode(core.gate.info.profile) == "full":
        for name in REVIEWERS:
            await ensure_agent(core, name, REVIEWER)
    if core.with_verifier:
        await ensure_verifier(core)


async def ensure_verifier(core: SessionCore) -> None:
    """Make the verifier if it is not there; it asks no model."""
    if VERIFIER not in core.agents.agents:
        created = {"role": VERIFIER, "profile": "", "model": ""}
        await core.log.append("agent.created", created, agent=VERIFIER)


async def ensure_agent(core: SessionCore, name: str, role_name: str) -> None:
    """Make the agent if it is not there, and give it its instructions and tools if they are not those of now."""
    info = core.gate.info
    known = core.agents.agents.get(name)
    if known is None or known.state == "retired":
        created = {"role": role_name, "profile": info.profile, "model": core.gate.model}
        await core.log.append("agent.created", created, agent=name)
    its = role_of(core.log, role_name)
    if info.profile == "guided":
        instructions, tools = ASK, []
    else:
        instructions, tools = its.instructions, its.offered(core.executor.registry.specs())
    seed = {"instructions": instructions, "tools": [spec.model_dump(mode="json") for spec in tools]}
    seeded = core.agents.agents[name].seeded
    if seeded is None or dict(core.log.get(seeded).data) != seed:
        await core.log.append("agent.seeded", seed, agent=name)
