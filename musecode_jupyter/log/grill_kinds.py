"""What the events of attacks hold: what is attacked, flaws with their evidence, angles, and the user's answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from musecode_jupyter.log.payload import Payload

Target = Literal["plan", "graph", "goal", "text"]
Severity = Literal["blocking", "major", "minor"]


class GrillBegun(Payload):
    """Something is attacked; the seq of this event is the number of the attack."""

    plan: int | None = Field(default=None, description="seq of the plan that is attacked, if it is one")
    version: int = 0
    digest: str = Field(description="of what is attacked, as it stands")
    target: Target = "plan"
    goal: int | None = Field(default=None, description="whose text and clauses, or whose task graph, is attacked")
    scope: str = Field(default="", description="by which another attack on the same thing is known; empty: the plan")
    document: str = Field(default="", description="what is attacked as canonical JSON, unless it is a plan")
    moved: list[str] = Field(default_factory=list, description="what has changed of a plan's ground")
    reviewed: bool = Field(default=False, description="whether a model looks at it too")
    why: str = Field(default="", description="why no model does")


class GrillResumed(Payload):
    """An attack that was stopped or cut off goes on: what was tried is not tried again."""

    grill: int
    reviewed: bool = Field(default=False, description="whether a model looks at what is attacked")


class GrillShown(Payload):
    """What reviewers are shown: by each part its digest, by which a later attack knows what has changed."""

    grill: int
    parts: dict[str, str]
    left_out: list[str] = Field(default_factory=list, description="files that are not shown: no room, or a secret")


class GrillFinding(Payload):
    """A flaw; the seq of this event is its number. One without evidence is an opinion, and blocks nothing."""

    grill: int
    angle: str
    key: str = Field(description="by which it is known again in another version")
    severity: Severity
    text: str
    evidence: str = Field(default="", description="what shows it, as the program checked it; empty: an opinion")
    change: str = Field(description="what would mend it")
    by: str = Field(default="", description="the reviewer that raised it; empty: the program proved it")
    place: str = Field(default="", description="the steps or the file that it is about; empty: the whole")
    cites: list[str] = Field(default_factory=list, description="what it cites, in a form that can be compared")
    refuted: str = Field(default="", description="why what it gave as evidence is none")
    question: str = Field(default="", description="what only the user can say about it")


class GrillJoined(Payload):
    """Another angle came to a finding that there is already."""

    grill: int
    finding: int
    angle: str
    severity: Severity
    evidence: str = ""
    by: str = ""


class GrillAngle(Payload):
    """What one angle came to. `answer` is the model.completed that it was read from."""

    grill: int
    angle: str
    by: str = ""
    state: Literal["found", "nothing", "failed", "not tried", "does not apply"]
    found: list[int] = Field(default_factory=list)
    joined: list[int] = Field(default_factory=list)
    again: int = Field(default=0, description="findings that were settled or stand already")
    kept_back: int = Field(default=0, description="opinions on what has not changed since it was attacked before")
    unreadable: int = Field(default=0, description="findings that could not be read")
    why: str = ""
    completion: int | None = Field(default=None, description="seq of model.completed, in which the reviewer answered")
    resolved: list[int] = Field(default_factory=list, description="of before, what the reviewer says is resolved")


class GrillAsked(Payload):
    """The user is asked one thing: finding `finding`, or question `question` of the plan."""

    grill: int
    finding: int | None = None
    question: int | None = None
    text: str


class GrillAnswered(Payload):
    """What the user says to finding `finding`."""

    finding: int
    answer: Literal["accepted", "rejected", "answered"]
    text: str = ""
    claim: int | None = Field(default=None, description="seq of claim.asserted, of what the user decided")


class GrillSkipped(Payload):
    """The user leaves what was asked open for now."""

    grill: int
    finding: int | None = None
    question: int | None = None


class GrillStopped(Payload):
    """An attack ended before every angle was tried: by the user, a restart, a limit, or an error."""

    grill: int
    state: Literal["stopped", "interrupted", "budget", "error"]
    why: str


class GrillEnded(Payload):
    """The attack is over: what was found anew, what of before stands no more, what still does, what was not tried."""

    grill: int
    angles: list[str]
    found: list[int]
    resolved: list[int]
    remain: list[int]
    not_tried: list[str] = Field(default_factory=list)


GRILL_KINDS: dict[str, type[Payload]] = {
    "grill.begun": GrillBegun,
    "grill.resumed": GrillResumed,
    "grill.shown": GrillShown,
    "grill.finding": GrillFinding,
    "grill.joined": GrillJoined,
    "grill.angle": GrillAngle,
    "grill.asked": GrillAsked,
    "grill.answered": GrillAnswered,
    "grill.skipped": GrillSkipped,
    "grill.stopped": GrillStopped,
    "grill.ended": GrillEnded,
}
