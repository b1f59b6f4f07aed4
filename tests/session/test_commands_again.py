"""The fourth check of verify: the code, run again on a journal, must issue its commands; what was changed is named."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fixtures.crew_scripts import Crew, edit
from fixtures.make_repo import make_repo
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer, RepairModel, load_repairs
from fixtures.session_bench import DONE, EDIT, Repo, end, session_on, start

from musecode_jupyter.agents.landing.state import MergesState
from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import GENESIS, Event, chain
from musecode_jupyter.session import GoalSpec, Settings, open_session
from musecode_jupyter.session.replay import prove
from musecode_jupyter.session.rerun.log import RerunLog
from musecode_jupyter.session.rerun.record import Stretch
from musecode_jupyter.session.rerun.run import check_commands

Records = list[dict[str, Any]]
NAMES = ("one", "two", "three")


def forge(folder: Path, change: Callable[[Records], None]) -> None:
    """Change the records of a session, and repair chain and numbers, as whoever wants to deceive would."""
    (segment,) = (folder / "journal").iterdir()
    records = [json.loads(line) for line in segment.read_bytes().splitlines()]
    change(records)
    h, lines = GENESIS, []
    for number, record in enumerate(records, 1):
        body = json.dumps({**record, "seq": number, "h": None}, separators=(",", ":")).encode("ascii")
        body = body.removesuffix(b',"h":null}')
        h = chain(h, body)
        lines.append(body + b',"h":"' + h.encode("ascii") + b'"}\n')
    segment.write_bytes(b"".join(lines))


@pytest.fixture(scope="module")
def goal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Folders of sessions in which a goal was met, by how the agent works; each is made once."""
    made: dict[str, Path] = {}
    monkeypatch = pytest.MonkeyPatch()

    def session(kind: str) -> Path:
        if kind not in made:
            # Their checks start pytest again and again: without what the environment of these tests plugs in.
            monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            tmp_path = tmp_path_factory.mktemp(kind)
            made[kind] = crew(tmp_path) if kind == "crew" else repair(tmp_path, kind)
        return made[kind]

    yield session
    monkeypatch.undo()


def repair(tmp_path: Path, profile: str) -> Path:
    with ModelServer(RepairModel(load_repairs("tensor"))) as server:
        settings = Settings(
            home=tmp_path / "home",
            base_url=server.base_url,
            api="chat",
            profile=profile,
            model="muse-spark-1.3",
            approvals="allow-workspace",
        )
        commands = ("python -m pytest -q", "test -d layout")
        with open_session(make_repo("tensor", tmp_path / "repo"), settings=settings) as session:
            assert session.start_goal(GoalSpec("make the tests pass", commands)).wait().met
    return session.folder


def crew(tmp_path: Path) -> Path:
    repo = Repo(tmp_path / "repo")
    repo.commit({f"{name}.txt": "first\nwrong\nlast\n" for name in NAMES})
    tasks = [
        {"name": name, "goal": f"Mend {name}.", "accept": [f"grep -q right {name}.txt"], "writes": [f"{name}.txt"]}
        for name in NAMES
    ]
    mend = {name: [[edit(f"{name}.txt", "wrong", "right")]] for name in NAMES}
    verify = tuple(f"grep -q right {name}.txt" for name in NAMES)
    with (
        ModelServer(Crew(mend)) as server,
        session_on(server.base_url, repo.root, home=tmp_path / "home") as session,
    ):
        assert end(session.start_goal(GoalSpec("mend all", verify, workers=3, tasks=parse_tasks(tasks)))).met
    return session.folder


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


@pytest.mark.parametrize("kind", ["driver", "guided", "crew"])
def test_every_command_is_issued_again(goal: Callable[[str], Path], kind: str) -> None:
    folder = goal(kind)
    proof = prove(folder)
    (segment,) = (folder / "journal").iterdir()
    records = [json.loads(line) for line in segment.read_bytes().splitlines()]
    asked = {"tool.requested", "model.requested", "agent.view"}
    assert proof.problem is None
    assert not proof.unchecked
    assert proof.commands == sum(record["kind"] in asked for record in records) > 3


