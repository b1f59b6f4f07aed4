"""Landing: merges are checked, branches move by compare-and-swap, nothing of the user's is overwritten."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from counting_effects import CountingEffects
from git_repository import Repository
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.landing import (
    CheckoutBlocked,
    RefMoved,
    check_merge,
    land,
    overlap,
    overlaps,
    revert_commit,
    undo_land,
    update_checkout,
)
from musecode_jupyter.workspace.worktrees import commit_all, create_worktree, remove_branch, remove_worktree

MAIN = "refs/heads/main"
BACKUP = "refs/musecode/backup/1"


def discover(path: Path) -> Git:
    return asyncio.run(Git.discover(path, LiveEffects()))


def overlapping(repo: Repository, old: str, new: str) -> list[str]:
    return asyncio.run(overlap(discover(repo.root), old, new))


def move(repo: Repository, old: str, new: str) -> None:
    assert asyncio.run(land(discover(repo.root), MAIN, old, new, BACKUP))


def update(repo: Repository, old: str, new: str) -> str:
    return asyncio.run(update_checkout(discover(repo.root), MAIN, old, new))


def contents(root: Path) -> dict[str, bytes]:
    """Every file of a checkout, git's own left out."""
    return {
        str(file.relative_to(root)): os.fsencode(os.readlink(file)) if file.is_symlink() else file.read_bytes()
        for file in sorted(root.rglob("*"))
        if (file.is_symlink() or file.is_file()) and ".git" not in file.relative_to(root).parts
    }


# Merge checks


def test_a_fast_forward_is_the_source_itself(repo: Repository) -> None:
    old, new = repo.ahead({"b.txt": "B\n"})
    check = asyncio.run(check_merge(discover(repo.root), old, new))
    assert (check.commit, check.fast_forward, check.conflicts) == (new, True, [])
    assert check.tree == repo.git("rev-parse", f"{new}^{{tree}}")
    assert asyncio.run(check_merge(discover(repo.root), new, old)).commit == new


def test_a_clean_textual_merge_has_both_parents_and_is_the_same_each_time(repo: Repository) -> None:
    lines = repo.read("a.txt")
    _, source = repo.ahead({"a.txt": lines.replace("line 2\n", "LINE 2\n")})
    target = repo.commit({"a.txt": lines.replace("line 19\n", "LINE 19\n")})
    git = discover(repo.root)
    check = asyncio.run(check_merge(git, target, source))
    assert check == asyncio.run(check_merge(git, "main", source))
    assert not check.fast_forward
    assert check.commit is not None
    assert repo.git("rev-parse", f"{check.commit}^1", f"{check.commit}^2").split() == [target, source]
    merged = repo.git("show", f"{check.commit}:a.txt")
    assert "LINE 2\n" in merged
    assert "LINE 19\n" in merged
    assert repo.git("log", "-1", "--format=%an", check.commit) == "musecode"
    assert repo.git("rev-parse", "main") == target
    assert asyncio.run(git.status()) == []


def test_conflicts_are_named_and_nothing_is_written(repo: Repository) -> None:
    odd = os.fsdecode(b"odd \xe9\n.txt")
    repo.commit({odd: "base\n"})
    _, source = repo.ahead({"b.txt": "theirs\n", odd: "theirs\n", "dir/c.txt": None})
    target = repo.commit({"b.txt": "ours\n", odd: "ours\n", "dir/c.txt": "ours\n"})
    check = asyncio.run(check_merge(discover(repo.root), target, source))
    assert (check.tree, check.commit) == (None, None)
    assert check.conflicts == sorted(["b.txt", odd, "dir/c.txt"])
    assert repo.read("b.txt") == "ours\n"


def test_unrelated_histories_are_refused(repo: Repository) -> None:
    repo.git("checkout", "-q", "--orphan", "other")
    other = repo.commit({"b.txt": "other\n"})
    with pytest.raises(GitError, match="share no history"):
        asyncio.run(check_merge(discover(repo.root), "main", other))


