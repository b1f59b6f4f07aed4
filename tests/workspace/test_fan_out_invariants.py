"""Whatever workers, the user and crashes do in any order: nothing is lost, and only checked trees land."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from crashing_effects import Crash, CrashingEffects
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
    undo_land,
    update_checkout,
)
from musecode_jupyter.workspace.snapshots import take_snapshot
from musecode_jupyter.workspace.survey import reclaim, survey
from musecode_jupyter.workspace.worktrees import (
    checkout_detached,
    commit_all,
    create_worktree,
    discard_detached,
    list_worktrees,
    remove_worktree,
)

MAIN = "refs/heads/main"
NAMES = ("a.txt", "b.txt", "dir/c.txt", "dir/d.txt", "n.txt", "new/n.txt", "x.log")
WORKERS = 3

Step = Callable[[Git], Coroutine[None, None, None]]


class World:
    """A repository with its user, workers in worktrees, and a journal that survives crashes."""

    def __init__(self, folder: Path, choose: random.Random) -> None:
        self.choose, self.trees = choose, folder / "trees"
        self.repo = Repository(folder / "repo")
        self.repo.root.mkdir()
        self.repo.git("init", "-q", "-b", "main")
        self.repo.commit({"a.txt": "a\n" * 9, "b.txt": "b\n" * 9, "dir/c.txt": "c\n", ".gitignore": "*.log\n"})
        git = asyncio.run(Git.discover(self.repo.root, LiveEffects()))
        self.place = (git.root, git.git_dir, git.common_dir)
        self.mine: dict[str, bytes | None] = {}
        self.stashed: list[dict[str, bytes | None]] = []
        self.committed: set[str] = set()
        self.checked: set[str] = {self.repo.git("rev-parse", "main^{tree}")}
        self.intent: tuple[str, str, int] | None = None
        self.number = 0
        self.seen: dict[str, int] = {}

    # What the user and the workers do, as they would.

    def edit(self, root: Path, note: dict[str, bytes | None] | None = None) -> None:
        name = self.choose.choice(NAMES)
        file = root / name
        self.number += 1
        text = b"edit %d\n" % self.number + self.choose.choice([b"", b"more\n" * 5])
        if self.choose.random() < 0.2 and file.is_file():
            file.unlink()
            text = b""
        else:
            file.parent.mkdir(exist_ok=True)
            old = file.read_bytes() if file.is_file() else b""
            text = old + text if self.choose.random() < 0.4 else text
            file.write_bytes(text)
        if note is not None:
            note[name] = text if file.is_file() else None
            if not file.is_file() and not self.repo.git("ls-tree", "HEAD", "--", name):
                del note[name]  # the user is back at what the branch has

    def user(self) -> None:
        action = self.choose.choice(["edit", "edit", "edit", "stage", "commit", "stash", "pop"])
        if action == "edit":
            self.edit(self.repo.root, self.mine)
        elif action == "stage":
            self.repo.git("add", "-A")
        elif action == "commit":
            self.repo.git("add", "-A")
            self.repo.git("commit", "-q", "--allow-empty", "-m", "the user's")
            self.checked.add(self.repo.git("rev-parse", "main^{tree}"))
            self.mine = {name: text for name, text in self.mine.items() if name.endswith(".log")}
        elif action == "stash":
            before = self.repo.git("rev-parse", "-q", "--verify", "refs/stash", check=False)
            self.repo.git("stash", "push", "-q", "-u")
            if self.repo.git("rev-parse", "-q", "--verify", "refs/stash", check=False) != before:
                logs = {name: text for name, text in self.mine.items() if name.endswith(".log")}
                self.stashed.append({name: text for name, text in self.mine.items() if name not in logs})
                self.mine = logs
        elif self.stashed and not self.repo.git("status", "--porcelain"):
            self.repo.git("stash", "pop", "-q", check=False)
            if len(self.repo.git("stash", "list").splitlines()) == len(self.stashed):
                self.repo.git("reset", "-q", "--hard")  # it conflicted, and stays a stash
                self.repo.git("clean", "-q", "-f", "-d")
            else:
                self.mine |= self.stashed.pop()

    def worker_edits(self) -> None:
        tree = self.trees / f"w{self.choose.randrange(WORKERS)}"
        if (tree / ".git").exists():
            for _ in range(self.choose.randrange(1, 4)):
                self.edit(tree)

    # What we do.

    async def create(self, git: Git) -> None:
        n = self.choose.randrange(WORKERS)
        await create_worktree(git, self.trees / f"w{n}", f"musecode/{n}", "main")

    async def commit(self, git: Git) -> None:
        for tree in await list_worktrees(git):
            if tree.branch is not None and tree.branch.startswith("musecode/") and not tree.missing:
                self.committed.add(await commit_all(await Git.at_worktree(tree.path, git.effects), "work"))

    async def remove(self, git: Git) -> None:
        await remove_worktree(git, self.trees / f"w{self.choose.randrange(WORKERS)}", "main")

    async def reclaim(self, git: Git) -> None:
        await reclaim(git, await survey(git, self.trees))

    async def snapshot(self, git: Git) -> None:
        self.number += 1
        await take_snapshot(git, str(self.number))

    async def land(self, git: Git) -> None:
        commits = [c for n in range(WORKERS) if (c := await git.ref(f"refs/heads/musecode/{n}")) is not None]
        if not commits:
            return
        old = await git.resolve(MAIN)
        check = await check_merge(git, old, self.choose.choice(commits))
        if check.commit is None or check.tree is None:
            self.seen["conflict"] = self.seen.get("conflict", 0) + 1
            return
        tree = await checkout_detached(git, self.trees / "check", check.commit)
        # What was really in the files when they were checked, by git itself.
        self.repo.git("add", "-A", cwd=tree.root)
        self.checked.add(self.repo.git("write-tree", cwd=tree.root))
        if self.choose.random() < 0.5:
            await discard_detached(git, tree.root)
        if await overlap(git, old, check.commit):
            self.seen["overlap"] = self.seen.get("overlap", 0) + 1
            return
        self.number += 1
        self.intent = (old, check.commit, self.number)
        if self.choose.random() < 0.2:
            self.edit(self.repo.root, self.mine)
        await self.finish(git)

    async def finish(self, git: Git) -> None:
        """Carry a landing to its end, from its intent on; also after a crash."""
        if self.intent is None:
            return
        old, new, number = self.intent
        try:
            await land(git, MAIN, old, new, f"refs/musecode/backup/{number}")
            await update_checkout(git, MAIN, old, new)
            self.seen["landed"] = self.seen.get("landed", 0) + 1
        except RefMoved:
            pass
        except CheckoutBlocked:
            self.seen["blocked"] = self.seen.get("blocked", 0) + 1
            await undo_land(git, MAIN, old, new)
        self.intent = None

    # The invariants.

    def held(self) -> None:
        for name, text in self.mine.items():
            file = self.repo.root / name
            assert (file.read_bytes() if file.is_file() else None) == text, f"the user's {name} changed"
        assert len(self.repo.git("stash", "list").splitlines()) == len(self.stashed)
        assert self.repo.git("rev-parse", "main^{tree}") in self.checked, "a tree landed that nobody checked"
        reachable = set(self.repo.git("rev-list", "--all").split())
        for record in self.repo.git("worktree", "list", "--porcelain").splitlines():
            if record.startswith("HEAD "):
                reachable |= set(self.repo.git("rev-list", record.removeprefix("HEAD ")).split())
        assert self.committed <= reachable, "a worker's commit is reachable from nowhere"

    def unsaved(self) -> dict[Path, bytes]:
        """What is in the worktrees' files and in no commit."""
        found = {}
        for n in range(WORKERS):
            tree = self.trees / f"w{n}"
            if (tree / ".git").exists() and (self.repo.root / f".git/worktrees/w{n}/index").exists():
                names = self.repo.git("ls-files", "-o", "-m", "--exclude-standard", "-z", cwd=tree).split("\0")
                found |= {tree / name: (tree / name).read_bytes() for name in names if (tree / name).is_file()}
        return found

    def ours(self, step: Step, fuse: int | None) -> None:
        before = self.unsaved()
        try:
            asyncio.run(step(Git(*self.place, CrashingEffects(fuse, late=self.choose.random() < 0.5))))
        except GitError:
            self.seen["refused"] = self.seen.get("refused", 0) + 1
        except Crash:
            self.seen["crashed"] = self.seen.get("crashed", 0) + 1
            self.held()
            if self.choose.random() < 0.3:
                self.edit(self.repo.root, self.mine)
            # A crash keeps nothing but the disk; the lock files of git that was killed are the user's to delete.
            try:
                asyncio.run(self.finish(Git(*self.place, LiveEffects())))
            except GitError:
                self.intent = None
            if self.choose.random() < 0.5:
                try:
                    asyncio.run(step(Git(*self.place, LiveEffects())))
                except GitError:
                    self.seen["refused"] = self.seen.get("refused", 0) + 1
        for file, text in before.items():
            assert file.read_bytes() == text, f"a worker's {file} changed"
        self.held()


