"""The files of a worktree at any event are laid out as they were, whether edits or processes changed them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fixtures.session_bench import Repo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from musecode_jupyter.log import EventLog, Redactor
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import GitError, UsageProblem
from musecode_jupyter.session.files_at import restore, session_at
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.tools.files import digest_bytes, read_bytes, write_atomic
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.process_files import ProcessFiles
from musecode_jupyter.workspace.worktrees import commit_all, create_worktree

OPENED = {"version": "0", "model": "m", "api": "chat", "profile": "driver", "approvals": "deny"}
NAMES = ("answer.txt", "a b.txt", "deep/er/c.bin", "deep/d", "é\n.txt", "#e")

Picture = dict[str, tuple[int, bytes]]


def picture(folder: Path) -> Picture:
    """Executable bit and bytes of each file, and where each link leads (mode -1), without `.git`."""
    found = {}
    for at, folders, names in os.walk(folder):
        if ".git" in folders:
            folders.remove(".git")
        for name in [*names, *(each for each in folders if os.path.islink(os.path.join(at, each)))]:
            path = Path(at, name)
            if name == ".git":
                continue
            key = str(path.relative_to(folder))
            if path.is_symlink():
                found[key] = (-1, os.fsencode(os.readlink(path)))
            else:
                found[key] = (path.stat().st_mode & 0o100, path.read_bytes())
    return found


class Bench:
    """A log with one worktree, whose files are changed as agents change them; `truth` has the files at each event."""

    def __init__(self, repo: Repo, folder: Path) -> None:
        self.repo = repo
        self.folder = folder
        self.effects = LiveEffects()
        self.truth: dict[int, Picture] = {}

    async def begin(self) -> None:
        self.log = EventLog.create(
            self.folder, reducers=all_reducers(), redactor=Redactor(), now=lambda: datetime.now(UTC)
        )
        await self.log.append("session.opened", {"session": "s", "workspace": str(self.repo.root), **OPENED})
        git = await Git.discover(self.repo.root, self.effects)
        base = (await git.head()).commit
        self.root = self.folder.parent / "tree"
        creating = {"goal": None, "path": str(self.root), "branch": "musecode/s/1", "base": base}
        self.tree = (await self.log.append("worktree.creating", creating)).seq
        self.git = await create_worktree(git, self.root, "musecode/s/1", base, reserve=0)
        self.keeper = ProcessFiles(self.log, self.effects, "s")
        await self.note("worktree.created", {"worktree": self.tree, "path": str(self.root)})

    async def note(self, kind: str, data: dict[str, Any], **blobs: bytes) -> int:
        event = await self.log.append(kind, data, blobs=blobs)
        self.truth[event.seq] = picture(self.root)
        return event.seq

    async def edit(self, path: str, data: bytes) -> None:
        """As the executor makes an edit; nothing where a link, a folder or a file is in the way."""
        try:
            name, old = read_bytes(self.root, path, 1 << 20)
            before = None if old is None else digest_bytes(old)
            write_atomic(self.root, name, data, before)
        except Exception:
            return
        change = {"worktree": self.tree, "path": name, "before": before, "after": digest_bytes(data)}
        await self.note("file.changed", change, after=data)

    async def process(self, deeds: list[Callable[[Path], object]]) -> str:
        """As the executor runs a process in the worktree, which does `deeds`; what became of its files."""
        asked = {"name": "run", "arguments": {"command": "x"}, "origin": "model"}
        call = (await self.log.append("tool.requested", asked)).seq
        await self.log.append("tool.started", {"call": call, "effect": "process", "cwd": str(self.root)})
        for deed in deeds:
            try:
                deed(self.root)
            except OSError:
                continue
        found = await self.keeper.keep(self.tree, self.root, call)
        await self.note("tool.finished", {"call": call, "output": "", "ok": True, "files": found})
        return found

    async def check(self, seq: int, into: Path) -> None:
        at = session_at(self.folder, seq)
        tree = at.choose(None)
        assert not tree.limits
        count = await restore(at, tree, into, self.effects)
        assert picture(into) == self.truth[seq]
        assert count == len(self.truth[seq])


def write(name: str, data: bytes) -> Callable[[Path], object]:
    def deed(root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return deed


def remove(name: str) -> Callable[[Path], object]:
    return lambda root: (root / name).unlink()


def link(name: str, to: str) -> Callable[[Path], object]:
    return lambda root: (root / name).symlink_to(to)


def mode(name: str, bits: int) -> Callable[[Path], object]:
    return lambda root: (root / name).chmod(bits)


def folder_for(name: str) -> Callable[[Path], object]:
    """Where a file was, a folder is: and a file in it."""

    def deed(root: Path) -> None:
        (root / name).unlink()
        write(f"{name}/inside", b"in")(root)

    return deed


def file_for(name: str) -> Callable[[Path], object]:
    def deed(root: Path) -> None:
        shutil.rmtree(root / name)
        (root / name).write_bytes(b"file")

    return deed


names = st.sampled_from(NAMES)
contents = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"a\r\nb\n", b"\xff\x00", b"text\n"]))
deeds = st.one_of(
    st.builds(write, names, contents),
    st.builds(remove, names),
    st.builds(link, names, st.sampled_from(["answer.txt", "../outside", "deep"])),
    st.builds(mode, names, st.sampled_from([0o755, 0o644])),
    st.builds(folder_for, names),
    st.builds(file_for, st.sampled_from(["deep", "deep/er", "answer.txt"])),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("edit"), names, contents),
        st.tuples(st.just("process"), st.lists(deeds, max_size=3)),
        st.tuples(st.just("commit")),
    ),
    min_size=1,
    max_size=6,
)


def replayed(repo: Repo, tmp_path: Path, given_steps: list[Any]) -> None:
    place = Path(tempfile.mkdtemp(dir=tmp_path))

    async def run() -> None:
        bench = Bench(repo, place / "s")
        await bench.begin()
        for step in given_steps:
            if step[0] == "edit":
                await bench.edit(step[1], step[2])
            elif step[0] == "process":
                await bench.process(step[1])
            else:
                await commit_all(bench.git, "work")
        await bench.log.close()
        for seq in bench.truth:
            await bench.check(seq, place / f"at-{seq}")
        await bench.effects.aclose()

    try:
        asyncio.run(run())
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", place / "tree"], cwd=repo.root, check=True)
        for ref in (
            "refs/heads/musecode/s/1",
            *repo.git("for-each-ref", "--format=%(refname)", "refs/musecode").split(),
        ):
            repo.git("update-ref", "-d", ref)


FEW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FEW
@given(given_steps=steps)
def test_files_at_each_event_are_laid_out_as_they_were(repo: Repo, tmp_path: Path, given_steps: list[Any]) -> None:
    replayed(repo, tmp_path, given_steps)


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="minutes: run by make crash")
@pytest.mark.timeout(3600)
@MANY
@given(given_steps=steps)
def test_files_at_each_event_are_laid_out_as_they_were_many(repo: Repo, tmp_path: Path, given_steps: list[Any]) -> None:
    replayed(repo, tmp_path, given_steps)


def test_a_process_that_changes_nothing_leaves_no_commit(repo: Repo, tmp_path: Path) -> None:
    async def run() -> None:
        bench = Bench(repo, tmp_path / "s")
        await bench.begin()
        assert await bench.process([]) == "same"
        await bench.edit("answer.txt", b"edited\n")
        await bench.edit("new.txt", b"new\n")
        # What the log has already is no change of the process's.
        assert await bench.process([]) == "same"
        assert not repo.git("for-each-ref", "refs/musecode/snapshot")
        assert await bench.process([write("new.txt", b"other\n")]) == "kept"
        assert await bench.process([]) == "same"
        await commit_all(bench.git, "work")
        assert await bench.process([]) == "same"
        assert await bench.process([remove("new.txt")]) == "kept"
        index = await bench.git.run("diff", "--cached", "--name-only")
        assert index.out == b"", "the agent's own index was touched"
        await bench.log.close()
        await bench.effects.aclose()

    asyncio.run(run())


def test_what_is_not_known_is_said(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("musecode_jupyter.workspace.process_files.LARGEST_KEPT", 100)
    monkeypatch.setattr("musecode_jupyter.workspace.process_files.MOST_KEPT", 1000)

    async def run() -> None:
        bench = Bench(repo, tmp_path / "s")
        await bench.begin()
        assert await bench.process([write("big.bin", b"x" * 101)]) == "kept"
        (tree,) = session_at(bench.folder).trees.values()
        assert "big.bin" in tree.limits[0]
        assert await bench.process([write("answer.txt", b"y" * 1001)]) == "unknown"
        (tree,) = session_at(bench.folder).trees.values()
        assert "more than 1000 bytes" in tree.limits[0]
        # Once they can be kept again, all is known.
        assert await bench.process([write("answer.txt", b"z"), remove("big.bin")]) == "kept"
        (tree,) = session_at(bench.folder).trees.values()
        assert not tree.limits
        call = (await bench.log.append("tool.requested", {"name": "run", "arguments": {}, "origin": "model"})).seq
        cwd = {"call": call, "effect": "process", "cwd": str(bench.root)}
        await bench.log.append("tool.started", cwd)
        (tree,) = session_at(bench.folder).trees.values()
        assert f"command {call} was not at its end" in tree.limits[0]
        await bench.log.close()
        await bench.effects.aclose()

    asyncio.run(run())


def test_files_go_into_an_empty_place_only_and_a_failure_leaves_nothing(repo: Repo, tmp_path: Path) -> None:
    async def run() -> None:
        bench = Bench(repo, tmp_path / "s")
        await bench.begin()
        await bench.process([write("new.txt", b"new")])
        await bench.log.close()
        last = max(bench.truth)
        at = session_at(bench.folder, last)
        taken = tmp_path / "taken"
        taken.mkdir()
        (taken / "mine").write_text("mine")
        for into in (taken, taken / "mine"):
            with pytest.raises(UsageProblem, match="is there and not empty"):
                await restore(at, at.choose(None), into, bench.effects)
        assert picture(taken) == {"mine": (0, b"mine")}
        (tmp_path / "empty").mkdir()
        await bench.check(last, tmp_path / "empty")
        with pytest.raises(UsageProblem, match="no worktree 99 at event"):
            at.choose(99)
        with pytest.raises(UsageProblem, match="has no event 99"):
            session_at(bench.folder, 99)
        repo.git("update-ref", "-d", f"refs/musecode/snapshot/s/{bench.tree}")
        repo.git("gc", "--quiet", "--prune=now")
        before = sorted(path.name for path in tmp_path.iterdir())
        with pytest.raises(GitError, match="is not in"):
            await restore(at, at.choose(None), tmp_path / "gone", bench.effects)
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        await bench.effects.aclose()

    asyncio.run(run())


def test_an_edit_that_a_process_takes_back_is_taken_back(repo: Repo, tmp_path: Path) -> None:
    """The worktree is clean then, and is not what the log said: that it is as its commit has to be written down."""

    async def run() -> None:
        bench = Bench(repo, tmp_path / "s")
        await bench.begin()
        await bench.edit("new.txt", b"new\n")
        assert await bench.process([remove("new.txt")]) == "kept"
        await bench.edit("answer.txt", b"edited\n")
        assert await bench.process([write("answer.txt", b"wrong\n")]) == "kept"
        await bench.log.close()
        for seq in bench.truth:
            await bench.check(seq, tmp_path / f"at-{seq}")
        await bench.effects.aclose()

    asyncio.run(run())
