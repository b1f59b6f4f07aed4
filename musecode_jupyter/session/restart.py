"""What a restart does with the open ends of the process before it, so that nothing runs twice and nothing is lost.

A fork is opened in the same way: its open ends are those of the session that it comes from.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from musecode_jupyter.runtime.errors import MuseError
from musecode_jupyter.session.beside import settle_batches
from musecode_jupyter.session.crew import suspend
from musecode_jupyter.session.drafts import settle_drafts
from musecode_jupyter.session.fork import held_files, lineage_of, settle_fork, settled
from musecode_jupyter.session.grills import settle_grills
from musecode_jupyter.session.landings import clean_up, settle_landings
from musecode_jupyter.session.plans import settle_plans
from musecode_jupyter.session.store import unfinished_fork
from musecode_jupyter.tools.builtin import MAX_EDITABLE_BYTES
from musecode_jupyter.tools.files import clear_cut_off, digest_bytes, read_bytes, write_atomic
from musecode_jupyter.tools.registry import Place
from musecode_jupyter.tools.state import OpenCall
from musecode_jupyter.workspace.git import Git

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


async def reconcile(core: SessionCore) -> bool:
    """Settle open model calls, tool calls and questions of earlier generations; suspend agents, pause goals.

    A started read runs again and a started write is compared with its hashes; both get their one result without a
    second tool.started. A started process is never run again: its outcome is unknown. A call that was requested but
    not started stays open if the model made it, and is carried out when its agent goes on. Returns whether the session
    is a fork that is opened for the first time.
    """
    fresh = lineage_of(core).unsettled
    happened = "forked" if fresh else "restarted"
    core.approvals.expire_all(f"the session was {happened}; it will be asked again")
    if fresh:
        await settle_fork(core)
    for seq, reserve in list(core.ledger.open.items()):
        # At a fork its reserve is nothing: it is settled where it was sent.
        why = "its answer is another session's, from which this one was forked" if fresh else "cut off by a restart"
        await core.log.append(
            "model.abandoned",
            {"request": seq, "why": why, "cost_microusd": reserve.microusd, "tokens": reserve.tokens},
            agent=reserve.agent,
            cause=(seq,),
        )
    for seq, call in list(core.executor.state.open.items()):
        await _settle(core, seq, call)
    core.crew.settle()
    await settle_batches(core, f"the session was {happened}")
    await settle_plans(core, f"the session was {happened}")
    await settle_drafts(core, f"the session was {happened}")
    await settle_grills(core, f"the session was {happened}")
    await suspend(core, "fork" if fresh else "restart")
    for goal, goal_record in core.goals.goals.items():
        if goal_record.status == "running":
            await core.log.append(
                "goal.paused",
                {"goal": goal, "why": f"the session was {happened}"},
                agent=goal_record.agent,
                cause=(goal,),
            )
    await clean_up(core)
    await settle_landings(core)
    if fresh:
        fork = await core.effects.disk(unfinished_fork, core.log.folder)
        # A rewind takes place when the session that it leaves says so: not yet, while it is being made.
        if fork is None or fork.takes_place:
            await settled(core)
    return fresh


async def _settle(core: SessionCore, seq: int, call: OpenCall) -> None:
    if not call.started:
        if call.origin == "harness":
            end = "fork" if _is_of_parent(core, seq) else "restart"
            await _close(core, seq, call, "tool.cancelled", f"Not started before the {end}.")
        return
    if call.effect == "process":
        await _settle_process(core, seq, call)
    elif call.effect == "write":
        await _settle_write(core, seq, call)
    else:
        await _settle_read(core, seq, call)


async def _settle_process(core: SessionCore, seq: int, call: OpenCall) -> None:
    root, worktree = _place_of(core, seq)
    if _is_of_parent(core, seq):
        what = (
            "The session was forked while this command ran. The files here are as they were before it; it went on in "
            "the other session, and what it did there is not known here. It is not run again by itself."
        )
    else:
        what = "A restart cut this command off. Whether it had effects is not known. It is not run again by itself."
        if worktree is not None and core.executor.keep_files is not None:
            await core.executor.keep_files(worktree, root, seq, ended=False)
    await _close(core, seq, call, "tool.unknown", what)


async def _settle_write(core: SessionCore, seq: int, call: OpenCall) -> None:
    root, worktree = _place_of(core, seq)
    assert call.path is not None
    assert call.after is not None
    try:
        await core.effects.disk(clear_cut_off, root, call.path)
        _, data = await core.effects.disk(read_bytes, root, call.path, MAX_EDITABLE_BYTES)
        current = None if data is None else digest_bytes(data)
        if current == call.before:
            await core.effects.disk(write_atomic, root, call.path, core.log.blob(call.after), call.before)
            finding = "had not been made before the restart; made now"
        elif current == call.after:
            finding = "had been made before the restart"
        else:
            await _reconciled(core, seq, call, "the file is neither as before nor as after the change")
            text = f"A restart cut this change off, and {call.path} is now neither as before nor as after it. Read it."
            await _close(core, seq, call, "tool.failed", text)
            return
    except (MuseError, OSError) as error:
        await _close(core, seq, call, "tool.failed", f"A restart cut this change off; it cannot be finished: {error}")
        return
    await _reconciled(core, seq, call, f"the change {finding}")
    await core.log.append(
        "file.changed",
        {"worktree": worktree, "path": call.path, "before": call.before, "after": call.after, "call": seq},
        agent=call.agent,
        cause=(seq,),
    )
    await core.log.append(
        "tool.finished",
        {"call": seq, "output": f"Edited {call.path} (the change {finding}).", "ok": True},
        agent=call.agent,
        cause=(seq,),
    )


async def _settle_read(core: SessionCore, seq: int, call: OpenCall) -> None:
    root, worktree = _place_of(core, seq)
    if worktree is None and _is_of_parent(core, seq) and root != core.own_place().root:
        # A checkout in which the other session checks its work.
        await _close(core, seq, call, "tool.failed", "The session was forked while this was read. Read it again.")
        return

    async def list_files() -> list[str]:
        return await (await Git.discover(root, core.effects)).list_files(root)

    own = root == core.workspace
    place = core.own_place() if own else Place(root, worktree, list_files)
    await core.executor.finish_read(seq, call, place)


def _place_of(core: SessionCore, call: int) -> tuple[Path, int | None]:
    """Where a started call acts: the folder, and its worktree if it is one, at the place that it has now."""
    started = next(e for e in core.log.events(since=call) if e.kind == "tool.started" and e.data["call"] == call)
    cwd = str(started.data["cwd"])
    worktree = held_files(core).homes.get(cwd)
    tree = None if worktree is None else core.workspace_state.worktrees.get(worktree)
    return (Path(cwd), None) if tree is None else (Path(tree.path), worktree)


def _is_of_parent(core: SessionCore, call: int) -> bool:
    """Whether a call was made in the session from which this one was forked, and not here."""
    return call <= lineage_of(core).forked_at


async def _reconciled(core: SessionCore, seq: int, call: OpenCall, finding: str) -> None:
    await core.log.append("tool.reconciled", {"call": seq, "finding": finding}, agent=call.agent, cause=(seq,))


async def _close(core: SessionCore, seq: int, call: OpenCall, kind: str, output: str) -> None:
    await core.log.append(kind, {"call": seq, "output": output}, agent=call.agent, cause=(seq,))
