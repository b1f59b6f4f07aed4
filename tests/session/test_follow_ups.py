"""Standing agents set their own next steps, begin them by themselves as they come due, and are bounded in it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from fixtures.crash_world import World, check_calls
from fixtures.crew_scripts import Crew, Looking, ask, edit, is_explorer, look_again, read
from fixtures.model_scripts import Answer, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, Watch, end, kinds, only, session_on, start

from musecode_jupyter.agents.follow_ups import MOST_WAITING, FollowUpsState
from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.log.events import Event
from musecode_jupyter.session import GoalSpec, Session
from musecode_jupyter.session.agents_view import agents_lines
from musecode_jupyter.session.replay import prove


def state(session: Session) -> FollowUpsState:
    return session.read(lambda core: core.log.state("follow_ups").model_copy(deep=True))  # type: ignore[return-value]


def told(requests: Sequence[ParsedRequest]) -> list[str]:
    """What the explorer wrote to the lead, in its newest conversation."""
    texts = [item.get("text", "") for item in requests[-1].items]
    return [text for text in texts if text.startswith("Mail from explorer")]


def test_a_next_step_begins_with_the_landing_that_it_waits_for_and_its_outcome_is_in_the_digest(repo: Repo) -> None:
    model = Looking(look_again("whether answer.txt is right", "answer.*"), look_again("the others", "other.txt"))
    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on", review="off") as session:
        watch = Watch(session)
        assert end(start(session)).met
        landed = watch.until("merge.landed")
        woken = watch.until("agent.woken", since=landed.seq)
        note = watch.until("mail.sent", to="lead", priority="digest")
        watch.until("agent.state", since=woken.seq, state="idle")
        agents = "\n".join(session.read(agents_lines))
        repo.write("answer.txt", "wrong\n")
        repo.commit({})
        assert end(start(session)).met
        events, folder = list(session.events()), session.folder
        left = state(session)
    assert woken.data["why"].startswith("its own next step")
    (due,) = [event for event in only(events, "mail.sent") if "You wanted to look again" in event.data["text"]]
    first, second = only(events, "follow_up.set")[:2]
    assert due.cause == (first.seq, landed.seq)
    assert woken.cause == (due.seq,)
    assert (note.agent, note.data["text"]) == ("explorer", "Opinion: it says right by now.")
    assert f"next step {second.seq}, once other.txt land: the others" in agents
    assert len(told(model.asked)) == 1
    # What does not come due costs nothing: one turn for the question of each goal, and one by itself.
    assert kinds(events).count("agent.woken") == 3
    assert second.seq in left.waiting
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_who_finds_nothing_tells_nothing_and_no_more_than_three_steps_wait(repo: Repo) -> None:
    many = [look_again(f"number {number}", "answer.txt") for number in range(MOST_WAITING + 1)]
    model = Looking(*many, found="Nothing.")
    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on", review="off") as session:
        watch = Watch(session)
        assert end(start(session)).met
        woken = watch.until("agent.woken", since=watch.until("merge.landed").seq)
        watch.until("agent.state", since=woken.seq, state="idle")
        events, folder = list(session.events()), session.folder
        left = state(session)
    assert len(only(events, "follow_up.set")) == MOST_WAITING
    assert any("next steps of yours wait already" in event.data["output"] for event in only(events, "tool.failed"))
    assert (left.waiting, left.due) == ({}, {})
    assert not [event for event in only(events, "mail.sent") if event.agent == "explorer" and event.data["to"] == "lead"
                and event.data["reply_to"] is None]  # fmt: skip
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_beyond_its_share_of_the_goals_limits_it_waits_as_mail(repo: Repo) -> None:
    """The work takes five of six steps: nobody begins by themselves, and nothing is lost."""
    model = Looking(look_again("whether it is right", "answer.txt"))
    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on", review="off") as session:
        assert end(start(session, steps=6)).met
        events, folder = list(session.events()), session.folder
        waiting = session.read(lambda core: core.crew.mailbox.state.waiting("explorer"))
    assert [letter.topic for letter in waiting.values()] == [f"next step {only(events, 'follow_up.set')[0].seq}"]
    assert kinds(events).count("agent.woken") == 1
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_what_waited_as_mail_is_not_taken_for_the_question_with_which_it_came(repo: Repo) -> None:
    """The answer to the lead's next question says nothing of the next step that came along with it."""
    model = Looking(look_again("whether it is right", "answer.txt"))
    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on", review="off") as session:
        assert end(start(session, steps=6)).met
        repo.write("answer.txt", "wrong\n")
        repo.commit({})
        assert end(start(session)).met
        events = list(session.events())
    (due,) = [event for event in only(events, "mail.sent") if "You wanted to look again" in event.data["text"]]
    assert due.seq in {event.data["mail"] for event in only(events, "mail.delivered")}
    assert not [event for event in only(events, "mail.sent") if event.data["topic"].startswith("next") and event != due]


