"""What a restart does with the open ends of the process before it, so that nothing runs twice and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from musecode_jupyter.runtime.errors import MuseError
from musecode_jupyter.session.landings import clean_up, settle_landings
from musecode_jupyter.tools.builtin import MAX_EDITABLE_BYTES
from musecode_jupyter.tools.files import digest_bytes, read_bytes, write_atomic
from musecode_jupyter.tools.registry import Place
from musecode_jupyter.tools.state import OpenCall
from musecode_jupyter.workspace.git import Git

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


async def reconcile(core: SessionCore) -> None:
    """Settle open model calls, tool calls and questions of earlier generations; suspend agents, pause goals.

    A started read runs again and a started write is compared with its hashes; both get their one result without a
    second tool.started. A started process is never run again: its outcome is unknown. A call that was requested but
    not started stays open if the model made it, and is carried out when its agent goes on.
    """
    core.approvals.expire_all("the session was restarted; it will be asked again")
    for seq, reserve in list(core.ledger.open.items()):
        await core.log.append(
            "model.abandoned",
            {"request": seq, "why": "cut off by a restart", "cost_usd": reserve.usd, "tokens": reserve.tokens},
            agent=reserve.agent,
            cause=(seq,),
        )
    for seq, call in list(core.executor.state.open.items()):
        await _settle(core, seq, call)
    for name, record in core.agents.agents.items():
        if record.state in {"running", "waiting"}:
            await core.log.append("agent.state", {"state": "suspended", "why": "restart"}, agent=name)
    for goal, goal_record in core.goals.goals.items():
        if goal_record.status == "running":
            await core.log.append(
                "goal.paused",
                {"goal": goal, "why": "the session was restarted"},
                agent=goal_record.agent,
                cause=(goal,),
            )
    await clean_up(core)
    await settle_landings(core)


async def _settle(core: SessionCore, seq: int, call: OpenCall) -> None:
    if not call.started:
        if call.origin == "harness":
            await _close(core, seq, call, "tool.cancelled", "Not started before the restart.")
        return
    if call.effect == "process":
        what = "A restart cut this command off. Whether it had effects is not known. It is not run again by itself."
        await _close(core, seq, call, "tool.unknown", what)
    elif call.effect == "write":
        await _settle_write(core, seq, call)
    else:
        await _settle_read(core, seq, call)


async def _settle_write(core: SessionCore, seq: int, call: OpenCall) -> None:
    started = next(e for e in core.log.events(since=seq) if e.kind == "tool.started" and e.data["call"] == seq)
    root, worktree = Path(str(started.data["cwd"])), _worktree_of(core, str(started.data["cwd"]))
    assert call.path is not None
    assert call.after is not None
    try:
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
    started = next(e for e in core.log.events(since=seq) if e.kind == "tool.started" and e.data["call"] == seq)
    root = Path(str(started.data["cwd"]))

    async def list_files() -> list[str]:
        return await (await Git.discover(root, core.effects)).list_files(root)

    own = root == core.workspace
    place = core.own_place() if own else Place(root, _worktree_of(core, str(root)), list_files)
    await core.executor.finish_read(seq, call, place)


def _worktree_of(core: SessionCore, cwd: str) -> int | None:
    return next((seq for seq, tree in core.workspace_state.worktrees.items() if tree.path == cwd), None)


async def _reconciled(core: SessionCore, seq: int, call: OpenCall, finding: str) -> None:
    await core.log.append("tool.reconciled", {"call": seq, "finding": finding}, agent=call.agent, cause=(seq,))


async def _close(core: SessionCore, seq: int, call: OpenCall, kind: str, output: str) -> None:
    await core.log.append(kind, {"call": seq, "output": output}, agent=call.agent, cause=(seq,))
