"""Tells where two commits conflict: git's words and the regions with their marks, bounded, from objects alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice

from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.landing import own_name

LARGEST_BLOB = 1 << 20  # bytes; in a larger file the regions are not looked for
CONTEXT_LINES = 3
_MARKS = ("<<<<<<< ", "||||||| ", ">>>>>>> ")


@dataclass(frozen=True)
class Conflict:
    """One path that two commits changed in ways that do not go together.

    `said` are git's words on it. `regions` are the parts with conflict marks and a few lines around each, empty
    where there are none: a deletion, a binary file, or a file over 1 MiB.
    """

    path: str
    said: tuple[str, ...]
    regions: tuple[str, ...]


@answered
async def conflicts_between(git: Git, target: str, source: str, *, ours: str, theirs: str) -> list[Conflict]:
    """Each conflict of a merge of `source` into `target`; the sides are called `ours` (target) and `theirs` in it."""
    target, source = await git.resolve(target), await git.resolve(source)
    args = ("merge-tree", "--write-tree", "-z", "--name-only", "--messages", target, source)
    merged = await git.run("-c", "merge.conflictStyle=zdiff3", *args, check=False, timeout=300.0)
    if merged.code not in (0, 1):
        raise await git.failure(args, merged)
    tree, *rest = os.fsdecode(merged.out).split("\0")
    end = rest.index("")
    paths, said = sorted(set(rest[:end])), _messages(rest[end + 1 :])
    labels = {target: ours, source: theirs}
    return [
        Conflict(
            own_name(path, target, source),
            tuple(_named(line, labels) for line in said.get(path, ())),
            await _regions(git, tree, path, labels),
        )
        for path in paths
    ]


def _messages(fields: list[str]) -> dict[str, list[str]]:
    """The conflict messages by path, from the last section of `merge-tree -z`."""
    found: dict[str, list[str]] = {}
    remaining = iter(fields)
    for count in remaining:
        if not count:
            break
        paths = list(islice(remaining, int(count)))
        kind, text = next(remaining), next(remaining)
        if kind.startswith("CONFLICT"):
            for path in paths:
                found.setdefault(path, []).append(text.strip())
    return found


def _named(text: str, labels: dict[str, str]) -> str:
    for commit, name in labels.items():
        text = text.replace(commit, name)
    return text


async def _regions(git: Git, tree: str, path: str, labels: dict[str, str]) -> tuple[str, ...]:
    size = await git.run("cat-file", "-s", f"{tree}:{path}", check=False)
    if size.code != 0 or int(size.out) > LARGEST_BLOB:
        return ()
    blob = await git.run("cat-file", "blob", f"{tree}:{path}", check=False)
    if blob.code != 0 or b"\0" in blob.out:
        return ()
    lines = blob.out.decode("utf-8", "replace").split("\n")
    spans: list[list[int]] = []
    for number, line in enumerate(lines):
        if line.startswith("<<<<<<< ") and line[8:] in labels:
            first = max(0, number - CONTEXT_LINES)
            if spans and first <= spans[-1][1]:
                continue
            spans.append([first, len(lines)])
        elif spans and line.startswith(">>>>>>> ") and line[8:] in labels:
            spans[-1][1] = min(len(lines), number + 1 + CONTEXT_LINES)
    return tuple(
        "\n".join(_named(line, labels) if line.startswith(_MARKS) else line for line in lines[first:last])
        for first, last in spans
    )
