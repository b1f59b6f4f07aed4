"""Questions to the user: asked as events, answered only through the widget or the magics, bound to a digest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

from musecode_jupyter.guard.policy import action_digest
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import UsageProblem


class PendingApproval(BaseModel):
    """A question that waits for an answer."""

    agent: str
    action: str
    rule: str
    digest: str
    shown: dict[str, Any]
    call: int | None = None


class ApprovalsState(BaseModel):
    """`pending` by seq of approval.requested; `rules` are the session's rules in the order of their adding."""

    pending: dict[int, PendingApproval] = Field(default_factory=dict)
    rules: list[str] = Field(default_factory=list)


class ApprovalsReducer:
    """Folds approval.* and rule.* events."""

    name = "approvals"

    def initial(self) -> ApprovalsState:
        return ApprovalsState()

    def apply(self, state: ApprovalsState, event: Event) -> None:
        data = event.data
        if event.kind == "approval.requested":
            state.pending[event.seq] = PendingApproval(
                agent=event.agent,
                action=data["action"],
                rule=data["rule"],
                digest=data["digest"],
                shown=dict(data["shown"]),
                call=data["call"],
            )
        elif event.kind in {"approval.granted", "approval.denied", "approval.expired"}:
            state.pending.pop(data["approval"], None)
        elif event.kind == "rule.added" and data["rule"] not in state.rules:
            state.rules.append(data["rule"])


@dataclass(frozen=True)
class Answer:
    """The user's answer. `approval` is the seq of the question."""

    granted: bool
    approval: int
    why: str = ""


class Approvals:
    """Asks and takes answers; used on the runtime thread. Owner of the futures that wait for answers."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    @property
    def state(self) -> ApprovalsState:
        """Pending questions and session rules."""
        state = self._log.state("approvals")
        assert isinstance(state, ApprovalsState)
        return state

    async def ask(
        self, action: str, rule: str, shown: Mapping[str, Any], *, agent: str, call: int | None = None
    ) -> Answer:
        """Put the question and wait for the answer, however long that takes; cancelling withdraws the question."""
        event = await self._log.append(
            "approval.requested",
            {
                "action": action,
                "rule": rule,
                "digest": action_digest(action, shown),
                "shown": dict(shown),
                "call": call,
            },
            agent=agent,
            cause=() if call is None else (call,),
        )
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[event.seq] = future
        try:
            return await future
        except asyncio.CancelledError:
            if event.seq in self.state.pending:
                self._log.post("approval.expired", {"approval": event.seq, "why": "the action was stopped"})
            raise
        finally:
            self._waiting.pop(event.seq, None)

    async def answer(
        self,
        approval: int | None,
        decision: Literal["approve", "approve_session", "deny"],
        *,
        by: str,
        why: str = "",
        digest: str | None = None,
    ) -> int:
        """Record the user's answer to question `approval` (the only pending one if None); returns its seq.

        Raises UsageProblem if there is no such question any more, or if `digest`, of what was shown to the user, is
        not that of the question.
        """
        seq = self._which(approval)
        pending = self.state.pending[seq]
        if digest is not None and digest != pending.digest:
            raise UsageProblem(f"What was shown is not what approval {seq} asks for; nothing was answered.")
        if decision == "deny":
            await self._log.append("approval.denied", {"approval": seq, "by": by, "why": why}, agent="user")
        else:
            scope = "session" if decision == "approve_session" else "once"
            await self._log.append("approval.granted", {"approval": seq, "by": by, "scope": scope}, agent="user")
            if scope == "session":
                await self._log.append(
                    "rule.added",
                    {"rule": pending.rule, "action": pending.action, "approval": seq},
                    agent="user",
                    cause=(seq,),
                )
        future = self._waiting.get(seq)
        if future is not None and not future.done():
            future.set_result(Answer(decision != "deny", seq, why))
        return seq

    def expire_all(self, why: str) -> None:
        """Withdraw all questions: an answer from before a crash is evidence, not authority."""
        for seq in list(self.state.pending):
            self._log.post("approval.expired", {"approval": seq, "why": why})

    def _which(self, approval: int | None) -> int:
        pending = self.state.pending
        if approval is None:
            if len(pending) == 1:
                return next(iter(pending))
            if not pending:
                raise UsageProblem("No approval is pending.")
            raise UsageProblem(f"Several approvals are pending: name one of {', '.join(map(str, pending))}.")
        if approval not in pending:
            known = ", ".join(map(str, pending)) or "none"
            raise UsageProblem(f"Approval {approval} is not pending any more (pending: {known}).")
        return approval
