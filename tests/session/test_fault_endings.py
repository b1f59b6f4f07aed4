"""What a refusal, a pause and refused reasoning items come to in a goal, and that a replay comes to the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fixtures.model_scripts import Answer, Call, Fault, Steps
from fixtures.model_server import ModelServer, RepairModel, load_repairs
from fixtures.session_bench import DONE, EDIT, Repo, Watch, end, only, session_on, start
from test_totals_and_prefix import record

from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.session.replay import prove

APIS = pytest.mark.parametrize("api", ["responses", "chat", "messages"])


@APIS
def test_a_refusal_ends_the_goal_in_its_own_words_and_is_not_sent_back(api: str, repo: Repo) -> None:
    """A refused goal was judged three times over, for the refusal was taken for a claim."""
    refused = Answer("I cannot help with that.", fault=Fault("refusal"))
    with ModelServer(Steps([refused, EDIT, DONE])) as server:
        with session_on(server.base_url, repo.root, api=api) as session:
            result = end(start(session))
            judged = only(session.events(), "goal.judged")
        assert result.status == "error"
        assert "refused" in result.why
        assert "I cannot help with that." in result.why
        assert [event.data["where"] for event in judged] == ["baseline"]
        with session_on(server.base_url, repo.root, api=api, resume=session.id) as again:
            handle = again.newest_goal()
            handle.resume()
            assert end(handle).met
        assert b"I cannot help with that." not in server.requests[1].body
        assert server.requests[1].body == server.requests[0].body
    assert prove(again.folder).problem is None
    assert repo.read("answer.txt") == "right\n"


@APIS
def test_an_answer_without_anything_in_it_ends_the_goal_so_that_it_can_be_resumed(api: str, repo: Repo) -> None:
    nothing = Answer("", EDIT.calls, fault=Fault("incomplete"))
    with ModelServer(Steps([nothing, EDIT, DONE])) as server:
        with session_on(server.base_url, repo.root, api=api) as session:
            result = end(start(session))
        assert (result.status, "max_output_tokens" in result.why) == ("error", True)
        with session_on(server.base_url, repo.root, api=api, resume=session.id) as again:
            handle = again.newest_goal()
            handle.resume()
            assert end(handle).met
    assert repo.read("answer.txt") == "right\n"


def test_a_pause_of_the_server_is_gone_on_from(repo: Repo) -> None:
    """`pause_turn` is no end: the answer goes back as it is, and the server continues it."""
    pause = Answer("I am still at it.", EDIT.calls, fault=Fault("incomplete", code="pause_turn"))
    with (
        ModelServer(Steps([pause, EDIT, DONE])) as server,
        session_on(server.base_url, repo.root, api="messages") as session,
    ):
        result = end(start(session))
        assert result.met
        assert len(only(session.events(), "goal.claimed")) == 1
    last = server.requests[1].json["messages"][-1]
    assert (last["role"], last["content"]) == ("assistant", [{"type": "text", "text": "I am still at it."}])


class Patient(LiveEffects):
    """The real world, except that a wait between attempts lasts until it is cancelled."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.get_running_loop().create_future()


def test_a_pause_ends_the_wait_before_the_next_attempt(repo: Repo) -> None:
    """A busy provider is waited for up to half an hour, and a pause asked for meanwhile came only after that."""
    busy = Answer(fault=Fault("status", status=529, code="overloaded"))
    with ModelServer(Steps([busy, EDIT, DONE])) as server:
        with session_on(server.base_url, repo.root, effects=Patient()) as session:
            watch = Watch(session)
            handle = start(session)
            watch.until("model.retried")
            handle.pause()
            assert end(handle).status == "paused"
            failed = only(session.events(), "model.failed")
            assert [event.data["cost_microusd"] for event in failed] == [0]
            handle.resume()
            assert end(handle).met
        assert len(server.requests) == 3
    assert prove(session.folder).problem is None


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_refused_reasoning_is_left_out_in_a_goal_and_in_its_replay(
    api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    repairs = RepairModel(load_repairs("tensor"))
    asked = 0

    def script(request):  # type: ignore[no-untyped-def]
        nonlocal asked
        asked += 1
        answer = repairs(request)
        # The second request carries the reasoning item of the first answer.
        return Answer(answer.text, answer.calls, answer.reasoning, Fault("foreign")) if asked == 2 else answer

    with ModelServer(script) as server:
        _, first = record(tmp_path, server.base_url, api=api)
    retried = only(first, "model.retried")
    assert [event.data["error_kind"] for event in retried] == ["foreign_reasoning"]
    assert len({event.data["origin"] for event in only(first, "model.requested")}) == 2
    (folder,) = (tmp_path / "home" / "sessions").iterdir()
    proof = prove(folder)
    assert proof.problem is None
    assert proof.commands > 3


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("responses", "responses"),
        ("responses", "messages"),
        ("messages", "messages"),
        ("messages", "chat"),
        ("chat", "responses"),
    ],
)
def test_a_session_goes_on_with_another_key_over_any_api(
    first: str, then: str, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reasoning items are bound to who got them, and call ids of one API are not always ids of another."""
    look = Answer(
        "I look.",
        [Call("run", {"command": "cat answer.txt"}, call_id="functions.run:0"), Call("read", {"path": "answer.txt"})],
        reasoning=True,
    )
    no_credit = Answer(fault=Fault("status", status=402, error_type="billing_error"))
    monkeypatch.setenv("MUSECODE_API_KEY", "key-of-the-first")
    with ModelServer(Steps([look, no_credit, EDIT, DONE])) as server:
        with session_on(server.base_url, repo.root, api=first) as session:
            assert end(start(session)).status == "error"
        monkeypatch.setenv("MUSECODE_API_KEY", "key-of-another")
        with session_on(server.base_url, repo.root, api=then, resume=session.id) as again:
            handle = again.newest_goal()
            handle.resume()
            assert end(handle).met
            events = again.events()
    assert [request.status for request in server.requests] == [200] * 4, [r.message for r in server.requests]
    assert only(events, "model.retried") == []
    proof = prove(again.folder)
    assert (proof.problem, proof.prompts) == (None, 4)


@APIS
def test_an_edit_of_an_answer_that_was_cut_is_made_once(api: str, repo: Repo) -> None:
    """The calls of a broken answer are none, also when the same answer comes whole afterwards."""
    calls = [*EDIT.calls, Call("run", {"command": "echo once >> log.txt"})]
    whole = Answer("I correct it.", calls)
    cut = Answer("I correct it.", calls, fault=Fault("reset", share=0.95))
    with (
        ModelServer(Steps([cut, cut, whole, DONE])) as server,
        session_on(server.base_url, repo.root, api=api) as session,
    ):
        assert end(start(session)).met
        events = session.events()
    assert repo.read("log.txt") == "once\n"
    assert [event.data["path"] for event in only(events, "file.changed")] == ["answer.txt"]
    assert len(only(events, "model.retried")) == 2
