"""Running git: where we are, scrubbed environment, odd names, limits, one clear line for what is wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from git_repository import Repository
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git

ODD_NAMES = [
    "with space.txt",
    "new\nline.txt",
    'tab\t"quote".txt',
    os.fsdecode(b"latin-\xe9.txt"),
    "-dash",
    "\u00fc.txt",
]


def discover(path: Path) -> Git:
    return asyncio.run(Git.discover(path, LiveEffects()))


def test_a_subfolder_and_a_file_find_the_top(repo: Repository) -> None:
    for start in ("dir", "dir/c.txt", "."):
        git = discover(repo.root / start)
        assert (git.root, git.git_dir, git.common_dir) == (repo.root, repo.root / ".git", repo.root / ".git")


def test_head_names_commit_and_branch(repo: Repository) -> None:
    git = discover(repo.root)
    head = asyncio.run(git.head())
    assert (head.commit, head.branch, head.ref) == (repo.git("rev-parse", "HEAD"), "main", "refs/heads/main")
    assert asyncio.run(git.tree_of("HEAD")) == repo.git("rev-parse", "HEAD^{tree}")
    repo.git("checkout", "-q", "--detach")
    detached = asyncio.run(git.head())
    assert (detached.commit, detached.branch, detached.ref) == (head.commit, None, None)


def test_an_unborn_head_says_to_make_a_first_commit(tmp_path: Path) -> None:
    Repository(tmp_path).git("init", "-q")
    with pytest.raises(GitError, match="no worktree can be made of it: make a first commit"):
        asyncio.run(discover(tmp_path).head())


def test_no_repository_bare_repository_and_missing_folder_are_told_apart(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    with pytest.raises(GitError, match="is not in a git repository"):
        discover(plain)
    Repository(tmp_path).git("init", "-q", "--bare", "bare.git")
    with pytest.raises(GitError, match="bare repository; clone it"):
        discover(tmp_path / "bare.git")
    with pytest.raises(GitError, match="does not exist"):
        discover(tmp_path / "none" / "deeper")


def test_the_git_folder_itself_is_not_a_checkout(repo: Repository) -> None:
    with pytest.raises(GitError, match=r"inside a \.git folder"):
        discover(repo.root / ".git" / "refs")


def test_git_that_is_not_installed_is_said(repo: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="git is not installed"):
        discover(repo.root)


def test_an_old_git_is_refused(repo: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "git"
    script.write_text("#!/bin/sh\necho git version 2.25.1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match=r"2\.38 or later is needed and this is git version 2\.25\.1"):
        discover(repo.root)


def test_the_innermost_repository_wins(repo: Repository) -> None:
    inner = repo.root / "nested"
    inner.mkdir()
    Repository(inner).git("init", "-q")
    assert discover(inner).root == inner


def test_a_linked_worktree_shares_the_common_dir(repo: Repository, tmp_path: Path) -> None:
    repo.git("worktree", "add", "-q", "-b", "side", str(tmp_path / "tree"))
    git = discover(tmp_path / "tree")
    assert git.root == tmp_path / "tree"
    assert git.git_dir == repo.root / ".git" / "worktrees" / "tree"
    assert git.common_dir == repo.root / ".git"


def test_variables_of_the_user_do_not_redirect_git(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A notebook started from a git hook carries GIT_DIR and GIT_INDEX_FILE: git used another repository."""
    Repository(tmp_path).git("init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    git = discover(repo.root)
    assert git.root == repo.root
    assert asyncio.run(git.list_files()) == [".gitignore", "a.txt", "b.txt", "dir/c.txt"]


def test_status_and_listing_keep_odd_names(repo: Repository) -> None:
    """Names with newline, quotes and bytes that are not UTF-8 were cut or escaped by line-wise parsing."""
    for name in ODD_NAMES:
        repo.write(name, "x\n")
    git = discover(repo.root)
    assert asyncio.run(git.status()) == sorted(ODD_NAMES)
    assert set(ODD_NAMES) <= set(asyncio.run(git.list_files()))
    old, new = repo.ahead(dict.fromkeys(ODD_NAMES, "y\n"))
    assert asyncio.run(git.diff_paths(old, new)) == sorted(ODD_NAMES)


def test_changes_tell_staged_unstaged_untracked_ignored(repo: Repository) -> None:
    repo.write("a.txt", "staged\n")
    repo.git("add", "a.txt")
    repo.write("b.txt", "unstaged\n")
    repo.write("new.txt", "new\n")
    repo.write("noise.log", "noise\n")
    repo.git("mv", "dir/c.txt", "dir/d.txt")
    git = discover(repo.root)
    changes = {change.path: change for change in asyncio.run(git.changes(ignored=True))}
    assert changes["a.txt"].staged
    assert not changes["a.txt"].unstaged
    assert changes["b.txt"].unstaged
    assert changes["new.txt"].untracked
    assert changes["noise.log"].ignored
    assert changes["dir/c.txt"].staged
    assert changes["dir/d.txt"].staged
    assert asyncio.run(git.status()) == ["a.txt", "b.txt", "dir/c.txt", "dir/d.txt", "new.txt"]


def test_listing_is_relative_and_leaves_out_ignored_nested_and_submodules(repo: Repository, tmp_path: Path) -> None:
    library = Repository(tmp_path / "library")
    library.root.mkdir()
    library.git("init", "-q", "-b", "main")
    library.commit({"lib.txt": "lib\n"})
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library.root), "lib")
    nested = Repository(repo.root / "nested")
    nested.root.mkdir()
    nested.git("init", "-q")
    nested.write("inner.txt", "inner\n")
    repo.write("dir/noise.log", "noise\n")
    repo.write("dir/new.txt", "new\n")
    git = discover(repo.root)
    assert asyncio.run(git.list_files(repo.root / "dir")) == ["c.txt", "new.txt"]
    assert asyncio.run(git.list_files()) == [
        ".gitignore",
        ".gitmodules",
        "a.txt",
        "b.txt",
        "dir/c.txt",
        "dir/new.txt",
    ]


