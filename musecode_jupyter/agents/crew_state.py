"""The fold of what each agent has read, what of that has changed since, and what woke it last."""

from __future__ import annotations

from pydantic import BaseModel, Field

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.log.events import Event

FILES = "files"
"""Topic of the letters that say which files have changed."""


class Held(BaseModel):
    """`read` has the digest of each file as the agent saw it last, by path, in whatever worktree; `changed` the paths
    that were changed since and of which it was not told, each with the event. `woken` is the last agent.woken, `before`
    the agent.retired of the one that had its name.
    """

    read: dict[str, str] = Field(default_factory=dict)
    changed: dict[str, int] = Field(default_factory=dict)
    woken: int | None = None
    why: str = ""
    before: int | None = None


class CrewState(BaseModel):
    """`agents` by name; `landing` has the files of merges that are about to land."""

    agents: dict[str, Held] = Field(default_factory=dict)
    landing: dict[int, list[str]] = Field(default_factory=dict)


class CrewReducer:
    """Folds file.*, merge.landing, merge.landed, agent.* and letters about files."""

    name = "crew"

    def initial(self) -> CrewState:
        return CrewState()

    def apply(self, state: CrewState, event: Event) -> None:
        data = event.data
        if event.kind == "agent.created":
            retired = state.agents.get(event.agent)
            state.agents[event.agent] = Held(before=None if retired is None else retired.before)
        elif event.kind == "agent.retired" and event.agent in state.agents:
            state.agents[event.agent] = Held(before=event.seq)
        elif event.kind == "agent.woken" and event.agent in state.agents:
            state.agents[event.agent].woken, state.agents[event.agent].why = event.seq, data["why"]
        elif event.kind == "file.observed" and event.agent in state.agents:
            held = state.agents[event.agent]
            held.read[data["path"]] = data["digest"]
            held.changed.pop(data["path"], None)
        elif event.kind == "file.changed":
            self._changed(state, event)
        elif event.kind == "merge.landing":
            state.landing[data["merge"]] = list(data["files"])
        elif event.kind == "merge.landed":
            self._landed(state, event)
        elif event.kind == "mail.sent" and event.agent == HARNESS and data["topic"] == FILES:
            if (told := state.agents.get(data["to"])) is not None:
                told.changed = {}

    def _changed(self, state: CrewState, event: Event) -> None:
        path, after = event.data["path"], event.data["after"]
        for name, held in state.agents.items():
            if path not in held.read:
                continue
            if name == event.agent and after is not None:
                held.read[path] = after
            elif held.read[path] == after:
                held.changed.pop(path, None)
            else:
                held.changed[path] = event.seq

    def _landed(self, state: CrewState, event: Event) -> None:
        for path in state.landing.pop(event.data["merge"], []):
            for held in state.agents.values():
                if path in held.read:
                    held.changed[path] = event.seq
