"""A start that is refused: one clear line before anything is written, asked of the model, or left on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.model_scripts import Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, DONE, EDIT, Hurried, Repo, end, only, session_on, settings, start

from musecode_jupyter.runtime.errors import ConfigurationError, MuseError, NoCheckout, UsageProblem
from musecode_jupyter.session import GoalSpec, Settings, open_session

Prepare = Callable[[Repo, Path], Path]


def unborn(_repo: Repo, folder: Path) -> Path:
    folder.mkdir()
    Repo.git(_At(folder), "init", "--quiet")
    return folder


def bare(repo: Repo, folder: Path) -> Path:
    repo.git("clone", "--quiet", "--bare", ".", str(folder))
    return folder


def plain(_repo: Repo, folder: Path) -> Path:
    folder.mkdir()
    return folder


def inside_git(repo: Repo, _folder: Path) -> Path:
    return repo.root / ".git"


def detached(repo: Repo, _folder: Path) -> Path:
    repo.git("checkout", "--quiet", "--detach")
    return repo.root


def as_it_is(repo: Repo, _folder: Path) -> Path:
    return repo.root


class _At:
    """A folder as `Repo.git` needs it."""

    def __init__(self, root: Path) -> None:
        self.root = root


GOOD: dict[str, Any] = {"text": "say right", "verify": (CHECK,)}
REFUSED: list[tuple[str, Prepare, dict[str, Any], type[MuseError], str]] = [
    ("no commit", unborn, {}, NoCheckout, "make a first commit"),
    ("bare", bare, {}, NoCheckout, "clone it and work in the clone"),
    ("no repository", plain, {}, NoCheckout, "git init"),
    ("inside .git", inside_git, {}, NoCheckout, "choose the folder of the checkout"),
    ("detached HEAD", detached, {}, UsageProblem, "git switch -c NAME"),
    ("no text", as_it_is, {"text": " \n"}, UsageProblem, "What is the goal?"),
    ("no check", as_it_is, {"verify": ()}, UsageProblem, "add --verify"),
    ("an empty check", as_it_is, {"verify": (" ",)}, UsageProblem, "is empty"),
    ("a missing program", as_it_is, {"verify": ("no-such-check -q",)}, UsageProblem, "no 'no-such-check' here"),
    ("no money", as_it_is, {"usd": 0.0}, UsageProblem, "--budget 0 is no limit: give a number above 0"),
    ("tokens below 0", as_it_is, {"tokens": -1}, UsageProblem, "--tokens -1 is no limit"),
    ("no calls", as_it_is, {"calls": 0}, UsageProblem, "--calls 0 is no limit"),
    ("no number of hours", as_it_is, {"hours": float("nan")}, UsageProblem, "--hours nan is no limit"),
    ("no steps", as_it_is, {"steps": 0}, UsageProblem, "--steps 0 is no limit"),
]


@pytest.mark.parametrize(("prepare", "change", "error", "says"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_a_refused_start_leaves_nothing(
    repo: Repo, tmp_path: Path, home: Path, prepare: Prepare, change: dict[str, Any], error: type[MuseError], says: str
) -> None:
    workspace = prepare(repo, tmp_path / "folder")
    before = sorted(tmp_path.rglob("*"))
    spec = GoalSpec(**{**GOOD, **change})
    with ModelServer(Steps([EDIT, DONE])) as server:
        with pytest.raises(error, match="(?s)" + says.replace("(", r"\(").replace("?", r"\?")) as caught:
            open_session(workspace, settings=settings(server.base_url), goal=spec, effects=Hurried())
        assert "\n" not in str(caught.value)
        assert server.requests == []
    assert not home.exists()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("prepare", "change", "error", "says"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_a_refused_start_in_an_open_session_sets_no_goal(
    repo: Repo, tmp_path: Path, prepare: Prepare, change: dict[str, Any], error: type[MuseError], says: str
) -> None:
    workspace = prepare(repo, tmp_path / "folder")
    with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, workspace) as session:
        with pytest.raises(error):
            session.start_goal(GoalSpec(**{**GOOD, **change}))
        assert session.goals.goals == {}
        assert server.requests == []


@pytest.mark.parametrize("place", [".", "data", ".git/musecode"])
def test_a_home_inside_the_repository_is_refused(
    repo: Repo, place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was found out only when the worktree was made, after the goal was set."""
    inside = repo.root / place
    monkeypatch.setenv("MUSECODE_HOME", str(inside))
    before = sorted(tmp_path.rglob("*"))
    spec, chosen = GoalSpec(**GOOD), settings("http://127.0.0.1:9/v1")
    with pytest.raises(UsageProblem, match="set MUSECODE_HOME to a folder outside it"):
        open_session(repo.root, settings=chosen, goal=spec, effects=Hurried())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_home_beside_the_repository_or_above_it_is_fine(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path))
    with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
        assert end(start(session)).met


@pytest.mark.parametrize("missing", ["runtime", "file"])
def test_a_local_model_that_is_not_there_is_said_before_anything_is_written(
    repo: Repo, home: Path, missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was said at the first question, when the goal was set and the checks had run."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None if missing == "runtime" else pytest)  # only looked for
    monkeypatch.setenv("MUSECODE_LOCAL_MODEL", str(tmp_path / "none.gguf"))
    says = "pip install" if missing == "runtime" else "point MUSECODE_LOCAL_MODEL at a .gguf file"
    with pytest.raises(ConfigurationError, match=says):
        open_session(repo.root, settings=Settings(api="local"), effects=Hurried())
    assert not home.exists()


def test_a_local_model_that_has_gone_is_said_when_a_goal_is_resumed(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ModelServer(Steps([EDIT, DONE])) as server:
        with session_on(server.base_url, repo.root) as session:
            assert end(start(session, steps=1)).status == "budget"
        monkeypatch.setitem(sys.modules, "xllamacpp", pytest)
        monkeypatch.setenv("MUSECODE_LOCAL_MODEL", str(tmp_path / "none.gguf"))
        with open_session(repo.root, resume="last", settings=Settings(api="local"), effects=Hurried()) as again:
            handle = again.newest_goal()
            with pytest.raises(ConfigurationError, match="MUSECODE_LOCAL_MODEL"):
                handle.resume()
            assert only(again.events(), "goal.resumed") == []
