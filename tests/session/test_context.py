"""Conversations that get too long: masked, shortened, begun anew; with a scripted server and a small window."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from fixtures.long_talks import SUMMARY, Reading, asks_for_summary, read_call
from fixtures.model_scripts import Answer, Call, Fault, ParsedRequest
from fixtures.model_server import ModelServer, SeenRequest
from fixtures.session_bench import (
    DONE,
    EDIT,
    Held,
    Hurried,
    Repo,
    end,
    only,
    said,
    session_on,
    settings,
    start,
)

from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.agents_view import agents_lines
from musecode_jupyter.session.api import fork_session
from musecode_jupyter.session.context import pin
from musecode_jupyter.session.replay import prove
from musecode_jupyter.tools.state import CLOSING

LONG = pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="a minute together: run by make crash")
WINDOW = "10496"
FILES = {f"f{n}.txt": "".join(f"line {i} of file {n}, with some words\n" for i in range(55)) for n in range(6)}
READS = [read_call(f"f{n % 6}.txt") for n in range(22)]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSECODE_HOME", str(tmp_path / "home"))


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "repo")
    made.commit(FILES)
    return made


def shortened(events: list[Event]) -> list[Event]:
    return only(events, "context.compacted")


def asked(server: ModelServer) -> list[Any]:
    """The bodies of the requests, questions for summaries left out."""
    return [seen.json for seen in server.requests if not is_question(seen)]


def is_question(seen: SeenRequest) -> bool:
    return b"Write that summary now" in seen.body


def proved(session_folder: Path) -> None:
    """The session proves itself; and however many reasons there were to shorten, once was enough before an answer."""
    proof = prove(session_folder)
    assert proof.problem is None, proof.problem
    assert proof.unchecked == ""
    asked, answered = {}, set()
    for event in EventLog.read(session_folder).events():
        if event.kind == "model.requested":
            asked[event.seq] = event.data["purpose"]
        elif event.kind == "model.completed" and asked[event.data["request"]] != "compact":
            answered.add(event.agent)
        elif event.kind == "context.compacted":
            assert event.agent in answered, f"shortened again at event {event.seq}, and nothing was said since"
            answered.remove(event.agent)


def test_a_long_goal_is_masked_and_shortened_with_all_of_it_provable(repo: Repo) -> None:
    """Each prompt extends the one before, except where the log says why not; calls and results stay paired."""
    model = Reading([*READS[:10], [READS[0], READS[1]], *READS[10:]], [EDIT, DONE])
    with ModelServer(model) as server, session_on(server.base_url, repo.root, context=WINDOW) as session:
        handle = start(session)
        assert end(handle).met
        events, folder = session.events(), session.folder
        text = "\n".join(session.read(agents_lines))
    assert all(seen.status == 200 for seen in server.requests), "the strict server takes only paired conversations"
    cuts = shortened(events)
    assert len(cuts) == model.summaries >= 1
    masked = only(events, "context.masked")
    assert masked
    changes = [event.seq for event in (*cuts, *masked)]
    requests = [event for event in only(events, "model.requested") if event.data["view"] is None]
    grown = 0
    for (before, body), (after, following) in zip(
        zip(requests, asked(server), strict=True), list(zip(requests, asked(server), strict=True))[1:], strict=False
    ):
        assert (following["instructions"], following["tools"]) == (body["instructions"], body["tools"])
        if not any(before.seq < seq < after.seq for seq in changes):
            assert following["input"][: len(body["input"])] == body["input"]
            grown += 1
    assert grown > len(requests) // 3
    last = cuts[-1].data
    assert last["after"] < 0.8 * last["before"]
    for told in ("# Goal\nGoal: say right", "`grep -q right answer.txt`", SUMMARY):
        assert told in last["text"]
    assert re.search(r"^- f3\.txt: read, digest [0-9a-f]{12}$", last["text"], re.MULTILINE)
    assert "tokens" in text
    assert "shortened at event" in text
    newest = {event.data["call"]: event.seq for event in events if event.kind in CLOSING}
    for mask in masked:
        answers = [event for event in only(events, "model.completed") if event.seq < mask.seq]
        assert all(each["result"] < answers[-1].seq for each in mask.data["calls"]), "the newest step stays"
        assert all(newest[each["call"]] == each["result"] for each in mask.data["calls"])
    proved(folder)


@pytest.mark.crash
@LONG
def test_a_summary_begins_with_the_same_bytes_as_the_conversation(repo: Repo) -> None:
    """Its tokens come out of the server's cache; asked in another form they would all be paid in full."""
    model = Reading(READS, [EDIT, DONE])
    with ModelServer(model) as server, session_on(server.base_url, repo.root, context=WINDOW) as session:
        assert end(start(session)).met
        events = session.events()
    question = next(seen.json for seen in server.requests if is_question(seen))
    before = server.requests[next(n for n, seen in enumerate(server.requests) if is_question(seen)) - 1].json
    assert question["input"][: len(before["input"])] == before["input"]
    assert question["tools"] == before["tools"]
    view = next(event for event in only(events, "agent.view"))
    assert len(str(dict(view.data))) < 2_000, "the conversation is not written down again"


