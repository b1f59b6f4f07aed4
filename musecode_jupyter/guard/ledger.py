"""What has been spent and reserved, folded from the log: money, tokens, calls, in total, by agent and by task."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from musecode_jupyter.guard.settlement import ENDS, Settled, settled
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice
from musecode_jupyter.runtime.money import in_usd


class Spent(Slice):
    """Micro-dollars, tokens as the server counted them (`estimated_calls` had no usage), calls that were settled.

    `reserved` sums the worst cases of those that were settled; `tools` counts calls of tools that began, `processes`
    those of them that were to start one. `worked` has the seconds in which an agent was at work.

    Where the server counted none, but may charge, `microusd` and `input` hold the reserve: after a missing usage, and
    after an attempt or request that broke off.
    """

    microusd: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    calls: int = 0
    failed: int = 0
    estimated_calls: int = 0
    seconds: float = 0.0
    reserved: int = 0
    tools: int = 0
    processes: int = 0
    worked: float = 0.0

    @property
    def usd(self) -> float:
        """Money in USD."""
        return in_usd(self.microusd)

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input + self.output


class Reserve(BaseModel):
    """Worst case of a request that is under way."""

    agent: str
    microusd: int
    tokens: int
    view: int | None
    task: int | None = None

    @property
    def usd(self) -> float:
        """Money in USD."""
        return in_usd(self.microusd)


class Limit(BaseModel):
    """Limits of one scope: micro-dollars, tokens, tool and model calls (`steps`), hours, processes, bytes on disk."""

    microusd: int | None = None
    tokens: int | None = None
    calls: int | None = None
    steps: int | None = None
    hours: float | None = None
    processes: int | None = None
    disk: int | None = None


class LedgerState(BaseModel):
    """`open` by seq of model.requested; `limits` by scope: session, agent NAME, task NUMBER, day.

    `tasks` has the task that each agent works on or reviews. `ran` has the seconds of all generations but this one,
    which began at `since` and was last seen at `seen`: the time in which no process has the session open is not in it.
    `working` has since when each agent that is at work is so.
    """

    total: Spent = Field(default_factory=Spent)
    by_agent: dict[str, Spent] = Field(default_factory=dict)
    by_task: dict[int, Spent] = Field(default_factory=dict)
    by_day: dict[str, Spent] = Field(default_factory=dict)
    open: dict[int, Reserve] = Field(default_factory=dict)
    limits: dict[str, Limit] = Field(default_factory=dict)
    tasks: dict[str, int] = Field(default_factory=dict)
    working: dict[str, str] = Field(default_factory=dict)
    ran: float = 0.0
    since: str = ""
    seen: str = ""

    @property
    def limit_microusd(self) -> int | None:
        """Limit of the whole session in micro-dollars."""
        return self.limits.get("session", Limit()).microusd

    @property
    def limit_tokens(self) -> int | None:
        """Limit of the whole session in tokens."""
        return self.limits.get("session", Limit()).tokens

    def spent_by(self, agent: str, task: int | None, day: str) -> list[Spent]:
        """All that count what `agent` spends on `task` on that day (UTC, as the times of events are)."""
        mine = [self.total, self.by_agent.setdefault(agent, Spent()), self.by_day.setdefault(day, Spent())]
        return mine if task is None else [*mine, self.by_task.setdefault(task, Spent())]

    def seconds(self, now: datetime) -> float:
        """Seconds in which a process had the session open, up to `now`."""
        return self.ran + (seconds_between(self.since, now) if self.since else 0.0)

    @property
    def limit_usd(self) -> float | None:
        """Limit of the whole session in USD."""
        return None if self.limit_microusd is None else in_usd(self.limit_microusd)

    @property
    def reserved_microusd(self) -> int:
        """Sum of the open reserves in micro-dollars."""
        return sum(reserve.microusd for reserve in self.open.values())

    @property
    def reserved_usd(self) -> float:
        """Sum of the open reserves in USD."""
        return in_usd(self.reserved_microusd)

    @property
    def reserved_tokens(self) -> int:
        """Sum of the open reserves in tokens."""
        return sum(reserve.tokens for reserve in self.open.values())


_COUNTED = [name for name in Spent.model_fields if name in Settled.__dataclass_fields__]
_WORK = frozenset({"task.leased", "task.done", "task.abandoned", "critique.asked"})


class LedgerReducer:
    """Folds model.* and budget.* events."""

    name = "ledger"
    kinds = frozenset(
        {
            *("model.requested", "model.retried", "model.completed", "model.failed", "model.abandoned"),
            *("session.opened", "session.resumed", "session.forked", "budget.set", "tool.started"),
            "agent.state",
            *_WORK,
        }
    )

    def initial(self) -> LedgerState:
        return LedgerState()

    def apply(self, state: LedgerState, event: Event) -> None:
        data = event.data
        if event.kind in {"session.opened", "session.resumed"}:
            for agent in list(state.working):
                _rests(state, agent, state.seen)
            if state.since:
                state.ran += seconds_between(state.since, datetime.fromisoformat(state.seen))
            state.since = event.ts
        elif event.kind == "model.requested":
            state.open[event.seq] = Reserve(
                agent=event.agent,
                microusd=data["reserved_microusd"],
                tokens=data["reserved_tokens"],
                view=data["view"],
                task=state.tasks.get(event.agent),
            )
        elif event.kind == "model.retried":
            open_now = state.open.get(data["request"])
            for spent in state.spent_by(event.agent, open_now.task if open_now else None, event.ts[:10]):
                _settle(spent, event, None)
        elif event.kind in ENDS:
            reserve = state.open.pop(data["request"], None)
            for spent in state.spent_by(event.agent, reserve.task if reserve else None, event.ts[:10]):
                _settle(spent, event, reserve)
        elif event.kind == "session.forked":
            # They are settled in the session that sent them: counted here too, money would be spent twice.
            for reserve in state.open.values():
                reserve.microusd, reserve.tokens = 0, 0
            state.by_day = {}
        elif event.kind == "budget.set":
            scope, name = data.get("scope", "session"), data.get("name", "")
            limits = {name: value for name, value in data.items() if name in Limit.model_fields}
            state.limits[f"{scope} {name}".rstrip()] = Limit(**limits)
        elif event.kind == "tool.started":
            for spent in state.spent_by(event.agent, state.tasks.get(event.agent), event.ts[:10]):
                spent.tools += 1
                spent.processes += data["effect"] == "process"
        elif event.kind == "agent.state":
            if data["state"] == "running":
                state.working.setdefault(event.agent, event.ts)
            else:
                _rests(state, event.agent, event.ts)
        elif event.kind in _WORK:
            for agent in list(state.working):
                # What it did so far counts for what it worked on so far.
                _rests(state, agent, event.ts)
                state.working[agent] = event.ts
            _work(state, event.kind, data)
        if event.kind in self.kinds:
            state.seen = event.ts


def _work(state: LedgerState, kind: str, data: Mapping[str, Any]) -> None:
    """Who works on which task from here on; whoever reviews its work spends for it too."""
    if kind in {"task.leased", "critique.asked"}:
        state.tasks.pop(data["agent"], None)
        if data.get("task") is not None:
            state.tasks[data["agent"]] = data["task"]
    else:
        state.tasks = {agent: task for agent, task in state.tasks.items() if task != data["task"]}


def _rests(state: LedgerState, agent: str, at: str) -> None:
    """The agent is at work no more, or at something else, as of a time."""
    since = state.working.pop(agent, "")
    if since:
        for spent in state.spent_by(agent, state.tasks.get(agent), at[:10]):
            spent.worked += seconds_between(since, datetime.fromisoformat(at))


def seconds_between(start: str, end: datetime) -> float:
    """Seconds from the time of an event to `end`; a clock that was set back takes nothing away."""
    return max(0.0, (end - datetime.fromisoformat(start)).total_seconds())


def _settle(spent: Spent, event: Event, reserve: Reserve | None) -> None:
    one = settled(event, reserve.tokens if reserve else 0)
    for name in _COUNTED:
        setattr(spent, name, getattr(spent, name) + getattr(one, name))
    spent.reserved += reserve.microusd if reserve and event.kind in ENDS else 0
