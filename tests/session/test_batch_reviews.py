"""What settles in a worktree is reviewed while work on it goes on; its author is told, and a landing builds on it."""

from __future__ import annotations

import os
import threading

import pytest
from fixtures.crew_scripts import Crew, edit, read
from fixtures.model_scripts import Answer, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.review_scripts import Reviewed, Working, finding, span
from fixtures.session_bench import DEADLINE_S, DONE, EDIT, Repo, Watch, end, only, run_of, session_on, start

from musecode_jupyter.agents.critiques.state import CritiquesState
from musecode_jupyter.agents.critiques.text import critiques_of
from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.session import GoalSpec, Session
from musecode_jupyter.session.agents_view import agents_lines
from musecode_jupyter.session.critiques import settle
from musecode_jupyter.session.replay import prove

LONG = pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="many seconds: run by make crash")
STOP = edit("shop.py", "return 1", "breakpoint()\n    return 1")
GO = edit("shop.py", "    breakpoint()\n", "")
LOOK = run_of("cat shop.py")
SEE = read("shop.py")
LOOK_AT_ANSWER = read("answer.txt")


def critiques(session: Session) -> CritiquesState:
    return session.read(lambda core: critiques_of(core.log).model_copy(deep=True))


def told(request: ParsedRequest) -> list[str]:
    """The letters of reviews in a conversation."""
    return [i["text"] for i in request.items if i.get("text", "").startswith("Mail from reviewer")]


def test_a_batch_is_reviewed_while_its_author_works_who_is_told_and_mends_it(repo: Repo) -> None:
    repo.commit({"shop.py": "def f():\n    return 1\n"})
    objects = finding("answer.txt", 1, "It says too little.", span("answer.txt", 1, "right"))
    better = edit("answer.txt", "right", "all right")
    work = Working([STOP, EDIT, LOOK, LOOK, GO, better, SEE, SEE, DONE], {3: 1, 7: 2})
    script = Reviewed(work, {"correctness": [[objects], []]})
    with ModelServer(script) as server, session_on(server.base_url, repo.root, review="full") as session:
        work.follow(session)
        assert end(start(session)).met
        events, folder = list(session.events()), session.folder
        found = critiques(session).findings
        agents = "\n".join(session.read(agents_lines))
    assert {(each.check, each.state, each.merge) for each in found.values()} == {
        ("wrong-result", "fixed", None),
        ("debugging", "fixed", None),
    }
    first, second = only(events, "batch.settled")
    assert (first.data["files"], first.data["agent"]) == (["shop.py", "answer.txt"], "lead")
    assert f"woken last: to review {found[min(found)].scope}, by batch {second.seq}" in agents
    # The cause of each pass is its batch; the landing of what was reviewed brings none.
    asked = only(events, "critique.asked")
    assert [event.data["batch"] for event in asked] == [first.seq] * 3 + [second.seq] * 3
    assert all(event.data["batch"] in event.cause for event in asked)
    assert [event.data["ok"] for event in only(events, "merge.reviewed")] == [True]
    assert [event.data["why"] for event in only(events, "batch.closed")] == ["", ""]
    assert "`cat shop.py` passed" in asked[0].data["text"]
    # The author has one letter, between two steps.
    assert [len(told(request)) for request in work.asked] == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    (letter,) = told(work.asked[-1])
    assert "It says too little." in letter
    assert "breakpoint" in letter
    assert len({event.agent for event in only(events, "agent.created")}) == 4
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def of_text(request: ParsedRequest) -> str:
    """What a reviewer was put last."""
    return next(item["text"] for item in reversed(request.items) if item.get("role") == "user")


