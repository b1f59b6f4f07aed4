"""A real kernel kills itself with -9 at each boundary of its session, one after the other; a new one meets the goal."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from fixtures.crash_world import check_calls
from fixtures.model_scripts import Answer, AsFar, Call
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, DONE, EDIT, Repo
from journal import Record, records, sessions, wait_for
from kernel import Kernel, kernel_environment

from musecode_jupyter.log import EventLog
from musecode_jupyter.session.replay import prove

LONG = "MUSECODE_CRASH_POINTS" in os.environ
SAMPLE = range(6, 50)
GOAL = f'%goal "say right" --verify "{CHECK}"'
# The code of the agent waits for the end of this cell, which waits for that to be in the journal.
BUSY = f"""
import time
session = get_ipython().run_line_magic("goal", {GOAL.removeprefix("%goal ")!r}).session
while not any(event.kind == "kernel.waiting" for event in session.events()):
    time.sleep(0.01)
"""
KILL_AT = """
import os, signal
host = get_ipython().magics_manager.registry["MuseMagics"].host
def end_at(event):
    if event.seq >= {seq}:
        os.kill(os.getpid(), signal.SIGKILL)
stop = host.open.read(lambda core: core.log.on_durable(end_at))
"""

pytestmark = pytest.mark.crash


def kinds(seen: list[Record]) -> list[str]:
    return [record["kind"] for record in seen]


def killed_at(seq: int, folder: Path, base_url: str) -> tuple[list[Record], bool]:
    """Work in a kernel that ends at event `seq`; what was in the journal then, and whether it did end."""
    with Kernel(folder / "repo", kernel_environment(base_url, folder / "home", MUSECODE_APPROVALS="ask")) as kernel:
        kernel.run("%load_ext musecode_jupyter\n%muse cells on")
        kernel.run("%muse rules add session 'tool run_in_kernel'\n%muse rules add session 'land on main'")
        kernel.run(KILL_AT.format(seq=seq))
        try:
            kernel.run(f"%muse run open({str(folder / 'typed.txt')!r}, 'a').write('ran\\n')")
            kernel.run(BUSY)
            kernel.wait_until(
                lambda: "goal.met" in kinds(records(sessions(folder / "home")[0])), 60, "the goal was not met"
            )
            kernel.run("%muse close")
        except RuntimeError:
            assert not kernel.manager.is_alive()
            return records(sessions(folder / "home")[0]), True
        return records(sessions(folder / "home")[0]), False


def go_on(before: list[Record], folder: Path, base_url: str) -> None:
    """A new kernel takes the session up, and meets the goal; nothing that was acknowledged is lost."""
    home = folder / "home"
    with Kernel(folder / "repo", kernel_environment(base_url, home, MUSECODE_APPROVALS="ask")) as kernel:
        kernel.run("%load_ext musecode_jupyter\n%muse cells on")
        kernel.run("%muse resume")
        if "goal.set" not in kinds(before):
            kernel.run("g = " + GOAL)
        wait_for(home, lambda seen: "goal.met" in kinds(seen), session=0)
        kernel.run("%muse close")
    assert records(sessions(home)[0])[: len(before)] == before


def check(folder: Path, server: ModelServer) -> None:
    """The session proves itself, each call has one result, no code ran twice, and each request was a valid one."""
    (session,) = sessions(folder / "home")
    check_calls(list(EventLog.read(session).events()), ended={"lead", "user"})
    proof = prove(session)
    assert proof.ok, proof.problem
    for name in ("typed.txt", "traced.txt"):
        text = (folder / name).read_text() if (folder / name).exists() else ""
        assert text in {"", "ran\n"}, f"{name}: {text!r}"
    assert (folder / "repo" / "answer.txt").read_text() == "right\n"
    assert {request.status for request in server.requests} == {200}


def one(seq: int, folder: Path) -> int | None:
    """The whole story with an end at event `seq`; where the journal ended then, none if the work was done before."""
    folder.mkdir()
    Repo(folder / "repo")
    code = {"code": f"open({str(folder / 'traced.txt')!r}, 'a').write('ran\\n')"}
    script = AsFar([Answer("", [Call("run_in_kernel", code)]), EDIT, DONE])
    with ModelServer(script) as server:
        before, ended = killed_at(seq, folder, server.base_url)
        print(f"event {seq}: {'killed' if ended else 'done'} after {len(before)}, {before[-1]['kind']}")
        if ended:
            go_on(before, folder, server.base_url)
        check(folder, server)
    if not ended:
        assert {"kernel.waiting", "kernel.running"} <= set(kinds(before)), json.dumps(kinds(before))
        return None
    return len(before)


@pytest.mark.skipif(not LONG, reason="two kernels: run by make crash")
@pytest.mark.timeout(120)
def test_a_kernel_that_is_killed_at_an_event_goes_on_in_a_new_one(tmp_path: Path, rng: random.Random) -> None:
    one(rng.choice(SAMPLE), tmp_path / "sample")


@pytest.mark.skipif(not LONG, reason="kills some sixty kernels, for a quarter of an hour: `make crash`")
@pytest.mark.timeout(3600)
def test_a_kernel_is_killed_at_every_boundary(tmp_path: Path) -> None:
    seq: int | None = SAMPLE.start
    points = 0
    while seq is not None:
        reached = one(seq, tmp_path / str(seq))
        points += reached is not None
        # Events of one batch became durable together: no kill comes between them.
        seq = None if reached is None else max(seq, reached) + 1
    print(f"{points} kernels killed")
    assert points > 20