def test_a_revert_takes_out_one_step_and_nothing_else(repo: Repository) -> None:
    old = repo.git("rev-parse", "main")
    new = repo.commit({"b.txt": "B\n", "new.txt": "new\n"})
    tip = repo.commit({"dir/c.txt": "later\n"})
    git = discover(repo.root)
    check = asyncio.run(revert_commit(git, tip, old, new, "Undo it\n"))
    assert check == asyncio.run(revert_commit(git, "main", old, new, "Undo it\n"))
    assert check.commit is not None
    assert repo.git("rev-parse", f"{check.commit}^@") == tip
    assert repo.git("diff", "--name-only", old, check.commit) == "dir/c.txt"
    assert repo.git("log", "-1", "--format=%s", check.commit) == "Undo it"
    again = asyncio.run(revert_commit(git, check.commit, old, new, "Undo it\n"))
    assert (again.commit, again.conflicts) == (check.commit, [])
    later = repo.commit({"b.txt": "BB\n"})
    assert asyncio.run(revert_commit(git, later, old, new, "Undo it\n")).conflicts == ["b.txt"]
    assert repo.git("rev-parse", "main") == later


def test_only_checkouts_of_the_branch_can_be_in_its_way(repo: Repository, tmp_path: Path) -> None:
    old, new = repo.ahead({"b.txt": "B\n"})
    elsewhere = tmp_path / "elsewhere"
    repo.git("worktree", "add", "-q", "--force", str(elsewhere), "main")
    repo.git("checkout", "-q", "-b", "mine")
    repo.write("b.txt", "mine\n")
    git = discover(repo.root)
    assert asyncio.run(overlaps(git, MAIN, old, new)) == {}
    repo.write("b.txt", "theirs\n", elsewhere)
    assert asyncio.run(overlaps(git, MAIN, old, new)) == {elsewhere: ["b.txt"]}
    shutil.rmtree(elsewhere)
    assert asyncio.run(overlaps(git, MAIN, old, new)) == {}


# Moving the branch


def test_landing_moves_the_branch_keeps_a_backup_and_repeats(repo: Repository) -> None:
    old, new = repo.ahead({"b.txt": "B\n"})
    git = discover(repo.root)
    assert asyncio.run(land(git, MAIN, old, new, BACKUP))
    assert repo.git("rev-parse", "main", BACKUP).split() == [new, old]
    assert not asyncio.run(land(git, MAIN, old, new, BACKUP))
    repo.git("update-ref", "-d", BACKUP)
    assert not asyncio.run(land(git, MAIN, old, new, BACKUP))
    assert repo.git("rev-parse", BACKUP) == old
    assert repo.read("b.txt") == "b\n"


def test_a_branch_that_moved_meanwhile_is_left_alone(repo: Repository) -> None:
    """The user's branch moved by nine commits under a worker."""
    old, new = repo.ahead({"b.txt": "B\n"})
    for n in range(9):
        moved = repo.commit({"n.txt": f"{n}\n"})
    git = discover(repo.root)
    with pytest.raises(RefMoved) as caught:
        asyncio.run(land(git, MAIN, old, new, BACKUP))
    assert (caught.value.expected, caught.value.found) == (old, moved)
    assert repo.git("rev-parse", "main") == moved
    repo.git("checkout", "-q", "--detach")
    repo.git("branch", "-D", "main")
    with pytest.raises(RefMoved, match="is gone"):
        asyncio.run(land(git, MAIN, old, new, BACKUP))


def test_landing_over_a_later_commit_of_the_user_is_already_done(repo: Repository) -> None:
    old, new = repo.ahead({"b.txt": "B\n"})
    repo.git("merge", "-q", "--ff-only", new)
    later = repo.commit({"later.txt": "x\n"})
    assert not asyncio.run(land(discover(repo.root), MAIN, old, new, BACKUP))
    assert repo.git("rev-parse", "main") == later


