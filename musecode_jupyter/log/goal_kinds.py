"""What a goal's typed clauses, their verdicts, and the events of limits, stalls and the queue say; part of `kinds`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from musecode_jupyter.log.payload import Check, Payload


class Holdout(Payload):
    """A file that agents never see; its content is the event's blob `blob`."""

    source: str = Field(description="where the user keeps it")
    place: str = Field(description="its path in the clean checkout in which the harness judges")
    blob: str = Field(description="name of the blob of this event that has its content")
    digest: str
    size: int


class Metric(Payload):
    """A measured quantity that must clear a target."""

    text: str = Field(description="as the user wrote it")
    name: str
    op: Literal[">=", "<="]
    target: float
    baseline: str = Field(default="", description="what it is compared with, as written; empty: with nothing")
    commit: str = Field(default="", description="the commit of `baseline`, resolved when the clause was set")


class GoalClauses(Payload):
    """What decides a goal beside its verify commands and limits, frozen when it is set; the user alone edits it."""

    forbid: list[str] = Field(default_factory=list, description="`import NAME`, or patterns of paths")
    holdout: list[Holdout] = Field(default_factory=list)
    metrics: list[Metric] = Field(default_factory=list)
    measure: str = Field(default="", description="the command that prints NAME=value for the metrics")
    reserve: float = Field(
        default=0.0, description="share of each limit that only the last verification may use, from 0 to below 1"
    )


class ClauseVerdict(Payload):
    """What one clause came to on the judged tree."""

    kind: Literal["verify", "forbid", "metric"]
    clause: str
    passed: bool
    why: str = ""
    value: float | None = Field(default=None, description="of a metric: the estimate")
    low: float | None = Field(default=None, description="lower bound of its 95% confidence interval")
    high: float | None = None
    runs: int = 0


class GoalWarned(Payload):
    """A share of a limit is used: 50, 80 or 95 percent, each told once for a limit as it is."""

    goal: int
    limit: Literal["microusd", "tokens", "calls", "hours", "steps"]
    percent: Literal[50, 80, 95]
    used: int | float = Field(description="whole, but for hours")
    of: int | float


class GoalExhausted(Payload):
    """The work has used all of a limit but the reserve: what there is gets the last verification."""

    goal: int
    limit: str
    why: str


class GoalNudged(Payload):
    """Nothing has moved for a while, or one call is made again and again; `text` tells the agent."""

    goal: int
    agent: str = Field(description="who is told")
    step: Literal["other idea", "profile", "same call"]
    text: str


class GoalQueued(Payload):
    """A goal that begins when those before it have ended; the seq of this event is its number until then."""

    spec: dict[str, Any] = Field(description="text, clauses and limits as the user gave them")


class GoalDequeued(Payload):
    """A queued goal waits no more, and does not begin: it was cleared, or could not begin."""

    queued: int
    why: str


class DraftBegun(Payload):
    """The user wants a goal and names nothing that decides it: the lead proposes clauses. The seq is its number."""

    text: str = Field(description="what the user said")
    spec: dict[str, Any] = Field(description="the goal as the user gave it: text, limits, clauses of their own")
    agent: str
    commit: str = Field(description="the user's last commit, on which what is proposed is tried")
    message: str = Field(description="how it is put to the agent")


class DraftChecked(Payload):
    """What was proposed was tried on a clean checkout of `tree`."""

    draft: int
    agent: str = Field(description="who is told")
    commit: str
    tree: str
    checks: list[Check]
    denied: str = Field(default="", description="why the commands were not run; empty if they were")
    report: str = Field(default="", description="why it goes back to its author; empty if it does not")


class DraftProposed(Payload):
    """Clauses for the user to confirm; nothing holds because of this event."""

    draft: int
    digest: str = Field(description="BLAKE2b-128 of `document`")
    document: str = Field(description="the clauses as canonical JSON, each with how its trial ended")


class DraftConfirmed(Payload):
    """The user takes the clauses, as they were shown or with changes of their own: what the goal is then set with."""

    draft: int
    digest: str = Field(description="of what was shown")
    verify: list[str]
    clauses: dict[str, Any] = Field(description="all clauses but verify, as options")
    changed: list[str] = Field(description="the kinds of clauses that the user gave otherwise than they were proposed")


class DraftCancelled(Payload):
    """The user wants no goal of this."""

    draft: int


class DraftStopped(Payload):
    """Asking for clauses ended without any."""

    draft: int
    state: Literal["stopped", "interrupted", "budget", "stalled", "error"]
    why: str


GOAL_KINDS: dict[str, type[Payload]] = {
    "goal.warned": GoalWarned,
    "goal.exhausted": GoalExhausted,
    "goal.nudged": GoalNudged,
    "goal.queued": GoalQueued,
    "goal.dequeued": GoalDequeued,
    "draft.begun": DraftBegun,
    "draft.checked": DraftChecked,
    "draft.proposed": DraftProposed,
    "draft.confirmed": DraftConfirmed,
    "draft.cancelled": DraftCancelled,
    "draft.stopped": DraftStopped,
}
