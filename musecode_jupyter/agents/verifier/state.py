"""The fold of checks beside the work: what is not checked yet, what is under way, how each command came out last."""

from __future__ import annotations

from pydantic import BaseModel, Field

from musecode_jupyter.agents.critiques.batch_state import CHANGES, Changed, add, see
from musecode_jupyter.agents.critiques.state import scope_of
from musecode_jupyter.log.events import Event

VERIFIER = "verifier"


class Run(BaseModel):
    """One checks.begun that has not ended."""

    goal: int
    task: int | None
    worktree: int
    agent: str
    changed: Changed
    commands: list[str]

    @property
    def scope(self) -> str:
        """The piece of work that it checks."""
        return scope_of(self.goal, self.task, self.worktree)


class ChecksState(BaseModel):
    """`works` and `changed` by worktree, as for reviews; `open` by seq of checks.begun.

    `green` says by piece of work and command whether it passed when it ran last, here or as the work asked to land;
    `tree` which tree of a piece of work was checked last; `seconds` how long each command took last. `merges` has the
    piece of work of each merge, `ran` how many commands the verifier has run. `flaky` are commands that came out one
    way and the other on the same files: they are run only where work is judged.
    """

    works: dict[int, str] = Field(default_factory=dict)
    changed: dict[int, Changed] = Field(default_factory=dict)
    open: dict[int, Run] = Field(default_factory=dict)
    green: dict[str, dict[str, bool]] = Field(default_factory=dict)
    tree: dict[str, str] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    merges: dict[int, str] = Field(default_factory=dict)
    ran: int = 0
    flaky: list[str] = Field(default_factory=list)


class ChecksReducer:
    """Folds checks.*, what changes files of worktrees, and the judgements of work that asks to land."""

    name = "checks"
    kinds = CHANGES | {
        *("checks.begun", "checks.ended", "goal.judged", "goal.edited", "merge.enqueued", "merge.tested"),
    }

    def initial(self) -> ChecksState:
        return ChecksState()

    def apply(self, state: ChecksState, event: Event) -> None:
        data = event.data
        if event.kind in CHANGES:
            see(state, event)
        elif event.kind == "checks.begun":
            state.open[event.seq] = Run(
                goal=data["goal"],
                task=data["task"],
                worktree=data["worktree"],
                agent=data["agent"],
                changed=state.changed.pop(data["worktree"], Changed(last=event.seq)),
                commands=data["commands"],
            )
        elif event.kind == "checks.ended":
            self._ended(state, event)
        elif event.kind == "goal.judged":
            self._ran(state, scope_of(data["goal"], None, None), data["checks"])
        elif event.kind == "goal.edited" and data.get("verify") is not None:
            # A tree that was checked is not checked again: by other commands it was not.
            state.tree.pop(scope_of(data["goal"], None, None), None)
        elif event.kind == "merge.enqueued":
            state.merges[event.seq] = scope_of(data["goal"], data.get("task"), None)
        elif event.kind == "merge.tested" and data["merge"] in state.merges:
            self._ran(state, state.merges[data["merge"]], data["checks"])

    def _ended(self, state: ChecksState, event: Event) -> None:
        data = event.data
        run = state.open.pop(data["begun"], None)
        if run is None:
            return
        if data["again"]:
            add(state, run.worktree, run.changed.last, run.changed.files)
            return
        if data["tree"] is not None:
            state.tree[run.scope] = data["tree"]
        state.ran += len(data["checks"])
        state.flaky += [each for each in data.get("flaky", ()) if each not in state.flaky]
        self._ran(state, run.scope, data["checks"])

    def _ran(self, state: ChecksState, scope: str, checks: list[dict[str, object]]) -> None:
        for check in checks:
            command = str(check["command"])
            state.green.setdefault(scope, {})[command] = bool(check["passed"])
            state.seconds[command] = float(str(check["seconds"]))
