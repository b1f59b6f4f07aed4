"""Closing a session whose log cannot be written any more frees everything, and tells so once."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.model_scripts import Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Hurried, Repo, end, session_on, settings, start

from musecode_jupyter.log import journal
from musecode_jupyter.log.journal import Disk
from musecode_jupyter.log.lock import is_locked
from musecode_jupyter.runtime.errors import LogReadOnly
from musecode_jupyter.session.api import Session, open_session


class Switched(Disk):
    """The real disk until it is `broken`."""

    broken = False

    def sync(self, descriptor: int) -> None:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Switched]:
    switched = Switched()
    with monkeypatch.context() as patch:
        patch.setattr(journal, "Disk", lambda: switched)
        yield switched


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(Steps([EDIT, DONE])) as server:
        yield server


def opened(server: ModelServer, repo: Repo) -> Session:
    return open_session(repo.root, settings=settings(server.base_url), effects=Hurried())


def free(session: Session, before: set[threading.Thread], server: ModelServer, repo: Repo, disk: Switched) -> None:
    """Nothing of the session is held any more: it goes on in the same process, once the disk works."""
    session.close()
    assert not is_locked(session.folder)
    # A thread of the loop's pool may be on its way out.
    assert {each for each in threading.enumerate() if not each.name.startswith("musecode-helper")} <= before
    disk.broken = False
    with session_on(server.base_url, repo.root, resume=session.id) as again:
        if again.goals.goals:
            handle = again.newest_goal()
            handle.resume()
        else:
            handle = start(again)
        assert end(handle).met


def test_whoever_was_told_by_the_work_is_not_told_again(server: ModelServer, repo: Repo, disk: Switched) -> None:
    before = set(threading.enumerate())
    session = opened(server, repo)
    disk.broken = True
    with pytest.raises(LogReadOnly, match="read-only"):
        start(session)
    free(session, before, server, repo, disk)


def test_the_end_of_a_with_block_does_not_hide_the_first_error(server: ModelServer, repo: Repo, disk: Switched) -> None:
    def work() -> None:
        with opened(server, repo) as session:
            sessions.append(session)
            disk.broken = True
            start(session)

    sessions: list[Session] = []
    with pytest.raises(LogReadOnly) as raised:
        work()
    assert not isinstance(raised.value.__context__, LogReadOnly)
    assert not is_locked(sessions[0].folder)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "with a goal that runs"])
def test_closing_tells_what_nobody_was_told_and_frees_everything(
    busy: bool, server: ModelServer, repo: Repo, disk: Switched
) -> None:
    """A goal that could not be written down as paused kept the lock, the sandbox and the model's server."""
    before = set(threading.enumerate())
    session = opened(server, repo)
    if busy:
        start(session)
    disk.broken = True
    with pytest.raises(LogReadOnly, match=r"read-only.*resume it"):
        session.close()
    free(session, before, server, repo, disk)
    assert Path(repo.root / "answer.txt").read_text() == "right\n"
