"""A process that is killed within a write of a file leaves nothing beside it that lands with the work."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures.crash_stories import put_back
from fixtures.crash_world import World
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, DONE, EDIT, Repo, end, session_on, start

from musecode_jupyter.session.replay import prove
from musecode_jupyter.tools.files import clear_cut_off, digest_bytes, write_atomic

NEW = Answer("", [Call("edit", {"path": "sub/new.txt", "old": "", "new": "new\n"})])
WRITES = {
    "before it has the name": ("os.rename", EDIT, "answer.txt", b"right\n", digest_bytes(b"wrong\n")),
    "with a new name": ("os.link", NEW, "sub/new.txt", b"new\n", None),
    "under both names": ("os.remove", NEW, "sub/new.txt", b"new\n", None),
}


def killed_within(event: str, root: Path, path: str, data: bytes, before: str | None) -> None:
    """A child writes the file, and is killed when `event` is about to happen."""

    def end_at(name: str, args: tuple[Any, ...]) -> None:
        if name == event and str(args[0]).startswith(".musecode-"):
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            sys.addaudithook(end_at)
            write_atomic(root, path, data, before)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("when", WRITES)
def test_what_a_killed_write_leaves_is_removed_and_nothing_else(tmp_path: Path, when: str) -> None:
    event, _, path, data, before = WRITES[when]
    (tmp_path / "answer.txt").write_bytes(b"wrong\n")
    killed_within(event, tmp_path, path, data, before)
    (tmp_path / ".musecode-mine.tmp").write_bytes(b"mine")
    assert len(list(tmp_path.rglob(".musecode-*"))) == 2
    clear_cut_off(tmp_path, path)
    assert [each.name for each in tmp_path.rglob(".musecode-*")] == [".musecode-mine.tmp"]
    assert (tmp_path / "answer.txt").read_bytes() == b"wrong\n"
    clear_cut_off(tmp_path, "nowhere/at/all.txt")


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="whole sessions: run by make crash")
@pytest.mark.parametrize("when", WRITES)
def test_what_a_killed_write_leaves_does_not_land(tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    event, answer, path, data, before = WRITES[when]
    world = World(tmp_path / "world", tmp_path / "album")
    monkeypatch.setenv("MUSECODE_HOME", str(world.home))
    repo = Repo(world.repo)
    script = Steps([answer, DONE] if answer is EDIT else [NEW, EDIT, DONE])
    check = CHECK if answer is EDIT else f"{CHECK} && test -f sub/new.txt"
    with ModelServer(script) as server, world.film(server.base_url) as session:
        assert end(start(session, check)).met
    first = min(each["data"]["call"] for each in world.records if each["kind"] == "file.changed")
    put_back(world, lambda each: each["kind"] == "tool.started" and each["data"]["call"] == first)
    (tree,) = (world.home / "worktrees").iterdir()
    killed_within(event, tree, path, data, before)
    assert list(tree.rglob(".musecode-*"))
    with (
        ModelServer(Steps([DONE] if answer is EDIT else [EDIT, DONE])) as server,
        session_on(server.base_url, world.repo, resume=world.name) as session,
    ):
        handle = session.newest_goal()
        handle.resume()
        result = end(handle)
        assert result.met, result.why
        assert not list(tree.rglob(".musecode-*"))
    assert (world.repo / path).read_bytes() == data
    assert ".musecode" not in repo.git("ls-tree", "-r", "--name-only", "main")
    assert repo.git("status", "--porcelain") == ""
    assert prove(session.folder).problem is None
