"""What the events of attacks on a plan hold: what was attacked, each flaw with its evidence, and the user's answer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from musecode_jupyter.log.payload import Payload


class GrillBegun(Payload):
    """A version of a plan is attacked; the seq of this event is the number of the attack."""

    plan: int
    version: int
    digest: str


class GrillFinding(Payload):
    """A flaw; the seq of this event is its number. One without evidence is an opinion."""

    grill: int
    angle: str
    key: str = Field(description="by which it is known again in another version")
    severity: Literal["blocking", "major", "minor"]
    text: str
    evidence: str = Field(default="", description="what shows it, as the program found it; empty: an opinion")
    change: str = Field(description="what would mend the plan")


class GrillAnswered(Payload):
    """What the user says to finding `finding`."""

    finding: int
    answer: Literal["accepted", "rejected", "answered"]
    text: str = ""
    claim: int | None = Field(default=None, description="seq of claim.asserted, of what the user decided")


class GrillEnded(Payload):
    """All angles were tried: what was found anew, what of before stands no more, and what still does."""

    grill: int
    angles: list[str]
    found: list[int]
    resolved: list[int]
    remain: list[int]


GRILL_KINDS: dict[str, type[Payload]] = {
    "grill.begun": GrillBegun,
    "grill.finding": GrillFinding,
    "grill.answered": GrillAnswered,
    "grill.ended": GrillEnded,
}
