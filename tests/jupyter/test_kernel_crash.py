"""A real kernel is killed with -9, or restarted, amid a goal; a new one offers to go on, and does."""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path

import pytest
from journal import Record, records, sessions, wait_for, wait_for_kind
from kernel import Kernel, StartKernel
from scripted import CHECK, GOAL

from musecode_jupyter.session.replay import prove

POINTS = int(os.environ.get("MUSECODE_CRASH_POINTS", "1"))
# goal.set is the fourth event, and the run has about as many as this; if it ends sooner, it is killed then.
FIRST, LAST = 4, 46
ENDED = {"goal.met", "goal.stopped"}
OFFER = "of this workspace ended without closing"


def kinds(seen: list[Record]) -> set[str]:
    return {record["kind"] for record in seen}


def wait_until_no_process_is_in(folder: Path, timeout: float = 20.0) -> None:
    """Wait until no live process works below `folder`: that is where the agents' worktrees are."""
    limit = time.monotonic() + timeout
    while True:
        left = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink().is_relative_to(folder):
                    left.append((entry / "cmdline").read_text().replace("\0", " "))
        if not left:
            return
        assert time.monotonic() < limit, f"processes of the old kernel live on: {left}"
        time.sleep(0.02)


def resume_and_finish(kernel: Kernel, home: Path, before: list[Record]) -> list[Record]:
    """Take up the offer, wait for the goal, close, check what must hold; returns the journal."""
    folder = sessions(home)[0]
    met = "goal.met" in kinds(records(folder))
    cell = kernel.run("%muse resume")
    assert cell.stdout.startswith(f"Session {folder.name} goes on: "), cell.stdout
    assert len(cell.displays) == (0 if met else 3)
    wait_for(home, lambda seen: "goal.met" in kinds(seen), session=0)
    kernel.run("%muse close")
    after = records(folder)
    assert after[: len(before)] == before, "an event that was acknowledged is lost or changed"
    started = [record["data"]["call"] for record in after if record["kind"] == "tool.started"]
    assert len(started) == len(set(started)), "a call was started twice"
    proof = prove(folder)
    assert proof.ok, proof.problem
    return after


@pytest.mark.crash
@pytest.mark.parametrize("part", range(POINTS))
def test_a_kernel_killed_at_any_event_is_offered_for_resume_and_finishes(
    part: int, tmp_path: Path, repository: Path, start_kernel: StartKernel, rng: random.Random
) -> None:
    home = tmp_path / "home"
    span = (LAST - FIRST + 1) / POINTS
    point = FIRST + int((part + rng.random()) * span)
    print(f"killed at event {point}")
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    kernel.send("g = " + GOAL)
    before = wait_for(home, lambda seen: len(seen) >= point or ENDED & kinds(seen))
    kernel.kill9()
    wait_until_no_process_is_in(home)
    second = start_kernel(MUSECODE_APPROVALS="allow-workspace")
    assert OFFER in second.run("%muse agents").stdout
    # Once is enough.
    assert OFFER not in second.run("%muse agents").stdout
    resume_and_finish(second, home, before)
    assert "self.start < other.end" in (repository / "scheduler/interval.py").read_text()


@pytest.mark.crash
def test_a_check_that_the_kill_cut_off_is_ended_and_runs_again_as_a_new_call(
    tmp_path: Path, start_kernel: StartKernel
) -> None:
    home, flag, trace = tmp_path / "home", tmp_path / "flag", tmp_path / "trace"
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace", MUSECODE_SANDBOX="plain")
    check = f"echo began >> {trace}; until test -e {flag}; do sleep 0.02; done; {CHECK}"
    kernel.send(f'g = %goal "make the check pass" --verify "{check}"')
    started = wait_for_kind(home, "tool.started")
    wait_for(home, lambda _: trace.exists())
    kernel.kill9()
    wait_until_no_process_is_in(home)
    flag.touch()
    second = start_kernel(MUSECODE_APPROVALS="allow-workspace", MUSECODE_SANDBOX="plain")
    after = resume_and_finish(second, home, [])
    unknown = [record for record in after if record["kind"] == "tool.unknown"]
    assert [record["data"]["call"] for record in unknown] == [started["data"]["call"]]
    baselines = [r["seq"] for r in after if r["kind"] == "tool.requested" and r["data"]["purpose"] == "baseline"]
    assert len(baselines) == 2
    assert trace.read_text().count("began") >= 3


@pytest.mark.crash
def test_a_restart_with_a_running_goal_is_offered_for_resume(tmp_path: Path, start_kernel: StartKernel) -> None:
    """The kernel ends its children at a restart: that must not look like a check that failed."""
    home, flag = tmp_path / "home", tmp_path / "flag"
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace", MUSECODE_SANDBOX="plain")
    kernel.run(f'g = %goal "make the check pass" --verify "until test -e {flag}; do sleep 0.02; done; {CHECK}"')
    wait_for_kind(home, "tool.started")
    kernel.restart()
    wait_until_no_process_is_in(home)
    before = records(sessions(home)[0])
    assert not ({*ENDED, "tool.finished", "goal.judged", "session.closed"} & kinds(before))
    flag.touch()
    kernel.run("%load_ext musecode_jupyter")
    assert OFFER in kernel.execute("%goal").stdout
    assert "tool.unknown" in kinds(resume_and_finish(kernel, home, before))


@pytest.mark.crash
def test_a_restart_without_a_running_goal_closes_the_session(tmp_path: Path, start_kernel: StartKernel) -> None:
    kernel = start_kernel()
    kernel.run("%muse ask why")
    kernel.restart()
    assert "session.closed" in kinds(records(sessions(tmp_path / "home")[0]))
    kernel.run("%load_ext musecode_jupyter")
    assert OFFER not in kernel.run("%muse ask why").stdout
    kernel.shutdown()
    assert all("session.closed" in kinds(records(folder)) for folder in sessions(tmp_path / "home"))