def test_landing_can_be_undone_once(repo: Repository) -> None:
    old, new = repo.ahead({"b.txt": "B\n"})
    move(repo, old, new)
    git = discover(repo.root)
    kept = f"{BACKUP}-undo"
    assert asyncio.run(undo_land(git, MAIN, old, new, kept))
    assert repo.git("rev-parse", kept) == new
    assert not asyncio.run(undo_land(git, MAIN, old, new, kept))
    with pytest.raises(GitError, match="is not a backup ref"):
        asyncio.run(undo_land(git, MAIN, old, new, "refs/heads/kept"))
    assert repo.git("rev-parse", "main") == old
    other = repo.commit({"x.txt": "x\n"})
    with pytest.raises(RefMoved):
        asyncio.run(undo_land(git, MAIN, old, new))
    assert repo.git("rev-parse", "main") == other


def test_landing_refuses_bad_names_rewinds_and_taken_backups(repo: Repository) -> None:
    old, new = repo.ahead({"b.txt": "B\n"})
    git = discover(repo.root)
    for ref, backup, words in (
        ("main", BACKUP, "not a ref name"),
        ("refs/tags/x", BACKUP, "is not a branch"),
        (MAIN, "refs/heads/x", "not a backup ref"),
        (MAIN, "refs/musecode/backup/../../heads/main", "not a ref name"),
    ):
        with pytest.raises(GitError, match=words):
            asyncio.run(land(git, ref, old, new, backup))
    with pytest.raises(GitError, match="would drop commits"):
        asyncio.run(land(git, MAIN, new, old, BACKUP))
    repo.git("update-ref", BACKUP, new)
    with pytest.raises(GitError, match="already keeps"):
        asyncio.run(land(git, MAIN, old, new, BACKUP))
    assert repo.git("rev-parse", "main") == old


def test_a_branch_that_is_being_rebased_is_not_moved(repo: Repository) -> None:
    base = repo.git("rev-parse", "HEAD")
    _, onto = repo.ahead({"b.txt": "theirs\n"})
    old = repo.commit({"b.txt": "ours\n"})
    _, new = repo.ahead({"n.txt": "n\n"})
    repo.git("rebase", "-q", onto, "main", check=False)
    assert base != old
    with pytest.raises(GitError, match="A rebase of refs/heads/main is under way"):
        asyncio.run(land(discover(repo.root), MAIN, old, new, BACKUP))


# What would be touched


def test_disjoint_changes_do_not_overlap(repo: Repository) -> None:
    repo.write("a.txt", "unstaged\n")
    repo.write("dir/c.txt", "staged\n")
    repo.git("add", "dir/c.txt")
    repo.write("new.txt", "untracked\n")
    repo.write("noise.log", "ignored\n")
    old, new = repo.git("rev-parse", "HEAD"), side(repo, {"b.txt": "B\n", "n.txt": "n\n"})
    assert overlapping(repo, old, new) == []


def side(repo: Repository, files: dict[str, str | None]) -> str:
    """A commit on top of main, made elsewhere so that the checkout stays as it is."""
    tree = repo.root.parent / "side"
    repo.git("worktree", "add", "-q", "--detach", str(tree), "main")
    commit = repo.commit(files, cwd=tree)
    repo.git("worktree", "remove", "--force", str(tree))
    return commit


@pytest.mark.parametrize("kind", ["unstaged", "staged", "deleted", "removed", "staged-then-back", "hidden", "skipped"])
def test_a_changed_path_overlaps_however_it_is_dirty(repo: Repository, kind: str) -> None:
    old, new = repo.git("rev-parse", "HEAD"), side(repo, {"b.txt": "B\n"})
    if kind == "deleted":
        (repo.root / "b.txt").unlink()
    elif kind == "removed":
        repo.git("rm", "-q", "--cached", "b.txt")
    else:
        if kind in ("hidden", "skipped"):
            flag = "--assume-unchanged" if kind == "hidden" else "--skip-worktree"
            repo.git("update-index", flag, "b.txt")
        repo.write("b.txt", "mine\n")
        if kind.startswith("staged"):
            repo.git("add", "b.txt")
        if kind == "staged-then-back":
            repo.write("b.txt", "b\n")
    before = contents(repo.root)
    assert overlapping(repo, old, new) == ["b.txt"]
    move(repo, old, new)
    assert overlapping(repo, old, new) == ["b.txt"]
    with pytest.raises(CheckoutBlocked, match=r"in the way: b\.txt") as caught:
        update(repo, old, new)
    assert caught.value.paths == ["b.txt"]
    assert contents(repo.root) == before


