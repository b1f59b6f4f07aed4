"""A process that ends at any point of a goal in a private repository, or from uncommitted files: nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.model_scripts import Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, DONE, EDIT, Repo, end, session_on
from test_landing_restarts import FEW, Pictures

from musecode_jupyter.session import GoalSpec
from musecode_jupyter.session.replay import prove

MINE = {"other.txt": "mine, not committed\n", "stray.txt": "mine, in no commit\n"}

pytestmark = pytest.mark.crash


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "world" / "home"))
    return tmp_path / "world" / "home"


@pytest.mark.parametrize("kind", ["shadow", "dirty"])
def test_a_goal_that_is_cut_off_goes_on_from_what_it_started_from(home: Path, tmp_path: Path, kind: str) -> None:
    home.mkdir(parents=True)
    root = tmp_path / "world" / "repo"
    if kind == "dirty":
        Repo(root)
    else:
        root.mkdir()
        (root / "answer.txt").write_text("wrong\n")
    for name, text in MINE.items():
        (root / name).write_text(text)
    pictures = Pictures(tmp_path / "world", tmp_path / "album")
    spec = GoalSpec("say right", (CHECK,), shadow=kind == "shadow", base="dirty" if kind == "dirty" else None)
    with ModelServer(Steps([EDIT, DONE])) as server:
        with session_on(server.base_url, root, effects=pictures) as session:
            name = session.id
            session.read(lambda core: core.log.on_durable(lambda event: pictures.take(f"event {event.kind}")))
            pictures.on = True
            assert end(session.start_goal(spec)).met
            pictures.on = False
        # Before goal.set there is no goal to go on with.
        taken = [(moment, copy) for moment, copy in pictures.taken if any_goal(copy / "home", name)]
        assert len(taken) > 10
        for moment, copy in taken[:: 1 + len(taken) // 6] if FEW else taken:
            pictures.restore(copy)
            with ModelServer(Steps([EDIT, DONE])) as again, session_on(again.base_url, root, resume=name) as session:
                (number,) = session.goals.goals
                handle = session.handle(number)
                if not handle.result.met:
                    handle.resume()
                    result = end(handle)
                    assert result.met, (moment, result.why)
                assert prove(session.folder).problem is None, moment
            files = {path.name: path.read_text() for path in root.iterdir() if path.is_file()}
            assert files == {**MINE, "answer.txt": "right\n"}, moment
            if kind == "dirty":
                repo = object.__new__(Repo)
                repo.root = root
                assert repo.git("status", "--porcelain").split("\n") == ["M other.txt", "?? stray.txt"], moment
                assert repo.git("diff", "--name-only", "main~1", "main") == "answer.txt", moment
                assert (repo.branches, repo.worktrees) == (["main"], 1), moment
            else:
                assert not (root / ".git").exists(), moment


def any_goal(home: Path, session: str) -> bool:
    """Whether the journal of `session` in this picture has a goal."""
    return any('"goal.set"' in file.read_text() for file in (home / "sessions" / session / "journal").glob("*"))
