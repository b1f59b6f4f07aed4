"""A headless run killed with -9 at random moments, then resumed: nothing lost, nothing twice, the repair is made."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.crew_scripts import Crew, edit
from fixtures.make_repo import make_repo
from fixtures.model_server import ModelServer, RepairModel, load_repairs
from fixtures.session_bench import Repo

from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.session.replay import prove

POINTS = int(os.environ.get("MUSECODE_CRASH_POINTS", "2"))
EVENTS_OF_A_RUN = 75
DEADLINE_S = 120
RESULTS = {"tool.finished", "tool.failed", "tool.cancelled", "tool.unknown"}

pytestmark = pytest.mark.crash


class Run:
    """One `jupyter musecode` process whose events are read as they become durable."""

    def __init__(self, arguments: list[str], env: dict[str, str]) -> None:
        self.seen: list[int] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "musecode_jupyter.cli", *arguments, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        )

    def events(self) -> Iterator[int]:
        """Seqs of acknowledged events; ends with the process."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                self.seen.append(json.loads(line)["seq"])
                yield self.seen[-1]

    def kill_after(self, seq: int, seconds: float) -> bool:
        """Kill -9 so long after event `seq`; False if the run ended before."""
        for found in self.events():
            if found >= seq:
                done = threading.Event()
                done.wait(seconds)
                os.kill(self.process.pid, signal.SIGKILL)
                break
        list(self.events())
        self.process.wait(DEADLINE_S)
        assert self.process.stderr is not None
        errors = self.process.stderr.read()
        assert self.process.returncode in {0, -signal.SIGKILL}, errors
        return self.process.returncode == -signal.SIGKILL

    def finish(self, deadline_s: float = DEADLINE_S) -> tuple[int, str]:
        """Exit status and standard error of a run that is left alone, for so long at most."""
        guard = threading.Timer(deadline_s, self.process.kill)
        guard.start()
        try:
            list(self.events())
            assert self.process.stderr is not None
            errors = self.process.stderr.read()
            return self.process.wait(), errors
        finally:
            guard.cancel()


