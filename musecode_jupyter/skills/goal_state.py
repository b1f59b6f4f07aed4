"""The fold of goals: clauses, phase, what was used, how it stands; and the handle's view of it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from musecode_jupyter.log.events import Event

Phase = Literal["preparing", "working", "judging", "landing", "done"]
FINAL = frozenset({"met", "budget", "stalled", "blocked", "stopped", "error"})


class GoalRecord(BaseModel):
    """One goal. `status` is running, paused or one of the stop states; `phase` says where a running one is.

    `started` and `ended` are times of events, for display and wall-time limits. `used_*` count what its agent used
    while it was the agent's goal; `reserved` has the tokens at most of each open request; `silent` counts turns
    without a tool call.
    """

    text: str
    verify: list[str]
    agent: str
    branch: str | None
    base: str
    limit_usd: float | None = None
    limit_tokens: int | None = None
    limit_calls: int | None = None
    limit_hours: float | None = None
    limit_steps: int | None = None
    status: str = "running"
    why: str = ""
    phase: Phase = "preparing"
    started: str = ""
    ended: str = ""
    used_usd: float = 0.0
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

    @property
    def final(self) -> bool:
        """Whether nothing more happens unless the user resumes it."""
        return self.status in FINAL


class GoalsState(BaseModel):
    """`goals` by seq of goal.set; `active` is the one that was set or resumed last."""

    goals: dict[int, GoalRecord] = Field(default_factory=dict)
    active: int | None = None


class GoalsReducer:
    """Folds goal.* events, and counts model.* and tool.* events of the active goal's agent."""

    name = "goals"

    def initial(self) -> GoalsState:
        return GoalsState()

    def apply(self, state: GoalsState, event: Event) -> None:
        if event.kind == "goal.set":
            self._set(state, event)
        elif event.kind.startswith("goal."):
            if event.kind == "goal.resumed":
                state.active = event.data["goal"]
            self._goal(state.goals[event.data["goal"]], event)
        elif event.kind == "merge.bounced":
            self._bounced(state)
        elif state.active is not None and state.goals[state.active].agent == event.agent:
            self._count(state.goals[state.active], event)

    def _set(self, state: GoalsState, event: Event) -> None:
        data = event.data
        state.goals[event.seq] = GoalRecord(
            text=data["text"],
            verify=list(data["verify"]),
            agent=data["agent"],
            branch=data["branch"],
            base=data["base"],
            limit_usd=data["usd"],
            limit_tokens=data["tokens"],
            limit_calls=data["calls"],
            limit_hours=data["hours"],
            limit_steps=data["steps"],
            started=event.ts,
        )
        state.active = event.seq

    def _goal(self, goal: GoalRecord, event: Event) -> None:
        data = event.data
        if event.kind == "goal.paused":
            goal.status, goal.why, goal.ended = "paused", data["why"], event.ts
        elif event.kind == "goal.resumed":
            goal.status, goal.why, goal.silent, goal.ended = "running", data["why"], 0, ""
        elif event.kind == "goal.claimed":
            goal.phase, goal.claimed = "judging", data["text"]
            goal.silent = 0 if goal.tool_calls > goal.calls_at_turn else goal.silent + 1
            goal.calls_at_turn = goal.tool_calls
        elif event.kind == "goal.judged":
            goal.phase = "landing" if data["passed"] else "working"
            if data["where"] == "landing":
                goal.judged += 1
                goal.commit, goal.tree = data["commit"], data["tree"]
        elif event.kind == "goal.met":
            goal.status, goal.phase, goal.why, goal.ended = "met", "done", "", event.ts
            goal.commit, goal.tree = data["commit"], data["tree"]
        elif event.kind == "goal.stopped":
            goal.status, goal.why, goal.ended = data["state"], data["why"], event.ts

    def _bounced(self, state: GoalsState) -> None:
        goal = None if state.active is None else state.goals[state.active]
        if goal is not None and goal.phase == "landing":
            # The target moved, or something stood in the way: what lands next is a new merge, judged anew.
            goal.phase = "judging"

    def _count(self, goal: GoalRecord, event: Event) -> None:
        data = event.data
        if event.kind == "model.requested":
            goal.reserved[event.seq] = data["reserved_tokens"]
        elif event.kind in {"model.completed", "model.failed", "model.abandoned"}:
            goal.used_usd += data["cost_usd"]
            at_most = goal.reserved.pop(data["request"], 0)
            if event.kind == "model.completed":
                goal.model_calls += 1
                usage = data["usage"]
                goal.used_tokens += at_most if usage is None else usage["input"] + usage["output"]
        elif event.kind == "tool.requested":
            goal.tool_calls += 1
