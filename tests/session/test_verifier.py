"""The verifier runs what work has to pass beside it, and tells at once what turned red or green."""

from __future__ import annotations

import asyncio
import threading

import pytest
from fixtures.crew_scripts import Crew, edit, read
from fixtures.landing_bench import NOWHERE
from fixtures.model_scripts import Answer, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.review_scripts import Working
from fixtures.session_bench import (
    DONE,
    EDIT,
    Hurried,
    Repo,
    Signal,
    Watch,
    end,
    only,
    run_of,
    runs,
    session_on,
    settings,
    start,
)

from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.agents.verifier.state import VERIFIER
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.effects import Command, CommandAnswer
from musecode_jupyter.runtime.errors import ConfigurationError
from musecode_jupyter.session import GoalSpec, open_session
from musecode_jupyter.session.agents_view import agents_lines
from musecode_jupyter.session.replay import prove
from musecode_jupyter.tools.files import digest_bytes

SEE = read("other.txt")
WORSE = edit("answer.txt", "right", "wrong")
BETTER = edit("answer.txt", "wrong", "right")
ON = {"crew": "on", "review": "off"}


def checking(*answers: Answer, waits: dict[int, int]) -> Working:
    """A lead that waits for the ends of checks before some of its answers."""
    return Working(answers, waits, ends="checks.ended")


def letters(request: ParsedRequest) -> list[str]:
    """What the verifier wrote, in a conversation."""
    return [item["text"] for item in request.items if item.get("text", "").startswith("Mail from verifier")]


def test_what_turned_green_or_red_is_told_between_two_steps_and_each_tree_is_checked_once(repo: Repo) -> None:
    # Answers 3, 6 and 9 wait until what settled before has been checked: the next request tells of it.
    play = (EDIT, SEE, SEE, WORSE, SEE, SEE, BETTER, run_of("grep -q right answer.txt"), SEE, DONE)
    work = checking(*play, waits={3: 1, 6: 2, 9: 3})
    with ModelServer(work) as server, session_on(server.base_url, repo.root, **ON) as session:
        work.follow(session)
        assert end(start(session)).met
        events, folder = list(session.events()), session.folder
        agents = "\n".join(session.read(agents_lines))
    ended = only(events, "checks.ended")
    turns = [[(each["command"], each["passed"]) for each in event.data["turned"]] for event in ended]
    check = "grep -q right answer.txt"
    assert turns == [[(check, True)], [(check, False)], [(check, True)]]
    assert all(not event.data["why"] for event in ended)
    calls = [event for event in only(events, "tool.requested") if event.agent == VERIFIER]
    # What has turned red is run once more before it is told.
    assert [event.data["arguments"]["command"] for event in calls] == [check] * 4
    told = letters(work.asked[-1])
    # The last one it ran itself: it is not told what it has seen.
    assert len(told) == 2
    assert "passes now" in told[0]
    assert "does not pass any more" in told[1]
    assert [len(letters(request)) for request in work.asked] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert "verifier, asks no model: idle; 3 checks run beside the work" in agents
    assert not [event for event in only(events, "model.requested") if event.agent == VERIFIER]
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_it_can_be_switched_off_alone(repo: Repo) -> None:
    work = Working((EDIT, SEE, SEE, DONE), {})
    with ModelServer(work) as server, session_on(server.base_url, repo.root, **ON, verifier="off") as session:
        assert end(start(session)).met
        assert not only(list(session.events()), "checks.begun")
    with pytest.raises(ConfigurationError, match="MUSECODE_VERIFIER='often' is neither on nor off"):
        open_session(repo.root, settings=settings(NOWHERE, **ON, verifier="often"), interactive=False)


