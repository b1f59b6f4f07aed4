"""What worktrees cost from the making to the removal, beside plain git in a loop; and that nothing is left of them.

Run: python tests/bench/bench_fan_out.py [WORKTREES] [ROUNDS]. Each worktree is made, gets an edit, is committed, merged
into main with the checkout following, and removed with its branch. Prints seconds and the ratio; the two take turns, so
that the machine's other load falls on both.
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.landing import check_merge, land, overlap, update_checkout
from musecode_jupyter.workspace.survey import survey
from musecode_jupyter.workspace.worktrees import (
    commit_all,
    create_worktree,
    list_worktrees,
    remove_branch,
    remove_worktree,
)

MAIN = "refs/heads/main"
PLAIN = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "User",
    "GIT_AUTHOR_EMAIL": "user@example.org",
    "GIT_COMMITTER_NAME": "User",
    "GIT_COMMITTER_EMAIL": "user@example.org",
}


def plain(root: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=root, env=PLAIN, capture_output=True, check=True, text=True).stdout


def repository(root: Path, files: int) -> Path:
    root.mkdir(parents=True)
    plain(root, "init", "-q", "-b", "main")
    for n in range(files):
        file = root / f"d{n % 20}" / f"f{n}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"line {line} of file {n}\n" for line in range(60)))
    plain(root, "add", "-A")
    plain(root, "commit", "-q", "-m", "files")
    return root


def edit(tree: Path, n: int) -> None:
    file = tree / f"d{n % 20}" / f"f{n}.py"
    file.write_text(file.read_text().replace("line 7 ", f"line seven, by worker {n}, "))


def by_plain_git(root: Path, trees: Path, count: int) -> None:
    for n in range(count):
        tree = trees / f"w{n}"
        plain(root, "worktree", "add", "-q", "--no-track", "-b", f"side{n}", str(tree), "main")
    for n in range(count):
        edit(trees / f"w{n}", n)
        plain(trees / f"w{n}", "add", "-A")
        plain(trees / f"w{n}", "commit", "-q", "-m", "work")
    for n in range(count):
        plain(root, "merge", "-q", "--no-edit", f"side{n}")
        plain(root, "worktree", "remove", str(trees / f"w{n}"))
        plain(root, "branch", "-q", "-d", f"side{n}")


async def by_us(root: Path, trees: Path, count: int, phases: dict[str, float]) -> None:
    git = await Git.discover(root, LiveEffects())

    async def work(n: int) -> str:
        inside = await create_worktree(git, trees / f"w{n}", f"musecode/{n}", "main")
        edit(inside.root, n)
        return await commit_all(inside, "work")

    began = time.perf_counter()
    commits = await asyncio.gather(*(work(n) for n in range(count)))
    made = time.perf_counter()
    phases["make, edit, commit"] = made - began
    for n, commit in enumerate(commits):
        old = await git.resolve(MAIN)
        check = await check_merge(git, old, commit)
        assert check.commit is not None
        assert await overlap(git, old, check.commit) == []
        await land(git, MAIN, old, check.commit, f"refs/musecode/backup/{n}")
        await update_checkout(git, MAIN, old, check.commit)
    landed = time.perf_counter()
    phases["land"] = landed - made
    for n in range(count):
        await remove_worktree(git, trees / f"w{n}", "main")
        await remove_branch(git, f"musecode/{n}", "main")
    phases["remove"] = time.perf_counter() - landed


async def leaked(root: Path, trees: Path) -> list[str]:
    git = await Git.discover(root, LiveEffects())
    found = [str(tree.path) for tree in (await list_worktrees(git))[1:]]
    found += [str(tree.path) for tree in await survey(git, trees)]
    found += [str(path) for path in (root / ".git" / "worktrees").glob("*")]
    found += [ref for ref in plain(root, "for-each-ref", "--format=%(refname)", "refs/heads").split() if ref != MAIN]
    return [*found, *await git.status()]


def main(count: int, rounds: int) -> None:
    print(f"{platform.platform()}, {plain(Path.cwd(), 'version').strip()}, {count} worktrees, {rounds} rounds")
    for files in (100, 2000):
        theirs: list[float] = []
        ours: list[float] = []
        parts: list[dict[str, float]] = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                base = Path(folder)
                root = repository(base / "plain" / "repo", files)
                began = time.perf_counter()
                by_plain_git(root, base / "plain" / "trees", count)
                theirs.append(time.perf_counter() - began)
                wanted = plain(root, "rev-parse", "main^{tree}")
                root, trees = repository(base / "ours" / "repo", files), base / "ours" / "trees"
                began = time.perf_counter()
                parts.append({})
                asyncio.run(by_us(root, trees, count, parts[-1]))
                ours.append(time.perf_counter() - began)
                assert plain(root, "rev-parse", "main^{tree}") == wanted
                left = asyncio.run(leaked(root, trees))
                assert left == [], left
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        phases = ", ".join(f"{name} {statistics.median(part[name] for part in parts):.2f} s" for name in parts[0])
        print(
            f"{files:5} files: plain git {statistics.median(theirs):6.2f} s, ours {statistics.median(ours):6.2f} s, "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); {phases}; nothing left"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 32, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
