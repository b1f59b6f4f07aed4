"""The crew's notebook in a kernel that is killed -9 at some moment: resumed in a new one, the same agents go on."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from fixtures.crash_world import check_calls
from fixtures.crew_notebook import CrewNotebook
from fixtures.make_repo import make_own
from fixtures.model_server import ModelServer
from journal import Record, records, sessions, wait_for
from kernel import Kernel, kernel_environment

from musecode_jupyter.log import EventLog
from musecode_jupyter.session.replay import prove

ROOT = Path(__file__).resolve().parents[2]
POINTS = min(12, int(os.environ.get("MUSECODE_CRASH_POINTS", "0")))

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not POINTS, reason="a minute for each kernel that is killed: run by make crash"),
]


def cells() -> list[str]:
    """The code of the notebook, as a user runs it."""
    notebook = json.loads((ROOT / "notebooks" / "04_crew.ipynb").read_text("utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(seen: list[Record]) -> list[str]:
    return [record["kind"] for record in seen]


def environment(server: ModelServer, folder: Path) -> dict[str, str]:
    return kernel_environment(
        server.base_url,
        folder / "home",
        MUSECODE_CREW="on",
        MUSECODE_REVIEW="full",
        MUSECODE_APPROVALS="allow-workspace",
        MUSECODE_DEMO_REPO=str(folder / "repository"),
    )


def killed(server: ModelServer, folder: Path, seq: int) -> list[Record]:
    """Run the notebook in a kernel that is killed once event `seq` is on disk; what was on disk then."""
    with Kernel(folder, environment(server, folder)) as kernel:
        for code in cells():
            kernel.send(code)
        wait_for(
            folder / "home",
            # Twice: it closes the session and resumes it.
            lambda seen: seen and (seen[-1]["seq"] >= seq or kinds(seen).count("session.closed") == 2),
            session=0,
        )
        kernel.kill9()
        return records(sessions(folder / "home")[0])


def gone_on(server: ModelServer, folder: Path, before: list[Record]) -> None:
    """A new kernel resumes the session, and the goal is met with the agents that there were."""
    home = folder / "home"
    opening, goal = (next(code for code in cells() if word in code) for word in ("%load_ext", "%goal"))
    with Kernel(folder, environment(server, folder)) as kernel:
        kernel.run(opening)
        kernel.run("%muse resume")
        if "goal.set" not in kinds(before):
            kernel.run(goal)
        wait_for(home, lambda seen: "goal.met" in kinds(seen), session=0)
        agents = kernel.run("%muse agents").stdout
        assert "explorer: explorer" in agents
        kernel.run("%muse close")
    after = records(sessions(home)[0])
    assert after[: len(before)] == before
    for kind in ("agent.created", "agent.seeded"):
        made = [record["agent"] for record in after if record["kind"] == kind]
        assert len(made) == len(set(made)), f"{kind} twice: {made}"
    check_calls(list(EventLog.read(sessions(home)[0]).events()), ended={"lead"})
    proof = prove(sessions(home)[0])
    assert proof.ok, proof.problem
    assert not proof.unchecked


@pytest.mark.timeout(200 + 200 * POINTS)
def test_the_same_agents_go_on_after_a_kill_at_any_moment(tmp_path: Path, rng: random.Random) -> None:
    for number in range(POINTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        make_own(folder / "repository")
        seq = rng.randrange(3, 260)
        with ModelServer(CrewNotebook()) as server:
            before = killed(server, folder, seq)
            print(f"killed at {before[-1]['seq']}, {before[-1]['kind']}")
            try:
                gone_on(server, folder, before)
            except Exception as error:
                error.add_note(f"killed at event {before[-1]['seq']}, {before[-1]['kind']}")
                raise
            assert {request.status for request in server.requests} == {200}
