"""An attack in words and as the views see it: its findings, what each angle came to, what the user is asked; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from musecode_jupyter.log import EventLog
from musecode_jupyter.skills.grill_angles import ANGLES
from musecode_jupyter.skills.grill_checks import ANGLES as PROVEN
from musecode_jupyter.skills.grill_state import STANDS, GrillFindingRecord, GrillRecord, grills_of
from musecode_jupyter.skills.grill_target import target_of

SETTLES = (
    "`%grill accept N`, `%grill reject N WHY` or `%grill answer N TEXT` settles one; `%grill --ask` asks one by one."
)


def grill_text(log: EventLog, grill: int) -> str:
    """How an attack stands: each finding with its evidence, what was resolved, what each angle came to."""
    state = grills_of(log)
    record = state.grills[grill]
    mine = state.of_scope(record.scope)
    stands = {number: each for number, each in mine.items() if each.state in STANDS}
    settled = {number: each for number, each in mine.items() if each.state not in STANDS}
    lines = [f"Attacked: {target_of(log, log.get(grill)).words}. {standing(record)}".rstrip()]
    for number, each in ranked(stands.items()):
        lines += _told(number, each)
    if not stands and record.status == "ended":
        lines.append("Nothing was found that stands.")
    lines += [
        f"{number} {each.state}: {each.text}" + (f" ({each.said})" if each.said else "")
        for number, each in settled.items()
    ]
    lines.append("By angle:")
    lines += [f"  {angle}: {came}" for angle, came in by_angle(record, mine, grill).items()]
    if any(each.state == "open" for each in stands.values()):
        lines.append(SETTLES)
    if any(each.state == "accepted" and each.plan is not None for each in stands.values()):
        lines.append("`%plan edit` has the plan changed by what you accepted.")
    return "\n".join(lines)


def standing(record: GrillRecord) -> str:
    """How an attack itself stands, in a sentence or two."""
    missing = [angle for angle, each in record.angles.items() if each.state in {"failed", "not tried"}]
    if record.status == "running":
        return "It is under way."
    if record.status == "stopped":
        return f"It was broken off: {record.why}. `%grill resume` goes on with it."
    parts = []
    if record.resolved or record.remain:
        parts.append(f"Of before, {len(record.resolved)} resolved, {len(record.remain)} remain.")
    if record.unreviewed:
        parts.append(f"No model looked at it ({record.unreviewed}).")
    if missing:
        parts.append(f"Not tried: {', '.join(missing)}. `%grill resume` tries what is left.")
    return " ".join(parts)


def by_angle(record: GrillRecord, findings: Mapping[int, GrillFindingRecord], grill: int) -> dict[str, str]:
    """What each angle came to, in a few words; an attack that finds nothing says so."""
    mine = [each for each in findings.values() if each.grill == grill]
    told = {}
    for angle in ANGLES:
        proven = sum(not each.by and each.angles[0] == angle for each in mine)
        words = [f"{proven} proven"] if proven else []
        came = _came(record, angle)
        words += ["nothing more"] if words and came == ["nothing"] else came
        if not words and (record.status == "ended" or not record.reviewed) and angle in PROVEN:
            words = ["nothing"]
        if words:
            told[angle] = ", ".join(words) if words != ["nothing"] else "nothing found"
    return told


def _came(record: GrillRecord, angle: str) -> list[str]:
    each = record.angles.get(angle)
    if each is None:
        return []
    if each.state in {"failed", "not tried", "does not apply"}:
        return [f"{each.state} ({each.why})" if each.why else each.state]
    words = [f"{len(each.found)} found"] if each.found else []
    words += [f"{len(each.joined)} that others found too"] if each.joined else []
    words += [f"{each.again} known"] if each.again else []
    opinions = f"{each.kept_back} opinion{'s' if each.kept_back > 1 else ''}"
    words += [f"{opinions} on what has not changed, not raised"] if each.kept_back else []
    words += [f"{each.unreadable} that could not be read"] if each.unreadable else []
    return words or ["nothing"]


def ranked(findings: Iterable[tuple[int, GrillFindingRecord]]) -> list[tuple[int, GrillFindingRecord]]:
    """Gravest first; what is proven before opinions."""
    return sorted(findings, key=lambda each: (each[1].rank, each[0]))


def proof_of(each: GrillFindingRecord) -> str:
    """What shows a finding, or that it is an opinion and why."""
    if each.proven:
        return f"evidence: {each.evidence}"
    return f"an opinion: what it cites does not hold ({each.refuted})" if each.refuted else "an opinion"


def _told(number: int, each: GrillFindingRecord) -> list[str]:
    place = f", {each.place}" if each.place else ""
    weight = each.severity if each.proven else f"opinion ({each.severity} if it holds)"
    lines = [
        f"{number} {weight}, {', '.join(each.angles)}{place} [{each.state}]: {each.text}",
        f"    {proof_of(each)}",
    ]
    return lines + ([f"    {each.change}"] if each.change else [])


def question_text(log: EventLog, asked: Mapping[str, Any], left: int) -> str:
    """What the user is asked, with how to answer; `left` things come after it."""
    more = f"{left} more after it" if left else "the last one"
    if asked["question"] is not None:
        head = f"Question {asked['question']} of the plan ({more}): {asked['text']}"
        return f"{head}\n`%grill answer TEXT` or `%grill skip`."
    each = grills_of(log).findings[asked["finding"]]
    lines = [f"Finding {asked['finding']} ({more})", *_told(asked["finding"], each)]
    if each.question:
        lines.append(each.question)
    return "\n".join([*lines, "`%grill accept`, `%grill reject WHY`, `%grill answer TEXT` or `%grill skip`."])


def grill_shown(log: EventLog, grill: int) -> dict[str, Any]:
    """An attack as the views see it, all of it plain data."""
    state = grills_of(log)
    record = state.grills[grill]
    mine = state.of_scope(record.scope)
    asked = state.asked
    return {
        "seq": max([record.changed, *(each.changed for each in mine.values())]),
        "number": grill,
        "title": target_of(log, log.get(grill)).words,
        "status": record.status,
        "standing": standing(record),
        "angles": by_angle(record, mine, grill),
        "asked": None if asked is None or asked["grill"] != grill else dict(asked),
        "findings": [
            finding_shown(number, each)
            for number, each in sorted(ranked(mine.items()), key=lambda pair: pair[1].state not in STANDS)
        ],
    }


def finding_shown(number: int, each: GrillFindingRecord) -> dict[str, Any]:
    """One finding as JSON values."""
    return {
        "number": number,
        "severity": each.severity,
        "blocks": each.blocks,
        "opinion": not each.proven,
        "angles": list(each.angles),
        "place": each.place,
        "text": each.text,
        "proof": proof_of(each),
        "change": each.change,
        "question": each.question,
        "by": each.by,
        "state": each.state,
        "said": each.said,
    }
