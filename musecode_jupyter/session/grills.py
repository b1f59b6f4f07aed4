"""Attacks on a plan as a session does them: what can be proven, each flaw once, answered by the user."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.skills.grill_checks import ANGLES, attack
from musecode_jupyter.skills.grill_state import GrillFindingRecord, grills_of
from musecode_jupyter.skills.plan_state import digest_now, document_of

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

STANDS = frozenset({"open", "accepted"})


async def grill(core: SessionCore, plan: int) -> str:
    """Attack the newest version of a plan from every angle that needs no model; says what came of it.

    A flaw that was found before is not found again: it remains, or is resolved; what the user has rejected or
    answered is left alone. Raises UsageProblem if there is no version.
    """
    moved = await core.plans.moved(plan)
    document = document_of(core.log, plan)
    assert document is not None
    flaws = {flaw.key: flaw for flaw in attack(document, await (await core.git()).list_files(), moved)}
    before = grills_of(core.log).of_plan(plan)
    known = {each.key for each in before.values() if each.state != "resolved"}
    record = core.plans.record(plan)
    begun = core.log.post(
        "grill.begun",
        {"plan": plan, "version": record.version, "digest": digest_now(core.log, plan)},
        agent="user",
        cause=(plan,),
    )
    found = [
        core.log.post(
            "grill.finding",
            {
                "grill": begun.seq,
                "angle": flaw.angle,
                "key": key,
                "severity": flaw.severity,
                "text": flaw.text,
                "evidence": flaw.evidence,
                "change": flaw.change,
            },
            agent="harness",
            cause=(begun.seq,),
        ).seq
        for key, flaw in flaws.items()
        if key not in known
    ]
    stood = {number: each for number, each in before.items() if each.state in STANDS}
    ended = {
        "grill": begun.seq,
        "angles": list(ANGLES),
        "found": found,
        "resolved": [number for number, each in stood.items() if each.key not in flaws],
        "remain": [number for number, each in stood.items() if each.key in flaws],
    }
    await core.log.append("grill.ended", ended, agent="harness", cause=(begun.seq,))
    return grill_text(core, plan)


def grill_text(core: SessionCore, plan: int) -> str:
    """How the attacks on a plan stand: each finding with its evidence, and what was resolved."""
    state = grills_of(core.log)
    mine = state.of_plan(plan)
    if plan not in state.plans.values():
        return "The plan was not attacked yet: %grill"
    stands = {number: each for number, each in mine.items() if each.state in STANDS}
    settled = {number: each for number, each in mine.items() if each.state not in STANDS}
    lines = [f"Attacked from {len(ANGLES)} angles that need no model: {', '.join(ANGLES)}."]
    lines += _told(stands.items())
    if not stands:
        lines.append("Nothing was found that stands.")
    lines += [
        f"{number} {each.state}: {each.text}" + (f" ({each.said})" if each.said else "")
        for number, each in settled.items()
    ]
    if any(each.state == "open" for each in stands.values()):
        lines.append("`%grill accept N`, `%grill reject N WHY` or `%grill answer N TEXT` settles one.")
    if any(each.state == "accepted" for each in stands.values()):
        lines.append("`%plan edit` has the plan changed by what you accepted.")
    return "\n".join(lines)


def _told(findings: Iterable[tuple[int, GrillFindingRecord]]) -> list[str]:
    order = ("blocking", "major", "minor")
    ranked = sorted(findings, key=lambda each: (order.index(each[1].severity), each[0]))
    lines = []
    for number, each in ranked:
        proof = f"evidence: {each.evidence}" if each.evidence else "an opinion"
        lines += [
            f"{number} {each.severity}, {each.angle} [{each.state}]: {each.text}",
            f"    {proof}",
            f"    {each.change}",
        ]
    return lines


async def answer_finding(core: SessionCore, number: int, word: str, text: str = "") -> str:
    """Accept, reject or answer a finding; says what follows. UsageProblem if there is none, or it is settled."""
    finding = grills_of(core.log).findings.get(number)
    if finding is None:
        there = ", ".join(map(str, grills_of(core.log).findings)) or "none yet"
        raise UsageProblem(f"There is no finding {number}. There are: {there}.")
    if finding.state != "open":
        raise UsageProblem(f"Finding {number} is {finding.state} already.")
    if word == "answer" and not text.strip():
        raise UsageProblem(f"What do you answer? Give the text: %grill answer {number} TEXT.")
    claim = None
    if word == "answer":
        said = f"The user decided, of {finding.text!r}: {text.strip()}"
        claim = core.log.post("claim.asserted", {"type": "decision", "text": said, "evidence": []}, agent="user").seq
    answer = {"accept": "accepted", "reject": "rejected", "answer": "answered"}[word]
    data = {"finding": number, "answer": answer, "text": text.strip(), "claim": claim}
    await core.log.append("grill.answered", data, agent="user", cause=(number,))
    more = " `%plan edit` has the plan changed by it." if answer == "accepted" else ""
    return f"Finding {number} is {answer}.{more}"


def accepted(core: SessionCore, plan: int) -> list[str]:
    """What the user has accepted of the attacks on a plan, as wishes for its next version."""
    found = grills_of(core.log).of_plan(plan).values()
    return [f"{each.text} {each.change}" for each in found if each.state == "accepted"]
