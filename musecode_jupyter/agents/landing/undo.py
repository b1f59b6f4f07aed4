"""Takes a landing back: the branch as it was if nothing came after it, else a commit that reverts it, landed on top."""

from __future__ import annotations

from typing import Literal

from musecode_jupyter.agents.landing.move import Outcome, move_back
from musecode_jupyter.agents.landing.permission import obstacle
from musecode_jupyter.agents.landing.state import Merge, MergesState
from musecode_jupyter.agents.landing.tools import LandingTools
from musecode_jupyter.runtime.errors import GitError, UsageProblem
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.workspace.landing import revert_commit
from musecode_jupyter.workspace.worktrees import some_names

LISTED = "`%muse merges` lists them"
_NOT_LANDED = {
    "bounced": "it did not land",
    "dropped": "it did not land",
    "undone": "it was undone already",
    "undoing": "it is being undone",
    "landing": "it is landing now",
}


async def undo(tools: LandingTools, landing: int) -> str:
    """Take landing `landing` back, and say in a line what was done. One at a time.

    A branch that is still where the landing put it goes back to where it was; on one that has moved on, a commit is
    landed that takes out what the landing brought. The commit that the branch is at before is kept by a backup ref.

    Raises
    ------
    UsageProblem
        There is no such landing, it is undone, or something of the user's or a later commit is in the way: says
        what. Nothing was touched.
    GitError
        Git fails, or is in the middle of a merge or rebase here. Nothing was touched.
    """
    merge = _landed(tools, landing)
    assert merge.old is not None
    assert merge.new is not None
    git = tools.git
    tip = await git.ref(merge.ref)
    if tip is None:
        raise UsageProblem(f"The branch {merge.branch}, on which {landing} landed, is gone: there is nothing to undo.")
    if merge.old == merge.new:
        raise UsageProblem(f"Landing {landing} changed nothing: {merge.branch} held it already.")
    if not await git.is_ancestor(merge.new, tip):
        raise UsageProblem(f"{merge.branch} does not hold landing {landing} any more: there is nothing to undo.")
    target = merge.old if tip == merge.new else await _reverted(tools, landing, merge, tip)
    found = await obstacle(tools, merge.ref, tip, target)
    if found is not None:
        if found.kind == "open":
            reason, remedy = f"{found.what}, which the undo changes, is open in a notebook", "Save and close it"
        else:
            reason, remedy = f"{found.what[0].upper()}{found.what[1:]}", "Commit or stash them"
        raise UsageProblem(f"{reason}. Nothing was touched. {remedy}, then `%muse undo {landing}` again.")
    return await to_the_end(_move(tools, landing, merge, tip, target))


async def settle(tools: LandingTools) -> list[str]:
    """After a restart: bring undos that were cut off to their end; says what became of each, a line each."""
    said = []
    for landing, merge in _merges(tools).items():
        if merge.state == "undoing":
            said.append(await to_the_end(_finish(tools, landing, merge)))
    return said


def _merges(tools: LandingTools) -> dict[int, Merge]:
    state = tools.log.state("merges")
    assert isinstance(state, MergesState)
    return state.merges


def _landed(tools: LandingTools, landing: int) -> Merge:
    merge = _merges(tools).get(landing)
    if merge is None:
        raise UsageProblem(f"There is no landing {landing} in this session; {LISTED}.")
    if merge.state != "landed":
        why = _NOT_LANDED.get(merge.state, "it has not landed yet")
        raise UsageProblem(f"{landing} cannot be undone: {why}; {LISTED}.")
    return merge


async def _reverted(tools: LandingTools, landing: int, merge: Merge, tip: str) -> str:
    """A commit on top of `tip` without what the landing brought."""
    assert merge.old is not None
    assert merge.new is not None
    title = f" ({merge.title})" if merge.title else ""
    message = f"Undo landing {landing}{title}\n\nThis takes back {merge.old[:12]}..{merge.new[:12]}.\n"
    check = await revert_commit(tools.git, tip, merge.old, merge.new, message)
    if check.conflicts:
        raise UsageProblem(
            f"Landing {landing} cannot be undone by itself: {merge.branch} has changed {some_names(check.conflicts)} "
            f"since. Nothing was touched. Undo what came after it first, or take {merge.old[:10]}..{merge.new[:10]} "
            "back by hand."
        )
    assert check.commit is not None
    if check.commit == tip:
        raise UsageProblem(f"Nothing of landing {landing} is left on {merge.branch}: there is nothing to undo.")
    return check.commit


async def _move(tools: LandingTools, landing: int, merge: Merge, tip: str, target: str) -> str:
    backup = tools.backup_ref(f"{landing}-undo-{merge.undos + 1}")
    intent = {"merge": landing, "ref": merge.ref, "old": tip, "new": target, "backup": backup}
    files = await tools.git.diff_paths(tip, target)
    await tools.emit("merge.undoing", {**intent, "files": files}, merge.goal, landing)
    kind, text = await _carry_out(tools, landing, merge.goal, merge.ref, tip, target, backup)
    if kind == "stays":
        raise UsageProblem(text)
    return text


async def _finish(tools: LandingTools, landing: int, merge: Merge) -> str:
    assert merge.undo_old is not None
    assert merge.undo_new is not None
    assert merge.undo_backup is not None
    _, text = await _carry_out(tools, landing, merge.goal, merge.ref, merge.undo_old, merge.undo_new, merge.undo_backup)
    return text


async def _carry_out(
    tools: LandingTools, landing: int, goal: int, ref: str, old: str, new: str, backup: str
) -> tuple[Literal["undone", "stays"], str]:
    """Move the branch from `old` to `new` and write down how that went; said in a line."""
    branch = ref.removeprefix("refs/heads/")
    try:
        outcome = await move_back(tools, ref, old, new, backup)
    except GitError as error:
        outcome = Outcome("blocked", str(error))
    if outcome.kind == "landed":
        done = {"merge": landing, "ref": ref, "old": old, "new": new, "backup": backup, "checkout": outcome.text}
        await tools.emit("merge.undone", done, goal, landing)
        return "undone", f"Landing {landing} is undone: {branch} is at {new[:10]} now. {outcome.text}"
    await tools.emit("merge.stays", {"merge": landing, "why": outcome.text}, goal, landing)
    return "stays", f"Landing {landing} is not undone: {outcome.text}"