def test_work_that_is_handed_in_meanwhile_is_reviewed_as_a_whole(repo: Repo) -> None:
    """A review of a batch that is under way as a later state asks to land is given up, and nothing of it is taken."""
    held, begun = threading.Event(), threading.Event()

    def review(request: ParsedRequest) -> list[Answer]:
        begun.set()
        if "+right" in of_text(request) and "+all right" not in of_text(request):
            assert held.wait(DEADLINE_S)
        return []

    work = Working([EDIT, LOOK_AT_ANSWER, edit("answer.txt", "right", "all right"), DONE], {}, {2: begun.wait})
    script = Reviewed(work, {emphasis: review for emphasis in ("correctness", "tests", "simplicity")})
    with ModelServer(script) as server, session_on(server.base_url, repo.root, review="full") as session:
        watch = Watch(session)
        handle = start(session)
        watch.until("batch.closed")
        held.set()
        assert end(handle).met
        events, folder = list(session.events()), session.folder
    (closed,) = only(events, "batch.closed")
    assert (closed.data["why"], closed.data["again"]) == ("The work asks to land, and is reviewed as a whole.", True)
    asked = only(events, "critique.asked")
    assert [event.data["batch"] is None for event in asked] == [False] * 3 + [True] * 3
    assert all("Your review before was broken off" in event.data["text"] for event in asked[3:])
    assert len(only(events, "critique.reviewed")) == 1
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


@pytest.mark.crash
@LONG
def test_a_batch_of_the_tree_that_asks_to_land_is_waited_for(repo: Repo) -> None:
    held = threading.Event()
    objects = finding("answer.txt", 1, "It could be more.", span("answer.txt", 1, "right"), severity="minor")

    def review(request: ParsedRequest) -> list[Answer]:
        assert held.wait(DEADLINE_S)
        return [objects]

    work = Working([EDIT, LOOK_AT_ANSWER, DONE], {})
    with (
        ModelServer(Reviewed(work, {"tests": review})) as server,
        session_on(server.base_url, repo.root, review="full") as session,
    ):
        watch = Watch(session)
        handle = start(session)
        watch.until("merge.checked")
        held.set()
        assert end(handle).met
        events, folder = list(session.events()), session.folder
    assert len(only(events, "critique.asked")) == len(only(events, "critique.raised")) * 3 == 3
    assert [event.data["raised"] for event in only(events, "critique.reviewed")] != [[]]
    (sent,) = only(events, "mail.sent")
    (dropped,) = only(events, "mail.dropped")
    assert (dropped.data["mail"], sent.data["priority"]) == (sent.seq, "digest")
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


@pytest.mark.parametrize("how", ["stop", pytest.param("pause", marks=[pytest.mark.crash, LONG])])
def test_no_review_goes_on_where_its_goal_rests(repo: Repo, how: str) -> None:
    """Stopped, it ends at once; paused, with the step that is under way. What it looked at is reviewed later on."""
    held, go_on = threading.Event(), threading.Event()

    def review(request: ParsedRequest) -> list[Answer]:
        if not go_on.is_set():
            asked.set()
            assert held.wait(DEADLINE_S)
        return [finding("answer.txt", 1, "A doubt.", severity="note")]

    asked = threading.Event()
    work = Working([EDIT, LOOK_AT_ANSWER, LOOK_AT_ANSWER, DONE], {2: 1})
    with (
        ModelServer(Reviewed(work, {"correctness": review})) as server,
        session_on(server.base_url, repo.root, review="full") as session,
    ):
        work.follow(session)
        handle = start(session)
        assert asked.wait(DEADLINE_S)
        if how == "stop":
            handle.stop()
        else:
            handle.pause()
        go_on.set()
        held.set()
        assert end(handle).status == {"stop": "stopped", "pause": "paused"}[how]
        assert session.read(lambda core: core.batches.busy) == []
        closed = only(list(session.events()), "batch.closed")
        assert [(event.data["again"], bool(event.data["why"])) for event in closed] == [(True, True)]
        abandoned = {event.agent for event in only(list(session.events()), "model.abandoned")}
        assert ("reviewer-correctness" in abandoned) == (how == "stop")
        handle.resume()
        assert end(handle).met
        events, folder = list(session.events()), session.folder
    # What was put to a reviewer once is not put again.
    assert len(only(events, "critique.asked")) == 3
    assert [event.data["text"] for event in only(events, "critique.raised")] == ["A doubt."]
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


