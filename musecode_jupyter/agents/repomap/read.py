"""The map of the files of a worktree as they are now: what has not changed is neither read nor parsed again.

What the bytes of a file say does not depend on who asks: so it is kept once in a process, by the digest of the bytes,
for all agents, worktrees and sessions. An agent's worktree differs from the user's checkout by a few files.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary

from musecode_jupyter.agents.repomap.facts import MOST_BYTES, NOT_YET, FileFacts
from musecode_jupyter.agents.repomap.languages import language_of
from musecode_jupyter.agents.repomap.map import RepoMap
from musecode_jupyter.agents.repomap.parse import Key, Limits, Wanted, parse
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.files import digest_bytes, read_bytes

MOST_FILES = 10_000
"""Files in a language that is known; of more, those that come last by name are listed without symbols."""

_KEPT_FACTS = 64_000_000
"""Characters, about, of facts that are kept; those that were asked for longest ago go first."""
_KEPT_MAPS = 4
_SETTLED_NS = 2_000_000_000
"""A file that was changed so shortly before it was read can change again without its times showing it."""
_ROUNDS = 3
"""How often a call parses files of which some change just then."""

_State = tuple[int, ...]


@dataclass
class Kept:
    """What is known of files that were read before, in bounded memory; used from several threads."""

    _facts: OrderedDict[Key, FileFacts] = field(default_factory=OrderedDict)
    _weight: int = 0
    _states: OrderedDict[Path, dict[str, tuple[_State, str]]] = field(default_factory=OrderedDict)
    _maps: OrderedDict[Path, RepoMap] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = field(default_factory=WeakKeyDictionary)
    parsed: int = 0
    """How many files were parsed so far."""

    async def map(
        self, effects: Effects, root: Path, files: Iterable[str], now_ns: int, limits: Limits | None = None
    ) -> RepoMap:
        """The map of `files` (relative to `root`, as git lists them). `now_ns`: the time, in ns since 1970.

        A file that is not there is left out; a link or one that cannot be read is listed with a note. What is not
        known yet is parsed in a worker process, another one after each file over which the worker ends.

        Raises
        ------
        ToolProblem
            No process can be started to parse files.
        """
        limits = limits or Limits()
        names = sorted(set(files))
        fresh: dict[Key, FileFacts] = {}
        repo, unknown = await effects.disk(self._look, root, names, now_ns, fresh)
        if not unknown:
            return repo
        # One after another: agents that start together ask for the same files.
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        waits = turn.locked()
        async with turn:
            if waits:
                repo, unknown = await effects.disk(self._look, root, names, now_ns, fresh)
            ends = effects.monotonic() + limits.seconds
            for _ in range(_ROUNDS):
                if not unknown or effects.monotonic() >= ends:
                    break
                await self._parse(effects, root, unknown, ends, limits, fresh)
                repo, unknown = await effects.disk(self._look, root, names, now_ns, fresh)
        return repo

    async def _parse(
        self,
        effects: Effects,
        root: Path,
        files: list[Wanted],
        ends: float,
        limits: Limits,
        fresh: dict[Key, FileFacts],
    ) -> None:
        """Add what `files` say to `fresh` and to what is kept, as far as there is time."""
        while files and (seconds := ends - effects.monotonic()) > 0:
            run = await parse(effects, root, files, seconds, limits)
            fresh.update(run.found)
            self._keep(run.found)
            files = files[run.done :]

    def _look(
        self, root: Path, names: list[str], now_ns: int, fresh: Mapping[Key, FileFacts]
    ) -> tuple[RepoMap, list[Wanted]]:
        """The map as far as it is known, and the files that are to be parsed; blocks.

        `fresh` is what this call found out itself, which may already have made way for others.
        """
        with self._lock:
            before = self._states.pop(root, {})
            states: dict[str, tuple[_State, str]] = {}
            facts: dict[str, FileFacts] = {}
            digests: dict[str, str] = {}
            unknown: dict[Key, Wanted] = {}
            looked = 0
            for name in names:
                language = language_of(name)
                try:
                    found = os.lstat(root / name)
                except (OSError, ValueError):
                    continue
                size = found.st_size
                if not stat.S_ISREG(found.st_mode):
                    facts[name] = FileFacts("", 0, 0, "a link" if stat.S_ISLNK(found.st_mode) else "no file")
                elif not language:
                    facts[name] = FileFacts("", size, 0)
                elif looked >= MOST_FILES:
                    facts[name] = FileFacts(language, size, 0, "not looked into, there are too many files")
                elif size > MOST_BYTES:
                    facts[name] = FileFacts(language, size, 0, "large")
                else:
                    looked += 1
                    state = (found.st_mtime_ns, found.st_ctime_ns, size, found.st_ino, found.st_dev)
                    known, digest = before.get(name, ((), ""))
                    if known != state:
                        try:
                            data = read_bytes(root, name, limit=MOST_BYTES)[1]
                        except (ToolProblem, OSError):
                            facts[name] = FileFacts(language, size, 0, "cannot be read")
                            continue
                        if data is None:
                            continue
                        digest, size = digest_bytes(data), len(data)
                    key = (language, digest)
                    said = self._facts.get(key) or fresh.get(key)
                    if said is None:
                        unknown.setdefault(key, Wanted(name, language, size))
                        said = FileFacts(language, size, 0, NOT_YET)
                    elif key in self._facts:
                        self._facts.move_to_end(key)
                    facts[name] = said
                    if max(state[0], state[1]) < now_ns - _SETTLED_NS:
                        states[name] = (state, digest)
                    digests[name] = digest
            self._states[root] = states
            while len(self._states) > _KEPT_MAPS * 8:
                self._states.popitem(last=False)
            repo = RepoMap(facts, digests)
            return (repo if unknown else self._same(root, repo)), list(unknown.values())

    def _keep(self, found: Mapping[Key, FileFacts]) -> None:
        with self._lock:
            self.parsed += len(found)
            for key, facts in found.items():
                if key not in self._facts:
                    self._weight += _weight(facts)
                self._facts[key] = facts
            while self._weight > _KEPT_FACTS and len(self._facts) > 1:
                self._weight -= _weight(self._facts.popitem(last=False)[1])

    def _same(self, root: Path, new: RepoMap) -> RepoMap:
        """`new`, or the last map of `root` if nothing has changed: what was worked out for it holds still."""
        old = self._maps.pop(root, None)
        kept = old if old is not None and old == new else new
        self._maps[root] = kept
        while len(self._maps) > _KEPT_MAPS:
            self._maps.popitem(last=False)
        return kept


def _weight(facts: FileFacts) -> int:
    return 1_000 + len(facts.uses) + 400 * len(facts.symbols) + 200 * len(facts.imports)


KEPT = Kept()
"""The one of this process."""


async def read_map(effects: Effects, root: Path, files: Iterable[str]) -> RepoMap:
    """The map of `files` below `root` as they are now, worked out off the loop; raises as `Kept.map` does."""
    return await KEPT.map(effects, root, files, int(effects.now().timestamp() * 1e9))
