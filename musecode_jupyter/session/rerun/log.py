"""Stands in for the event log while recorded work is run again: what is posted must be what was recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.prompts import REVIEWERS, WORKER
from musecode_jupyter.agents.state import AgentsState
from musecode_jupyter.log.events import Event, parse_json
from musecode_jupyter.log.fold import Fold
from musecode_jupyter.log.payload import Payload
from musecode_jupyter.log.record import checked, redacted
from musecode_jupyter.log.redaction import Redactor
from musecode_jupyter.runtime.answers import asked
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.session.rerun.record import COMMANDS, Differs, RecordEnds, Stretch, first_difference, issued, told
from musecode_jupyter.tools.state import CLOSING

# Of the price list and the reserve, which are settings and not the agents' doing.
# A hand-over tells of all that the log has by then, also of chains of work that were stopped amid a step.
_SETTINGS = {
    "model.requested": ("reserved_microusd", "reserved_tokens"),
    "goal.stopped": ("handover",),
    "goal.met": ("handover",),
}
# How the others stand at that moment: between several chains of work only the order within each is kept.
_OF_OTHERS = ("text", "after", "numbers", "why", "claims")
# What begins a chain of work beside others, of agents that are woken.
WAKES = frozenset({"agent.woken", "batch.settled", "checks.begun"})
# What shows that several chains of work act as the harness.
_SIDE_BY_SIDE = frozenset({"task.created", "batch.settled", "checks.begun"})
_FREE = frozenset({"agent.state", "agent.created", "agent.seeded"})
# What makes an agent, which it is when it begins something.
_OTHER_ONE = frozenset({"agent.created", "agent.retired"})
# What an agent is given after that.
_GIVES = frozenset({"task.leased", "critique.asked"})
_HANDS = _GIVES | {"task.bounced"}
_MAKES = _OTHER_ONE | {"agent.seeded"}
# After these a letter is not brought any more.
_SETTLES_MAIL = frozenset({"mail.acknowledged", "mail.dropped"})

ends_with: ContextVar[Event | None] = ContextVar("ends_with", default=None)
"""The event with which the review or the checks ended within which this code runs, if it is such and has ended."""


class RerunLog:
    """The log as the code sees it in a run again: the recorded events, each once it has come about again.

    What the user and the world brought comes about when the run has got as far as that (`reach`), what the code issues
    when it issues it. `chain` names whose order of issuing it is.
    """

    writable = True
    problem = None

    def __init__(self, folder: Path, blob: Callable[[str], bytes]) -> None:
        self.folder = folder
        self.blob = blob
        self._fold = Fold(all_reducers())
        # The state in the order of the record, up to event `_settled_to`; followed once another order was seen.
        self._settled = Fold(all_reducers())
        self._settled_to = 0
        self._disordered = False
        self._redactor = Redactor()
        self._came: dict[int, Event] = {}
        self._order: list[int] = []
        self._newest = 0
        self._sorted = True
        self._stretch: Stretch | None = None
        # Commands that were not issued again yet, by seq: of all, and of each agent.
        self._left: dict[int, Event] = {}
        self._left_of: dict[str, dict[int, Event]] = {}
        self._reached = 0
        self._world: list[Event] = []
        self._letters: list[Event] = []
        self._states: list[Event] = []
        self._effects: dict[int, list[Event]] = {}
        self._several = False
        self._last: dict[str, int] = {}
        self.differs: Differs | None = None
        """The first difference that was found."""
        self.on_world: Callable[[Event], None] = lambda _event: None
        """Told of what the user and the world bring, as it comes about."""
        self.suspect: Differs | None = None
        """The first difference of a stretch that was stopped."""
        self.issued = 0
        """How many commands were issued again so far."""

    def begin(self, before: Iterable[Event], stretch: Stretch) -> None:
        """Take in the events up to the start of `stretch`, and expect its commands."""
        for event in before:
            self._come(event)
        self._come(stretch.start)
        self._stretch = stretch
        self._left = {event.seq: event for event in stretch.events if issued(event)}
        self._left_of = {}
        for event in self._left.values():
            self._left_of.setdefault(event.agent, {})[event.seq] = event
        # In a question they come from whoever asks, in a goal from its runner.
        self._states = [event for event in stretch.events if event.kind == "agent.state" and stretch.goal is not None]
        states = {event.seq for event in self._states}
        self._world = [
            event
            for event in stretch.events
            if not issued(event) and event.seq not in states and _answers(event) is None and not _of_its_own_time(event)
        ]
        self._letters = [event for event in stretch.events if _of_its_own_time(event)]
        self._effects = {}
        for event in stretch.events:
            if (asked_by := _answers(event)) is not None and not issued(event):
                self._effects.setdefault(asked_by, []).append(event)
        self._several = self._several or any(event.kind in _SIDE_BY_SIDE for event in stretch.events)
        self.suspect = None
        self._reached = 0
        self._last = {}
        # A turn that begins before the first command is begun by whoever runs the stretch.
        first = next((each.seq for each in stretch.events if issued(each) or each.kind in WAKES), None)
        self.reach(stretch.start.seq if first is None else first - 1)

    def reach(self, seq: int) -> None:
        """Let come about what the user and the world brought up to event `seq`."""
        while self._reached < len(self._world) and self._world[self._reached].seq <= seq:
            event = self._world[self._reached]
            self._reached += 1
            self._come(event)
            self.on_world(event)

    def to_come(self, wanted: Callable[[Event], bool]) -> Event | None:
        """The first event that the user or the world will bring, of those wanted; None if no more comes."""
        return next((event for event in self._world[self._reached :] if wanted(event)), None)

    def deliver(self, to: str, seq: int) -> None:
        """Let come about what mail came into the conversation of `to` up to event `seq`: that is between two steps."""
        for event in self._next_of_own(to, seq):
            self._own(event)

    def begin_anew(self, agent: str) -> None:
        """Let come about that the conversation of `agent` begins anew, if that is before the next command of it."""
        following = self.next_by(agent)
        for event in self._next_of_own(agent, self._newest if following is None else following.seq):
            if event.kind == "agent.seeded":
                self._own(event)

    def make(self, agent: str, *, amid: bool) -> None:
        """Let come about what makes the agent the one that is given what it is given next: it is there, or there anew.

        `amid` work it stays who it is.
        """
        given = self.next_of(lambda event: event.kind in _GIVES and event.data["agent"] == agent)
        mine = [each for each in self._letters if each.agent == agent and (given is None or each.seq < given.seq)]
        if amid:
            mine = list(takewhile(lambda each: each.kind not in _OTHER_ONE, mine))
        made = [place for place, each in enumerate(mine, 1) if each.kind in _MAKES]
        for event in mine[: max(made, default=0)]:
            self._own(event)

    def _next_of_own(self, agent: str, seq: int) -> list[Event]:
        """What is the agent's own up to event `seq`, as long as it is this one and no other of its name."""
        mine = [each for each in self._letters if each.agent == agent and each.seq <= seq]
        return list(takewhile(lambda each: each.kind not in _OTHER_ONE, mine))

    def _own(self, event: Event) -> None:
        self._letters.remove(event)
        self._come(event)

    def wake(self, before: int) -> bool:
        """Let come about all up to the next turn of a standing agent, or the next review of a batch; False if none
        begins before event `before`."""
        woken = next((event for event in self._world[self._reached :] if event.kind in WAKES), None)
        if woken is None or woken.seq >= before:
            return False
        self.reach(woken.seq)
        return True

    def answer(self, to: int) -> None:
        """Let come about all that came of the call, request or question `to`."""
        for event in self._effects.pop(to, []):
            self._come(event)

    def _come(self, event: Event) -> None:
        if event.seq in self._came:
            return
        if event.kind in _SETTLES_MAIL:
            # Whoever was ended before the first step of a turn came to none at which its mail is brought.
            for letter in [each for each in self._letters if each.data.get("mail") == event.data["mail"]]:
                self._own(letter)
        self._came[event.seq] = event
        self._disordered = self._disordered or event.seq < self._newest
        self._newest = max(self._newest, event.seq)
        self._several = self._several or event.kind in _SIDE_BY_SIDE
        if self._order and self._order[-1] > event.seq:
            self._sorted = False
        self._order.append(event.seq)
        self._fold.apply(event)

    def finish(self, events: Iterable[Event]) -> None:
        """Let come about what has not of `events`, all of a stretch that is over; the state is that of the record then.

        Where several chains of work were run again, or one was stopped, what came about did so in another order: a
        merge that was given up would be under way again for an older event of it that comes last.
        """
        for event in events:
            self._come(event)
        if self._disordered:
            for event in self.events(since=self._settled_to):
                self._settled.apply(event)
            self._settled_to = self._newest
            self._fold.restore(parse_json(self._settled.states_text().encode("ascii")))
            self._disordered = False

    def bring(self, which: Callable[[Event], bool]) -> None:
        """Let come about what the user and the world bring later in the stretch, of the kind that `which` picks."""
        for event in self._world:
            if which(event):
                self._come(event)

    def next_of(self, belongs: Callable[[Event], bool], agent: str | None = None) -> Event | None:
        """The first command of the stretch (of `agent`, if given) that was not issued yet and that `belongs` picks."""
        left = self._left if agent is None else self._left_of.get(agent, {})
        return next((event for event in left.values() if belongs(event)), None)

    def next_by(self, agent: str) -> Event | None:
        """The first command of `agent` in the stretch that was not issued yet."""
        return next(iter(self._left_of.get(agent, {}).values()), None)

    def before(self, following: Event) -> int:
        """The last event that had come about when the agent of `following`, its next command, went on as it does now.

        What it is given before that command begins another turn of it: what comes in between is of that one.
        """
        given = self.next_of(lambda event: event.kind in _HANDS and event.data["agent"] == following.agent)
        return (following.seq if given is None else min(given.seq, following.seq)) - 1

    def left(self) -> list[Event]:
        """Commands of the stretch that were not issued again."""
        return [event for event in self._left.values() if event.kind in COMMANDS]

    # --- what the code sees ------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        """The last event that came about."""
        return self._newest

    def post(
        self,
        kind: str,
        data: Payload | Mapping[str, Any],
        *,
        agent: str = "",
        turn: int = 0,
        cause: Iterable[int] = (),
        label: str = "",
        blobs: Mapping[str, bytes] | None = None,
    ) -> Event:
        """The recorded event in whose place this one is; Differs if there is none or it says something else."""
        del label, blobs
        assert self._stretch is not None
        _, clean, _ = redacted(self._redactor, kind, checked(kind, data))
        if kind in _FREE:
            for event in self._states:
                if event.agent == agent and event.data == clean and event.seq > self._last.get(agent, 0):
                    self._states.remove(event)
                    self._come(event)
                    return event
            return Event(1, self.last_seq, "", 0, 0, agent, turn, tuple(cause), kind, "", clean)
        if kind.startswith("critique.") and kind != "critique.asked" and self._given_up():
            raise asyncio.CancelledError
        event = self._match(kind, clean, agent, tuple(cause))
        found = first_difference(self._said(event.data, kind), self._said(clean, kind), "data")
        if found is None and tuple(cause) != event.cause:
            found = ("cause", list(event.cause), list(cause))
        if found is not None:
            where, recorded, now = found
            raise self.differ(
                event.seq, f"event {event.seq} ({kind}), field {where}: recorded {told(recorded)}, now {told(now)}"
            )
        if issued(event):
            del self._left[event.seq], self._left_of[event.agent][event.seq]
            self.issued += event.kind in COMMANDS
        self._last[_chain(agent)] = max(self._last.get(_chain(agent), 0), event.seq)
        self._come(event)
        return event

    def _given_up(self) -> bool:
        """Whether this is the review of a batch that was given up before it wrote down what it found."""
        closed = ends_with.get()
        assert self._stretch is not None
        return (
            closed is not None
            and closed.data["again"]
            and not any(
                each.kind == "critique.reviewed" and each.data["batch"] == closed.data["batch"]
                for each in self._stretch.events
            )
        )

    def _said(self, data: Mapping[str, Any], kind: str) -> dict[str, Any]:
        free: tuple[str, ...] = _SETTINGS.get(kind, ())
        agents = self.state("agents")
        assert isinstance(agents, AgentsState)
        if kind == "context.compacted" and len(agents.agents) > 1:
            free = _OF_OTHERS
        return {name: value for name, value in data.items() if name not in free}

    def _match(self, kind: str, data: Mapping[str, Any], agent: str, cause: tuple[int, ...]) -> Event:
        assert self._stretch is not None
        if kind in CLOSING:
            found = self._stretch.closing.get(data["call"])
            if found is not None and found.kind == kind:
                return found
            raise self._unlike(kind, agent, found)
        if kind == "approval.expired":
            return self._one_of(kind, lambda event: event.data["approval"] == data["approval"], agent)
        first = self.next_by(agent)
        if first is None:
            raise self._unlike(kind, agent, None)
        # Several chains of work may act as the harness, each in its own order.
        shared = agent == HARNESS and self._several
        mine = self._left_of[agent].values() if shared else [first]
        for event in mine:
            if event.kind == kind and event.seq > self._last.get(_chain(agent), 0):
                if event.cause == cause and first_difference(event.data, data, "") is None:
                    return event
        expected = next((event for event in mine if event.kind == kind), first)
        if expected.kind == kind:
            return expected
        raise self._unlike(kind, agent, expected)

    def _one_of(self, kind: str, fits: Callable[[Event], bool], agent: str) -> Event:
        assert self._stretch is not None
        for event in self._stretch.events:
            if event.kind == kind and fits(event):
                return event
        raise self._unlike(kind, agent, None)

    def _unlike(self, kind: str, agent: str, instead: Event | None) -> BaseException:
        assert self._stretch is not None
        if instead is None:
            if self._stretch.cut:
                return RecordEnds("the process ended here")
            return self.differ(
                self.last_seq, f"after event {self.last_seq}: {agent or 'the session'} issues {kind} now, not recorded"
            )
        return self.differ(
            instead.seq, f"event {instead.seq}, field kind: recorded {instead.kind!r}, now {kind!r} (of {agent})"
        )

    def differ(self, seq: int, text: str) -> BaseException:
        """Keep the first difference, and return what is to be raised.

        Where somebody stopped the work amid a step, it may be that which differs; whether it is shows in what is left.
        """
        assert self._stretch is not None
        if self._stretch.stopped and self.suspect is None:
            self.suspect = Differs(seq, text)
            return asyncio.CancelledError()
        if self.differs is None:
            self.differs = self.suspect or Differs(seq, text)
        return Differs(seq, text)

    async def append(self, kind: str, data: Payload | Mapping[str, Any], **more: Any) -> Event:
        """As `post`."""
        return self.post(kind, data, **more)

    async def flush(self) -> None:
        """Nothing is written."""

    def events(self, since: int = 0) -> Iterator[Event]:
        """What came about after `since`, in the order of the record."""
        if not self._sorted:
            self._order.sort()
            self._sorted = True
        return (self._came[seq] for seq in list(self._order) if seq > since)

    def get(self, seq: int) -> Event:
        """An event that came about."""
        return self._came[seq]

    def state(self, name: str) -> BaseModel:
        """The slice `name` of the fold of what came about."""
        return self._fold.state(name)


def _of_its_own_time(event: Event) -> bool:
    """Whether the event comes about when its agent has got as far as that, whatever others do meanwhile."""
    if event.kind in _MAKES:
        return event.agent in REVIEWERS or event.agent.startswith(WORKER)
    return event.kind == "mail.delivered"


def _answers(event: Event) -> int | None:
    """The call, request or question that the event came of, if it came of one."""
    if event.kind.startswith("rule."):
        return None
    for name in ("call", "request", "approval"):
        if isinstance(event.data.get(name), int):
            return int(event.data[name])
    return None


def _chain(agent: str) -> str:
    """Whose order of acting it is: of the agent itself, or of the chain of work for which the harness acts."""
    answers = asked()
    return agent if agent != HARNESS or answers is None else f"{HARNESS} for {answers.chain}"