def test_checks_end_as_the_work_asks_to_land_or_is_stopped_and_leave_nothing(repo: Repo, tmp_path: object) -> None:
    """The command that runs then is ended with all its processes; what it was about is judged as a whole."""
    hold = repo.root.parent / "hold"
    hold.mkdir()
    signal = Signal(hold / "pipe")
    # Where the files come from a snapshot, beside the work, it waits; judged, it does not.
    command = f'grep -q right answer.txt && case "$PWD" in *.verify) echo $$ > {signal.path}; exec sleep 600;; esac'
    begun = threading.Event()
    pids: list[int] = []

    def seen() -> None:
        pids.extend(signal.read())
        begun.set()

    work = Working((EDIT, SEE, SEE, DONE), {}, {3: seen})
    with ModelServer(work) as server, session_on(server.base_url, repo.root, sandbox="plain", **ON) as session:
        watch = Watch(session)
        handle = session.start_goal(GoalSpec("say right", (command,)))
        assert end(handle).met
        assert begun.is_set()
        events, folder = watch.events, session.folder
        assert session.read(lambda core: core.verifier.busy) == []
    (ended,) = only(events, "checks.ended")
    assert (ended.data["again"], ended.data["why"]) == (True, "The work asks to land, and is checked as a whole.")
    assert [runs(pid) for pid in pids] == [False]
    assert repo.worktrees == 1
    assert not list((folder.parent.parent / "worktrees").iterdir())
    assert not repo.git("for-each-ref", "refs/musecode/snapshot")
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_a_task_is_told_when_it_breaks_what_another_has_landed(repo: Repo) -> None:
    repo.commit({"one.txt": "wrong\n", "two.txt": "wrong\n", "both.txt": "one\n"})
    first, second = "grep -q right one.txt && grep -q one both.txt", "grep -q right two.txt"
    tasks = [
        {"name": "one", "goal": "Mend one.", "accept": [first], "writes": ["one.txt", "both.txt"]},
        {"name": "two", "goal": "Mend two.", "accept": [second], "writes": ["two.txt", "both.txt"], "after": ["one"]},
    ]
    look, worse = read("both.txt"), edit("both.txt", "one two", "two")
    play = {
        "one": [[edit("both.txt", "one", "one two"), edit("one.txt", "wrong", "right")]],
        "two": [[worse, look, look, edit("both.txt", "two", "two one"), edit("two.txt", "wrong", "right")]],
    }
    script = Crew(play)
    heard = threading.Event()
    asked: list[ParsedRequest] = []

    def answer(request: ParsedRequest) -> Answer:
        asked.append(request)
        told = script(request)
        if told.calls and told.calls[0].arguments.get("new") == "two one":
            assert heard.wait(60)
        return told

    goal = GoalSpec("mend all", (first, second), workers=2, tasks=parse_tasks(tasks))
    with ModelServer(answer) as server, session_on(server.base_url, repo.root, **ON) as session:

        def saw(event: object) -> None:
            if getattr(event, "kind", "") == "checks.ended":
                heard.set()

        session.read(lambda core: core.log.on_durable(saw))
        assert end(session.start_goal(goal)).met
        events, folder = list(session.events()), session.folder
    broke = [event for event in only(events, "checks.ended") if event.data["turned"]]
    assert broke[0].data["turned"] == [{"command": first, "passed": False}]
    assert any(first in text for request in asked for text in letters(request))
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


