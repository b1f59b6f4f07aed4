"""What each kind of event says: one frozen model per kind, validated before an event is written.

A reference from one event to another (`call`, `request`, `approval`, `goal`, `worktree`, `merge`) is the
`seq` of the event that opened it, so that ids come from the order of the log alone.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Payload(BaseModel):
    """The `data` of an event."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Check(Payload):
    """One verify command that the harness ran: `call` is its tool call."""

    command: str
    call: int
    passed: bool
    exit: int | None = None
    seconds: float = 0.0


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


class SessionMode(Payload):
    """Questions are treated in another way from here on, because work was asked for from another kind of front end."""

    approvals: str = Field(description="ask, deny or allow-workspace")
    interactive: bool = Field(description="whether somebody can be asked")


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


class UserMessage(Payload):
    """Text of the user to an agent, as a turn of its own."""

    text: str
    to: str


class UserSteer(Payload):
    """Text of the user to an agent that may be busy; delivered between two of its steps."""

    text: str
    to: str


class UserInterrupt(Payload):
    """The user stopped something."""

    scope: str


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
    reserved_usd: float
    reserved_tokens: int
    purpose: str = ""


class ModelCompleted(Payload):
    """The answer ended properly (`status` incomplete included)."""

    request: int
    status: Literal["completed", "incomplete"]
    reason: str | None = None
    items: list[dict[str, Any]]
    usage: dict[str, int] | None
    cost_usd: float
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
    cost_usd: float = Field(default=0.0, description="estimate for the last attempt, if it may be charged for")
    tokens: int = Field(default=0, description="the same in tokens")


class ModelRetried(Payload):
    """One attempt failed and the request will be sent again: the same bytes, unless `digest` says otherwise."""

    request: int
    attempt: int
    error: str
    wait_s: float
    error_kind: str = ""
    cost_usd: float = Field(default=0.0, description="estimate for this attempt, if it may be charged for")
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
    cost_usd: float
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
    fenced: bool = Field(default=False, description="whether a prompt shows the output between marks, as data")
    pictures: list[PictureRef] = Field(default_factory=list)


class ToolFailed(Payload):
    """The call could not be carried out; `output` tells the model why."""

    call: int
    output: str


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
    form: Literal["", "exact", "prefix", "tool", "landing"] = ""
    text: str = Field(default="", description="the command, its first words, the tool, or the branch")
    words: list[str] = Field(default_factory=list, description="prefix: the words that a command must begin with")
    programs: list[str] = Field(default_factory=list, description="what the shell and each command's name led to")
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
    branch: str | None = Field(description="the user's branch; none when HEAD is detached")
    base: str = Field(description="commit from which the work starts")
    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    hours: float | None = None
    steps: int | None = None
    model: str = ""
    workers: int = Field(
        default=1, description="most workers side by side; more than one has the goal split into tasks"
    )


class GoalLimits(Payload):
    """Limits of a goal; a missing one is no limit."""

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    hours: float | None = None
    steps: int | None = None


class GoalEdited(Payload):
    """The user gave the goal other limits, or another text. The clauses that decide it stay."""

    goal: int
    agent: str
    old: GoalLimits
    new: GoalLimits = Field(description="all limits that hold from here on")
    text: str | None = Field(default=None, description="the new text, of which the agent is told; none: it stays")


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


class GoalMet(Payload):
    """All clauses hold on the landed tree. Written by the harness only."""

    goal: int
    tree: str
    commit: str
    checks: list[Check]


class GoalStopped(Payload):
    """The goal ended without being met; it can be resumed."""

    goal: int
    state: Literal["budget", "stalled", "blocked", "stopped", "error"]
    why: str


class TaskCreated(Payload):
    """A task of a goal's graph; the seq of this event is its number."""

    goal: int
    name: str
    text: str = Field(description="what is to be done")
    accept: list[str] = Field(description="commands that pass once it is done")
    reads: list[str] = Field(description="paths, folders or globs that it is declared to read")
    writes: list[str]
    after: list[str] = Field(description="names of tasks whose results it needs")
    risk: str = ""
    by: Literal["user", "lead", "harness"]


class TaskLeased(Payload):
    """A worker has the task, in a worktree, for as long as this process lives."""

    goal: int
    task: int
    agent: str
    worktree: int
    text: str = Field(description="how the task is put to the worker; empty if it was told of it before")


class TaskWidened(Payload):
    """The task really reads or writes files beyond those that were declared."""

    goal: int
    task: int
    reads: list[str]
    writes: list[str]


class TaskPaused(Payload):
    """The task waits for the user."""

    goal: int
    task: int
    why: str


class TaskBounced(Payload):
    """The work did not land; `report` tells the worker, whose worktree holds the target's state by now."""

    goal: int
    task: int
    agent: str
    merge: int | None = Field(description="the merge that was sent back; none if there was nothing to merge")
    why: str
    report: str
    exclusive: bool = Field(default=False, description="from now on it runs with no other task beside it")


class TaskDone(Payload):
    """The task's work has landed by `merge`; or there was nothing to do (none)."""

    goal: int
    task: int
    merge: int | None
    commit: str


class TaskAbandoned(Payload):
    """Nobody works on the task any more; what there is stays on its branch."""

    goal: int
    task: int
    why: str


class WorktreeCreating(Payload):
    """Intent, ahead of the git change."""

    goal: int | None
    task: int | None = None
    path: str
    branch: str
    base: str


