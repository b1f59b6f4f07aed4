"""What reviewers answer: read, compared with what they were shown, made one where it is one thing, kept back; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from musecode_jupyter.log.grill_kinds import Severity
from musecode_jupyter.skills.grill_checks import MOST_QUOTED, Flaw, cited_command, place_of
from musecode_jupyter.skills.grill_state import GrillFindingRecord
from musecode_jupyter.skills.grill_target import WHOLE, Target

MOST_FOUND = 12
"""Of one angle: whoever finds more has found nothing in particular."""
SAME_WORDS = 0.5
"""Share of words that two findings about one place have in common if they mean the same, ..."""
SAME_WORDS_CITED = 0.25
"""... and if they cite the same."""

_LEAST_QUOTED = 12
_LINE = re.compile(r" *(\d+)\t(.*)\Z")
_WORD = re.compile(r"[a-z0-9_]+")
_EMPTY_WORDS = frozenset(
    [
        "about",
        "after",
        "also",
        "and",
        "are",
        "because",
        "been",
        "before",
        "but",
        "can",
        "could",
        "does",
        "each",
        "for",
        "from",
        "has",
        "have",
        "into",
        "its",
        "may",
        "might",
        "must",
        "not",
        "only",
        "should",
        "step",
        "steps",
        "than",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "was",
        "when",
        "which",
        "will",
        "with",
        "would",
    ]
)


class _Given(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class GivenEvidence(_Given):
    """One piece of evidence, as a reviewer gives it."""

    form: Literal["quote", "command", "file"]
    text: str
    step: str = ""
    path: str = ""
    line: int = 0


class GivenFinding(_Given):
    """A flaw, as a reviewer gives it."""

    severity: Severity
    steps: tuple[str, ...] = ()
    text: str = Field(min_length=1)
    change: str = ""
    question: str = ""
    evidence: tuple[GivenEvidence, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a reviewer said from one angle. `unreadable` counts what could not be read of it."""

    findings: tuple[GivenFinding, ...]
    resolved: tuple[int, ...]
    unreadable: int = 0


def read_answer(text: str) -> Answer | None:
    """What an answer says; None if it has not the form that was asked for."""
    found = re.search(r"\{.*\}", text, re.DOTALL)
    try:
        data = json.loads(found[0]) if found else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("findings"), list):
        return None
    findings, unreadable = [], 0
    for each in data["findings"]:
        try:
            findings.append(GivenFinding.model_validate(each))
        except ValidationError:
            unreadable += 1
    earlier = data.get("earlier")
    said = earlier if isinstance(earlier, list) else []
    resolved = [
        each["number"]
        for each in said
        if isinstance(each, dict) and each.get("resolved") is True and type(each.get("number")) is int
    ]
    unreadable += max(0, len(findings) - MOST_FOUND)
    return Answer(tuple(findings[:MOST_FOUND]), tuple(resolved), unreadable)


@dataclass(frozen=True)
class Draft:
    """A finding that has no number yet; `refuted` says why what was given as evidence is none."""

    angle: str
    severity: Severity
    place: str
    text: str
    change: str
    evidence: str = ""
    cites: tuple[str, ...] = ()
    refuted: str = ""
    question: str = ""
    by: str = ""
    key: str = field(default="")

    @property
    def proven(self) -> bool:
        """Whether it has evidence."""
        return bool(self.evidence)

    def said(self) -> dict[str, object]:
        """The fields of grill.finding that it gives."""
        return {
            "angle": self.angle,
            "key": self.key,
            "severity": self.severity,
            "text": self.text,
            "evidence": self.evidence,
            "change": self.change,
            "by": self.by,
            "place": self.place,
            "cites": list(self.cites),
            "refuted": self.refuted,
            "question": self.question,
        }


def of_flaw(flaw: Flaw) -> Draft:
    """A draft of what the program proved."""
    return Draft(
        flaw.angle,
        flaw.severity,
        flaw.place,
        flaw.text,
        flaw.change,
        flaw.evidence,
        tuple(flaw.cites),
        key=flaw.key,
    )


