"""What each kind of event says: one frozen model per kind, validated before an event is written.

A reference from one event to another (`call`, `request`, `approval`, `goal`, `worktree`, `merge`) is the
`seq` of the event that opened it, so that ids come from the order of the log alone.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from musecode_jupyter.log.claim_kinds import CLAIM_KINDS
from musecode_jupyter.log.context_kinds import CONTEXT_KINDS
from musecode_jupyter.log.critique_kinds import CRITIQUE_KINDS
from musecode_jupyter.log.follow_up_kinds import FOLLOW_UP_KINDS
from musecode_jupyter.log.goal_kinds import GOAL_KINDS, ClauseVerdict, GoalClauses
from musecode_jupyter.log.grill_kinds import GRILL_KINDS
from musecode_jupyter.log.mail_kinds import MAIL_KINDS
from musecode_jupyter.log.payload import Check, Payload
from musecode_jupyter.log.plan_kinds import PLAN_KINDS
from musecode_jupyter.log.role_kinds import ROLE_KINDS
from musecode_jupyter.log.tier_kinds import TIER_KINDS
from musecode_jupyter.log.verifier_kinds import VERIFIER_KINDS
from musecode_jupyter.log.work_kinds import WORK_KINDS


class SessionOpened(Payload):
    """A session begins."""

    session: str = Field(description="id of the session, also the name of its folder")
    workspace: str = Field(description="absolute path of the user's repository or folder")
    version: str = Field(description="version of this program")
    model: str
    api: str = Field(description="responses, chat, messages or local")
    profile: str = Field(description="driver or guided")
    approvals: str = Field(description="ask, deny or allow-workspace")
    sandbox: str = Field(default="", description="where commands run: bubblewrap, or plain with the reason")
    network: str = Field(default="", description="whether commands have the network: allow or deny")
    interactive: bool = Field(default=False, description="whether somebody can be asked")
    review: str = Field(default="", description="what is reviewed before a landing: off, mechanical or full")
    replays: int = Field(
        default=0, description="as which version of the code its commands can be issued again; 0: it cannot be told"
    )
    room: int = Field(default=0, description="tokens that a prompt may have; 0: not recorded")
    price: list[float] = Field(
        default_factory=list, description="USD per million tokens: input, input that was cached, output"
    )
    remote: bool = Field(default=True, description="whether prompts leave this machine")


class SessionResumed(Payload):
    """A new process goes on with the session."""

    version: str
    model: str
    api: str
    profile: str
    approvals: str
    sandbox: str = ""
    network: str = ""
    last_seq: int = Field(description="last event of the generation before")
    session: str = Field(default="", description="id of the session, also the name of its folder by now")
    interactive: bool = False
    review: str = ""
    replays: int = 0
    room: int = 0
    price: list[float] = Field(default_factory=list)
    remote: bool = True


class SessionMode(Payload):
    """Questions are treated in another way from here on, because work was asked for from another kind of front end."""

    approvals: str = Field(description="ask, deny or allow-workspace")
    interactive: bool = Field(description="whether somebody can be asked")


class SessionForked(Payload):
    """The events up to here are another session's; what follows is this one's alone.

    Rules that the user allowed for the session end here. Requests that were open are the other session's to settle.
    """

    parent: str = Field(description="id of the session whose records 1 to `seq` this one begins with, byte for byte")
    seq: int
    h: str = Field(description="`h` of the parent's record `seq`")
    digest: str = Field(description="as in state.digest, after event `seq`")
    slices: dict[str, str] = Field(default_factory=dict, description="digest of each slice")
    shapes: dict[str, str] = Field(default_factory=dict, description="shape of each slice, as in state.digest")
    microusd: int = Field(description="what was spent before, and is the parent's spending too")
    tokens: int
    calls: int = Field(description="model calls that were settled before")
    rewind: bool = Field(default=False, description="whether the parent ended with this, by %muse rewind")


class SessionSettled(Payload):
    """What was open where the session was forked is settled: it goes on like any other from here on."""


class SessionRewound(Payload):
    """The user went back to event `to`: work goes on in `session`; what came after `to` is kept here."""

    to: int
    session: str = Field(description="id of the session that goes on from there")


class SessionClosed(Payload):
    """The session ended in order; nothing is offered for resume."""

    reason: str


class LogRecovered(Payload):
    """Bytes of a last, never acknowledged batch were copied to quarantine and cut."""

    segment: str
    offset: int
    bytes: int
    quarantine: str


class StateDigest(Payload):
    """Digest of the folded state after event `upto`."""

    digest: str = Field(description="BLAKE2b-128 of the canonical JSON of all slices by name")
    upto: int = Field(description="seq of the event before this one")
    slices: dict[str, str] = Field(
        default_factory=dict, description="digest of each slice, so that a difference can be named"
    )
    shapes: dict[str, str] = Field(
        default_factory=dict, description="id of the form of each slice: those of other versions are not compared"
    )


class UserMessage(Payload):
    """Text of the user to an agent, as a turn of its own."""

    text: str
    to: str


class UserSteer(Payload):
    """Text of the user to an agent that may be busy; delivered between two of its steps."""

    text: str
    to: str


class UserInterrupt(Payload):
    """The user stopped something: a question, a goal, or one worker."""

    scope: str
    why: str = ""


class PictureRef(Payload):
    """A picture that goes with the text of the same event."""

    blob: str = Field(description="name of the blob among those of the event")
    caption: str
    mime: str
    width: int = Field(description="pixels")
    height: int = Field(description="pixels")


class NotebookAttached(Payload):
    """What of the user's notebook goes to an agent with the question that names this event as its cause."""

    to: str
    cell: str = Field(description="id of the cell")
    text: str
    pictures: list[PictureRef] = Field(default_factory=list)


