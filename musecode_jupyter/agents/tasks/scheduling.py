"""Which tasks may run side by side, and which run next: computed from file sets, imports, history and dependencies.

A planner proposes tasks; whether two of them are in each other's way is computed here, by pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from musecode_jupyter.agents.tasks.graph import Files, TaskSpec, expand, meeting

SERIAL = (
    "**/*.lock",
    "**/package-lock.json",
    "**/yarn.lock",
    "**/requirements*.txt",
    "**/constraints*.txt",
    "pyproject.toml",
    "**/setup.py",
    "**/setup.cfg",
    "**/migrations/**",
    "**/alembic/versions/**",
    "**/*_pb2.py",
    "**/*_pb2_grpc.py",
)
"""Two concurrent changes of such files do not add up even where they merge: locks, project files, generated code."""

KNOWN = (".py", ".pyi", ".md", ".rst", ".txt")
"""Endings of files of which it is known what uses them: imports say it of Python, and nothing uses prose."""

TOGETHER = Fraction(3, 4)
"""Share of the commits that changed the rarer of two files and also the other, from which on they count as one."""

MIN_TOGETHER = 4
"""Fewer common commits than this say nothing."""


@dataclass(frozen=True)
class Repository:
    """What is known of the repository: its files, what each file imports, how often two were committed together.

    `together` has the number of commits by pair (in sorted order), `commits` by file.
    """

    files: tuple[str, ...] = ()
    imports: Mapping[str, frozenset[str]] = field(default_factory=dict)
    together: Mapping[tuple[str, str], int] = field(default_factory=dict)
    commits: Mapping[str, int] = field(default_factory=dict)
    serial: tuple[str, ...] = SERIAL

    @cached_property
    def paths(self) -> Files:
        """The files, and what patterns mean of them."""
        return Files(self.files)


@dataclass(frozen=True)
class FileSets:
    """What a task reads and writes: as declared, and beyond that as seen while it runs."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @classmethod
    def of(cls, task: TaskSpec, read: Collection[str] = (), written: Collection[str] = ()) -> FileSets:
        """The declared sets widened by what was really `read` and `written`."""
        return cls(
            tuple(dict.fromkeys([*task.reads, *sorted(read)])), tuple(dict.fromkeys([*task.writes, *sorted(written)]))
        )


def obstacles(
    one: FileSets, other: FileSets, repository: Repository, names: tuple[str, str] = ("the first", "the second")
) -> list[str]:
    """Why two tasks may not run side by side, in sentences for the user; empty if they may.

    A task that declares no writes is taken for one that may write anything. `names` is what the two are called.
    """
    silent = [name for name, sets in zip(names, (one, other), strict=True) if not sets.writes]
    if silent:
        return [f"{' and '.join(silent)} may write anything, since nothing is said of what"]
    found: list[str] = []
    files = repository.paths
    both = meeting(one.writes, other.writes, files)
    if both:
        found.append(f"both write {_some(both)}")
    for reader, writer, who in ((one, other, names), (other, one, names[::-1])):
        read = meeting(reader.reads, writer.writes, files)
        if read:
            found.append(f"{who[0]} reads {_some(read)}, which {who[1]} writes")
    mine, theirs = expand(one.writes, files), expand(other.writes, files)
    found += _serial(mine, theirs, repository)
    for a, b, who in ((mine, theirs, names), (theirs, mine, names[::-1])):
        used = sorted(
            {f"{name} imports {used}" for name in a for used in repository.imports.get(name, ()) if used in b}
        )
        if used:
            found.append(f"{who[0]} writes what builds on what {who[1]} writes: {_some(used)}")
    pairs = [(a, b) for a in sorted(mine) for b in sorted(theirs) if a != b and _one_by_history(a, b, repository)]
    if pairs:
        found.append(f"history changes these together: {_some([f'{a} and {b}' for a, b in pairs])}")
    return found


def choose(
    tasks: Sequence[TaskSpec],
    *,
    done: Collection[str],
    running: Mapping[str, FileSets],
    repository: Repository,
    width: int,
    held: Collection[str] = (),
) -> list[str]:
    """The tasks to start now, at most so many that `width` run: those that most others wait for come first.

    A task starts when all that it comes after is `done`, it is not `held` back, and no task that runs or starts with
    it is an obstacle. The order of the arguments does not matter.
    """
    by_name = {task.name: task for task in tasks}
    waiting = weights(tasks)
    ready = [
        name
        for name in sorted(by_name, key=lambda name: (-waiting[name], name))
        if name not in done and name not in running and name not in held and set(by_name[name].after) <= set(done)
    ]
    beside = dict(running)
    chosen: list[str] = []
    for name in ready:
        if len(beside) >= width:
            break
        sets = FileSets.of(by_name[name])
        if not any(obstacles(sets, other, repository) for other in beside.values()):
            beside[name] = sets
            chosen.append(name)
    return chosen


@dataclass(frozen=True)
class Footprint:
    """What a task really read and wrote."""

    read: frozenset[str]
    written: frozenset[str]


def related(one: Footprint, other: Footprint, imports: Mapping[str, frozenset[str]]) -> bool:
    """Whether a change of one task can break what the other did: by a file of both, or through imports.

    A written file that is neither Python nor prose can be used in ways that are not known here: it relates to all.
    """
    if not one.written or not other.written:
        return False
    if any(not name.endswith(KNOWN) for name in one.written | other.written):
        return True
    for mine, theirs in ((one, other), (other, one)):
        if mine.written & used_by(theirs.read | theirs.written, imports):
            return True
    return False


def used_by(files: Collection[str], imports: Mapping[str, frozenset[str]]) -> set[str]:
    """`files` and all that they import, directly or through others."""
    seen: set[str] = set()
    queue = list(files)
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue += imports.get(name, ())
    return seen


def weights(tasks: Sequence[TaskSpec]) -> dict[str, int]:
    """How many tasks wait for each one, directly or through others."""
    followers: dict[str, set[str]] = {task.name: set() for task in tasks}
    for task in tasks:
        for before in task.after:
            followers.setdefault(before, set()).add(task.name)

    def all_after(name: str) -> set[str]:
        seen: set[str] = set()
        queue = [name]
        for current in queue:
            for follower in followers.get(current, ()):
                if follower not in seen:
                    seen.add(follower)
                    queue.append(follower)
        return seen

    return {task.name: len(all_after(task.name)) for task in tasks}


def _serial(mine: frozenset[str], theirs: frozenset[str], repository: Repository) -> list[str]:
    kinds = []
    ours, others = Files(mine), Files(theirs)
    for pattern in repository.serial:
        a = ours.meant(pattern) & mine
        b = others.meant(pattern) & theirs if a else frozenset()
        if b and not (a & b):
            kinds.append(f"{sorted(a)[0]} and {sorted(b)[0]}")
    return [f"changes of such files do not add up: {_some(kinds)}"] if kinds else []


def _one_by_history(a: str, b: str, repository: Repository) -> bool:
    count = repository.together.get((min(a, b), max(a, b)), 0)
    rarer = min(repository.commits.get(a, 0), repository.commits.get(b, 0))
    return count >= MIN_TOGETHER and rarer > 0 and Fraction(count, rarer) >= TOGETHER


def _some(names: Sequence[str], limit: int = 3) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