def play(seed: int, steps: int, seen: dict[str, int]) -> None:
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), choose)
        asyncio.run(world.create(Git(*world.place, LiveEffects())))
        for _ in range(steps):
            what = choose.choices(
                ["user", "edits", "create", "commit", "land", "remove", "reclaim", "snapshot"],
                [4, 6, 2, 4, 6, 1, 0.5, 0.5],
            )[0]
            if what == "user":
                world.user()
            elif what == "edits":
                world.worker_edits()
            else:
                fuse = choose.randrange(40) if choose.random() < 0.4 else None
                world.ours(getattr(world, what), fuse)
            world.held()
        for name, number in world.seen.items():
            seen[name] = seen.get(name, 0) + number


@hypothesis_settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_workers_user_and_crashes_in_any_order_lose_nothing(seed: int) -> None:
    play(seed, 18, {})


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_FAULT_RUNS" not in os.environ, reason="minutes: run by make crash")
def test_workers_user_and_crashes_in_any_order_lose_nothing_for_long() -> None:
    seen: dict[str, int] = {}
    first = random.randrange(2**32)
    for seed in range(first, first + int(os.environ["MUSECODE_FAULT_RUNS"]) // 5):
        try:
            play(seed, 30, seen)
        except BaseException as error:
            error.add_note(f"play({seed}, 30, {{}}) does it again")
            raise
    assert min(seen[kind] for kind in ("landed", "conflict", "overlap", "crashed", "refused")) > 0, seen