def of_given(
    given: GivenFinding, angle: str, by: str, target: Target, sources: Mapping[str, str], *, may_block: bool
) -> Draft:
    """A draft of what a reviewer raised; it has evidence only if all that it gave holds.

    `sources` are the files that reviewers were shown, as they were. Where they `may_block` nothing, what is blocking
    for them is major.
    """
    problems = [f"there is no step {name!r}" for name in given.steps if target.step(name) is None]
    checked = [_checked(each, target, sources) for each in given.evidence]
    problems += [each.problem for each in checked if each.problem]
    if not given.evidence:
        problems.append("it gave none")
    steps = [name for name in given.steps if target.step(name) is not None]
    files = [each.path for each in given.evidence if each.form == "file" and each.path in sources]
    named = [each.step for each in given.evidence if target.step(each.step) is not None]
    place = place_of(steps or named) or next(iter(files), WHOLE)
    text = " ".join(given.text.split())
    digest = blake2b(" ".join(sorted(_words(text))).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return Draft(
        angle,
        "major" if given.severity == "blocking" and not may_block else given.severity,
        place,
        text,
        " ".join(given.change.split()),
        "" if problems else "; ".join(each.shown for each in checked),
        () if problems else tuple(each.cite for each in checked),
        "; ".join(problems) if given.evidence else "",
        " ".join(given.question.split()),
        by,
        f"{angle}|{place}|{digest}",
    )


@dataclass(frozen=True)
class _Checked:
    """Evidence that was looked at: what it shows, how it is compared, or why it is none."""

    shown: str = ""
    cite: str = ""
    problem: str = ""


def _checked(given: GivenEvidence, target: Target, sources: Mapping[str, str]) -> _Checked:
    flat = " ".join(given.text.split())
    told = flat[:MOST_QUOTED]
    if given.form == "command":
        if flat not in [" ".join(command.split()) for command in target.commands]:
            return _Checked(problem=f"`{told}` is none of its commands")
        step = target.step(given.step)
        if given.step and (step is None or flat not in [" ".join(each.split()) for each in step["accept"]]):
            return _Checked(problem=f"`{told}` is no command of {given.step}")
        return _Checked(f"`{told}`", cited_command(flat))
    if len(flat.replace(" ", "")) < _LEAST_QUOTED and given.form == "quote":
        return _Checked(problem=f"{told!r} is too short to show anything")
    if given.form == "quote":
        step = target.step(given.step)
        if given.step and step is None:
            return _Checked(problem=f"there is no step {given.step!r}")
        within = " ".join((target.shown if step is None else _words_of(step)).split())
        if flat not in within:
            return _Checked(problem=f"it does not say {told!r}")
        return _Checked(f"it says {told!r}", f"quote {flat}")
    lines = _lines(sources.get(given.path, ""))
    if not lines:
        return _Checked(problem=f"{given.path or 'no file'} was not shown, or is not there")
    wanted = given.text.strip("\n").split("\n")
    there = [lines.get(given.line + offset) for offset in range(len(wanted))]
    if not flat or any(a is None or a.split() != b.split() for a, b in zip(there, wanted, strict=True)):
        return _Checked(problem=f"{given.path}:{given.line} does not say that")
    return _Checked(f"{given.path}:{given.line} {told!r}", f"file {given.path}:{given.line}")


def _lines(numbered: str) -> dict[int, str]:
    """The lines of a file as `read` shows it, by number."""
    matches = (_LINE.match(line) for line in numbered.split("\n"))
    return {int(found[1]): found[2] for found in matches if found is not None}


def _words_of(step: Mapping[str, Any]) -> str:
    risk = step.get("risk") or ""
    said = [step["name"], step["goal"], *step["accept"], *step["reads"], *step["writes"], *step["after"]]
    return "\n".join([*map(str, said), risk if isinstance(risk, str) else f"{risk['level']}: {risk['why']}"])


# --- one thing, raised twice --------------------------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    found = (word.removesuffix("s") for word in _WORD.findall(text.lower()) if len(word) > 2)
    return frozenset(word for word in found if word not in _EMPTY_WORDS)


def same(draft: Draft, known: GrillFindingRecord) -> bool:
    """Whether a draft and a finding are one thing: about the same place, and of the same meaning.

    They mean the same where they have half of their words in common; or cite one thing, and come from one angle or have
    a quarter of their words in common.
    """
    if draft.place != known.place:
        return False
    if not draft.by and not known.by:
        # What the program proves it knows by its key.
        return draft.key == known.key
    mine, theirs = _words(draft.text), _words(known.text)
    share = len(mine & theirs) / len(mine | theirs) if mine | theirs else 1.0
    cited = bool(set(draft.cites) & set(known.cites))
    return share >= SAME_WORDS or (cited and (draft.angle in known.angles or share >= SAME_WORDS_CITED))


def find_same(draft: Draft, known: Mapping[int, GrillFindingRecord]) -> int | None:
    """The finding that the draft is, of those that are `known`; the first one, if there are several."""
    return next((number for number, each in known.items() if same(draft, each)), None)


# --- what is told of a second attack ------------------------------------------------------------------------


def file_part(path: str) -> str:
    """The name of a file among the parts of what was shown: no step is called like that."""
    return f"file {path}"


def unchanged(place: str, now: Mapping[str, str], before: Mapping[str, str] | None) -> bool:
    """Whether what a finding is about is as it was when it was attacked `before` (None: it was not)."""
    if before is None:
        return False
    parts = place.split(" + ") if place else [WHOLE]
    names = [part if part in before else file_part(part) for part in parts]
    return all(name in before and now.get(name) == before[name] for name in names)


def gone(place: str, now: Mapping[str, str], before: Mapping[str, str]) -> bool:
    """Whether a step that a finding is about is there no more."""
    return bool(place) and any(part in before and part not in now for part in place.split(" + "))


def still_there(
    number: int,
    finding: GrillFindingRecord,
    resolved: Iterable[int],
    keys: Iterable[str],
    now: Mapping[str, str],
    before: Mapping[str, str],
) -> bool:
    """Whether a finding of an earlier attack stands.

    What the program proved stands as long as it proves it (`keys`). What a reviewer raised is resolved where the steps
    that it is about are gone; or where a reviewer says so (`resolved`) and they have changed, for a word alone resolves
    nothing.
    """
    if not finding.by:
        return finding.key in set(keys)
    if gone(finding.place, now, before):
        return False
    return number not in set(resolved) or unchanged(finding.place, now, before)
