"""A small session for the tests of the log: two reducers, ways to write a log, and to change its bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from musecode_jupyter.log import Event, EventLog, Redactor


class Talk(BaseModel):
    texts: list[str] = Field(default_factory=list)
    agents: set[str] = Field(default_factory=set)


class Counts(BaseModel):
    by_kind: dict[str, int] = Field(default_factory=dict)


class TalkReducer:
    name = "talk"

    def initial(self) -> Talk:
        return Talk()

    def apply(self, state: Talk, event: Event) -> None:
        if event.kind == "user.message":
            state.texts.append(event.data["text"])
            state.agents.add(event.data["to"])


class CountReducer:
    name = "counts"

    def initial(self) -> Counts:
        return Counts()

    def apply(self, state: Counts, event: Event) -> None:
        state.by_kind[event.kind] = state.by_kind.get(event.kind, 0) + 1


def reducers() -> list[Any]:
    return [TalkReducer(), CountReducer()]


def ticking() -> Callable[[], datetime]:
    """A clock that goes on by a second with each look at it."""
    times = (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC) + timedelta(seconds=n) for n in range(10**9))
    return lambda: next(times)


def create(folder: Path, **options: Any) -> EventLog:
    return EventLog.create(folder, reducers=reducers(), redactor=Redactor(), now=ticking(), **options)


def reopen(folder: Path, **options: Any) -> EventLog:
    return EventLog.open(folder, reducers=reducers(), redactor=Redactor(), now=ticking(), **options)


def message(text: str, to: str = "lead") -> dict[str, str]:
    return {"text": text, "to": to}


def write_session(folder: Path, texts: list[str], **options: Any) -> None:
    """A session with a batch for each text, closed in order."""

    async def write() -> None:
        log = create(folder, **options)
        for text in texts:
            await log.append("user.message", message(text))
        await log.close()

    asyncio.run(write())


def segment(folder: Path, number: int = 1) -> Path:
    return folder / "journal" / f"{number:06d}.jsonl"


def texts_of(log: EventLog) -> list[str]:
    return [event.data["text"] for event in log.events() if event.kind == "user.message"]
