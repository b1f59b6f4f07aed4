"""What the worktrees of a session held at an event, told, and laid out in a folder; reads only, opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from musecode_jupyter.agents.tasks.state import TasksReducer, TasksState
from musecode_jupyter.log import EventLog, Fold
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import GitError, UsageProblem
from musecode_jupyter.session.fork import unrecorded
from musecode_jupyter.session.repository import unborn_root
from musecode_jupyter.session.store import home_of
from musecode_jupyter.skills.goal_state import GoalsReducer, GoalsState
from musecode_jupyter.skills.ground_state import GroundsReducer, GroundsState
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.held_files import HeldFiles, HeldFilesReducer, HeldFilesState
from musecode_jupyter.workspace.restore import lay_out, require_free
from musecode_jupyter.workspace.shadow import find_shadow


@dataclass(frozen=True)
class WorktreeAt:
    """A worktree at an event: whose it is in words, its files, and what is not known of them (empty: nothing)."""

    number: int
    what: str
    held: HeldFiles
    limits: tuple[str, ...]


@dataclass(frozen=True)
class SessionAt:
    """The worktrees of a session after event `seq`; `main` is the one that is meant where none is named.

    `shadowed` are the goals that work in the private repository of a folder.
    """

    log: EventLog
    workspace: Path
    seq: int
    trees: dict[int, WorktreeAt]
    main: int | None
    shadowed: frozenset[int | None] = frozenset()

    def choose(self, number: int | None) -> WorktreeAt:
        """Worktree `number`, or the only one, or the lead's; UsageProblem says which there are."""
        if not self.trees:
            raise UsageProblem(f"No agent has a worktree at event {self.seq} of session {self.log.folder.name}.")
        if number is None:
            number = self.main
        if number is None or number not in self.trees:
            said = "Several agents have one" if number is None else f"There is no worktree {number}"
            known = ", ".join(f"{tree.number} ({tree.what})" for tree in self.trees.values())
            raise UsageProblem(f"{said} at event {self.seq}: choose with --worktree N. There are: {known}.")
        return self.trees[number]


def session_at(folder: Path, seq: int | None = None) -> SessionAt:
    """Fold session `folder` up to event `seq` (the last one by default).

    Raises UsageProblem if there is no such event, LogError if the log cannot be read up to it.
    """
    log = EventLog.read(folder)
    last = log.last_seq if seq is None else seq
    if not 1 <= last <= log.last_seq:
        raise UsageProblem(f"Session {folder.name} has no event {last}: its log holds 1 to {log.last_seq}.")
    damaged = [each for each in log.damage if each.last_good_seq < last]
    if damaged:
        raise UsageProblem(
            f"The log of session {folder.name} is damaged after event {damaged[0].last_good_seq}: what the files were "
            "at later events is not known."
        )
    fold = Fold([HeldFilesReducer(), GoalsReducer(), GroundsReducer(), TasksReducer()])
    held, goal_state, task_state = fold.state("files"), fold.state("goals"), fold.state("tasks")
    grounds = fold.state("grounds")
    assert isinstance(held, HeldFilesState)
    assert isinstance(goal_state, GoalsState)
    assert isinstance(task_state, TasksState)
    assert isinstance(grounds, GroundsState)
    workspace = Path()
    for event in log.events():
        if event.seq > last:
            break
        if event.kind == "session.opened":
            workspace = Path(str(event.data["workspace"]))
        fold.apply(event)
    trees = {}
    for number, tree in held.trees.items():
        if not tree.made and not tree.foreign:
            continue
        if tree.task is not None:
            what = f"task {task_state.tasks[tree.task].spec.name}"
        else:
            what = "the lead's" if tree.goal is None else f"the lead's, goal {tree.goal}"
        trees[number] = WorktreeAt(number, what, tree, _limits(tree))
    leads = [number for number, tree in trees.items() if tree.held.task is None]
    active = [number for number in leads if trees[number].held.goal == goal_state.active]
    known = list(trees) if len(trees) == 1 else active or leads
    main = known[-1] if known else None
    shadowed = frozenset(number for number, ground in grounds.goals.items() if ground.shadow)
    return SessionAt(log, workspace, last, trees, main, shadowed)


async def _repository(at: SessionAt, tree: WorktreeAt, effects: Effects) -> Git:
    """The one in which the goal of `tree` works; GitError if it is not there any more."""
    if tree.held.goal not in at.shadowed:
        return await Git.discover(at.workspace, effects)
    root = await unborn_root(at.workspace, effects) or at.workspace
    found = await find_shadow(root, home_of(at.log.folder), effects)
    if found is None:
        raise GitError(f"The private repository of {root}, which holds these files, is not there any more.")
    return found


def _limits(held: HeldFiles) -> tuple[str, ...]:
    limits = []
    if held.unsure is not None:
        limits.append(f"files that a command changed may be missing: {held.why or unrecorded(held.unsure)}")
    if held.left_out:
        limits.append(f"not kept, since too large or no plain files: {', '.join(held.left_out)}")
    return tuple(limits)


async def restore(at: SessionAt, tree: WorktreeAt, into: Path, effects: Effects) -> int:
    """Lay the files of a worktree out in `into`, which is absent or empty; returns how many there are.

    Raises UsageProblem, GitError or LogError, each saying what is in the way; nothing was written then.
    """
    if not await effects.disk(at.workspace.is_dir):
        raise UsageProblem(
            f"The repository {at.workspace} of this session is not there any more, and its commits with it."
        )
    git = await _repository(at, tree, effects)
    await require_free(git, into)
    return await lay_out(git, tree.held, at.log.blob, into)
