"""An agent whose claims were contradicted too often begins anew from what is verified, and still answers."""

from __future__ import annotations

from fixtures.crew_scripts import ask, is_explorer, read
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, end, only, session_on, start

from musecode_jupyter.session.replay import prove


def wrong(times: int) -> Call:
    query = {"kind": "search", "pattern": "wrong", "count": times}
    return Call("claim", {"text": f"wrong is said {times} times", "type": "count", "evidence": [query]})


def test_after_three_false_claims_it_begins_anew_with_the_question_and_does_so_once(repo: Repo) -> None:
    asked: list[ParsedRequest] = []

    def model(request: ParsedRequest) -> Answer:
        if is_explorer(request):
            asked.append(request)
            lies = Answer("", [wrong(7), wrong(8), wrong(9)])
            return [read("answer.txt"), lies, Answer("I do not know."), Answer("Nothing.")][min(len(asked) - 1, 3)]
        since = [place for place, item in enumerate(request.items) if item.get("text", "").startswith("Goal: ")][-1]
        done = sum(item["type"] == "tool_result" for item in request.items[since:])
        return [ask("How often is it said?"), ask("And where?"), EDIT, DONE][min(done, 3)]

    with ModelServer(model) as server:
        with session_on(server.base_url, repo.root, crew="on") as session:
            assert end(start(session)).met
            events, folder, name = session.events(), session.folder, session.id
        (anew,) = only(events, "context.compacted")
        assert (anew.agent, anew.data["how"]) == ("explorer", "reseed")
        verified = next(event.seq for event in only(events, "claim.asserted") if event.agent == "harness")
        assert anew.data["claims"] == [verified]
        first, after = asked[2].items[0]["text"], asked[3].items
        assert first.startswith("Your conversation begins anew here")
        assert "# Asked of you\n- by lead: " in first
        assert "How often is it said?" in first
        assert "wrong is said 7 times" not in str(asked[2].items)
        assert "3 of your claims were contradicted" in asked[2].items[-1]["text"]
        assert after[0]["text"] == first, "it began anew twice"
        assert "And where?" in after[-1]["text"]
        answers = [event.data["output"] for event in only(events, "tool.finished") if event.agent == "lead"]
        assert answers[:2] == ["I do not know.", "Nothing."]
        proof = prove(folder)
        assert proof.ok, proof.problem
        assert not proof.unchecked
        repo.commit({"answer.txt": "wrong\n"})
        with session_on(server.base_url, repo.root, resume=name, crew="on") as session:
            assert end(start(session)).met
            assert len(only(session.events(), "context.compacted")) == 1
    assert prove(folder).problem is None
