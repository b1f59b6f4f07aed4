"""Writes down what git and the repository's files answered, so that the code that asked can be run again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from musecode_jupyter.log import EventLog
from musecode_jupyter.runtime.answers import plain, plain_error
from musecode_jupyter.runtime.errors import LogError, MuseError

T = TypeVar("T")

HARNESS = "harness"
"""The name under which this program itself acts."""


@dataclass(frozen=True)
class NotedAnswers:
    """Asks the world, and writes down each answer, for the chain of work `chain`: a goal or one of its workers."""

    log: EventLog
    chain: str

    async def answer(
        self, question: str, arguments: dict[str, Any], work: Callable[[], Awaitable[T]], revive: Callable[[Any], T]
    ) -> T:
        asked = {"chain": self.chain, "question": question, "arguments": arguments}
        try:
            found = await work()
        except LogError:
            raise
        except (MuseError, OSError) as error:
            self._note({**asked, "error": plain_error(error)})
            raise
        self._note({**asked, "answer": plain(found)})
        return found

    def _note(self, data: dict[str, Any]) -> None:
        # Not waited for: what follows from it is durable after it.
        if self.log.writable:
            self.log.post("git.answered", data, agent=HARNESS)
