"""Findings that need no model: each is proven by the text of the files before and after a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from musecode_jupyter.agents.critiques.changed import (
    MAX_CHECKED_BYTES,
    Asked,
    ChangedFile,
    Found,
    Side,
    lines_of,
    normal,
    span_text,
)
from musecode_jupyter.agents.critiques.file_checks import additions, conflict_markers, outside, secrets
from musecode_jupyter.agents.critiques.hunks import hunk_around
from musecode_jupyter.agents.critiques.python_checks import debugging, syntax, undefined_names
from musecode_jupyter.agents.critiques.test_checks import weakened_tests
from musecode_jupyter.log.redaction import Redactor
from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.workspace.git import Git

MECHANICAL = "mechanical"
"""The name of this pass."""
MOST_FILES = 2_000
MOST_OF_A_CHECK = 20
"""Findings of one check in one change: a hundred alike say no more than these."""

_OF_A_FILE: tuple[Callable[[ChangedFile, Asked], Iterator[Found]], ...] = (
    conflict_markers,
    syntax,
    undefined_names,
    debugging,
    secrets,
    additions,
    outside,
)
_PLAIN = frozenset({b"100644", b"100755"})
_NONE = b"000000"


@answered
async def mechanical_findings(git: Git, base: str, commit: str, asked: Asked) -> list[Found]:
    """What is proven to be wrong with the change from `base` to `commit` (commits or trees), in order of paths."""
    files = await changed_files(git, base, commit)
    return await git.effects.disk(check_files, files, asked)


def check_files(files: Sequence[ChangedFile], asked: Asked) -> list[Found]:
    """The same for files that are at hand; pure."""
    found: list[Found] = []
    for file in files:
        for check in _OF_A_FILE:
            found += list(check(file, asked))[:MOST_OF_A_CHECK]
    found += list(weakened_tests(files, asked))[:MOST_OF_A_CHECK]
    clean = Redactor()
    # As the log will have it, so that it is known again.
    found = [replace(each, place=clean.text(each.place)[0], text=clean.text(each.text)[0]) for each in found]
    return sorted(found, key=lambda each: (each.path, each.start, each.check))


async def changed_files(git: Git, base: str, commit: str) -> list[ChangedFile]:
    """The plain files that differ, with both contents where they are not too large; links and submodules are left out.

    Raises GitError.
    """
    raw = (await git.run("diff-tree", "-r", "-z", "--raw", "--no-renames", "--end-of-options", base, commit)).out
    parts = raw.split(b"\0")
    rows = [(parts[at].split(), parts[at + 1]) for at in range(0, len(parts) - 1, 2)][:MOST_FILES]
    wanted = []
    for fields, name in rows:
        modes = (fields[0].removeprefix(b":"), fields[1])
        if any(mode not in _PLAIN and mode != _NONE for mode in modes):
            continue
        ids = tuple("" if mode == _NONE else blob.decode() for mode, blob in zip(modes, fields[2:4], strict=True))
        wanted.append((name.decode("utf-8", "surrogateescape"), ids))
    blobs = sorted({blob for _, ids in wanted for blob in ids if blob})
    sizes = await _sizes(git, blobs)
    contents = await _contents(git, [blob for blob in blobs if sizes.get(blob, 0) <= MAX_CHECKED_BYTES])
    return [
        ChangedFile(
            path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"),
            contents.get(ids[0]),
            contents.get(ids[1]),
            (sizes.get(ids[0], 0), sizes.get(ids[1], 0)),
        )
        for path, ids in wanted
    ]


async def _sizes(git: Git, blobs: Sequence[str]) -> dict[str, int]:
    if not blobs:
        return {}
    out = (await git.run("cat-file", "--batch-check", input="\n".join(blobs).encode() + b"\n")).out
    rows = [line.split() for line in out.decode().splitlines()]
    return {row[0]: int(row[2]) for row in rows if len(row) == 3}


async def _contents(git: Git, blobs: Sequence[str]) -> dict[str, bytes]:
    """The blobs' bytes by id; an answer of `cat-file --batch` is a line of id, kind and size, the bytes, and LF."""
    found: dict[str, bytes] = {}
    if not blobs:
        return found
    out = (await git.run("cat-file", "--batch", input="\n".join(blobs).encode() + b"\n")).out
    at = 0
    while at < len(out):
        end = out.index(b"\n", at)
        fields = out[at:end].split()
        if len(fields) != 3:
            at = end + 1
            continue
        size = int(fields[2])
        found[fields[0].decode()] = out[end + 1 : end + 1 + size]
        at = end + size + 2
    return found


@dataclass(frozen=True)
class Spot:
    """Lines of one side of a change, of which the text and the part of the diff are wanted."""

    path: str
    start: int
    end: int
    side: Side = "new"


@dataclass(frozen=True)
class Seen:
    """What stands at a spot, and the hunk of the diff around it; both empty if it is not there."""

    text: str
    hunk: str


@answered
async def look_at(git: Git, base: str, commit: str, spots: Sequence[Spot]) -> list[Seen]:
    """What stands at `spots`, in the files that differ between `base` and `commit`, or in others of `commit`.

    Raises GitError.
    """
    paths = sorted({spot.path for spot in spots})
    if not paths:
        return []
    sides: dict[tuple[str, Side], str | None] = {}
    for path in paths:
        for side, tree in (("new", commit), ("old", base)):
            shown = await git.run("cat-file", "blob", f"{tree}:{path}", check=False)
            text = shown.out.decode("utf-8", "replace") if shown.code == 0 else None
            sides[path, "new" if side == "new" else "old"] = text
    return await git.effects.disk(_seen, sides, spots)


def _seen(sides: dict[tuple[str, Side], str | None], spots: Sequence[Spot]) -> list[Seen]:
    clean, found = Redactor(), []
    for spot in spots:
        old, new = sides[spot.path, "old"], sides[spot.path, "new"]
        text = span_text(sides[spot.path, spot.side] or "", spot.start, spot.end)
        hunk = hunk_around(old, new, spot.start, spot.end, spot.side)
        found.append(Seen(clean.text(text)[0], clean.text(hunk)[0]))
    return found


@answered
async def standing(git: Git, commit: str, places: Sequence[tuple[str, str]]) -> list[bool]:
    """Of each path with a text, whether its lines stand there in `commit`, wherever in the file and however indented.

    Raises GitError.
    """
    texts: dict[str, str] = {}
    for path in {path for path, _ in places}:
        shown = await git.run("cat-file", "blob", f"{commit}:{path}", check=False)
        text = shown.out.decode("utf-8", "replace") if shown.code == 0 else ""
        texts[path] = Redactor().text(text)[0]
    return [stands_in(text, texts[path]) for path, text in places]


def stands_in(place: str, text: str) -> bool:
    """Whether the lines of `place` follow each other in `text`, but for blank lines and white space; pure.

    Nothing stands in every text that holds anything.
    """
    wanted, lines = ([line for each in lines_of(both) if (line := normal(each))] for both in (place, text))
    return any(lines[at : at + len(wanted)] == wanted for at in range(len(lines)))