def test_diff_text_is_plain_and_limited_to_paths(repo: Repository) -> None:
    """External diff programs, textconv, colour and prefixes of the user's changed what agents read."""
    repo.git("config", "diff.external", "false")
    repo.git("config", "diff.noprefix", "true")
    repo.git("config", "color.ui", "always")
    repo.git("config", "diff.shout.textconv", "tr a-z A-Z <")
    repo.write(".git/info/attributes", "*.txt diff=shout\n")
    old, new = repo.ahead({"a.txt": "changed\n", "b.txt": "B\n"})
    git = discover(repo.root)
    text = asyncio.run(git.diff_text(old, new, ["b.txt"]))
    assert text.startswith("diff --git a/b.txt b/b.txt\n")
    assert text.endswith("@@ -1 +1 @@\n-b\n+B\n")
    assert "a/a.txt" in asyncio.run(git.diff_text(old, new))
    assert asyncio.run(git.diff_text(old, old)) == ""


def test_an_unknown_commit_is_named(repo: Repository) -> None:
    git = discover(repo.root)
    for name in ("nothing", "--help", "main..main"):
        with pytest.raises(GitError, match="no commit called"):
            asyncio.run(git.resolve(name))


def test_a_failing_command_gives_reason_code_and_arguments(repo: Repository) -> None:
    git = discover(repo.root)
    with pytest.raises(GitError, match=r"git cat-file failed in .*: Not a valid object name nothing") as caught:
        asyncio.run(git.run("cat-file", "blob", "nothing"))
    assert (caught.value.code, caught.value.args_run) == (128, ("cat-file", "blob", "nothing"))
    assert asyncio.run(git.run("cat-file", "blob", "nothing", check=False)).code == 128


def test_a_timeout_ends_the_whole_process_group(repo: Repository, tmp_path: Path) -> None:
    """A filter that hangs kept running after git had been given up."""
    pids = tmp_path / "pid"
    repo.git("config", "alias.hang", f"!sh -c 'echo $$ > {pids}; exec sleep 600'")
    git = discover(repo.root)
    begun = time.monotonic()
    with pytest.raises(GitError, match=r"took longer than 0\.5 s"):
        asyncio.run(git.run("hang", timeout=0.5))
    assert time.monotonic() - begun < 8
    assert is_gone(int(pids.read_text()))


