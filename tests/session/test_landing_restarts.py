"""A process that ends at any point of a landing or an undo: the next one brings it to an end, and nothing is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.landing_bench import NOWHERE, merges, start_goal, submit, with_queue, work
from fixtures.session_bench import Repo, session_on

from musecode_jupyter.agents.landing.queue import Work
from musecode_jupyter.runtime.command import Command, CommandAnswer
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.session import Session
from musecode_jupyter.session.replay import prove

MARKS = ("event merge.", "update-ref", "read-tree", "update-index")
OTHERS = {"other.txt": "mine, not committed\n", "stray.txt": "mine, in no commit\n"}


FEW = "MUSECODE_CRASH_POINTS" not in os.environ
"""Whether only the moments that matter most are tried."""

pytestmark = pytest.mark.crash


class Pictures(LiveEffects):
    """The real world, of which a copy is kept of how it was before and after each git command: what a kill leaves.

    `taken` are the copies, each with what was about to be done or had just been done. With FEW, they are those
    at events of merges and around each change of a ref or of the checkout.
    """

    def __init__(self, root: Path, album: Path) -> None:
        super().__init__()
        self._root = root
        self._album = album
        self.on = False
        self.taken: list[tuple[str, Path]] = []

    def take(self, moment: str) -> None:
        if not self.on or (FEW and not any(mark in moment for mark in MARKS)):
            return
        copy = self._album / str(len(self.taken))
        shutil.copytree(self._root, copy, symlinks=True)
        self.taken.append((moment, copy))

    def restore(self, copy: Path) -> None:
        for folder in self._root.iterdir():
            shutil.rmtree(folder)
        shutil.copytree(copy, self._root, symlinks=True, dirs_exist_ok=True)

    async def ask(self, command: Command) -> CommandAnswer:
        name = next((word for word in command.argv[2:] if word not in ("-c",) and "=" not in word), "")
        self.take(f"before {name}")
        answer = await super().ask(command)
        self.take(f"after {name}")
        return answer


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of sessions beside the repository, so that both are in one picture."""
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "world" / "home"))
    return tmp_path / "world" / "home"


@pytest.fixture
def repo(tmp_path: Path, home: Path) -> Repo:
    home.mkdir(parents=True)
    return Repo(tmp_path / "world" / "repo")


@pytest.fixture
def pictures(tmp_path: Path) -> Pictures:
    return Pictures(tmp_path / "world", tmp_path / "album")


def record(repo: Repo, pictures: Pictures, deed: Callable[[Session], object], session: Session) -> None:
    """Take pictures while `deed` is done: at each git command, and at each event that is durable."""
    for name, text in OTHERS.items():
        repo.write(name, text)
    end = session.read(lambda core: core.log.on_durable(lambda event: pictures.take(f"event {event.kind}")))
    pictures.on = True
    deed(session)
    pictures.on = False
    session.read(lambda core: end())


def assert_settled(repo: Repo, moment: str) -> None:
    """The user's own changes are there, and nothing else differs from the branch."""
    assert {name: repo.read(name) for name in OTHERS} == OTHERS, moment
    assert sorted(repo.git("status", "--porcelain").split("\n")) == ["?? stray.txt", "M other.txt"], moment


def land_again(session: Session, made: Work, moment: str) -> None:
    """What a restart leaves of a merge: it is brought to its end or closed, and can be handed in again."""
    for seq, merge in merges(session).items():
        verdict = with_queue(session, lambda queue, seq=seq: queue.finish(seq))  # type: ignore[misc]
        assert (verdict is None) == (merge.state in {"landed", "bounced"}), moment
        if verdict is not None:
            assert verdict.kind == ("landed" if merge.state == "landing" else "bounced"), moment
        assert with_queue(session, lambda queue, seq=seq: queue.finish(seq)) is None, moment  # type: ignore[misc]
    if not any(merge.state == "landed" for merge in merges(session).values()):
        (again,) = submit(session, made)
        assert again.kind == "landed", moment


def crash_in_landing(repo: Repo, pictures: Pictures) -> None:
    with session_on(NOWHERE, repo.root, effects=pictures) as session:
        goal, name = start_goal(session, repo), session.id
        made = work(repo, goal, "a", {"answer.txt": "right\n", "sub/new.txt": "new\n"}, "grep -q right answer.txt")
        target = repo.commit({"third.txt": "so that it is a merge\n"})
        record(repo, pictures, lambda opened: submit(opened, made), session)
    done = repo.git("rev-parse", "main")
    assert repo.git("rev-parse", "main^1") == target
    for moment, copy in pictures.taken:
        pictures.restore(copy)
        with session_on(NOWHERE, repo.root, resume=name) as session:
            land_again(session, made, moment)
            assert repo.git("rev-parse", "main") == done, moment
            (backup, *_) = repo.git("for-each-ref", "--format=%(objectname)", "refs/musecode/backup").split()
            assert backup == target, moment
            assert repo.read("answer.txt") == "right\n", moment
            assert_settled(repo, moment)
            assert repo.worktrees == 2, moment
        assert prove(session.folder, commands=False).problem is None, moment


