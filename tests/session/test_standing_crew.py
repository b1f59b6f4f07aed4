"""The standing crew: one for the session, asked by the lead, woken by mail alone, the same after a restart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fixtures.crew_scripts import Asking, ask, is_explorer, read
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, Watch, end, kinds, only, session_on, start

from musecode_jupyter.agents import crew
from musecode_jupyter.agents.masking import SHARE, STANDING
from musecode_jupyter.session.agents_view import agents_lines
from musecode_jupyter.session.replay import prove


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "home"))
    return Repo(tmp_path / "repo")


def test_the_explorer_answers_from_what_it_has_read_and_stays_for_the_next_goal(repo: Repo) -> None:
    model = Asking(ask("What does answer.txt say?"), ask("What does answer.txt say?"), EDIT, DONE)
    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on") as session:
        assert end(start(session)).met
        repo.commit({"answer.txt": "wrong\n"})
        assert end(start(session)).met
        events, folder = list(session.events()), session.folder
    answers = [e.data["output"] for e in only(events, "tool.finished") if e.data["output"] == "It says: wrong."]
    assert len(answers) == 4
    assert [event.agent for event in only(events, "agent.created")] == ["lead", "explorer", "verifier"]
    reads = [e for e in only(events, "tool.requested") if e.agent == "explorer"]
    assert [event.data["arguments"]["path"] for event in reads] == ["answer.txt"], "it read again what it knew"
    for before, after in zip(model.explored, model.explored[1:], strict=False):
        assert after.items[: len(before.items)] == before.items, "a prompt does not extend the one before it"
    woken = only(events, "agent.woken")
    assert len(woken) == 4
    sent = {event.seq for event in only(events, "mail.sent") if event.agent == "lead"}
    assert {event.cause[0] for event in woken} == sent
    proof = prove(folder)
    assert proof.ok, proof.problem
    assert not proof.unchecked


def test_what_it_has_read_stays_where_a_workers_old_output_would_be_left_out(repo: Repo) -> None:
    """Two files that together are more than a fifth of the room, and less than half of it."""
    text = "a line of a file with some words in it\n" * 150
    repo.commit({"one.txt": text, "two.txt": text.replace("words", "terms")})
    reads: list[str] = []

    def model(request: ParsedRequest) -> Answer:
        if is_explorer(request):
            path = re.findall(r"What does (\S+) say", " ".join(item.get("text", "") for item in request.items))[-1]
            word = {"one.txt": "some words", "two.txt": "some terms"}[path]
            if any(word in item.get("output", "") for item in request.items):
                return Answer("Much.")
            reads.append(path)
            return read(path)
        done = sum(item["type"] == "tool_result" for item in request.items)
        return [*(ask(f"What does {name}.txt say?") for name in ("one", "two", "one", "two")), EDIT, DONE][min(done, 5)]

    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on", context="16384") as session:
        assert end(start(session)).met
        events, room = session.events(), session.read(lambda core: core.gate.room)
    assert reads == ["one.txt", "two.txt"], "it read again what was left out"
    assert "context.masked" not in kinds(events)
    output = sum(len(event.data["output"]) for event in only(events, "tool.finished") if event.agent == "explorer")
    assert SHARE * room < output / 4 < STANDING * room


def test_it_is_told_what_has_changed_since_it_read_it_and_only_that_once(repo: Repo) -> None:
    other = ask("What does other.txt say?")
    model = Asking(ask("What does answer.txt say?"), EDIT, other, other, DONE)
    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on") as session:
        assert end(start(session)).met
        events = list(session.events())
    (changed,) = only(events, "file.changed")
    (note,) = [event for event in only(events, "mail.sent") if event.agent == "harness"]
    assert note.data["to"] == "explorer"
    assert note.data["text"].startswith("Changed since you read them: answer.txt. ")
    assert note.data["priority"] == "digest"
    assert note.cause == (changed.seq,)
    texts = ["\n".join(item.get("text", "") for item in request.items) for request in model.explored]
    assert [text.count("Changed since you read them") for text in texts] == [0, 0, 1, 1]


def test_its_calls_count_for_the_goal_of_whoever_asked(repo: Repo) -> None:
    model = Asking(ask("What does answer.txt say?"), EDIT, DONE)
    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on") as session:
        handle = start(session)
        assert end(handle).met
        explorer = session.ledger.by_agent["explorer"]
        lead = session.ledger.by_agent["lead"]
        assert explorer.calls == 2
        assert handle.result.model_calls == explorer.calls + lead.calls
        assert handle.result.usd == pytest.approx(explorer.usd + lead.usd)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ask("Who?", agent="stranger"), "There is no 'stranger' to ask. There are: explorer."),
        (ask("Who?", agent="lead"), "There is no 'lead' to ask. There are: explorer."),
        (ask("  "), "The question is empty."),
    ],
)
def test_a_question_that_cannot_be_put_is_refused_and_says_why(repo: Repo, answer: Answer, told: str) -> None:
    with (
        ModelServer(Asking(answer, EDIT, DONE)) as server,
        session_on(server.base_url, repo.root, crew="on") as session,
    ):
        assert end(start(session)).met
        events = list(session.events())
    assert [event.data["output"] for event in only(events, "tool.failed")] == [told]
    assert "agent.woken" not in kinds(events)


def test_an_agent_cannot_use_a_tool_that_its_role_lacks(repo: Repo) -> None:
    """It neither edits nor asks another one: whoever is asked has nobody below, itself least of all."""

    def model(request: ParsedRequest) -> Answer:
        if is_explorer(request):
            refused = sum(item["type"] == "tool_result" for item in request.items)
            return [EDIT, ask("What now?"), Answer(request.items[-1].get("output", ""))][refused]
        done = sum(item["type"] == "tool_result" for item in request.items)
        return [ask("Correct it yourself."), EDIT, DONE][min(done, 2)]

    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on") as session:
        assert end(start(session)).met
        events, folder = list(session.events()), session.folder
    assert [event.agent for event in only(events, "file.changed")] == ["lead"]
    told = [(event.agent, event.data["output"]) for event in only(events, "tool.failed")]
    there = "The tools are: check_claim, claim, follow_up, map, read, search."
    assert told == [("explorer", f"There is no tool '{name}'. {there}") for name in ("edit", "ask")]
    assert len(only(events, "agent.woken")) == 1
    assert prove(folder).problem is None


def test_stopping_whoever_asked_ends_the_turn_and_leaves_nothing_open(repo: Repo) -> None:
    asked = []

    def model(request: ParsedRequest) -> Answer:
        if is_explorer(request):
            asked.append(request)
            return Answer("", [Call("read", {"path": "answer.txt"})])
        done = sum(item["type"] == "tool_result" for item in request.items)
        return [ask("What does answer.txt say?"), EDIT, DONE][min(done, 2)]

    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on") as session:
        watch = Watch(session)
        handle = start(session)
        watch.until("file.observed", path="answer.txt")
        handle.stop()
        events = list(session.events())
        asked_for = len(asked)
        assert session.read(lambda core: core.crew.busy) == []
        assert session.read(lambda core: core.crew.mailbox.state.letters) == {}
        states = {event.agent: event.data for event in only(events, "agent.state")}
        assert states["explorer"] == {"state": "idle", "why": "it was stopped"}
        assert len(asked) == asked_for
        folder = session.folder
    assert prove(folder).problem is None


def test_a_turn_that_never_ends_is_ended_and_whoever_asked_is_told(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "MAX_STEPS", 6)

    def model(request: ParsedRequest) -> Answer:
        if is_explorer(request):
            return Answer("", [Call("search", {"pattern": "x"})])
        done = sum(item["type"] == "tool_result" for item in request.items)
        return [ask("What does answer.txt say?"), EDIT, DONE][min(done, 2)]

    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on") as session:
        assert end(start(session)).met
        events, folder = list(session.events()), session.folder
    (failed,) = [event for event in only(events, "tool.failed") if event.agent == "lead"]
    assert failed.data["output"] == "explorer did not answer: no answer after 6 model calls."
    assert prove(folder).problem is None


def test_after_a_restart_it_comes_back_suspended_and_knows_what_it_knew(repo: Repo) -> None:
    model = Asking(ask("What does answer.txt say?"), EDIT, DONE)
    with ModelServer(model) as server:
        with session_on(server.base_url, repo.root, crew="on") as session:
            assert end(start(session)).met
            name = session.id
        repo.commit({"answer.txt": "wrong\n"})
        before = model.explored[-1]
        with session_on(server.base_url, repo.root, resume=name, crew="on") as session:
            assert session.read(lambda core: core.agents.agents["explorer"].state) == "suspended"
            assert len(model.explored) == 2, "a model call without a cause"
            assert end(start(session)).met
            lines = session.read(agents_lines)
            folder = session.folder
    assert model.explored[2].items[: len(before.items)] == before.items
    lines = [line for line in lines if not line.startswith(" ")]
    assert [line.partition(":")[0] for line in lines] == ["lead", "explorer", "verifier"]
    told = r"explorer, driver, \S+: idle, 3 model calls, .* woken last: asked by lead .* 1 files read"
    assert re.search(told, lines[1])
    assert prove(folder).problem is None


def test_what_it_claims_goes_with_its_answer_and_is_taken_back_from_whoever_has_it(repo: Repo) -> None:
    cited = {"kind": "file", "path": "answer.txt", "first_line": 1, "text": "wrong"}
    claim = {"text": "answer.txt says wrong", "type": "location", "evidence": [cited]}
    steps = [read("answer.txt"), Answer("", [Call("claim", claim)]), Answer("It says wrong.")]
    leads: list[ParsedRequest] = []

    def model(request: ParsedRequest) -> Answer:
        if is_explorer(request):
            return steps.pop(0) if len(steps) > 1 else steps[0]
        leads.append(request)
        since = [place for place, item in enumerate(request.items) if item.get("text", "").startswith("Goal: ")][-1]
        done = sum(item["type"] == "tool_result" for item in request.items[since:])
        return [ask("What does answer.txt say?"), EDIT, DONE][min(done, 2)]

    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on") as session:
        assert end(start(session)).met
        (number,) = [seq for seq, each in session.claims.claims.items() if each.author == "explorer"]
        assert {"lead", "explorer"} <= session.claims.claims[number].held.keys()
        assert session.claims.standing(number).label == "stale"
        repo.commit({"answer.txt": "wrong\n"})
        session.retract_claim(number, "I wrote it anew.")
        assert end(start(session)).met
        events, folder = list(session.events()), session.folder
    assert any(f"About claim {number}" in item.get("text", "") for item in leads[-1].items)
    letters = [event for event in only(events, "mail.sent") if event.agent == "harness"]
    told = [(event.data["to"], event.data["claims"]) for event in letters if event.data["claims"]]
    assert ("lead", [number]) in told
    assert ("explorer", [number]) in told
    assert prove(folder).problem is None


def test_the_card_of_a_landing_says_what_the_work_relies_on(repo: Repo) -> None:
    cited = {"kind": "file", "path": "other.txt", "first_line": 1, "text": "other"}
    claim = {"text": "other.txt says other", "type": "location", "evidence": [cited]}
    steps = [read("other.txt"), Answer("", [Call("claim", claim)]), Answer("It says other.")]

    def model(request: ParsedRequest) -> Answer:
        if is_explorer(request):
            return steps.pop(0) if len(steps) > 1 else steps[0]
        done = sum(item["type"] == "tool_result" for item in request.items)
        return [ask("What does other.txt say?"), EDIT, DONE][min(done, 2)]

    chosen = {"crew": "on", "approvals": "ask"}
    with (
        ModelServer(model) as server,
        session_on(server.base_url, repo.root, interactive=True, **chosen) as session,
    ):
        watch = Watch(session)
        handle = start(session)
        asked = watch.until("approval.requested", action="land")
        (number,) = [seq for seq, each in session.claims.claims.items() if each.author == "explorer"]
        said = f"claim {number} of explorer, supported: other.txt says other"
        assert asked.data["shown"]["claims relied on"] == [said]
        session.answer(asked.seq, "approve", by="test")
        assert end(handle).met
        folder = session.folder
    assert prove(folder).problem is None


def test_what_it_says_of_the_code_as_certain_is_passed_on_once_a_claim_stands_behind_it(repo: Repo) -> None:
    cited = {"kind": "file", "path": "other.txt", "first_line": 1, "text": "other"}
    claim = Answer("", [Call("claim", {"text": "other.txt says other", "type": "location", "evidence": [cited]})])
    bare = Answer("other.txt:1 says other.")
    steps = [read("other.txt"), bare, claim, Answer("other.txt:1 says other."), Answer("It is in other.txt."), bare]
    asked: list[ParsedRequest] = []

    def model(request: ParsedRequest) -> Answer:
        if is_explorer(request):
            asked.append(request)
            return steps[min(len(asked) - 1, 5)]
        done = sum(item["type"] == "tool_result" for item in request.items)
        return [ask("Where?"), ask("And where?"), EDIT, DONE][min(done, 3)]

    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on") as session:
        assert end(start(session)).met
        events, folder = list(session.events()), session.folder
    refused = [event for event in only(events, "mail.sent") if event.data["reason"].endswith("is not passed on")]
    assert [event.data["to"] for event in refused] == ["explorer", "explorer"]
    assert "it says something of other.txt as certain, and no claim stands behind it" in asked[2].items[-1]["text"]
    (number,) = [event.seq for event in only(events, "claim.asserted") if event.agent == "explorer"]
    answers = [event for event in only(events, "mail.sent") if event.data["reply_to"] is not None]
    assert [event.data["claims"] for event in answers] == [[number], []]
    told = [event.data["output"] for event in only(events, "tool.finished") if event.agent == "lead"]
    opinion = "Opinion, with no claim to show for it: other.txt:1 says other."
    assert told[:2] == ["other.txt:1 says other.", opinion]
    assert len(only(events, "agent.woken")) == 2
    proof = prove(folder)
    assert proof.ok, proof.problem
    assert not proof.unchecked
