"""Which sandbox is taken: settings, the probe, and that a sandbox that is not there is never passed over in silence."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.sandbox_bench import missing
from fixtures.session_bench import CHECK, DONE, EDIT, MODEL, Repo, only, session_on, start

from musecode_jupyter.guard.sandbox import Sandbox, choose
from musecode_jupyter.guard.sandbox.scratch import Scratch
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import ConfigurationError
from musecode_jupyter.session import Settings
from musecode_jupyter.session.doctor import examine

BROKEN = "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "home"))
    return Repo(tmp_path / "repo")


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that answers as bubblewrap does in a container without user namespaces."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "bwrap").write_text(BROKEN)
    (folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "bwrap"


def chosen(asked: str | None = None, network: str | None = None) -> Sandbox:
    return asyncio.run(choose(asked, network, LiveEffects()))


def finding() -> Any:
    return next(found for found in examine(Settings().over(os.environ)) if found.name == "sandbox")


def test_a_sandbox_that_does_not_work_is_told_with_its_reason(broken: Path, repo: Repo) -> None:
    sandbox = chosen()
    assert sandbox.name == "plain"
    assert sandbox.network == "allow"
    assert f"{broken} does not work here: bwrap: No permissions to create new namespace" in sandbox.banner
    assert "Commands run as you" in sandbox.banner
    assert finding().ok is False
    assert "No permissions" in finding().text
    with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, repo.root) as session:
        assert session.core.sandbox.banner == sandbox.banner
        assert start(session).wait(timeout=60).met
        opened = session.event(1).data
    assert opened["sandbox"].startswith("plain: ")
    assert "No permissions" in opened["sandbox"]
    assert opened["network"] == "allow"


def test_the_command_line_says_that_there_is_no_sandbox(broken: Path, repo: Repo) -> None:
    with ModelServer(Steps([EDIT, DONE])) as server:
        done = subprocess.run(
            [sys.executable, "-m", "musecode_jupyter.cli", "run", "--goal", "say right", "--verify", CHECK],
            cwd=repo.root,
            env={
                **os.environ,
                "MUSECODE_BASE_URL": server.base_url,
                "MUSECODE_MODEL": MODEL,
                "MUSECODE_APPROVALS": "allow-workspace",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].startswith(f"jupyter musecode: No sandbox ({broken} does not work here")


def test_a_demanded_sandbox_that_does_not_work_stops_everything(broken: Path, repo: Repo, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"MUSECODE_SANDBOX=bubblewrap, but .* No permissions"):
        chosen("bubblewrap")
    with (
        ModelServer(Steps([EDIT, DONE])) as server,
        pytest.raises(ConfigurationError, match="MUSECODE_SANDBOX"),
        session_on(server.base_url, repo.root, sandbox="bubblewrap"),
    ):
        pass
    assert not (tmp_path / "home" / "sessions").exists()
    assert server.requests == []


@pytest.mark.parametrize(
    ("asked", "network", "says"),
    [("docker", None, "auto, bubblewrap, plain"), ("auto", "maybe", "MUSECODE_NETWORK is allow or deny")],
)
def test_settings_that_there_are_not(asked: str, network: str | None, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        chosen(asked, network)


def test_a_readable_place_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="MUSECODE_READABLE names nowhere"):
        asyncio.run(choose(None, None, LiveEffects(), readable="/usr:nowhere"))


IGNORED = """
import asyncio, signal
from musecode_jupyter.guard.sandbox import choose
from musecode_jupyter.runtime.effects import LiveEffects
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
try:
    print(asyncio.run(choose(None, None, LiveEffects())).name)
except Exception as error:
    print(type(error).__name__, error)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
