"""Brings a worktree whose work did not land onto the commit that it is to land on, and keeps the work reachable."""

from __future__ import annotations

import os
import shutil

from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.landing import check_merge
from musecode_jupyter.workspace.worktrees import AUTHOR, fast_forward, operation_under_way

_MERGE_TIMEOUT = 600.0


@answered
async def rework_on(inside: Git, target: str) -> list[str]:
    """Merge `target` into the committed work of a worktree; where both changed the same lines, the target's stay.

    Where git cannot settle even that (one changed a file that the other removed), the files in question are as in
    `target`; all files are where a file meets a folder. The work is an ancestor of the new HEAD in each case, so none
    of its bytes is lost.

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
    env = _identity()
    options = ("--no-ff", "--no-edit", "--no-verify", "--no-gpg-sign", "--quiet", "--no-stat", "--no-autostash")
    try:
        await inside.run_index("merge", *options, "-X", "theirs", target, env=env, timeout=_MERGE_TIMEOUT)
    except GitError:
        tree = None
        if await operation_under_way(inside) == "merge":
            tree = await _taking_theirs(inside, mine | set(await inside.diff_paths(base, target)))
            await inside.run_index("merge", "--abort", timeout=_MERGE_TIMEOUT)
        tree = tree or await inside.tree_of(target)
        commit = await inside.run(
            *("commit-tree", tree, "-p", work, "-p", target, "-F", "-"),
            input=f"Take over {target[:12]}\n".encode(),
            env=env,
        )
        await inside.run_index("reset", "--hard", "--quiet", commit.line(), timeout=_MERGE_TIMEOUT)
    head = (await inside.head()).commit
    same = mine - set(await inside.diff_paths(target, head))
    return sorted(same)


async def _taking_theirs(inside: Git, paths: set[str]) -> str | None:
    """The tree of the merge under way with the target's side of what is in conflict; None if that is none of `paths`.

    Git gives names of its own to what it had to move out of the way, where a file meets a folder or a link.
    """
    theirs: dict[str, str] = {}
    width = 40
    for record in (await inside.run("ls-files", "-u", "-z")).names():
        header, _, path = record.partition("\t")
        mode, blob, stage = header.split(" ")
        width = len(blob)
        theirs.setdefault(path, "")
        if stage == "3":
            theirs[path] = f"{mode} {blob}\t{path}\0"
    if not theirs or theirs.keys() - paths:
        return None
    removed = "".join(f"0 {'0' * width}\t{path}\0" for path in theirs)
    # In an index beside it: git takes the merge back by its own.
    index = inside.git_dir / "musecode-rework-index"
    env = {"GIT_INDEX_FILE": str(index)}
    await inside.effects.disk(shutil.copyfile, inside.git_dir / "index", index)
    try:
        records = os.fsencode(removed + "".join(theirs.values()))
        await inside.run("update-index", "-z", "--index-info", input=records, env=env)
        return (await inside.run("write-tree", env=env)).line()
    finally:
        await inside.effects.disk(index.unlink)


@answered
async def on_base(inside: Git, base: str, commit: str) -> str:
    """`commit`, which HEAD is at, if it holds `base`; else a new commit of its tree that holds both, and HEAD with it.

    A worker that amends or rebases what it was given, or starts a history of its own, would otherwise hand in the
    commits of the user's a second time.
    """
    if await inside.is_ancestor(base, commit):
        return commit
    made = await _commit(inside, await inside.tree_of(commit), (base, commit), "Take the work back onto its base\n")
    await inside.run("update-ref", "-m", "musecode: onto its base", "HEAD", made, commit)
    return made


@answered
async def onto_rewritten(inside: Git, base: str, target: str, keep: str) -> list[str]:
    """Put what a worktree's work changes since `base` onto `target`, which does not hold `base` any more.

    That is so once the user has amended, rebased or reset the branch, or a landing was undone. To merge would bring
    back what they took out; so only the change is taken over, as one commit on `target`. The work as it was is kept at
    the ref `keep`. Where both changed the same lines, the target's stay.

    Returns
    -------
    list of str
        As for `rework_on`.

    Raises
    ------
    GitError
        As for `rework_on`.
    """
    if await inside.status():
        raise GitError(f"{inside.root} has changes that are not committed; commit them before it is moved on.")
    work = (await inside.head()).commit
    await inside.check_ref_name(keep)
    await inside.run("update-ref", keep, work)
    mine, theirs = await _beside(inside, base, work, target)
    await inside.run("update-ref", "-m", "musecode: the change alone", "HEAD", mine, work)
    again = await rework_on(inside, theirs)
    merged = (await inside.head()).commit
    made = await _commit(inside, await inside.tree_of(merged), (target,), "Work on what was there before\n")
    await inside.run("update-ref", "-m", "musecode: onto the rewritten branch", "HEAD", made, merged)
    return again


@answered
async def conflicts_onto(inside: Git, base: str, work: str, target: str) -> list[str]:
    """The paths in which what `work` changes since `base` conflicts with what `target` changes, sorted."""
    mine, theirs = await _beside(inside, base, work, target)
    return (await check_merge(inside, theirs, mine)).conflicts


async def _beside(git: Git, base: str, work: str, target: str) -> tuple[str, str]:
    """Commits of the trees of `work` and `target` that have the tree of `base` as the one thing before them."""
    root = await _commit(git, await git.tree_of(base), (), "What the work began from\n")
    mine = await _commit(git, await git.tree_of(work), (root,), "The work\n")
    return mine, await _commit(git, await git.tree_of(target), (root,), "The branch\n")


async def _commit(git: Git, tree: str, parents: tuple[str, ...], message: str) -> str:
    above = [word for parent in parents for word in ("-p", parent)]
    made = await git.run("commit-tree", tree, *above, "-F", "-", input=message.encode(), env=_identity())
    return made.line()


def _identity() -> dict[str, str]:
    name, _, address = AUTHOR.rstrip(">").partition(" <")
    return {
        f"GIT_{role}_{part}": value
        for role in ("AUTHOR", "COMMITTER")
        for part, value in (("NAME", name), ("EMAIL", address))
    }
