"""The fold of tool events: calls without a result yet, and the content in which each file was last seen."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice

CLOSING = frozenset({"tool.finished", "tool.failed", "tool.cancelled", "tool.unknown"})


class OpenCall(Slice):
    """A call that has no result yet."""

    agent: str
    name: str
    arguments: dict[str, Any]
    origin: str
    call_id: str | None = None
    purpose: str = ""
    decided: str | None = None
    started: bool = False
    effect: str | None = None
    path: str | None = None
    before: str | None = None
    after: str | None = None


class ToolsState(Slice):
    """`open` by seq of tool.requested; `seen` maps "worktree:path" to the digest last observed or written."""

    open: dict[int, OpenCall] = Field(default_factory=dict)
    seen: dict[str, str] = Field(default_factory=dict)
    calls: int = 0


def seen_key(worktree: int | None, path: str) -> str:
    """Key of `ToolsState.seen`."""
    return f"{'' if worktree is None else worktree}:{path}"


class ToolsReducer:
    """Folds tool.* and file.* events."""

    name = "tools"
    kinds = frozenset({"tool.requested", "tool.decided", "tool.started", *CLOSING, "file.observed", "file.changed"})

    def initial(self) -> ToolsState:
        return ToolsState()

    def apply(self, state: ToolsState, event: Event) -> None:
        data = event.data
        if event.kind == "tool.requested":
            state.calls += 1
            state.open[event.seq] = OpenCall(
                agent=event.agent,
                name=data["name"],
                arguments=dict(data["arguments"]),
                origin=data["origin"],
                call_id=data["call_id"],
                purpose=data["purpose"],
            )
        elif event.kind == "tool.decided" and data["call"] in state.open:
            state.open[data["call"]].decided = data["decision"]
        elif event.kind == "tool.started" and data["call"] in state.open:
            call = state.open[data["call"]]
            call.started = True
            call.effect = data["effect"]
            call.path, call.before, call.after = data["path"], data["before"], data["after"]
        elif event.kind in CLOSING:
            state.open.pop(data["call"], None)
        elif event.kind == "file.observed":
            state.seen[seen_key(data["worktree"], data["path"])] = data["digest"]
        elif event.kind == "file.changed":
            key = seen_key(data["worktree"], data["path"])
            if data["after"] is None:
                state.seen.pop(key, None)
            else:
                state.seen[key] = data["after"]
