"""The command line: exit codes, JSON output, and one clear line for every kind of bad input."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixtures.model_scripts import Answer, Call, Fault, Steps
from fixtures.model_server import ModelServer
from fixtures.plan_scripts import PLANNED, Author, proposing, step
from fixtures.session_bench import CHECK, DEADLINE_S, DONE, EDIT, Held, Hurried, Repo, Signal, runs, session_on

from musecode_jupyter import cli
from musecode_jupyter.runtime import effects

ADDRESS = "http://127.0.0.1:9/v1"


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """`jupyter musecode`, in this process, with waits between attempts that pass at once."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Done:
        self._capsys.readouterr()
        try:
            code = cli.main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = self._capsys.readouterr()
        return Done(code, out, err)

    def refused(self, code: int, says: str, *arguments: str) -> str:
        """The one line on standard error of a command that fails with `code`, with `says` in it."""
        done = self(*arguments)
        lines = done.err.splitlines()
        assert done.code == code, f"{done.code}: {done.err}"
        assert len(lines) == 1, done.err
        assert lines[0].startswith("jupyter musecode: ")
        assert says in lines[0], lines[0]
        assert "Traceback" not in done.err
        return lines[0]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr(effects, "LiveEffects", Hurried)
    return Command(capsys)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


@pytest.fixture(autouse=True)
def _model(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSECODE_MODEL", "muse-spark-1.3")
    monkeypatch.setenv("MUSECODE_API", "responses")
    monkeypatch.setenv("MUSECODE_BASE_URL", ADDRESS)
    monkeypatch.setenv("MUSECODE_APPROVALS", "allow-workspace")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    with ModelServer(Steps([EDIT, DONE])) as serving:
        monkeypatch.setenv("MUSECODE_BASE_URL", serving.base_url)
        yield serving


def run(repo: Repo | Path, *more: str, verify: str = CHECK, as_json: bool = True) -> Sequence[str]:
    """Arguments of a run."""
    root = repo.root if isinstance(repo, Repo) else repo
    head = ("run", "--repo", str(root), "--goal", "say right", "--verify", verify)
    return (*head, *more, *(("--json",) if as_json else ()))


def process(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """`jupyter musecode` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-B", "-m", "musecode_jupyter.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def session_of(home: Path) -> Path:
    (folder,) = (home / "sessions").iterdir()
    return folder


class TestGround:
    def test_a_folder_without_a_repository(self, command: Command, tmp_path: Path, server: ModelServer) -> None:
        folder = tmp_path / "plain"
        folder.mkdir()
        (folder / "answer.txt").write_text("wrong\n")
        command.refused(2, "Or give --shadow: then a private repository outside the folder", *run(folder))
        done = command(*run(folder, "--shadow", as_json=False))
        assert done.code == 0
        assert f"{folder} is in no git repository: a private one outside it keeps its versions." in done.err
        assert "-wrong\n+right" in done.out
        assert {path.name: path.read_text() for path in folder.iterdir()} == {"answer.txt": "right\n"}
        done = command("worktrees", "--repo", str(folder))
        assert (done.code, done.out) == (0, "There are no worktrees of agents on this repository.\n")

    def test_uncommitted_files(self, command: Command, repo: Repo, server: ModelServer) -> None:
        command.refused(2, "--base index: it is one of head, dirty", *run(repo, "--base", "index"))
        repo.write("helper.txt", "mine\n")
        done = command(*run(repo, "--base", "dirty", as_json=False))
        assert done.code == 0
        assert "helper" not in done.out
        assert repo.git("status", "--porcelain") == "?? helper.txt"
        assert repo.git("show", "main:answer.txt") == "right"


def test_a_repository_is_opted_in_and_out_again_without_a_session(command: Command, repo: Repo, home: Path) -> None:
    here, words = ("--repo", str(repo.root)), f"{repo.root.name} may be used for training"
    assert f"To opt in: jupyter musecode tier --opt-in '{words}'" in command("tier", *here).out
    command.refused(2, f"type these words: {words}", "tier", "--opt-in", "yes", *here)
    assert "is opted in to the contributor tier" in command("tier", "--opt-in", words, *here).out
    assert not (home / "sessions").exists()
    with session_on(ADDRESS, repo.root, model="muse-spark-1.3-contributor") as session:
        assert session.tier == "contributor"
    assert "is not opted in" in command("tier", "--withdraw", *here).out
    command.refused(2, "not both", "tier", "--withdraw", "--opt-in", words, *here)


def test_roles_are_trusted_and_no_more_without_a_session(command: Command, repo: Repo, home: Path) -> None:
    role = "---\npurpose: Knows the data.\ntools: read\nwakes: mail\n---\nAnswer with the column.\n"
    here = ("--repo", str(repo.root))
    command.refused(2, "This repository brings no roles", "trust", "on", *here)
    assert command("trust", *here).out.startswith("This repository brings no roles")
    (repo.root / ".musecode" / "roles").mkdir(parents=True)
    repo.commit({".musecode/roles/librarian.md": role})
    assert "librarian: Knows the data. Tools: read. not trusted (" in command("trust", *here).out
    done = command("trust", "on", *here)
    assert (done.code, done.out.splitlines()) == (
        0,
        [
            "Trusted: librarian: Knows the data. Tools: read.",
            "Sessions that are opened or resumed from now on use them.",
        ],
    )
    assert command("trust", "on", *here).code == 0, "twice is once"
    assert not (home / "sessions").exists(), "no session is needed for that"
    with session_on(ADDRESS, repo.root, crew="on") as session:
        assert list(session.read(lambda core: core.agents.agents)) == ["lead", "explorer", "librarian", "verifier"]
        assert len(session.rules.held) == 1
        session.allow("land on main", scope="workspace")
    repo.commit({".musecode/roles/librarian.md": role.replace("column", "row")})
    assert "changed since you trusted it" in command("trust", *here).out
    assert command("trust", "off", *here).out == "Not trusted any more: librarian.\n"
    assert command("trust", "off", *here).out == "No role of this repository is trusted.\n"
    with session_on(ADDRESS, repo.root, crew="on") as session:
        assert list(session.read(lambda core: core.agents.agents)) == ["lead", "explorer", "verifier"]
        assert [each.name for each in session.rules.held.values()] == ["land on main"]
    command.refused(2, "There is no folder", "trust", "--repo", str(repo.root / "nowhere"))
    assert command("trust", "maybe", *here).code == 2


class TestExitCodes:
    def test_met_is_0_and_shows_the_landed_diff(self, command: Command, repo: Repo, server: ModelServer) -> None:
        done = command(*run(repo, as_json=False))
        assert done.code == 0
        assert "Goal met: say right" in done.out
        assert "-wrong\n+right" in done.out
        assert "2 model calls" in done.out
        assert repo.read("answer.txt") == "right\n"

    def test_an_error_is_1(self, command: Command, repo: Repo, server: ModelServer) -> None:
        server.script = Steps([Answer(fault=Fault("status", status=400, message="no such thing"))])
        line = command.refused(1, "no such thing", *run(repo))
        assert "jupyter musecode resume" in line

    @pytest.mark.parametrize(
        "wrong",
        [
            ("run",),
            ("run", "--goal", "x", "--verify", "y", "--no-such-option"),
            ("no-such-command",),
            ("run", "--goal", "x", "--verify", "y", "--tokens", "many"),
        ],
    )
    def test_wrong_usage_is_2_and_names_what_is_wrong(self, command: Command, wrong: Sequence[str]) -> None:
        done = command(*wrong)
        assert done.code == 2
        assert "error: " in done.err.splitlines()[-1]

    @pytest.mark.parametrize(
        ("option", "value", "says"),
        [
            ("--budget", "plenty", "write for example --budget 5usd"),
            ("--budget", "0", "--budget 0 is no limit"),
            ("--hours", "nan", "--hours nan is no limit"),
            ("--steps", "-1", "--steps -1 is no limit"),
        ],
    )
    def test_a_limit_that_is_none_is_2(self, command: Command, repo: Repo, option: str, value: str, says: str) -> None:
        command.refused(2, says, *run(repo, option, value))

    def test_stopped_short_is_3_and_the_line_says_how_to_give_it_more(
        self, command: Command, repo: Repo, server: ModelServer, home: Path
    ) -> None:
        line = command.refused(3, "1 of 1 model calls are used", *run(repo, "--steps", "1"))
        assert "(budget)" in line
        told = line.split("`")[1].split()
        assert told == ["jupyter", "musecode", "resume", session_of(home).name, "--steps", "2"]
        assert command(*told[2:], "--json").code == 0
        assert repo.read("answer.txt") == "right\n"

    @pytest.mark.parametrize(
        ("option", "value", "says"),
        [
            ("--budget", "plenty", "write for example --budget 5usd"),
            ("--tokens", "0", "--tokens 0 is no limit"),
            ("--steps", "1", "--steps 1 is used up already (1 of 1 model calls)"),
        ],
    )
    def test_a_resume_with_a_limit_that_gives_nothing_is_2(
        self, command: Command, repo: Repo, server: ModelServer, home: Path, option: str, value: str, says: str
    ) -> None:
        assert command(*run(repo, "--steps", "1")).code == 3
        name = session_of(home).name
        done = command("resume", name, option, value, "--json")
        assert (done.code, len(done.err.splitlines())) == (2, 1)
        assert says in done.err
        assert not any(event["kind"] in {"goal.edited", "goal.resumed"} for event in done.events)

    def test_a_resume_that_has_nothing_to_give_more_to_is_2(
        self, command: Command, repo: Repo, server: ModelServer, home: Path
    ) -> None:
        assert command(*run(repo)).code == 0
        done = command("resume", session_of(home).name, "--steps", "99", "--json")
        assert done.code == 2
        assert "no goal to which more could be given" in done.err

    @pytest.mark.parametrize(("steps", "approvals", "status"), [("1", "deny", "budget"), ("9", "deny", "blocked")])
    def test_the_work_so_far_is_shown_where_nothing_landed(
        self, command: Command, repo: Repo, server: ModelServer, steps: str, approvals: str, status: str
    ) -> None:
        done = command(*run(repo, "--steps", steps, "--approvals", approvals, as_json=False))
        assert f"Goal not met ({status}): say right" in done.out
        assert "Not landed; the work so far:\n\ndiff --git" in done.out
        assert "-wrong\n+right" in done.out

    def test_where_the_checks_run_is_said_first_in_a_subfolder(
        self, command: Command, repo: Repo, server: ModelServer
    ) -> None:
        (repo.root / "sub").mkdir()
        repo.commit({"sub/inner.txt": "inner\n"})
        done = command(*run(repo.root / "sub", as_json=False))
        assert done.code == 0
        says = f"Work and verify commands run in {repo.root}, the root of the repository."
        assert done.err.splitlines()[0] == says
        repo.commit({"answer.txt": "wrong\n"})
        assert says not in command(*run(repo, as_json=False)).err

    def test_a_landing_beside_the_checkout_is_told(self, command: Command, repo: Repo, server: ModelServer) -> None:
        assert command(*run(repo, "--steps", "1")).code == 3
        (row,) = json.loads(command("sessions", "--json").out)
        repo.git("checkout", "--quiet", "-b", "mine")
        done = command("resume", row["id"], "--steps", "9")
        assert done.code == 0
        assert "HEAD is on mine now; the work still lands on main." in done.err
        assert "main is checked out nowhere" in done.out

    def test_blocked_is_4(
        self, command: Command, repo: Repo, server: ModelServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("MUSECODE_APPROVALS")
        command.refused(4, "denied (approvals mode deny)", *run(repo))
        assert repo.read("answer.txt") == "wrong\n"

    def test_an_interrupt_is_3_and_says_how_to_go_on(
        self, command: Command, repo: Repo, server: ModelServer, home: Path
    ) -> None:
        script = Held([EDIT, EDIT, DONE], hold=0)
        server.script = script
        running = process(*run(repo, "--approvals", "allow-workspace"))
        script.wait()
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=DEADLINE_S)
        script.release()
        assert running.returncode == 3, err
        folder = session_of(home)
        again = f"jupyter musecode resume {folder.name} --approvals allow-workspace"
        assert err == f"Interrupted. `{again}` goes on.\n"
        assert command("resume", folder.name, "--json").code == 0
        assert repo.read("answer.txt") == "right\n"

    def test_an_interrupt_before_the_session_is_open_is_3_and_one_line(
        self, repo: Repo, home: Path, tmp_path: Path
    ) -> None:
        """Ctrl-C in the first second once ended in a traceback."""
        signal_of_git = Signal(tmp_path / "git-runs")
        slow = tmp_path / "slow"
        slow.mkdir()
        (slow / "git").write_text(f"#!/bin/sh\necho $$ > '{signal_of_git.path}'\nexec sleep {DEADLINE_S:g}\n")
        (slow / "git").chmod(0o755)
        running = process(*run(repo), env={**os.environ, "PATH": f"{slow}:{os.environ['PATH']}"})
        (git,) = signal_of_git.read()
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=DEADLINE_S)
        assert running.returncode == 3, err
        assert err == "jupyter musecode: interrupted. `jupyter musecode sessions` lists what can go on.\n"
        assert not runs(git)
        assert not home.exists()


class TestJson:
    def test_events_of_a_run_are_lines_of_json_in_order(
        self, command: Command, repo: Repo, server: ModelServer
    ) -> None:
        done = command(*run(repo))
        assert (done.code, done.err) == (0, "")
        assert [event["seq"] for event in done.events] == list(range(1, len(done.events) + 1))
        met = [event for event in done.events if event["kind"] == "goal.met"]
        assert len(met) == 1
        assert met[0]["data"]["commit"] == repo.git("rev-parse", "HEAD")
        assert {"ts", "gen", "agent", "turn", "cause", "label"} <= met[0].keys()

    def test_replay_and_fork(self, command: Command, repo: Repo, server: ModelServer, tmp_path: Path) -> None:
        events = command(*run(repo)).events
        changed = next(e["seq"] for e in events if e["kind"] == "file.changed")
        (row,) = json.loads(command("sessions", "--json").out)
        assert (row["parent"], row["rewound_to"]) == (None, None)
        for at, text in ((changed - 1, "wrong\n"), (changed, "right\n")):
            done = command("replay", row["id"], "--at", str(at), "--into", str(tmp_path / str(at)), "--json")
            told = json.loads(done.out)
            assert (told["at"], told["files"], told["worktrees"][0]["exact"]) == (at, 2, True)
            assert (tmp_path / str(at) / "answer.txt").read_text() == text
            assert (tmp_path / str(at) / "other.txt").read_text() == "other\n"
        told = command("replay", row["id"], "--at", str(changed)).out
        assert re.fullmatch(
            rf"worktree \d+ \(the lead's, goal \d+\) at event {changed}: commit \w{{12}} and 1 files .*\n", told
        )
        assert "No agent has a worktree at event 1." in command("replay", row["id"], "--at", "1").out
        into = ("--into", str(tmp_path / "x"))
        command.refused(2, "not there yet, or an empty one", "replay", row["id"], "--at", "9", "--into", str(tmp_path))
        command.refused(2, "has no event 9999", "replay", row["id"], "--at", "9999", *into)
        command.refused(2, "No agent has a worktree at event 1", "replay", row["id"], "--at", "1", *into)
        command.refused(2, "no worktree 77", "replay", row["id"], "--at", "9", "--worktree", "77", *into)
        assert not (tmp_path / "x").exists()

        fork = json.loads(command("fork", row["id"], str(changed), "--json").out)
        assert (fork["parent"], fork["at"]) == (row["id"], changed)
        listed = {each["id"]: each for each in json.loads(command("sessions", "--json").out)}
        assert (listed[fork["session"]]["parent"], listed[fork["session"]]["parent_seq"]) == (row["id"], changed)
        assert f"(fork of {row['id']} at {changed})" in command("sessions").out
        assert json.loads(command("verify", fork["session"], "--json").out)["ok"]
        command.refused(1, "has no event 9999", "fork", row["id"], "9999")

    def test_sessions_and_verify(self, command: Command, repo: Repo, server: ModelServer) -> None:
        assert json.loads(command("sessions", "--json").out) == []
        assert command(*run(repo)).code == 0
        (row,) = json.loads(command("sessions", "--json").out)
        assert (row["workspace"], row["state"]) == (str(repo.root), "closed")
        assert row["id"] in command("sessions").out
        proof = json.loads(command("verify", row["id"][:12], "--json").out)
        assert proof["ok"] is True
        assert proof["problem"] is None
        assert (proof["session"], proof["events"], proof["prompts"]) == (row["id"], row["events"], 2)
        assert "2 prompts rebuilt byte for byte" in command("verify", row["id"]).out

    def test_doctor(self, command: Command, server: ModelServer) -> None:
        done = command("doctor", "--json")
        found = {finding["name"]: finding for finding in json.loads(done.out)}
        assert found["git"]["ok"]
        assert found["model"]["ok"]
        assert server.base_url in found["model"]["text"]
        assert done.code == 0
        assert server.requests == []

    def test_doctor_says_what_is_missing(self, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MUSECODE_MODEL", "unheard-of")
        monkeypatch.setenv("MUSECODE_APPROVALS", "maybe")
        monkeypatch.setenv("PATH", "/nonexistent")
        done = command("doctor")
        assert done.code == 1
        missing = [line for line in done.out.splitlines() if line.startswith("MISSING")]
        assert [line.split()[1] for line in missing] == ["git:", "model:", "approvals:"]
        assert "MUSECODE_PRICE" in missing[1]

    @pytest.mark.parametrize("place", ["file/home", "file"])
    def test_doctor_finds_a_home_that_no_run_could_use(
        self, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
    ) -> None:
        """Root may write everywhere by the rights, and was told that all was well."""
        (tmp_path / "file").write_text("no folder")
        monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / place))
        done = command("doctor")
        assert done.code == 1
        (missing,) = [line for line in done.out.splitlines() if line.startswith("MISSING")]
        assert "set MUSECODE_HOME" in missing

    def test_doctor_leaves_nothing_behind(self, command: Command, home: Path) -> None:
        home.mkdir()
        assert command("doctor").code == 0
        assert list(home.iterdir()) == []

    def test_what_a_model_writes_gives_the_terminal_no_orders(
        self, command: Command, repo: Repo, server: ModelServer
    ) -> None:
        """Escape sequences in calls, file names and answers once reached the terminal as they were."""
        orders = "\x1b]52;c;cm0=\x07\x1b[8m\u202e\x9b2J"
        call = Call("read", {"path": f"no{orders}"})
        edit = Call("edit", {"path": "answer.txt", "old": "wrong", "new": f"right{orders}"})
        server.script = Steps([Answer(orders, [call]), Answer(orders, [edit]), Answer(f"Done{orders}")])
        done = command(*run(repo, as_json=False))
        assert done.code == 0
        assert repo.read("answer.txt") == f"right{orders}\n"
        server.script = Steps([Answer(fault=Fault("status", status=400, message=f"no{orders}"))])
        failed = command(*run(repo, verify="grep -q other answer.txt", as_json=False))
        assert failed.code == 1
        spelt = "\\x1b]52;c;cm0=\\x07\\x1b[8m\\u202e\\x9b2J"
        assert f"+right{spelt}" in done.out
        assert f"read no{spelt}" in done.err
        assert f"no{spelt}" in failed.err.splitlines()[-3]
        for text in (done.out, done.err, failed.out, failed.err):
            assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)


class TestBadRepository:
    def test_no_such_folder(self, command: Command, tmp_path: Path) -> None:
        command.refused(2, "name the repository with --repo", *run(tmp_path / "none"))

    @pytest.mark.parametrize("name", ["~nobody-at-all/x", "x" * 5000, "\0"])
    def test_a_name_that_no_folder_can_have(self, command: Command, name: str) -> None:
        command.refused(2, "name the repository with --repo", *run(Path(name)))

    def test_a_home_of_nobody(self, command: Command, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MUSECODE_HOME", "~nobody-at-all/home")
        command.refused(2, "set MUSECODE_HOME", *run(repo))
        command.refused(2, "set MUSECODE_HOME", "sessions")

    def test_no_git_repository(self, command: Command, tmp_path: Path) -> None:
        (tmp_path / "plain").mkdir()
        command.refused(2, "git init", *run(tmp_path / "plain"))

    def test_no_commit_yet(self, command: Command, tmp_path: Path) -> None:
        subprocess.run(["git", "init", "--quiet", tmp_path / "unborn"], check=True)
        command.refused(2, "make a first commit", *run(tmp_path / "unborn"))

    def test_a_bare_repository(self, command: Command, repo: Repo, tmp_path: Path) -> None:
        repo.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare"))
        command.refused(2, "clone it and work in the clone", *run(tmp_path / "bare"))

    def test_a_detached_head(self, command: Command, repo: Repo) -> None:
        repo.git("checkout", "--quiet", "--detach")
        command.refused(2, "git switch -c NAME", *run(repo))

    def test_a_home_inside_the_repository(self, command: Command, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MUSECODE_HOME", str(repo.root / "data"))
        command.refused(2, "set MUSECODE_HOME to a folder outside it", *run(repo))
        assert not (repo.root / "data").exists()

    def test_an_empty_goal(self, command: Command, repo: Repo) -> None:
        command.refused(2, "What is the goal?", "run", "--repo", str(repo.root), "--goal", " ", "--verify", CHECK)

    def test_no_git(self, command: Command, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nonexistent")
        command.refused(1, "install it, then start again", *run(repo))

    def test_a_verify_command_that_does_not_exist(self, command: Command, repo: Repo) -> None:
        command.refused(2, "there is no 'no-such-check' here", *run(repo, verify="no-such-check -q"))
        command.refused(2, "cannot be parsed", *run(repo, verify="grep 'right"))
        command.refused(2, "is empty", *run(repo, verify=" "))

    def test_a_verify_command_that_is_green_already(self, command: Command, repo: Repo) -> None:
        command.refused(4, "already green", *run(repo, verify="grep -q wrong answer.txt"))


class TestBadModel:
    def test_no_key(self, command: Command, repo: Repo, server: ModelServer) -> None:
        server.key = "the-right-key-01"
        command.refused(1, "wants a key (401 invalid_api_key): set MUSECODE_API_KEY", *run(repo))

    def test_a_refused_key(
        self, command: Command, repo: Repo, server: ModelServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.key = "the-right-key-01"
        monkeypatch.setenv("MUSECODE_API_KEY", "a-wrong-key-0001")
        line = command.refused(1, "refused the key (401 invalid_api_key): set MUSECODE_API_KEY", *run(repo))
        assert "a-wrong-key-0001" not in line

    def test_a_key_without_its_address(self, command: Command, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MUSECODE_BASE_URL")
        command.refused(2, "set MODEL_API_KEY", *run(repo))

    def test_an_endpoint_that_is_down(self, command: Command, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            monkeypatch.setenv("MUSECODE_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/v1")
            command.refused(1, "check that the server runs", *run(repo))
            repo.commit({"more.txt": ""})
            told = command(*run(repo, as_json=False))
        # Whoever looks on sees each attempt when it is made, not one line after the last.
        attempts = [line for line in told.err.splitlines() if "model.retried" in line]
        assert [line.split("attempt ")[1].split()[0] for line in attempts] == [str(n) for n in range(1, 8)]
        assert all("cannot reach http://127.0.0.1" in line for line in attempts)

    def test_a_model_that_the_server_does_not_know(
        self, command: Command, repo: Repo, server: ModelServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MUSECODE_PRICE", "1/1/1")
        command.refused(1, "choose another with MUSECODE_MODEL", *run(repo, "--model", "unheard-of"))

    def test_a_model_whose_price_is_unknown(self, command: Command, repo: Repo) -> None:
        """--model was overruled by MUSECODE_MODEL."""
        command.refused(2, 'set MUSECODE_PRICE="in/cached/out"', *run(repo, "--model", "unheard-of"))

    def test_a_price_that_cannot_be_read(self, command: Command, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MUSECODE_PRICE", "cheap")
        command.refused(2, "MUSECODE_PRICE='cheap' cannot be read", *run(repo))

    def test_a_contributor_id(self, command: Command, repo: Repo, home: Path) -> None:
        command.refused(2, "may be used for training", *run(repo, "--model", "muse-spark-1.3-contributor"))
        assert not home.exists()

    def test_an_unknown_approvals_mode(self, command: Command, repo: Repo) -> None:
        command.refused(2, "is one of ask, deny, allow-workspace", *run(repo, "--approvals", "maybe"))

    def test_a_local_model_file_that_is_missing(
        self, command: Command, repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path
    ) -> None:
        monkeypatch.delenv("MUSECODE_BASE_URL")
        monkeypatch.delenv("MUSECODE_MODEL")
        monkeypatch.setenv("MUSECODE_API", "local")
        monkeypatch.setitem(sys.modules, "xllamacpp", pytest)  # a stand-in that is only looked for
        monkeypatch.setenv("MUSECODE_LOCAL_MODEL", str(tmp_path / "none.gguf"))
        command.refused(2, "point MUSECODE_LOCAL_MODEL at a .gguf file", *run(repo))
        assert not home.exists()

    def test_the_local_extra_is_missing(self, command: Command, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MUSECODE_BASE_URL")
        monkeypatch.delenv("MUSECODE_MODEL")
        monkeypatch.setenv("MUSECODE_API", "local")
        monkeypatch.setitem(sys.modules, "xllamacpp", None)
        command.refused(2, "pip install 'musecode-jupyter[local]'", *run(repo))


class TestBadLog:
    def test_a_home_that_cannot_be_written(
        self, command: Command, repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("no folder")
        monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "file" / "home"))
        command.refused(2, "set MUSECODE_HOME", *run(repo))

    def test_a_disk_that_is_full_ends_the_run_and_what_was_written_holds(
        self, command: Command, repo: Repo, server: ModelServer, home: Path
    ) -> None:
        def small_files() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, 16_000))

        full = process(*run(repo), preexec_fn=small_files)
        out, err = full.communicate(timeout=DEADLINE_S)
        assert full.returncode == 1, err
        assert "Traceback" not in err
        assert len(err.splitlines()) == 1, err
        assert "free some space" in err
        folder = session_of(home)
        acknowledged = [json.loads(line)["seq"] for line in out.splitlines()]
        proof = json.loads(command("verify", folder.name, "--json").out)
        assert proof["ok"], proof
        assert proof["events"] >= acknowledged[-1]
        assert command("resume", folder.name, "--json").code == 0
        assert repo.read("answer.txt") == "right\n"

    def test_a_session_that_another_process_has_open(self, command: Command, repo: Repo, server: ModelServer) -> None:
        with session_on(server.base_url, repo.root) as session:
            second = process("resume", session.id, "--json")
            out, err = second.communicate(timeout=DEADLINE_S)
            (row,) = json.loads(command("sessions", "--json").out)
            assert row["state"] == "live"
        assert second.returncode == 1
        assert out == ""
        assert len(err.splitlines()) == 1
        assert str(os.getpid()) in err

    def test_a_damaged_journal(self, command: Command, repo: Repo, server: ModelServer, home: Path) -> None:
        assert command(*run(repo)).code == 0
        folder = session_of(home)
        journal = folder / "journal" / "000001.jsonl"
        lines = journal.read_bytes().split(b"\n")
        lines[9] = lines[9].replace(b'"agent":"', b'"agent":"x', 1)
        journal.write_bytes(b"\n".join(lines))
        line = command.refused(1, f"jupyter musecode verify {folder.name}", "resume", folder.name, "--json")
        assert "000001.jsonl" in line
        shown = command("verify", folder.name, "--json")
        assert shown.code == 1
        assert json.loads(shown.out)["seq"] == 10
        told = command("verify", folder.name)
        assert (told.code, told.out) == (1, "")
        assert "NOT verified" in told.err
        assert "000001.jsonl" in told.err
        assert "event 10" in told.err
        (row,) = json.loads(command("sessions", "--json").out)
        assert row["id"] == folder.name

    def test_a_journal_whose_first_line_is_gone_is_listed_as_damaged(
        self, command: Command, repo: Repo, server: ModelServer, home: Path
    ) -> None:
        assert command(*run(repo)).code == 0
        journal = session_of(home) / "journal" / "000001.jsonl"
        journal.write_bytes(b"\0" + journal.read_bytes()[1:])
        (row,) = json.loads(command("sessions", "--json").out)
        assert row["state"] == "damaged"
        command.refused(1, "000001.jsonl", "resume", row["id"], "--json")

    @pytest.mark.parametrize("left", [b"", b'{"v":1,"seq":1,"ki'])
    def test_a_session_that_was_killed_before_its_first_event(
        self, command: Command, repo: Repo, server: ModelServer, home: Path, left: bytes
    ) -> None:
        """It once said that there is no event 1."""
        command(*run(repo))
        folder = session_of(home)
        (journal,) = (folder / "journal").iterdir()
        journal.write_bytes(left)
        (listed,) = json.loads(command("sessions", "--json").out)
        assert (listed["state"], listed["events"]) == ("damaged" if left else "empty", 0)
        command.refused(2, "nothing to resume. Start anew", "resume", folder.name)

    def test_no_such_session(self, command: Command) -> None:
        command.refused(2, "`jupyter musecode sessions` lists them", "resume", "20260101")
        command.refused(2, "`jupyter musecode sessions` lists them", "verify", "20260101")

    def test_a_session_whose_repository_is_gone(
        self, command: Command, repo: Repo, server: ModelServer, home: Path
    ) -> None:
        assert command(*run(repo, "--steps", "1")).code == 3
        shutil.rmtree(repo.root)
        command.refused(2, "is not there any more", "resume", session_of(home).name, "--json")


def test_a_plan_is_printed_and_nothing_approved(repo: Repo, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSECODE_APPROVALS", "deny")
    repo.commit({"one.txt": "wrong\n"})
    with ModelServer(Author([proposing(step("one")), PLANNED])) as server:
        monkeypatch.setenv("MUSECODE_BASE_URL", server.base_url)
        done = command("plan", "--goal", "mend it", "--repo", str(repo.root), "--allow", "grep -q", "--json")
        told = json.loads(done.out)
        assert (done.code, told["status"], told["version"]) == (0, "proposed", 1)
        assert told["document"]["steps"][0]["trials"][0]["ended"] == "fails"
        assert sorted(path.name for path in Path(told["files"]).iterdir()) == [
            f"{told['plan']}-v1.json",
            f"{told['plan']}-v1.md",
        ]
        done = command("plan", "--goal", "mend it", "--repo", str(repo.root))
        assert (done.code, done.out.splitlines()[0][:6]) == (0, "# Plan")
        assert "The commands were not run: approvals mode deny" in done.out
        command.refused(2, "What is to be planned?", "plan", "--goal", " ", "--repo", str(repo.root))
        command.refused(2, "There is no folder", "plan", "--goal", "x", "--repo", str(repo.root / "nowhere"))
    assert repo.git("status", "--porcelain") == ""