class KernelWaiting(Payload):
    """Approved code for the user's kernel is held up, as a rule by the cell that runs."""

    call: int
    why: str


class KernelRunning(Payload):
    """Approved code begins to run in the user's kernel."""

    call: int


class AgentCreated(Payload):
    """An agent exists from here on; its name is the envelope's `agent`."""

    role: str
    profile: str
    model: str


class AgentState(Payload):
    """What the agent does now."""

    state: Literal["idle", "running", "waiting", "suspended", "retired"]
    why: str = ""


class AgentWoken(Payload):
    """An agent of the crew begins a turn; the causes are what woke it: mail, changes of files, the user."""

    why: str
    goal: int | None = Field(description="the goal that it works for, and whose limits hold; none: a question")
    place: str = Field(description="the folder that it looks at")
    worktree: int | None


class AgentSeeded(Payload):
    """The fixed head of every prompt of this agent."""

    instructions: str
    tools: list[dict[str, Any]] = Field(description="tool specifications in the order in which they are sent")


class AgentView(Payload):
    """A prompt made by the harness for one question, outside the running conversation."""

    purpose: str
    instructions: str
    items: list[dict[str, Any]]
    json_schema: dict[str, Any] | None = None
    conversation: bool = Field(
        default=False,
        description="whether the items follow the agent's conversation, with its instructions and tools; the question "
        "is not a part of it afterwards",
    )


class ModelRequested(Payload):
    """A request is about to be sent."""

    model: str
    api: str
    view: int | None = Field(description="seq of an agent.view, or none for the agent's conversation")
    items: int = Field(description="number of items of that view in the prompt")
    max_output_tokens: int
    effort: str | None = None
    temperature: float | None = None
    seed: int | None = None
    cache_key: str | None = None
    pictures: bool = Field(default=False, description="whether pictures are sent as such, or in words")
    origin: str = Field(default="", description="digest of endpoint and key, decides which reasoning items are sent")
    digest: str = Field(description="BLAKE2b-128 of the request bytes")
    bytes: int
    reserved_microusd: int
    reserved_tokens: int
    purpose: str = ""


class ModelCompleted(Payload):
    """The answer ended properly (`status` incomplete included)."""

    request: int
    status: Literal["completed", "incomplete"]
    reason: str | None = None
    items: list[dict[str, Any]]
    usage: dict[str, int] | None
    cost_microusd: int
    estimated: bool = Field(description="true where the server sent no usage and the reserve was kept")
    ttft_s: float | None
    seconds: float
    attempts: int
    served_model: str | None = None
    response_id: str | None = None


class ModelFailed(Payload):
    """The request ended in an error after all attempts."""

    request: int
    error: str
    error_kind: str
    attempts: int
    seconds: float
    cost_microusd: int = Field(default=0, description="estimate for the last attempt, if it may be charged for")
    tokens: int = Field(default=0, description="the same in tokens")