@pytest.mark.parametrize(
    ("landed", "mine", "reported"),
    [
        ({"new.txt": "theirs\n"}, "new.txt", ["new.txt"]),
        ({"out.log": "theirs\n"}, "out.log", ["out.log"]),
        ({"build/x": "theirs\n"}, "build", ["build"]),
        ({"build": "theirs\n"}, "build/x", ["build/x"]),
        ({"out.log/x": "theirs\n"}, "out.log", ["out.log"]),
        ({"dir/c.txt": None, "dir": "theirs\n"}, "dir/mine.log", ["dir/mine.log"]),
        ({"b.txt": None, "moved.log": "b\n"}, "moved.log", ["moved.log"]),
        ({"b.txt": None, "B.log": "b\n"}, "B.log", ["B.log"]),
    ],
)
def test_untracked_and_ignored_files_are_never_overwritten(
    repo: Repository, landed: dict[str, str | None], mine: str, reported: list[str]
) -> None:
    """git read-tree overwrites ignored files without a word (since 2.34)."""
    old, new = repo.git("rev-parse", "HEAD"), side(repo, landed)
    repo.write(mine, "mine\n")
    before = contents(repo.root)
    assert overlapping(repo, old, new) == reported
    move(repo, old, new)
    with pytest.raises(CheckoutBlocked):
        update(repo, old, new)
    assert contents(repo.root) == before


def test_a_link_or_nested_repository_in_the_way_overlaps(repo: Repository, tmp_path: Path) -> None:
    """A link to a folder outside would have let a landing write outside the checkout."""
    old, new = repo.git("rev-parse", "HEAD"), side(repo, {"link/x.txt": "x\n", "inner/x.txt": "x\n"})
    (tmp_path / "outside").mkdir()
    (repo.root / "link").symlink_to(tmp_path / "outside")
    (repo.root / "inner").mkdir()
    Repository(repo.root / "inner").git("init", "-q")
    assert overlapping(repo, old, new) == ["inner", "link"]


@pytest.mark.parametrize("landed", [{"b.txt": "B\n", "dir/c.txt": None}, {"dir/c.txt": None, "dir": "theirs\n"}])
def test_a_staged_change_between_file_and_folder_overlaps(repo: Repository, landed: dict[str, str | None]) -> None:
    """`dir` staged as a file where the landing removes `dir/c.txt`: git refused what had been called safe."""
    old, new = repo.git("rev-parse", "HEAD"), side(repo, landed)
    if "dir" in landed:
        repo.write("dir/mine.txt", "mine\n")
    else:
        shutil.rmtree(repo.root / "dir")
        repo.write("dir", "mine\n")
    repo.git("add", "-A")
    before = contents(repo.root)
    assert overlapping(repo, old, new) == ["dir/mine.txt" if "dir" in landed else "dir"]
    move(repo, old, new)
    with pytest.raises(CheckoutBlocked):
        update(repo, old, new)
    assert contents(repo.root) == before


def test_names_are_compared_without_case_where_the_file_system_does_so(repo: Repository) -> None:
    old = repo.git("rev-parse", "HEAD")
    new = side(repo, {"b.txt": None, "B.TXT": "b\n", "README": "theirs\n"})
    repo.git("config", "core.ignorecase", "true")
    repo.write("B.TXT", "what such a file system shows for b.txt\n")
    assert overlapping(repo, old, new) == []
    repo.write("b.txt", "mine\n")
    assert overlapping(repo, old, new) == ["B.TXT", "b.txt"]


