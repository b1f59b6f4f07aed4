"""The fold of task events: each task's declared and real files, worker, worktree, state, and why it stands so."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from musecode_jupyter.agents.tasks.graph import TaskSpec
from musecode_jupyter.agents.tasks.scheduling import FileSets
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.fold import Slice
from musecode_jupyter.log.kinds import kinds_with

Standing = Literal["open", "leased", "paused", "done", "abandoned"]
OVER = frozenset({"done", "abandoned"})
_RESTS = frozenset({"goal.paused", "goal.stopped", "goal.resumed"})
_OF_PLANS = frozenset({"goal.judged", "goal.edited", "tasks.tried"})


class TaskRecord(BaseModel):
    """One task. `gen` is the generation of the process that leased it: the lease ends with that process.

    `since` is the event from which the worker works on it: its first lease, or the bounce that sent it back. `read`
    and `written` are the files that its worker really saw and changed. `plan` is the number of its graph.
    """

    goal: int
    spec: TaskSpec
    by: str
    plan: int = 1
    state: Standing = "open"
    agent: str = ""
    worktree: int | None = None
    gen: int = 0
    since: int = 0
    bounces: int = 0
    exclusive: bool = False
    read: list[str] = Field(default_factory=list)
    written: list[str] = Field(default_factory=list)
    wider: FileSets = FileSets((), ())
    merge: int | None = None
    commit: str = ""
    why: str = ""

    @property
    def sets(self) -> FileSets:
        """What it reads and writes: as declared, and as seen."""
        return FileSets.of(self.spec, self.read, self.written)


class Trial(BaseModel):
    """How a command ended on a clean checkout of `tree`; `call` is its tool call."""

    tree: str
    passed: bool
    exit: int | None
    call: int


class PlanRecord(BaseModel):
    """What a goal's graphs came to. `trials` has the newest of each command.

    `settled` is the event after which the tasks that there were do not stand for the goal any more: all that had
    landed was judged, or the goal has another text. `before` is how many graphs there were when the user last let it
    go on, `returned` the event with which a graph last went back to the lead.
    """

    trials: dict[str, Trial] = Field(default_factory=dict)
    settled: int = 0
    before: int = 0
    returned: int = 0


class TasksState(Slice):
    """Tasks by seq of task.created, plans by seq of goal.set. `gen` is the generation of the newest event."""

    tasks: dict[int, TaskRecord] = Field(default_factory=dict)
    plans: dict[int, PlanRecord] = Field(default_factory=dict)
    by_worktree: dict[int, int] = Field(default_factory=dict)
    gen: int = 0

    def plan(self, goal: int) -> PlanRecord:
        """What the graphs of one goal came to."""
        return self.plans.get(goal) or PlanRecord()

    def graphs(self, goal: int) -> int:
        """How many graphs the goal was split into."""
        return max((task.plan for task in self.of_goal(goal).values()), default=0)

    def of_goal(self, goal: int) -> dict[int, TaskRecord]:
        """The tasks of one goal, in the order in which they were made."""
        return {seq: task for seq, task in self.tasks.items() if task.goal == goal}


class TasksReducer:
    """Folds task.*, and which files were read and changed in a task's worktree."""

    name = "tasks"
    kinds = kinds_with("task.") | _RESTS | _OF_PLANS | {"file.observed", "file.changed"}

    def initial(self) -> TasksState:
        return TasksState()

    def glance(self, state: TasksState, event: Event) -> None:
        """Whatever happens shows which process is at work: leases end with the one before it."""
        if event.gen != state.gen:
            state.gen = event.gen
            for task in state.tasks.values():
                if task.state == "leased":
                    task.state, task.why = "open", "its worker's process ended"

    def apply(self, state: TasksState, event: Event) -> None:
        if event.kind == "task.created":
            self._created(state, event)
        elif event.kind in _RESTS:
            self._rests(state, event)
        elif event.kind in _OF_PLANS:
            self._plan(state.plans.setdefault(event.data["goal"], PlanRecord()), event)
        elif event.kind.startswith("task."):
            self._task(state, state.tasks[event.data["task"]], event)
        elif event.kind in {"file.observed", "file.changed"}:
            number = state.by_worktree.get(event.data["worktree"] or 0)
            if number is not None:
                task = state.tasks[number]
                seen = task.read if event.kind == "file.observed" else task.written
                if event.data["path"] not in seen:
                    seen.append(event.data["path"])

    def _rests(self, state: TasksState, event: Event) -> None:
        """A goal that rests has no worker at work, and one that goes on waits for nobody."""
        goal, goes_on = event.data["goal"], event.kind == "goal.resumed"
        wanted, why = ("paused", "") if goes_on else ("leased", "the goal rests")
        for task in state.of_goal(goal).values():
            if task.state == wanted:
                task.state, task.why = "open", why
        if goes_on and goal in state.plans:
            state.plans[goal].before = state.graphs(goal)

    def _plan(self, plan: PlanRecord, event: Event) -> None:
        data = event.data
        if event.kind == "goal.edited":
            plan.settled = event.seq if data["text"] is not None else plan.settled
            return
        for check in data["checks"]:
            plan.trials[check["command"]] = Trial(
                tree=data["tree"], passed=check["passed"], exit=check["exit"], call=check["call"]
            )
        if event.kind == "goal.judged" and data["where"] == "landing":
            plan.settled = event.seq
        elif event.kind == "tasks.tried" and data["report"]:
            plan.returned = event.seq

    def _created(self, state: TasksState, event: Event) -> None:
        data = event.data
        spec = TaskSpec(
            name=data["name"],
            goal=data["text"],
            accept=tuple(data["accept"]),
            reads=tuple(data["reads"]),
            writes=tuple(data["writes"]),
            after=tuple(data["after"]),
            risk=data["risk"],
        )
        # Logs of earlier versions count no plans.
        state.tasks[event.seq] = TaskRecord(goal=data["goal"], spec=spec, by=data["by"], plan=data.get("plan", 1))

    def _task(self, state: TasksState, task: TaskRecord, event: Event) -> None:
        data = event.data
        if event.kind == "task.leased":
            task.state, task.agent, task.worktree, task.gen = "leased", data["agent"], data["worktree"], event.gen
            task.why = ""
            state.by_worktree[data["worktree"]] = data["task"]
            if data["text"]:
                task.since = event.seq
        elif event.kind == "task.widened":
            task.wider = FileSets(tuple(data["reads"]), tuple(data["writes"]))
        elif event.kind == "task.bounced":
            task.bounces += 1
            task.exclusive = task.exclusive or data["exclusive"]
            task.since, task.why = event.seq, data["why"]
            if data["exclusive"]:
                task.state = "open"
        elif event.kind == "task.paused":
            task.state, task.why = "paused", data["why"]
        elif event.kind == "task.done":
            task.state, task.merge, task.commit, task.why = "done", data["merge"], data["commit"], data.get("why", "")
        elif event.kind == "task.abandoned":
            task.state, task.why = "abandoned", data["why"]
