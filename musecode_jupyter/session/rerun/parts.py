"""What takes the world's place while recorded work is run again: the model, the tools, the user and git."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from pydantic import ConfigDict

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.context import parse_items
from musecode_jupyter.agents.prompts import REVIEWERS
from musecode_jupyter.guard.approvals import Answer, Approvals
from musecode_jupyter.guard.gate import Completion, digest_of, request_bytes
from musecode_jupyter.guard.policy import action_digest
from musecode_jupyter.guard.rules import Rule
from musecode_jupyter.log.events import Event
from musecode_jupyter.models.conversation import arguments_object
from musecode_jupyter.models.prices import Price
from musecode_jupyter.models.types import Final, ModelRequest, Usage
from musecode_jupyter.runtime.answers import revived_error
from musecode_jupyter.runtime.errors import BudgetExceeded, ModelError, MuseError, Stuck
from musecode_jupyter.session.rerun.log import RerunLog, ends_with
from musecode_jupyter.session.rerun.record import (
    BESIDE,
    RecordEnds,
    Stretch,
    first_difference,
    interrupted_task,
    told,
)
from musecode_jupyter.skills.goal import PauseRequested
from musecode_jupyter.tools.executor import CallResult, Executor, FormedCall
from musecode_jupyter.tools.registry import Arguments, Place, Tool
from musecode_jupyter.tools.state import OpenCall

T = TypeVar("T")

NEVER = 2**63
# Sessions of earlier versions were not shortened.
_NO_LIMIT = 2**40


class Schedule:
    """Lets what is awaited come about in the order of the record, one at a time, when nothing else can go on."""

    def __init__(self, log: RerunLog) -> None:
        self._log = log
        self._waiting: list[tuple[Event | None, str, asyncio.Future[None]]] = []
        self._over = False

    async def until(self, event: Event | None, agent: str) -> None:
        """Wait until `event` comes about; for ever if there is none. `agent` is who goes on then."""
        if self._over:
            raise RecordEnds("nothing more is recorded")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (event, agent, future)
        self._waiting.append(entry)
        try:
            await future
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def end(self) -> None:
        """End all waiting, now and later: nothing more comes about."""
        self._over = True
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(RecordEnds("nothing more is recorded"))

    def next_seq(self) -> int:
        """The first event that somebody waits for; beyond all events if there is none."""
        return min((each[0].seq for each in self._waiting if each[0] is not None), default=NEVER)

    def release(self) -> bool:
        """Let the first of what is awaited come about; False if nothing can."""
        entry = min(self._waiting, key=lambda each: NEVER if each[0] is None else each[0].seq, default=None)
        if entry is None:
            return False
        event, agent, future = entry
        if event is None:
            return False
        self._waiting.remove(entry)
        # Whoever goes on now sees what happened up to what they do next.
        following = self._log.next_by(agent)
        self._log.begin_anew(agent)
        later = following is not None and agent != HARNESS and agent not in BESIDE
        self._log.reach(max(event.seq, following.seq - 1) if later and following is not None else event.seq)
        for name in ("call", "request", "approval"):
            if isinstance(event.data.get(name), int):
                self._log.answer(event.data[name])
        if not future.done():
            future.set_result(None)
        return True


@dataclass
class Rerun:
    """One stretch that is run again: its record, the log that stands in, and the order of what is awaited."""

    log: RerunLog
    stretch: Stretch
    schedule: Schedule
    answers_of: dict[str, list[Event]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for event in self.stretch.events:
            if event.kind == "git.answered":
                self.answers_of.setdefault(event.data["chain"], []).append(event)

    def goes_on(self, agent: str) -> bool:
        """Whether `agent` did anything more in this stretch."""
        mine = self.log.next_by(agent) or self.log.next_of(lambda event: _names(event, agent))
        return mine is not None or bool(self.answers_of.get(agent))

    def stops(self, agent: str) -> bool:
        """Whether what ended the work of `agent` is that it is stopped, and the others go on."""
        return (
            self.log.to_come(lambda each: interrupted_task(each) is not None and each.data["scope"] == agent)
            is not None
        )

    async def checkpoint(self, agent: str) -> None:
        """End the work of `agent` as it ended when recorded, if it did nothing more."""
        following = self.log.next_by(agent)
        if (closed := ends_with.get()) is not None and (following is None or following.seq > closed.seq):
            # Whatever it was that ended the review: the agent did nothing more in it.
            raise asyncio.CancelledError
        if following is not None:
            before = self.log.before(following)
            self.reach(agent, before)
            self.log.deliver(agent, before)
        if not self.goes_on(agent) or (following is not None and _from_outside(following)):
            # What is judged on a goal's reserve goes on behind the end of its work.
            exhausted = following is not None and following.kind == "goal.exhausted"
            if (self.stretch.stopped and not exhausted) or self.stops(agent):
                await self.schedule.until(None, agent)
            self.end()

    def reach(self, agent: str, seq: int) -> None:
        """Let come about what the user and the world brought before `agent` goes on with what follows event `seq`.

        Reviewers may work beside others, and need nothing of it that those have not come to yet.
        """
        self.log.reach(min(seq, self.schedule.next_seq() - 1) if agent in REVIEWERS else seq)

    def end(self) -> NoReturn:
        """Raise what brought the recorded work to rest."""
        ending = self.stretch.ending
        if ending is None:
            raise RecordEnds("nothing more is recorded")
        if ending.kind == "budget.exceeded":
            raise BudgetExceeded(ending.data["why"], scope=ending.data["scope"], needed=ending.data["needed"])
        if ending.kind == "goal.stopped" and ending.data.get("ladder"):
            raise Stuck(ending.data["why"], ending.data["state"])
        if ending.kind == "goal.paused":
            raise PauseRequested(ending.data["why"])
        raise MuseError(ending.data["why"])

    def now(self) -> datetime:
        """The time at which the last event that came about was written."""
        return datetime.fromisoformat(self.log.get(self.log.last_seq).ts)


def _from_outside(event: Event) -> bool:
    """Whether a goal came to rest by something other than what its agent did or said."""
    return event.kind in {"goal.paused", "goal.exhausted"} or (
        event.kind == "goal.stopped"
        and (event.data["state"] in {"budget", "error", "stopped"} or bool(event.data.get("ladder")))
    )


def _names(event: Event, agent: str) -> bool:
    return event.kind.startswith(("task.", "merge.")) and event.data.get("agent") == agent


class RerunGate:
    """In place of the gate: a request must be the recorded one, byte for byte; its recorded end is the answer."""

    def __init__(self, rerun: Rerun, opened: Mapping[str, Any]) -> None:
        self._rerun = rerun
        self.profile = str(opened["profile"])
        self.room = int(opened.get("room", 0)) or _NO_LIMIT
        self.price = Price(*opened["price"]) if opened.get("price") else Price(0.0, 0.0, 0.0)
        self._asked: Mapping[str, Any] = {}

    @property
    def model(self) -> str:
        """The model of the request that comes next."""
        return str(self._asked["model"])

    @property
    def info(self) -> RerunGate:
        """Settings of the request that comes next: what it was recorded with."""
        return self

    @property
    def pictures(self) -> bool:
        """Whether pictures are sent."""
        return bool(self._asked.get("pictures", False))

    @property
    def reasoning_items(self) -> bool:
        """Whether an effort is sent."""
        return self._asked["effort"] is not None

    @property
    def answer_tokens(self) -> int:
        """Most tokens of an answer."""
        return int(self._asked["max_output_tokens"])

    @property
    def effort(self) -> str | None:
        """How much reasoning is asked for."""
        return self._asked.get("effort")

    def expect(self, agent: str) -> None:
        """Look up the next request of `agent`, whose settings hold from here on."""
        event = self._rerun.log.next_of(lambda each: each.kind == "model.requested", agent)
        if event is not None:
            self._asked = event.data

    async def ready(self, agent: str = "") -> None:
        """Nothing is connected; what came in before the next command of `agent` is there."""
        following = self._rerun.log.next_of(lambda event: event.agent == agent)
        if agent and following is not None:
            self._rerun.reach(agent, following.seq - 1)
            self._rerun.log.begin_anew(agent)
            self.expect(agent)

    async def complete(
        self,
        request: ModelRequest,
        *,
        agent: str,
        turn: int,
        view: int | None,
        purpose: str = "",
        cause: tuple[int, ...] = (),
    ) -> Completion:
        """As `Gate.complete`."""
        rerun = self._rerun
        await rerun.checkpoint(agent)
        expected = rerun.log.next_by(agent)
        sent: dict[str, Any] = {"api": "", "origin": "", "reserved_microusd": 0, "reserved_tokens": 0}
        if expected is not None and expected.kind == "model.requested":
            sent = {name: expected.data[name] for name in sent}
        body = request_bytes(sent["api"] or "chat", sent["origin"], request)
        event = rerun.log.post(
            "model.requested",
            {
                "model": request.model,
                "view": view,
                "items": len(request.items),
                "max_output_tokens": request.max_output_tokens,
                "effort": request.effort,
                "temperature": request.temperature,
                "seed": request.seed,
                "cache_key": request.cache_key,
                "pictures": request.pictures,
                "digest": digest_of(body),
                "bytes": len(body),
                "purpose": purpose,
                **sent,
            },
            agent=agent,
            turn=turn,
            cause=cause,
        )
        ended = rerun.stretch.answered.get(event.seq)
        await rerun.schedule.until(ended, agent)
        assert ended is not None
        data = ended.data
        if ended.kind == "model.abandoned":
            raise asyncio.CancelledError
        if ended.kind == "model.failed":
            if data["error_kind"] == "PauseRequested":
                raise PauseRequested(data["error"])
            if data["error_kind"] == "BudgetExceeded":
                if rerun.stretch.grill is not None:
                    # One angle is not tried; whoever asked goes on.
                    raise BudgetExceeded(data["error"], scope="")
                rerun.end()
            raise ModelError(data["error"], kind=data["error_kind"])
        final = Final(
            status=data["status"],
            items=parse_items(data["items"]),
            usage=None if data["usage"] is None else Usage(**data["usage"]),
            model=data["served_model"],
            response_id=data["response_id"],
            reason=data["reason"],
        )
        return Completion(event.seq, ended.seq, final)


class _AnyArguments(Arguments):
    """Arguments of a tool that is not there to say what it takes: as they come."""

    model_config = ConfigDict(frozen=True, extra="allow")


class RerunExecutor(Executor):
    """The executor whose calls end as they were recorded to end."""

    rerun: Rerun

    def _parse(self, formed: FormedCall) -> tuple[Tool | None, dict[str, Any], str]:
        if formed.name in self.registry.tools:
            return super()._parse(formed)
        # A tool of the notebook's, which is not here: what it made of its arguments is taken from the record.
        event = self.rerun.log.next_of(
            lambda each: each.kind == "tool.requested" and each.data["call_id"] == formed.call_id
        )
        if event is None or event.data["name"] != formed.name or "unparsed" in event.data["arguments"]:
            return super()._parse(formed)
        tool = Tool(formed.name, "", _AnyArguments, "process", offered=True)
        given, problem = _given(formed)
        return tool, {**event.data["arguments"], **given}, problem

    async def go_on(
        self, seq: int, call: OpenCall, *, agent: str, turn: int, place: Place, typed: frozenset[str]
    ) -> CallResult:
        tool = self.registry.tools.get(call.name) or Tool(call.name, "", _AnyArguments, "process", offered=True)
        return await self._carry_out(tool, call.arguments, seq, agent, turn, place, typed)

    async def _carry_out(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        seq: int,
        agent: str,
        turn: int,
        place: Place,
        typed: frozenset[str],
    ) -> CallResult:
        del turn
        stretch = self.rerun.stretch
        ended = stretch.closing.get(seq)
        await self.rerun.schedule.until(ended, agent)
        assert ended is not None
        self._check_decision(tool, arguments, seq, place, typed)
        if ended.kind == "tool.cancelled":
            raise asyncio.CancelledError
        data = ended.data
        if ended.kind != "tool.finished":
            broken = bool(data.get("broken_off"))
            return CallResult(seq, ended.kind.removeprefix("tool."), data["output"], False, broken_off=broken)
        return CallResult(seq, "finished", data["output"], data["ok"], data["exit"], data["seconds"])

    def _check_decision(
        self, tool: Tool, arguments: Mapping[str, Any], seq: int, place: Place, typed: frozenset[str]
    ) -> None:
        """What the policy says by itself, without rules and answers of the user, must be what was decided."""
        stretch = self.rerun.stretch
        decided, began = stretch.decided.get(seq), stretch.began.get(seq)
        if decided is not None and tool.name in self.registry.tools:
            isolated = place.worktree is not None and tool.where == "place"
            verdict = self.policy.tool(tool.effect, arguments=arguments, isolated=isolated, typed=typed, covered=None)
            said = (decided.data["decision"], decided.data["rule"])
            if tool.effect != "process" and said != (verdict.decision, verdict.rule):
                raise self.rerun.log.differ(
                    decided.seq,
                    f"event {decided.seq} (tool.decided), field data.decision: recorded {told(said)}, "
                    f"now {told((verdict.decision, verdict.rule))}",
                )
        if began is not None and tool.name in self.registry.tools:
            for name, now in (("effect", tool.effect), ("cwd", str(place.root))):
                found = first_difference(began.data[name], now, f"data.{name}")
                if found is not None:
                    raise self.rerun.log.differ(
                        began.seq,
                        f"event {began.seq} (tool.started), field {found[0]}: recorded {told(found[1])}, "
                        f"now {told(found[2])}",
                    )


def _given(formed: FormedCall) -> tuple[dict[str, Any], str]:
    """The arguments as the call has them, or why they cannot be read."""
    try:
        text = formed.arguments
        return dict(arguments_object(text) if isinstance(text, str) else text), ""
    except ValueError as error:
        return {}, str(error)


class RerunApprovals(Approvals):
    """Questions that are answered as they were."""

    rerun: Rerun

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
        del offer, no_rule
        digest = action_digest(action, shown)
        said = {"action": action, "rule": rule, "digest": digest, "shown": dict(shown), "call": call}
        event = self.rerun.log.post("approval.requested", said, agent=agent, cause=() if call is None else (call,))
        ended = self.rerun.stretch.approved.get(event.seq)
        await self.rerun.schedule.until(ended, agent)
        assert ended is not None
        if ended.kind == "approval.expired":
            raise asyncio.CancelledError
        granted = ended.kind == "approval.granted"
        return Answer(granted, event.seq, digest, "" if granted else ended.data["why"])


@dataclass(frozen=True)
class RerunAnswers:
    """Git's answers as they were noted down, for one chain of work."""

    rerun: Rerun
    chain: str

    async def answer(
        self, question: str, arguments: dict[str, Any], work: Callable[[], Awaitable[T]], revive: Callable[[Any], T]
    ) -> T:
        del work
        noted = self.rerun.answers_of.get(self.chain, [])
        event = next((each for each in noted if _same(each, question, arguments)), noted[0] if noted else None)
        ended = ends_with.get()
        broken_off = self.rerun.stretch.broken_off or (ended is not None and bool(ended.data["why"]))
        if event is None or (broken_off and not _same(event, question, arguments)):
            # It was stopped while it asked this.
            await self.rerun.schedule.until(None, HARNESS)
        assert event is not None
        found = first_difference(event.data["question"], question, "data.question") or first_difference(
            event.data["arguments"], arguments, "data.arguments"
        )
        if found is not None:
            raise self.rerun.log.differ(
                event.seq,
                f"event {event.seq} (git.answered), field {found[0]}: recorded {told(found[1])}, now {told(found[2])}",
            )
        noted.remove(event)
        await self.rerun.schedule.until(event, HARNESS)
        if event.data["error"] is not None:
            raise revived_error(event.data["error"])
        return revive(event.data["answer"])


def _same(event: Event, question: str, arguments: Mapping[str, Any]) -> bool:
    return bool(event.data["question"] == question and event.data["arguments"] == arguments)