def calls(records: Records, purpose: str | None = None) -> list[int]:
    """Positions of the calls of tools, of one purpose or by models."""
    return [
        at
        for at, record in enumerate(records)
        if record["kind"] == "tool.requested"
        and (record["data"]["purpose"] == purpose if purpose else record["data"]["origin"] == "model")
    ]


def swap(records: Records, a: int, b: int) -> None:
    records[a]["data"], records[b]["data"] = records[b]["data"], records[a]["data"]


@pytest.mark.parametrize("kind", ["driver", "crew"])
def test_a_changed_argument_is_named(goal: Callable[[str], Path], kind: str, tmp_path: Path) -> None:
    folder = copied(goal(kind), tmp_path / "forged")
    at: list[int] = []

    def change(records: Records) -> None:
        at.append(calls(records)[-1])
        arguments = records[at[0]]["data"]["arguments"]
        name = "path" if "path" in arguments else "command"
        arguments[name] = "elsewhere.py"

    forge(folder, change)
    problem = again(folder)
    assert f"event {at[0] + 1} (tool.requested), field data.arguments." in problem
    assert "'elsewhere.py'" in problem


@pytest.mark.parametrize(("kind", "purpose"), [("driver", "baseline"), ("driver", "judge"), ("crew", "judge")])
def test_swapped_calls_of_the_harness_are_named(
    goal: Callable[[str], Path], kind: str, purpose: str, tmp_path: Path
) -> None:
    folder = copied(goal(kind), tmp_path / "forged")
    at: list[int] = []

    def change(records: Records) -> None:
        at.extend(calls(records, purpose))
        swap(records, at[0], at[1])

    forge(folder, change)
    assert f"event {at[0] + 1} (tool.requested), field data.arguments.command" in again(folder)


def test_swapped_calls_of_a_model_are_named(goal: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(goal("driver"), tmp_path / "forged")
    at: list[int] = []

    def change(records: Records) -> None:
        at.extend(calls(records)[:2])
        swap(records, at[0], at[1])

    forge(folder, change)
    assert f"event {at[0] + 1} (tool.requested), field data." in again(folder)


def test_a_step_of_the_guided_profile_that_was_changed_is_named(goal: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied(goal("guided"), tmp_path / "forged")
    at: list[int] = []

    def change(records: Records) -> None:
        at.extend(calls(records, "try"))
        records[at[0]]["data"]["arguments"]["new"] += " "

    forge(folder, change)
    assert f"event {at[0] + 1} (tool.requested), field data.arguments.new" in again(folder)


def test_a_verdict_that_was_changed_is_named(goal: Callable[[str], Path], tmp_path: Path) -> None:
    """The harness says that a goal is met; a journal that says so of a check that failed does not stand."""
    folder = copied(goal("driver"), tmp_path / "forged")

    def change(records: Records) -> None:
        last = max(at for at in calls(records, "judge"))
        finished = next(r for r in records if r["kind"] == "tool.finished" and r["data"]["call"] == last + 1)
        finished["data"].update(ok=False, exit=1)

    forge(folder, change)
    # A failed check leads to other questions and another verdict than those that stand there.
    assert re.search(r"field data.question: recorded '\w+', now 'Git.is_ancestor'", again(folder))


def again(folder: Path) -> str:
    """The problem that the fourth check finds; the digests of the fold are not what is tested here."""
    from musecode_jupyter.log import EventLog
    from musecode_jupyter.session.rerun.run import check_commands

    problem = check_commands(EventLog.read(folder)).problem
    assert problem is not None
    return problem


def test_another_clock_seed_locale_and_environment_change_nothing(goal: Callable[[str], Path]) -> None:
    """The whole of verify, in processes that differ in all that a fold or a prompt must not look at."""
    folder = goal("driver")
    program = "import sys; from musecode_jupyter.cli import main; sys.exit(main(sys.argv[1:]))"
    said = set()
    for more in (
        {"PYTHONHASHSEED": "1", "TZ": "Pacific/Apia", "LC_ALL": "C", "HOME": "/nowhere"},
        {"PYTHONHASHSEED": "4242", "TZ": "America/Lima", "LC_ALL": "C.UTF-8", "MUSECODE_MODEL": "other"},
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, "verify", str(folder), "--json"],
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said.add(done.stdout)
    assert len(said) == 1


def test_what_depends_on_more_than_the_log_is_caught(
    goal: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock in a call, a clock in a prompt: each is put into the code, and named."""
    from musecode_jupyter.agents import driver

    folder = goal("driver")
    formed = driver.FormedCall

    def with_a_clock(name: str, arguments: str, *more: Any) -> Any:
        given = {key: f"{value} {os.times().elapsed}" for key, value in json.loads(arguments).items()}
        return formed(name, json.dumps(given), *more)

    monkeypatch.setattr(driver, "FormedCall", with_a_clock)
    assert "(tool.requested), field data.arguments.command: recorded 'python -m pytest -q', now" in again(folder)
    monkeypatch.undo()

    built = driver.build_request

    def dated(*args: Any, **kwargs: Any) -> Any:
        request = built(*args, **kwargs)
        return request.model_copy(update={"instructions": f"{request.instructions} It is {os.times().elapsed}."})

    monkeypatch.setattr(driver, "build_request", dated)
    assert "(model.requested), field data.digest" in again(folder)


def test_a_session_that_ends_before_the_reads_of_an_answer_is_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads are made side by side: that the record ends there reached `verify` as a group of errors."""
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "home"))
    repo = Repo(tmp_path / "repo")
    script = Steps([Answer("", [Call("read", {"path": "answer.txt"})]), EDIT, DONE])
    with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
        assert end(start(session)).met
    (segment,) = (session.folder / "journal").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines, 1) if b'"kind":"model.completed"' in line)
    for last in range(first, first + 5):
        segment.write_bytes(b"".join(lines[:last]))
        proof = prove(session.folder)
        assert proof.ok, (last, proof.problem)


