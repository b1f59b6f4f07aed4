"""A goal with one worker pauses if its work relies on a claim that went out; the work does not land, and goes back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.crew_scripts import ask, edit, is_explorer, read
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, Watch, end, only, session_on, start

from musecode_jupyter.agents.claims.state import VALIDATOR
from musecode_jupyter.session import Session
from musecode_jupyter.session.replay import prove

CLAIM = {
    "text": "other.txt says other",
    "type": "location",
    "evidence": [{"kind": "file", "path": "other.txt", "first_line": 1, "text": "other"}],
}
BETTER = edit("answer.txt", "right", "all right")


class Told:
    """A lead that builds on what the explorer claims; `deed` is done before its first last word."""

    def __init__(self, *lead: Answer, deed: Callable[[], object] = lambda: None) -> None:
        self.lead = [ask("What does other.txt say?"), EDIT, DONE, *lead]
        self.deed = deed
        self.requests: list[ParsedRequest] = []
        self._explorer = [read("other.txt"), Answer("", [Call("claim", CLAIM)]), Answer("It says other.")]
        self._given = 0

    def __call__(self, request: ParsedRequest) -> Answer:
        if is_explorer(request):
            return self._explorer.pop(0)
        self.requests.append(request)
        number, self._given = self._given, self._given + 1
        if number == 2:
            self.deed()
        return self.lead[min(number, len(self.lead) - 1)]


def number_of(session: Session) -> int:
    return next(seq for seq, claim in session.claims.claims.items() if claim.author == "explorer")


def check(folder: Path) -> None:
    proof = prove(folder)
    assert proof.ok, proof.problem
    assert not proof.unchecked


def test_what_relies_on_a_claim_that_went_out_goes_back_and_lands_once_it_was_looked_at(repo: Repo) -> None:
    opened: list[Session] = []
    cards: list[str] = []
    model = Told(
        BETTER, DONE, deed=lambda: cards.append(opened[0].retract_claim(number_of(opened[0]), "I looked it up"))
    )
    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on") as session:
        opened.append(session)
        handle = start(session)
        paused, number = end(handle), number_of(session)
        assert (paused.status, paused.why) == ("paused", f"stopped, because its work relies on claim {number}")
        asked, last = len(model.requests), cards[0].splitlines()[-1]
        assert last == (
            f"Goal {handle.number} pauses before the next step; `%goal resume` goes on with it. "
            "Its work relies on this: lead is told before it goes on."
        )
        handle.resume()
        assert end(handle).met
        events = session.events()
    assert any(f"About claim {number} (" in item.get("text", "") for item in model.requests[asked].items)
    (objected,) = [event for event in only(events, "merge.reviewed") if event.data["validator"] == VALIDATOR]
    assert not objected.data["ok"]
    told = next(item["text"] for item in model.requests[3].items if "does not land" in item.get("text", ""))
    assert f"claim {number} ('other.txt says other'): Taken back by user: I looked it up." in told
    assert repo.read("answer.txt") == "all right\n"
    assert len(only(events, "merge.enqueued")) == 2
    check(session.folder)


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="run by make crash")
def test_who_does_nothing_about_it_is_sent_back_twice_then_it_is_the_users_turn(repo: Repo) -> None:
    opened: list[Session] = []
    model = Told(deed=lambda: opened[0].retract_claim(number_of(opened[0]), "no"))
    with ModelServer(model) as server:
        with session_on(server.base_url, repo.root, crew="on") as session:
            opened.append(session)
            handle = start(session)
            assert end(handle).status == "paused"
            handle.resume()
            result = end(handle)
            assert result.status == "blocked"
            assert result.why.startswith("Sent back 2 times because of claims: the work relies on claim")
            assert repo.read("answer.txt") == "wrong\n"
            name, number = session.id, handle.number
        check(session.folder)
        model.lead = [*[DONE] * 5, BETTER, DONE]
        with session_on(server.base_url, repo.root, resume=name, crew="on") as session:
            session.resume_goal(number)
            result = end(session.handle(number))
            assert result.met, result.why
        check(session.folder)
    assert repo.read("answer.txt") == "all right\n"


def test_a_claim_that_goes_out_while_the_question_waits_keeps_the_work_from_landing(repo: Repo) -> None:
    model = Told(BETTER, DONE)
    asking = {"crew": "on", "approvals": "ask"}
    with (
        ModelServer(model) as server,
        session_on(server.base_url, repo.root, interactive=True, **asking) as session,
    ):
        watch = Watch(session)
        handle = start(session)
        asked = watch.until("approval.requested", action="land")
        session.retract_claim(number_of(session), "no")
        session.answer(asked.seq, "approve", by="test")
        assert end(handle).status == "paused"
        handle.resume()
        again = watch.until("approval.requested", action="land", since=asked.seq)
        assert repo.read("answer.txt") == "wrong\n"
        assert "claims relied on" not in again.data["shown"]
        session.answer(again.seq, "approve", by="test")
        assert end(handle).met
    assert repo.read("answer.txt") == "all right\n"
    check(session.folder)


def test_who_takes_back_their_own_claim_goes_on_and_whoever_relies_on_another_waits(repo: Repo) -> None:
    """The lead takes back what it claimed itself; then the explorer does, on whom it relied."""
    opened: list[Session] = []

    def back(author: str) -> Answer:
        claims = opened[0].claims.claims.items()
        number = next(seq for seq, claim in claims if claim.author == author)
        return Answer("", [Call("check_claim", {"claim": number, "verdict": "retract", "why": "I misread it."})])

    class Own(Told):
        def __call__(self, request: ParsedRequest) -> Answer:
            if is_explorer(request) and not self._explorer:
                return back("explorer")
            if not is_explorer(request) and len(self.requests) == 3:
                self.requests.append(request)
                return back("lead")
            return super().__call__(request)

    model = Own()
    claim = Answer("", [Call("claim", CLAIM)])
    model.lead = [ask("What does other.txt say?"), read("other.txt"), claim, ask("Is it so?"), EDIT, DONE]
    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on") as session:
        opened.append(session)
        handle = start(session)
        result, number = end(handle), number_of(session)
        assert (result.status, result.why) == ("paused", f"stopped, because its work relies on claim {number}")
        assert [event.agent for event in only(session.events(), "claim.retracted")] == ["lead", "explorer"]
        (card,) = [each for each in session.take_notices() if "pauses before the next step" in each]
        assert card.startswith(f"Claim {number} of explorer")
    check(session.folder)


def test_what_it_changed_itself_it_does_not_rely_on(repo: Repo) -> None:
    cited = {"kind": "file", "path": "answer.txt", "first_line": 1, "text": "wrong"}
    claim = {"text": "answer.txt says wrong", "type": "behaviour", "evidence": [cited]}
    model = Told()
    model._explorer = [read("answer.txt"), Answer("", [Call("claim", claim)]), Answer("It says wrong.")]
    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on") as session:
        assert end(start(session)).met
        assert session.claims.standing(number_of(session)).label == "stale"
        assert not [event for event in only(session.events(), "merge.reviewed") if event.data["validator"] == VALIDATOR]
    check(session.folder)


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="run by make crash")
def test_the_same_holds_for_a_goal_that_starts_from_uncommitted_files(repo: Repo) -> None:
    repo.write("third.txt", "mine\n")
    opened: list[Session] = []
    model = Told(BETTER, DONE, deed=lambda: opened[0].retract_claim(number_of(opened[0]), "no"))
    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on") as session:
        opened.append(session)
        handle = start(session, base="dirty")
        assert end(handle).status == "paused"
        handle.resume()
        assert end(handle).met
        assert len(only(session.events(), "merge.enqueued")) == 2
    check(session.folder)
