"""The fold of goals: clauses, limits, phase, what was used, for how long it ran, how it stands."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from musecode_jupyter.agents.prompts import REVIEWERS
from musecode_jupyter.guard.ledger import seconds_between
from musecode_jupyter.guard.settlement import ENDS, PAID, settled
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice
from musecode_jupyter.log.kinds import kinds_with
from musecode_jupyter.runtime.money import in_usd

Phase = Literal["preparing", "working", "judging", "landing", "done"]
FINAL = frozenset({"met", "budget", "stalled", "blocked", "wedged", "stopped", "error"})


class GoalRecord(Slice):
    """One goal. `status` is running, paused or one of the stop states; `phase` says where a running one is.

    `ran` has the seconds of all running intervals that have ended, `since` the time at which the present one began
    (empty: it does not run); both from the times of events. `used_*` count what its agent used while it was the
    agent's goal; `reserved` has the tokens at most of each open request; `silent` counts turns without a tool call.
    `workers` is how many may work side by side; `helpers` are those that have worked on its tasks.
    `exceeded` names the limit that stopped it, and `needed` the least value of it that would have let the step pass
    (of money in micro-dollars, like `limit_microusd` and `used_microusd`).
    A goal that was `cleared` is kept here for what it used, and never goes on.
    """

    text: str
    verify: list[str]
    agent: str
    workers: int = 1
    helpers: list[str] = Field(default_factory=list)
    crew: list[str] = Field(default_factory=list)
    branch: str | None
    base: str
    limit_microusd: int | None = None
    limit_tokens: int | None = None
    limit_calls: int | None = None
    limit_hours: float | None = None
    limit_steps: int | None = None
    status: str = "running"
    why: str = ""
    phase: Phase = "preparing"
    ran: float = 0.0
    since: str = ""
    used_microusd: int = 0
    used_tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    reserved: dict[int, int] = Field(default_factory=dict)
    silent: int = 0
    calls_at_turn: int = 0
    judged: int = 0
    commit: str | None = None
    tree: str | None = None
    claimed: str = ""
    exceeded: str = ""
    needed: float | None = None
    cleared: bool = False

    @property
    def limit_usd(self) -> float | None:
        """Money that the goal may cost, in USD."""
        return None if self.limit_microusd is None else in_usd(self.limit_microusd)

    @property
    def used_usd(self) -> float:
        """Money that it has cost, in USD."""
        return in_usd(self.used_microusd)

    @property
    def agents(self) -> list[str]:
        """All whose calls count for the goal."""
        return [self.agent, *self.helpers, *self.crew]

    @property
    def final(self) -> bool:
        """Whether nothing more happens unless the user resumes it."""
        return self.status in FINAL

    def seconds(self, now: datetime) -> float:
        """Seconds in which the goal ran, up to `now`: pauses, stops and times without a process do not count."""
        return self.ran + (seconds_between(self.since, now) if self.since else 0.0)

    def rest(self, ts: str) -> None:
        """End the running interval at the time `ts`, if one is open."""
        if self.since:
            self.ran += seconds_between(self.since, datetime.fromisoformat(ts))
            self.since = ""


class GoalsState(Slice):
    """`goals` by seq of goal.set; `active` is the one that was set or resumed last, none after it was cleared.

    `gen` and `last` are the generation and the time of the newest event.
    """

    goals: dict[int, GoalRecord] = Field(default_factory=dict)
    active: int | None = None
    gen: int = 0
    last: str = ""

    def to_resume(self) -> int | None:
        """The goal with which a resumed session goes on: the active one, or the newest before it that is not met."""
        if self.active is None:
            return None
        if self.goals[self.active].status != "met":
            return self.active
        left = (seq for seq, goal in self.goals.items() if goal.status != "met" and not goal.cleared)
        return max(left, default=None)


class GoalsReducer:
    """Folds goal.* events, and counts model.* and tool.* events of the active goal's agent."""

    name = "goals"
    kinds = kinds_with("goal.") | {
        *("session.forked", "task.leased", "agent.woken", "critique.asked"),
        *("merge.bounced", "budget.exceeded", "tool.requested"),
        *("model.requested", "model.retried", "model.completed", "model.failed", "model.abandoned"),
    }

    def initial(self) -> GoalsState:
        return GoalsState()

    def glance(self, state: GoalsState, event: Event) -> None:
        """Whatever happens shows which process is at work, and until when."""
        if event.gen != state.gen:
            # Another process goes on: what still ran when the one before it ended, ran until its last event.
            for goal in state.goals.values():
                goal.rest(state.last)
            state.gen = event.gen
        state.last = event.ts

    def apply(self, state: GoalsState, event: Event) -> None:
        if event.kind == "goal.set":
            self._set(state, event)
        elif event.kind == "session.forked":
            for goal in state.goals.values():
                goal.reserved = dict.fromkeys(goal.reserved, 0)
        elif event.kind in {"goal.queued", "goal.dequeued"}:
            return
        elif event.kind.startswith("goal."):
            number = event.data["goal"]
            if event.kind == "goal.resumed":
                state.active = number
            elif event.kind == "goal.cleared" and state.active == number:
                state.active = None
            self._goal(state.goals[number], event)
        elif event.kind == "task.leased":
            helpers = state.goals[event.data["goal"]].helpers
            if event.data["agent"] not in helpers:
                helpers.append(event.data["agent"])
        elif event.kind == "agent.woken" and event.data["goal"] is not None:
            crew = state.goals[event.data["goal"]].crew
            if event.agent not in crew:
                crew.append(event.agent)
        elif event.kind == "critique.asked" and event.data["goal"] is not None:
            # Whoever reviews its work spends its money.
            helpers = state.goals[event.data["goal"]].helpers
            if event.data["agent"] not in helpers:
                helpers.append(event.data["agent"])
        elif event.kind == "merge.bounced":
            self._bounced(state, event)
        elif state.active is not None:
            goal = state.goals[state.active]
            if event.kind == "budget.exceeded":
                goal.exceeded, goal.needed = event.data["scope"], event.data.get("needed")
            elif event.agent in goal.agents:
                self._count(goal, event)

    def _set(self, state: GoalsState, event: Event) -> None:
        data = event.data
        state.goals[event.seq] = GoalRecord(
            text=data["text"],
            verify=list(data["verify"]),
            agent=data["agent"],
            workers=data.get("workers", 1),
            branch=data["branch"],
            base=data["base"],
            limit_microusd=data["microusd"],
            limit_tokens=data["tokens"],
            limit_calls=data["calls"],
            limit_hours=data["hours"],
            limit_steps=data["steps"],
            since=event.ts,
        )
        state.active = event.seq

    def _goal(self, goal: GoalRecord, event: Event) -> None:
        data = event.data
        if event.kind == "goal.paused":
            goal.status, goal.why = "paused", data["why"]
            goal.rest(event.ts)
        elif event.kind == "goal.resumed":
            goal.status, goal.why, goal.silent, goal.since = "running", data["why"], 0, event.ts
            goal.exceeded, goal.needed = "", None
            goal.branch = data.get("branch") or goal.branch
        elif event.kind == "goal.based":
            goal.base, goal.branch = data["base"], data["branch"]
        elif event.kind == "goal.edited":
            self._edited(goal, event)
        elif event.kind == "goal.cleared":
            goal.cleared = True
        elif event.kind == "goal.exhausted":
            goal.phase = "judging"
        elif event.kind == "goal.claimed":
            goal.phase, goal.claimed = "judging", data["text"]
            goal.silent = 0 if goal.tool_calls > goal.calls_at_turn else goal.silent + 1
            goal.calls_at_turn = goal.tool_calls
        elif event.kind == "goal.judged":
            self._judged(goal, event)
        elif event.kind == "goal.met":
            goal.status, goal.phase, goal.why = "met", "done", ""
            goal.commit, goal.tree = data["commit"], data["tree"]
            goal.rest(event.ts)
        elif event.kind == "goal.stopped":
            goal.status, goal.why = data["state"], data["why"]
            goal.rest(event.ts)

    def _edited(self, goal: GoalRecord, event: Event) -> None:
        new = event.data["new"]
        goal.limit_microusd, goal.limit_tokens, goal.limit_calls = new["microusd"], new["tokens"], new["calls"]
        goal.limit_hours, goal.limit_steps = new["hours"], new["steps"]
        goal.exceeded, goal.needed = "", None
        if event.data["text"] is not None:
            goal.text = event.data["text"]
        if event.data.get("verify") is not None:
            goal.verify = list(event.data["verify"])
        if event.data["text"] is not None or event.data.get("verify") is not None:
            goal.silent = 0
            if goal.phase in {"judging", "landing"}:
                # What was claimed was claimed of another goal: the agent has the word again.
                goal.phase = "working"

    def _judged(self, goal: GoalRecord, event: Event) -> None:
        data = event.data
        if data["where"] == "baseline":
            goal.phase = "preparing" if data["passed"] else "working"
            return
        goal.judged += 1
        goal.commit, goal.tree = data["commit"], data["tree"]
        if goal.phase == "judging":
            goal.phase = "landing" if data["passed"] else "working"

    def _bounced(self, state: GoalsState, event: Event) -> None:
        goal = state.goals.get(event.cause[0]) if event.cause else None
        if goal is not None and goal.phase == "landing":
            # The target moved, or something stood in the way: what lands next is a new merge, judged anew.
            goal.phase = "judging"

    def _count(self, goal: GoalRecord, event: Event) -> None:
        data = event.data
        if event.kind == "model.requested":
            goal.reserved[event.seq] = data["reserved_tokens"]
        elif event.kind in PAID:
            one = settled(event, goal.reserved.pop(data["request"], 0) if event.kind in ENDS else 0)
            goal.used_microusd += one.microusd
            goal.used_tokens += one.tokens
            goal.model_calls += one.calls
        elif event.kind == "tool.requested" and event.agent not in goal.crew:
            # A turn of the agent's own without a call is silent, whatever the crew does beside it.
            goal.tool_calls += 1
            if event.agent in REVIEWERS:
                # No sign of life of the one who works.
                goal.calls_at_turn += 1