class Slow(Hurried):
    """Waits before git takes in the files of a worktree, a while or until one was edited again.

    With `hold`, it waits after the verifier's checkout was made until that is ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.edited = threading.Event()
        self.made = threading.Event()
        self.hold = False

    async def ask(self, command: Command) -> CommandAnswer:
        if "add" in command.argv and "worktree" not in command.argv:
            for _ in range(25):
                if self.edited.is_set():
                    break
                await asyncio.sleep(0.02)
        answer = await super().ask(command)
        if self.hold and "worktree" in command.argv and any(each.endswith(".verify") for each in command.argv):
            self.made.set()
            await asyncio.Event().wait()
        return answer


def test_what_is_checked_is_what_had_settled_and_a_checkout_that_is_ended_amid_leaves_nothing(repo: Repo) -> None:
    """The author edits again as soon as it may; and it asks to land while the files are still being checked out."""
    slow = Slow()
    work = checking(EDIT, SEE, WORSE, BETTER, SEE, DONE, waits={5: 1})
    with ModelServer(work) as server, session_on(server.base_url, repo.root, effects=slow, **ON) as session:

        def saw(event: Event) -> None:
            if event.kind == "file.changed" and event.data["before"] != first_before:
                slow.edited.set()

        first_before = digest_bytes(b"wrong\n")
        session.read(lambda core: core.log.on_durable(saw))
        work.follow(session)
        assert end(start(session)).met
        first = only(session.events(), "checks.ended")[0]
        folder = session.folder
    assert first.data["turned"] == [{"command": "grep -q right answer.txt", "passed": True}], "it saw the next edit"
    assert prove(folder).problem is None
    repo.commit({"answer.txt": "wrong\n"})
    slow = Slow()
    slow.hold = True
    slow.edited.set()
    work = Working((EDIT, SEE, DONE), {}, {2: lambda: slow.made.wait(60)})
    with ModelServer(work) as server, session_on(server.base_url, repo.root, effects=slow, **ON) as session:
        handle = start(session)
        assert slow.made.wait(60)
        slow.hold = False
        assert end(handle).met
        (ended,) = only(session.events(), "checks.ended")
        folder = session.folder
    assert ended.data["why"] == "The work asks to land, and is checked as a whole."
    assert repo.worktrees == 1
    assert not list((folder.parent.parent / "worktrees").iterdir())
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_a_command_that_hangs_is_ended_and_run_no_more_beside_the_work(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("musecode_jupyter.agents.verifier.checks.MOST_SECONDS", 0.3)
    monkeypatch.setattr("musecode_jupyter.agents.verifier.verifier.MOST_SECONDS", 0.3)
    hangs = 'grep -q right answer.txt && case "$PWD" in *.verify) exec sleep 600;; esac'
    work = checking(EDIT, SEE, SEE, edit("other.txt", "other", "others"), SEE, SEE, DONE, waits={2: 1})
    with ModelServer(work) as server, session_on(server.base_url, repo.root, sandbox="plain", **ON) as session:
        work.follow(session)
        assert end(start(session, hangs)).met
        events, folder = session.events(), session.folder
    (ended,) = only(events, "checks.ended")
    assert (ended.data["why"], ended.data["turned"]) == ("", []), "it was red before, and is"
    (call,) = [event for event in only(events, "tool.requested") if event.agent == VERIFIER]
    (done,) = [event for event in only(events, "tool.finished") if event.data["call"] == call.seq]
    assert "ended after the limit of 0.3 s" in done.data["output"]
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_a_command_that_fails_and_passes_on_the_same_files_is_said_once_and_run_no_more_beside_the_work(
    repo: Repo,
) -> None:
    count = repo.root.parent / "count"
    # Red before the work, green after the edit; the third run fails, and the fourth passes.
    count.write_text("0")
    flaky = f"n=$(($(cat {count}) + 1)); echo $n > {count}; grep -q right answer.txt && test $n -ne 3"
    more = (edit("other.txt", "other", "others"), SEE, SEE, edit("other.txt", "others", "other"), SEE, SEE, DONE)
    work = checking(EDIT, SEE, SEE, *more, waits={3: 1, 6: 2})
    with ModelServer(work) as server, session_on(server.base_url, repo.root, sandbox="plain", **ON) as session:
        work.follow(session)
        assert end(start(session, flaky)).met
        events, folder = session.events(), session.folder
    ended = only(events, "checks.ended")
    assert [(len(event.data["turned"]), event.data["flaky"]) for event in ended] == [(1, []), (0, [flaky])]
    told = letters(work.asked[-1])
    assert ["passed on the same files when it was run again" in each for each in told] == [False, True]
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")
