"""Forks a session at an event: the same records up to it, worktrees of its own with the files as they were, no rights.

A fork begins with the parent's records, byte for byte, so that its chain, its state and its prompts are the parent's up
to there. Then `session.forked` names the parent, and what was open is settled as after a restart. The parent, its
worktrees, branches and refs are only read.
"""

from __future__ import annotations

import contextlib
import shutil
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from musecode_jupyter.agents.landing.checks import work_place
from musecode_jupyter.agents.landing.state import FINAL
from musecode_jupyter.agents.landing.tools import HARNESS
from musecode_jupyter.agents.tasks.state import TasksState
from musecode_jupyter.guard.ledger import LedgerState
from musecode_jupyter.log import EventLog, Redactor
from musecode_jupyter.log.blobs import sync_folder
from musecode_jupyter.log.outputs import FOLDER as OUTPUTS
from musecode_jupyter.log.outputs import keep
from musecode_jupyter.log.prefix import Prefix, copy_prefix
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.session.landings import landing_tools
from musecode_jupyter.session.lineage import LineageState
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.session.store import new_id, sessions_dir, worktrees_dir
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.held_files import HeldFiles, HeldFilesState
from musecode_jupyter.workspace.restore import put_in, require_commit
from musecode_jupyter.workspace.state import WorktreeRecord

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

MAKING = ".making"
"""Folder below that of the sessions in which a fork is made; it takes its place when its first own event is durable."""

_LEFT_AFTER_S = 86_400.0


async def make_fork(source: Path, seq: int, home: Path, effects: Effects, *, rewind: bool = False) -> Path:
    """Make a session that continues session `source` from event `seq`; returns its folder, which is to be resumed.

    `source` may be open in this process or another one; what is not durable yet is not there. A crash leaves either
    nothing that is listed, or a fork that is listed as half made. Resumed, that is made to its end; one for a rewind
    only if its parent says that it was rewound.

    Raises
    ------
    LogError
        There is no such event, or the source is damaged up to it.
    LogReadOnly
        The disk takes no writes.
    """
    name = new_id(effects.now(), effects.token(2))
    making = sessions_dir(home) / MAKING / name
    try:
        await effects.disk(_clear, making.parent, effects.now())
        prefix = await effects.disk(_begin, source, making, seq)
        await _announce(source.name, making, prefix, effects, rewind=rewind)
        folder = sessions_dir(home) / name
        await effects.disk(_take_place, making, folder)
    finally:
        await effects.disk(_leave, making)
    return folder


def _clear(folder: Path, now: datetime) -> None:
    """Remove what processes left that were killed while they made a fork."""
    for each in folder.iterdir() if folder.is_dir() else ():
        if now.timestamp() - each.stat().st_mtime > _LEFT_AFTER_S:
            shutil.rmtree(each, ignore_errors=True)


def _begin(source: Path, target: Path, seq: int) -> Prefix:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    prefix = copy_prefix(source, target, seq)
    outputs = source / OUTPUTS
    if outputs.is_dir():
        (target / OUTPUTS).mkdir(mode=0o700)
        for path in outputs.iterdir():
            if path.stem.isdecimal() and int(path.stem) <= seq:
                shutil.copy2(path, target / OUTPUTS / path.name)
                keep(target / OUTPUTS / path.name)
    return prefix


async def _announce(parent: str, folder: Path, prefix: Prefix, effects: Effects, *, rewind: bool) -> None:
    log = EventLog.open(folder, reducers=all_reducers(), redactor=Redactor(), now=effects.now)
    try:
        ledger = log.state("ledger")
        assert isinstance(ledger, LedgerState)
        digest, slices = log.digests()
        await log.append(
            "session.forked",
            {
                "parent": parent,
                "seq": prefix.seq,
                "h": prefix.h,
                "digest": digest,
                "slices": slices,
                "shapes": log.shapes(),
                "microusd": ledger.total.microusd,
                "tokens": ledger.total.tokens,
                "calls": ledger.total.calls,
                "rewind": rewind,
            },
            agent="user",
        )
    finally:
        await log.close()


def take_away(folder: Path) -> None:
    """Delete a fork that cannot be made to its end; killed meanwhile, nothing of it is listed."""
    making = folder.parent / MAKING / folder.name
    making.parent.mkdir(mode=0o700, exist_ok=True)
    _take_place(folder, making)
    _leave(making)


def _leave(making: Path) -> None:
    """Remove what is left where the fork was made; nothing if it has taken its place and no other is being made."""
    shutil.rmtree(making, ignore_errors=True)
    with contextlib.suppress(OSError):
        making.parent.rmdir()