def check_history(events: list[Event]) -> None:
    """What must hold however often the session was killed."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    started = Counter(e.data["call"] for e in events if e.kind == "tool.started")
    assert all(count == 1 for count in started.values()), started
    ended = Counter(e.data["call"] for e in events if e.kind in RESULTS)
    requested = {e.seq for e in events if e.kind == "tool.requested"}
    assert set(ended) == requested
    assert all(count == 1 for count in ended.values()), ended
    unknown = {e.data["call"] for e in events if e.kind == "tool.unknown"}
    commands = [e for e in events if e.kind == "tool.requested" and e.data["origin"] == "harness"]
    for call in unknown:
        first = next((e for e in commands if e.seq == call), None)
        if first is not None:
            later = [e for e in commands if e.seq > call and e.data["arguments"] == first.data["arguments"]]
            assert later, f"the check {call} was cut off and never run again"


@pytest.mark.parametrize("api", ["responses", "chat"] if "MUSECODE_CRASH_POINTS" in os.environ else ["responses"])
@pytest.mark.timeout(60 + 60 * POINTS)
def test_killed_run_is_finished_by_resume(api: str, tmp_path: Path, rng: random.Random) -> None:
    with ModelServer(RepairModel(load_repairs())) as server:
        for point in range(max(1, POINTS // 2)):
            folder = tmp_path / f"{api}-{point}"
            repo = make_repo("tensor", folder / "work")
            env = {
                **os.environ,
                "MUSECODE_HOME": str(folder / "home"),
                "MUSECODE_BASE_URL": server.base_url,
                "MUSECODE_MODEL": "muse-spark-1.3",
                "MUSECODE_API": api,
                "MUSECODE_APPROVALS": "allow-workspace",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            }
            arguments = ["run", "--repo", str(repo), "--goal", "make the tests pass"]
            run = Run([*arguments, "--verify", "python -m pytest -q"], env)
            # Once in four the resumed process is killed too.
            acknowledged = 0
            killed = run.kill_after(rng.randint(4, EVENTS_OF_A_RUN), rng.uniform(0, 0.4))
            acknowledged = max(run.seen)
            session = next((folder / "home" / "sessions").iterdir())
            while killed and rng.random() < 0.25:
                run = Run(["resume", session.name], env)
                killed = run.kill_after(acknowledged + rng.randint(1, 40), rng.uniform(0, 0.4))
                acknowledged = max([acknowledged, *run.seen])
            if killed:
                status, errors = Run(["resume", session.name], env).finish()
                assert status == 0, errors
            events = list(EventLog.read(session).events())
            assert len(events) >= acknowledged
            check_history(events)
            proof = prove(session)
            assert proof.ok, proof.problem
            assert any(e.kind == "goal.met" for e in events)
            check = subprocess.run(
                [sys.executable, "-m", "pytest", "-q"], cwd=repo, env=env, capture_output=True, check=False
            )
            assert check.returncode == 0, check.stdout
            status_lines = subprocess.run(["git", "status", "--porcelain"], cwd=repo, capture_output=True, check=True)
            assert status_lines.stdout.replace(b"?? .pytest_cache/\n", b"") == b""


@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="whole runs: run by make crash")
@pytest.mark.timeout(60 + 60 * POINTS)
def test_killed_run_of_several_workers_is_finished_by_resume(tmp_path: Path, rng: random.Random) -> None:
    names = ("one", "two", "three")
    play = {name: [[edit(f"{name}.txt", "wrong", "right")]] for name in names}
    checks = [f"grep -q right {name}.txt" for name in names]
    graph = [
        {"name": name, "goal": f"Mend {name}.txt.", "accept": [check], "writes": [f"{name}.txt"]}
        for name, check in zip(names, checks, strict=True)
    ]
    (tmp_path / "tasks.json").write_text(json.dumps(graph))
    with ModelServer(Crew(play)) as server:
        for point in range(max(1, POINTS // 2)):
            folder = tmp_path / str(point)
            folder.mkdir()
            repo = Repo(folder / "repo")
            repo.commit({f"{name}.txt": "first\nwrong\nlast\n" for name in names})
            repo.write("other.txt", "mine, not committed\n")
            env = {
                **os.environ,
                "MUSECODE_HOME": str(folder / "home"),
                "MUSECODE_BASE_URL": server.base_url,
                "MUSECODE_MODEL": "muse-spark-1.3",
                "MUSECODE_APPROVALS": "allow-workspace",
            }
            verify = [word for check in checks for word in ("--verify", check)]
            given = ["run", "--repo", str(repo.root), "--goal", "mend all", "--tasks", str(tmp_path / "tasks.json")]
            run = Run([*given, *verify], env)
            killed = run.kill_after(rng.randint(8, 150), rng.uniform(0, 0.3))
            acknowledged = max(run.seen)
            session = next((folder / "home" / "sessions").iterdir())
            for _ in range(2):
                if killed:
                    run = Run(["resume", session.name], env)
                    killed = run.kill_after(acknowledged + rng.randint(1, 60), rng.uniform(0, 0.3))
                    acknowledged = max([acknowledged, *run.seen])
            if killed:
                status, errors = Run(["resume", session.name], env).finish()
                assert status == 0, errors
            events = list(EventLog.read(session).events())
            assert len(events) >= acknowledged
            check_history(events)
            proof = prove(session)
            assert proof.ok, proof.problem
            assert any(e.kind == "goal.met" for e in events)
            assert all("right" in repo.read(f"{name}.txt") for name in names)
            assert repo.git("status", "--porcelain") == "M other.txt"
            assert repo.read("other.txt") == "mine, not committed\n"
            assert (repo.worktrees, repo.branches) == (1, ["main"])
            tested = {e.data["tree"] for e in events if e.kind == "merge.tested" and e.data["passed"]}
            landed = [e for e in events if e.kind == "merge.landed"]
            assert len({e.data["merge"] for e in landed}) == len(landed) == 3
            for event in landed:
                assert repo.git("rev-parse", f"{event.data['new']}^{{tree}}") in tested