def test_a_next_step_that_is_stopped_is_told(repo: Repo) -> None:
    """A goal that begins ends what the explorer does by itself: the lead reads that nothing came of it."""
    looking = Looking(look_again("whether it is right", "answer.txt"))
    under_way, go = threading.Event(), threading.Event()

    def model(request: ParsedRequest) -> Answer:
        again = any("You wanted to look again" in item.get("text", "") for item in request.items)
        if is_explorer(request) and again and not under_way.is_set():
            under_way.set()
            assert go.wait(60)
        return looking(request)

    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on", review="off") as session:
        assert end(start(session)).met
        assert under_way.wait(60)
        repo.write("answer.txt", "wrong\n")
        repo.commit({})
        handle = start(session)
        go.set()
        assert end(handle).met
        events, folder = list(session.events()), session.folder
    (note,) = [e for e in only(events, "mail.sent") if e.data["to"] == "lead" and e.data["topic"].startswith("next")]
    assert (
        "wanted to look again, and did not come to its end (it was stopped): whether it is right" in note.data["text"]
    )
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_what_is_no_path_of_the_repository_is_refused_before_it_is_in_the_log(repo: Repo) -> None:
    odd = ["[z-a].py", "", "../x", "/etc/passwd", "a\0b", "*" * 2_000]
    model = Looking(*(look_again("it", path) for path in odd))
    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on", review="off") as session:
        assert end(start(session)).met
        events = list(session.events())
    assert "follow_up.set" not in kinds(events)
    assert len([event for event in only(events, "tool.failed") if event.agent == "explorer"]) == len(odd)


