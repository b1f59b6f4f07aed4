"""What is handed to the merge queue and what comes back: work, its merge, a validator's review, the verdict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Work:
    """Finished work of one task that asks to land.

    Attributes
    ----------
    goal, task
        seqs of goal.set and task.created.
    title
        First line for people.
    agent
        The worker.
    worktree
        seq of worktree.creating.
    commit, base
        What the worker's branch is at, and the commit of the user's that it was made from.
    kept
        Short name of the branch that keeps it.
    ref
        The user's branch, refs/heads/...
    accept
        Acceptance commands of the task; they were typed or approved with the goal.
    reads
        Paths that were really read, and patterns that were declared.
    affected
        Gives further commands to run on the merge: acceptance of landed tasks that this one touches. Asked when its
        turn has come, since others land while it waits.
    usd
        Money so far, for the question to the user.
    needs
        Declared paths and patterns, by which submodules and large files are checked out for the checks.
    """

    goal: int
    task: int | None
    title: str
    agent: str
    worktree: int
    commit: str
    base: str
    kept: str
    ref: str
    accept: tuple[str, ...]
    reads: frozenset[str] = frozenset()
    affected: Callable[[], Sequence[str]] = tuple
    usd: float = 0.0
    needs: tuple[str, ...] | None = None

    @property
    def branch(self) -> str:
        """The short name of `ref`."""
        return self.ref.removeprefix("refs/heads/")


@dataclass(frozen=True)
class Merged:
    """The merge that was tested: `commit` with `tree` is what `target` would move to. `suspect` as in merge.checked."""

    merge: int
    target: str
    commit: str
    tree: str
    suspect: tuple[str, ...]


@dataclass(frozen=True)
class Review:
    """What a validator says. If not `ok`, the worker is told `report`, or `why`; with `hold` it is the user's turn."""

    ok: bool
    why: str = ""
    report: str = ""
    hold: bool = False


@dataclass(frozen=True)
class Validator:
    """Somebody who looks at every tested merge before it lands. `review` is bound to the merge's tree.

    It answers None where there is nothing to say. `again` has it asked once more after the user's approval, for which
    the merge may have waited long.
    """

    name: str
    review: Callable[[Work, Merged], Awaitable[Review | None]]
    again: bool = False


@dataclass(frozen=True)
class Verdict:
    """What became of a merge.

    `held`: it is the user's turn; the work stays on its branch. `why` is a line for the user, `report` goes to the
    worker of what bounced. `commit` is what the branch moved to; of what bounced, the target to do the work again upon.
    """

    kind: Literal["landed", "bounced", "held"]
    merge: int
    why: str
    report: str = ""
    commit: str | None = None
