"""Makes a session's agents, and its standing crew if the user wants one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from musecode_jupyter.agents.claims.tools import claims_of
from musecode_jupyter.agents.crew import Crew
from musecode_jupyter.agents.mail.box import Mailbox
from musecode_jupyter.agents.prompts import ASK
from musecode_jupyter.agents.roles.state import role_of, standing

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


LEAD_NAME = "lead"


def make_crew(core: SessionCore) -> Crew:
    """The crew of a session; nothing is begun."""
    return Crew(
        core.log,
        core.loop,
        Mailbox(core.log, core.executor.underway.end, lambda: claims_of(core.log).standings()),
        partial(_goal_of, core),
    )


def _goal_of(core: SessionCore, agent: str) -> int | None:
    """The goal that `agent` works on now."""
    active = core.goals.active
    if active is None:
        return None
    record = core.goals.goals[active]
    return active if agent in record.agents and not record.final else None


async def make_agents(core: SessionCore) -> None:
    """Make the lead and the standing agents; what is there and is to be as it is stays."""
    await ensure_agent(core, LEAD_NAME, "lead")
    await ensure_crew(core)


async def ensure_crew(core: SessionCore) -> None:
    """Make the standing agents. Under `guided` there are none: nobody could ask them."""
    if core.with_crew:
        for name in standing(core.log):
            await ensure_agent(core, name, name)


async def ensure_agent(core: SessionCore, name: str, role_name: str) -> None:
    """Make the agent if it is not there, and give it its instructions and tools if they are not those of now."""
    info = core.gate.info
    if name not in core.agents.agents:
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