def test_a_due_step_is_taken_up_after_a_restart_and_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off before its agent was told, before it was woken, amid its turn, and before what it found was passed on."""
    world = World(tmp_path / "world", tmp_path / "album")
    monkeypatch.setenv("MUSECODE_HOME", str(world.home))
    Repo(world.repo)
    chosen = {"crew": "on", "review": "off", "verifier": "off"}
    model = Looking(look_again("whether answer.txt is right", "answer.txt"))
    with ModelServer(model) as server, world.film(server.base_url, **chosen) as session:
        watch = Watch(session)
        assert end(start(session)).met
        note = watch.until("mail.sent", to="lead", priority="digest")
        watch.until("agent.state", since=note.seq, state="idle")
    events = world.records
    (landed,) = [each["seq"] for each in events if each["kind"] == "merge.landed"]
    its = [each for each in events if each["seq"] > landed and each["agent"] == "explorer"]
    (letter,) = [e["seq"] for e in events if e["kind"] == "mail.sent" and e["data"]["topic"].startswith("next")][:1]
    answered = [each["seq"] for each in its if each["kind"] == "model.completed"]
    for cut in (landed, letter, answered[0], answered[-1]):
        world.restore(world.point(world.line(cut).end))
        with (
            ModelServer(Looking()) as server,
            session_on(server.base_url, world.repo, resume=world.name, **chosen) as session,
        ):
            watch = Watch(session)
            watch.events += session.events()
            note = watch.until("mail.sent", to="lead", since=landed)
            watch.until("agent.state", state="idle", since=note.seq)
            check_calls(session.events(), ended={"explorer"})
            told = [event for event in only(session.events(), "mail.sent") if event.seq > landed]
            left = state(session)
        assert [(each.agent, each.data["to"]) for each in told] == [("harness", "explorer"), ("explorer", "lead")]
        assert (left.due, left.letters) == ({}, {})
        proof = prove(world.folder)
        assert (proof.problem, proof.unchecked) == (None, "")


def test_next_steps_of_who_gives_way_are_handed_on_and_of_who_goes_for_good_are_told(repo: Repo) -> None:
    role = repo.root / ".musecode/roles/librarian.md"
    role.parent.mkdir(parents=True)
    role.write_text("---\npurpose: Knows the data.\ntools: read follow_up\nwakes: mail\n---\nAnswer.\n")
    explored: list[ParsedRequest] = []

    def model(request: ParsedRequest) -> Answer:
        done = sum(item["type"] == "tool_result" for item in request.items)
        if request.instructions.startswith("You are the librarian"):
            return Answer("I do not know.") if done else Answer("", [look_again("the columns", "other.txt")])
        if is_explorer(request):
            explored.append(request)
            if any("wanted to look again" in item.get("text", "") for item in request.items):
                return Answer("Nothing.")
            return Answer("I do not know.") if done else Answer("", [look_again("whether it is right", "answer.txt")])
        goals = [n for n, item in enumerate(request.items) if item.get("text", "").startswith("Goal: ")]
        if len(goals) == 1:
            return [ask("What?"), ask("Which?", agent="librarian"), DONE][min(done, 2)]
        return DONE if any(item["type"] == "tool_result" for item in request.items[goals[-1] :]) else EDIT

    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on", review="off") as session:
        session.trust_roles()
        watch = Watch(session)
        handle = start(session, steps=7)
        assert not end(handle).met
        session.call(lambda core: core.crew.retire("explorer", "it has read enough", {}))
        session.distrust_roles()
        note = watch.until("mail.sent", to="lead", priority="digest")
        handle.clear()
        assert end(start(session)).met
        watch.until("mail.acknowledged", since=watch.until("agent.woken", since=watch.until("merge.landed").seq).seq)
        folder = session.folder
    assert (
        "librarian wanted to look again once one of other.txt had landed, and does not: librarian is retired"
        in (note.data["text"])
    )
    assert note.data["text"].endswith("It was: the columns")
    texts = [item.get("text", "") for item in explored[-1].items]
    assert any("The one that had your name before you wanted to look again once this changed" in each for each in texts)
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")


def test_a_step_that_comes_due_while_its_agent_answers_somebody_has_a_turn_of_its_own(repo: Repo) -> None:
    repo.commit({"one.txt": "wrong\n", "two.txt": "wrong\n"})
    due = threading.Event()

    def explorer(request: ParsedRequest) -> Answer:
        if any("You wanted to look again" in item.get("text", "") for item in request.items):
            return Answer("Opinion: it is right.")
        done = sum(item["type"] == "tool_result" for item in request.items)
        if done == 1:
            # Another step comes after this one, within the same turn.
            assert due.wait(60)
        return [Answer("", [look_again("whether one is right", "one.txt")]), read("one.txt"), Answer("I do not know.")][
            done
        ]

    workers = Crew(
        {"one": [[edit("one.txt", "wrong", "right")]], "two": [[ask("What?"), edit("two.txt", "wrong", "right")]]}
    )
    checks = {name: f"grep -q right {name}.txt" for name in ("one", "two")}
    tasks = [{"name": n, "goal": f"Mend {n}.", "accept": [c], "writes": [f"{n}.txt"]} for n, c in checks.items()]
    asked = threading.Event()

    def model(request: ParsedRequest) -> Answer:
        if is_explorer(request):
            asked.set()
            return explorer(request)
        answer = workers(request)
        if answer.calls and answer.calls[0].arguments.get("path") == "one.txt":
            assert asked.wait(60)
        return answer

    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on", review="off") as session:

        def saw(event: Event) -> None:
            if event.kind == "mail.sent" and event.data["topic"].startswith("next step"):
                due.set()

        watch = Watch(session)
        session.read(lambda core: core.log.on_durable(saw))
        goal = GoalSpec("mend both", tuple(checks.values()), workers=2, tasks=parse_tasks(tasks))
        assert end(session.start_goal(goal)).met
        note = watch.until("mail.sent", to="lead", priority="digest")
        watch.until("agent.state", since=note.seq, state="idle")
        events, folder = session.events(), session.folder
    woken = only(events, "agent.woken")
    assert [event.data["why"].split(" (")[0] for event in woken] == ["asked by worker-2", "its own next step"]
    assert (note.agent, note.data["text"]) == ("explorer", "Opinion: it is right.")
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")
