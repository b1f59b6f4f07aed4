"""Rewinding as the user sees it: the question, what is kept of the undone part, and the link to where work goes on.

A rewind is a fork in which the same notebook goes on. Nothing is cut out of the log that it leaves: an event log is
append-only, a prompt that was sent must be rebuilt from what came before it, and a state digest from all before it. So
the undone part stays where it was, whole and verifiable, and both logs name each other.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import Denied, UsageProblem
from musecode_jupyter.session.fork import held_files, lineage_of
from musecode_jupyter.session.lineage import LineageState
from musecode_jupyter.session.repository import repositories
from musecode_jupyter.session.store import worktrees_dir
from musecode_jupyter.session.summary import summarise
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.locking import repository_lock
from musecode_jupyter.workspace.worktrees import delete_tree, deregister, list_worktrees

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


def check_event(core: SessionCore, seq: int) -> None:
    """Raise UsageProblem unless the session has an event `seq`."""
    if not 1 <= seq <= core.log.last_seq:
        raise UsageProblem(f"There is no event {seq}: the log holds 1 to {core.log.last_seq}.")


def landings_after(core: SessionCore, seq: int) -> list[int]:
    """The landings that a rewind to event `seq` leaves on the user's branch, by the numbers that undo takes."""
    landed = {e.data["merge"] for e in core.log.events(since=seq) if e.kind == "merge.landed"}
    return sorted(number for number in landed if core.merges.merges[number].state == "landed")


async def ask_rewind(core: SessionCore, seq: int) -> None:
    """Ask the user whether to go back to event `seq`, then end what runs, so that nothing lands any more.

    Raises UsageProblem if there is no such event, Denied if the user or the approvals mode says no; nothing was
    stopped then.
    """
    check_event(core, seq)
    verdict = core.policy.landing(None)
    granted, why = verdict.decision == "allow", verdict.rule
    if verdict.decision == "ask":
        event, last = core.log.get(seq), core.log.last_seq
        trees = core.workspace_state.worktrees
        stay = landings_after(core, seq)
        shown = {
            "to": f"event {seq}, {event.kind}: {summarise(event)['text']}",
            "undone": f"events {seq + 1} to {last}; they stay in session {core.id}, with the files of its worktrees",
            "files": [f"{trees[number].branch}: as at event {seq}" for number in held_files(core).trees],
            "stays": [f"landing {number}: `%muse undo {number}` takes it back" for number in stay] or "nothing landed",
        }
        answer = await core.approvals.ask(
            "rewind", f"rewind to event {seq}", shown, agent="user", no_rule="each rewind is a question of its own"
        )
        granted, why = answer.granted, answer.why or "the user's answer"
    if not granted:
        raise Denied(f"Not rewound: denied ({why}).")
    if core.asking:
        await core.stop_work(f"rewound to event {seq}")
    if core.busy and core.goals.active is not None:
        await core.stop(core.goals.active, f"rewound to event {seq}")


async def rewound(core: SessionCore, seq: int, session: str) -> None:
    """Keep the files of each worktree by a ref as they are now, and write down that work goes on in `session`."""
    keep = core.executor.keep_files
    for number, tree in list(core.workspace_state.worktrees.items()):
        if keep is not None and tree.created and await core.effects.disk(Path(tree.path).is_dir):
            await keep(number, Path(tree.path), None, ended=False)
    await core.log.append("session.rewound", {"to": seq, "session": session}, agent="user")


async def discard(workspace: Path, home: Path, session: str, effects: Effects) -> None:
    """Remove the worktrees and branches that were made for a fork that could not be finished."""
    folder = await effects.disk(worktrees_dir(home).resolve)
    for git in await repositories(workspace, home, effects):
        await _discard(git, folder, session)


async def _discard(git: Git, folder: Path, session: str) -> None:
    async with repository_lock(git) as lock:
        for tree in await list_worktrees(git):
            branch = f"refs/heads/musecode/{session}/"
            if tree.path.parent == folder and tree.path.name.startswith(f"{session}-") and tree.ref is not None:
                await delete_tree(git, tree.path)
                await deregister(git, tree.path, lock)
                if tree.ref.startswith(branch):
                    await git.run("update-ref", "-d", tree.ref, pass_fds=(lock,))


def before_fork_text(lineage: LineageState) -> str:
    """What of the money was spent before the fork, for `%muse cost`; empty if the session is none."""
    if not lineage.origins:
        return ""
    origin = lineage.origins[-1]
    return (
        f"of this before the fork, and spent by session {origin.parent}: {origin.usd:.4f} USD, {origin.calls} calls, "
        f"{origin.tokens} tokens"
    )


def origin_text(core: SessionCore) -> str:
    """Where a fork comes from, in a line; empty if the session is none."""
    lineage = lineage_of(core)
    if not lineage.origins:
        return ""
    origin = lineage.origins[-1]
    return f"Events 1 to {origin.at} are those of session {origin.parent}."
