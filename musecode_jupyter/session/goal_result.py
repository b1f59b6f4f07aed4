"""How a goal stands or ended, as users hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.clauses import clauses_of
from musecode_jupyter.skills.goal_state import GoalRecord
from musecode_jupyter.skills.limits import more

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


@dataclass(frozen=True)
class GoalResult:
    """How a goal stands or ended. `status` is queued, running, paused, met, budget, stalled, blocked, wedged,
    stopped or error; cleared where it was taken out of the queue.

    `seconds` counts the time in which it ran. `more` is the option that gives it enough to go on where a budget
    stopped it, for example "--tokens 40000". `checkout` says what the landing did with the user's files. `handover` are
    lines on what was done, what is left, what to do next and how to go on, for a goal that has ended.
    """

    status: str
    why: str
    commit: str | None
    model_calls: int
    tool_calls: int
    tokens: int
    usd: float
    seconds: float
    more: str = ""
    checkout: str = ""
    handover: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        """Whether all clauses hold on the landed tree."""
        return self.status == "met"


def result_of(core: SessionCore, number: int) -> GoalResult:
    """How a goal stands now; UsageProblem if there is none of this number."""
    number = core.queue.number(number)
    record: GoalRecord | None = core.goals.goals.get(number)
    if place := core.queue.place(number):
        return GoalResult("queued", f"number {place} in the queue", None, 0, 0, 0, 0.0, 0.0)
    if (why := core.queue.state.dropped.get(number)) is not None:
        return GoalResult("cleared", why, None, 0, 0, 0, 0.0, 0.0)
    if record is None:
        raise UsageProblem(f"There is no goal {number} in this session.")
    landed = [m for m in core.workspace_state.merges.values() if m.goal == number and m.state == "landed"]
    return GoalResult(
        status=record.status,
        why=record.why,
        commit=record.commit,
        model_calls=record.model_calls,
        tool_calls=record.tool_calls,
        tokens=record.used_tokens,
        usd=record.used_usd,
        seconds=record.seconds(core.now()),
        more=more(record, clauses_of(core, number).clauses.reserve),
        checkout=landed[-1].checkout if landed else "",
        handover=tuple(clauses_of(core, number).handover),
    )
