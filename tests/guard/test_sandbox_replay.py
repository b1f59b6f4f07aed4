"""A recorded session is run again without its sandbox's processes: notes and endings are those of the record."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.sandbox_bench import BACKENDS, missing
from fixtures.session_bench import CHECK, DONE, EDIT, Repo, only, session_on, settings

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.loop import RuntimeThread
from musecode_jupyter.runtime.process import ProcessSpec
from musecode_jupyter.session.core import GoalSpec, SessionCore
from musecode_jupyter.session.recorded import RecordedEffects, answers

GOAL = GoalSpec("say right", (CHECK,))
COMMANDS = {"git commit -q --allow-empty -m x": 30.0, "git branch mine": 30.0, "sleep 30": 0.5}

ENDINGS = {
    "exit 3": "exited",
    "ended after the limit of 5 s": "timeout",
    "ended because it printed too much": "output",
    "ended because it started too many processes": "processes",
    "not started": "not started",
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_notes_and_endings_are_replayed(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = missing(backend)
    if problem:
        pytest.skip(problem)
    monkeypatch.setenv("MUSECODE_SANDBOX", backend)
    calls = [Answer("", [Call("run", {"command": text, "timeout": limit})]) for text, limit in COMMANDS.items()]
    with ModelServer(Steps([*calls, EDIT, DONE])) as server:
        with session_on(server.base_url, Repo(tmp_path / "first").root) as session:
            assert session.start_goal(GOAL).wait(timeout=60).met
            events = session.events()
        chosen = dataclasses.replace(settings(server.base_url), home=tmp_path / "again", sandbox=backend)
    outputs = [event.data["output"] for event in only(events, "tool.finished")]
    assert any("limit of 0.5 s" in text for text in outputs)
    mark = "git show HEAD:PATH > PATH" if backend == "bubblewrap" else "this changed the user's own repository"
    assert any(mark in text for text in outputs)
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "again"))
    effects = RecordedEffects(events, LiveEffects())
    repo = Repo(tmp_path / "second")

    async def run() -> str:
        core = await SessionCore.create(repo.root, chosen, effects, interactive=False, client=answers(events))
        record = await core.wait(await core.set_goal(GOAL))
        await core.close("replayed")
        return f"{record.status} {record.why}"

    thread = RuntimeThread.start()
    try:
        assert thread.call(run(), timeout=120).startswith("met")
    finally:
        thread.stop()
    assert effects.remaining == 0
    for told, ended in ENDINGS.items():
        again = [
            dataclasses.replace(event, data={**event.data, "output": f"x\n[{told}]"})
            if event.kind == "tool.finished"
            else event
            for event in events
        ]
        spec = ProcessSpec(("bash", "-c", CHECK), repo.root, {}, tmp_path / "output")
        assert asyncio.run(RecordedEffects(again, LiveEffects()).run(spec)).ended == ended
