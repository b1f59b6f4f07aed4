"""What the user can see and say of the agents' conversations: size, cost, what a new agent would cost, pins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from musecode_jupyter.agents.compaction import ContextKeeper
from musecode_jupyter.agents.context import SPEAKING
from musecode_jupyter.agents.conversations import Conversations
from musecode_jupyter.agents.economy import AgentUse, EconomyState, decide
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.runtime.errors import UsageProblem

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


def economy_of(core: SessionCore) -> EconomyState:
    """What the agents used and what new ones would have used, as folded."""
    state = core.log.state("economy")
    assert isinstance(state, EconomyState)
    return state


def conversation_lines(core: SessionCore, name: str) -> list[str]:
    """How long an agent's conversation is, and what its next work would cost, with it, without it, by a new agent."""
    record, use = core.agents.agents[name], economy_of(core).agents.get(name)
    return [] if record.profile != "driver" or record.last_answer is None or use is None else _told(core, name, use)


def _told(core: SessionCore, name: str, use: AgentUse) -> list[str]:
    record = core.agents.agents[name]
    talks = Conversations(core.log, core.gate)
    parts = [f"about {talks.tokens(name)} of {talks.room(name)} tokens, {len(use.observed)} things seen"]
    if record.masked:
        parts.append(f"{len(record.masked)} outputs said in a line")
    if record.compacted is not None:
        parts.append(f"shortened at event {record.compacted}")
    if record.pinned:
        parts.append(f"pinned: {', '.join(map(str, record.pinned))}")
    lines = [f"conversation: {'; '.join(parts)}"]
    if use.cold_tokens:
        lines.append(_cold(core, name))
    if any(economy_of(core).price):
        keeper = ContextKeeper(core.log, core.gate, talks)
        numbers = keeper.numbers(Task(name, core.own_place(), 0), core.now())
        found = decide(numbers)
        lines.append(
            f"its next work: {found.keep:.4f} USD as it is, {found.compact:.4f} shortened, {found.reseed:.4f} begun "
            f"anew, {found.retire:.4f} by a new agent: {found.action}"
        )
    return lines


def _cold(core: SessionCore, name: str) -> str:
    tokens, usd = economy_of(core).counterfactual(name)
    return f"a new agent for each piece of work would have read about {tokens} tokens again, for {usd:.4f} USD"


async def pin(core: SessionCore, item: int, *, pinned: bool) -> str:
    """Have event `item` stay word for word in the conversation that it is of, or no longer; says so in a line.

    Raises UsageProblem if no conversation has it, and if it is not pinned that is to be unpinned.
    """
    if not pinned:
        agent = next((name for name, record in core.agents.agents.items() if item in record.pinned), None)
        if agent is None:
            raise UsageProblem(f"Event {item} is not pinned.")
    else:
        agent = _whose(core, item)
    said = {"to": agent, "item": item, "pinned": pinned}
    await core.log.append("context.pinned", said, agent="user", cause=(item,))
    stays = "stays word for word in" if pinned else "may be left out of"
    return f"Event {item} {stays} the conversation of {agent}."


def _whose(core: SessionCore, item: int) -> str:
    for name, record in core.agents.agents.items():
        if item in record.view or item in record.held or item in record.said:
            return name
    event = core.log.get(item) if 1 <= item <= core.log.last_seq else None
    if event is not None and event.kind in SPEAKING and event.agent in core.agents.agents:
        return event.agent
    raise UsageProblem(f"Event {item} is in no agent's conversation: `%muse timeline` shows the numbers.")
