"""The notebooks, checked by nbval against their stored outputs, with scripted models."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.crew_notebook import CrewNotebook
from fixtures.make_repo import make_many, make_own, make_repo
from fixtures.model_server import Answer, Call, ModelServer, ParsedRequest, RepairModel, load_repairs
from fixtures.plan_notebook import OBJECTION, PACKAGES, PlanNotebook

from musecode_jupyter.agents.claims.state import ClaimsState
from musecode_jupyter.log import EventLog
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.session.replay import prove

ROOT = Path(__file__).resolve().parents[1]
REPO = "units"


def run_notebook(name: str, server: ModelServer, folder: Path, **environment: str) -> None:
    """Run a notebook by nbval against its stored outputs, with the model of `server` and a home below `folder`."""
    chosen = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "MUSECODE_BASE_URL": server.base_url,
        "MUSECODE_MODEL": "muse-spark-1.3",
        "MUSECODE_HOME": str(folder / "home"),
        # Nothing here needs more plugins, and loading them takes longer than the checks.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **environment,
    }
    # An empty configuration: this project's names a plugin that is not loaded there.
    nbval = ["pytest", "-c", os.devnull, "-p", "nbval.plugin", "--nbval", "-q", str(ROOT / "notebooks" / name)]
    run = subprocess.run(
        [sys.executable, "-m", *nbval], cwd=folder, env=chosen, capture_output=True, text=True, timeout=150
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]


def answer_then_repair(request: ParsedRequest) -> Answer:
    """The notebook asks a question first; only a goal is worked on."""
    texts = [item["text"] for item in request.items if item["type"] == "message"]
    if request.json_schema is None and not any(text.startswith("Goal: ") for text in texts):
        return Answer("It means that the code does not do what the test expects.")
    return RepairModel(load_repairs(REPO))(request)


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="make demo runs it too; run by make crash")
@pytest.mark.parametrize("profile", ["guided", "driver"])
def test_the_quickstart_notebook_runs_as_it_is_stored(profile: str, tmp_path: Path) -> None:
    repository = make_repo(REPO, tmp_path / "repository")
    with ModelServer(answer_then_repair) as server:
        run_notebook(
            "01_quickstart.ipynb",
            server,
            tmp_path,
            MUSECODE_API="chat",
            MUSECODE_PROFILE=profile,
            MUSECODE_DEMO_REPO=str(repository),
            MUSECODE_APPROVALS="allow-workspace",
        )
    changed = subprocess.run(
        ["git", "diff", "--stat", "HEAD~1", "HEAD"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "1 file changed, 1 insertion(+), 1 deletion(-)" in changed.stdout
    # A line magic that ends in "?" is taken by IPython's help: then nothing was asked, and no cell failed.
    (session,) = (tmp_path / "home" / "sessions").iterdir()
    kinds = [event.kind for event in EventLog.read(session).events()]
    assert kinds.count("user.message") == 1


def look_propose_compute(request: ParsedRequest) -> Answer:
    """Answers the questions of the second notebook from what it is shown there, and from nothing else."""
    messages = [n for n, item in enumerate(request.items) if item["type"] == "message" and item["role"] == "user"]
    question, before = request.items[messages[-1]]["text"], request.items[messages[-1] - 1 :][0].get("text", "")
    results = [item["output"] for item in request.items[messages[-1] :] if item["type"] == "tool_result"]
    if question.startswith("Why did"):
        seen = "ZeroDivisionError" in before and "sum(values) / len(values)" in before
        return Answer("A station has no readings, so its mean divides by zero." if seen else "I see no cell.")
    if question.startswith("Propose"):
        if not results:
            return Answer("I look at the cells.", [Call("cells", {})])
        failed = re.search(r"^cell (\S+) .*failed: ZeroDivisionError", results[0], re.MULTILINE)
        source = re.search(r"^    (means = .*)$", results[0], re.MULTILINE)
        if failed is None or source is None:
            return Answer("I see no cell that failed.")
        new = f"{source[1][:-1]} if values}}\nmeans"
        proposal = {"cell": failed[1], "source": new, "why": "Stations without readings have no mean."}
        return Answer("", [Call("propose_cell", proposal)]) if len(results) == 1 else Answer(results[1])
    if not results:
        code = "warmest = max(means, key=means.get)\nprint(warmest, means[warmest])"
        return Answer("", [Call("run_in_kernel", {"code": code, "keep": ["warmest"]})])
    return Answer(f"The kernel says: {' '.join(re.findall(r'^[a-z]+ [0-9.]+$', results[0], re.MULTILINE))}")


def test_the_notebook_about_the_notebook_runs_as_it_is_stored(tmp_path: Path) -> None:
    with ModelServer(look_propose_compute) as server:
        run_notebook(
            "02_in_the_notebook.ipynb",
            server,
            tmp_path,
            MUSECODE_API="responses",
        )
        requests = [request.body.decode() for request in server.requests]
    assert not [body for body in requests if "not a real one" in body], "the value of a secret was sent"


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="half a minute: run by make crash")
def test_the_notebook_about_fan_out_runs_as_it_is_stored(tmp_path: Path) -> None:
    """Three workers, one conflict with a commit of somebody else's, which is sent back and done again."""
    packages = ("units", "intervals", "roofline")
    repository = make_many(packages, tmp_path / "repository")
    known = load_repairs(*packages)
    # The colleague of the notebook puts a comment behind the line with the fault.
    commented = [{**repair, **{side: f"{repair[side]}  # seconds" for side in ("old", "new")}} for repair in known[0]]
    with ModelServer(RepairModel([*known, commented])) as server:
        run_notebook(
            "03_fan_out.ipynb",
            server,
            tmp_path,
            MUSECODE_API="chat",
            MUSECODE_PROFILE="guided",
            MUSECODE_DEMO_REPO=str(repository),
        )
    (session,) = (tmp_path / "home" / "sessions").iterdir()
    kinds = [event.kind for event in EventLog.read(session).events()]
    assert kinds.count("task.bounced") == 1
    assert kinds.count("merge.landed") == 3
    assert kinds.count("merge.undone") == 1
    assert "goal.met" in kinds


