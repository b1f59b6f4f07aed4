"""Questions to the lead outside a goal: ended by the user, from wherever, with nothing left over for the next one."""

from __future__ import annotations

import json
from concurrent.futures import Future

import pytest
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import CLOSING, DEADLINE_S, DONE, EDIT, Held, Repo, Watch, end, kinds, session_on, start

from musecode_jupyter.runtime.errors import Stopped, UsageProblem
from musecode_jupyter.session import Session
from musecode_jupyter.session.replay import prove

READ = Call("read", {"path": "answer.txt"})
RUN = Call("run", {"command": "touch touched"})


def asked(session: Session, text: str) -> Future[str]:
    return session._runtime.submit(session.core.ask(text))


def stop(session: Session) -> None:
    session.call(lambda core: core.stop_work("by the test"), timeout=DEADLINE_S)


def test_a_stop_ends_the_question_that_is_under_way_and_those_that_wait(repo: Repo) -> None:
    model = Held([Answer("late"), EDIT, DONE], hold=0)
    with ModelServer(model) as server, session_on(server.base_url, repo.root) as session:
        futures = [asked(session, "one"), asked(session, "two")]
        model.wait()
        stop(session)
        for future in futures:
            with pytest.raises(Stopped, match=r"The question was ended: by the test\."):
                future.result(DEADLINE_S)
        assert not session.read(lambda core: core.asking)
        assert session.read(lambda core: core.agents.agents["lead"].state) == "idle"
        with pytest.raises(UsageProblem, match="Nothing is running"):
            stop(session)
        model.release()
        assert "user.interrupt" in kinds(session.events())
        assert kinds(session.events()).count("user.message") == 1, "the question that had not begun was asked"
        assert end(start(session)).met
        assert prove(session.folder).ok


def test_calls_of_a_question_that_was_ended_are_not_made_by_the_next_one(repo: Repo) -> None:
    def model(request: ParsedRequest) -> Answer:
        texts = [item["text"] for item in request.items if item["type"] == "message" and item["role"] == "user"]
        return Answer("I look.", [RUN, READ]) if texts[-1] == "look" else Answer("plain answer")

    with (
        ModelServer(model) as server,
        session_on(server.base_url, repo.root, interactive=True, approvals="ask") as session,
    ):
        watch = Watch(session)
        future = asked(session, "look")
        question = watch.until("approval.requested")
        stop(session)
        with pytest.raises(Stopped):
            future.result(DEADLINE_S)
        watch.until("approval.expired", approval=question.seq)
        assert session.call(lambda core: core.ask("and now?"), timeout=DEADLINE_S) == "plain answer"
        events = session.events()
        calls = [event.seq for event in events if event.kind == "tool.requested"]
        ends = [(event.kind, event.data["call"]) for event in events if event.kind in CLOSING]
        assert ends == [("tool.cancelled", call) for call in calls]
        assert len(calls) == 2
        assert "tool.started" not in kinds(session.events())
        (body,) = [request.json for request in server.requests[1:]]
        assert [item["type"] for item in body["input"] if item["type"].startswith("function")] == [
            *["function_call"] * 2,
            *["function_call_output"] * 2,
        ], json.dumps(body["input"])
        assert prove(session.folder).ok


def test_a_stop_while_a_goal_rests_ends_the_question_first(repo: Repo) -> None:
    model = Held([EDIT, Answer("late"), DONE], hold=1)
    with ModelServer(model) as server, session_on(server.base_url, repo.root) as session:
        handle = start(session, steps=1)
        end(handle)
        status = handle.status
        future = asked(session, "why")
        model.wait()
        stop(session)
        with pytest.raises(Stopped):
            future.result(DEADLINE_S)
        assert handle.status == status
        model.release()


def test_closing_the_session_ends_the_question(repo: Repo) -> None:
    model = Held([Answer("late")], hold=0)
    with ModelServer(model) as server, session_on(server.base_url, repo.root) as session:
        future = asked(session, "one")
        model.wait()
        session.close()
        with pytest.raises(Stopped):
            future.result(DEADLINE_S)
        model.release()
        assert prove(session.folder).ok
