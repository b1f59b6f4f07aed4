"""The fold of what goals start from: the repository they work in, and the user's files as they were, if wanted."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from musecode_jupyter.log.events import Event


class Ground(BaseModel):
    """What one goal starts from. As long as it is not `settled`, the user is to be asked, or something to be made.

    `shadow`: it works in the private repository of a folder that is in none. `snapshot` is the commit with the user's
    files as they were in which the work starts, `kept` the ref that keeps it, `files` what they differed in from the
    user's last commit; without a snapshot the work starts from that commit.
    """

    shadow: bool = False
    start: Literal["head", "dirty", "ask"] = "head"
    settled: bool = True
    snapshot: str = ""
    kept: str = ""
    files: list[str] = Field(default_factory=list)


class GroundsState(BaseModel):
    """By seq of goal.set."""

    goals: dict[int, Ground] = Field(default_factory=dict)


class GroundsReducer:
    """Folds goal.set and goal.based."""

    # Not "goals", whose slice of released logs knows nothing of it.
    name = "grounds"
    kinds = frozenset({"goal.set", "goal.based"})

    def initial(self) -> GroundsState:
        return GroundsState()

    def apply(self, state: GroundsState, event: Event) -> None:
        data = event.data
        if event.kind == "goal.set":
            start = data.get("start", "head")
            settled = bool(data["base"]) and start == "head"
            state.goals[event.seq] = Ground(shadow=data.get("shadow", False), start=start, settled=settled)
        elif event.kind == "goal.based":
            ground = state.goals[data["goal"]]
            ground.settled, ground.snapshot, ground.kept = True, data["snapshot"], data["kept"]
            ground.files = list(data["files"])