def test_a_record_that_ends_before_any_worktree_is_proved_also_in_another_place(
    goal: Callable[[str], Path], tmp_path: Path
) -> None:
    """Where the worktrees were was taken from where the session lies now."""
    folder = copied(goal("crew"), tmp_path / "sessions" / "moved")
    (segment,) = (folder / "journal").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines, 1) if b'"kind":"tool.requested"' in line)
    segment.write_bytes(b"".join(lines[:first]))
    proof = check_commands(EventLog.read(folder))
    assert (proof.problem, proof.commands, proof.unchecked) == (None, 1, "")


def test_a_record_that_ends_where_a_worker_was_stopped_is_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What became of the stopped worker's task, or what came after that, was not recorded; more of the other was."""
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "home"))
    repo = Repo(tmp_path / "repo")
    repo.commit({"one.txt": "wrong\n", "two.txt": "wrong\n"})
    names = ("one", "two")
    checks = tuple(f"grep -q right {name}.txt" for name in names)
    graph = [
        {"name": name, "goal": "Mend.", "accept": [check], "writes": [f"{name}.txt"]}
        for name, check in zip(names, checks, strict=True)
    ]
    stopped = threading.Event()

    def stop() -> None:
        leased = {e.data["text"][:8]: e.data["agent"] for e in session.events() if e.kind == "task.leased"}
        session.stop(leased["Task two"])
        stopped.set()

    # The first edit is of a file that the task did not name.
    play = {"one": [[edit("other.txt", "other", "more"), edit("one.txt", "wrong", "right")]], "two": [[DONE]]}
    deeds = {("two", 0, 0): lambda: stopped.wait(60), ("one", 0, 1): stop}
    with ModelServer(Crew(play, deeds=deeds)) as server, session_on(server.base_url, repo.root) as session:
        end(session.start_goal(GoalSpec("mend both", checks, workers=2, tasks=parse_tasks(graph))))

    def cut(records: Records, kept: int) -> None:
        at = next(n for n, each in enumerate(records) if each["kind"] == "user.interrupt") + 1
        last = next(n for n in range(at, len(records)) if records[n]["kind"] == "tool.requested")
        of_harness = [n for n in range(at, last) if records[n]["agent"] == "harness"]
        assert [records[n]["kind"] for n in of_harness][:2] == ["task.paused", "task.widened"]
        del records[last + 1 :]
        for n in reversed(of_harness[kept:]):
            del records[n]
            for each in records[n:]:
                each["cause"] = [cause - (cause > n) for cause in each["cause"]]
        for number, each in enumerate(records[at:], records[at - 1]["b"] + 1):
            each["b"] = number

    for kept in (0, 1):
        folder = copied(session.folder, tmp_path / str(kept) / session.id)
        forge(folder, partial(cut, kept=kept))
        proof = check_commands(EventLog.read(folder))
        assert proof.problem is None, (kept, proof.problem)
        assert not proof.unchecked