def _take_place(making: Path, folder: Path) -> None:
    making.rename(folder)
    sync_folder(folder.parent)


def lineage_of(core: SessionCore) -> LineageState:
    """Where the session comes from."""
    state = core.log.state("lineage")
    assert isinstance(state, LineageState)
    return state


def held_files(core: SessionCore) -> HeldFilesState:
    """What the session's worktrees hold."""
    state = core.log.state("files")
    assert isinstance(state, HeldFilesState)
    return state


async def settle_fork(core: SessionCore) -> None:
    """Give each worktree of the fork a place of its own, and close what was on its way to the user's branch.

    Each step is done again after a crash without harm.

    Raises
    ------
    GitError
        The files as of the fork cannot be had any more; nothing of the parent's was touched.
    """
    foreign = {seq: held for seq, held in held_files(core).trees.items() if held.foreign}
    if foreign:
        for held in foreign.values():
            if _is_restored(core, held):
                git = await core.git(held.goal)
                await require_commit(git, held.commit)
                await require_commit(git, held.head)
        for seq, held in foreign.items():
            await _rehome(core, seq, held)
    for merge_seq, merge in core.merges.merges.items():
        if merge.state == "undoing":
            # The undo is the parent's to finish.
            data: dict[str, Any] = {"merge": merge_seq, "why": "the session was forked while it was being taken back"}
            await core.log.append("merge.stays", data, agent=HARNESS, cause=(merge.goal, merge_seq))
        elif merge.state not in FINAL:
            data = {"merge": merge_seq, "why": "the session was forked before it landed", "kept": _kept(core, merge)}
            await core.log.append("merge.bounced", data, agent=HARNESS, cause=(merge.goal, merge_seq))


async def settled(core: SessionCore) -> None:
    """Write down, once, that the fork is made to its end; of one for a rewind, that the rewind has taken place."""
    if lineage_of(core).unsettled:
        await core.log.append("session.settled", {})


def _kept(core: SessionCore, merge: Any) -> str:
    trees = core.workspace_state
    seq = trees.of_goal(merge.goal) if merge.task is None else trees.of_task(merge.task)
    return merge.kept if seq is None else trees.worktrees[seq].branch


async def _rehome(core: SessionCore, seq: int, held: HeldFiles) -> None:
    tree = core.workspace_state.worktrees[seq]
    parent = lineage_of(core).origins[-1].parent
    name = Path(tree.path).name.removeprefix(f"{parent}-")
    path = worktrees_dir(core.home) / f"{core.id}-{name}"
    branch = f"musecode/{core.id}/{tree.branch.removeprefix(f'musecode/{parent}/')}"
    restored = _is_restored(core, held)
    if restored:
        await work_place(await landing_tools(core, held.goal), path, branch, held.head)
        await put_in(await Git.at_worktree(path, core.effects), held, core.log.blob)
    data = {"worktree": seq, "path": str(path), "branch": branch, "head": held.head, "restored": restored}
    # Together: an agent that goes on in another folder has been told.
    core.log.post("worktree.rehomed", data, agent=HARNESS, cause=(seq,))
    agent = _agent(core, tree)
    if restored and agent is not None and core.gate.info.profile != "guided":
        told = (
            f"This conversation goes on in a session of its own. Your worktree is {path} now, with its files as they "
            f"were at this point. {tree.path} belongs to another session: do not touch it."
        )
        core.log.post("user.steer", {"text": told, "to": agent}, agent=HARNESS, cause=(seq,))
    if held.unsure is not None and restored:
        core.notices.append(
            f"The files of worktree {seq} may differ from what they were: {held.why or unrecorded(held.unsure)}."
        )
    await core.log.flush()


def unrecorded(call: int) -> str:
    """What is said of files that a process may have changed without a record."""
    return f"command {call} was not at its end yet, or ran in a version that did not record what commands change"


def _is_restored(core: SessionCore, held: HeldFiles) -> bool:
    """Whether a worktree is made again: not where nobody will work in it, since its goal is met or cleared."""
    if not held.made or held.goal is None:
        return held.made
    goal = core.record(held.goal)
    return goal.status != "met" and not goal.cleared


def _agent(core: SessionCore, tree: WorktreeRecord) -> str | None:
    if tree.task is not None:
        tasks = core.log.state("tasks")
        assert isinstance(tasks, TasksState)
        return tasks.tasks[tree.task].agent or None
    return None if tree.goal is None else core.record(tree.goal).agent
