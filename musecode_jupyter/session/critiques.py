"""What the user says of findings: answered, accepted, withdrawn; and the findings as the views show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from musecode_jupyter.agents.critiques.state import CritiquesState, Finding
from musecode_jupyter.agents.critiques.text import critiques_of
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import UsageProblem

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

Word = Literal["answer", "accept", "withdraw"]
CHANGES = frozenset({"critique.answered", "critique.fixed", "critique.withdrawn"})
WORDS: tuple[Word, ...] = ("answer", "accept", "withdraw")


async def settle(core: SessionCore, number: int, word: Word, text: str = "") -> str:
    """Write down what the user says of finding `number`; returns a line that says what follows.

    Raises UsageProblem if there is no such finding, it is settled already, or an answer has no text.
    """
    state = critiques_of(core.log)
    finding = state.findings.get(number)
    if finding is None:
        there = ", ".join(map(str, state.findings)) or "none yet"
        raise UsageProblem(f"There is no finding {number}. There are: {there}.")
    if finding.state in {"fixed", "withdrawn"}:
        raise UsageProblem(f"Finding {number} is {finding.state} already.")
    text = text.strip()
    if word == "answer" and not text:
        raise UsageProblem(f"What do you answer? Give the text: %muse critiques answer {number} TEXT.")
    stopped = finding.blocks
    if word == "withdraw":
        kind, data = "critique.withdrawn", {"critique": number, "why": text}
    else:
        answer = "accepted" if word == "accept" else "answered"
        kind, data = "critique.answered", {"critique": number, "answer": answer, "text": text}
    await core.log.append(kind, data, agent="user", cause=(number,))
    return f"Finding {number} {_follows(core, critiques_of(core.log), finding, word, stopped)}"


def _follows(core: SessionCore, state: CritiquesState, finding: Finding, word: Word, stopped: bool) -> str:
    goal = None if finding.goal is None else core.goals.goals.get(finding.goal)
    waits = goal is not None and goal.status == "blocked"
    if word == "accept":
        return "is to be done before the work lands." + (" `%goal resume` goes on with it." if waits else "")
    said = "is answered." if word == "answer" else "is withdrawn."
    left = len(state.blocking(finding.scope))
    if left:
        return f"{said} {left} more must be settled before the work lands."
    return said + (" Nothing else stops the work: `%goal resume` goes on." if stopped and waits else "")


def finding_of(event: Event) -> int | None:
    """The number of the finding that an event raised or changed, if it did."""
    if event.kind == "critique.raised":
        return event.seq
    return event.data["critique"] if event.kind in CHANGES else None


def findings_shown(state: CritiquesState) -> list[dict[str, Any]]:
    """The findings as the views have them, in the order in which they were raised."""
    return [finding_shown(finding) for finding in state.findings.values()]


def findings_since(state: CritiquesState, since: int) -> dict[str, Any]:
    """What has changed after event `since`, as a message to a view that has everything up to there."""
    changed = [finding_shown(each) for each in state.findings.values() if each.changed > since]
    return {"since": since, "upto": max(since, newest_change(state)), "findings": changed}


def newest_change(state: CritiquesState) -> int:
    """The seq of the event that last raised or changed a finding; 0 if none did."""
    return max((finding.changed for finding in state.findings.values()), default=0)


def to_settle(core: SessionCore) -> int:
    """How many findings wait for the user, because a goal does not go on before they are settled."""
    blocked = {number for number, goal in core.goals.goals.items() if goal.status == "blocked"}
    return sum(each.blocks and each.goal in blocked for each in critiques_of(core.log).findings.values())


def finding_shown(finding: Finding) -> dict[str, Any]:
    """One finding as JSON values."""
    return {
        "seq": finding.changed,
        "number": finding.number,
        "state": finding.state,
        "severity": finding.severity,
        "blocks": finding.blocks,
        "accepted": finding.accepted,
        "opinion": not finding.proven,
        "check": finding.check,
        "where": finding.where,
        "place": finding.place.model_dump(),
        "text": finding.text,
        "why": finding.why,
        "evidence": [each.model_dump() for each in finding.evidence],
        "suggestion": finding.suggestion,
        "passes": list(finding.passes),
        "hunk": finding.hunk,
        "work": finding.scope,
        "merge": finding.merge,
        "said": finding.said,
        "by": finding.by,
    }
