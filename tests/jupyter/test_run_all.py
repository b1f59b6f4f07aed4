"""All cells at once, as "Run all" sends them, and again after a restart amid the work of the first time."""

from __future__ import annotations

import subprocess
from pathlib import Path

from journal import Record, records, sessions, wait_for, wait_for_kind
from kernel import Cell, Kernel, StartKernel
from scripted import CHECK, ScriptedModel
from test_kernel_crash import OFFER, kinds, wait_until_no_process_is_in

from musecode_jupyter.session.replay import prove

WIDGET = "application/vnd.jupyter.widget-view+json"


def run_all(kernel: Kernel, cells: list[str]) -> list[Cell]:
    """Send all cells before the first has ended."""
    return [kernel.finish(cell) for cell in [kernel.send(code) for code in cells]]


def started(seen: list[Record]) -> list[int]:
    return [record["data"]["call"] for record in seen if record["kind"] == "tool.started"]


def test_restart_and_run_all_amid_a_goal(tmp_path: Path, repository: Path, start_kernel: StartKernel) -> None:
    """The old session is offered and left as it was; the new one does the work, once; each output is in its cell."""
    home, flag, runs = tmp_path / "home", tmp_path / "flag", tmp_path / "runs"
    check = f"echo run >> {runs}; until test -e {flag}; do sleep 0.02; done; {CHECK}"
    cells = [
        "%load_ext musecode_jupyter",
        "%muse ask why",
        f'g = %goal "make the check pass" --verify "{check}"',
        "print('mine')",
        "import asyncio\nfor _ in range(3): await asyncio.sleep(0.05); print('tick')",
        "(await g).met",
        "%muse agents",
    ]
    kernel = start_kernel(MUSECODE_APPROVALS="allow-workspace", MUSECODE_SANDBOX="plain")
    sent = [kernel.send(code) for code in cells]
    wait_for_kind(home, "tool.started")
    kernel.finish(sent[4])
    kernel.restart()
    wait_until_no_process_is_in(home)
    (first,) = sessions(home)
    before, ran = records(first), runs.read_text()
    assert ran == "run\n"
    flag.touch()

    load, asked, goal, mine, ticks, ended, agents = run_all(kernel, cells)
    assert [cell.error for cell in (load, asked, goal, mine, ticks, ended, agents)] == [None] * 7
    offer, answer = asked.stdout.splitlines()
    assert OFFER in offer
    assert first.name in offer
    assert answer == ScriptedModel.ANSWER
    assert load.shown == []
    assert goal.stdout == ""
    views = [{WIDGET, "text/html", "text/plain"}] * 2
    assert [set(bundle) for bundle in goal.displays] == [*views, {"text/html", "text/plain"}]
    assert (mine.shown, ticks.stdout, ended.result) == (["mine\n"], "tick\n" * 3, "True")
    assert ended.shown == []
    assert agents.stdout.startswith("lead: ")
    for cell in (load, asked, mine, ticks, ended, agents):
        assert cell.displays == []
    # The old session is as it was, and nothing of it was done again.
    old, second = sessions(home)
    assert old == first
    assert records(old) == before
    after = wait_for(home, lambda seen: "goal.met" in kinds(seen))
    assert len(started(after)) == len(set(started(after)))
    assert sum(record["kind"] == "merge.landed" for record in after) == 1
    log = subprocess.run(["git", "log", "--format=%s"], cwd=repository, capture_output=True, text=True, check=True)
    assert log.stdout.count("\n") == 2, log.stdout
    # What the views keep at the end goes to the outputs of this run.
    shown = {content["transient"]["display_id"] for content in goal.of_type("display_data")}
    kernel.wait_until(lambda: len(kernel.updates) >= 2, 30, "the outputs were not updated")
    assert {update["transient"]["display_id"] for update in kernel.updates} == shown

    # The offer still holds.
    assert kernel.run(f"%muse resume {first.name}").stdout.startswith(f"Session {first.name} goes on")
    wait_for(home, lambda seen: "goal.met" in kinds(seen), session=0)
    kernel.run("%muse close")
    resumed = records(first)
    assert resumed[: len(before)] == before
    assert len(started(resumed)) == len(set(started(resumed)))
    source = (repository / "scheduler" / "interval.py").read_text()
    assert source.count("self.start < other.end") == 1
    for folder in (first, second):
        assert prove(folder).ok
