"""Findings as text: to the worker whose work they stop, to a reviewer, on the card of a landing; pure."""

from __future__ import annotations

from collections.abc import Sequence

from musecode_jupyter.agents.critiques.changed import Asked
from musecode_jupyter.agents.critiques.state import CritiquesState, Finding, scope_of
from musecode_jupyter.agents.prompts import EMPHASES
from musecode_jupyter.log import EventLog
from musecode_jupyter.tools.fence import fenced

MOST_TOLD = 12
EVIDENCE_CHARS = 600


def line_of(finding: Finding) -> str:
    """One line of a finding: number, how grave, state, where, what."""
    state = "accepted, to be done" if finding.accepted and finding.state == "open" else finding.state
    weight = finding.severity if finding.proven else f"{finding.severity}, an opinion"
    said = f" ({finding.said})" if finding.said and finding.state != "open" else ""
    text = " ".join(finding.text.split())
    return f"{finding.number} {weight}, {state}{said}: {finding.where}: {text}"


def critiques_of(log: EventLog) -> CritiquesState:
    """The findings as folded."""
    state = log.state("critiques")
    assert isinstance(state, CritiquesState)
    return state


def card_lines(log: EventLog, goal: int, task: int | None) -> list[str]:
    """What the question whether work may land says of its findings, but for those that are fixed."""
    return [line_of(each) for each in critiques_of(log).of(scope_of(goal, task, None)) if each.state != "fixed"]


def objection(blocking: Sequence[Finding]) -> str:
    """In a clause why work does not land; names every finding that stops it."""
    each = "; ".join(f"{finding.number} at {finding.where} ({finding.check})" for finding in blocking)
    return f"{len(blocking)} finding{'s' if len(blocking) > 1 else ''} must be settled first: {each}."


def how_to_settle(blocking: Sequence[Finding]) -> str:
    """What the user can do about findings that go on stopping the work."""
    number = blocking[0].number
    return (
        f"`%muse critiques` shows them; `%muse critiques answer {number} TEXT` or `%muse critiques withdraw {number}` "
        "settles one, then resume."
    )


def report(blocking: Sequence[Finding]) -> str:
    """What the worker is told: what was found, on what it rests, what to do."""
    parts = [_told(finding) for finding in blocking[:MOST_TOLD]]
    if len(blocking) > MOST_TOLD:
        parts.append(f"{len(blocking) - MOST_TOLD} more.")
    return (
        "Your work passes its checks, and does not land yet: the review found what has to be changed first.\n\n"
        + fenced("\n\n".join(parts))
        + "\n\nChange what is wrong there and nothing else. If a finding is mistaken, say why in your answer: the user "
        "decides."
    )


def _told(finding: Finding) -> str:
    lines = [f"Finding {finding.number} ({finding.check}) at {finding.where}: {finding.text}"]
    if finding.place.text:
        lines += [f"    {line}" for line in finding.place.text.splitlines()]
    if finding.why:
        lines.append(f"Why it matters: {finding.why}")
    for each in finding.evidence:
        if each.form == "command":
            lines.append(f"Command {each.call} printed: {each.text[:EVIDENCE_CHARS]}")
        elif each.text.strip() != finding.place.text.strip():
            lines.append(f"See {each.path}{f':{each.start}' if each.start else ''}: {each.text[:EVIDENCE_CHARS]}")
    if finding.suggestion:
        lines.append(f"Suggested: {finding.suggestion}")
    if finding.accepted:
        lines.append(f"The user wants it done.{f' They say: {finding.said}' if finding.said else ''}")
    return "\n".join(lines)


def letter(findings: Sequence[Finding]) -> str:
    """What the author of a change is told, while the work goes on, of what its review found."""
    parts = [_told(finding) for finding in findings[:MOST_TOLD]]
    if len(findings) > MOST_TOLD:
        parts.append(f"{len(findings) - MOST_TOLD} more.")
    stops = [str(finding.number) for finding in findings if finding.blocks]
    end = (
        f"The work does not land before {', '.join(stops)} {'is' if len(stops) == 1 else 'are'} settled."
        if stops
        else ""
    )
    return "\n\n".join(["A review of your changes so far found:", *parts, *([end] if end else [])])


def put(
    emphasis: str,
    asked: Asked,
    diff: str,
    checks: Sequence[tuple[str, int, bool]],
    earlier: Sequence[Finding],
    *,
    beside: bool = False,
    broken_off: bool = False,
) -> str:
    """How a change is put to a reviewer: one that asks to land, or one `beside` whose review the work goes on.

    `broken_off` says that a review of an earlier state was.
    """
    ran = "\n".join(f"- command {call}: `{command}` {'passed' if ok else 'failed'}" for command, call, ok in checks)
    known = "\n".join(f"- {line_of(finding)}" for finding in earlier)
    parts = [
        f"Review this change. Look above all at {emphasis}: {EMPHASES[emphasis]}.",
        f"What was to be done:\n{fenced(asked.text)}",
    ]
    if beside:
        parts.append("Its author goes on working, and is told of what you find: judge what is there.")
    if broken_off:
        parts.append("Your review before was broken off: what you raised in it was not taken. Raise again what holds.")
    if asked.writes:
        parts.append(f"It is expected to change: {', '.join(asked.writes)}.")
    parts.append(f"The change:\n{fenced(diff)}")
    if ran:
        parts.append(f"Checks that ran on it:\n{ran}")
    if known:
        parts.append(
            f"Raised before; do not raise these again:\n{fenced(known)}\nIf one that is open is fixed by this change, "
            "or was wrong, say so with `settle_finding`."
        )
    return "\n\n".join(parts)