def no_summary(kind: str) -> Answer:
    return {
        "a call": Answer("", [read_call("f1.txt")]),
        "a refusal": Answer("I will not.", fault=Fault("refusal")),
        "nothing": Answer(""),
        "too long": Answer(fault=Fault("status", status=400, code="context_length_exceeded", message="too long")),
    }[kind]


@pytest.mark.crash
@LONG
@pytest.mark.parametrize("kind", ["a call", "a refusal", "nothing", "too long"])
def test_without_a_summary_the_facts_are_carried_all_the_same(repo: Repo, kind: str) -> None:
    model = Reading(READS, [EDIT, DONE], summary=lambda _: no_summary(kind))
    with ModelServer(model) as server, session_on(server.base_url, repo.root, context=WINDOW) as session:
        assert end(start(session)).met
        events, folder = session.events(), session.folder
    (cut, *_) = shortened(events)
    assert cut.data["summary"] is None
    assert "# Summary" not in cut.data["text"]
    assert "# Goal\nGoal: say right" in cut.data["text"]
    assert [e.data["arguments"] for e in only(events, "tool.requested") if e.data["origin"] == "model"][:22] == [
        {"path": call.arguments["path"], "start_line": 1, "end_line": None} for call in READS
    ]
    proved(folder)


TOO_LONG = Fault("status", status=400, code="context_length_exceeded", message="This is too long for the model.")


class Narrow:
    """A server whose window is smaller than was said: it refuses requests of more than `most` bytes."""

    def __init__(self, model: Reading, most: int) -> None:
        self.model = model
        self.most = most
        self.refused = 0

    def __call__(self, request: ParsedRequest) -> Answer:
        if len(str(request.raw)) > self.most:
            self.refused += 1
            return Answer(fault=TOO_LONG)
        return self.model(request)


def test_a_server_that_finds_a_request_too_long_gets_a_shorter_one(repo: Repo) -> None:
    """The goal ended with that error, though the conversation could be made shorter."""
    narrow = Narrow(Reading(READS, [EDIT, DONE]), 22_000)
    with ModelServer(narrow) as server, session_on(server.base_url, repo.root, context="200_000") as session:
        assert end(start(session)).met
        events, folder = session.events(), session.folder
    assert shortened(events)[0].data["why"] == "the server found the request too long"
    # From then on its window is known, and questions for a summary fit.
    assert narrow.refused <= 2
    assert narrow.model.summaries >= 1
    proved(folder)


@pytest.mark.crash
@LONG
def test_a_server_that_takes_nothing_is_asked_once_more_and_no_more(repo: Repo) -> None:
    narrow = Narrow(Reading(READS[:3], [EDIT, DONE]), 5_000)
    with ModelServer(narrow) as server, session_on(server.base_url, repo.root, context="200_000") as session:
        result = end(start(session))
        events, folder = session.events(), session.folder
    assert result.status in {"error", "paused"}
    assert "too long" in result.why
    assert len(shortened(events)) <= 1
    assert len(server.requests) < 6
    proved(folder)


