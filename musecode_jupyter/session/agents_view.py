"""Who is there and doing what, in lines: state, what woke it, what it holds, what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from musecode_jupyter.agents.crew_state import CrewState
from musecode_jupyter.agents.critiques.text import critiques_of
from musecode_jupyter.agents.follow_ups import follow_ups_of
from musecode_jupyter.agents.roles.state import role_of, roles_of
from musecode_jupyter.agents.verifier.checks import checks_of
from musecode_jupyter.agents.verifier.state import VERIFIER
from musecode_jupyter.session.context import conversation_lines

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


def agents_lines(core: SessionCore) -> list[str]:
    """What there is to say of each agent, in the order in which they were made."""
    state = core.log.state("crew")
    assert isinstance(state, CrewState)
    lines: list[str] = []
    for name, record in core.agents.agents.items():
        held = state.agents[name]
        spent = core.ledger.by_agent.get(name)
        cost = (
            ""
            if spent is None or not (spent.calls or spent.failed)
            else f", {spent.calls} model calls, {spent.tokens} tokens, {spent.usd:.4f} USD"
        )
        why = f" ({record.why})" if record.why else ""
        how = f"{record.profile}, {record.model}" if record.model else "asks no model"
        parts = [f"{record.role}, {how}: {record.state}{why}{cost}"]
        if record.role in roles_of(core.log).roles:
            parts.append(f"the repository's role: {role_of(core.log, record.role).purpose}")
        if held.before is not None and record.state != "retired":
            parts.append(f"takes the name of one that was retired at event {held.before}")
        if held.woken is not None:
            parts.append(f"woken last: {held.why} (event {held.woken})")
        elif (put := critiques_of(core.log).passes.get(name)) is not None:
            why = "as the work asks to land" if put.batch is None else f"by batch {put.batch}"
            parts.append(f"woken last: to review {put.scope}, {why} (event {put.seq})")
        for number, step in follow_ups_of(core.log).waiting.items():
            if step.agent == name:
                parts.append(f"next step {number}, once {', '.join(step.paths)} land: {step.what}")
        if name == VERIFIER:
            parts.append(f"{checks_of(core.log).ran} checks run beside the work")
        if held.read:
            changed = f", {len(held.changed)} changed since" if held.changed else ""
            parts.append(f"{len(held.read)} files read{changed}")
        waiting = core.crew.mailbox.state.waiting(name)
        if waiting:
            parts.append(f"{len(waiting)} letters wait")
        lines.append(f"{name}: {'; '.join(parts)}")
        lines += [f"  {line}" for line in conversation_lines(core, name)]
    return lines
