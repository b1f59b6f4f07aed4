"""The move itself: intent, branch by compare-and-swap, checkout, outcome; each step can be repeated after a crash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from musecode_jupyter.agents.landing.tools import LandingTools
from musecode_jupyter.runtime.errors import GitError
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
    git = tools.git
    if not announced:
        files = await git.diff_paths(old, new)
        intent = {"merge": merge, "ref": ref, "old": old, "new": new, "backup": backup, "files": files}
        await tools.emit("merge.landing", intent, cause)
    try:
        await land(git, ref, old, new, backup)
    except RefMoved as error:
        return Outcome("moved", str(error), error.found)
    try:
        checkout = await update_checkout(git, ref, old, new)
    except CheckoutBlocked as error:
        # The user changed one of these files in the moment between the check and the move: take the move back.
        if await undo_land(git, ref, old, new):
            return Outcome("blocked", str(error))
        checkout = f"your files were left as they are: {error}"
    except GitError as error:
        checkout = f"your files were left as they are: {error}"
    landed = {"merge": merge, "ref": ref, "old": old, "new": new, "backup": backup, "checkout": checkout}
    await tools.emit("merge.landed", landed, cause)
    return Outcome("landed", checkout)