def test_pinned_content_that_does_not_fit_ends_in_a_question_and_not_in_a_spiral(repo: Repo) -> None:
    """Two attempts at most; then the user is told what is in the way, and can let it go."""
    model = Reading(READS, [EDIT, DONE])

    def pinning(request: ParsedRequest) -> Answer:
        read = [event for event in session.events() if event.kind == "tool.finished" and event.data["fenced"]]
        if read and 2 <= len(read) <= 5 and not asks_for_summary(request):
            session.call(lambda core: pin(core, read[-1].seq, pinned=True))
        return model(request)

    with ModelServer(pinning) as server, session_on(server.base_url, repo.root, context="8192") as session:
        handle = start(session)
        result = end(handle)
        assert result.status == "paused"
        pins = [event.data["item"] for event in only(session.events(), "context.pinned")]
        assert re.match(r"The conversation of lead takes \d+ of 6144 tokens, and shortening it saves too", result.why)
        assert f"Pinned are the events {', '.join(map(str, pins))}: `%muse unpin N`." in result.why
        cuts = shortened(session.events())
        assert 1 <= len(cuts) <= 3
        assert session.event(pins[0]).data["output"] in cuts[-1].data["text"]
        for item in pins:
            session.call(lambda core, item=item: pin(core, item, pinned=False))
        with pytest.raises(UsageProblem, match="in no agent's conversation"):
            session.call(lambda core: pin(core, 1, pinned=True))
        with pytest.raises(UsageProblem, match="not pinned"):
            session.call(lambda core: pin(core, pins[0], pinned=False))
        session.resume_goal(handle.number)
        assert end(handle).met
        folder = session.folder
    proved(folder)


def test_a_file_larger_than_the_window_is_read_in_pieces_and_once(repo: Repo) -> None:
    """What is read is cut to what fits and says so, so that reading on is possible and nothing is read again."""
    lines = [f"entry {n}: some text of the long file" for n in range(900)]
    repo.commit({"long.txt": "\n".join(lines) + "\n"})

    def reader(request: ParsedRequest) -> Answer:
        if asks_for_summary(request):
            reached = [int(n) for n in re.findall(r"\[lines \d+ to (\d+) of 900\]", str(request.items))]
            return Answer(f"## Done\nI read long.txt up to line {max(reached, default=0)}.")
        text = str(request.items)
        reached = [int(n) for n in re.findall(r"\[lines \d+ to (\d+) of 900\]|up to line (\d+)", text) for n in n if n]
        done = max(reached, default=0)
        if "900\\tentry 899" in text or "the end is read" in text:
            return Answer("the end is read", EDIT.calls) if "Edited answer.txt" not in text else DONE
        return Answer("", [Call("read", {"path": "long.txt", "start_line": done + 1})])

    with ModelServer(reader) as server, session_on(server.base_url, repo.root, context="9300") as session:
        assert end(start(session)).met
        events, folder = session.events(), session.folder
    assert all(seen.status == 200 for seen in server.requests)
    reads = [e.data["arguments"]["start_line"] for e in only(events, "tool.requested") if e.data["name"] == "read"]
    assert reads == sorted(set(reads)), "nothing is read twice"
    assert 3 <= len(reads) < 30
    outputs = [event.data["output"] for event in only(events, "tool.finished") if "entry" in event.data["output"]]
    assert max(map(len, outputs)) < 6_750
    shown = [line for output in outputs for line in re.findall(r"\d+\t(entry .*)", output)]
    assert shown == lines
    proved(folder)


def test_what_the_user_says_while_a_summary_is_written_is_kept_word_for_word(repo: Repo) -> None:
    """It waits until the answer is there, is answered after it, and is not cut."""
    words = ["Never touch other.txt.", "And be quick, please."]
    model = Reading(READS, [EDIT, DONE])
    with ModelServer(model) as server, session_on(server.base_url, repo.root, context=WINDOW) as session:

        def speak(_: ParsedRequest) -> Answer:
            session.call(lambda core: core.steer(words[1]))
            return Answer(SUMMARY)

        model._summary = speak
        handle = start(session)
        handle.steer(words[0])
        assert end(handle).met
        events, folder = session.events(), session.folder
    (cut, *_) = shortened(events)
    assert f"# What the user said, word for word\n- {words[0]}" in cut.data["text"]
    assert words[1] not in cut.data["text"]
    following = next(e for e in only(events, "model.requested") if e.seq > cut.seq)
    body = asked(server)[
        [e.seq for e in only(events, "model.requested") if e.data["view"] is None].index(following.seq)
    ]
    assert words[1] in said(body)
    proved(folder)


