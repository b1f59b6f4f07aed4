"""What landing is handed, and how it writes its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.guard.approvals import Approvals
from musecode_jupyter.log import EventLog
from musecode_jupyter.runtime.answers import Answers
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.tools.executor import Executor
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.sharing import Share

__all__ = ["COMMIT_FIRST", "HARNESS", "LandingTools"]

COMMIT_FIRST = "Commit or stash, then resume."


@dataclass(frozen=True)
class LandingTools:
    """What landing works with.

    `worktrees` is the folder for verification trees, `session` the id that names them and the backup refs.
    `share` names the ignored folders that each checkout for agents and checks gets from the user's.
    `remedy` says what helps where the user's own changes are in the way.
    `open_documents` are the files of notebooks that a front end has open: those are never written behind its back.
    `answers` says who is asked in place of git, for the chain of work of this name.
    """

    log: EventLog
    effects: Effects
    git: Git
    executor: Executor
    approvals: Approvals
    worktrees: Path
    session: str
    open_documents: Callable[[], list[Path]]
    share: tuple[Share, ...] = field(default=(), kw_only=True)
    answers: Callable[[str], Answers | None] = field(default=lambda _: None, kw_only=True)
    remedy: str = field(default=COMMIT_FIRST, kw_only=True)

    async def emit(self, kind: str, data: Mapping[str, Any], *cause: int) -> int:
        """Write an event of the harness; returns its seq once it is durable."""
        return (await self.log.append(kind, data, agent=HARNESS, cause=cause)).seq

    def backup_ref(self, name: str) -> str:
        """The ref that keeps what a branch was at before it was moved for `name`."""
        return f"refs/musecode/backup/{self.session}/{name}"
