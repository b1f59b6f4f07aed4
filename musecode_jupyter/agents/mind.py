"""What the loop needs from a way of thinking: the next step of an agent, as calls to make or as a last word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from musecode_jupyter.tools.executor import FormedCall
from musecode_jupyter.tools.registry import Place


@dataclass(frozen=True)
class Task:
    """What an agent works on: where, under which goal (its seq), with which verify commands, since which event."""

    agent: str
    place: Place
    since: int
    goal: int | None = None
    verify: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """Calls to make next; or none, and `text` is the last word of the turn. `gave_up` marks an honest failure.

    `cause` is the event that led to the step. `answered` says that nothing came up meanwhile which another step
    has to answer.
    """

    calls: tuple[FormedCall, ...]
    text: str
    cause: int
    gave_up: bool = False
    answered: bool = True


class Mind(Protocol):
    """A capability profile: `driver` lets the model choose calls, `guided` lets the harness ask for one at a time."""

    async def next_step(self, task: Task) -> Step:
        """Form the next step from the log; may call the model through the gate, never acts itself."""
        ...
