"""Goals with several workers: tasks side by side in worktrees, landed one by one on a branch that may move."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from fixtures.crew_bench import nothing_left, run_crew
from fixtures.crew_scripts import Crew, edit, read
from fixtures.model_scripts import Answer, Call
from fixtures.model_server import ModelServer
from fixtures.session_bench import Repo, Watch, end, only, run_of, session_on, settings

from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.runtime.errors import ConfigurationError, UsageProblem
from musecode_jupyter.session import GoalHandle, GoalSpec, Session, open_session
from musecode_jupyter.session.preflight import graph_options
from musecode_jupyter.session.replay import prove

LONG = "MUSECODE_CRASH_POINTS" in os.environ
STOPPED_AT = ("merge.landing", "worktree.creating", "task.leased", "merge.enqueued", "merge.tested", "merge.landed")
NAMES = ("one", "two", "three")
VERIFY = tuple(f"grep -q right {name}.txt" for name in NAMES)
MEND = {name: [[edit(f"{name}.txt", "wrong", "right")]] for name in NAMES}


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "repo")
    repo.commit({f"{name}.txt": "first\nwrong\nlast\n" for name in NAMES})
    return repo


def tasks(*names: str, **more: dict[str, Any]) -> list[dict[str, Any]]:
    """One task for each name: to mend the file of that name."""
    return [
        {
            "name": name,
            "goal": f"Mend {name}.txt.",
            "accept": [f"grep -q right {name}.txt"],
            "writes": [f"{name}.txt"],
            **more.get(name, {}),
        }
        for name in names
    ]


def start(session: Session, given: list[dict[str, Any]] | None = None, workers: int = 3, **more: Any) -> GoalHandle:
    graph = () if given is None else parse_tasks(given)
    return session.start_goal(GoalSpec("mend all", VERIFY, workers=workers, tasks=graph, **more))


def landed(repo: Repo) -> list[str]:
    return [name for name in NAMES if "right" in repo.read(f"{name}.txt")]


def test_three_tasks_are_worked_on_side_by_side_and_all_land(repo: Repo) -> None:
    with ModelServer(Crew(MEND)) as server, session_on(server.base_url, repo.root) as session:
        result = end(start(session, tasks(*NAMES)))
        assert result.met, result.why
        events = list(session.events())
        text = session.tasks_text()
    assert landed(repo) == list(NAMES)
    leased = only(events, "task.leased")
    assert {event.data["agent"] for event in leased} == {"worker-1", "worker-2", "worker-3"}
    assert leased[-1].seq < only(events, "task.done")[0].seq, "they ran one after the other"
    assert len(only(events, "merge.landed")) == 3
    for name in NAMES:
        assert any(f"{name}: done by worker-{n}, landed by merge" in text for n in (1, 2, 3))
    # What landed is what was tested, tree by tree.
    tested = {event.data["merge"]: event.data for event in only(events, "merge.tested")}
    for event in only(events, "merge.landed"):
        assert tested[event.data["merge"]]["passed"]
        assert repo.git("rev-parse", f"{event.data['new']}^{{tree}}") == tested[event.data["merge"]]["tree"]
    assert repo.worktrees == 1
    assert repo.branches == ["main"]
    assert repo.git("status", "--porcelain") == ""
    proof = prove(session.folder)
    assert proof.ok, proof.problem
    assert proof.prompts == len(only(events, "model.requested"))


def test_the_users_dirty_checkout_stays_as_it_is_while_others_land(repo: Repo) -> None:
    repo.write("other.txt", "the user's own\n")
    repo.write("untracked.txt", "new\n")
    with ModelServer(Crew(MEND)) as server, session_on(server.base_url, repo.root) as session:
        assert end(start(session, tasks(*NAMES))).met
    assert landed(repo) == list(NAMES)
    assert repo.read("other.txt") == "the user's own\n"
    assert repo.read("untracked.txt") == "new\n"


def test_the_lead_proposes_the_tasks_and_is_told_what_is_wrong_with_them(repo: Repo) -> None:
    bad = Answer("I split it.", [Call("propose_tasks", {"tasks": tasks("one") * 2})])
    good = Answer("Again.", [Call("propose_tasks", {"tasks": tasks(*NAMES)})])
    plan = [read("one.txt"), bad, good, Answer("Three tasks.")]
    with ModelServer(Crew(MEND, plan)) as server, session_on(server.base_url, repo.root) as session:
        assert end(start(session)).met
        events = list(session.events())
    failed = only(events, "tool.failed")
    assert [event.data["output"] for event in failed] == [
        "The tasks cannot be taken. Two tasks are called 'one'. Give each a name of its own."
    ]
    assert [event.data["by"] for event in only(events, "task.created")] == ["lead"] * 3
    assert landed(repo) == list(NAMES)


def test_tasks_with_one_file_and_tasks_that_need_others_wait(repo: Repo) -> None:
    repo.commit({"shared.txt": "a wrong\nb\nb\nb\nc wrong\n"})
    given = [
        {"name": "a", "goal": "a", "accept": ["grep -q 'a right' shared.txt"], "writes": ["shared.txt"]},
        {"name": "c", "goal": "c", "accept": ["grep -q 'c right' shared.txt"], "writes": ["shared.txt"]},
        *tasks("one", one={"after": ["a"]}),
        *tasks("two", "three"),
    ]
    play = {
        **MEND,
        "a": [[read("shared.txt"), edit("shared.txt", "a wrong", "a right")]],
        "c": [[read("shared.txt"), edit("shared.txt", "c wrong", "c right")]],
    }
    with ModelServer(Crew(play)) as server, session_on(server.base_url, repo.root) as session:
        assert end(start(session, given, workers=8)).met
        events = list(session.events())
    number = {event.data["name"]: event.seq for event in only(events, "task.created")}
    lease = {event.data["task"]: event.seq for event in only(events, "task.leased")}
    done = {event.data["task"]: event.seq for event in only(events, "task.done")}
    assert done[number["a"]] < lease[number["c"]]
    assert done[number["a"]] < lease[number["one"]]
    assert lease[number["two"]] < done[number["a"]]


def test_a_conflict_goes_back_to_its_worker_with_regions_and_is_mended(repo: Repo) -> None:
    def users_commit() -> None:
        repo.commit({"one.txt": "first, by the user\nwrong!\nlast\n"})

    again = [read("one.txt"), edit("one.txt", "wrong!", "right!")]
    crew = Crew({**MEND, "one": [MEND["one"][0], again]}, deeds={("one", 0, 1): users_commit})
    with ModelServer(crew) as server, session_on(server.base_url, repo.root) as session:
        assert end(start(session, tasks(*NAMES))).met
        events = list(session.events())
        agent = next(e.data["agent"] for e in only(events, "task.bounced"))
    assert repo.read("one.txt") == "first, by the user\nright!\nlast\n"
    bounced = only(events, "task.bounced")
    assert len(bounced) == 1
    for part in ("one.txt", "wrong!", "right"):
        assert part in bounced[0].data["report"]
    assert [e.agent for e in events if e.kind == "file.changed" and e.data["path"] == "one.txt"] == [agent, agent]
    assert len(only(events, "agent.created")) == 4, "the same workers went on"


@pytest.mark.crash
@pytest.mark.parametrize("first", ["rename", "call"] if LONG else ["rename"])
def test_a_clean_merge_that_breaks_is_caught_before_it_lands(repo: Repo, first: str) -> None:
    """One renames a function, another adds a call of the old name: the texts merge, the program does not run."""
    base = repo.commit({"lib.py": "def old(x):\n    return x + 1\n", "app.py": "import lib\n\nprint('app')\n"})
    given = [
        {
            "name": "rename",
            "goal": "rename it",
            "accept": ["python3 -c 'import lib; lib.new(1)'"],
            "writes": ["lib.py"],
        },
        # What it says of its files is wrong, or it would not be let run beside the other.
        {"name": "call", "goal": "call it", "accept": ["python3 app.py | grep -q 2"], "writes": ["app.txt"]},
        *tasks(*NAMES),
    ]
    landed_first = threading.Event()
    wait = lambda: landed_first.wait(60)  # noqa: E731
    old, new = edit("app.py", "print('app')", "print(lib.old(1))"), edit("lib.py", "def old", "def new")
    mends = {"rename": [edit("app.py", "lib.old", "lib.new")], "call": [edit("app.py", "lib.old", "lib.new")]}
    play = {**MEND, "rename": [[new], mends["rename"]], "call": [[old], mends["call"]]}
    second = "call" if first == "rename" else "rename"
    crew = Crew(play, deeds={(second, 0, 1): wait})
    with ModelServer(crew) as server, session_on(server.base_url, repo.root) as session:
        watch = Watch(session)
        handle = start(session, given, workers=8)
        number = watch.until("task.created", name=first).seq
        watch.until("task.done", task=number)
        landed_first.set()
        assert end(handle).met
        events = list(session.events())
    assert repo.read("app.py").endswith("print(lib.new(1))\n")
    red = [event.data["merge"] for event in only(events, "merge.tested") if not event.data["passed"]]
    assert red == [event.data["merge"] for event in only(events, "merge.bounced")]
    assert len(red) == 1
    for commit in repo.git("rev-list", "--first-parent", f"{base}..main").split():
        repo.git("checkout", "-q", commit)
        ran = subprocess.run(["python3", "-B", "app.py"], cwd=repo.root, check=False, capture_output=True)
        assert ran.returncode == 0, "a commit of the branch does not run"


def test_a_landing_that_is_denied_waits_for_the_user_and_the_rest_goes_on(repo: Repo) -> None:
    with (
        ModelServer(Crew(MEND)) as server,
        session_on(server.base_url, repo.root, interactive=True, approvals="ask") as session,
    ):
        watch = Watch(session)
        handle = start(session, tasks(*NAMES))
        first = watch.until("approval.requested", action="land")
        assert set(first.data["shown"]) >= {"diff", "checks", "files", "branch"}
        assert "is to land by merge" in session.tasks_text()
        session.answer(first.seq, "deny", by="test", why="not today")
        second = watch.until("approval.requested", since=first.seq, action="land")
        session.answer(second.seq, "approve_session", by="test")
        result = end(handle)
        assert result.status == "blocked"
        assert "not today" in result.why
        assert len(landed(repo)) == 2
        session.resume_goal(handle.number)
        assert end(handle).met
    assert landed(repo) == list(NAMES)


def test_what_the_user_takes_off_the_branch_does_not_come_back(repo: Repo) -> None:
    """A reset while workers work; then a landing that others have built on is undone."""
    repo.commit({"secret.txt": "not to be published\n"})
    sessions: list[Session] = []

    def undo() -> None:
        sessions[0].undo(only(sessions[0].events(), "merge.landed")[0].data["merge"])

    crew = Crew(MEND, deeds={("one", 0, 0): lambda: repo.git("reset", "-q", "--hard", "HEAD~1"), ("two", 0, 0): undo})
    given = [*tasks("one"), *tasks("two", two={"after": ["one"]})]
    with ModelServer(crew) as server, session_on(server.base_url, repo.root) as session:
        sessions.append(session)
        result = end(session.start_goal(GoalSpec("mend", (VERIFY[1],), workers=2, tasks=parse_tasks(given))))
        assert result.met, result.why
        name = session.id
    assert landed(repo) == ["two"]
    assert "secret.txt" not in repo.git("log", "--format=", "--name-only", "main").split()
    assert repo.git("status", "--porcelain") == ""
    kept = repo.git("for-each-ref", "--format=%(refname)", f"refs/musecode/backup/{name}/work-*").split()
    assert len(kept) == 2, "the work as it was is gone"
    assert repo.branches == ["main"]


def test_one_worktree_that_is_broken_does_not_end_the_others(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """And tasks may be called as anything of the harness is."""
    monkeypatch.setenv("MUSECODE_SANDBOX", "plain")
    names = ("merge", "check", "three")
    given = [{**task, "name": name} for name, task in zip(names, tasks(*NAMES), strict=True)]
    play = {
        "merge": [[*MEND["one"][0], run_of("git init -q inner")], [run_of("rm -r inner")]],
        "check": [[*MEND["two"][0], run_of("mv .git lost")]],
        "three": MEND["three"],
    }
    with ModelServer(Crew(play)) as server, session_on(server.base_url, repo.root) as session:
        handle = start(session, given)
        result = end(handle)
        assert result.status == "blocked", result.why
        assert "has no .git entry" in result.why
        assert landed(repo) == ["one", "three"]
        bounced = only(session.events(), "task.bounced")
        assert "inner/" in bounced[0].data["report"]
        tree = next(e for e in only(session.events(), "worktree.creating") if e.data["path"].endswith("-check"))
        (Path(tree.data["path"]) / "lost").rename(Path(tree.data["path"]) / ".git")
        session.resume_goal(handle.number)
        assert end(handle).met
    assert landed(repo) == list(NAMES)


def test_a_worktree_that_was_taken_away_is_made_again_and_its_worker_told(repo: Repo) -> None:
    """The worker believed its edits to be there, and was sent back for having changed nothing until it was given up."""
    sessions: list[Session] = []

    def take_away() -> None:
        (tree,) = (e for e in only(sessions[0].events(), "worktree.creating") if e.data["path"].endswith("-one"))
        shutil.rmtree(tree.data["path"])

    again = [read("one.txt"), *MEND["one"][0]]
    crew = Crew({"one": [MEND["one"][0], again]}, deeds={("one", 0, 1): take_away})
    with ModelServer(crew) as server, session_on(server.base_url, repo.root) as session:
        sessions.append(session)
        goal = GoalSpec("mend", (VERIFY[0],), workers=2, tasks=parse_tasks(tasks("one")))
        handle = session.start_goal(goal)
        result = end(handle)
        assert result.status == "blocked"
        assert re.fullmatch(r"Task one: The folder \S+-one is gone; put it back if it was moved\.", result.why)
        session.resume_goal(handle.number)
        assert end(handle).met
        (told,) = only(session.events(), "task.bounced")
    assert "was taken away" in told.data["report"]
    assert landed(repo) == ["one"]
    proof = prove(session.folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_a_checkout_that_another_git_holds_is_not_left_behind_its_branch(repo: Repo) -> None:
    lock = repo.root / ".git" / "index.lock"
    given = tasks("one")
    with ModelServer(Crew(MEND)) as server, session_on(server.base_url, repo.root) as session:
        lock.touch()
        handle = session.start_goal(GoalSpec("mend", (VERIFY[0],), workers=1, tasks=parse_tasks(given)))
        result = end(handle)
        assert result.status == "blocked", result.why
        assert "index.lock exists" in result.why
        assert (landed(repo), repo.git("log", "--format=%s", "main").split()) == ([], ["change", "change"])
        lock.unlink()
        session.resume_goal(handle.number)
        assert end(handle).met
    assert landed(repo) == ["one"]
    assert repo.git("status", "--porcelain") == ""


def wait_pending(session: Session, watch: Watch, answered: set[int]) -> int:
    """The number of the next question that is not answered yet."""
    with watch._changed:
        found = watch._changed.wait_for(
            lambda: next((e for e in watch.events if e.kind == "approval.requested" and e.seq not in answered), None),
            60,
        )
    assert found is not None
    return found.seq


@pytest.mark.parametrize("when", ["task.leased", "merge.enqueued", "merge.tested", "merge.landed", "task.done"])
def test_closed_in_the_middle_and_resumed_nothing_is_done_twice(repo: Repo, when: str) -> None:
    with ModelServer(Crew(MEND)) as server:
        with session_on(server.base_url, repo.root) as session:
            watch = Watch(session)
            handle = start(session, tasks(*NAMES))
            watch.until(when)
            name = session.id
        with session_on(server.base_url, repo.root, resume=name) as session:
            session.resume_goal(handle.number)
            result = end(session.handle(handle.number))
            assert result.met, result.why
            events = list(session.events())
    assert landed(repo) == list(NAMES)
    changed = [e.data["path"] for e in only(events, "file.changed")]
    assert sorted(changed) == sorted(set(changed)), "an edit was made twice"
    assert repo.worktrees == 1
    assert repo.branches == ["main"]
    proof = prove(session.folder)
    assert proof.ok, proof.problem


@pytest.mark.crash
@pytest.mark.parametrize("how", ["pause", "stop"] if LONG else ["pause"])
def test_a_goal_that_rested_goes_on_with_its_workers_in_the_same_process(repo: Repo, how: str) -> None:
    """Their tasks stayed taken, so that nobody went on with them and the goal ended as if all were done."""
    go, asked = threading.Event(), threading.Event()
    hold = lambda: asked.set() or go.wait(60)  # noqa: E731
    crew = Crew(MEND, deeds={(name, 0, 1): hold for name in NAMES})
    with ModelServer(crew) as server, session_on(server.base_url, repo.root) as session:
        watch = Watch(session)
        handle = start(session, tasks(*NAMES))
        for path in NAMES:
            watch.until("file.changed", path=f"{path}.txt")
        assert asked.wait(60)
        handle.pause() if how == "pause" else handle.stop()
        go.set()
        assert end(handle).status == {"pause": "paused", "stop": "stopped"}[how]
        assert "works on it" not in session.tasks_text()
        session.resume_goal(handle.number)
        result = end(handle)
        assert result.met, result.why
        changed = [e.data["path"] for e in session.events() if e.kind == "file.changed"]
    assert landed(repo) == list(NAMES)
    assert len(changed) == 3, "an edit was made twice"


def test_one_worker_is_stopped_and_the_others_go_on(repo: Repo) -> None:
    go = threading.Event()
    crew = Crew(MEND, deeds={("two", 0, 1): lambda: go.wait(60)})
    with ModelServer(crew) as server, session_on(server.base_url, repo.root) as session:
        watch = Watch(session)
        handle = start(session, tasks(*NAMES, three={"after": ["one"]}))
        agent = watch.until("file.changed", path="two.txt").agent
        told = session.stop(agent)
        assert told == f"{agent} is stopped: its task two waits, with what was done so far. The others go on."
        result = end(handle)
        go.set()
        assert result.status == "blocked"
        branch = f"musecode/{session.id}/{handle.number}-two"
        why = f"{agent} was stopped by the user. What {agent} did so far is kept in its worktree, on branch {branch}."
        assert result.why == f"Task two: {why}"
        assert landed(repo) == ["one", "three"]
        assert f"two: waits for you, worked on by worker-2: {why}" in session.tasks_text()
        assert "two.txt" in session.worktrees_text(), "what it did so far is not there"
        shown = [re.findall(r"(?m)^\+\+\+ b/(.*)$", diff) for diff in handle.changes()]
        assert shown == [["one.txt", "three.txt"], ["two.txt"]], "the diff of a goal is that of its last landing only"
        for name, said in ((agent, "has no task now"), ("nobody", "There is no running agent 'nobody'")):
            with pytest.raises(UsageProblem, match=said):
                session.stop(name)
        session.resume_goal(handle.number)
        assert end(handle).met
        assert handle.diff().count("\n+right\n") == 3
        events = list(session.events())
    assert landed(repo) == list(NAMES)
    assert [e.agent for e in events if e.kind == "file.changed" and e.data["path"] == "two.txt"] == [agent]
    assert [e.data["scope"] for e in only(events, "user.interrupt")] == [agent]
    assert repo.worktrees == 1
    assert repo.branches == ["main"]


@pytest.mark.crash
@pytest.mark.parametrize("when", STOPPED_AT if LONG else STOPPED_AT[:1])
def test_a_worker_that_is_stopped_at_any_point_loses_nothing(repo: Repo, when: str) -> None:
    """Also while its work lands: then it has landed, and nothing waits."""
    stopped: list[str] = []
    with ModelServer(Crew(MEND)) as server, session_on(server.base_url, repo.root) as session:
        watch = Watch(session)
        handle = start(session, tasks(*NAMES))
        watch.until(when)
        for agent in session.read(lambda core: list(core.agents.agents)):
            if agent != "lead":
                try:
                    stopped.append(session.stop(agent))
                except UsageProblem:
                    continue
        result = end(handle)
        assert result.status in {"blocked", "met"}, result.why
        if not result.met:
            session.resume_goal(handle.number)
            assert end(handle).met
        text = session.tasks_text()
        events = list(session.events())
    assert stopped
    assert landed(repo) == list(NAMES)
    assert len(re.findall(r": done by worker-\d, landed by merge", text)) == 3
    changed = [e.data["path"] for e in only(events, "file.changed")]
    assert sorted(changed) == sorted(set(changed)), "an edit was made twice"
    assert repo.worktrees == 1
    assert repo.branches == ["main"]


def test_what_comes_after_a_task_that_fails_is_not_begun(repo: Repo) -> None:
    stuck = {**MEND, "one": [[edit("one.txt", "first", "second")]]}
    given = tasks(*NAMES, two={"after": ["one"]})
    lead = [Answer("I have no further tasks.")]
    with ModelServer(Crew(stuck, lead)) as server, session_on(server.base_url, repo.root) as session:
        result = end(start(session, given))
        text = session.tasks_text()
    assert result.status == "stalled"
    assert landed(repo) == ["three"]
    assert "one: given up, worked on by worker-1: sent back 4 times" in text
    assert "two: given up: what it comes after was not done" in text


def test_the_options_and_their_errors(repo: Repo, tmp_path: Path) -> None:
    file = tmp_path / "tasks.json"
    file.write_text('{"tasks": [{"name": "A", "goal": "", "accept": []}]}')
    with pytest.raises(UsageProblem, match="'A' is no task name"):
        graph_options(workers=None, tasks=str(file))
    file.write_text("[{]")
    with pytest.raises(UsageProblem, match="is no JSON"):
        graph_options(workers=None, tasks=str(file))
    with pytest.raises(UsageProblem, match="No such file"):
        graph_options(workers=None, tasks=str(tmp_path / "none.json"))
    with ModelServer(Crew(MEND)) as server, session_on(server.base_url, repo.root) as session:
        for workers in (0, -1, 65):
            with pytest.raises(UsageProblem, match="from 1 to 64"):
                start(session, workers=workers)
        assert session.tasks_text().startswith("There are no tasks")


@pytest.mark.parametrize("how", ["copy", "link"])
def test_ignored_folders_are_shared_as_the_user_says(repo: Repo, how: str) -> None:
    """A check that needs installed packages must find them in the worktree, and where the merge is tested."""
    repo.commit({".gitignore": "deps/\n"})
    (repo.root / "deps").mkdir()
    repo.write("deps/check.sh", "grep -q right $1.txt\n")
    given = [{**task, "accept": [f"sh deps/check.sh {task['name']}"]} for task in tasks(*NAMES)]
    with ModelServer(Crew(MEND)) as server:
        with session_on(server.base_url, repo.root, share=f"deps={how}") as session:
            result = end(start(session, given))
            assert result.met, result.why
        wrong = pytest.raises(ConfigurationError, match="no rule for sharing a folder")
        with wrong:
            open_session(repo.root, settings=settings(server.base_url, share="deps=move"))
    assert landed(repo) == list(NAMES)
    assert repo.worktrees == 1
    assert repo.read("deps/check.sh") == "grep -q right $1.txt\n"


@pytest.mark.crash
@pytest.mark.parametrize("count", [32 if LONG else 4])
def test_many_workers_at_once_leave_nothing_and_lose_nothing(tmp_path: Path, home: Path, count: int) -> None:
    """A third of them meets with a conflict, with the user or with each other; all lands."""
    with ModelServer(Crew(MEND)) as server:
        # What is made once for all sessions of a process is there from here on.
        first = Repo(tmp_path / "first")
        with session_on(server.base_url, first.root):
            pass
    left: list[str] = []
    with nothing_left(left, home):
        ran = run_crew(tmp_path / "crew", count)
    assert ran.result.met, ran.result.why
    assert ran.problems == []
    assert left == []
    assert len(only(ran.events, "task.bounced")) == count // 3
    leased = only(ran.events, "task.leased")
    assert len({event.data["agent"] for event in leased}) == count
    assert leased[-1].seq < only(ran.events, "merge.landed")[0].seq, "they did not all run at once"


def test_what_is_kept_is_listed_with_what_it_holds(repo: Repo) -> None:
    with ModelServer(Crew(MEND)) as server, session_on(server.base_url, repo.root, approvals="deny") as session:
        assert session.worktrees_text() == ("There are no worktrees of agents on this repository.")
        handle = start(session, tasks("one"))
        assert end(handle).status == "blocked"
        name = f"{session.id}-{handle.number}-one"
        branch = f"musecode/{session.id}/{handle.number}-one"
        assert session.worktrees_text().splitlines() == [
            f"{name}: worktree on {branch} (this session's): 1 commit not merged (kept on {branch})",
            f"{session.id}-{handle.number}.check: verification: nothing that is not landed",
        ]
