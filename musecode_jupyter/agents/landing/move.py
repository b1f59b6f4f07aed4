"""The move itself: intent, branch by compare-and-swap, checkout, outcome; each step can be repeated after a crash."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Literal

from musecode_jupyter.agents.landing.tools import LandingTools
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import IndexLocked
from musecode_jupyter.workspace.landing import CheckoutBlocked, RefMoved, land, undo_land, update_checkout


@dataclass(frozen=True)
class Outcome:
    """How a move ended: landed; moved (the branch was elsewhere by then) or blocked (the checkout was): no trace.

    `text` says what was done with the checkout, or why nothing was; `found` is where the branch is if it `moved`.
    """

    kind: Literal["landed", "moved", "blocked"]
    text: str
    found: str | None = None


async def move(
    tools: LandingTools, merge: int, ref: str, old: str, new: str, backup: str, *, announced: bool, cause: int
) -> Outcome:
    """Land `new` on `ref`; run it `to_the_end`: a checkout that is left behind its branch looks like a revert.

    `announced` says that merge.landing was written before, by a process that may have ended anywhere after it.

    Raises
    ------
    GitError
        The branch could not be moved for another reason than that it is elsewhere; the intent is left open.
    """
    if not announced:
        files = await tools.git.diff_paths(old, new)
        intent = {"merge": merge, "ref": ref, "old": old, "new": new, "backup": backup, "files": files}
        await tools.emit("merge.landing", intent, cause)
    outcome = await _move(tools, ref, old, new, land(tools.git, ref, old, new, backup))
    if outcome.kind == "landed":
        landed = {"merge": merge, "ref": ref, "old": old, "new": new, "backup": backup, "checkout": outcome.text}
        await tools.emit("merge.landed", landed, cause)
    return outcome


async def move_back(tools: LandingTools, ref: str, old: str, new: str, backup: str) -> Outcome:
    """Move `ref` from `old` to `new`, which need not contain `old`; events are the caller's. As `move` otherwise."""
    git = tools.git
    if await git.is_ancestor(old, new):
        return await _move(tools, ref, old, new, land(git, ref, old, new, backup))
    outcome = await _move(tools, ref, old, new, undo_land(git, ref, new, old, backup))
    at = outcome.found
    if outcome.kind == "moved" and at and await git.is_ancestor(new, at) and not await git.is_ancestor(old, at):
        # An earlier attempt got this far, and the user went on from there.
        return Outcome("landed", "It has moved on since, so the files were left as they are.")
    return outcome


async def _move(tools: LandingTools, ref: str, old: str, new: str, swap: Coroutine[object, object, bool]) -> Outcome:
    git = tools.git
    try:
        await swap
    except RefMoved as error:
        return Outcome("moved", str(error), error.found)
    try:
        checkout = await update_checkout(git, ref, old, new)
    except (CheckoutBlocked, IndexLocked) as error:
        # The user changed one of these files in the moment between the check and the move, or a git of theirs is at
        # work: take the move back. A checkout that is left behind its branch looks as if the work had been reverted.
        if await undo_land(git, ref, old, new):
            return Outcome("blocked", str(error))
        checkout = f"your files were left as they are: {error}"
    except GitError as error:
        checkout = f"your files were left as they are: {error}"
    return Outcome("landed", checkout)
