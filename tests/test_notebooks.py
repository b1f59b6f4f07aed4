"""The quickstart notebook, checked by nbval against its stored outputs, with a scripted model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.make_repo import make_repo
from fixtures.model_server import Answer, ModelServer, ParsedRequest, RepairModel, load_repairs

from musecode_jupyter.log import EventLog

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks" / "01_quickstart.ipynb"
REPO = "units"


def answer_then_repair(request: ParsedRequest) -> Answer:
    """The notebook asks a question first; only a goal is worked on."""
    texts = [item["text"] for item in request.items if item["type"] == "message"]
    if request.json_schema is None and not any(text.startswith("Goal: ") for text in texts):
        return Answer("It means that the code does not do what the test expects.")
    return RepairModel(load_repairs(REPO))(request)


@pytest.mark.parametrize("profile", ["driver", "guided"])
def test_the_quickstart_notebook_runs_as_it_is_stored(profile: str, tmp_path: Path) -> None:
    repository = make_repo(REPO, tmp_path / "repository")
    with ModelServer(answer_then_repair) as server:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "MUSECODE_BASE_URL": server.base_url,
            "MUSECODE_API": "chat",
            "MUSECODE_MODEL": "muse-spark-1.3",
            "MUSECODE_PROFILE": profile,
            "MUSECODE_HOME": str(tmp_path / "home"),
            "MUSECODE_DEMO_REPO": str(repository),
            "MUSECODE_APPROVALS": "allow-workspace",
            # Nothing here needs more plugins, and loading them takes longer than the checks.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        # An empty configuration: this project's names a plugin that is not loaded there.
        nbval = ["pytest", "-c", os.devnull, "-p", "nbval.plugin", "--nbval", "-q", str(NOTEBOOK)]
        run = subprocess.run(
            [sys.executable, "-m", *nbval],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=150,
        )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
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
