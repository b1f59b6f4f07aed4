"""Snapshots hold the files as they are, and leave the user's files, index, HEAD, refs and stash as they are."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
from git_repository import Repository
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace import snapshots
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.snapshots import SNAPSHOT_PREFIX, Snapshot, drop_snapshot, take_snapshot


async def _take(root: Path, name: str) -> Snapshot:
    return await take_snapshot(await Git.discover(root, LiveEffects()), name)


def take(repo: Repository, name: str = "1") -> Snapshot:
    return asyncio.run(_take(repo.root, name))


def everything_of_the_users(repo: Repository) -> tuple[object, ...]:
    """Files with modes and times, index bytes, HEAD, branches and tags, stash, configuration."""
    files = {
        str(path): (os.lstat(path).st_mode, os.lstat(path).st_mtime_ns, os.lstat(path).st_size)
        for path in sorted(repo.root.rglob("*"))
        if ".git" not in path.parts
    }
    git_dir = repo.root / ".git"
    return (
        files,
        (git_dir / "index").read_bytes(),
        (git_dir / "HEAD").read_bytes(),
        (git_dir / "config").read_bytes(),
        repo.git("for-each-ref", "refs/heads", "refs/tags", "refs/stash"),
        repo.git("stash", "list"),
    )


def names(repo: Repository, commit: str) -> list[str]:
    return repo.git("ls-tree", "-r", "--name-only", "-z", commit).split("\0")[:-1]


def text(repo: Repository, commit: str, name: str) -> str:
    return repo.git("show", f"{commit}:{name}")


def test_a_clean_tree_is_its_head(repo: Repository) -> None:
    taken = take(repo)
    assert not taken.dirty
    assert taken.commit == taken.head == repo.git("rev-parse", SNAPSHOT_PREFIX + "1")


def test_staged_changed_deleted_and_new_files_are_kept_and_nothing_is_touched(repo: Repository) -> None:
    repo.write("a.txt", "staged\n")
    repo.git("add", "a.txt")
    repo.write("a.txt", "changed after staging\n")
    (repo.root / "b.txt").unlink()
    repo.write("new/file.txt", "new\n")
    repo.write("out.log", "ignored\n")
    repo.write("build/out", "ignored\n")
    os.symlink("a.txt", repo.root / "link")
    repo.write("run.sh", "#!/bin/sh\n").chmod(0o755)
    repo.git("stash", "push", "-q", "--", "dir", check=False)
    before = everything_of_the_users(repo)
    taken = take(repo)
    assert everything_of_the_users(repo) == before
    assert taken.dirty
    assert taken.left_out == ()
    assert repo.git("rev-parse", f"{taken.commit}^") == repo.git("rev-parse", "HEAD")
    assert names(repo, taken.commit) == [".gitignore", "a.txt", "dir/c.txt", "link", "new/file.txt", "run.sh"]
    assert text(repo, taken.commit, "a.txt") == "changed after staging"
    assert text(repo, taken.commit, "link") == "a.txt"
    assert repo.git("ls-tree", taken.commit, "run.sh").startswith("100755")


def test_the_same_files_give_the_same_commit_and_another_name_is_another_ref(repo: Repository) -> None:
    repo.write("a.txt", "changed\n")
    first = take(repo)
    assert take(repo) == first
    assert take(repo, "2").commit == first.commit
    repo.write("a.txt", "changed again\n")
    with pytest.raises(GitError, match="keeps another snapshot"):
        take(repo)


def test_odd_names_are_kept(repo: Repository) -> None:
    odd = ["a b", "new\nline", "*.txt", ":(glob)x", "-rf", "#x", b"latin-\xe9".decode("utf-8", "surrogateescape"), "ä"]
    for name in odd:
        repo.write(name, name.encode("utf-8", "replace").decode())
    taken = take(repo)
    assert set(odd) <= set(names(repo, taken.commit))


def test_what_is_a_repository_of_its_own_is_left_out_and_named(repo: Repository) -> None:
    nested = repo.root / "nested"
    nested.mkdir()
    inner = Repository(nested)
    inner.git("init", "-q")
    inner.commit({"inner.txt": "inner\n"})
    repo.write("beside.txt", "beside\n")
    taken = take(repo)
    assert taken.left_out == ("nested/",)
    assert "beside.txt" in names(repo, taken.commit)
    assert not [name for name in names(repo, taken.commit) if name.startswith("nested")]


def test_a_changed_submodule_is_left_out_and_named(repo: Repository, tmp_path: Path) -> None:
    other = Repository(tmp_path / "other")
    other.root.mkdir()
    other.git("init", "-q")
    other.commit({"s.txt": "s\n"})
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.root), "sub")
    repo.git("commit", "-qm", "submodule")
    repo.write("sub/s.txt", "changed inside\n")
    repo.write("a.txt", "changed\n")
    taken = take(repo)
    assert taken.left_out == ("sub",)
    assert repo.git("ls-tree", taken.commit, "sub") == repo.git("ls-tree", "HEAD", "sub")
    assert text(repo, taken.commit, "a.txt") == "changed"


def test_large_and_special_files_are_left_out_and_named(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "LARGEST_FILE", 1000)
    (repo.root / "large.bin").write_bytes(b"x" * 1001)
    (repo.root / "small.bin").write_bytes(b"x" * 1000)
    os.mkfifo(repo.root / "pipe")
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/s")
        os.rename(f"{folder}/s", repo.root / "socket")
    taken = take(repo)
    # git itself does not list pipes and sockets, so that there is nothing to name.
    assert taken.left_out == ("large.bin",)
    assert "small.bin" in names(repo, taken.commit)
    assert not {"large.bin", "pipe", "socket"} & set(names(repo, taken.commit))


def test_files_that_git_was_told_to_overlook_are_kept_as_they_are(repo: Repository) -> None:
    repo.git("update-index", "--assume-unchanged", "a.txt")
    repo.git("update-index", "--skip-worktree", "b.txt")
    repo.write("a.txt", "overlooked a\n")
    repo.write("b.txt", "overlooked b\n")
    before = everything_of_the_users(repo)
    taken = take(repo)
    assert everything_of_the_users(repo) == before
    assert text(repo, taken.commit, "a.txt") == "overlooked a"
    assert text(repo, taken.commit, "b.txt") == "overlooked b"


def test_what_a_sparse_checkout_leaves_out_is_not_deleted(repo: Repository) -> None:
    repo.git("sparse-checkout", "set", "--no-cone", "/a.txt", "/.gitignore")
    assert not (repo.root / "dir/c.txt").exists()
    repo.write("a.txt", "changed\n")
    repo.write("elsewhere/new.txt", "new\n")
    taken = take(repo)
    assert names(repo, taken.commit) == [".gitignore", "a.txt", "b.txt", "dir/c.txt", "elsewhere/new.txt"]


def test_a_split_index_is_read_whole(repo: Repository) -> None:
    repo.git("update-index", "--split-index")
    repo.write("a.txt", "changed\n")
    repo.git("add", "a.txt")
    taken = take(repo)
    assert text(repo, taken.commit, "a.txt") == "changed"
    assert text(repo, taken.commit, "b.txt") == "b"


def test_line_ending_attributes_are_followed(repo: Repository) -> None:
    repo.commit({".gitattributes": "*.txt text eol=crlf\n"})
    (repo.root / "a.txt").write_bytes(b"one\r\ntwo\r\n")
    taken = take(repo)
    blob = subprocess.run(
        ["git", "cat-file", "blob", f"{taken.commit}:a.txt"], cwd=repo.root, capture_output=True, check=True
    )
    assert blob.stdout == b"one\ntwo\n"


def test_a_filter_that_fails_stops_it_and_nothing_is_kept(repo: Repository) -> None:
    repo.commit({".gitattributes": "*.bin filter=broken\n"})
    repo.git("config", "filter.broken.clean", "false")
    repo.git("config", "filter.broken.required", "true")
    repo.write("model.bin", "weights\n")
    before = everything_of_the_users(repo)
    with pytest.raises(GitError, match="broken"):
        take(repo)
    assert everything_of_the_users(repo) == before
    assert not repo.git("for-each-ref", SNAPSHOT_PREFIX)


def test_hooks_do_not_run(repo: Repository) -> None:
    hooks = repo.root / ".git/hooks"
    for name in ("pre-commit", "post-commit", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch '{repo.root}/hook-ran'\n")
        (hooks / name).chmod(0o755)
    repo.write("a.txt", "changed\n")
    take(repo)
    assert not (repo.root / "hook-ran").exists()


@pytest.mark.parametrize("state", ["unborn", "merging", "locked index"])
def test_states_in_which_it_is_not_possible_or_does_not_matter(repo: Repository, tmp_path: Path, state: str) -> None:
    if state == "unborn":
        fresh = Repository(tmp_path / "fresh")
        fresh.root.mkdir()
        fresh.git("init", "-q")
        with pytest.raises(GitError, match="no commit yet"):
            take(fresh)
    elif state == "merging":
        old, new = repo.ahead({"a.txt": "theirs\n"})
        repo.commit({"a.txt": "ours\n"})
        repo.git("merge", new, check=False)
        assert old != new
        with pytest.raises(GitError, match="merge is under way"):
            take(repo)
    else:
        # Only the copy of the index is written, so that a git of the user's that holds it does not matter.
        (repo.root / ".git/index.lock").touch()
        repo.write("a.txt", "changed\n")
        assert text(repo, take(repo).commit, "a.txt") == "changed"


def test_in_a_linked_worktree_and_from_a_subfolder(repo: Repository, tmp_path: Path) -> None:
    tree = tmp_path / "linked"
    repo.git("worktree", "add", "-q", "-b", "side", str(tree))
    (tree / "dir/c.txt").write_text("changed\n")
    taken = asyncio.run(_take(tree / "dir", "linked"))
    assert text(repo, taken.commit, "dir/c.txt") == "changed"
    assert repo.git("rev-parse", SNAPSHOT_PREFIX + "linked") == taken.commit


def test_a_snapshot_is_dropped_only_at_its_commit(repo: Repository) -> None:
    repo.write("a.txt", "changed\n")
    taken = take(repo)

    async def drop(commit: str) -> None:
        await drop_snapshot(await Git.discover(repo.root, LiveEffects()), "1", commit)

    with pytest.raises(GitError, match="it is kept"):
        asyncio.run(drop(taken.head))
    assert repo.git("rev-parse", SNAPSHOT_PREFIX + "1") == taken.commit
    asyncio.run(drop(taken.commit))
    asyncio.run(drop(taken.commit))
    assert not repo.git("for-each-ref", SNAPSHOT_PREFIX)


@pytest.mark.parametrize("name", ["", "../x", "a..b", "-x", "a b", "x.lock"])
def test_malformed_names_are_refused(repo: Repository, name: str) -> None:
    with pytest.raises(GitError, match="not a ref name"):
        take(repo, name)


@hypothesis_settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_checking_a_snapshot_out_gives_the_files_back(seed: int) -> None:
    """Whatever was done to the files: a checkout of the snapshot is equal to them byte for byte."""
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        repo = Repository(Path(folder) / "repo")
        repo.root.mkdir()
        repo.git("init", "-q", "-b", "main")
        repo.commit({f"{d}f{n}": f"{d}{n}\n" * 3 for d in ("", "d/", "d/e/") for n in range(3)})
        for step in range(choose.randrange(8)):
            files = [p for p in repo.root.rglob("*") if p.is_file() and ".git" not in p.parts]
            victim = choose.choice(files) if files else repo.write("f", "f")
            action = choose.choice(["change", "delete", "new", "stage", "rename", "executable", "empty folder"])
            if action == "change":
                victim.write_bytes(choose.randbytes(choose.randrange(200)))
            elif action == "delete":
                victim.unlink()
            elif action == "new":
                repo.write(f"n{step}/x{step}", f"{step}")
            elif action == "stage":
                repo.git("add", "-A")
            elif action == "rename":
                victim.rename(victim.with_name(f"renamed{step}"))
            elif action == "executable":
                victim.chmod(0o755)
            else:
                (repo.root / f"empty{step}").mkdir()
        before = everything_of_the_users(repo)
        taken = take(repo)
        assert everything_of_the_users(repo) == before
        copy = Path(folder) / "copy"
        repo.git("worktree", "add", "-q", "--detach", str(copy), taken.commit)
        assert contents(copy) == contents(repo.root)


def contents(root: Path) -> dict[str, tuple[bool, bytes]]:
    return {
        str(path.relative_to(root)): (os.access(path, os.X_OK), path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(root).parts
    }


def test_a_change_in_the_tick_of_the_index_is_seen(repo: Repository) -> None:
    """A copy of the index that is younger than the file made git take the file for unchanged."""
    repo.git("config", "core.trustctime", "false")
    file, tick = repo.root / "b.txt", 1_700_000_000
    os.utime(file, (tick, tick))
    repo.git("update-index", "--refresh", check=False)
    file.write_text("c\n")
    os.utime(file, (tick, tick))
    os.utime(repo.root / ".git" / "index", (tick, tick))
    git = asyncio.run(Git.discover(repo.root, LiveEffects()))
    taken = asyncio.run(take_snapshot(git, "tick"))
    assert repo.git("show", f"{taken.commit}:b.txt") == "c"
