"""What the events of reviews and their findings say; as `kinds`, of which they are a part."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from musecode_jupyter.log.payload import Payload

Severity = Literal["blocking", "major", "minor", "note"]


class CritiquePlace(Payload):
    """Lines of one file that a finding speaks of; `side` says whether of the new tree or of that before the change."""

    path: str
    start: int = Field(description="first line, from 1; 0: the file as a whole")
    end: int
    text: str = Field(description="what stands there, shortened if it is long")
    side: Literal["new", "old"] = "new"


class CritiqueEvidence(Payload):
    """What a finding rests on, checked before it was written down."""

    form: Literal["span", "command", "hunk"] = Field(
        description="span: lines of a file of the tree; command: what a command printed; hunk: lines of the diff"
    )
    path: str = ""
    start: int = 0
    end: int = 0
    call: int | None = Field(default=None, description="the command's tool.requested")
    text: str


class CritiqueAsked(Payload):
    """A pass of a review begins: a reviewer is put a change."""

    agent: str = Field(description="the reviewer")
    emphasis: str
    goal: int | None
    task: int | None = None
    worktree: int | None = None
    base: str = Field(description="tree before the change")
    tree: str
    text: str = Field(description="how it is put to the reviewer")
    batch: int | None = Field(default=None, description="its batch.settled, if it is reviewed beside the work")


class CritiqueRaised(Payload):
    """A finding; the seq of this event is its number. Without evidence it is an opinion, which blocks nothing."""

    goal: int | None
    task: int | None = None
    worktree: int | None = None
    merge: int | None = Field(default=None, description="the merge that it was raised on")
    base: str
    tree: str
    check: str = Field(description="what kind of thing is wrong")
    severity: Severity
    place: CritiquePlace
    text: str
    why: str = Field(default="", description="why it has this severity")
    evidence: list[CritiqueEvidence]
    suggestion: str = ""
    passes: list[str] = Field(description="who raised it: passes of the review, or mechanical")
    hunk: str = Field(default="", description="the part of the diff in which the place is")


class CritiqueAnswered(Payload):
    """Somebody answered a finding. `answered`: it is no obstacle; `accepted`: it is to be done before a landing."""

    critique: int
    answer: Literal["answered", "accepted"]
    text: str = ""


class CritiqueFixed(Payload):
    """The finding does not hold of `tree` any more."""

    critique: int
    tree: str
    why: str


class CritiqueWithdrawn(Payload):
    """The finding is taken back: it was wrong, or is not wanted."""

    critique: int
    why: str = ""


class CritiqueReviewed(Payload):
    """The review of a change is complete; the same change is not reviewed again."""

    goal: int | None
    task: int | None = None
    worktree: int | None = None
    merge: int | None = None
    agent: str = Field(default="", description="whose work it is")
    base: str
    tree: str
    passes: list[str]
    raised: list[int] = Field(description="findings that are new")
    blocking: list[int] = Field(description="findings for which it cannot land")
    batch: int | None = Field(default=None, description="its batch.settled, if it was reviewed beside the work")


class BatchSettled(Payload):
    """An agent has gone on to something else after a batch of file changes: their review begins beside its work."""

    goal: int
    task: int | None = None
    worktree: int
    agent: str = Field(description="whose work it is")
    files: list[str] = Field(description="what was changed since the review before, by edits; processes may have more")
    steps: int = Field(description="model calls that each reviewer may take; 0: what is proven without a model, alone")
    why: str = Field(default="", description="why no model is asked")


class BatchClosed(Payload):
    """The review of a batch has ended."""

    batch: int
    why: str = Field(description="why it did not come to its end; empty: it did")
    again: bool = Field(default=False, description="its changes count as not reviewed")


CRITIQUE_KINDS: dict[str, type[Payload]] = {
    "critique.asked": CritiqueAsked,
    "critique.raised": CritiqueRaised,
    "critique.answered": CritiqueAnswered,
    "critique.fixed": CritiqueFixed,
    "critique.withdrawn": CritiqueWithdrawn,
    "critique.reviewed": CritiqueReviewed,
    "batch.settled": BatchSettled,
    "batch.closed": BatchClosed,
}
