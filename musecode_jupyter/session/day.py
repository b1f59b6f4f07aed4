"""The budget of a day over all sessions of a home: the limit is a file there, the spending is read off their logs.

No counter is kept beside the logs that could disagree with them: of each other session that was written to today the
end of its journal is read, back to the first event of the day or to where it was forked, and again only once it has
grown. A reserve is durable first and looked at beside all others afterwards, under a lock of the home, before anything
is sent: two kernels cannot both take the last room. Days are UTC, as the times of events are.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from musecode_jupyter.guard.ledger import LedgerState, Limit, Spent
from musecode_jupyter.guard.scopes import Scope, check_scopes
from musecode_jupyter.guard.settlement import ENDS, PAID, settled
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.peek import Peek
from musecode_jupyter.log.upcast import upcast
from musecode_jupyter.runtime.errors import LogError, MuseError
from musecode_jupyter.session.store import sessions_dir
from musecode_jupyter.workspace.locking import file_lock

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

KEY = "day"
_REMEDY = "`%muse budget --day` sets what all sessions may use in a day: raise that to go on, or wait for the next."


class Day:
    """What the other sessions of this home spent today, as of the last `refresh`; micro-dollars and tokens."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self.others = (0, 0)
        self._known: dict[str, tuple[tuple[str, int], tuple[int, int]]] = {}
        self._of = ""

    async def open(self) -> None:
        """Take up the limit that the home has, if it is another one than this session knows: any session may set it."""
        limit = await self._core.effects.disk(read_limit, self._core.home)
        if limit != self._core.ledger.limits.get(KEY, Limit()):
            await self._core.log.append("budget.set", {"scope": KEY, **limit.model_dump()}, agent="user")

    async def refresh(self, *, always: bool = False) -> None:
        """Look at the limit and, if there is one, at the other sessions again: before a request is built."""
        await self.open()
        if always or self._core.ledger.limits.get(KEY, Limit()) != Limit():
            day = today(self._core)
            if day != self._of:
                self._known, self._of = {}, day
            self.others = await self._core.effects.disk(self._read, day)

    @asynccontextmanager
    async def admission(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Held while a reserve that is durable is looked at beside those of all other sessions of the home.

        Without a limit for the day nobody waits for anybody.
        """
        if self._core.ledger.limits.get(KEY, Limit()) == Limit():
            yield self._admitted
            return
        async with file_lock(self._core.home / "day.lock", self._core.effects, MuseError):
            yield self._look

    async def _admitted(self) -> None:
        """There is no limit to look at."""

    async def _look(self) -> None:
        """Raise BudgetExceeded if the reserves that are there, one's own among them, go over the limit of the day."""
        await self.refresh()
        check_scopes(self.scopes(), 0, 0)

    def used(self) -> tuple[int, int]:
        """Micro-dollars and tokens that all sessions together used or reserved today."""
        ledger: LedgerState = self._core.ledger
        mine = ledger.by_day.get(today(self._core), Spent())
        return (
            self.others[0] + mine.microusd + ledger.reserved_microusd,
            self.others[1] + mine.tokens + ledger.reserved_tokens,
        )

    def scopes(self) -> list[Scope]:
        """The budget of the day, if it has a limit."""
        limit = self._core.ledger.limits.get(KEY, Limit())
        if limit == Limit():
            return []
        microusd, tokens = self.used()
        name = "all sessions today"
        return [Scope(name, limit.microusd, microusd, limit.tokens, tokens, kind="day ", remedy=_REMEDY)]

    def _read(self, day: str) -> tuple[int, int]:
        microusd = tokens = 0
        own = self._core.log.folder
        for folder in sorted(each for each in sessions_dir(self._core.home).iterdir() if each != own):
            stamp = _stamp(folder)
            known = self._known.get(folder.name)
            if known is None or known[0] != stamp:
                known = self._known[folder.name] = (stamp, spent_on(folder, day))
            microusd, tokens = microusd + known[1][0], tokens + known[1][1]
        return microusd, tokens


def today(core: SessionCore) -> str:
    """The day of now, as the times of events begin."""
    return core.now().isoformat()[:10]


def spent_on(folder: Path, day: str) -> tuple[int, int]:
    """Micro-dollars and tokens that one session used or reserved on `day`, from the end of its journal alone.

    What is under way counts with its reserve, also where a process ended in the midst of it. A journal that cannot be
    read counts for nothing.
    """
    microusd = tokens = 0
    ended: set[int] = set()
    unread: dict[int, Event] = {}
    with suppress(LogError, OSError):
        for raw in Peek(folder).backwards():
            if raw.ts[:10] < day and not unread:
                break
            event = upcast(raw)
            data = event.data
            if event.kind == "session.forked":
                # What comes before is the parent's, whose own journal has it.
                break
            if event.kind in PAID and event.ts[:10] == day:
                one = settled(event)
                microusd, tokens = microusd + one.microusd, tokens + one.tokens
                if one.estimated_calls:
                    # Its tokens are those that were reserved, which its request says: further towards the beginning.
                    unread[data["request"]] = event
            if event.kind in ENDS:
                ended.add(data["request"])
            elif event.kind == "model.requested":
                if (end := unread.pop(event.seq, None)) is not None:
                    tokens += settled(end, data["reserved_tokens"]).tokens
                elif event.seq not in ended:
                    microusd, tokens = microusd + data["reserved_microusd"], tokens + data["reserved_tokens"]
    return microusd, tokens


def read_limit(home: Path) -> Limit:
    """The limit of a day that the home has; none where there is no such file, or none that can be read."""
    try:
        found = json.loads((home / "day_budget.json").read_text(encoding="utf-8"))
        return Limit(microusd=found["microusd"], tokens=found["tokens"])
    except (OSError, ValueError, KeyError, TypeError):
        return Limit()


def write_limit(home: Path, limit: Limit) -> None:
    """Keep the limit of a day for the sessions that are opened later."""
    path = home / "day_budget.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"microusd": limit.microusd, "tokens": limit.tokens}), encoding="utf-8")
    fresh.replace(path)


def _stamp(folder: Path) -> tuple[str, int]:
    with suppress(OSError, ValueError):
        newest = max((folder / "journal").glob("*.jsonl"))
        return newest.name, newest.stat().st_size
    return "", 0
