"""The task graph: what is to be done, how it is accepted, over which files, after which other tasks; and its checks."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice, takewhile
from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict, Field

from musecode_jupyter.runtime.globs import BadGlob, Glob

MAX_TASKS = 64
_GLOB = re.compile(r"[*?\[]")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""What no text of a task may hold: control characters other than tab and newline, lone surrogates, and the marks that
turn the direction of writing, with which a command looks like another one."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}\Z")


class TaskSpec(BaseModel):
    """A task as a planner proposes it.

    `reads` and `writes` are paths relative to the root of the repository: a file, a folder (everything below it) or a
    glob as for the search tool. `accept` are commands that pass once the task is done. `after` names tasks whose
    results it needs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="short name, unique in the graph: lower-case letters, digits and hyphens")
    goal: str
    accept: tuple[str, ...] = Field(description="commands that can be run here, fail now, and pass once it is done")
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    risk: str = ""


def problems_of(tasks: Sequence[TaskSpec]) -> list[str]:
    """What is wrong with a proposed graph, one sentence each, for whoever proposed it; empty if nothing is."""
    if not tasks:
        return ["The graph has no task. Propose at least one."]
    if len(tasks) > MAX_TASKS:
        return [f"The graph has {len(tasks)} tasks; at most {MAX_TASKS} are taken. Propose larger tasks."]
    found: list[str] = []
    names = [task.name for task in tasks]
    for name in sorted({name for name in names if names.count(name) > 1}):
        found.append(f"Two tasks are called {name!r}. Give each a name of its own.")
    for task in tasks:
        found += _problems_of_one(task, set(names))
    cycle = _cycle({task.name: task.after for task in tasks})
    if cycle:
        found.append(f"These tasks wait for each other: {' -> '.join(cycle)}. Take one of the dependencies away.")
    return found


def _problems_of_one(task: TaskSpec, names: set[str]) -> list[str]:
    found: list[str] = []
    if not _NAME.match(task.name):
        found.append(f"{task.name!r} is no task name: 1 to 40 lower-case letters, digits and hyphens.")
    if not task.goal.strip():
        found.append(f"Task {task.name!r} says no goal.")
    if not any(command.strip() for command in task.accept):
        found.append(f"Task {task.name!r} has no acceptance command. Say which command passes once it is done.")
    elif not all(command.strip() for command in task.accept):
        found.append(f"Task {task.name!r} has an empty acceptance command, which would always pass. Leave it out.")
    for text in (task.goal, task.risk, *task.accept, *task.reads, *task.writes):
        odd = _UNPRINTABLE.search(text)
        if odd:
            found.append(f"Task {task.name!r}: {text[:60]!a} holds the character U+{ord(odd[0]):04X}. Leave it out.")
    for path in (*task.reads, *task.writes):
        reason = bad_path(path)
        if reason:
            found.append(f"Task {task.name!r}: {path!r} {reason}.")
    for other in task.after:
        if other == task.name:
            found.append(f"Task {task.name!r} comes after itself.")
        elif other not in names:
            found.append(f"Task {task.name!r} comes after {other!r}, which is no task of this graph.")
    return found


def bad_path(path: str) -> str:
    """Why a text is no path or glob of files of the repository; empty if it is one."""
    parts = PurePosixPath(path).parts
    if not path.strip() or "\0" in path:
        return "is no path"
    if path.startswith("/") or re.match(r"[A-Za-z]:", path):
        return "is absolute; give it relative to the root of the repository"
    if ".." in parts:
        return "leads out of the repository"
    if parts and parts[0].lower() == ".git":
        return "is git's own folder, which no task may change"
    if _GLOB.search(path):
        try:
            Glob(path)
        except BadGlob:
            return "is no glob; give one like *.py or src/**/*.py"
    return ""


def _cycle(after: Mapping[str, Sequence[str]]) -> list[str]:
    """One cycle of the graph, its first name again at the end; empty if there is none."""
    done: set[str] = set()
    for start in sorted(after):
        trail: list[str] = []
        stack: list[tuple[str, int]] = [(start, 0)]
        while stack:
            name, at = stack.pop()
            if at == 0:
                if name in done:
                    continue
                trail.append(name)
            later = [other for other in after.get(name, ()) if other in after and other != name]
            if at < len(later):
                stack.append((name, at + 1))
                if later[at] in trail:
                    return [*trail[trail.index(later[at]) :], later[at]]
                stack.append((later[at], 0))
            else:
                done.add(name)
                trail.pop()
    return []


class Files:
    """The paths of a repository, sorted; remembers which of them a pattern means."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self.paths = tuple(sorted(set(paths)))
        self.known = frozenset(self.paths)
        self._meant: dict[str, frozenset[str]] = {}

    @classmethod
    def of(cls, paths: Iterable[str] | Files) -> Files:
        """`paths` as such, if they are not already."""
        return paths if isinstance(paths, Files) else cls(paths)

    def meant(self, pattern: str) -> frozenset[str]:
        """The files that `pattern` means: those that match, and a plain path also if it is new."""
        found = self._meant.get(pattern)
        if found is None:
            found = self._meant[pattern] = self._look(pattern)
        return found

    def _look(self, pattern: str) -> frozenset[str]:
        if _GLOB.search(pattern):
            wanted = _glob(pattern)
            return frozenset(name for name in self.paths if wanted.matches(name))
        path = str(PurePosixPath(pattern))
        if path == ".":
            return self.known or frozenset({path})
        first = bisect_left(self.paths, f"{path}/")
        below = frozenset(takewhile(lambda name: name.startswith(f"{path}/"), islice(self.paths, first, None)))
        return below or frozenset({path})


def expand(patterns: Iterable[str], files: Iterable[str] | Files) -> frozenset[str]:
    """The files that `patterns` mean: those of `files` that match, and each plain path also if it is new."""
    known = Files.of(files)
    return frozenset().union(*(known.meant(pattern) for pattern in patterns))


def meeting(first: Iterable[str], second: Iterable[str], files: Iterable[str] | Files) -> list[str]:
    """Where two sets of patterns can mean one file, sorted: files that are there, and patterns for new ones."""
    known = Files.of(files)
    found = set(expand(first, known) & expand(second, known))
    # Either may make files that are not there yet: then what the patterns could mean is compared, on the safe side.
    for one in first:
        for other in second:
            if _could_meet(one, other) and not known.meant(one) & known.meant(other) & known.known:
                found.add(one if one == other else f"{one} / {other}")
    return sorted(found - {"."})


@lru_cache(maxsize=1024)
def _glob(glob: str) -> Glob:
    return Glob(glob)


@lru_cache(maxsize=8192)
def _could_meet(one: str, other: str) -> bool:
    globs = [bool(_GLOB.search(pattern)) for pattern in (one, other)]
    if not any(globs):
        a, b = PurePosixPath(one), PurePosixPath(other)
        return a == b or a in b.parents or b in a.parents
    if all(globs):
        a, b = _fixed(one), _fixed(other)
        return a == b or a in b.parents or b in a.parents
    glob, path = (one, other) if globs[0] else (other, one)
    plain = PurePosixPath(path)
    return _glob(glob).matches(str(plain)) or plain in (_fixed(glob), *_fixed(glob).parents)


def _fixed(glob: str) -> PurePosixPath:
    """The folder in which everything that a glob can mean lies."""
    parts: list[str] = []
    for part in PurePosixPath(glob).parts[:-1]:
        if _GLOB.search(part):
            break
        parts.append(part)
    return PurePosixPath(*parts)