class ModelRetried(Payload):
    """One attempt failed and the request will be sent again: the same bytes, unless `digest` says otherwise."""

    request: int
    attempt: int
    error: str
    wait_s: float
    error_kind: str = ""
    cost_microusd: int = Field(default=0, description="estimate for this attempt, if it may be charged for")
    tokens: int = Field(default=0, description="the same in tokens")
    origin: str | None = Field(
        default=None, description="set where the server refused reasoning items: what is sent now has none of before"
    )
    digest: str | None = Field(default=None, description="BLAKE2b-128 of the request bytes from here on")
    bytes: int | None = None


class ModelAbandoned(Payload):
    """The outcome of the request will never be known; its reserve is kept as an estimate."""

    request: int
    why: str
    cost_microusd: int
    tokens: int = Field(default=0, description="the same in tokens")


class ToolRequested(Payload):
    """A tool call was formed, by the model (`call_id` links it to the model's item) or by the harness."""

    name: str
    arguments: dict[str, Any]
    origin: Literal["model", "harness"]
    call_id: str | None = None
    purpose: str = ""


class ToolDecided(Payload):
    """May it? `rule` names what decided."""

    call: int
    decision: Literal["allow", "deny"]
    rule: str
    approval: int | None = None


class ToolStarted(Payload):
    """Durable before the effect. `effect` is the class by which a restart treats the call."""

    call: int
    effect: Literal["read", "write", "process"]
    cwd: str
    path: str | None = None
    before: str | None = Field(default=None, description="write: digest of the file, none if it did not exist")
    after: str | None = Field(default=None, description="write: digest of the blob to be written")


class ToolFinished(Payload):
    """The one result of the call, as the model sees it."""

    call: int
    output: str
    ok: bool
    exit: int | None = None
    seconds: float = 0.0
    output_path: str | None = Field(default=None, description="file in the session folder with the whole output")
    output_digest: str = Field(default="", description="BLAKE2b-256 of that file; empty up to version 3")
    fenced: bool = Field(default=False, description="whether a prompt shows the output between marks, as data")
    pictures: list[PictureRef] = Field(default_factory=list)
    files: Literal["", "same", "kept", "unknown"] = Field(
        default="",
        description="what a process did to the files of its worktree: nothing, or what worktree.snapshotted keeps; "
        "empty: nobody looked",
    )


class ToolFailed(Payload):
    """The call could not be carried out; `output` tells the model why."""

    call: int
    output: str
    broken_off: bool = Field(default=False, description="whether a message to the agent ended it before its time")


class ToolCancelled(Payload):
    """The call was ended by the user, a limit or a stop."""

    call: int
    output: str


class ToolUnknown(Payload):
    """A process was cut off by a crash; whether it had effects is not known; never run again by itself."""

    call: int
    output: str


class ToolReconciled(Payload):
    """What a restart found out about an open call."""

    call: int
    finding: str


class ApprovalRequested(Payload):
    """A question to the user. `digest` covers all that was shown and all that will run."""

    action: str
    rule: str = Field(description="name of the session rule that would cover it")
    digest: str
    shown: dict[str, Any]
    call: int | None = None


class ApprovalGranted(Payload):
    """The user's yes. `scope` is once, session or workspace."""

    approval: int
    by: str
    scope: Literal["once", "session", "workspace"]


class ApprovalDenied(Payload):
    """The user's no."""

    approval: int
    by: str
    why: str = ""


class ApprovalExpired(Payload):
    """The question is gone; an answer to it has no effect any more."""

    approval: int
    why: str


class RuleAdded(Payload):
    """The user allowed an action: for the rest of the session, or in this repository."""

    rule: str = Field(description="the rule in words")
    action: str
    approval: int | None = None
    scope: Literal["session", "workspace"] = "session"
    form: Literal["", "exact", "prefix", "tool", "landing", "role", "tier", "label"] = ""
    text: str = Field(
        default="", description="the command, its first words, the tool, the branch, the role, the tier, or the path"
    )
    words: list[str] = Field(
        default_factory=list,
        description="prefix: the words that a command must begin with; tier: what the user typed; label: the label",
    )
    programs: list[str] = Field(
        default_factory=list,
        description="what the shell and each command's name led to; role, tier: the digest of its file",
    )
    place: Literal["worktree", "checkout"] = "worktree"
    by: str = ""
    since: str = ""


class RuleRemoved(Payload):
    """A rule is in force no more; `rule` is the seq of its rule.added."""

    rule: int
    by: str