@pytest.mark.crash
@LONG
def test_what_the_user_withdrew_is_not_raised_again_nor_told_again(repo: Repo) -> None:
    objects = finding("answer.txt", 1, "It is wrong.", span("answer.txt", 1, "right"), severity="major")
    other = edit("other.txt", "other", "more")
    withdrawn = threading.Event()
    play = [EDIT, LOOK_AT_ANSWER, LOOK_AT_ANSWER, other, LOOK_AT_ANSWER, LOOK_AT_ANSWER, DONE]
    work = Working(play, {2: 1, 5: 2}, {3: lambda: withdrawn.wait(DEADLINE_S)})
    script = Reviewed(work, {"correctness": [[objects]]})
    with ModelServer(script) as server, session_on(server.base_url, repo.root, review="full") as session:
        work.follow(session)
        watch = Watch(session)
        handle = start(session)
        watch.until("mail.delivered")
        (number,) = critiques(session).findings
        session.call(lambda core: settle(core, number, "withdraw"))
        withdrawn.set()
        assert end(handle).met
        events = list(session.events())
    assert len(only(events, "batch.settled")) == 2
    assert len(only(events, "critique.raised")) == 1
    assert len(only(events, "mail.sent")) == 1


@pytest.mark.crash
@LONG
def test_workers_side_by_side_are_reviewed_one_after_the_other_and_each_is_told_of_its_own(repo: Repo) -> None:
    names = ("one", "two", "three")
    repo.commit({f"{name}.txt": "wrong\n" for name in names})
    checks = tuple(f"grep -q right {name}.txt" for name in names)
    tasks = [
        {"name": name, "goal": f"Mend {name}.", "accept": [check], "writes": [f"{name}.txt"]}
        for name, check in zip(names, checks, strict=True)
    ]
    play = {
        name: [
            [
                *(edit(f"{name}.txt", "wrong", "half right"), read(f"{name}.txt"), read(f"{name}.txt")),
                *(edit(f"{name}.txt", "half right", "right"), read(f"{name}.txt"), read(f"{name}.txt")),
            ]
        ]
        for name in names
    }

    def review(request: ParsedRequest) -> list[Answer]:
        name = next(each for each in names if f"+++ b/{each}.txt" in of_text(request))
        if "+half right" not in of_text(request):
            return []
        return [finding(f"{name}.txt", 1, f"Only half of {name}.", span(f"{name}.txt", 1, "half right"))]

    script = Reviewed(Crew(play), {"correctness": review})
    goal = GoalSpec("mend all", checks, workers=3, tasks=parse_tasks(tasks))
    with ModelServer(script) as server, session_on(server.base_url, repo.root, review="full") as session:
        assert end(session.start_goal(goal)).met
        events, folder = list(session.events()), session.folder
        found = critiques(session).findings
        assert session.read(lambda core: core.batches.busy) == []
        assert session.read(lambda core: core.batches.state.open) == {}
    assert {each.state for each in found.values()} <= {"fixed"}
    under_way: list[int] = []
    for event in events:
        if event.kind == "batch.settled":
            under_way.append(event.seq)
        elif event.kind == "batch.closed":
            under_way.remove(event.data["batch"])
        assert len(under_way) <= 1
    assert only(events, "batch.settled")
    workers = {event.data["task"]: event.data["agent"] for event in only(events, "task.leased")}
    for letter in only(events, "mail.sent"):
        told_of = [found[number] for number in letter.cause[1:]]
        assert {workers[each.task] for each in told_of} == {letter.data["to"]}
    assert [repo.read(f"{name}.txt") for name in names] == ["right\n"] * 3
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_beyond_its_share_of_the_limits_no_model_is_asked_and_what_is_proven_is_told_all_the_same(repo: Repo) -> None:
    repo.commit({"shop.py": "def f():\n    return 1\n"})
    work = Working([STOP, EDIT, LOOK_AT_ANSWER, SEE, GO, SEE, SEE, DONE], {3: 1, 6: 2})
    with (
        ModelServer(Reviewed(work, {})) as server,
        session_on(server.base_url, repo.root, review="full") as session,
    ):
        work.follow(session)
        # A quarter of it is 10 model calls, of which each of three reviewers would have three.
        assert end(start(session, steps=40)).met
        events, folder = list(session.events()), session.folder
    settled = only(events, "batch.settled")
    assert [(event.data["steps"], bool(event.data["why"])) for event in settled] == [(0, True)] * 2
    assert not [event for event in only(events, "critique.asked") if event.data["batch"] is not None]
    (raised,) = only(events, "critique.raised")
    assert raised.data["check"] == "debugging"
    assert raised.seq in [event.data["critique"] for event in only(events, "critique.fixed")]
    (letter,) = only(events, "mail.sent")
    assert (letter.data["to"], letter.data["priority"]) == ("lead", "next")
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")
