"""Questions to the user: asked as events, answered only through the widget or the magics, bound to a digest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

from musecode_jupyter.guard.policy import action_digest
from musecode_jupyter.guard.rules import Rule, Rules
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.runtime.process import to_the_end

Decision = Literal["approve", "approve_session", "approve_workspace", "deny"]
Scope = Literal["once", "session", "workspace"]
_SCOPES: dict[str, Scope] = {
    "approve": "once",
    "approve_session": "session",
    "approve_workspace": "workspace",
}
_ENDINGS = {"approval.granted": "granted", "approval.denied": "denied", "approval.expired": "withdrawn"}


class PendingApproval(BaseModel):
    """A question that waits for an answer."""

    agent: str
    action: str
    rule: str
    digest: str
    shown: dict[str, Any]
    call: int | None = None


class ApprovalsState(BaseModel):
    """`pending` by seq of approval.requested."""

    pending: dict[int, PendingApproval] = Field(default_factory=dict)


class ApprovalsReducer:
    """Folds approval.* events."""

    # Not "approvals", which also held the rules.
    name = "questions"
    kinds = frozenset({"approval.requested", *_ENDINGS})

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
        elif event.kind in _ENDINGS:
            state.pending.pop(data["approval"], None)


@dataclass(frozen=True)
class Answer:
    """The user's answer. `approval` is the seq of the question, `digest` what it was bound to."""

    granted: bool
    approval: int
    digest: str
    why: str = ""


@dataclass(frozen=True)
class Given:
    """What became of an answer: `scope` is once, session, workspace or none; `note` tells why it is not as asked."""

    approval: int
    scope: Literal["once", "session", "workspace", "none"]
    note: str = ""


@dataclass
class _Question:
    """A question under way and all who wait for its answer. `offer` is the rule that would cover it."""

    digest: str
    offer: Rule | None
    no_rule: str
    future: asyncio.Future[Answer]
    seq: int | None = None
    waiters: int = 0


class Approvals:
    """Asks and takes answers; used on the runtime thread. Owner of the futures that wait for answers."""

    def __init__(self, log: EventLog, rules: Rules) -> None:
        self._log = log
        self.rules = rules
        self._open: dict[str, _Question] = {}

    @property
    def state(self) -> ApprovalsState:
        """Pending questions."""
        state = self._log.state("questions")
        assert isinstance(state, ApprovalsState)
        return state

    async def ask(
        self,
        action: str,
        rule: str,
        shown: Mapping[str, Any],
        *,
        agent: str,
        call: int | None = None,
        offer: Rule | None = None,
        no_rule: str = "",
    ) -> Answer:
        """Put the question and wait for the answer, however long that takes.

        Whoever asks the same meanwhile, by the digest of `shown`, waits for the same answer. Cancelling ends one's
        own waiting; the last one to leave withdraws the question. `offer` is the rule that an answer for longer
        than once puts in force; without one, `no_rule` says why there is none.
        """
        digest = action_digest(action, shown)
        question = self._open.get(digest)
        if question is None:
            question = _Question(digest, offer, no_rule, asyncio.get_running_loop().create_future())
            self._open[digest] = question
            try:
                event = self._log.post(
                    "approval.requested",
                    {"action": action, "rule": rule, "digest": digest, "shown": dict(shown), "call": call},
                    agent=agent,
                    cause=() if call is None else (call,),
                )
            except BaseException:
                del self._open[digest]
                raise
            question.seq = event.seq
        question.waiters += 1
        try:
            await self._log.flush()
            # The future is shared: one who is cancelled must not end it for the others.
            await asyncio.wait([question.future])
            return question.future.result()
        finally:
            question.waiters -= 1
            if not question.waiters and not question.future.done():
                self._withdraw(question)

    async def answer(
        self,
        approval: int | None,
        decision: Decision,
        *,
        by: str,
        why: str = "",
        digest: str | None = None,
    ) -> Given:
        """Record the user's answer to question `approval` (the only pending one if None). The first answer counts.

        Raises UsageProblem if there is no such question any more, saying who answered it, or if `digest`, of what
        was shown to the user, is not that of the question.
        """
        seq = self._which(approval)
        pending = self.state.pending[seq]
        question = self._open.get(pending.digest)
        if question is None or question.seq != seq:
            raise UsageProblem(f"Nobody waits for approval {seq} any more; it will be asked again if it is needed.")
        if digest is not None and digest != pending.digest:
            raise UsageProblem(f"What was shown is not what approval {seq} asks for; nothing was answered.")
        scope, note = _SCOPES.get(decision), ""
        if scope in {"session", "workspace"} and question.offer is None:
            scope, note = "once", f"No rule can cover it: {question.no_rule or 'it is asked every time'}."
        # Posted before anything is waited for: from here on no other answer and no new asker finds the question.
        if scope is None:
            self._log.post("approval.denied", {"approval": seq, "by": by, "why": why}, agent="user")
        else:
            self._log.post("approval.granted", {"approval": seq, "by": by, "scope": scope}, agent="user")
        del self._open[question.digest]
        answer = Answer(scope is not None, seq, pending.digest, why)
        return await to_the_end(self._pass_on(question, pending.action, answer, scope, note, by))

    async def _pass_on(
        self, question: _Question, action: str, answer: Answer, scope: Scope | None, note: str, by: str
    ) -> Given:
        """Wake those who wait once the answer, and the rule with it, is durable."""
        try:
            if scope in {"session", "workspace"} and question.offer is not None:
                kept: Literal["session", "workspace"] = "session" if scope == "session" else "workspace"
                try:
                    await self.rules.add(question.offer, kept, by=by, action=action, approval=answer.approval)
                except UsageProblem as problem:
                    scope, note = "once", f"It holds once only. {problem}"
            await self._log.flush()
        except BaseException as error:
            if not question.future.done():
                question.future.set_exception(error)
                question.future.exception()  # seen here, if nobody waits any more
            raise
        if not question.future.done():
            question.future.set_result(answer)
        return Given(answer.approval, scope or "none", note)

    def expire_all(self, why: str) -> None:
        """Withdraw all questions: an answer from before a crash is evidence, not authority."""
        for seq in list(self.state.pending):
            self._log.post("approval.expired", {"approval": seq, "why": why})

    def _withdraw(self, question: _Question) -> None:
        if question.seq in self.state.pending and self._log.writable:
            self._log.post("approval.expired", {"approval": question.seq, "why": "the action was stopped"})
        if self._open.get(question.digest) is question:
            del self._open[question.digest]

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
            raise UsageProblem(
                f"Approval {approval} is not pending any more{self._ended(approval)} (pending: {known})."
            )
        return approval

    def _ended(self, approval: int) -> str:
        """How a question that is gone ended, as the end of a clause; empty if there never was one."""
        if not 1 <= approval <= self._log.last_seq or self._log.get(approval).kind != "approval.requested":
            return ""
        for event in self._log.events(since=approval):
            if event.kind in _ENDINGS and event.data["approval"] == approval:
                by, why = event.data.get("by"), event.data.get("why")
                ended = f": it was {_ENDINGS[event.kind]}" + (f" from the {by}" if by else "")
                return ended + (f", {why}" if why else "")
        return ""