def test_cancelling_ends_the_whole_process_group(repo: Repository, tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    os.mkfifo(pids)
    repo.git("config", "alias.hang", f"!sh -c 'echo $$ > {pids}; exec sleep 600'")
    git = discover(repo.root)

    async def cancel() -> int:
        task = asyncio.create_task(git.run("hang"))
        pid = int(await asyncio.to_thread(pids.read_text))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pid

    assert is_gone(asyncio.run(cancel()))


def is_gone(pid: int) -> bool:
    """Whether the process ends within seconds (its parent may still have to collect it)."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return False


def test_git_runs_from_a_loop_in_another_thread(repo: Repository) -> None:
    found: list[Path] = []
    thread = threading.Thread(target=lambda: found.append(discover(repo.root).root))
    thread.start()
    thread.join(30)
    assert found == [repo.root]


def test_a_stale_index_lock_is_named_with_its_remedy(repo: Repository) -> None:
    lock = repo.write(".git/index.lock", "")
    git = discover(repo.root)
    with pytest.raises(GitError, match=r"index\.lock exists .* delete that file and try again"):
        asyncio.run(git.run_index("add", "-A", patience=0.1))
    assert lock.exists()


def test_a_live_index_lock_is_waited_for(repo: Repository) -> None:
    lock = repo.write(".git/index.lock", "")
    repo.write("new.txt", "new\n")
    git = discover(repo.root)

    async def add() -> None:
        task = asyncio.create_task(git.run_index("add", "-A", patience=30))
        await git.run("version")
        assert not task.done()
        lock.unlink()
        await task

    asyncio.run(add())
    assert repo.git("ls-files", "new.txt") == "new.txt"


def test_reading_takes_no_lock_and_leaves_the_index_alone(repo: Repository) -> None:
    repo.write(".git/index.lock", "")
    os.utime(repo.root / "a.txt")
    before = (repo.root / ".git" / "index").read_bytes()
    assert asyncio.run(discover(repo.root).status()) == []
    assert (repo.root / ".git" / "index").read_bytes() == before


def test_at_worktree_refuses_a_worktree_without_its_git_file(repo: Repository) -> None:
    """The `.git` file of a worktree below another repository was lost; git answered for the outer one."""
    tree = repo.root.parent / "outer" / "tree"
    tree.parent.mkdir()
    Repository(tree.parent).git("init", "-q")
    repo.git("worktree", "add", "-q", "-b", "side", str(tree))
    assert asyncio.run(Git.at_worktree(tree, LiveEffects())).root == tree
    (tree / ".git").unlink()
    with pytest.raises(GitError, match=r"has no \.git entry.*git worktree repair"):
        asyncio.run(Git.at_worktree(tree, LiveEffects()))
    (tree / ".git").mkdir()
    with pytest.raises(GitError, match=r"takes .* for a part of .*outer"):
        asyncio.run(Git.at_worktree(tree, LiveEffects()))


def test_at_worktree_refuses_a_copy(repo: Repository, tmp_path: Path) -> None:
    repo.git("worktree", "add", "-q", "-b", "side", str(tmp_path / "tree"))
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / ".git").write_bytes((tmp_path / "tree" / ".git").read_bytes())
    with pytest.raises(GitError, match="is a copy or was moved"):
        asyncio.run(Git.at_worktree(tmp_path / "copy", LiveEffects()))


def test_commands_stay_pinned_when_the_git_file_is_lost(repo: Repository, tmp_path: Path) -> None:
    Repository(tmp_path).git("init", "-q")
    repo.git("worktree", "add", "-q", "-b", "side", str(tmp_path / "tree"))
    git = discover(tmp_path / "tree")
    (tmp_path / "tree" / ".git").unlink()
    assert asyncio.run(git.head()).branch == "side"


PARTS = [
    "a",
    "B",
    ".",
    "..",
    "/",
    "//",
    "-",
    "@",
    "@{",
    "{",
    "~",
    "^",
    ":",
    "?",
    "*",
    "[",
    "]",
    "\\",
    " ",
    "\x7f",
    "\t",
]
PARTS += [".lock", "lock", "ä", os.fsdecode(b"\xe9"), "refs/", "heads/", "\n"]


@hypothesis_settings(max_examples=40, deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=5))
def test_ref_names_are_judged_as_git_does(parts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Beyond git's rules, a part that begins with a dash is refused: it would be taken for an option."""
    git = Git(tmp_path_factory.getbasetemp(), Path("none"), Path("none"), LiveEffects())
    name = "refs/" + "".join(parts)
    by_git = subprocess.run(["git", "check-ref-format", name], check=False).returncode == 0

    async def by_us() -> bool:
        try:
            await git.check_ref_name(name)
        except GitError:
            return False
        return True

    assert asyncio.run(by_us()) == (by_git and "/-" not in name)
