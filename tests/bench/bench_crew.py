"""What a goal with many workers costs, beside plain git in a loop; a third of the work conflicts, all of it lands.

Run: python tests/bench/bench_crew.py [WORKERS]. A scripted model on loopback answers; every worker has made its change
before the first is done, so all run at the same time. Prints seconds, in all and by phase, and what is left behind. The
run without a sandbox tells what the sandbox takes. An assertion fails if anything leaks or is lost.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fixtures.crew_bench import by_plain_git, nothing_left, run_crew


def told(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())


def main(count: int) -> None:
    print(f"{platform.platform()}, {os.cpu_count()} cores, {count} workers, {count // 3} conflicts")
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        os.environ["MUSECODE_HOME"] = str(base / "home")
        seconds, left = by_plain_git(base / "plain git", count)
        assert left == [], left
        print(f"plain git:        {seconds:6.1f} s")
        for sandbox in ("auto", "plain"):
            left = []
            with nothing_left(left, base / "home"):
                ran = run_crew(base / sandbox, count, sandbox=sandbox)
            assert ran.result.met, ran.result.why
            assert ran.problems + left == [], ran.problems + left
            print(
                f"sandbox {sandbox:7}:  {ran.seconds:6.1f} s, {ran.seconds / seconds:.1f} times plain git: "
                f"{told(ran.phases)}; added up: {told(ran.work)}, in {ran.result.model_calls} answers; "
                f"{len(ran.events)} events; nothing left, nothing lost"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 32)
