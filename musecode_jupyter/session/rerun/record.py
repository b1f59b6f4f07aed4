"""A recorded session as stretches of work, each from the event that began it, with the commands issued in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.prompts import REVIEWERS
from musecode_jupyter.agents.verifier.state import VERIFIER
from musecode_jupyter.log.events import Event
from musecode_jupyter.skills.grill_state import GRILL
from musecode_jupyter.tools.state import CLOSING

COMMANDS = frozenset({"tool.requested", "model.requested", "agent.view"})
"""Each of them must be issued again."""

BESIDE = frozenset({*REVIEWERS, VERIFIER})
"""Those who look at the work of others while it goes on."""

_DECISIONS = frozenset(
    {"goal.claimed", "goal.judged", "goal.met", "goal.stopped", "goal.paused", "goal.exhausted", "budget.exceeded"}
)
_DECIDES = ("task.", "tasks.", "merge.", "worktree.", "context.", "critique.", "plan.", "draft.")
# Other questions are put before the work begins, or by another command of the user's.
_ASKS = frozenset({"land", "tasks"})
# Of the user's undoing, of what a process did, of what a fork does before anything goes on, and of whoever waits
# for a plan or for clauses, to whom it is told how that ended.
_OTHERS = frozenset(
    {
        *("merge.undoing", "merge.undone", "merge.stays", "worktree.snapshotted", "worktree.rehomed"),
        *("plan.stopped", "draft.stopped"),
    }
)
_NEW_PROCESS = frozenset({"session.resumed", "session.forked"})
_ENDS = frozenset({"goal.paused", "goal.stopped", "budget.exceeded"})
_MODEL_ENDS = frozenset({"model.completed", "model.failed", "model.abandoned"})
_APPROVAL_ENDS = frozenset({"approval.granted", "approval.denied", "approval.expired"})


class Differs(BaseException):
    """The code acts otherwise than was recorded; `seq` is the first event that differs.

    Not an error that the code which is run again could take for one of its own.
    """

    def __init__(self, seq: int, text: str) -> None:
        super().__init__(text)
        self.seq = seq


class RecordEnds(BaseException):
    """The code goes on beyond what was recorded, as it may where a process ended amid its work. As `Differs`."""


def issued(event: Event) -> bool:
    """Whether the event is one that the agents' code and the harness issue, not the user and not the world."""
    if event.agent == "user" or event.kind in _OTHERS:
        return False
    if event.kind == "approval.requested":
        # Whether a call may be made is a part of that call.
        return event.data["call"] is None and event.data["action"] in _ASKS
    if event.kind == "claim.asserted":
        # What agents claim comes of their calls; what became of claims when somebody looked is a fact of the world.
        return event.agent == HARNESS
    if event.kind.startswith("grill."):
        # Where no reviewers are asked it is done by whoever asks for it, beside whatever goes on.
        return event.agent == GRILL
    return event.kind in COMMANDS or event.kind in _DECISIONS or event.kind.startswith(_DECIDES)


@dataclass
class Stretch:
    """A piece of work: a goal, plan, draft or attack from its start or resumption on, or a question, up to its end.

    `goal` is the seq of goal.set, `plan` that of plan.begun, `draft` that of draft.begun, `grill` that of grill.begun,
    none of them for a question, and where standing agents went on by themselves after a restart; `cut` says that the
    process ended within it.
    """

    start: Event
    goal: int | None
    events: Sequence[Event]
    cut: bool
    plan: int | None = None
    draft: int | None = None
    grill: int | None = None
    closing: Mapping[int, Event] = field(init=False)
    answered: Mapping[int, Event] = field(init=False)
    decided: Mapping[int, Event] = field(init=False)
    began: Mapping[int, Event] = field(init=False)
    approved: Mapping[int, Event] = field(init=False)

    def __post_init__(self) -> None:
        self.closing = {each.data["call"]: each for each in self.events if each.kind in CLOSING}
        self.answered = {each.data["request"]: each for each in self.events if each.kind in _MODEL_ENDS}
        self.decided = {each.data["call"]: each for each in self.events if each.kind == "tool.decided"}
        self.began = {each.data["call"]: each for each in self.events if each.kind == "tool.started"}
        self.approved = {each.data["approval"]: each for each in self.events if each.kind in _APPROVAL_ENDS}

    @property
    def by_itself(self) -> bool:
        """Whether nobody leads it: standing agents went on by themselves."""
        return self.start.kind in _NEW_PROCESS

    @cached_property
    def stopped(self) -> bool:
        """Whether somebody ended the work amid a step: the user, the end of the session or of the process."""
        reasons = {each.data["reason"] for each in self.events if each.kind == "session.closed"}
        return self.cut or any(_stops(each, reasons) for each in self.events)

    @cached_property
    def broken_off(self) -> bool:
        """Whether somebody ended a step of at least one chain of the work."""
        return self.stopped or any(each.kind == "user.interrupt" for each in self.events)

    @cached_property
    def ending(self) -> Event | None:
        """The event that says why the goal came to rest short of being met, if it did."""
        return next((each for each in self.events if each.kind in _ENDS), None)


