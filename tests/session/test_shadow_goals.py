"""Goals in a folder that is in no repository: a private one outside it when the user wants that, and never else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.crew_scripts import Crew
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, DONE, EDIT, Doing, Held, Hurried, Repo, Watch, end, only, session_on, settings

from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.runtime.errors import NoRepository, UsageProblem
from musecode_jupyter.session import GoalHandle, GoalSpec, Session, open_session
from musecode_jupyter.session.replay import prove

OTHER = {"notes.txt": "mine\n", "answer.txt": "wrong\n", "sub/deep.txt": "deep\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "plain"
    for name, text in OTHER.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(params=["no repository", "no commit"])
def bare_folder(folder: Path, request: pytest.FixtureRequest) -> Path:
    if request.param == "no commit":
        git(folder, "init", "--quiet")
    return folder


def git(folder: Path, *args: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=User", "-c", "user.email=user@example.org", *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def start(session: Session, *verify: str, shadow: bool = False, **more: object) -> GoalHandle:
    return session.start_goal(GoalSpec("say right", verify or (CHECK,), shadow=shadow, **more))  # type: ignore[arg-type]


def test_without_the_option_the_refusal_names_it_and_nothing_is_made(bare_folder: Path, home: Path) -> None:
    before = files(bare_folder)
    with ModelServer(Steps([EDIT, DONE])) as server:
        with pytest.raises(NoRepository, match=r"make a first commit.* Or give --shadow"):
            open_session(bare_folder, settings=settings(server.base_url), goal=GoalSpec("a", (CHECK,)))
        assert not home.exists()
        with session_on(server.base_url, bare_folder) as session:
            assert session.repository() == bare_folder
            with pytest.raises(NoRepository, match="Or give --shadow"):
                start(session)
            assert session.goals.goals == {}
    assert not (home / "shadow").exists()
    assert files(bare_folder) == before


def test_with_the_option_it_works_as_in_any_repository(bare_folder: Path, home: Path) -> None:
    before = files(bare_folder)
    with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, bare_folder) as session:
        handle = start(session, shadow=True)
        result = end(handle)
        assert result.met, result.why
        assert session.take_notices() == [
            f"{bare_folder} is in no git repository: a private one outside it keeps its versions."
        ]
        assert handle.diff().splitlines()[-2:] == ["-wrong", "+right"]
        assert session.worktrees_text() == "There are no worktrees of agents on this repository."
        assert prove(session.folder).ok
    assert files(bare_folder) == {**before, "answer.txt": b"right\n"}
    assert len(list((home / "shadow").iterdir())) == 1


def test_the_next_goal_starts_from_the_files_as_they_are_then(folder: Path) -> None:
    """The user has no commits there: without being taken in, their changes would be in the way of every landing."""
    again = Answer("", [Call("edit", {"path": "notes.txt", "old": "mine", "new": "ours"})])
    with ModelServer(Steps([EDIT, DONE, again, DONE])) as server, session_on(server.base_url, folder) as session:
        assert end(start(session, shadow=True)).met
        (folder / "notes.txt").write_text("mine\nand more\n")
        (folder / "new.txt").write_text("new\n")
        # It is there by now, so that nothing has to be asked or given.
        result = end(start(session, "grep -q ours notes.txt && test -f new.txt"))
        assert result.met, result.why
        now = {"new.txt": b"new\n", "notes.txt": b"ours\nand more\n", "sub/deep.txt": b"deep\n"}
        assert files(folder) == {**now, "answer.txt": b"right\n"}
        # Later changes of the user are kept when a landing is taken back, in the same file too.
        (folder / "notes.txt").write_text("ours\nand more\nand later\n")
        first = only(session.events(), "merge.landed")[0]
        assert "is undone" in session.undo(first.data["merge"])
    assert files(folder) == {**now, "answer.txt": b"wrong\n", "notes.txt": b"ours\nand more\nand later\n"}


def test_a_change_in_the_way_is_merged_when_the_goal_is_resumed(folder: Path) -> None:
    (folder / "answer.txt").write_text("wrong\n\n\n\n\n\nlast\n")

    def change() -> None:
        (folder / "answer.txt").write_text("wrong\n\n\n\n\n\nlast of mine\n")

    with ModelServer(Doing([EDIT, DONE], 1, change)) as server, session_on(server.base_url, folder) as session:
        handle = start(session, shadow=True)
        result = end(handle)
        assert result.status == "blocked"
        assert "your checkout has changes of its own in answer.txt. Nothing was touched" in result.why
        assert "Resume takes your changes into the private repository" in result.why
        assert (folder / "answer.txt").read_text() == "wrong\n\n\n\n\n\nlast of mine\n"
        handle.resume()
        result = end(handle)
        assert result.met, result.why
    assert (folder / "answer.txt").read_text() == "right\n\n\n\n\n\nlast of mine\n"


def test_several_workers_work_there(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / f"{name}.txt").write_text("wrong\n")
    graph = [
        {"name": n, "goal": f"Mend {n}.txt.", "accept": [f"grep -q right {n}.txt"], "writes": [f"{n}.txt"]}
        for n in ("one", "two")
    ]
    script = Crew(
        {
            n: [[Answer("", [Call("edit", {"path": f"{n}.txt", "old": "wrong", "new": "right"})])]]
            for n in ("one", "two")
        }
    )
    with ModelServer(script) as server, session_on(server.base_url, folder) as session:
        result = end(start(session, "grep -q right one.txt two.txt", shadow=True, tasks=parse_tasks(graph), workers=2))
        assert result.met, result.why
        assert ", landed by merge" in session.tasks_text()
    assert (folder / "one.txt").read_text() == (folder / "two.txt").read_text() == "right\n"


@pytest.fixture
def asking(folder: Path) -> Iterator[tuple[Session, Watch]]:
    with (
        ModelServer(Steps([EDIT, DONE])) as server,
        session_on(server.base_url, folder, interactive=True, approvals="ask") as session,
    ):
        yield session, Watch(session)


def test_where_somebody_can_be_asked_it_is_offered(asking: tuple[Session, Watch], folder: Path, home: Path) -> None:
    session, watch = asking
    before = files(folder)
    handle = start(session)
    question = watch.until("approval.requested")
    assert question.data["action"] == "make a private repository"
    assert question.data["shown"]["folder"] == str(folder)
    assert not (home / "shadow").exists()
    session.answer(None, "approve", by="test")
    landing = watch.until("approval.requested", since=question.seq, action="land")
    session.answer(landing.seq, "approve", by="test")
    assert end(handle).met
    assert files(folder) == {**before, "answer.txt": b"right\n"}
    (based,) = only(session.events(), "goal.based")
    assert based.data["branch"] == "main"


def test_a_no_leaves_nothing_and_says_what_to_do(asking: tuple[Session, Watch], folder: Path, home: Path) -> None:
    session, watch = asking
    before = files(folder)
    handle = start(session)
    watch.until("approval.requested")
    session.answer(None, "deny", by="test")
    result = end(handle)
    assert result.status == "blocked"
    assert "a private one was not wanted. Run `git init` there and make a first commit, then resume" in result.why
    assert not (home / "shadow").exists()
    assert files(folder) == before
    # Asked again, since nothing is settled.
    handle.resume()
    again = watch.until("approval.requested", since=result.model_calls + only(session.events(), "goal.stopped")[0].seq)
    assert again.data["action"] == "make a private repository"
    handle.stop()
    assert handle.status == "stopped"
    assert session.approvals.pending == {}


def test_after_a_restart_the_question_comes_again_and_the_repository_is_found_again(folder: Path) -> None:
    held = Held([EDIT, DONE], hold=1)
    with ModelServer(held) as server:
        with session_on(server.base_url, folder, interactive=True, approvals="ask") as session:
            watch = Watch(session)
            start(session)
            watch.until("approval.requested")
        # The question went with its process. Nobody can be asked now: nothing is made without a yes.
        with session_on(server.base_url, folder, resume="last") as session:
            handle = session.newest_goal()
            assert handle.status == "paused"
            handle.resume()
            assert end(handle).status == "blocked"
        with session_on(server.base_url, folder, resume="last", interactive=True, approvals="ask") as session:
            handle, watch = session.newest_goal(), Watch(session)
            handle.resume()
            watch.until("approval.requested")
            session.answer(None, "approve", by="test")
            held.wait()
        held.release()
        # The user has made a repository of their own meanwhile: the goal stays where it began.
        git(folder, "init", "--quiet", "--initial-branch=other")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", "mine")
        with session_on(server.base_url, folder, resume="last") as session:
            handle = session.newest_goal()
            handle.resume()
            result = end(handle)
            assert result.met, result.why
            assert prove(session.folder).ok
        assert (folder / "answer.txt").read_text() == "right\n"
        assert git(folder, "status", "--porcelain") == "M answer.txt"


def test_what_cannot_have_one_is_said_in_place_of_the_offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "plain" / "home"))
    (tmp_path / "plain").mkdir()
    with pytest.raises(NoRepository, match=r"A private one cannot take its place: .* lies in"):
        open_session(
            tmp_path / "plain",
            settings=settings("http://127.0.0.1:9/v1", approvals="ask"),
            goal=GoalSpec("a", (CHECK,), shadow=True),
            interactive=True,
            effects=Hurried(),
        )
    assert list((tmp_path / "plain").iterdir()) == []


def test_a_goal_takes_no_other_base_than_those_that_there_are(repo: Repo) -> None:
    with session_on("http://127.0.0.1:9/v1", repo.root) as session:
        with pytest.raises(UsageProblem, match="--base index: it is one of head, dirty"):
            start(session, base="index")
        with pytest.raises(UsageProblem, match="Several workers start from your last commit"):
            start(session, base="dirty", workers=2)