class RepositoryChange(Payload):
    """One thing that is not as before: a ref, HEAD, the index, an entry of the stash. None stands for not there."""

    what: str
    before: str | None
    after: str | None
    undo: str = Field(description="shell command that puts it back")


class RepositoryTouched(Payload):
    """The user's own repository changed while a command ran without a sandbox."""

    call: int
    changes: list[RepositoryChange]


class FileObserved(Payload):
    """An agent saw this content of this file."""

    worktree: int | None
    path: str
    digest: str
    size: int
    call: int | None = None


class FileChanged(Payload):
    """A file has a new content; the blobs `before` and `after` hold both."""

    worktree: int | None
    path: str
    before: str | None
    after: str | None
    call: int | None = None


class GoalSet(Payload):
    """A goal and its clauses, frozen at start. Limits are per goal."""

    text: str
    verify: list[str]
    agent: str
    branch: str | None = Field(description="the user's branch; none when HEAD is detached, or not known yet")
    base: str = Field(description="the user's commit from which the work starts; empty: goal.based gives it")
    microusd: int | None = None
    tokens: int | None = None
    calls: int | None = None
    hours: float | None = None
    steps: int | None = None
    model: str = ""
    workers: int = Field(
        default=1, description="most workers side by side; more than one has the goal split into tasks"
    )
    shadow: bool = Field(
        default=False, description="the folder is in no repository: a private one outside it keeps its versions"
    )
    start: Literal["head", "dirty", "ask"] = Field(
        default="head",
        description="head: from the commit; dirty: from the files as they are, ask: as the user answers; goal.based "
        "tells what came of both",
    )
    clauses: GoalClauses = Field(default_factory=GoalClauses)
    queued: int | None = Field(default=None, description="the goal.queued of which it has come")
    draft: int | None = Field(default=None, description="the draft.begun whose clauses the user confirmed")


class GoalBased(Payload):
    """What the work starts from, where that was to be asked or made after goal.set."""

    goal: int
    base: str = Field(description="the user's commit")
    branch: str | None = Field(description="the branch to land on")
    snapshot: str = Field(
        default="", description="commit upon base with the files as they were, in which the work starts; else base"
    )
    kept: str = Field(default="", description="ref that keeps the snapshot")
    files: list[str] = Field(default_factory=list, description="what differs between base and snapshot")
    left_out: list[str] = Field(default_factory=list, description="changed, and not in the snapshot")


class GoalLimits(Payload):
    """Limits of a goal; a missing one is no limit."""

    microusd: int | None = None
    tokens: int | None = None
    calls: int | None = None
    hours: float | None = None
    steps: int | None = None


class GoalEdited(Payload):
    """The user gave the goal other limits, another text or other clauses. Nobody but the user does."""

    goal: int
    agent: str
    old: GoalLimits
    new: GoalLimits = Field(description="all limits that hold from here on")
    text: str | None = Field(default=None, description="the new text, of which the agent is told; none: it stays")
    verify: list[str] | None = Field(default=None, description="all verify commands from here on; none: they stay")
    clauses: GoalClauses | None = Field(default=None, description="all clauses from here on; none: they stay")


class GoalCleared(Payload):
    """The user wants no more of this goal: it cannot be resumed. Its branch and worktree are kept."""

    goal: int


class GoalPaused(Payload):
    """The goal rests until it is resumed."""

    goal: int
    why: str


class GoalResumed(Payload):
    """The goal goes on."""

    goal: int
    why: str = ""
    branch: str | None = Field(default=None, description="the branch to land on from here on; none: as before")


class GoalClaimed(Payload):
    """The agent says that it is done; nothing more than a claim."""

    goal: int
    text: str


class GoalJudged(Payload):
    """The harness ran the verify commands on a clean checkout of `tree`: at the start, or before landing."""

    goal: int
    tree: str
    commit: str
    where: Literal["baseline", "landing"]
    passed: bool
    checks: list[Check]
    report: str = Field(default="", description="what the agent is told when it did not pass")
    clauses: list[ClauseVerdict] = Field(default_factory=list, description="each clause but the verify commands")


class GoalMet(Payload):
    """All clauses hold on the landed tree. Written by the harness only."""

    goal: int
    tree: str
    commit: str
    checks: list[Check]
    handover: list[str] = Field(default_factory=list, description="as in goal.stopped")


