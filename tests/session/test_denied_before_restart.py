"""A call that the user denied stays denied after a crash, whatever the session that goes on may do without asking."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.crash_world import World, check_calls
from fixtures.model_scripts import Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, Watch, end, run_of, session_on, start

from musecode_jupyter.session.replay import prove


def test_a_denied_call_is_not_made_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "world", tmp_path / "album")
    monkeypatch.setenv("MUSECODE_HOME", str(world.home))
    repo = Repo(world.repo)
    asking = {"interactive": True, "approvals": "ask"}
    script = Steps([run_of("echo ran >> trace.txt"), EDIT, DONE])
    with ModelServer(script) as server, world.film(server.base_url, **asking) as session:
        watch = Watch(session)
        handle = start(session)
        question = watch.until("approval.requested", action="run")
        session.answer(question.seq, "deny", by="test", why="not here")
        watch.until("tool.failed")
        handle.stop()
    call = question.data["call"]
    for kind, name, seq in (("approval.denied", "approval", question.seq), ("tool.decided", "call", call)):
        (at,) = (each["seq"] for each in world.records if each["kind"] == kind and each["data"][name] == seq)
        world.restore(world.point(world.line(at).end))
        with (
            ModelServer(Steps([EDIT, DONE])) as server,
            session_on(server.base_url, repo.root, resume=world.name) as session,
        ):
            handle = session.newest_goal()
            handle.resume()
            assert end(handle).met
            events = session.events()
        check_calls(events, ended={"lead"})
        (failed,) = (event for event in events if event.kind == "tool.failed")
        assert failed.data["call"] == call
        assert failed.data["output"].startswith("Denied (the user's answer). The user says: not here Go on")
        assert sorted(path.name for path in repo.root.iterdir()) == [".git", "answer.txt", "other.txt"]
        assert prove(world.folder).problem is None
