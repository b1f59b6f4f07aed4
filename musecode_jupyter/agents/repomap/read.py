"""The map of the files of a worktree as they are now: what has not changed is neither read nor parsed again.

What the bytes of a file say does not depend on who asks: so it is kept once in a process, by the digest of the bytes,
for all agents, worktrees and sessions. An agent's worktree differs from the user's checkout by a few files.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from musecode_jupyter.agents.repomap.facts import MOST_BYTES, FileFacts, facts_of
from musecode_jupyter.agents.repomap.languages import language_of
from musecode_jupyter.agents.repomap.map import RepoMap
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

_State = tuple[int, ...]


@dataclass
class Kept:
    """What is known of files that were read before, in bounded memory; used from several threads."""

    _facts: OrderedDict[tuple[str, str], FileFacts] = field(default_factory=OrderedDict)
    _weight: int = 0
    _states: OrderedDict[Path, dict[str, tuple[_State, str]]] = field(default_factory=OrderedDict)
    _maps: OrderedDict[Path, RepoMap] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    parsed: int = 0
    """How many files were parsed so far."""

    def map(self, root: Path, files: Iterable[str], now_ns: int) -> RepoMap:
        """The map of `files` (relative to `root`, as git lists them); blocks. `now_ns`: the time, in ns since 1970.

        A file that is not there is left out; a link or one that cannot be read is listed with a note.
        """
        with self._lock:
            before = self._states.pop(root, {})
            states: dict[str, tuple[_State, str]] = {}
            facts: dict[str, FileFacts] = {}
            digests: dict[str, str] = {}
            looked = 0
            for name in sorted(set(files)):
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
                    read = None
                    if known != state or (language, digest) not in self._facts:
                        try:
                            data = read_bytes(root, name, limit=MOST_BYTES)[1]
                        except (ToolProblem, OSError):
                            facts[name] = FileFacts(language, size, 0, "cannot be read")
                            continue
                        if data is None:
                            continue
                        digest, read = digest_bytes(data), data
                    facts[name] = self._known(language, digest, read)
                    if max(state[0], state[1]) < now_ns - _SETTLED_NS:
                        states[name] = (state, digest)
                    digests[name] = digest
            self._states[root] = states
            while len(self._states) > _KEPT_MAPS * 8:
                self._states.popitem(last=False)
            return self._same(root, RepoMap(facts, digests))

    def _known(self, language: str, digest: str, data: bytes | None) -> FileFacts:
        key = (language, digest)
        found = self._facts.get(key)
        if found is None:
            assert data is not None
            found = self._facts[key] = facts_of(language, data)
            self._weight += _weight(found)
            self.parsed += 1
            while self._weight > _KEPT_FACTS and len(self._facts) > 1:
                self._weight -= _weight(self._facts.popitem(last=False)[1])
        self._facts.move_to_end(key)
        return found

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
    """The map of `files` below `root` as they are now, worked out off the loop."""
    now_ns = int(effects.now().timestamp() * 1e9)
    return await effects.disk(KEPT.map, root, list(files), now_ns)