def _stops(event: Event, reasons: set[Any]) -> bool:
    if event.kind == "user.interrupt":
        return interrupted_task(event) is None
    return event.kind == "goal.paused" and event.data["why"] in reasons


def interrupted_task(event: Event) -> int | None:
    """The task whose worker the user stopped by this event, if it is one that says so."""
    return event.cause[1] if event.kind == "user.interrupt" and len(event.cause) > 1 else None


def stretches(events: Sequence[Event]) -> Iterator[Stretch]:
    """All pieces of work of a session, in order."""
    begins = _beginnings(events)
    for number, index in enumerate(begins):
        start = events[index]
        last = begins[number + 1] if number + 1 < len(begins) else len(events)
        end = next((at for at in range(index + 1, last) if events[at].kind in _NEW_PROCESS), last)
        if end < len(events):
            cut = events[end].kind in _NEW_PROCESS
        else:
            cut = all(each.kind != "session.closed" for each in events[index:end])
        goal = plan = draft = grill = None
        if start.kind.startswith("plan."):
            plan = start.data.get("plan", start.seq)
        elif start.kind == "draft.begun":
            draft = start.seq
        elif start.kind.startswith("grill."):
            grill = start.data.get("grill", start.seq)
        elif start.kind not in {"user.message", *_NEW_PROCESS}:
            goal = start.data.get("goal", start.seq)
        yield Stretch(start, goal, events[index + 1 : end], cut, plan, draft, grill)


def _beginnings(events: Sequence[Event]) -> list[int]:
    """Where pieces of work begin; also where a standing agent goes on by itself after a restart, with nothing else."""
    found: list[int] = []
    opened: int | None = None
    for index, event in enumerate(events):
        if _begins(event):
            found.append(index)
            opened = None
        elif event.kind in _NEW_PROCESS:
            opened = index
        elif event.kind == "agent.woken" and opened is not None:
            found.append(opened)
            opened = None
    return found


def _begins(event: Event) -> bool:
    begins = {"goal.set", "goal.resumed", "plan.begun", "plan.edited", "plan.resumed", "draft.begun"}
    if event.kind in {"grill.begun", "grill.resumed"}:
        return bool(event.data.get("reviewed"))
    return event.kind in begins or (event.kind == "user.message" and event.agent == "user")


def first_difference(recorded: Any, now: Any, where: str) -> tuple[str, Any, Any] | None:
    """The first field in which two plain values differ, with what stands there in each."""
    if isinstance(recorded, Mapping) and isinstance(now, Mapping):
        for name in [*recorded, *(name for name in now if name not in recorded)]:
            found = first_difference(recorded.get(name, ...), now.get(name, ...), f"{where}.{name}")
            if found is not None:
                return found
        return None
    if isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for number, (a, b) in enumerate(zip(recorded, now, strict=True)):
            found = first_difference(a, b, f"{where}[{number}]")
            if found is not None:
                return found
        return None
    return None if recorded == now else (where, recorded, now)


def told(value: Any) -> str:
    """A value in a message: short, and absent said in words."""
    if value is ...:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