class WorktreeCreated(Payload):
    """The worktree exists."""

    worktree: int
    path: str


class WorktreeUpdated(Payload):
    """The worktree holds the user's commits up to `target`, merged with the agent's work."""

    worktree: int
    commit: str = Field(description="the merge, at which the agent's branch is now")
    target: str
    files: list[str] = Field(description="what the user's commits changed")


class WorktreeRemoving(Payload):
    """Intent, ahead of the git change."""

    worktree: int


class WorktreeRemoved(Payload):
    """The worktree is gone; everything in it was contained in `contained_in`."""

    worktree: int
    contained_in: str


class MergeEnqueued(Payload):
    """A commit of an agent waits to land on `ref`. One without a task is the whole of a goal with one worker."""

    goal: int
    commit: str
    tree: str
    ref: str
    task: int | None = Field(default=None, description="seq of task.created")
    agent: str = Field(default="", description="who did the work")
    title: str = Field(default="", description="the work in a line")
    base: str = Field(default="", description="the commit of the user's from which the work was made")
    kept: str = Field(default="", description="the branch that keeps the work")


class MergeChecked(Payload):
    """The merge with the target was computed: a tree and a commit to test, or conflicts."""

    merge: int
    target: str
    tree: str | None
    commit: str | None
    conflicts: list[str]
    suspect: list[str] = Field(
        default_factory=list, description="what the worker read and the target changed since the work's base"
    )


class MergeTested(Payload):
    """Commands ran on a clean checkout of `tree`, the merge. One that failed runs again, and then once more."""

    merge: int
    tree: str
    commit: str
    purpose: Literal["acceptance", "affected"] = Field(description="of the task itself, or of tasks landed before it")
    checks: list[Check] = Field(description="every run in order")
    passed: bool
    flaky: list[str] = Field(default_factory=list, description="commands that failed, and then passed twice")


class MergeReviewed(Payload):
    """A validator looked at the tested merge."""

    merge: int
    tree: str
    validator: str
    ok: bool
    why: str


class MergeLanding(Payload):
    """Intent, ahead of `update-ref`."""

    merge: int
    ref: str
    old: str
    new: str
    backup: str
    files: list[str]


class MergeLanded(Payload):
    """The user's branch is at `new`. `checkout` says what was done with the user's files."""

    merge: int
    ref: str
    old: str
    new: str
    backup: str
    checkout: str


class MergeBounced(Payload):
    """The merge did not land; the commit is kept on `kept`."""

    merge: int
    why: str
    kept: str


class MergeMoved(Payload):
    """The branch was at `found` and not at `expected` when the merge was to land: it starts over."""

    merge: int
    ref: str
    expected: str
    found: str | None


class MergeUndoing(Payload):
    """Intent to take a landing back, ahead of `update-ref`: `new` is `old` without what it brought."""

    merge: int
    ref: str
    old: str
    new: str
    backup: str
    files: list[str]


class MergeUndone(Payload):
    """The landing is taken back: the branch is at `new`. `checkout` says what was done with the user's files."""

    merge: int
    ref: str
    old: str
    new: str
    backup: str
    checkout: str


class MergeStays(Payload):
    """The landing was to be taken back and is not; nothing was touched."""

    merge: int
    why: str


class BudgetSet(Payload):
    """Limits of the session; a missing one is no limit."""

    usd: float | None = None
    tokens: int | None = None


class BudgetExceededEvent(Payload):
    """A step was refused because it would have gone over a limit."""

    scope: str
    why: str
    needed: float | None = Field(default=None, description="the least limit that would have let the step pass")


class SecretRedacted(Payload):
    """Secrets were cut out of a text before it was written; says which patterns, never what."""

    patterns: list[str]
    where: str


KINDS: dict[str, type[Payload]] = {
    "session.opened": SessionOpened,
    "session.resumed": SessionResumed,
    "session.mode": SessionMode,
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
    "goal.edited": GoalEdited,
    "goal.cleared": GoalCleared,
    "goal.paused": GoalPaused,
    "goal.resumed": GoalResumed,
    "goal.claimed": GoalClaimed,
    "goal.judged": GoalJudged,
    "goal.met": GoalMet,
    "goal.stopped": GoalStopped,
    "task.created": TaskCreated,
    "task.leased": TaskLeased,
    "task.widened": TaskWidened,
    "task.paused": TaskPaused,
    "task.bounced": TaskBounced,
    "task.done": TaskDone,
    "task.abandoned": TaskAbandoned,
    "worktree.creating": WorktreeCreating,
    "worktree.created": WorktreeCreated,
    "worktree.updated": WorktreeUpdated,
    "worktree.removing": WorktreeRemoving,
    "worktree.removed": WorktreeRemoved,
    "merge.enqueued": MergeEnqueued,
    "merge.checked": MergeChecked,
    "merge.tested": MergeTested,
    "merge.reviewed": MergeReviewed,
    "merge.landing": MergeLanding,
    "merge.landed": MergeLanded,
    "merge.bounced": MergeBounced,
    "merge.moved": MergeMoved,
    "merge.undoing": MergeUndoing,
    "merge.undone": MergeUndone,
    "merge.stays": MergeStays,
    "budget.set": BudgetSet,
    "budget.exceeded": BudgetExceededEvent,
    "secret.redacted": SecretRedacted,
}