class GoalStopped(Payload):
    """The goal ended without being met; it can be resumed."""

    goal: int
    state: Literal["budget", "stalled", "blocked", "wedged", "stopped", "error"]
    why: str
    ladder: bool = Field(default=False, description="it is the last step after the agent was told of a stall")
    handover: list[str] = Field(default_factory=list, description="what was done, what is left, what to do, how")


class BudgetSet(Payload):
    """All limits of a scope from here on; a missing one is no limit. Those of goals are in goal.set and goal.edited."""

    scope: Literal["session", "agent", "task", "day"] = "session"
    name: str = Field(default="", description="the agent, or the number of the task")
    microusd: int | None = None
    tokens: int | None = None
    calls: int | None = Field(default=None, description="tool calls")
    steps: int | None = Field(default=None, description="model calls")
    hours: float | None = Field(
        default=None, description="in which a process has the session open; of an agent or task: of work"
    )
    processes: int | None = Field(default=None, description="processes that tools start")
    disk: int | None = Field(default=None, description="bytes that the session's folder and worktrees hold")


class BudgetExceededEvent(Payload):
    """A step was refused because it would have gone over a limit."""

    scope: str
    why: str
    needed: float | None = Field(
        default=None, description="the least limit that would have let the step pass; of money, micro-dollars"
    )


class SecretRedacted(Payload):
    """Secrets were cut out of a text before it was written; says which patterns, never what."""

    patterns: list[str]
    where: str


KINDS: dict[str, type[Payload]] = {
    "session.opened": SessionOpened,
    "session.resumed": SessionResumed,
    "session.mode": SessionMode,
    "session.forked": SessionForked,
    "session.settled": SessionSettled,
    "session.rewound": SessionRewound,
    "session.closed": SessionClosed,
    "log.recovered": LogRecovered,
    "state.digest": StateDigest,
    "user.message": UserMessage,
    "user.steer": UserSteer,
    "user.interrupt": UserInterrupt,
    "notebook.attached": NotebookAttached,
    "kernel.waiting": KernelWaiting,
    "kernel.running": KernelRunning,
    "agent.created": AgentCreated,
    "agent.state": AgentState,
    "agent.woken": AgentWoken,
    "agent.seeded": AgentSeeded,
    "agent.view": AgentView,
    "model.requested": ModelRequested,
    "model.retried": ModelRetried,
    "model.completed": ModelCompleted,
    "model.failed": ModelFailed,
    "model.abandoned": ModelAbandoned,
    "tool.requested": ToolRequested,
    "tool.decided": ToolDecided,
    "tool.started": ToolStarted,
    "tool.finished": ToolFinished,
    "tool.failed": ToolFailed,
    "tool.cancelled": ToolCancelled,
    "tool.unknown": ToolUnknown,
    "tool.reconciled": ToolReconciled,
    "approval.requested": ApprovalRequested,
    "approval.granted": ApprovalGranted,
    "approval.denied": ApprovalDenied,
    "approval.expired": ApprovalExpired,
    "rule.added": RuleAdded,
    "rule.removed": RuleRemoved,
    "repository.touched": RepositoryTouched,
    "file.observed": FileObserved,
    "file.changed": FileChanged,
    "goal.set": GoalSet,
    "goal.based": GoalBased,
    "goal.edited": GoalEdited,
    "goal.cleared": GoalCleared,
    "goal.paused": GoalPaused,
    "goal.resumed": GoalResumed,
    "goal.claimed": GoalClaimed,
    "goal.judged": GoalJudged,
    "goal.met": GoalMet,
    "goal.stopped": GoalStopped,
    **WORK_KINDS,
    **CLAIM_KINDS,
    **MAIL_KINDS,
    **ROLE_KINDS,
    **CONTEXT_KINDS,
    **CRITIQUE_KINDS,
    **VERIFIER_KINDS,
    **FOLLOW_UP_KINDS,
    **PLAN_KINDS,
    **GOAL_KINDS,
    **GRILL_KINDS,
    **TIER_KINDS,
    "budget.set": BudgetSet,
    "budget.exceeded": BudgetExceededEvent,
    "secret.redacted": SecretRedacted,
}


def kinds_with(*prefixes: str) -> frozenset[str]:
    """All kinds that begin with one of `prefixes`."""
    return frozenset(kind for kind in KINDS if kind.startswith(prefixes))
