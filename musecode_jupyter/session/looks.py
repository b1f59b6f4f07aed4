"""What the user looks at, as text made from the state of a session and the disk: changes, tasks, merges."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from musecode_jupyter.agents.landing import history
from musecode_jupyter.agents.landing.state import FINAL
from musecode_jupyter.agents.repomap.answer import answer, understood
from musecode_jupyter.agents.repomap.read import read_map
from musecode_jupyter.agents.repomap.tool import history_of
from musecode_jupyter.agents.tasks import text
from musecode_jupyter.agents.tasks.facts import read_imports
from musecode_jupyter.agents.tasks.scheduling import Repository
from musecode_jupyter.agents.tasks.state import TasksState
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.session.repository import files_below
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.history import History
from musecode_jupyter.workspace.landing import check_merge
from musecode_jupyter.workspace.snapshots import diff_of_files
from musecode_jupyter.workspace.state import WorktreeRecord

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


async def changes(core: SessionCore, goal: int | None = None) -> tuple[str, str]:
    """The diff of what has landed for the goal (the active one by default), and that of what waits in its worktrees.

    Landings one right after the other are one diff; where the branch moved between two, there is one for each.
    """
    number = core.active_goal() if goal is None else goal
    core.record(number)
    git = await core.git(number)
    workspace, tasks = core.workspace_state, core.log.state("tasks")
    assert isinstance(tasks, TasksState)
    spans: list[tuple[str, str]] = []
    for merge in workspace.merges.values():
        if merge.goal != number or merge.state != "landed" or not merge.old or not merge.new:
            continue
        if spans and spans[-1][1] == merge.old:
            spans[-1] = (spans[-1][0], merge.new)
        else:
            spans.append((merge.old, merge.new))
    landed = "".join([await git.diff_text(old, new) for old, new in spans])
    waiting = []
    for tree in workspace.worktrees.values():
        done = bool(spans) if tree.task is None else tasks.tasks[tree.task].state == "done"
        if tree.goal == number and tree.created and not done:
            waiting.append(await _waiting(core, git, tree, number))
    return landed, "".join(waiting)


async def _waiting(core: SessionCore, git: Git, tree: WorktreeRecord, goal: int) -> str:
    """The diff of what a worktree holds; for one of several that cannot be read, a line that says why."""
    base, snapshot = tree.base, core.ground(goal).snapshot
    if snapshot:
        # What the user had changed is no work of the agent's.
        base = (await check_merge(git, base, snapshot)).commit or base
    try:
        return await diff_of_files(await Git.at_worktree(Path(tree.path), core.effects), base)
    except GitError as error:
        if tree.task is None:
            raise
        return f"# {error}\n"


async def tasks_text(core: SessionCore) -> str:
    """The tasks of the active goal, or of the last that had any, as text."""
    state = core.log.state("tasks")
    assert isinstance(state, TasksState)
    goals = [task.goal for task in state.tasks.values()]
    if not goals:
        return "There are no tasks: `%goal TEXT --workers N` splits a goal into some."
    active = core.goals.active
    goal = active if active is not None and active in goals else goals[-1]
    place = core.own_place()
    files = await place.list_files()
    imports = await core.effects.disk(read_imports, place.root, files)
    repository = Repository(files=tuple(files), imports=imports)
    queued = {m.task: seq for seq, m in core.merges.merges.items() if m.task is not None and m.state not in FINAL}
    return text.tasks_text(state.of_goal(goal), repository, state.plan(goal).trials, queued)


async def map_text(workspace: Path, effects: Effects, asked: str) -> str:
    """The map of the repository of `workspace`: all, a file, a folder, a symbol, or what belongs to some words."""
    history, commits = History(), list[str]()
    try:
        git = await Git.discover(workspace, effects)
        root, files = git.root, await git.list_files(git.root)
    except GitError:
        git, root, files = None, workspace, await effects.disk(files_below, workspace)
    repo = await read_map(effects, root, files)
    question = understood(repo, asked)
    if git is not None and question.path in repo.facts:
        history, commits = await history_of(git, question.path)
    return (await effects.disk(partial(answer, repo, question, history, commits=commits))).text


def merges_text(core: SessionCore) -> str:
    """The merge queue and its history."""
    questions = core.approvals.state.pending.items()
    waiting = {str(asked.shown.get("to")): seq for seq, asked in questions if asked.action == "land"}
    return history.merges_text(core.merges, waiting, {seq: goal.text for seq, goal in core.goals.goals.items()})