def test_odd_names_overlap_too(repo: Repository) -> None:
    name = os.fsdecode(b"odd \xe9\n.txt")
    old, new = repo.git("rev-parse", "HEAD"), side(repo, {name: "theirs\n"})
    repo.write(name, "mine\n")
    assert overlapping(repo, old, new) == [name]


def test_a_merge_under_way_is_said(repo: Repository) -> None:
    _, other = repo.ahead({"b.txt": "theirs\n"})
    old = repo.commit({"b.txt": "ours\n"})
    new = side(repo, {"n.txt": "n\n"})
    repo.git("merge", "-q", other, check=False)
    with pytest.raises(GitError, match="A merge is under way"):
        overlapping(repo, old, new)


# The checkout


def test_a_clean_checkout_follows_and_repeats(repo: Repository) -> None:
    old = repo.git("rev-parse", "HEAD")
    new = side(repo, {"b.txt": None, "dir/c.txt": None, "dir": "a file now\n", "x y\n.txt": "x\n"})
    os.utime(repo.root / "a.txt", (1, 1))
    move(repo, old, new)
    assert "was updated to" in update(repo, old, new)
    assert asyncio.run(discover(repo.root).status()) == []
    assert repo.read("dir") == "a file now\n"
    repo.write("dir", "edited after\n")
    assert "is already at" in update(repo, old, new)
    assert repo.read("dir") == "edited after\n"
    repo.git("add", "dir")
    assert "is already at" in update(repo, old, new)
    repo.git("reset", "-q", "--hard", old)
    move(repo, old, new)
    assert "was updated to" in update(repo, old, new)
    assert repo.read("dir") == "a file now\n"


def test_disjoint_work_survives_an_update(repo: Repository) -> None:
    repo.write("a.txt", "unstaged\n")
    repo.write("dir/c.txt", "staged\n")
    repo.git("add", "dir/c.txt")
    repo.write("dir/c.txt", "staged, then more\n")
    repo.write("new.txt", "untracked\n")
    repo.write("noise.log", "ignored\n")
    old, new = repo.git("rev-parse", "HEAD"), side(repo, {"b.txt": "B\n", "n.txt": "n\n"})
    move(repo, old, new)
    update(repo, old, new)
    assert repo.git("status", "--porcelain").split("\n") == [" M a.txt", "MM dir/c.txt", "?? new.txt"]
    assert repo.git("show", ":dir/c.txt") == "staged"
    assert (repo.read("b.txt"), repo.read("n.txt"), repo.read("noise.log")) == ("B\n", "n\n", "ignored\n")


def test_detached_and_other_branches_are_left_alone(repo: Repository) -> None:
    old, new = repo.ahead({"b.txt": "B\n"})
    repo.git("checkout", "-q", "--detach")
    move(repo, old, new)
    assert update(repo, old, new) == "main is checked out nowhere, so no files needed an update."
    repo.git("checkout", "-q", "-b", "other", old)
    assert "checked out nowhere" in update(repo, old, new)
    assert repo.read("b.txt") == "b\n"


def test_the_branch_is_followed_in_another_worktree(repo: Repository, tmp_path: Path) -> None:
    old, new = repo.ahead({"b.txt": "B\n"})
    repo.git("checkout", "-q", "--detach")
    repo.git("worktree", "add", "-q", str(tmp_path / "tree"), "main")
    move(repo, old, new)
    assert str(tmp_path / "tree") in update(repo, old, new)
    assert (tmp_path / "tree" / "b.txt").read_text() == "B\n"
    assert repo.read("b.txt") == "b\n"


def test_a_branch_that_moved_on_leaves_the_files(repo: Repository) -> None:
    old, new = repo.ahead({"b.txt": "B\n"})
    move(repo, old, new)
    repo.git("commit", "-q", "--allow-empty", "-m", "later")
    assert "no longer at" in update(repo, old, new)
    assert repo.read("b.txt") == "b\n"


