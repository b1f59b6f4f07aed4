"""Headless runs over the `messages` API: fixture repositories are repaired, by a driver and guided."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fixtures.make_repo import make_repo, names, repair
from fixtures.model_scripts import load_repairs
from fixtures.model_server import ModelServer, RepairModel

from musecode_jupyter.log import EventLog
from musecode_jupyter.session.replay import prove

VERIFY = "python -m pytest -q"
# All of them where there is time for that, as in `make crash`.
ALL = int(os.environ.get("MUSECODE_FAULT_RUNS", "6")) > 6
DRIVEN = [("driver", name) for name in (names() if ALL else names()[:1])]
GUIDED = [("guided", name) for name in (names() if ALL else [])]

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(("profile", "name"), [*DRIVEN, *GUIDED], ids="-".join)
def test_fixture_repositories_are_repaired_over_messages(profile: str, name: str, tmp_path: Path) -> None:
    repo = make_repo(name, tmp_path / "repo")
    with ModelServer(RepairModel(load_repairs(name)), api="messages", key="key-0123456789") as server:
        env = {
            **os.environ,
            "MUSECODE_HOME": str(tmp_path / "home"),
            "MUSECODE_BASE_URL": server.base_url,
            "MUSECODE_MODEL": "scripted",
            "MUSECODE_API": "messages",
            "MUSECODE_API_KEY": "key-0123456789",
            "MUSECODE_PRICE": "1/0.1/5",
            "MUSECODE_PROFILE": profile,
            "MUSECODE_APPROVALS": "allow-workspace",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        command = ["run", "--repo", str(repo), "--goal", "make the tests pass", "--verify", VERIFY]
        done = subprocess.run(
            [sys.executable, "-m", "musecode_jupyter.cli", *command],
            env=env,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        requests = list(server.requests)
    assert [request.status for request in requests if request.status != 200] == [], [r.message for r in requests]
    for edit in repair(name):
        assert edit.new in (repo / edit.path).read_text("utf-8").split("\n")
    folder = next((tmp_path / "home" / "sessions").iterdir())
    proof = prove(folder)
    assert proof.ok, proof.problem
    assert proof.prompts == len(requests) > 0
    log = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"key-0123456789" not in log
    events = list(EventLog.read(folder).events())
    assert {event.data["api"] for event in events if event.kind == "model.requested"} == {"messages"}
    bodies = [request.json for request in requests]
    if profile == "guided":
        assert {body["tool_choice"]["name"] for body in bodies} == {"answer"}
        return
    assert len(bodies) > 3
    for earlier, later in pairwise(bodies):
        assert _head(later) == _head(earlier)
        assert _blocks(later)[: len(_blocks(earlier))] == _blocks(earlier)
    usages = [event.data["usage"] for event in events if event.kind == "model.completed"]
    assert all(later["cached"] >= earlier["cached"] + earlier["written"] for earlier, later in pairwise(usages))
    assert all(usage["cached"] > 0 for usage in usages[1:])


def _head(body: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in body.items() if name != "messages"})


def _blocks(body: dict[str, Any]) -> list[str]:
    """The content blocks as text, without the marks for the cache, which move on."""
    return [
        json.dumps([message["role"], {name: value for name, value in block.items() if name != "cache_control"}])
        for message in body["messages"]
        for block in message["content"]
    ]
