"""Ends what one agent does: the lead's questions and goals, or a worker's task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from musecode_jupyter.runtime.errors import UsageProblem

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


async def stop_agent(core: SessionCore, name: str, why: str) -> str:
    """End what the agent does, at once, and say so in a line; for the lead (or no name) as `core.stop_work`.

    A worker's task waits for the user; the other workers go on, and the goal ends as blocked once they are done.
    Raises UsageProblem if there is no such agent or it does nothing.
    """
    record = core.agents.agents.get(name) if name else None
    if name and record is None:
        raise UsageProblem(f"There is no running agent {name!r}; `%muse agents` lists them.")
    if record is None or record.role == "lead":
        await core.stop_work(why)
        return "Stopped; what was done so far is kept."
    if core.fan_out is None:
        raise UsageProblem(f"{name} has no task now; `%muse agents` says what each does.")
    return await core.fan_out.stop_worker(name, why)
