"""An agent that costs more than a new one gives way to it: the new one knows what is verified, and all else goes on."""

from __future__ import annotations

import os
import threading

import pytest
from fixtures.crew_scripts import Crew, ask, edit, is_explorer
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.review_scripts import NOTHING, Reviewed
from fixtures.session_bench import CHECK, DONE, EDIT, Repo, end, kinds, only, session_on, settings, start

from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.log.events import Event
from musecode_jupyter.session import GoalSpec
from musecode_jupyter.session.agents_view import agents_lines
from musecode_jupyter.session.api import fork_session
from musecode_jupyter.session.replay import prove

# What whoever works on the goal is told.
TEXT = "say right, and mind what was said before " * 90
MANY = 8
LOOK = Call("read", {"path": "big.txt"})
AGAIN = Answer("", [LOOK] * MANY)


def test_the_explorer_gives_way_to_a_new_one_that_is_told_what_is_verified(repo: Repo) -> None:
    repo.commit({"big.txt": "a line of a file with some words in it\n" * 350})
    explored: list[ParsedRequest] = []

    def model(request: ParsedRequest) -> Answer:
        if is_explorer(request):
            explored.append(request)
            return [Answer("", [LOOK] * 3 * MANY), Answer("Much."), Answer("More.")][min(len(explored) - 1, 2)]
        since = [place for place, item in enumerate(request.items) if item.get("text", "").startswith("Goal: ")][-1]
        done = sum(item["type"] == "tool_result" for item in request.items[since:])
        return [ask("How much?"), ask("How much more?"), EDIT, DONE][min(done, 3)]

    with ModelServer(model) as server:
        with session_on(server.base_url, repo.root, crew="on") as session:
            assert end(session.start_goal(GoalSpec(TEXT, (CHECK,)))).met
            events, folder, name = session.events(), session.folder, session.id
            lines = [line for line in session.read(agents_lines) if line.startswith("explorer")]
        (retired,) = only(events, "agent.retired")
        assert retired.agent == "explorer"
        assert retired.data["numbers"]["usd_retire"] < retired.data["numbers"]["usd_keep"]
        assert f"takes the name of one that was retired at event {retired.seq}" in lines[0]
        assert len(explored) == 3
        texts = [item.get("text", "") for item in explored[2].items]
        assert len(texts) == 2
        assert any("Verified so far" in text for text in texts)
        assert any("How much more?" in text for text in texts)
        ours = [event.seq for event in only(events, "claim.asserted") if event.agent == "harness"]
        held = [event for event in only(events, "mail.sent") if event.data["topic"] == "verified"]
        assert [event.data["claims"] for event in held] == [ours[:1]]
        assert [event.agent for event in only(events, "agent.created")] == ["lead", "explorer", "verifier", "explorer"]
        proof = prove(folder)
        assert proof.ok, proof.problem
        assert not proof.unchecked
        with session_on(server.base_url, repo.root, resume=name, crew="on") as session:
            assert session.read(lambda core: core.agents.agents["explorer"].state) == "suspended"
            assert kinds(session.events()).count("agent.created") == 4
        # As if the process had ended when it was gone and the new one was not there yet.
        fork = fork_session(folder, retired.seq, settings=settings(server.base_url, crew="on"))
        try:
            made = only(fork.events(), "agent.created")
            assert [event.agent for event in made] == ["lead", "explorer", "verifier", "explorer"]
            assert made[-1].seq > retired.seq
            assert fork.read(lambda core: core.agents.agents["explorer"].state) == "suspended"
        finally:
            fork.close()
    assert prove(fork.folder).problem is None


def test_a_reviewer_amid_its_work_is_shortened_by_the_ledger(repo: Repo) -> None:
    """Its review of a batch is given up as the work asks to land; it has to look at that, with all that it has read."""
    repo.commit({"big.txt": "a line of a file with some words in it\n" * 350})
    read, closed = threading.Event(), threading.Event()

    def model(request: ParsedRequest) -> Answer:
        puts = [item["text"] for item in request.items if item.get("text", "").startswith("Review this change")]
        if puts:
            if "at tests" not in puts[0] or closed.is_set():
                return NOTHING
            if not any(item["type"] == "tool_result" for item in request.items):
                return AGAIN
            read.set()
            assert closed.wait(60)
            return NOTHING
        done = sum(item["type"] == "tool_result" for item in request.items)
        if done == 2:
            assert read.wait(60)
        look, more = Answer("", [Call("read", {"path": "other.txt"})]), edit("other.txt", "other", "others")
        return [EDIT, look, more, DONE][min(done, 3)]

    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on", review="full") as session:

        def saw(event: Event) -> None:
            if event.kind == "batch.closed":
                closed.set()

        session.read(lambda core: core.log.on_durable(saw))
        assert end(start(session)).met
        events, folder = session.events(), session.folder
    asked = [event for event in only(events, "critique.asked") if event.data["agent"] == "reviewer-tests"]
    assert [event.data["batch"] is None for event in asked] == [False, True]
    (cut,) = only(events, "context.compacted")
    assert (cut.agent, cut.data["how"]) == ("reviewer-tests", "reseed")
    assert cut.data["numbers"]["usd_reseed"] < cut.data["numbers"]["usd_retire"] < cut.data["numbers"]["usd_keep"]
    assert not only(events, "agent.retired")
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="run by make crash")
def test_workers_and_reviewers_give_way_too_as_they_are_given_other_work(repo: Repo) -> None:
    names = ("one", "two")
    repo.commit({"big.txt": "a line of a file with some words in it\n" * 350, **{f"{n}.txt": "wrong\n" for n in names}})
    # By the number of results that are there: so many of them after the first answer.
    play = {name: [[AGAIN, *[edit(f"{name}.txt", "wrong", "right")] * MANY]] for name in names}
    script = Reviewed(Crew(play), {"tests": [[AGAIN]]})
    graph = [
        {"name": name, "goal": f"Mend {name}.txt.", "accept": [f"grep -q right {name}.txt"], "writes": [f"{name}.txt"]}
        for name in names
    ]
    graph[1]["after"] = ["one"]
    spec = GoalSpec(TEXT, tuple(f"grep -q right {name}.txt" for name in names), workers=2, tasks=parse_tasks(graph))
    with ModelServer(script) as server, session_on(server.base_url, repo.root, review="full") as session:
        assert end(session.start_goal(spec)).met
        events, folder = session.events(), session.folder
    retired = only(events, "agent.retired")
    assert [event.agent for event in retired] == ["worker-1", "reviewer-tests"]
    assert all(event.data["numbers"]["usd_retire"] < event.data["numbers"]["usd_keep"] for event in retired)
    made = [event.agent for event in only(events, "agent.created")]
    assert sorted(each for each in set(made) if made.count(each) == 2) == ["reviewer-tests", "worker-1"]
    leased = only(events, "task.leased")
    assert [event.data["agent"] for event in leased] == ["worker-1", "worker-1"]
    assert retired[0].seq < leased[1].seq
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")
