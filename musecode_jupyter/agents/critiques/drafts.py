"""Findings on their way into the log: from a check or a reviewer, placed, and those of one thing made one; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from musecode_jupyter.agents.critiques.changed import Found, Side, normal
from musecode_jupyter.agents.critiques.finding_tool import Raised
from musecode_jupyter.agents.critiques.mechanical import MECHANICAL
from musecode_jupyter.agents.critiques.state import SEVERITIES
from musecode_jupyter.log.critique_kinds import CritiqueEvidence, CritiquePlace, Severity


@dataclass(frozen=True)
class Draft:
    """A finding that has no number yet; the fields are those of critique.raised."""

    check: str
    severity: Severity
    path: str
    start: int
    end: int
    text: str
    passes: tuple[str, ...]
    evidence: tuple[CritiqueEvidence, ...]
    place: str = ""
    why: str = ""
    suggestion: str = ""
    side: Side = "new"
    hunk: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """As of a finding in the log."""
        return self.check, self.path, normal(self.place) or normal(self.text)

    def seen(self, text: str, hunk: str) -> Draft:
        """The draft with what stands at its place. A check has seen it already, and leaves out what is secret."""
        if MECHANICAL in self.passes:
            # A part of a key of several lines is not known for what it is.
            return replace(self, hunk="" if self.check == "secret" else hunk)
        return replace(self, place=text, hunk=hunk)

    def said(self) -> dict[str, object]:
        """The fields of critique.raised that the draft gives."""
        place = CritiquePlace(path=self.path, start=self.start, end=self.end, text=self.place, side=self.side)
        return {
            "check": self.check,
            "severity": self.severity,
            "place": place.model_dump(),
            "text": self.text,
            "why": self.why,
            "evidence": [each.model_dump() for each in self.evidence],
            "suggestion": self.suggestion,
            "passes": list(self.passes),
            "hunk": self.hunk,
        }


def of_mechanical(found: Found) -> Draft:
    """A draft of what a check found: the place is its evidence."""
    form = CritiqueEvidence(
        form="hunk" if found.side == "old" else "span",
        path=found.path,
        start=found.start,
        end=found.end,
        text="\n".join(f"-{line}" for line in found.place.split("\n")) if found.side == "old" else found.place,
    )
    return Draft(
        found.check,
        found.severity,
        found.path,
        found.start,
        found.end,
        found.text,
        (MECHANICAL,),
        (form,),
        place=found.place,
        why=found.why,
        suggestion=found.suggestion,
        side=found.side,
    )


def of_raised(raised: Raised, emphasis: str) -> Draft:
    """A draft of what a reviewer raised in the pass called `emphasis`."""
    return Draft(
        raised.kind,
        raised.severity,
        raised.path,
        raised.start,
        raised.end,
        raised.text,
        (emphasis,),
        raised.evidence,
        suggestion=raised.suggestion,
    )


def merged(drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts in order, those of one kind at one place as one, raised by all of their passes.

    It has the words and the weight of the gravest that has evidence, if one has; the evidence of all.
    """
    found: list[Draft] = []
    for draft in drafts:
        at = next((n for n, each in enumerate(found) if _same(each, draft)), None)
        if at is None:
            found.append(draft)
        else:
            found[at] = _joined(found[at], draft)
    return found


def _same(first: Draft, second: Draft) -> bool:
    if (first.check, first.path, first.side) != (second.check, second.path, second.side):
        return False
    if MECHANICAL in first.passes:
        # Each is about something of its own, several perhaps on one line.
        return MECHANICAL in second.passes and (first.key, first.text) == (second.key, second.text)
    return first.start <= second.end and second.start <= first.end


def _joined(first: Draft, second: Draft) -> Draft:
    weight = {severity: number for number, severity in enumerate(SEVERITIES)}
    # An opinion lends its weight to nothing that is proven.
    best, other = sorted((first, second), key=lambda each: (not each.evidence, weight[each.severity]))
    passes = tuple(dict.fromkeys((*first.passes, *second.passes)))
    evidence = tuple({each.model_dump_json(): each for each in (*best.evidence, *other.evidence)}.values())
    return replace(best, passes=passes, evidence=evidence, suggestion=best.suggestion or other.suggestion)