def crash_in_undo(repo: Repo, pictures: Pictures, *, later: bool) -> None:
    with session_on(NOWHERE, repo.root, effects=pictures) as session:
        goal, name = start_goal(session, repo), session.id
        old = repo.git("rev-parse", "main")
        made = work(repo, goal, "a", {"answer.txt": "right\n", "new.txt": "new\n"})
        (verdict,) = submit(session, made)
        tip = repo.commit({"third.txt": "later\n"}) if later else repo.git("rev-parse", "main")
        record(repo, pictures, lambda opened: opened.undo(verdict.merge), session)
    for moment, copy in pictures.taken:
        pictures.restore(copy)
        with session_on(NOWHERE, repo.root, resume=name) as session:
            state = merges(session)[verdict.merge].state
            assert state in {"landed", "undone"}, moment
            notices = session.take_notices()
            if state == "landed":
                assert repo.git("rev-parse", "main") == tip, moment
                session.undo(verdict.merge)
            elif notices:
                assert f"Landing {verdict.merge} is undone: main is at " in notices[0], moment
            expected = repo.git("rev-parse", "main^") if later else repo.git("rev-parse", "main")
            assert expected == (tip if later else old), moment
            assert repo.read("answer.txt") == "wrong\n", moment
            assert not (repo.root / "new.txt").exists(), moment
            kept = repo.git("for-each-ref", "--format=%(objectname)", "refs/musecode/backup/*/*-undo-*").split()
            assert kept == [tip], moment
            assert_settled(repo, moment)
        assert prove(session.folder, commands=False).problem is None, moment


def test_a_landing_that_is_cut_off_is_brought_to_its_end(repo: Repo, pictures: Pictures) -> None:
    crash_in_landing(repo, pictures)


@pytest.mark.parametrize("later", [False, True])
def test_an_undo_that_is_cut_off_is_brought_to_its_end(repo: Repo, pictures: Pictures, later: bool) -> None:
    crash_in_undo(repo, pictures, later=later)


def at(pictures: Pictures, moment: str) -> None:
    """The world as it was when `moment` came first."""
    pictures.restore(next(copy for name, copy in pictures.taken if name == moment))


def test_what_the_user_did_between_the_kill_and_the_restart_decides_about_a_landing(
    repo: Repo, pictures: Pictures
) -> None:
    with session_on(NOWHERE, repo.root, effects=pictures) as session:
        goal, name = start_goal(session, repo), session.id
        made = work(repo, goal, "a", {"answer.txt": "right\n"})
        record(repo, pictures, lambda opened: submit(opened, made), session)
        (seq,) = merges(session)
    # They committed: the branch is no longer where the merge was tested.
    at(pictures, "event merge.landing")
    tip = repo.commit({"third.txt": "later\n"})
    with session_on(NOWHERE, repo.root, resume=name) as session:
        verdict = with_queue(session, lambda queue: queue.finish(seq))
        assert verdict is not None
        assert (verdict.kind, verdict.report, verdict.commit) == ("bounced", "", tip)
        assert merges(session)[seq].state == "bounced"
    assert (repo.git("rev-parse", "main"), repo.read("answer.txt")) == (tip, "wrong\n")
    # They changed the same file: it is theirs, and their turn.
    at(pictures, "event merge.landing")
    old = repo.git("rev-parse", "main")
    repo.write("answer.txt", "mine\n")
    with session_on(NOWHERE, repo.root, resume=name) as session:
        verdict = with_queue(session, lambda queue: queue.finish(seq))
        assert verdict is not None
        assert verdict.kind == "held"
        assert "your own changes are in the way: answer.txt" in verdict.why
    assert (repo.git("rev-parse", "main"), repo.read("answer.txt")) == (old, "mine\n")


def test_what_the_user_did_between_the_kill_and_the_restart_decides_about_an_undo(
    repo: Repo, pictures: Pictures
) -> None:
    with session_on(NOWHERE, repo.root, effects=pictures) as session:
        goal, name = start_goal(session, repo), session.id
        (verdict,) = submit(session, work(repo, goal, "a", {"answer.txt": "right\n"}))
        record(repo, pictures, lambda opened: opened.undo(verdict.merge), session)
    # They committed on top of the landing: it stays, and can be undone as what it is now.
    at(pictures, "event merge.undoing")
    tip = repo.commit({"third.txt": "later\n"})
    with session_on(NOWHERE, repo.root, resume=name) as session:
        (told,) = session.take_notices()
        assert told.startswith(f"Landing {verdict.merge} is not undone: refs/heads/main is at {tip[:12]}")
        assert merges(session)[verdict.merge].state == "landed"
        session.undo(verdict.merge)
        assert repo.git("rev-parse", "main^") == tip
        assert repo.read("answer.txt") == "wrong\n"
    # They took the branch back themselves and went on: it is undone.
    at(pictures, "event merge.undoing")
    repo.git("reset", "--quiet", "--hard", "HEAD^")
    tip = repo.commit({"third.txt": "later\n"})
    with session_on(NOWHERE, repo.root, resume=name) as session:
        (told,) = session.take_notices()
        assert "It has moved on since, so the files were left as they are." in told
        assert merges(session)[verdict.merge].state == "undone"
    assert repo.git("rev-parse", "main") == tip