def test_a_stale_index_lock_stops_the_update_untouched(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = repo.ahead({"b.txt": "B\n"})
    move(repo, old, new)
    lock = repo.write(".git/index.lock", "")
    with pytest.raises(GitError, match=r"index\.lock exists"):
        update(repo, old, new)
    assert repo.read("b.txt") == "b\n"
    lock.unlink()
    assert "was updated" in update(repo, old, new)


def test_an_update_that_was_killed_is_finished(repo: Repository) -> None:
    """git writes files first and the index last; killed between, the files looked like the user's."""
    landed: dict[str, str | None] = {
        "b.txt": "B\n",
        "n.txt": "new\n",
        "dir/c.txt": None,
        "a.txt": "long text\n",
    }
    old, new = repo.git("rev-parse", "HEAD"), side(repo, landed)
    move(repo, old, new)
    repo.write("mine.txt", "mine\n")
    repo.write("b.txt", "B\n")
    repo.write("n.txt", "ne")
    (repo.root / "dir/c.txt").unlink()
    (repo.root / "a.txt").unlink()
    with pytest.raises(CheckoutBlocked) as caught:
        update(repo, old, new)
    assert caught.value.paths == ["a.txt", "n.txt"], "without our mark these could be the user's"
    repo.write(".git/musecode-checkout", f"{old} {new} begun\n")
    assert "was updated" in update(repo, old, new)
    assert asyncio.run(discover(repo.root).status()) == ["mine.txt"]
    assert "is already at" in update(repo, old, new)


def test_an_edit_after_the_kill_is_still_the_users(repo: Repository) -> None:
    old, new = repo.git("rev-parse", "HEAD"), side(repo, {"b.txt": "B\n", "n.txt": "new\n"})
    move(repo, old, new)
    repo.write(".git/musecode-checkout", f"{old} {new} begun\n")
    repo.write("n.txt", "new\nand mine\n")
    repo.write("b.txt", "B\n")
    with pytest.raises(CheckoutBlocked, match=r"n\.txt"):
        update(repo, old, new)
    assert (repo.read("b.txt"), repo.read("n.txt")) == ("B\n", "new\nand mine\n")


def test_hooks_do_not_run_when_landing(repo: Repository, tmp_path: Path) -> None:
    old, new = repo.ahead({"b.txt": "B\n"})
    for name in ("reference-transaction", "post-index-change", "post-checkout", "post-merge"):
        hook = repo.write(f".git/hooks/{name}", f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
        hook.chmod(0o755)
    move(repo, old, new)
    update(repo, old, new)
    assert not (tmp_path / "ran").exists()


NAMES = st.sampled_from(["a.txt", "b.txt", "dir/c.txt", "dir", "n.log", "n.log/x", "build/x", "B.TXT"])
LANDED = st.dictionaries(NAMES, st.one_of(st.none(), st.sampled_from(["1\n", "2\n", ""])), min_size=1, max_size=4)
MINE = st.dictionaries(NAMES, st.tuples(st.sampled_from(["1\n", "mine\n", None]), st.booleans()), max_size=3)


@hypothesis_settings(max_examples=10)
@given(landed=LANDED, mine=MINE)
def test_whatever_is_dirty_an_update_loses_none_of_it(
    landed: dict[str, str | None],
    mine: dict[str, tuple[str | None, bool]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Either refused with every file as it was, or done with every file of the user's as it was."""
    root = tmp_path_factory.mktemp("any") / "repo"
    root.mkdir()
    repo = Repository(root)
    repo.git("init", "-q", "-b", "main")
    old = repo.commit({"a.txt": "a\n", "b.txt": "b\n", "dir/c.txt": "c\n", ".gitignore": "*.log\nbuild/\n"})
    tree = root.parent / "side"
    repo.git("worktree", "add", "-q", "--detach", str(tree))
    for name, text in landed.items():
        change(repo, tree, name, text)
    repo.git("add", "-A", "-f", cwd=tree)
    repo.git("commit", "-q", "--allow-empty", "-m", "landed", cwd=tree)
    new = repo.git("rev-parse", "HEAD", cwd=tree)
    after = contents(tree)
    clean = contents(root)
    for name, (text, staged) in mine.items():
        change(repo, root, name, text)
        if staged:
            repo.git("add", "-A", "-f")
    before, index = contents(root), repo.git("ls-files", "-s")
    edited = {name for name in before.keys() | clean.keys() if before.get(name) != clean.get(name)}
    safe = overlapping(repo, old, new) == []
    move(repo, old, new)
    try:
        update(repo, old, new)
    except CheckoutBlocked:
        assert not safe
        assert (contents(root), repo.git("ls-files", "-s")) == (before, index)
    else:
        found = contents(root)
        for name in edited:
            assert found.get(name) == before.get(name), name
        for name in (after.keys() | clean.keys()) - edited:
            assert found.get(name) == after.get(name), name
    shutil.rmtree(root.parent)


def change(repo: Repository, root: Path, name: str, text: str | None) -> None:
    """Give `name` this text whatever is there now, or take it away."""
    place = root / name
    if place.is_dir():
        shutil.rmtree(place)
    elif os.path.lexists(place):
        place.unlink()
    if text is not None:
        if place.parent != root and place.parent.is_file():
            place.parent.unlink()
        repo.write(name, text, root)


def test_a_file_that_was_touched_but_not_changed_is_brought_along(repo: Repository) -> None:
    old, new = repo.ahead({"a.txt": "theirs\n"})
    file = repo.root / "a.txt"
    os.utime(file, ns=(1, 1))
    repo.git("update-ref", MAIN, new)
    git = discover(repo.root)
    assert "was updated" in asyncio.run(update_checkout(git, MAIN, old, new))
    assert file.read_text() == "theirs\n"
    assert repo.git("status", "--porcelain") == ""


def test_a_backup_is_not_made_for_a_branch_that_cannot_be_moved(repo: Repository) -> None:
    old, new = repo.ahead({"a.txt": "theirs\n"})
    (repo.root / ".git/refs/heads/main.lock").touch()
    git = discover(repo.root)
    with pytest.raises(GitError, match="refs/heads/main"):
        asyncio.run(land(git, MAIN, old, new, BACKUP))
    assert asyncio.run(git.ref(BACKUP)) is None
    (repo.root / ".git/refs/heads/main.lock").unlink()
    assert asyncio.run(land(git, MAIN, old, new, BACKUP))
    assert asyncio.run(git.ref(BACKUP)) == old


async def life_of_a_worktree(git: Git, path: Path) -> None:
    inside = await create_worktree(git, path, "musecode/1", MAIN)
    (inside.root / "b.txt").write_text("by the worker\n")
    commit = await commit_all(inside, "work")
    old = await git.resolve(MAIN)
    check = await check_merge(git, old, commit)
    assert check.commit is not None
    assert await overlap(git, old, check.commit) == []
    assert await land(git, MAIN, old, check.commit, BACKUP)
    await update_checkout(git, MAIN, old, check.commit)
    await remove_worktree(git, path, MAIN)
    await remove_branch(git, "musecode/1", MAIN)


def test_the_life_of_a_worktree_takes_few_processes(repo: Repository, tmp_path: Path) -> None:
    """Plain git in a loop takes seven and starts some more itself; what is asked of files costs none."""
    effects = CountingEffects()
    git = asyncio.run(Git.discover(repo.root, effects))
    effects.commands.clear()
    asyncio.run(life_of_a_worktree(git, tmp_path / "tree"))
    assert repo.read("b.txt") == "by the worker\n"
    assert len(effects.commands) <= 17, "\n".join(" ".join(command[-6:]) for command in effects.commands)