print(asyncio.run(choose(None, None, LiveEffects())).name)
"""


def test_user_code_that_ignores_sigchld_does_not_cost_the_sandbox() -> None:
    """The probe's exit status was lost, and the session went on without a sandbox."""
    problem = missing("bubblewrap")
    if problem:
        pytest.skip(problem)
    done = subprocess.run([sys.executable, "-c", IGNORED], capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("ConfigurationError SIGCHLD is ignored")
    assert second == "bubblewrap"


def test_plain_by_choice_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSECODE_SANDBOX", "plain")
    assert "No sandbox (MUSECODE_SANDBOX=plain)." in chosen("plain").banner
    assert finding().ok
    assert "No sandbox" in finding().text


def test_a_goal_is_worked_on_and_judged_in_the_sandbox(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agent's commands and verify commands both: each says which process is the first one that it sees."""
    problem = missing("bubblewrap")
    if problem:
        pytest.skip(problem)
    look = Answer("", [Call("run", {"command": "cat /proc/1/comm; git commit -q --allow-empty -m x"})])
    with (
        ModelServer(Steps([look, EDIT, DONE])) as server,
        session_on(server.base_url, repo.root, sandbox="bubblewrap") as session,
    ):
        assert start(session, "cat /proc/1/comm; grep -q right answer.txt").wait(timeout=60).met
        outputs = [event.data["output"] for event in only(session.events(), "tool.finished")]
        opened = session.event(1).data
        made = session.core.sandbox._scratch.root  # type: ignore[attr-defined]
        assert made.is_dir()
    assert opened["sandbox"] == "bubblewrap"
    assert opened["network"] == "deny"
    commands = [text for text in outputs if "exit" in text]
    assert len(commands) == 3
    assert all(text.startswith("bwrap\n") for text in commands)
    assert "git show HEAD:PATH > PATH" in commands[1]
    assert repo.branches == ["main"]
    assert not made.exists()


def test_what_a_plain_command_changes_of_the_users_repository_is_told(repo: Repo) -> None:
    before = repo.git("rev-parse", "main")
    repo.write("other.txt", "put aside\n")
    repo.git("stash")
    repo.write("other.txt", "staged\n")
    repo.git("add", "other.txt")
    repo.git("branch", "kept")
    stash, status = repo.git("rev-parse", "stash"), repo.git("status", "--porcelain")
    meddle = (
        f"git stash drop -q; git branch -D kept; git branch mine; cd {repo.root};"
        "git checkout -q -B main HEAD~0; git reset -q"
    )
    answers = [Answer("", [Call("run", {"command": meddle})]), EDIT, DONE]
    with (
        ModelServer(Steps(answers)) as server,
        session_on(server.base_url, repo.root, sandbox="plain", approvals="allow-workspace") as session,
    ):
        # Nothing lands, so that nothing but the command has changed anything.
        assert start(session, steps=1).wait(timeout=60).status == "budget"
        (touched,) = only(session.events(), "repository.touched")
        # The others say how much of the limit of one step is used.
        (notice,) = [each for each in session.take_notices() if "repository" in each]
        told = [event.data["output"] for event in only(session.events(), "tool.finished")]
    names = [change["what"] for change in touched.data["changes"]]
    assert names == [
        "refs/heads/kept",
        "refs/heads/mine",
        "stash entry 'WIP on main: " + repo.git("log", "-1", "--format=%h %s", before) + "'",
        "index",
    ]
    assert any("this changed the user's own repository: refs/heads/kept" in text for text in told)
    for change in touched.data["changes"]:
        assert change["undo"] in notice
        os.system(change["undo"])  # the command is what the user is told to type
    assert repo.git("rev-parse", "kept") == before
    assert "mine" not in repo.branches
    assert repo.git("rev-parse", "stash") == stash
    assert repo.git("status", "--porcelain") == status


def test_a_refreshed_index_is_no_change(repo: Repo, tmp_path: Path) -> None:
    """Editors run `git status`, which writes new times into the index: that is nobody's doing."""
    from musecode_jupyter.guard.sandbox import gitdirs
    from musecode_jupyter.guard.sandbox.watch import compare, snapshot

    dirs = gitdirs.find(repo.root)
    assert dirs is not None
    before = snapshot(dirs)
    os.utime(repo.root / "answer.txt", (1, 1))
    repo.git("update-index", "--refresh")
    assert snapshot(dirs).index != before.index
    assert compare(before, tmp_path / "out") == ()
    repo.git("update-index", "--chmod=+x", "answer.txt")
    (change,) = compare(before, tmp_path / "out")
    assert change.what == "index"


@pytest.mark.parametrize("packed", [False, True])
def test_head_and_refs_in_any_form_are_seen(repo: Repo, tmp_path: Path, packed: bool) -> None:
    from musecode_jupyter.guard.sandbox import gitdirs
    from musecode_jupyter.guard.sandbox.watch import compare, snapshot

    first = repo.git("rev-parse", "main")
    second = repo.commit({"more.txt": "more\n"})
    repo.git("tag", "mark")
    if packed:
        repo.git("pack-refs", "--all")
    dirs = gitdirs.find(repo.root)
    assert dirs is not None
    before = snapshot(dirs)
    repo.git("pack-refs", "--all")
    repo.git("update-ref", "refs/musecode/backup/1", first)
    assert compare(before, tmp_path / "out") == ()
    repo.git("checkout", "-q", "--detach")
    repo.git("update-ref", "refs/heads/main", first)
    repo.git("tag", "-d", "mark")
    changes = {change.what: change for change in compare(before, tmp_path / "out")}
    assert list(changes) == ["HEAD", "refs/heads/main", "refs/tags/mark"]
    for change in changes.values():
        os.system(change.undo)
    assert repo.git("rev-parse", "main", "mark", "HEAD").split() == [second] * 3
    assert repo.git("symbolic-ref", "HEAD") == "refs/heads/main"


HOLDER = """
import sys, time
from musecode_jupyter.guard.sandbox.scratch import Scratch
scratch = Scratch()
print(scratch.root, flush=True)
time.sleep(1000)
"""


def test_what_a_killed_kernel_left_is_deleted_and_a_living_ones_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        roots = [Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout]
        inner = roots[0] / "home" / "go" / "cache"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        inner.chmod(0o500)
        holders[0].kill()
        holders[0].wait()
        scratch = Scratch()
        assert scratch.root.parent == tmp_path
        assert [root.exists() for root in roots] == [False, True]
        scratch.close()
        assert os.listdir(tmp_path) == [roots[1].name]
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
