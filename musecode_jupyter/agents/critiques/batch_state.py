"""The fold of batches of file changes: what was changed and not reviewed yet, and which reviews of it are under way."""

from __future__ import annotations

from typing import Protocol

from pydantic import BaseModel, Field

from musecode_jupyter.agents.critiques.state import scope_of
from musecode_jupyter.agents.state import AgentRecord
from musecode_jupyter.log.events import Event

REVIEWER = "reviewer"
"""Who tells the author of a change what reviews of batches find."""
_MODEL_ENDS = frozenset({"model.completed", "model.failed", "model.abandoned", "model.retried"})


class Changed(BaseModel):
    """What was changed in a worktree since a review of it last began: `last` is the newest event that did it, `files`
    the paths of edits."""

    last: int
    files: list[str] = Field(default_factory=list)


class Unseen(Protocol):
    """What nobody has looked at yet: `works` has the piece of work of each worktree, `changed` what changed there."""

    works: dict[int, str]
    changed: dict[int, Changed]


CHANGES = frozenset({"file.changed", "worktree.creating", "worktree.snapshotted", "worktree.removing"})


AUTHORS = frozenset({"lead", "worker"})
"""Roles whose changes are looked at; standing agents look into the worktrees of those who ask them."""


def has_settled(author: AgentRecord, changed: Changed) -> bool:
    """Whether an agent has taken a step, its calls with their results, since it changed anything."""
    return author.last_answer is not None and changed.last < author.last_answer and not author.open_calls


def see(state: Unseen, event: Event) -> None:
    """Fold an event of `CHANGES`."""
    data = event.data
    if event.kind == "worktree.creating" and data["goal"] is not None:
        state.works[event.seq] = scope_of(data["goal"], data.get("task"), event.seq)
    elif event.kind == "worktree.removing":
        state.changed.pop(data["worktree"], None)
    elif event.kind == "file.changed":
        add(state, data["worktree"], event.seq, [data["path"]])
    elif event.kind == "worktree.snapshotted" and data["commit"] is not None:
        add(state, data["worktree"], event.seq, [])


def add(state: Unseen, worktree: int | None, seq: int, paths: list[str]) -> None:
    """Note that event `seq` changed `paths` in a worktree, of processes without their names."""
    if worktree is None or worktree not in state.works:
        return
    changed = state.changed.setdefault(worktree, Changed(last=seq))
    changed.last = max(changed.last, seq)
    changed.files += [path for path in paths if path not in changed.files]


class Batch(BaseModel):
    """One batch.settled whose review has not ended."""

    goal: int
    task: int | None
    worktree: int
    agent: str
    changed: Changed
    steps: int

    @property
    def scope(self) -> str:
        """The piece of work that it is a part of."""
        return scope_of(self.goal, self.task, self.worktree)


class Used(BaseModel):
    """What reviewers of a goal's batches have used: micro-dollars, tokens, model calls (`steps`) and calls of tools."""

    microusd: int = 0
    tokens: int = 0
    steps: int = 0
    calls: int = 0


class BatchesState(BaseModel):
    """`changed` by worktree, `open` by seq of batch.settled.

    `works` has the piece of work of each worktree; `asked` how many batches of each were put to a model; `used` what
    that took, by goal; `passes` the goal for whose batch a reviewer works now. `letters` are those to authors that were
    not delivered, with the findings that they tell; `told` the findings that an author knows of.
    """

    works: dict[int, str] = Field(default_factory=dict)
    changed: dict[int, Changed] = Field(default_factory=dict)
    open: dict[int, Batch] = Field(default_factory=dict)
    asked: dict[str, int] = Field(default_factory=dict)
    used: dict[int, Used] = Field(default_factory=dict)
    passes: dict[str, int] = Field(default_factory=dict)
    letters: dict[int, list[int]] = Field(default_factory=dict)
    told: list[int] = Field(default_factory=list)


class BatchesReducer:
    """Folds batch.*, what changes files of worktrees, what reviewers use, and letters about findings."""

    name = "batches"
    kinds = frozenset(
        {
            *CHANGES,
            *("batch.settled", "batch.closed", "critique.asked", "critique.reviewed", "tool.requested", *_MODEL_ENDS),
            *("mail.sent", "mail.delivered", "mail.dropped"),
        }
    )

    def initial(self) -> BatchesState:
        return BatchesState()

    def apply(self, state: BatchesState, event: Event) -> None:
        data = event.data
        if event.kind in CHANGES:
            see(state, event)
        elif event.kind == "batch.settled":
            self._settled(state, event)
        elif event.kind == "batch.closed":
            batch = state.open.pop(data["batch"], None)
            if batch is not None and data["again"]:
                add(state, batch.worktree, batch.changed.last, batch.changed.files)
        elif event.kind in {"critique.asked", "critique.reviewed"}:
            self._reviewed(state, event)
        elif event.kind in {"mail.sent", "mail.delivered", "mail.dropped"}:
            self._mail(state, event)
        elif event.agent in state.passes and event.kind in self.kinds:
            self._count(state.used.setdefault(state.passes[event.agent], Used()), event)

    def _settled(self, state: BatchesState, event: Event) -> None:
        data = event.data
        batch = Batch(
            goal=data["goal"],
            task=data["task"],
            worktree=data["worktree"],
            agent=data["agent"],
            changed=state.changed.pop(data["worktree"], Changed(last=event.seq)),
            steps=data["steps"],
        )
        state.open[event.seq] = batch
        if batch.steps:
            state.asked[batch.scope] = state.asked.get(batch.scope, 0) + 1

    def _reviewed(self, state: BatchesState, event: Event) -> None:
        data = event.data
        if event.kind == "critique.asked":
            state.passes.pop(data["agent"], None)
            if data.get("batch") is not None:
                state.passes[data["agent"]] = data["goal"]
        elif data.get("batch") is None:
            # The whole of it was looked at, as it asked to land.
            scope = scope_of(data["goal"], data["task"], data["worktree"])
            for worktree in [each for each in state.changed if state.works[each] == scope]:
                del state.changed[worktree]

    def _mail(self, state: BatchesState, event: Event) -> None:
        if event.kind == "mail.sent":
            if event.agent == REVIEWER:
                # The batch comes first, then the findings.
                state.letters[event.seq] = list(event.cause[1:])
            return
        findings = state.letters.pop(event.data["mail"], [])
        if event.kind == "mail.delivered":
            state.told += [number for number in findings if number not in state.told]

    def _count(self, used: Used, event: Event) -> None:
        data = event.data
        if event.kind == "tool.requested":
            used.calls += 1
            return
        used.microusd += data.get("cost_microusd", 0)
        if event.kind == "model.completed":
            used.steps += 1
            usage = data["usage"]
            used.tokens += 0 if usage is None else usage["input"] + usage["output"]
        else:
            used.tokens += data.get("tokens", 0)
