"""The fold of worktree and merge events: what exists on disk for this session, and git intents without an outcome."""

from __future__ import annotations

from pydantic import BaseModel, Field

from musecode_jupyter.log.events import Event
from musecode_jupyter.log.kinds import kinds_with


class WorktreeRecord(BaseModel):
    """A worktree; `created` and `removing` tell how far git got, as far as the log knows."""

    goal: int | None
    task: int | None = None
    path: str
    branch: str
    base: str
    created: bool = False
    removing: bool = False


class MergeRecord(BaseModel):
    """A merge on its way to the user's branch. `landing` is set between the intent and the outcome."""

    goal: int
    commit: str
    tree: str
    ref: str
    state: str = "enqueued"
    target: str | None = None
    merged_commit: str | None = None
    merged_tree: str | None = None
    conflicts: list[str] = Field(default_factory=list)
    old: str | None = None
    new: str | None = None
    backup: str | None = None
    checkout: str = ""
    why: str = ""


class WorkspaceState(BaseModel):
    """Worktrees by seq of worktree.creating, merges by seq of merge.enqueued."""

    worktrees: dict[int, WorktreeRecord] = Field(default_factory=dict)
    merges: dict[int, MergeRecord] = Field(default_factory=dict)

    def of_goal(self, goal: int) -> int | None:
        """Seq of the worktree of `goal` itself, if there is one; those of its tasks are not meant."""
        return next((s for s, tree in self.worktrees.items() if tree.goal == goal and tree.task is None), None)

    def of_task(self, task: int) -> int | None:
        """Seq of the worktree of `task`, if there is one."""
        return next((seq for seq, tree in self.worktrees.items() if tree.task == task), None)

    def last_merge(self, goal: int) -> int | None:
        """Seq of the newest merge of `goal`, if there is one."""
        return max((seq for seq, merge in self.merges.items() if merge.goal == goal), default=None)


class WorkspaceReducer:
    """Folds worktree.* and merge.* events."""

    name = "workspace"
    kinds = kinds_with("worktree.", "merge.")

    def initial(self) -> WorkspaceState:
        return WorkspaceState()

    def apply(self, state: WorkspaceState, event: Event) -> None:
        data = event.data
        if event.kind == "worktree.creating":
            state.worktrees[event.seq] = WorktreeRecord(
                goal=data["goal"],
                task=data.get("task"),
                path=data["path"],
                branch=data["branch"],
                base=data["base"],
            )
        elif event.kind == "worktree.created":
            state.worktrees[data["worktree"]].created = True
        elif event.kind == "worktree.updated":
            # What the agent did is told from what the user did by this: the newest commit of the user's in it.
            state.worktrees[data["worktree"]].base = data["target"]
        elif event.kind == "worktree.rehomed":
            tree = state.worktrees[data["worktree"]]
            tree.path, tree.branch = data["path"], data["branch"]
            tree.created, tree.removing = data["restored"], False
        elif event.kind == "worktree.removing":
            state.worktrees[data["worktree"]].removing = True
        elif event.kind == "worktree.removed":
            state.worktrees.pop(data["worktree"], None)
        elif event.kind == "merge.enqueued":
            state.merges[event.seq] = MergeRecord(
                goal=data["goal"], commit=data["commit"], tree=data["tree"], ref=data["ref"]
            )
        elif event.kind.startswith("merge."):
            self._merge(state.merges[data["merge"]], event)

    def _merge(self, merge: MergeRecord, event: Event) -> None:
        data = event.data
        merge.state = event.kind.removeprefix("merge.")
        if event.kind == "merge.checked":
            merge.target, merge.conflicts = data["target"], list(data["conflicts"])
            merge.merged_commit, merge.merged_tree = data["commit"], data["tree"]
        elif event.kind == "merge.landing":
            merge.old, merge.new, merge.backup = data["old"], data["new"], data["backup"]
        elif event.kind == "merge.landed":
            merge.old, merge.new, merge.checkout = data["old"], data["new"], data["checkout"]
        elif event.kind == "merge.bounced":
            merge.why = data["why"]
        elif event.kind == "merge.stays":
            merge.state = "landed"
