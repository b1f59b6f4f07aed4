"""Worktrees: made in parallel and after crashes, committed without hooks, removed when nothing is lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from git_repository import Repository

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.locking import repository_lock
from musecode_jupyter.workspace.worktrees import (
    VERIFICATION,
    checkout_detached,
    commit_all,
    create_worktree,
    discard_detached,
    list_worktrees,
    remove_branch,
    remove_worktree,
)


def discover(path: Path) -> Git:
    return asyncio.run(Git.discover(path, LiveEffects()))


def create(repo: Repository, path: Path, branch: str = "musecode/w", base: str = "HEAD") -> Git:
    return asyncio.run(create_worktree(discover(repo.root), path, branch, base))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tmp_path / "trees" / "w"


def test_twenty_four_parallel_creates_all_succeed(repo: Repository, tmp_path: Path) -> None:
    """24 parallel `git worktree add -b X ... origin/main` failed up to 16 times and left orphan branches."""
    repo.git("update-ref", "refs/remotes/origin/main", "HEAD")
    repo.git("config", "remote.origin.url", str(repo.root))
    repo.git("config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    repo.git("config", "branch.autoSetupMerge", "always")
    git = discover(repo.root)

    async def all_at_once() -> list[Git]:
        names = [f"w{n}" for n in range(24)]
        return await asyncio.gather(
            *(create_worktree(git, tmp_path / "trees" / n, f"musecode/{n}", "origin/main") for n in names)
        )

    made = asyncio.run(all_at_once())
    assert {git.root.name for git in made} == {f"w{n}" for n in range(24)}
    assert len(asyncio.run(list_worktrees(git))) == 25
    assert repo.git("config", "--get-regexp", r"^branch\.musecode", check=False) == ""


def test_a_worktree_is_on_its_branch_at_base_and_again_is_the_same(repo: Repository, tree: Path) -> None:
    base = repo.git("rev-parse", "HEAD")
    repo.commit({"later.txt": "later\n"})
    git = create(repo, tree, base=base)
    assert asyncio.run(git.head()).commit == base
    assert asyncio.run(git.head()).branch == "musecode/w"
    repo.write("work.txt", "work\n", tree)
    assert create(repo, tree, base=base) == git
    assert (tree / "work.txt").read_text() == "work\n"


def test_a_branch_beyond_base_is_reused_and_another_is_refused(repo: Repository, tree: Path) -> None:
    base = repo.git("rev-parse", "HEAD")
    _, ahead = repo.ahead({"x.txt": "x\n"})
    repo.git("branch", "beyond", ahead)
    assert asyncio.run(create(repo, tree, "beyond", base).head()).commit == ahead
    later = repo.commit({"y.txt": "y\n"})
    repo.git("branch", "aside", ahead)
    with pytest.raises(GitError, match="aside exists and does not contain"):
        create(repo, tree.with_name("v"), "aside", later)
    with pytest.raises(GitError, match="beyond is checked out at"):
        create(repo, tree.with_name("v"), "beyond", base)


def test_what_is_already_there_is_never_taken_over(repo: Repository, tree: Path) -> None:
    repo.write("notes.txt", "mine\n", tree)
    with pytest.raises(GitError, match="exists and is not empty"):
        create(repo, tree)
    assert (tree / "notes.txt").read_text() == "mine\n"
    create(repo, tree.with_name("v"), "other")
    with pytest.raises(GitError, match="is a worktree of other, not of musecode/w"):
        create(repo, tree.with_name("v"))


@pytest.mark.parametrize("branch", ["a..b", "-x", "a b", "HEAD", "x.lock", "", "a/../b"])
def test_bad_branch_names_are_refused(repo: Repository, tree: Path, branch: str) -> None:
    with pytest.raises(GitError, match="choose another name"):
        create(repo, tree, branch)
    assert not tree.exists()


def test_a_worktree_inside_or_around_the_repository_is_refused(repo: Repository) -> None:
    for place in (repo.root / "inner", repo.root / ".git" / "inner", repo.root, repo.root.parent):
        with pytest.raises(GitError, match="outside"):
            create(repo, place)


def test_an_unborn_head_makes_no_worktree(tmp_path: Path, tree: Path) -> None:
    unborn = Repository(tmp_path / "unborn")
    unborn.root.mkdir()
    unborn.git("init", "-q", "-b", "main")
    with pytest.raises(GitError, match="no commit called 'HEAD'"):
        create(unborn, tree)


def test_hooks_do_not_run(repo: Repository, tree: Path, tmp_path: Path) -> None:
    """A shared core.hooksPath ran a user's post-checkout and pre-commit hooks in agents' worktrees."""
    ran = tmp_path / "ran"
    for folder in (tmp_path / "hooks", repo.root / ".git" / "hooks"):
        folder.mkdir(exist_ok=True)
        for name in (
            *("post-checkout", "pre-commit", "prepare-commit-msg", "commit-msg", "post-commit"),
            *("reference-transaction", "post-index-change", "post-rewrite"),
        ):
            (folder / name).write_text(f"#!/bin/sh\necho $0 >> {ran}\nexit 1\n")
            (folder / name).chmod(0o755)
    repo.git("config", "core.hooksPath", str(tmp_path / "hooks"))
    git = create(repo, tree)
    repo.write("x.txt", "x\n", tree)
    commit = asyncio.run(commit_all(git, "work"))
    asyncio.run(checkout_detached(git, tree.with_name("v"), commit))
    asyncio.run(remove_worktree(discover(repo.root), tree, commit))
    assert not ran.exists()


def half_made(repo: Repository, tree: Path) -> Path:
    """What `git worktree add` leaves when killed during the checkout; returns its administrative folder."""
    repo.git("worktree", "add", "-q", "-b", "musecode/w", str(tree))
    admin = repo.root / ".git" / "worktrees" / tree.name
    (admin / "locked").write_text("initializing")
    (admin / "index").unlink()
    (admin / "index.lock").write_bytes(b"")
    (tree / "b.txt").unlink()
    (tree / "a.txt").write_text("lin")
    return admin


def test_create_redoes_a_checkout_that_was_killed(repo: Repository, tree: Path) -> None:
    half_made(repo, tree)
    git = create(repo, tree)
    assert asyncio.run(git.status()) == []
    assert (tree / "a.txt").read_text() == repo.read("a.txt")
    assert [t.locked for t in asyncio.run(list_worktrees(git))] == [None, None]


def test_create_redoes_one_that_was_killed_before_its_git_file(repo: Repository, tree: Path) -> None:
    half_made(repo, tree)
    (tree / ".git").unlink()
    assert asyncio.run(create(repo, tree).status()) == []


def test_create_keeps_a_stranger_file_in_a_half_made_worktree(repo: Repository, tree: Path) -> None:
    half_made(repo, tree)
    repo.write("notes.log", "mine\n", tree)
    with pytest.raises(GitError, match=r"half made and holds notes\.log"):
        create(repo, tree)
    assert (tree / "notes.log").read_text() == "mine\n"


def test_create_goes_on_after_the_branch_only(repo: Repository, tree: Path) -> None:
    repo.git("branch", "musecode/w")
    assert asyncio.run(create(repo, tree).head()).branch == "musecode/w"


def test_create_replaces_a_registration_whose_folder_is_gone(repo: Repository, tree: Path) -> None:
    admin = half_made(repo, tree)
    subprocess.run(["rm", "-r", str(tree)], check=True)
    assert asyncio.run(create(repo, tree).status()) == []
    subprocess.run(["rm", "-r", str(tree)], check=True)
    assert asyncio.run(create(repo, tree).status()) == []
    subprocess.run(["rm", "-r", str(tree)], check=True)
    (admin / "locked").write_text("on a stick")
    with pytest.raises(GitError, match=r"missing but locked \(on a stick\)"):
        create(repo, tree)


def test_a_finished_worktree_that_lost_its_git_file_is_reported(repo: Repository, tree: Path) -> None:
    create(repo, tree)
    (tree / ".git").unlink()
    with pytest.raises(GitError, match="git worktree repair"):
        create(repo, tree)


def test_a_failing_required_filter_leaves_nothing_behind(repo: Repository, tree: Path) -> None:
    """A missing git-lfs made the checkout fail half-way."""
    repo.commit({".gitattributes": "*.bin filter=big\n", "data.bin": "data\n"})
    repo.git("config", "filter.big.smudge", "false")
    repo.git("config", "filter.big.required", "true")
    with pytest.raises(GitError, match=r"git worktree failed in .*smudge filter big failed"):
        create(repo, tree)
    assert not tree.exists()
    repo.git("config", "--remove-section", "filter.big")
    assert (create(repo, tree).root / "data.bin").read_text() == "data\n"


def test_commit_all_takes_odd_names_and_honours_ignores(repo: Repository, tree: Path) -> None:
    git = create(repo, tree)
    names = ["with space.txt", "new\nline.txt", os.fsdecode(b"latin-\xe9.txt")]
    for name in names:
        repo.write(name, "x\n", tree)
    repo.write("noise.log", "noise\n", tree)
    (tree / "b.txt").unlink()
    base = asyncio.run(git.head()).commit
    commit = asyncio.run(commit_all(git, "# not a comment\n\nbody\n"))
    assert asyncio.run(git.diff_paths(base, commit)) == sorted(["b.txt", *names])
    assert repo.git("log", "-1", "--format=%an <%ae> %cn%n%B", commit).startswith(
        "musecode <agent@musecode.invalid> musecode\n# not a comment\n\nbody"
    )
    assert asyncio.run(commit_all(git, "again")) == commit


def test_commit_all_needs_no_identity_and_no_signing_key(
    repo: Repository, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(repo.root.parent))
    repo.git("config", "user.useConfigOnly", "true")
    repo.git("config", "commit.gpgsign", "true")
    repo.git("config", "gpg.program", "false")
    repo.git("config", "core.safecrlf", "true")
    repo.git("config", "core.autocrlf", "input")
    git = create(repo, tree)
    (tree / "crlf.txt").write_bytes(b"one\r\ntwo\n")
    assert asyncio.run(commit_all(git, "work")) == repo.git("rev-parse", "musecode/w")


def test_commit_all_refuses_what_it_could_not_keep(repo: Repository, tree: Path) -> None:
    """A nested repository was committed as a bare pointer; its files went with the worktree."""
    git = create(repo, tree)
    inner = Repository(tree / "inner")
    inner.root.mkdir()
    inner.git("init", "-q", "-b", "main")
    inner.commit({"kept.txt": "kept\n"})
    with pytest.raises(GitError, match=r"inner/ in .* is a repository of its own"):
        asyncio.run(commit_all(git, "work"))
    with pytest.raises(GitError, match="would be lost: inner/"):
        asyncio.run(remove_worktree(discover(repo.root), tree, "main"))


def test_commit_all_concludes_a_merge(repo: Repository, tree: Path) -> None:
    _, ahead = repo.ahead({"x.txt": "x\n"})
    git = create(repo, tree)
    repo.commit({"y.txt": "y\n"}, cwd=tree)
    repo.git("merge", "-q", "--no-commit", ahead, cwd=tree)
    commit = asyncio.run(commit_all(git, "merged"))
    assert len(repo.git("rev-parse", f"{commit}^@").split()) == 2
    assert not (git.git_dir / "MERGE_HEAD").exists()


def test_a_submodule_in_the_repository_is_no_obstacle(repo: Repository, tree: Path, tmp_path: Path) -> None:
    library = Repository(tmp_path / "library")
    library.root.mkdir()
    library.git("init", "-q", "-b", "main")
    library.commit({"lib.txt": "lib\n"})
    allow = ("-c", "protocol.file.allow=always")
    repo.git(*allow, "submodule", "--quiet", "add", str(library.root), "lib")
    repo.git("commit", "-q", "-m", "submodule")
    git = create(repo, tree)
    repo.write("x.txt", "x\n", tree)
    commit = asyncio.run(commit_all(git, "work"))
    main = discover(repo.root)
    assert asyncio.run(remove_worktree(main, tree, commit)) == []
    create(repo, tree)
    repo.git(*allow, "submodule", "--quiet", "update", "--init", cwd=tree)
    own = repo.commit({"lib.txt": "own\n"}, cwd=tree / "lib")
    repo.git("reset", "-q", "--hard", "HEAD^", cwd=tree / "lib")
    repo.git("branch", "own", own, cwd=tree / "lib")
    with pytest.raises(GitError, match="commits in submodules that would be lost: lib"):
        asyncio.run(remove_worktree(main, tree, commit))
    repo.git("branch", "-q", "-D", "own", cwd=tree / "lib")
    assert asyncio.run(remove_worktree(main, tree, commit)) == []


def test_removal_refuses_untracked_changed_and_uncontained_work(repo: Repository, tree: Path) -> None:
    """Untracked-only work and unmerged commits were deleted at clean-up."""
    git, main = create(repo, tree), discover(repo.root)
    repo.write("only.txt", "work\n", tree)
    with pytest.raises(GitError, match=r"would be lost: only\.txt"):
        asyncio.run(remove_worktree(main, tree, "main"))
    commit = asyncio.run(commit_all(git, "work"))
    with pytest.raises(GitError, match="does not contain"):
        asyncio.run(remove_worktree(main, tree, "main"))
    repo.write("a.txt", "changed\n", tree)
    with pytest.raises(GitError, match=r"would be lost: a\.txt"):
        asyncio.run(remove_worktree(main, tree, commit))
    assert (tree / "only.txt").exists()


def test_removal_takes_contained_work_and_names_the_ignored(repo: Repository, tree: Path) -> None:
    git, main = create(repo, tree), discover(repo.root)
    repo.write("x.txt", "x\n", tree)
    repo.write("noise.log", "noise\n", tree)
    repo.write("build/out/o", "o\n", tree)
    commit = asyncio.run(commit_all(git, "work"))
    repo.git("merge", "-q", "--squash", commit)
    repo.git("commit", "-q", "-m", "squashed")
    assert asyncio.run(remove_worktree(main, tree, "main")) == ["build/", "noise.log"]
    assert not tree.exists()
    assert asyncio.run(remove_worktree(main, tree, "main")) == []
    assert [t.path for t in asyncio.run(list_worktrees(main))] == [repo.root]
    assert list(tree.parent.iterdir()) == []
    asyncio.run(remove_branch(main, "musecode/w", "main"))
    asyncio.run(remove_branch(main, "musecode/w", "main"))
    assert repo.git("branch", "--list", "musecode/*") == ""


def test_removal_that_was_killed_is_finished(repo: Repository, tree: Path) -> None:
    create(repo, tree)
    repo.write("noise.log", "noise\n", tree)
    trash = tree.rename(tree.with_name("w.musecode-removed"))
    (trash / "a.txt").unlink()
    (trash / ".git").unlink()
    main = discover(repo.root)
    asyncio.run(remove_worktree(main, tree, "main"))
    assert not trash.exists()
    assert [t.path for t in asyncio.run(list_worktrees(main))] == [repo.root]


def test_removal_refuses_main_locked_broken_and_strange_folders(repo: Repository, tree: Path, tmp_path: Path) -> None:
    create(repo, tree)
    main = discover(repo.root)
    with pytest.raises(GitError, match="main checkout"):
        asyncio.run(remove_worktree(main, repo.root, "main"))
    with pytest.raises(GitError, match="is not a worktree of"):
        asyncio.run(remove_worktree(main, tmp_path / "trees", "main"))
    repo.git("worktree", "lock", "--reason", "mine", str(tree))
    with pytest.raises(GitError, match=r"is locked \(mine\)"):
        asyncio.run(remove_worktree(main, tree, "main"))
    repo.git("worktree", "unlock", str(tree))
    (tree / ".git").unlink()
    with pytest.raises(GitError, match=r"has no \.git entry"):
        asyncio.run(remove_worktree(main, tree, "main"))
    assert (tree / "a.txt").exists()


def test_a_branch_with_work_or_in_use_is_kept(repo: Repository, tree: Path) -> None:
    git, main = create(repo, tree), discover(repo.root)
    with pytest.raises(GitError, match="is checked out at"):
        asyncio.run(remove_branch(main, "musecode/w", "main"))
    repo.write("x.txt", "x\n", tree)
    asyncio.run(remove_worktree(main, tree, asyncio.run(commit_all(git, "work"))))
    with pytest.raises(GitError, match="does not contain; it is kept"):
        asyncio.run(remove_branch(main, "musecode/w", "main"))


def test_a_verification_tree_is_always_clean(repo: Repository, tree: Path) -> None:
    main = discover(repo.root)
    old, new = repo.ahead({"x.txt": "x\n"})
    git = asyncio.run(checkout_detached(main, tree, old))
    kept = os.stat(tree / "a.txt").st_ino
    assert asyncio.run(checkout_detached(main, tree, old)) == git
    assert os.stat(tree / "a.txt").st_ino == kept
    repo.write("__pycache__/left.log", "left\n", tree)
    (tree / "b.txt").unlink()
    git = asyncio.run(checkout_detached(main, tree, old))
    assert not (tree / "__pycache__").exists()
    assert (tree / "b.txt").exists()
    (tree / ".git").unlink()
    git = asyncio.run(checkout_detached(main, tree, new))
    assert asyncio.run(git.head()).commit == new
    assert asyncio.run(git.head()).branch is None
    assert [t.locked for t in asyncio.run(list_worktrees(main))] == [None, VERIFICATION]
    asyncio.run(discard_detached(main, tree))
    asyncio.run(discard_detached(main, tree))
    assert not tree.exists()


def test_a_worktree_of_somebody_is_never_cleaned_for_verification(repo: Repository, tree: Path) -> None:
    main = discover(repo.root)
    repo.git("worktree", "add", "-q", "--detach", str(tree))
    repo.write("mine.txt", "mine\n", tree)
    with pytest.raises(GitError, match="not for verification"):
        asyncio.run(checkout_detached(main, tree, "main"))
    with pytest.raises(GitError, match="not for verification"):
        asyncio.run(discard_detached(main, tree))
    assert (tree / "mine.txt").exists()


HOLDER = """
import asyncio, os, sys
from pathlib import Path
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.locking import repository_lock
async def main():
    git = await Git.discover(Path(sys.argv[1]), LiveEffects())
    async with repository_lock(git) as lock:
        if sys.argv[2] == "fork" and os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        if sys.argv[2] == "git":
            asyncio.ensure_future(git.run("hold", pass_fds=(lock,)))
            await asyncio.to_thread(Path(sys.argv[3]).read_text)
        print("held", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


def hold(repo: Repository, how: str, fifo: Path) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(repo.root), how, str(fifo)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    return child


async def try_lock(git: Git, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds), repository_lock(git):
            return True
    except TimeoutError:
        return False


def test_the_lock_excludes_other_processes_and_a_kill_frees_it(repo: Repository, tmp_path: Path) -> None:
    """A child forked by a user's cell kept the lock of a kernel that had been killed."""
    child = hold(repo, "fork", tmp_path)
    git = discover(repo.root)
    try:
        assert not asyncio.run(try_lock(git, 0.3))
        child.kill()
        child.wait(10)
        assert asyncio.run(try_lock(git, 20))
    finally:
        child.kill()
        child.communicate(b"x")


def test_git_keeps_the_lock_when_we_are_killed(repo: Repository, tmp_path: Path) -> None:
    """After kill -9 a restart worked beside a `git worktree add` of the old process that still ran."""
    fifo, stop = tmp_path / "fifo", tmp_path / "stop"
    os.mkfifo(fifo)
    os.mkfifo(stop)
    repo.git("config", "alias.hold", f"!sh -c 'echo up > {fifo}; exec cat {stop}'")
    child = hold(repo, "git", fifo)
    child.kill()
    child.communicate()
    git = discover(repo.root)
    assert not asyncio.run(try_lock(git, 0.3))
    stop.write_text("go on")
    assert asyncio.run(try_lock(git, 20))
