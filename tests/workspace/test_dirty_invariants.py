"""Whatever is uncommitted, worked on and committed meanwhile: what lands is the work, and what is uncommitted stays."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from git_repository import Repository
from hypothesis import event, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.landing import check_delta, check_merge, check_overlay, land, overlap, update_checkout
from musecode_jupyter.workspace.snapshots import take_snapshot
from musecode_jupyter.workspace.worktrees import commit_all, create_worktree

MAIN = "refs/heads/main"
NAMES = ("a.txt", "b.txt", "new.txt", "dir/new.txt")
BLOCKS = 3

# One change: a name, and what the blocks of its file are to say; None removes the file.
Edits = Mapping[str, Mapping[int, str] | None]


def edits(who: str, least: int = 0) -> st.SearchStrategy[Edits]:
    blocks = st.dictionaries(st.integers(0, BLOCKS - 1), st.just(who), min_size=1, max_size=2)
    return st.dictionaries(
        st.sampled_from(NAMES), st.one_of(blocks, blocks, blocks, st.none()), min_size=least, max_size=2
    )


def text(blocks: Mapping[int, str]) -> str:
    return "".join(f"{blocks.get(n, 'old')}\n" + f"between {n}\n" * 5 for n in range(BLOCKS))


def change(root: Path, wanted: Edits) -> None:
    for name, blocks in wanted.items():
        file = root / name
        if blocks is None:
            file.unlink(missing_ok=True)
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = (file.read_text() if file.exists() else text({})).split("\n")
        for block, who in blocks.items():
            lines[block * 6] += f" {who}"
        file.write_text("\n".join(lines))


def files(root: Path) -> dict[str, bytes]:
    found = (path for path in sorted(root.rglob("*")) if path.is_file() and ".git" not in path.relative_to(root).parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


async def story(repo: Repository, trees: Path, mine: Edits, work: Edits, committed: Edits) -> None:
    git = await Git.discover(repo.root, LiveEffects())
    # What is committed meanwhile is made beside, since it is no part of what is uncommitted.
    aside = await create_worktree(git, trees / "aside", "aside", "main")
    change(aside.root, committed)
    ahead = await commit_all(aside, "meanwhile")
    change(repo.root, mine)
    taken = await take_snapshot(git, "1")
    inside = await create_worktree(git, trees / "w", "musecode/1", taken.commit)
    change(inside.root, work)
    done = await commit_all(inside, "work")
    if await overlap(git, taken.head, ahead):
        event("refused before")  # the user could not have come there with these files
        return
    await land(git, MAIN, taken.head, ahead, "refs/musecode/backup/aside")
    await update_checkout(git, MAIN, taken.head, ahead)
    before, index = files(repo.root), repo.git("status", "--porcelain")
    check = await check_delta(git, ahead, taken.commit, done, "work\n")
    assert files(repo.root) == before
    if check.commit is None:
        assert check.conflicts
        event("conflict")
        return
    assert check.tree == await git.tree_of(check.commit)
    beside = await check_merge(git, ahead, taken.commit)
    whole = None
    if beside.commit is not None:
        whole = await check_overlay(git, ahead, check.commit, beside.commit, done)
    if await overlap(git, ahead, check.commit):
        event("in the way")
        return
    event("landed" if check.commit != ahead else "nothing to land")
    if check.commit != ahead:
        await land(git, MAIN, ahead, check.commit, "refs/musecode/backup/1")
        await update_checkout(git, MAIN, ahead, check.commit)
    changed = set(await git.diff_paths(ahead, check.commit))
    assert changed <= set(await git.diff_paths(taken.commit, done)), "more landed than the work"
    # All bytes of the user's that are in no commit are as they were, and as staged or not as they were.
    after = files(repo.root)
    uncommitted = {line[3:] for line in index.splitlines()}
    assert repo.git("status", "--porcelain") == index
    assert {name: after.get(name) for name in before if name not in changed} == {
        name: data for name, data in before.items() if name not in changed
    }
    assert not changed & uncommitted
    # And no commit that a branch of the user's holds knows them.
    held = repo.git("rev-list", "main").split()
    assert taken.commit not in held or not taken.dirty
    assert done not in held or done == taken.head
    assert "mine" not in "".join(repo.git("show", f"{check.commit}:{name}") for name in changed if name in after)
    # What was checked with their files is what is on the disk now.
    if whole is not None and whole.commit is not None:
        on_disk = await take_snapshot(git, "2")
        assert on_disk.tree == whole.tree


@given(mine=edits("mine"), work=edits("work", 1), committed=edits("meanwhile"))
@hypothesis_settings(max_examples=int(os.environ.get("MUSECODE_FAULT_RUNS", "25")) // 5, deadline=None)
def test_the_work_lands_and_the_uncommitted_stays(mine: Edits, work: Edits, committed: Edits) -> None:
    with tempfile.TemporaryDirectory() as made:
        repo = Repository(Path(made) / "repo")
        repo.root.mkdir()
        repo.git("init", "-q", "-b", "main")
        repo.commit({"a.txt": text({}), "b.txt": text({})})
        asyncio.run(story(repo, Path(made) / "trees", mine, work, committed))
