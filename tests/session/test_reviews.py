"""A landing waits for the review: findings send work back or stop it, and are fixed, or settled by the user."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.crash_world import World
from fixtures.crew_scripts import Crew, edit
from fixtures.model_scripts import Answer, Call, ParsedRequest, Steps
from fixtures.model_server import ModelServer
from fixtures.review_scripts import Reviewed, finding, span
from fixtures.session_bench import CHECK, DONE, EDIT, Repo, end, kinds, only, session_on, start

from musecode_jupyter.agents.critiques.state import CritiquesState
from musecode_jupyter.agents.critiques.text import critiques_of
from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.session import GoalSpec, Session
from musecode_jupyter.session.critiques import settle
from musecode_jupyter.session.replay import prove

TEST = "def test_answer():\n    assert open('answer.txt').read() == 'right\\n'\n"


def critiques(session: Session) -> CritiquesState:
    return session.read(lambda core: critiques_of(core.log).model_copy(deep=True))


def test_a_finding_with_evidence_sends_the_work_back_and_is_marked_fixed(repo: Repo) -> None:
    work = Steps([EDIT, DONE, edit("answer.txt", "right", "all right"), DONE])
    objects = finding("answer.txt", 1, "It says too little.", span("answer.txt", 1, "right"))
    script = Reviewed(work, {"correctness": [[objects], []]})
    with ModelServer(script) as server, session_on(server.base_url, repo.root, review="full") as session:
        handle = start(session)
        result = end(handle)
        assert result.met
        state = critiques(session)
        events = list(session.events())
        spent = session.ledger.by_agent
    (raised,) = state.findings.values()
    assert (raised.state, raised.blocks, raised.passes) == ("fixed", False, ["correctness"])
    assert (raised.place.text, raised.hunk) == ("right", "@@ -1,1 +1,1 @@\n-wrong\n+right")
    assert [(e.data["ok"]) for e in only(events, "merge.reviewed")] == [False, True]
    (back,) = [e for e in only(events, "goal.judged") if not e.data["passed"] and e.data["where"] == "landing"]
    assert "It says too little." in back.data["report"]
    assert repo.read("answer.txt") == "all right\n"
    # Three passes a review; what they cost counts for the goal.
    reviewers = {name for name in spent if name.startswith("reviewer-")}
    assert len(reviewers) == 3
    assert result.model_calls == sum(each.calls for each in spent.values()) == 4 + 3 + 1 + 3
    assert len(script.asked) == 6
    # The second time a reviewer knows what was raised before.
    assert "Raised before" in script.asked[3]
    proof = prove(session.folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_an_opinion_and_false_evidence_stop_nothing(repo: Repo) -> None:
    opinion = finding("answer.txt", 1, "I do not like it.")
    invented = finding("answer.txt", 1, "It crashes.", span("answer.txt", 1, "raise ValueError"), kind="crash")
    ran = {"form": "command", "call": 1, "text": "Traceback"}
    no_command = finding("answer.txt", 1, "The check fails.", ran, kind="other")
    script = Reviewed(Steps([EDIT, DONE]), {"correctness": [[opinion, invented]], "tests": [[no_command]]})
    with ModelServer(script) as server, session_on(server.base_url, repo.root, review="full") as session:
        assert end(start(session)).met
        found = list(critiques(session).findings.values())
    assert sorted((each.check, each.proven, each.blocks) for each in found) == [
        ("crash", False, False),
        ("other", False, False),
        ("wrong-result", False, False),
    ]


def test_what_several_passes_raise_of_one_place_is_one_finding(repo: Repo) -> None:
    first = finding("answer.txt", 1, "It is wrong.", span("answer.txt", 1, "right"), severity="major")
    second = finding("answer.txt", 1, "Not what was asked.", severity="minor")
    script = Reviewed(Steps([EDIT, DONE]), {"correctness": [[first]], "simplicity": [[second]]})
    with ModelServer(script) as server, session_on(server.base_url, repo.root, review="full") as session:
        assert end(start(session)).met
        (only_one,) = critiques(session).findings.values()
    assert (only_one.passes, only_one.severity, only_one.text) == (
        ["correctness", "simplicity"],
        "major",
        "It is wrong.",
    )


def test_findings_that_stay_stop_the_goal_until_the_user_settles_them(repo: Repo) -> None:
    objects = finding("answer.txt", 1, "It is wrong.", span("answer.txt", 1, "right"))
    script = Reviewed(Steps([EDIT, DONE]), {"tests": [[objects], []]})
    with ModelServer(script) as server, session_on(server.base_url, repo.root, review="full") as session:
        handle = start(session)
        result = end(handle)
        (number,) = critiques(session).findings
        assert result.status == "blocked"
        assert "Sent back 2 times" in result.why
        assert f"%muse critiques answer {number} TEXT" in result.why
        asked = len(script.asked)
        session.call(lambda core: settle(core, number, "answer", "It is what I want."))
        handle.resume()
        assert end(handle).met
        # The same tree is not reviewed again.
        assert len(script.asked) == asked == 3
        assert critiques(session).findings[number].state == "answered"
    proof = prove(session.folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_what_is_proven_needs_no_model_and_goes_back(repo: Repo) -> None:
    repo.commit({"test_answer.py": TEST})
    weaker = Answer(
        "I mend the test.",
        [Call("edit", {"path": "test_answer.py", "old": "== 'right\\n'", "new": "== 'wrong\\n'"})],
    )
    mend = edit("test_answer.py", "== 'wrong\\n'", "== 'right\\n'")
    script = Steps([weaker, EDIT, DONE, mend, DONE])
    with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
        assert end(start(session, CHECK)).met
        (raised,) = critiques(session).findings.values()
        events = list(session.events())
    assert (raised.check, raised.severity, raised.state) == ("expected-value", "blocking", "fixed")
    assert raised.place.text == "    assert open('answer.txt').read() == 'wrong\\n'"
    assert repo.read("test_answer.py") == TEST
    assert "critique.asked" not in kinds(events)


def test_no_review_where_it_is_off(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"test_answer.py": TEST})
    removed = Answer("", [Call("run", {"command": "rm test_answer.py"})])
    script = Steps([removed, EDIT, DONE])
    with ModelServer(script) as server, session_on(server.base_url, repo.root, review="off") as session:
        assert end(start(session, CHECK)).met
        assert not [kind for kind in kinds(list(session.events())) if kind.startswith("critique.")]


def test_a_review_that_was_cut_off_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "world", tmp_path / "album")
    monkeypatch.setenv("MUSECODE_HOME", str(world.home))
    Repo(world.repo)
    objects = finding("answer.txt", 1, "It could be more.", span("answer.txt", 1, "right"), severity="minor")
    script = Reviewed(Steps([EDIT, DONE]), {"correctness": [[objects]]})
    with ModelServer(script) as server, world.film(server.base_url, review="full") as session:
        assert end(start(session)).met
    names = {record["seq"] for record in world.records if record["data"].get("name") == "finding"}
    at = next(r["seq"] for r in world.records if r["kind"] == "tool.finished" and r["data"]["call"] in names)
    world.restore(next(point for point in world.boundaries() if point.whole == at))
    # The lead has said its last word; who finds a fault is put the change once.
    script = Reviewed(Steps([Answer("There is nothing to do.")]), {})
    with (
        ModelServer(script) as server,
        session_on(server.base_url, world.repo, resume=world.name, review="full") as session,
    ):
        handle = session.newest_goal()
        handle.resume()
        assert end(handle).met
        events = list(session.events())
        (raised,) = critiques(session).findings.values()
    assert (raised.text, raised.state, raised.proven) == ("It could be more.", "open", True)
    assert len(only(events, "critique.asked")) == 3
    assert len({event.agent for event in only(events, "agent.created")}) == 4
    proof = prove(session.folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_workers_work_goes_back_through_the_queue_until_the_review_agrees(repo: Repo) -> None:
    repo.commit({f"{name}.txt": "wrong\n" for name in ("one", "two")})
    tasks = [
        {"name": name, "goal": f"Mend {name}.", "accept": [f"grep -q right {name}.txt"], "writes": [f"{name}.txt"]}
        for name in ("one", "two")
    ]
    mend = {name: [[edit(f"{name}.txt", "wrong", "right")]] for name in ("one", "two")}
    mend["one"].append([edit("one.txt", "right", "all right")])
    objects = finding("one.txt", 1, "It says too little.", span("one.txt", 1, "right"))

    def review(request: ParsedRequest) -> list[Answer]:
        last = next(item["text"] for item in reversed(request.items) if item.get("role") == "user")
        return [objects] if "+right" in last and "one.txt" in last else []

    script = Reviewed(Crew(mend), {"correctness": review})
    goal = GoalSpec(
        "mend both", ("grep -q right one.txt", "grep -q right two.txt"), workers=2, tasks=parse_tasks(tasks)
    )
    with ModelServer(script) as server, session_on(server.base_url, repo.root, review="full") as session:
        assert end(session.start_goal(goal)).met
        events = list(session.events())
        (raised,) = critiques(session).findings.values()
    assert (raised.state, raised.scope) == ("fixed", f"goal {raised.goal} task {raised.task}")
    (bounced,) = only(events, "task.bounced")
    assert "It says too little." in bounced.data["report"]
    assert [e.data["ok"] for e in only(events, "merge.reviewed")].count(False) == 1
    assert (repo.read("one.txt"), repo.read("two.txt")) == ("all right\n", "right\n")
    proof = prove(session.folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_a_task_that_the_user_lets_go_on_has_its_rounds_again(repo: Repo) -> None:
    """It was given up as sent back too often, although the user had just said that the finding is to be done."""
    repo.commit({"one.txt": "wrong\n"})
    work = Crew({"one": [[edit("one.txt", "wrong", "right")], [], [], [], [edit("one.txt", "right", "all right")]]})
    given = [{"name": "one", "goal": "Mend it.", "accept": ["grep -q right one.txt"], "writes": ["one.txt"]}]

    def review(request: ParsedRequest) -> list[Answer]:
        last = next(item["text"] for item in reversed(request.items) if item.get("role") == "user")
        return [finding("one.txt", 1, "Too little.", span("one.txt", 1, "right"))] if "+right" in last else []

    goal = GoalSpec("mend it", ("grep -q right one.txt",), workers=2, tasks=parse_tasks(given))
    with (
        ModelServer(Reviewed(work, {"correctness": review})) as server,
        session_on(server.base_url, repo.root, review="full") as session,
    ):
        handle = session.start_goal(goal)
        assert "Sent back 2 times because of the review" in end(handle).why
        (number,) = critiques(session).findings
        session.call(lambda core: settle(core, number, "accept", ""))
        handle.resume()
        assert end(handle).met
        assert len(only(list(session.events()), "task.bounced")) == 4
    assert repo.read("one.txt") == "all right\n"
    proof = prove(session.folder)
    assert (proof.problem, proof.unchecked) == (None, "")
