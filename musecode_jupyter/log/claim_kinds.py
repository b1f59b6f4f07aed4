"""What the events of claims hold: what agents believe, what it rests on, and how it is doubted or taken back."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from musecode_jupyter.log.payload import Payload

ClaimType = Literal["location", "behaviour", "count", "absence", "test result", "measurement", "decision"]
EvidenceKind = Literal["file", "command", "search"]


class ClaimEvidence(Payload):
    """One thing that a claim rests on, as this program found it when it looked.

    file: lines of a file that the agent saw; command: a command that it ran; search: a query that was run again.
    """

    kind: EvidenceKind
    holds: bool = Field(description="whether what was found is what was cited")
    refutes: bool = Field(default=False, description="whether what was found says that the claim is not so")
    why: str = Field(default="", description="what was found instead")
    event: int | None = Field(default=None, description="seq of the event by which it was seen")
    worktree: int | None = Field(default=None, description="where; none: the user's checkout")
    path: str = Field(default="", description="file: its path; search: the folder")
    first: int = Field(default=0, description="first line, from 1")
    last: int = 0
    text: str = Field(default="", description="the lines, or the line of output that is quoted; long ones cut")
    span: str = Field(default="", description="BLAKE2b-256 of the lines")
    digest: str = Field(default="", description="BLAKE2b-256 of the file, or of the command's output")
    command: str = ""
    exit: int | None = None
    tree: str = Field(default="", description="command: the tree on which it ran, if it was a clean checkout")
    pattern: str = ""
    glob: str = ""
    count: int | None = Field(default=None, description="search: how many lines match")


class ClaimAsserted(Payload):
    """The envelope's `agent` says that something is so; the seq of this event is the claim's number."""

    type: ClaimType
    text: str
    evidence: list[ClaimEvidence]
    supports: list[list[int]] = Field(
        default_factory=list, description="sets of other claims: it rests on all of those of at least one set"
    )
    worktree: int | None = None
    call: int | None = Field(default=None, description="the tool call by which it was said; none: this program's own")


class ClaimChecked(Payload):
    """Its evidence was looked at again and stands, perhaps at another place: as `evidence` says, in the same order."""

    claim: int
    evidence: list[ClaimEvidence]
    call: int | None = None


class ClaimVerified(Payload):
    """The envelope's `agent`, who is not its author, found it to be so, by evidence of its own."""

    claim: int
    evidence: list[ClaimEvidence]
    why: str = ""
    call: int | None = None


class ClaimChallenged(Payload):
    """The envelope's `agent`, who is not its author, found it not to be so, by evidence of its own."""

    claim: int
    evidence: list[ClaimEvidence]
    why: str = ""
    call: int | None = None


class ClaimStaled(Payload):
    """Somebody looked, and what it rests on is not as it was; whether it still is so is not known."""

    claim: int
    why: str
    call: int | None = None


class ClaimRetracted(Payload):
    """Its author, or the user, takes it back."""

    claim: int
    why: str
    call: int | None = None


CLAIM_KINDS: dict[str, type[Payload]] = {
    "claim.asserted": ClaimAsserted,
    "claim.checked": ClaimChecked,
    "claim.verified": ClaimVerified,
    "claim.challenged": ClaimChallenged,
    "claim.staled": ClaimStaled,
    "claim.retracted": ClaimRetracted,
}
