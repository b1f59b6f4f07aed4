"""Limits of a session, its agents and tasks, beside those of its goals: set by the user, told with what is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from musecode_jupyter.agents.tasks.state import TasksState
from musecode_jupyter.guard.ledger import Limit
from musecode_jupyter.guard.scopes import DIMENSIONS, Scope, amount, named, number, used_of
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.runtime.money import MICRO, limit_microusd
from musecode_jupyter.session.day import KEY, write_limit
from musecode_jupyter.session.goal_watch import share

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


async def set_budget(
    core: SessionCore,
    usd: float | None = None,
    tokens: int | None = None,
    *,
    calls: int | None = None,
    steps: int | None = None,
    hours: float | None = None,
    processes: int | None = None,
    disk: int | None = None,
    agent: str | None = None,
    task: int | None = None,
    day: bool = False,
) -> None:
    """Limit what the session, or an agent or a task of it, may use in all; None leaves a limit as it is.

    USD, tokens, tool calls, model calls (`steps`), hours in which a process has the session open (of an agent or task:
    in which agents were at work on it), processes that tools start, bytes that the session's folder and worktrees hold
    (the session's alone; looked at before each step, so that one command may go beyond it). With `day` it is what all
    sessions of this home may use on one day (UTC), in money and tokens; it holds in each of them from its next request.

    Raises UsageProblem if nothing is given, a limit is none or used up already, or the agent or task is not there.
    """
    key = _key(core, agent, task, day)
    every = {
        "microusd": usd,
        "tokens": tokens,
        "calls": calls,
        "steps": steps,
        "hours": hours,
        "processes": processes,
        "disk": disk,
    }
    given = {name: value for name, value in every.items() if value is not None}
    if not given:
        raise UsageProblem(
            "What is the limit? Give money, tokens or both; or calls, model calls, hours, processes, disk."
        )
    if key == KEY:
        if {"calls", "steps", "hours", "processes", "disk"} & given.keys():
            raise UsageProblem("A day is limited in money and tokens: leave the others out.")
        await core.day.refresh(always=True)
    if disk is not None and key != "session":
        raise UsageProblem("--disk limits the whole session: leave --agent and --task out.")
    if disk is not None:
        await core.disk.refresh(always=True)
    used = _used(core, key)
    for name, value in given.items():
        unit, before = DIMENSIONS[name], used[name] / MICRO if name == "microusd" else used[name]
        if not 0 < value < float("inf"):
            raise UsageProblem(f"A limit of {value:g} {unit} is none: it must be more than 0.")
        if value <= before:
            raise UsageProblem(
                f"{before:.6g} {unit} are used or reserved already: with a limit of {value:g} nothing more "
                "could be asked. Give more."
            )
    if usd is not None:
        given["microusd"] = limit_microusd(usd)
    limits = core.ledger.limits.get(key, Limit()).model_dump() | given
    if key == KEY:
        await core.effects.disk(write_limit, core.home, Limit(**limits))
    scope, _, name = key.partition(" ")
    await core.log.append("budget.set", {"scope": scope, "name": name, **limits}, agent="user")


async def clear_budget(core: SessionCore) -> None:
    """Take the limits of the session, its agents, its tasks and the day away; those of its goals stay."""
    if KEY in core.ledger.limits:
        await core.effects.disk(write_limit, core.home, Limit())
    for key in list(core.ledger.limits) or ["session"]:
        scope, _, name = key.partition(" ")
        await core.log.append("budget.set", {"scope": scope, "name": name}, agent="user")


def budget_text(core: SessionCore) -> str:
    """What is used of the limits of the session, in a line, and of those of each agent and task that has some."""
    ledger = core.ledger
    lines = [f"used or reserved in this session: {_line(core, 'session', ledger.limits.get('session', Limit()))}"]
    for key, limit in ledger.limits.items():
        if key != "session" and limit != Limit():
            name = "all sessions today" if key == KEY else named(key)
            lines.append(f"{name}: {_line(core, key, limit)}")
    return "\n".join(lines)


def goal_scopes(core: SessionCore, agent: str) -> list[Scope]:
    """The budgets of the day, and of the goal that `agent` works for, beside those that the gate knows."""
    found, active = core.day.scopes(), core.goals.active
    if active is None:
        return found
    record = core.goals.goals[active]
    if agent not in record.agents or record.final:
        return found
    waiting = [reserve for reserve in core.ledger.open.values() if reserve.agent in record.agents]
    part = share(core, active)
    goal = Scope(
        f"goal {active}",
        None if record.limit_microusd is None else int(part * record.limit_microusd),
        record.used_microusd + sum(reserve.microusd for reserve in waiting),
        None if record.limit_tokens is None else int(part * record.limit_tokens),
        record.used_tokens + sum(reserve.tokens for reserve in waiting),
    )
    return [*found, goal]


def _used(core: SessionCore, key: str) -> dict[str, float]:
    if key == KEY:
        microusd, tokens = core.day.used()
        return {"microusd": microusd, "tokens": tokens}
    return used_of(core.ledger, key, core.now()) | {"disk": core.disk.held}


def _line(core: SessionCore, key: str, limit: Limit) -> str:
    used = _used(core, key)
    money = f"{used['microusd'] / MICRO:.4f}"
    parts = [
        f"{money} USD, no limit" if limit.microusd is None else f"{money} of {limit.microusd / MICRO:g} USD",
        f"{used['tokens']} tokens, no limit" if limit.tokens is None else f"{used['tokens']} of {limit.tokens} tokens",
    ]
    for name in ("calls", "steps", "hours", "processes", "disk"):
        most = getattr(limit, name)
        if most is not None:
            parts.append(f"{number(name, used[name])} of {amount(name, most)}")
    return "; ".join(parts)


def _key(core: SessionCore, agent: str | None, task: int | None, day: bool) -> str:
    if (agent is not None) + (task is not None) + day > 1:
        raise UsageProblem("A budget is an agent's, a task's or a day's: give one of --agent, --task, --day.")
    if day:
        return KEY
    if agent is not None:
        if agent not in core.agents.agents:
            raise UsageProblem(f"There is no agent {agent!r}: `%muse agents` shows them.")
        return f"agent {agent}"
    if task is not None:
        tasks = core.log.state("tasks")
        assert isinstance(tasks, TasksState)
        if task not in tasks.tasks:
            raise UsageProblem(f"There is no task {task}: `%muse tasks` shows them.")
        return f"task {task}"
    return "session"
