"""Worktrees in the user's hands: only what holds nothing goes by itself; all else is asked about or set aside."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fixtures.model_scripts import Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Held, Repo, Watch, end, session_on, start

from musecode_jupyter import cli
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session import GoalHandle, Session
from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.worktrees import checkout_detached


@dataclass
class Kept:
    """A goal that was not allowed to land, and its worktree."""

    repo: Repo
    home: Path
    id: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.id}-{self.number}"

    @property
    def tree(self) -> Path:
        return self.home / "worktrees" / self.name

    def cli(self, *words: str, code: int = 0) -> None:
        assert cli.main(["worktrees", "--repo", str(self.repo.root), *words]) == code


@pytest.fixture
def kept(repo: Repo, home: Path) -> Kept:
    """What a session leaves on the disk whose work was not to land."""
    found = Kept(repo, home, "20260101-000000-aaaa", 4)
    repo.git("worktree", "add", "--quiet", "-b", f"musecode/{found.id}/4", str(found.tree))
    (found.tree / "answer.txt").write_text("right\n")
    repo.git("-C", str(found.tree), "commit", "--quiet", "--all", "--message", "work")
    git = asyncio.run(Git.discover(repo.root, LiveEffects()))
    asyncio.run(checkout_detached(git, home / "worktrees" / f"{found.name}-check", "main"))
    return found


def test_what_holds_something_is_named_and_stays(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    held = f"1 commit not merged (kept on musecode/{kept.id}/{kept.number})"
    kept.cli()
    listed = capsys.readouterr().out.splitlines()
    assert listed == [
        f"{kept.name}: worktree on musecode/{kept.id}/{kept.number}: {held}",
        f"{kept.name}-check: verification: nothing that is not landed",
    ]
    # The tree of the checks goes, since nothing in it is anybody's.
    kept.cli("reclaim")
    assert capsys.readouterr().out == f"{kept.name}-check is removed.\n{kept.name} is kept: {held}\n"
    kept.cli("reclaim", kept.name, code=1)
    assert f"{kept.name} is kept: {held}. --discard removes it" in capsys.readouterr().err
    assert (kept.tree / "answer.txt").read_text() == "right\n"
    kept.repo.git("merge", "--quiet", f"musecode/{kept.id}/{kept.number}")
    kept.cli("reclaim", str(kept.tree))
    assert capsys.readouterr().out == f"{kept.name} is removed.\n"
    kept.cli()
    assert capsys.readouterr().out == "There are no worktrees of agents on this repository.\n"
    assert kept.repo.worktrees == 1


def test_what_is_discarded_is_kept_by_a_ref(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    (kept.tree / "unsaved.txt").write_text("unsaved\n")
    (kept.tree / "other.txt").unlink()
    kept.cli("reclaim", kept.name, "--discard")
    said = capsys.readouterr().out
    found = re.fullmatch(rf"{kept.name} is removed; (refs/musecode/snapshot/removed/\S+) keeps what it held\.\n", said)
    assert found is not None, said
    assert not kept.tree.exists()
    assert kept.repo.git("show", f"{found[1]}:unsaved.txt") == "unsaved"
    assert kept.repo.git("show", f"{found[1]}:answer.txt") == "right"
    assert "other.txt" not in kept.repo.git("ls-tree", "--name-only", found[1]).split()
    assert kept.repo.git("rev-parse", f"{found[1]}~1") == kept.repo.git("rev-parse", f"musecode/{kept.id}/4")


def test_at_a_terminal_it_is_asked(kept: Kept) -> None:
    words = ("worktrees", "--repo", str(kept.repo.root), "reclaim", kept.name)
    for answer, status in (("no", 1), ("yes", 0)):
        ours, theirs = pty.openpty()
        with open(ours, "r+b", buffering=0) as terminal:
            process = subprocess.Popen(
                [sys.executable, "-m", "musecode_jupyter.cli", *words], stdin=theirs, stdout=theirs, stderr=theirs
            )
            os.close(theirs)
            shown = b""
            while b"[y/N]" not in shown:
                shown += terminal.read(1024)
            terminal.write(f"{answer}\n".encode())
            assert process.wait(timeout=60) == status
        assert b"holds something: 1 commit not merged" in shown
        assert kept.tree.exists() == (answer == "no")


def test_one_is_set_aside_with_all_that_it_holds(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    (kept.tree / "unsaved.txt").write_text("unsaved\n")
    kept.cli("quarantine", kept.name, "to", "be", "looked", "at")
    place = kept.home / "worktrees" / "quarantine" / kept.name
    assert f"is set aside at {place}; `git worktree unlock {place}`" in capsys.readouterr().out
    assert (place / "unsaved.txt").read_text() == "unsaved\n"
    assert "musecode quarantine: to be looked at" in kept.repo.git("worktree", "list", "--porcelain")
    kept.cli("reclaim")
    assert f"{kept.name} is kept: unsaved: unsaved.txt" in capsys.readouterr().out
    kept.cli("reclaim", kept.name, "--discard")
    assert not place.exists()


def test_bad_input_is_one_line(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (("reclaim", "nothing"), "There is no worktree nothing"),
        (("quarantine", "nothing"), "There is no worktree nothing"),
        (("reclaim", "--discard"), "--discard needs the NAME"),
    ):
        kept.cli(*words, code=2)
        said = capsys.readouterr().err
        assert says in said
        assert said.count("\n") == 1


def test_where_a_session_works_nothing_is_touched(repo: Repo, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = Held([EDIT, DONE], hold=0)
    with ModelServer(held) as server, session_on(server.base_url, repo.root) as session:
        handle = start(session)
        held.wait()
        kept = Kept(repo, home, session.id, handle.number)
        kept.cli("reclaim")
        assert f"{kept.name} is kept: session {session.id} works there" in capsys.readouterr().out
        for words in (("reclaim", kept.name), ("reclaim", kept.name, "--discard"), ("quarantine", kept.name)):
            kept.cli(*words, code=2)
            assert "works there" in capsys.readouterr().err
        assert "works there" in session.reclaim_worktrees()
        with pytest.raises(UsageProblem, match="works there"):
            session.quarantine_worktree(kept.name)
        held.release()
        assert end(handle).met


async def over(core: SessionCore) -> None:
    """Wait until what the last answer set off has ended."""
    asides = list(core._asides)
    if asides:
        await asyncio.wait(asides)


class TestInASession:
    @pytest.fixture
    def asked(self, repo: Repo) -> Iterator[tuple[Session, GoalHandle, Watch]]:
        with (
            ModelServer(Steps([EDIT, DONE, EDIT, DONE])) as server,
            session_on(server.base_url, repo.root, interactive=True, approvals="ask") as session,
        ):
            watch = Watch(session)
            handle = start(session)
            watch.until("approval.requested", action="land")
            session.answer(None, "deny", by="test")
            assert end(handle).status == "blocked"
            yield session, handle, watch

    def test_removal_of_what_holds_something_is_a_question(
        self, repo: Repo, asked: tuple[Session, GoalHandle, Watch]
    ) -> None:
        session, handle, watch = asked
        name = f"{session.id}-{handle.number}"
        tree = session.core.home / "worktrees" / name
        (tree / "unsaved.txt").write_text("unsaved\n")
        for decision in ("deny", "approve"):
            since = session.read(lambda core: core.log.last_seq)
            said = session.reclaim_worktrees(name)
            assert said.startswith(f"{name} holds something: unsaved: unsaved.txt; 1 commit not merged")
            question = watch.until("approval.requested", since=since)
            assert question.data["action"] == "remove a worktree"
            assert "unsaved.txt" in question.data["shown"]["holds"]
            assert tree.exists()
            session.answer(question.seq, decision, by="test")  # type: ignore[arg-type]
        removed = watch.until("worktree.removed")
        assert not tree.exists()
        assert repo.git("show", f"{removed.data['contained_in']}:unsaved.txt") == "unsaved"
        # The goal goes on all the same, from the branch that has its commit.
        handle.resume()
        landing = watch.until("approval.requested", since=removed.seq, action="land")
        session.answer(landing.seq, "approve", by="test")
        assert end(handle).met

    def test_what_changed_since_the_question_is_kept_and_a_question_ends_with_the_session(
        self, asked: tuple[Session, GoalHandle, Watch]
    ) -> None:
        session, handle, watch = asked
        name = f"{session.id}-{handle.number}"
        tree = session.core.home / "worktrees" / name
        since = session.read(lambda core: core.log.last_seq)
        session.reclaim_worktrees(name)
        question = watch.until("approval.requested", since=since)
        (tree / "later.txt").write_text("later\n")
        session.answer(question.seq, "approve", by="test")
        session.call(over)
        # Asked again, it is another question, which ends with the session.
        again = session.reclaim_worktrees(name)
        assert "unsaved: later.txt" in again
        question = watch.until("approval.requested", since=question.seq)
        (notice,) = session.take_notices()
        assert "is not any more as it was shown (unsaved: later.txt;" in notice
        session.close()
        assert watch.until("approval.expired", approval=question.seq)
        assert (tree / "later.txt").exists()