@pytest.mark.crash
@LONG
def test_a_summary_that_is_cut_off_is_asked_for_again(repo: Repo) -> None:
    """The goal is stopped while the summary is written; resumed, it shortens once, and repeats no work."""
    model = Reading(READS, [EDIT, DONE])
    slow = Held([Answer(SUMMARY)], hold=0)
    model._summary = slow
    with ModelServer(model) as server, session_on(server.base_url, repo.root, context=WINDOW) as session:
        handle = start(session)
        slow.wait()
        handle.stop()
        assert not shortened(session.events())
        slow.release()
        folder = session.folder
    with (
        ModelServer(model) as server,
        session_on(server.base_url, repo.root, context=WINDOW, resume=folder.name) as session,
    ):
        handle = session.newest_goal()
        handle.resume()
        assert end(handle).met
        events = session.events()
    abandoned = [event.data["request"] for event in only(events, "model.abandoned")]
    views = [event.data["view"] for event in only(events, "model.requested") if event.seq in abandoned]
    assert len(views) == 1
    assert views[0] is not None
    assert len(shortened(events)) >= 1
    reads = [e for e in only(events, "tool.requested") if e.data["name"] == "read"]
    assert len(reads) == len(READS)
    proved(folder)


@pytest.mark.crash
@LONG
def test_a_fork_goes_on_before_and_after_a_shortening(repo: Repo) -> None:
    """Its first request is that of the session it comes from, byte for byte."""
    model = Reading(READS, [EDIT, DONE])
    base = repo.git("rev-parse", "HEAD")
    with ModelServer(model) as server, session_on(server.base_url, repo.root, context=WINDOW) as session:
        handle = start(session)
        assert end(handle).met
        events, parent = session.events(), session.folder
    (cut, *_) = shortened(events)
    view = next(e for e in only(events, "agent.view"))
    for at in (view.seq, cut.seq):
        repo.git("reset", "--quiet", "--hard", base)
        again = Reading([], [EDIT, DONE])
        with ModelServer(again) as server:
            fork = fork_session(parent, at, settings=settings(server.base_url, context=WINDOW), effects=Hurried())
            try:
                fork.resume_goal(handle.number)
                assert end(fork.handle(handle.number)).met
                own, folder = [e for e in fork.events() if e.seq > at], fork.folder
            finally:
                fork.close()
        assert (again.summaries > 0) == (at == view.seq)
        assert len(shortened(own)) == (1 if at == view.seq else 0)
        proof = prove(folder)
        assert proof.problem is None


@pytest.mark.crash
@LONG
def test_a_small_model_has_no_conversation_to_shorten(repo: Repo) -> None:
    from fixtures.model_server import RepairGuided, load_repairs

    model = RepairGuided(load_repairs("tensor"))
    chosen: dict[str, Any] = {"api": "chat", "profile": "guided", "context": "2048"}
    with ModelServer(model) as server, session_on(server.base_url, repo.root, **chosen) as session:
        end(start(session, "grep -q right answer.txt"))
        for n in range(3):
            session.call(lambda core, n=n: core.ask(f"Question {n}: " + "x" * 3_000))
        events = session.events()
    assert not [event for event in events if event.kind.startswith("context.")]
    assert not any(event.data.get("conversation") for event in only(events, "agent.view"))


@pytest.mark.crash
@LONG
def test_the_ledger_decides_at_the_beginning_of_work_and_says_its_numbers(repo: Repo) -> None:
    """A conversation that costs more to keep than a new agent would is shortened before the next piece of work."""
    repo.commit({"g0.txt": "".join(f"row {i}\n" for i in range(1_500))})
    model = Reading([Call("run", {"command": "cat g0.txt"})] * 12, [EDIT, DONE])
    with ModelServer(model) as server, session_on(server.base_url, repo.root) as session:
        first = start(session)
        assert end(first).met
        assert not shortened(session.events())
        session.call(lambda core: core.ask("What did you do?"))
        events, folder = session.events(), session.folder
        costs = session.cost.text()
    (cut,) = shortened(events)
    numbers = cut.data["numbers"]
    assert numbers["usd_keep"] > numbers["usd_retire"] > 0
    assert numbers["usd_compact"] < numbers["usd_keep"]
    assert numbers["held"] == pytest.approx(cut.data["before"], rel=0.01)
    assert f"{numbers['usd_keep']:.4f} USD" in cut.data["why"]
    assert re.search(r"^a new agent for each piece of work would have read about \d+ tokens again", costs, re.MULTILINE)
    proved(folder)
