"""Which label the result of a call has, and what of it is kept from the log where the model may not get it.

What files say has the label of their paths. What a command prints has the highest label of what it could read: without
a sandbox that is anything of the user's; in one it is the tree that it runs in. What the user's kernel shows is
private.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from musecode_jupyter.guard.labels import Label, above, highest
from musecode_jupyter.guard.path_labels import Judged
from musecode_jupyter.guard.sandbox import Sandbox
from musecode_jupyter.guard.tiers import TIER, WITHOUT_MEMORY, TiersState, tiers_of
from musecode_jupyter.log import EventLog
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.tools.registry import Outcome, Place, Tool

MOST_LOOKED_AT = 50_000
"""Files of a tree that are looked at before it counts as one that holds private ones."""

PLAIN = "a command without a sandbox may read any file of yours"
READABLE = "MUSECODE_READABLE lets commands read what lies outside the repository"
CHECKOUT = "it ran in your own checkout, where files lie that git ignores"
KERNEL = "what your kernel and notebook show may be any data"
IGNORED = "git does not list it"


class Shown(NamedTuple):
    """The label of what a call shows, and why."""

    label: Label
    rule: str


NOTHING = Shown("standard", "")


@dataclass(frozen=True)
class Release:
    """Used by the executor. `below` gives the folder of the repository that a place's root is, "" for its root."""

    log: EventLog
    effects: Effects
    sandbox: Sandbox
    below: Callable[[Path], str] = lambda _root: ""
    _left: list[str] = field(default_factory=list)
    """Why what commands leave in the home and /tmp of the session's sandbox may be private, once it may."""

    @property
    def state(self) -> TiersState:
        """The tiers as folded."""
        return tiers_of(self.log)

    async def before(self, tool: Tool, arguments: Mapping[str, Any], place: Place, agent: str) -> Shown:
        """What can be said of a call's result before it is made."""
        # The harness runs what it runs for others: its mark is of what it tells.
        mark = None if agent in WITHOUT_MEMORY else self.state.marks.get(agent)
        found = [NOTHING] if mark is None else [Shown("private", f"its caller holds event {mark.by}")]
        if tool.where == "kernel":
            found.append(Shown("private", KERNEL))
        elif tool.effect == "process":
            found.append(await self._process(place))
            fresh = place.worktree is None and place.checkout is not None
            if self._left and not fresh:
                found.append(Shown("private", self._left[0]))
            elif not fresh and (shown := _highest(*found)).label == "private":
                self._left.append(f"a command before it could have left something: {shown.rule}")
        elif isinstance(path := arguments.get("path"), str) and path not in {"", "."}:
            found.append(self._path(path, place))
        return _highest(*found)

    async def after(self, shown: Shown, outcome: Outcome, place: Place) -> Shown:
        """What can be said of it now that it is there."""
        paths = {*(path for path, _, _ in outcome.observed), *outcome.shows}
        found = [shown, *(self._path(path, place) for path in sorted(paths))]
        state = self.state
        if paths and (state.opted is not None or state.standard == "standard"):
            listed = set(await place.list_files())
            found += [Shown("private", f"{path}: {IGNORED}") for path in sorted(paths - listed)]
        return _highest(*found)

    def listing(self, place: Place) -> Place:
        """The place, in which what the model may not get is not among the files that are searched and mapped."""
        clearance = self.state.clearance()
        if not above("private", clearance):
            return place

        async def list_files() -> list[str]:
            return [path for path in await place.list_files() if not above(self._path(path, place).label, clearance)]

        return replace(place, list_files=list_files)

    def withholds(self, shown: Shown) -> str:
        """What is said in place of a result that the pinned model may not get; empty if it may."""
        state = self.state
        if not above(shown.label, state.clearance()):
            return ""
        why = (
            "is of the contributor tier, whose prompts may be used for training"
            if state.tier == TIER
            else "is not on this machine"
        )
        return f"[Not shown: it is {shown.label} ({shown.rule}), and {state.model} {why}. Go on without it.]"

    def fitting(self, shown: Shown, outcome: Outcome) -> tuple[Outcome, Shown]:
        """The outcome as it is recorded for the pinned model, and the label of that."""
        if not (said := self.withholds(shown)):
            return outcome, shown
        ending = "" if outcome.exit is None else f"\n[exit {outcome.exit}]"
        return replace(outcome, output=said + ending, pictures=()), NOTHING

    def _path(self, path: str, place: Place) -> Shown:
        below = self.below(place.root)
        return Shown(*self.state.path(os.path.normpath(os.path.join(below, path)).replace(os.sep, "/")))

    async def _process(self, place: Place) -> Shown:
        if self.sandbox.shows_more:
            return Shown("private", PLAIN if self.sandbox.name == "plain" else READABLE)
        if place.checkout is None:
            return Shown("private", CHECKOUT)
        found = await self.effects.disk(first_private, place.root, self.state.path)
        return NOTHING if found is None else Shown(found.label, f"the tree that it ran in holds {found.rule}")


def first_private(root: Path, judge: Callable[[str], Judged]) -> Judged | None:
    """The first file or folder below `root` that is private, if there is one; links are not followed. Blocks."""
    todo, looked = [root], 0
    while todo:
        folder = todo.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if folder == root and entry.name == ".git":
                continue
            looked += 1
            if looked > MOST_LOOKED_AT:
                return Judged("private", f"more than {MOST_LOOKED_AT} files")
            judged = judge(os.path.relpath(entry.path, root))
            if judged.label == "private" and (not entry.is_dir(follow_symlinks=False) or _has_file(Path(entry.path))):
                return judged
            if entry.is_dir(follow_symlinks=False):
                todo.append(Path(entry.path))
    return None


def _has_file(folder: Path) -> bool:
    return any(files for _, _, files in os.walk(folder))


def _highest(*found: Shown) -> Shown:
    label = highest(*(each.label for each in found))
    return next(each for each in found if each.label == label)
