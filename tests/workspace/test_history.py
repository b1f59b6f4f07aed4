"""Which files the history changes together, on real commits."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from git_repository import Repository
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.history import History, last_commits, read_history


def read(root: Path, **how: int) -> History:
    async def work() -> History:
        return await read_history(await Git.discover(root, LiveEffects()), **how)

    return asyncio.run(work())


def write_commits(root: Path, commits: list[set[str]]) -> Repository:
    """One commit for each set of names, after a first, empty one, in one `git fast-import`."""
    repo = Repository(root)
    root.mkdir()
    repo.git("init", "-q", "-b", "main")
    parts: list[bytes] = []
    for number, names in enumerate([set[str](), *commits]):
        parts.append(b"commit refs/heads/main\ncommitter User <user@example.org> %d +0000\ndata 1\nx\n" % number)
        for name in sorted(names):
            quoted = os.fsencode(name).replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
            parts.append(b'M 100644 inline "%s"\ndata %d\n%d\n' % (quoted, len(str(number)), number))
    subprocess.run(["git", "fast-import", "--quiet"], cwd=root, input=b"".join(parts), check=True)
    return repo


def test_files_of_one_commit_are_counted_together_under_odd_names_too(tmp_path: Path) -> None:
    odd, colon = os.fsdecode(b"odd \xe9\n.txt"), ":100644 x"
    write_commits(tmp_path / "r", [{"a.py", odd}, {"a.py", odd, colon}, {"a.py"}, {colon, "d/b.py"}] * 2)
    history = read(tmp_path / "r", least=2)
    assert history.commits == {"a.py": 6, odd: 4, colon: 4, "d/b.py": 2}
    assert history.together == {("a.py", odd): 4, (colon, "a.py"): 2, (colon, odd): 2, (colon, "d/b.py"): 2}
    assert (history.looked, history.skipped) == (8, 0)


def test_the_last_commits_of_a_file_whatever_it_is_called(tmp_path: Path) -> None:
    odd = os.fsdecode(b"*\xe9.txt")
    repo = write_commits(tmp_path / "r", [{"a.txt"}, {odd}, {"a.txt", odd}, {"b.txt"}])
    ids = repo.git("log", "--format=%h", "main").split()

    async def of(path: str, most: int) -> list[str]:
        text = await last_commits(await Git.discover(tmp_path / "r", LiveEffects()), most, path)
        return [line.split()[0] for line in text.splitlines()]

    repo.git("symbolic-ref", "HEAD", "refs/heads/main")
    assert asyncio.run(of("a.txt", 5)) == [ids[1], ids[3]]
    assert asyncio.run(of("a.txt", 1)) == [ids[1]]
    assert asyncio.run(of(odd, 5)) == [ids[1], ids[2]]
    assert asyncio.run(of("gone.txt", 5)) == []


def test_large_commits_merges_first_commits_and_older_ones_do_not_count(repo: Repository) -> None:
    for n in range(3):
        repo.commit({"a.txt": f"{n}\n", "b.txt": f"{n}\n"})
    repo.commit({f"many/{n}.txt": "x\n" for n in range(4)})
    old, side = repo.ahead({"dir/c.txt": "side\n"})
    repo.commit({"b.txt": "last\n"})
    repo.git("merge", "-q", "-m", "merge", side)
    assert old != side
    history = read(repo.root, largest=3, least=1)
    assert history == History({"a.txt": 3, "b.txt": 4, "dir/c.txt": 1}, {("a.txt", "b.txt"): 3}, 6, 1)
    assert read(repo.root, last=2, least=1).commits == {"b.txt": 1, "dir/c.txt": 1}
    assert read(repo.root).together == {}


def test_a_rename_is_a_change_of_both_names(repo: Repository) -> None:
    repo.git("mv", "b.txt", "c.txt")
    repo.git("commit", "-q", "-m", "rename")
    assert read(repo.root, least=1).together == {("b.txt", "c.txt"): 1}


def test_no_commit_is_said_and_one_says_nothing(repo: Repository, tmp_path: Path) -> None:
    assert read(repo.root) == History()
    empty = Repository(tmp_path / "empty")
    empty.root.mkdir()
    empty.git("init", "-q")
    with pytest.raises(GitError, match="no commit called 'HEAD'"):
        read(empty.root)


def test_a_shallow_clone_gives_what_it_has(repo: Repository, tmp_path: Path) -> None:
    for n in range(4):
        repo.commit({"a.txt": f"{n}\n", "b.txt": f"{n}\n"})
    repo.git("clone", "-q", "--depth", "3", f"file://{repo.root}", str(tmp_path / "shallow"))
    assert read(tmp_path / "shallow", least=1).commits == {"a.txt": 2, "b.txt": 2}


@hypothesis_settings(max_examples=10, deadline=None)
@given(commits=st.lists(st.sets(st.sampled_from("abcdefg"), min_size=1), max_size=120), least=st.integers(1, 5))
def test_the_counts_are_those_of_a_plain_count(
    commits: list[set[str]], least: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("any") / "r"
    write_commits(root, commits)
    history = read(root, least=least)
    assert history.commits == {name: n for name in "abcdefg" if (n := sum(name in names for names in commits))}
    pairs = {(a, b): sum({a, b} <= names for names in commits) for a in "abcdefg" for b in "abcdefg" if a < b}
    assert history.together == {pair: n for pair, n in pairs.items() if n >= least}
