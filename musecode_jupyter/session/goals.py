"""Sets and edits goals: what is checked first, what is frozen as an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.clauses import Frozen, clauses_of, filled, freeze, hide_held, kept
from musecode_jupyter.session.crew import LEAD_NAME
from musecode_jupyter.session.ground import make_shadow, own_changes, shadow_text
from musecode_jupyter.session.preflight import GoalSpec, check_commands, check_goal
from musecode_jupyter.session.summary import summarise
from musecode_jupyter.skills.clauses import ClauseOptions, check_options
from musecode_jupyter.skills.fan_out import task_created
from musecode_jupyter.skills.limits import Limits, check_room, limits_of

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


async def set_goal(core: SessionCore, spec: GoalSpec, *, queued: int | None = None) -> int:
    """Check the goal's clauses, write it down and start it; returns its seq. `queued` is its number before."""
    core.no_running_goal()
    await core.crew.rest()
    core.shared()
    may_ask = core.policy.landing(None).decision == "ask"
    found = await check_goal(spec, core.workspace, core.settings, core.effects, may_ask=may_ask)
    head, start, git = found.head, spec.base or "head", found.git
    if found.shadow and (found.git is not None or spec.shadow):
        if found.git is None:
            core.notices.append(shadow_text(found.root))
        git = await make_shadow(core, found.root)
        head = await git.head()
    elif found.git is not None and spec.base is None and may_ask and spec.workers == 1 and not spec.tasks:
        start = "ask" if await own_changes(core, found.git) else "head"
    frozen = await freeze(core, spec.clauses, git)
    # The goal and all of its tasks in one go.
    event = core.log.post(
        "goal.set",
        {
            "text": spec.text,
            "verify": list(spec.verify),
            "agent": LEAD_NAME,
            "branch": None if head is None else head.branch,
            "base": "" if head is None else head.commit,
            **spec.limits.recorded,
            "model": core.gate.model,
            "workers": max(spec.workers, 2) if spec.tasks else spec.workers,
            "shadow": found.shadow,
            # There is nothing but files in a private repository.
            "start": "head" if found.shadow else start,
            "clauses": frozen.clauses.model_dump(),
            "queued": queued,
            "draft": spec.draft,
        },
        agent="user",
        blobs=frozen.blobs,
    )
    for task in spec.tasks:
        core.log.post("task.created", task_created(event.seq, task, "user"), agent="user", cause=(event.seq,))
    await core.log.flush()
    hide_held(core)
    core.begin_goal(event.seq)
    return event.seq


async def edit_goal(
    core: SessionCore,
    goal: int,
    text: str | None,
    limits: Limits,
    verify: tuple[str, ...] = (),
    options: ClauseOptions | None = None,
) -> None:
    """Give the goal another text, limits, verify commands or clauses; it may run meanwhile.

    What is not given stays: of the clauses each kind by itself. A goal that waits in the queue cannot be edited.

    Raises UsageProblem if nothing is given, a limit is none or used up already, a clause cannot decide anything, or the
    goal is met or cleared.
    """
    record = core.record(goal)
    if record.cleared or record.status == "met":
        raise UsageProblem(f"Goal {goal} {'was cleared' if record.cleared else 'is met'}: set a new one.")
    limits.check()
    options = options or ClauseOptions()
    if text is not None and not text.strip():
        text = None
    decides = bool(verify) or options.given
    if text is None and not limits.given and not decides:
        raise UsageProblem(
            "What is to change? Give a text, or a new limit: --budget, --tokens, --calls, --hours or --steps; or what "
            "decides it: --verify, --metric, --forbid, --holdout or --reserve."
        )
    check_room(record, limits, core.effects.now())
    old = limits_of(record)
    data: dict[str, object] = {
        "goal": goal,
        "agent": record.agent,
        "old": old.recorded,
        "new": limits.over(old).recorded,
        "text": None if text is None else text.strip(),
    }
    frozen = Frozen()
    if decides:
        commands = verify or tuple(record.verify)
        before = clauses_of(core, goal).clauses
        given = filled(options, before)
        check_options(given, commands)
        git = await core.git(goal)
        await check_commands([*verify, *([options.measure] if options.measure else [])], git.root, core.effects)
        frozen = kept(core, goal, await freeze(core, given, git), options)
        data |= {"verify": list(commands), "clauses": frozen.clauses.model_dump()}
    await core.log.append("goal.edited", data, agent="user", cause=(goal,), blobs=frozen.blobs)
    hide_held(core)


def history_text(core: SessionCore, goal: int) -> str:
    """Every version of the goal's text, clauses and limits, oldest first, each with the number of its event.

    Before them who proposed what decides it, and how the user confirmed that, where it was proposed.
    """
    core.record(goal)
    lines = []
    draft = core.log.get(goal).data.get("draft")
    proposed = [] if draft is None else [e.seq for e in core.log.events(since=draft) if _of_draft(e, draft, goal)]
    for seq in [*proposed, *clauses_of(core, goal).versions]:
        event = core.log.get(seq)
        lines.append(f"{seq}: {summarise(event)['text']}")
    return "\n".join(lines)


def _of_draft(event: Event, draft: int, goal: int) -> bool:
    kinds = {"draft.proposed", "draft.confirmed"}
    return event.seq < goal and event.kind in kinds and event.data["draft"] == draft