def test_the_notebook_about_the_crew_runs_as_it_is_stored(tmp_path: Path) -> None:
    """The explorer is asked twice and reads nothing twice; a reviewer holds up a change that is green and wrong."""
    repository = make_own(tmp_path / "repository")
    with ModelServer(CrewNotebook()) as server:
        run_notebook(
            "04_crew.ipynb",
            server,
            tmp_path,
            MUSECODE_API="responses",
            MUSECODE_CREW="on",
            MUSECODE_REVIEW="full",
            MUSECODE_APPROVALS="allow-workspace",
            MUSECODE_DEMO_REPO=str(repository),
        )
    (session,) = (tmp_path / "home" / "sessions").iterdir()
    log = EventLog.read(session, reducers=all_reducers())
    events = list(log.events())
    assert "goal.met" in [event.kind for event in events]
    beliefs = log.state("claims")
    assert isinstance(beliefs, ClaimsState)
    assert [merge.state for merge in beliefs.merges.values()] == ["over", "landed"]
    woken = [event.agent for event in events if event.kind == "agent.woken"]
    assert woken.count("explorer") == 3
    (fixed,) = [event.data["critique"] for event in events if event.kind == "critique.fixed"]
    assert events[fixed - 1].data["severity"] == "blocking"
    claims = [event.seq for event in events if event.kind == "claim.asserted" and event.agent == "explorer"]
    assert len(claims) == 2
    retracted = [event.data["claim"] for event in events if event.kind == "claim.retracted"]
    assert retracted == claims[1:]
    proof = prove(session)
    assert proof.ok, proof.problem
    assert not proof.unchecked


def test_the_notebook_about_plans_runs_as_it_is_stored(tmp_path: Path) -> None:
    """What is proven of a plan is mended by its next version; its steps are done and land; a hopeless goal says so."""
    repository = make_many(PACKAGES, tmp_path / "repository")
    with ModelServer(PlanNotebook()) as server:
        run_notebook(
            "05_plan_grill_goal.ipynb",
            server,
            tmp_path,
            MUSECODE_API="responses",
            MUSECODE_CREW="on",
            MUSECODE_REVIEW="full",
            MUSECODE_DEMO_REPO=str(repository),
        )
    (session,) = (tmp_path / "home" / "sessions").iterdir()
    events = list(EventLog.read(session).events())
    kinds = [event.kind for event in events]
    assert kinds.count("plan.proposed") == 2
    assert kinds.count("merge.landed") == 2
    assert kinds.count("goal.met") == 1
    found = {event.seq: event.data for event in events if event.kind == "grill.finding"}
    (ended,) = [event.data for event in events if event.kind == "grill.ended"][1:]
    assert {found[number]["text"] for number in ended["resolved"]} >= {OBJECTION}
    proof = prove(session)
    assert proof.ok, proof.problem
    assert not proof.unchecked