def test_a_worker_that_was_stopped_between_two_steps_is_stopped_again_while_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call had its result, it had asked for nothing more, and another worker went on."""
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "home"))
    repo = Repo(tmp_path / "repo")
    names = ("one", "two")
    repo.commit({f"{name}.txt": "wrong\n" for name in names})
    checks = tuple(f"grep -q right {name}.txt" for name in names)
    graph = [
        {"name": name, "goal": "Mend.", "accept": [check], "writes": [f"{name}.txt"]}
        for name, check in zip(names, checks, strict=True)
    ]
    stopped = threading.Event()
    stopping: list[asyncio.Task[str]] = []

    def stop(event: Event) -> None:
        if event.kind == "file.changed" and event.data["path"] == "two.txt" and not stopping:
            fan_out = session.core.fan_out
            assert fan_out is not None
            stopping.append(asyncio.get_running_loop().create_task(fan_out.stop_worker(event.agent, "stopped")))
            stopping[0].add_done_callback(lambda _task: stopped.set())

    play = {name: [[edit(f"{name}.txt", "wrong", "right")]] for name in names}
    deeds = {("one", 0, 1): lambda: stopped.wait(60)}
    with ModelServer(Crew(play, deeds=deeds)) as server, session_on(server.base_url, repo.root) as session:
        session.read(lambda core: core.log.on_durable(stop))
        result = end(session.start_goal(GoalSpec("mend both", checks, workers=2, tasks=parse_tasks(graph))))
        assert result.status == "blocked"
    events = list(EventLog.read(session.folder).events())
    interrupt = next(event for event in events if event.kind == "user.interrupt")
    mine = [event for event in events if event.agent == interrupt.data["scope"] and event.seq < interrupt.seq]
    assert mine[-1].kind == "tool.finished"
    proof = check_commands(EventLog.read(session.folder))
    assert (proof.problem, proof.unchecked) == (None, "")


def test_after_a_stretch_the_state_is_that_of_the_record_in_whatever_order_it_came_about(tmp_path: Path) -> None:
    """A merge that a stop gave up is not under way again for an older event; mail is brought before it is settled."""

    def event(seq: int, kind: str, **data: Any) -> Event:
        return Event(1, seq, "2026-03-02T09:30:00Z", 1, 1, "harness", 0, (), kind, "private", data)

    work = {"goal": 1, "task": None, "agent": "worker-1", "title": "x", "commit": "c", "tree": "t", "base": "b"}
    merge = [
        event(1, "merge.enqueued", **work, ref="refs/heads/main", kept="k"),
        event(2, "merge.checked", merge=1, target="b", tree="t", commit="c", conflicts=[], suspect=[]),
        event(3, "merge.bounced", merge=1, why="It was cut off before it landed.", kept="k"),
    ]
    log = RerunLog(tmp_path, lambda _digest: b"")
    log.finish([merge[0], merge[2]])
    log.finish(merge)
    state = log.state("merges")
    assert isinstance(state, MergesState)
    assert state.merges[1].state == "bounced"
    sent = {"to": "a", "priority": "next", "topic": "t", "text": "x", "reason": "", "claims": [], "asks": False}
    mail = [
        event(4, "mail.sent", **sent, reply_to=None),
        event(5, "mail.delivered", mail=4),
        event(6, "mail.acknowledged", mail=4),
    ]
    start = event(7, "agent.state", state="idle", why="")
    log = RerunLog(tmp_path, lambda _digest: b"")
    log.begin([], Stretch(mail[0], None, [*mail[1:], start], cut=True))
    log.reach(7)
    log.finish(mail)
