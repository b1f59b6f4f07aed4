"""What the events of tasks, worktrees and merges say; as `kinds`, of which they are a part."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from musecode_jupyter.log.payload import Check, Payload


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
    plan: int = Field(default=1, description="number of the graph that it is part of, among those of the goal")


class TasksTried(Payload):
    """The harness ran acceptance commands of a graph on a clean checkout of `tree`, before any work on it."""

    goal: int
    agent: str = Field(description="who is told")
    tree: str
    commit: str
    checks: list[Check]
    report: str = Field(default="", description="why the graph goes back to the lead; empty if it does not")


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
    why: str = Field(default="", description="why nobody worked on it; empty if somebody did")


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
    commit: str = Field(default="", description="where its branch was, if the worktree was there before and was gone")


class WorktreeSnapshotted(Payload):
    """All files of a worktree that git does not ignore, as they are, after a process changed some."""

    worktree: int
    commit: str | None = Field(description="a commit that holds them, on a ref of our own; none: they are not known")
    call: int | None = Field(default=None, description="the process")
    left_out: list[str] = Field(default_factory=list, description="what is not in it: too large, or no plain file")
    why: str = Field(default="", description="why they are not known")
    differing: list[str] = Field(default_factory=list, description="the files that are not as in the commit before")


class WorktreeRehomed(Payload):
    """The worktree of this session is at `path` from here on; the one that it had before is another session's."""

    worktree: int
    path: str
    branch: str
    head: str = Field(description="the commit that the branch is at")
    restored: bool = Field(description="whether it was made there, with the files as of the fork")


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


class GitAnswered(Payload):
    """What git or the repository's files answered to a step of a goal, so that the step can be run again."""

    chain: str = Field(description="who asked: `goal` and its number, or a worker")
    question: str = Field(description="the function that was asked")
    arguments: dict[str, Any]
    answer: Any = None
    error: dict[str, Any] | None = Field(default=None, description="what it raised instead: class, text and fields")


WORK_KINDS: dict[str, type[Payload]] = {
    "task.created": TaskCreated,
    "tasks.tried": TasksTried,
    "task.leased": TaskLeased,
    "task.widened": TaskWidened,
    "task.paused": TaskPaused,
    "task.bounced": TaskBounced,
    "task.done": TaskDone,
    "task.abandoned": TaskAbandoned,
    "worktree.creating": WorktreeCreating,
    "worktree.created": WorktreeCreated,
    "worktree.snapshotted": WorktreeSnapshotted,
    "worktree.rehomed": WorktreeRehomed,
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
    "git.answered": GitAnswered,
}
