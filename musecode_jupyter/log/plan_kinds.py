"""What the events of plans hold: what was asked for, each version with its digest, and what the user said to it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from musecode_jupyter.log.payload import Check, Payload


class PlanBegun(Payload):
    """The user wants a plan; the seq of this event is its number. It is looked around for and written, no more."""

    text: str = Field(description="what the user said")
    verify: list[str] = Field(description="commands that the user wants to pass in the end")
    agent: str
    commit: str = Field(description="the user's last commit, from which work on it will start")
    branch: str | None = None
    message: str = Field(description="how it is put to the agent; empty where the program makes the plan by itself")


class PlanEdited(Payload):
    """The user wants the plan changed: another version follows."""

    plan: int
    text: str
    agent: str
    commit: str
    message: str


class PlanResumed(Payload):
    """Work on a plan that was cut off goes on."""

    plan: int


class PlanChecked(Payload):
    """The steps' commands were run on a clean checkout of `tree`."""

    plan: int
    agent: str = Field(description="who is told")
    commit: str
    tree: str
    checks: list[Check]
    denied: str = Field(default="", description="why the commands were not run; empty if they were")
    report: str = Field(default="", description="why the plan goes back to its author; empty if it does not")


class PlanProposed(Payload):
    """A version of the plan, for the user to approve; nothing was changed for it."""

    plan: int
    version: int
    digest: str = Field(description="BLAKE2b-128 of `document`")
    document: str = Field(description="the plan as canonical JSON: steps, questions, evidence, ground, trials")


class PlanAnswered(Payload):
    """The user answers question `question` (from 1) of a version; what they said is a claim too."""

    plan: int
    version: int
    question: int
    text: str
    claim: int | None = Field(default=None, description="seq of claim.asserted")


class PlanApproved(Payload):
    """The user agrees to exactly this: the version's document and the answers to its questions."""

    plan: int
    version: int
    digest: str


class PlanRejected(Payload):
    """The user does not want the plan."""

    plan: int
    version: int
    why: str


class PlanCancelled(Payload):
    """The user wants no plan of this any more."""

    plan: int


class PlanStopped(Payload):
    """Writing the plan ended short of a new version; it can go on."""

    plan: int
    state: Literal["stopped", "interrupted", "budget", "stalled", "error"]
    why: str


class PlanRun(Payload):
    """A goal is worked on that has its text and tasks from the approved plan."""

    plan: int
    version: int
    goal: int
    moved: list[str] = Field(description="what of its ground had moved, and the user knew")


class PlanSaved(Payload):
    """A version was copied into the repository, where no such file was, because the user said so."""

    plan: int
    version: int
    path: str


PLAN_KINDS: dict[str, type[Payload]] = {
    "plan.begun": PlanBegun,
    "plan.edited": PlanEdited,
    "plan.resumed": PlanResumed,
    "plan.checked": PlanChecked,
    "plan.proposed": PlanProposed,
    "plan.answered": PlanAnswered,
    "plan.approved": PlanApproved,
    "plan.rejected": PlanRejected,
    "plan.cancelled": PlanCancelled,
    "plan.stopped": PlanStopped,
    "plan.run": PlanRun,
    "plan.saved": PlanSaved,
}
