"""What the merge queue costs per landing, beside plain git in a loop; a third of the work conflicts.

Run: python tests/bench/bench_landing.py [WORKS]. Prints seconds, and what is left behind when all is done.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fixtures.landing_bench import NOWHERE, start_goal, submit, work
from fixtures.session_bench import Repo, session_on

from musecode_jupyter.agents.landing.work import Work
from musecode_jupyter.session import Session

CHECK = "test -s answer.txt"


def works(repo: Repo, goal: int, number: int) -> list[Work]:
    """One in three changes the same file as all of those; the others have a file of their own."""
    return [
        work(repo, goal, f"w{n}", {"answer.txt" if n % 3 == 0 else f"f{n}.txt": f"work {n}\n"}, CHECK)
        for n in range(number)
    ]


def plainly(repo: Repo, number: int) -> list[float]:
    """The same with `git merge` in a checkout of its own and the check run there, nothing recorded."""
    made = works(repo, 1, number)
    tree = repo.root.parent / "merging"
    repo.git("worktree", "add", "--quiet", "--detach", str(tree), "main")
    times = []
    for each in made:
        began = time.perf_counter()
        try:
            repo.git("-C", str(tree), "merge", "--quiet", "--no-edit", each.commit)
        except subprocess.CalledProcessError:
            repo.git("-C", str(tree), "merge", "--abort")
        else:
            subprocess.run(["sh", "-c", CHECK], cwd=tree, check=True)
            repo.git("merge", "--quiet", "--ff-only", repo.git("-C", str(tree), "rev-parse", "HEAD"))
        times.append(time.perf_counter() - began)
    return times


def queued(session: Session, repo: Repo, number: int) -> tuple[float, Counter[str], int]:
    made = works(repo, start_goal(session, repo), number)
    trees = repo.worktrees
    began = time.perf_counter()
    verdicts = submit(session, *made)
    seconds = time.perf_counter() - began
    return seconds, Counter(verdict.kind for verdict in verdicts), repo.worktrees - trees


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MUSECODE_HOME"] = str(Path(folder) / "home")
        for part in ("plain", "queue"):
            (Path(folder) / part).mkdir()
        times = plainly(Repo(Path(folder) / "plain" / "repo"), number)
        print(f"plain git: {number} works in {sum(times):.2f} s, median {1000 * statistics.median(times):.0f} ms")
        repo = Repo(Path(folder) / "queue" / "repo")
        with session_on(NOWHERE, repo.root) as session:
            seconds, kinds, left = queued(session, repo, number)
            events = session.log.last_seq
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        print(f"queue:     {number} works in {seconds:.2f} s, {1000 * seconds / number:.0f} ms each: {told}")
        print(f"{events} events; {left} worktrees left; checkout: {repo.git('status', '--porcelain') or 'clean'}")


if __name__ == "__main__":
    main()
