"""What the history says of files: how often each was changed, and how often two were changed by one commit.

Two git commands read it, not GitPython: that starts a process for each commit's diff, with the whole environment of the
user, and would see neither our timeouts nor a replay.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.workspace.git import Git

LAST = 2000
"""Commits looked at: older ones say little of how the files hang together now."""

LARGEST = 50
"""Files; a commit that changed more (a move, a new format) does not say that they belong together."""

LEAST = 4
"""Common commits from which on a pair is given. It bounds the memory: only files in so many commits form pairs."""

_BATCH = 50


@dataclass(frozen=True)
class History:
    """Counts over the commits that were looked at.

    `commits` has the number of commits by file, `together` by pair of files, in sorted order. `looked` is how many
    commits there were, `skipped` how many of them changed too many files.
    """

    commits: Mapping[str, int] = field(default_factory=dict)
    together: Mapping[tuple[str, str], int] = field(default_factory=dict)
    looked: int = 0
    skipped: int = 0


@answered
async def read_history(
    git: Git, commit: str = "HEAD", *, last: int = LAST, largest: int = LARGEST, least: int = LEAST
) -> History:
    """Count over the `last` commits up to `commit`, newest first; merges and first commits are left out.

    A rename is a change of both names. A shallow clone gives what it has.

    Raises
    ------
    GitError
        There is no such commit, or no commit at all.
    """
    start = await git.resolve(commit)
    listing = await git.run("rev-list", "--no-merges", "--min-parents=1", f"--max-count={last}", start, timeout=300.0)
    ids = listing.out.split()
    changed: list[tuple[str, ...]] = []
    skipped = 0
    for begin in range(0, len(ids), _BATCH):
        batch = b"\n".join(ids[begin : begin + _BATCH]) + b"\n"
        args = ("diff-tree", "--stdin", "-r", "-z", "--raw", "--no-renames")
        # Bytes until a commit is known to be small: a large one would make as many names.
        for paths in _by_commit((await git.run(*args, input=batch, timeout=300.0)).out, largest):
            if paths is None:
                skipped += 1
            else:
                changed.append(tuple(sorted(map(os.fsdecode, paths))))
    commits = Counter(path for paths in changed for path in paths)
    together = Counter(
        pair for paths in changed for pair in combinations([path for path in paths if commits[path] >= least], 2)
    )
    return History(dict(commits), {pair: n for pair, n in together.items() if n >= least}, len(ids), skipped)


@answered
async def last_commits(git: Git, most: int = 20, path: str = "") -> str:
    """The last commits of HEAD, newest first: a line each with the short id, the author's date and the subject.

    With `path`, from the root of the repository, those that changed this file.
    """
    of_one = ("--", path) if path else ()
    found = await git.run("log", f"-{most}", "--no-decorate", "--date=short", "--format=%h %ad %s", *of_one)
    return found.out.decode("utf-8", "replace")


def _by_commit(out: bytes, largest: int) -> list[list[bytes] | None]:
    """The paths of each commit in the output of `diff-tree --stdin -z --raw`; None for one with too many.

    A commit begins with its id; each path follows a record that begins with a colon.
    """
    found: list[list[bytes]] = []
    parts = iter(out.split(b"\0"))
    for part in parts:
        if part.startswith(b":"):
            path = next(parts)
            if len(found[-1]) <= largest:
                found[-1].append(path)
        elif part:
            found.append([])
    return [None if len(paths) > largest else paths for paths in found]
