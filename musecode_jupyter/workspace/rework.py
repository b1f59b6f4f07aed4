"""Brings a worktree whose work did not land onto the commit that it is to land on, and keeps the work reachable."""

from __future__ import annotations

from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.worktrees import AUTHOR, fast_forward, operation_under_way

_MERGE_TIMEOUT = 600.0


@answered
async def rework_on(inside: Git, target: str) -> list[str]:
    """Merge `target` into the committed work of a worktree; where both changed the same lines, the target's stay.

    Where git cannot settle even that (one changed a file that the other removed), all files are as in `target`. The
    work is an ancestor of the new HEAD in either case, so none of its bytes is lost.

    Returns
    -------
    list of str
        Paths of the work that are now as in `target`, sorted: what was there has to be done again.

    Raises
    ------
    GitError
        The worktree has changes that are not committed, or git fails.
    """
    if await inside.status():
        raise GitError(f"{inside.root} has changes that are not committed; commit them before it is moved on.")
    work = (await inside.head()).commit
    base = (await inside.run("merge-base", work, target)).line()
    mine = set(await inside.diff_paths(base, work))
    if await inside.is_ancestor(work, target):
        await fast_forward(inside, target)
        return sorted(mine & set(await inside.diff_paths(work, target)))
    name, _, address = AUTHOR.rstrip(">").partition(" <")
    env = {
        f"GIT_{role}_{part}": value
        for role in ("AUTHOR", "COMMITTER")
        for part, value in (("NAME", name), ("EMAIL", address))
    }
    options = ("--no-ff", "--no-edit", "--no-verify", "--no-gpg-sign", "--quiet", "--no-stat", "--no-autostash")
    try:
        await inside.run_index("merge", *options, "-X", "theirs", target, env=env, timeout=_MERGE_TIMEOUT)
    except GitError:
        if await operation_under_way(inside) == "merge":
            await inside.run_index("merge", "--abort", timeout=_MERGE_TIMEOUT)
        tree = await inside.tree_of(target)
        commit = await inside.run(
            *("commit-tree", tree, "-p", work, "-p", target, "-F", "-"),
            input=f"Take over {target[:12]}\n".encode(),
            env=env,
        )
        await inside.run_index("reset", "--hard", "--quiet", commit.line(), timeout=_MERGE_TIMEOUT)
    head = (await inside.head()).commit
    same = mine - set(await inside.diff_paths(target, head))
    return sorted(same)
