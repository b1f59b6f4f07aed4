"""Effects and model answers taken from a journal, so that the real code can be run again without the outside world."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from musecode_jupyter.agents.context import parse_items
from musecode_jupyter.guard.gate import recorded_client
from musecode_jupyter.log.events import Event
from musecode_jupyter.models.recorded import Recorded
from musecode_jupyter.models.types import Final, ModelClient, Usage
from musecode_jupyter.runtime.command import Command, CommandAnswer
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ModelError, MuseError
from musecode_jupyter.runtime.process import ProcessResult, ProcessSpec, Started

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
T = TypeVar("T")

_ENDING = re.compile(r"\[([^\[\]\n]*)\]\Z")
# How the tool `run` tells of an end, and what the process runner calls it.
_ENDED = {
    "exit ": "exited",
    "ended because it printed": "output",
    "ended because it started": "processes",
    "not started": "not started",
    "stopped": "cancelled",
}


class ReplayMismatch(MuseError):
    """The code asked for something else than what was recorded at this place."""


class RecordedEffects:
    """Answers clock and processes of tools from the events of one session, in their order; has no network.

    Git commands and file work are done again by `world` in a checkout of the commit that the session started from:
    given the same edits they answer the same. Every process of a tool is compared with the one that was recorded,
    and raises ReplayMismatch if it differs.
    """

    def __init__(self, events: Iterable[Event], world: Effects) -> None:
        self._world = world
        self._now = datetime.fromtimestamp(0).astimezone()
        self._ticks = 0
        self._runs: deque[tuple[Event, Event]] = deque()
        requested: dict[int, Event] = {}
        for event in events:
            if event.seq == 1:
                self._now = datetime.fromisoformat(event.ts)
            if event.kind == "tool.requested" and event.data["name"] == "run":
                requested[event.seq] = event
            elif event.kind == "tool.finished" and event.data["call"] in requested:
                self._runs.append((requested[event.data["call"]], event))

    @property
    def remaining(self) -> int:
        """Recorded processes that were not asked for yet."""
        return len(self._runs)

    def now(self) -> datetime:
        self._ticks += 1
        return self._now + timedelta(milliseconds=self._ticks)

    def monotonic(self) -> float:
        self._ticks += 1
        return self._ticks / 1000

    def token(self, nbytes: int) -> str:
        return "00" * nbytes

    def environ(self) -> Mapping[str, str]:
        return self._world.environ()

    async def sleep(self, seconds: float) -> None:
        self._ticks += round(seconds * 1000)

    async def run(self, spec: ProcessSpec, on_started: Callable[[Started], None] | None = None) -> ProcessResult:
        command = spec.argv[-1]
        if not self._runs:
            raise ReplayMismatch(f"The command {command!r} was run, but no further one was recorded.")
        requested, finished = self._runs.popleft()
        recorded = requested.data["arguments"]["command"]
        if recorded != command:
            raise ReplayMismatch(f"Event {requested.seq}, field command: {command!r} now, {recorded!r} recorded.")
        output = str(finished.data["output"])
        ending = _ENDING.search(output)
        told = ending.group(1) if ending else ""
        ended = next((name for start, name in _ENDED.items() if told.startswith(start)), "timeout")
        return ProcessResult(
            exit=finished.data["exit"],
            ended=ended,
            seconds=finished.data["seconds"],
            text=output[: ending.start()] if ending else output,
            output=spec.output,
            output_bytes=0,
        )

    async def ask(self, command: Command) -> CommandAnswer:
        return await self._world.ask(command)

    async def disk(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._world.disk(work, *args, **kwargs)

    def http(self) -> httpx.AsyncClient:
        raise ReplayMismatch("A replay has no network: model answers come from the journal.")

    async def aclose(self) -> None:
        await self._world.aclose()


def answers(events: Iterable[Event]) -> ModelClient:
    """A client that gives the recorded answers, and refuses a request whose bytes are not the recorded ones."""
    requested: dict[int, Event] = {}
    recorded: list[Recorded] = []
    for event in events:
        if event.kind == "model.requested":
            requested[event.seq] = event
        elif event.kind in {"model.completed", "model.failed"}:
            # How often it was tried, and without what in the end, is the gate's; the loop sees one answer.
            asked = requested[event.data["request"]].data
            answer = _answer(event.kind, event.data)
            recorded.append(Recorded(asked["api"], asked["origin"], asked["digest"], answer))
    return recorded_client(recorded)


def _answer(kind: str, data: Mapping[str, Any]) -> Final | ModelError:
    if kind == "model.failed":
        return ModelError(data["error"], kind=data["error_kind"])
    return Final(
        status=data["status"],
        items=parse_items(data["items"]),
        usage=None if data["usage"] is None else Usage(**data["usage"]),
        model=data["served_model"],
        response_id=data["response_id"],
        reason=data["reason"],
    )
