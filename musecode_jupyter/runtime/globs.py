"""Globs for paths of a repository: what one means, in time that grows with the path alone, whatever the glob is."""

from __future__ import annotations

import re

MOST_CHARS = 1_000
_KEPT = 20_000
"""So many steps of one glob are remembered."""

_Part = tuple[str, re.Pattern[str] | str | None]


class BadGlob(ValueError):
    """It is no glob; says why."""


class Glob:
    """One glob: `*` and `?` stop at a slash, `**/` is any directories, `**` anything; without a slash it is meant for
    the file's name.

    All ways in which a path can match are followed at once: an expression of `re` tries them one after the other, so
    that a few `**` take it hours. Raises BadGlob.
    """

    def __init__(self, glob: str) -> None:
        if len(glob) > MOST_CHARS:
            raise BadGlob(f"it has {len(glob)} characters; at most {MOST_CHARS} are taken")
        self._parts = _parts(glob)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._begin = self._closed({0})

    def matches(self, path: str) -> bool:
        """Whether the whole of `path` is meant."""
        at = self._begin
        for character in path:
            if not at:
                return False
            after = self._steps.get((at, character))
            if after is None:
                if len(self._steps) >= _KEPT:
                    self._steps.clear()
                after = self._steps[at, character] = self._step(at, character)
            at = after
        return len(self._parts) in at

    def _step(self, at: frozenset[int], character: str) -> frozenset[int]:
        after: set[int] = set()
        for place in at - {len(self._parts)}:
            kind, what = self._parts[place]
            slash = character == "/"
            if kind == "all" or (kind in {"star", "inside"} and not slash):
                after.add(place)
            elif kind == "inside":
                after.add(place - 1)
            elif (
                (kind in {"folders", "any"} and not slash)
                or (kind == "one" and character == what)
                or (isinstance(what, re.Pattern) and what.fullmatch(character))
            ):
                after.add(place + 1)
        return self._closed(after)

    def _closed(self, at: set[int]) -> frozenset[int]:
        """`at`, and where one can be without a further character."""
        todo = list(at)
        while todo:
            place = todo.pop()
            kind = self._parts[place][0] if place < len(self._parts) else ""
            after = place + {"all": 1, "star": 1, "folders": 2}.get(kind, 0)
            if after not in at:
                at.add(after)
                todo.append(after)
        return frozenset(at)


def _parts(glob: str) -> list[_Part]:
    glob = glob.removeprefix("./").removeprefix("/")
    if "/" not in glob:
        glob = f"**/{glob}"
    parts: list[_Part] = []
    at = 0
    while at < len(glob):
        character = glob[at]
        close = glob.find("]", at + 2) if character == "[" else -1
        if glob.startswith("**/", at):
            if parts[-2:] != [("folders", None), ("inside", None)]:
                parts += [("folders", None), ("inside", None)]
            at += 3
        elif glob.startswith("**", at):
            if parts[-1:] != [("all", None)]:
                parts.append(("all", None))
            at += 2
        elif close > 0:
            parts.append(("class", _class(glob[at + 1 : close])))
            at = close + 1
        else:
            parts.append({"*": ("star", None), "?": ("any", None)}.get(character, ("one", character)))
            at += 1
    return parts


def _class(inside: str) -> re.Pattern[str]:
    negated = inside.startswith("!")
    escaped = re.sub(r"([\\^\[&~|])", r"\\\1", inside[negated:])
    try:
        return re.compile(f"[^/{escaped}]" if negated else f"[{escaped}]", re.DOTALL)
    except re.error as error:
        raise BadGlob(f"[{inside}] is no class of characters: {error.msg}") from None
