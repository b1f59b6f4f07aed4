"""The fold of what each worktree holds: a commit, what edits changed since, and whether all of that is known."""

from __future__ import annotations

from pydantic import BaseModel, Field

from musecode_jupyter.log.events import Event
from musecode_jupyter.log.kinds import kinds_with


class HeldFiles(BaseModel):
    """The files of one worktree: those of `commit`, and over them `changed`, the digest of a blob by path (None: gone).

    `head` is the commit that its branch is at, as far as the log knows. `left_out` names files that no commit holds.
    `unsure` is the process, by its call, whose changes are not recorded, and `why` says why not. `foreign` means that
    the folder is another session's, from which this one was forked.
    """

    goal: int | None
    task: int | None = None
    head: str
    commit: str
    changed: dict[str, str | None] = Field(default_factory=dict)
    left_out: list[str] = Field(default_factory=list)
    unsure: int | None = None
    why: str = ""
    made: bool = False
    foreign: bool = False

    def now_at(self, commit: str, left_out: list[str] | None = None) -> None:
        """All that is in it is in `commit`."""
        self.commit, self.changed, self.left_out = commit, {}, list(left_out or ())
        self.unsure, self.why = None, ""


class HeldFilesState(BaseModel):
    """`trees` by seq of worktree.creating; `homes` has the worktree by each path at which it is or was."""

    trees: dict[int, HeldFiles] = Field(default_factory=dict)
    homes: dict[str, int] = Field(default_factory=dict)


class HeldFilesReducer:
    """Folds worktree.*, file.changed, and what of tool.* and merge.* says something of a worktree's files."""

    name = "files"
    kinds = kinds_with("worktree.") | {
        *("file.changed", "tool.started", "tool.finished", "merge.enqueued", "session.forked"),
    }

    def initial(self) -> HeldFilesState:
        return HeldFilesState()

    def apply(self, state: HeldFilesState, event: Event) -> None:
        data = event.data
        if event.kind == "worktree.creating":
            state.trees[event.seq] = HeldFiles(
                goal=data["goal"], task=data.get("task"), head=data["base"], commit=data["base"]
            )
            state.homes[data["path"]] = event.seq
        elif event.kind == "worktree.removed":
            state.trees.pop(data["worktree"], None)
            state.homes = {path: seq for path, seq in state.homes.items() if seq != data["worktree"]}
        elif event.kind.startswith("worktree."):
            self._worktree(state, event)
        elif event.kind == "file.changed" and data["worktree"] in state.trees:
            state.trees[data["worktree"]].changed[data["path"]] = data["after"]
        elif event.kind == "tool.started" and data["effect"] == "process" and data["cwd"] in state.homes:
            state.trees[state.homes[data["cwd"]]].unsure = data["call"]
        elif event.kind == "tool.finished" and data.get("files") == "same":
            for held in state.trees.values():
                if held.unsure == data["call"]:
                    held.unsure, held.why = None, ""
        elif event.kind == "merge.enqueued":
            for held in state.trees.values():
                if (held.goal, held.task) == (data["goal"], data.get("task")):
                    # The whole of the worktree was committed for it.
                    held.head = data["commit"]
                    held.now_at(data["commit"])
        elif event.kind == "session.forked":
            for held in state.trees.values():
                held.foreign = True

    def _worktree(self, state: HeldFilesState, event: Event) -> None:
        data = event.data
        held = state.trees.get(data["worktree"])
        if held is None:
            return
        if event.kind == "worktree.created":
            held.made = True
            if data.get("commit"):
                held.head = data["commit"]
                held.now_at(data["commit"])
        elif event.kind == "worktree.updated":
            held.head = data["commit"]
            held.now_at(data["commit"])
        elif event.kind == "worktree.snapshotted":
            if data["commit"] is None:
                held.unsure, held.why = data["call"] or 0, data["why"]
            else:
                held.now_at(data["commit"], data["left_out"])
        elif event.kind == "worktree.rehomed":
            held.head, held.foreign, held.made = data["head"], False, data["restored"]
            held.left_out, held.unsure, held.why = [], None, ""
            state.homes[data["path"]] = data["worktree"]
