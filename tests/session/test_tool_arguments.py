"""What a model may put into a call: whatever it is, it is answered, and the conversation goes on on every API."""

from __future__ import annotations

import pytest
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, end, only, session_on, start

from musecode_jupyter.session.replay import prove

BIG = 3_000_000
WRONG = [
    ("run", "{not json", "c1", "Send one JSON object"),
    ("run", "[1]", "c2", "one JSON object"),
    ("run", "", "c3", "command: Field required"),
    ("read", '{"path": "' + "a" * BIG + '"}', "c4", f"they have {BIG + 12} characters"),
    ("read", '{"path": "\\ud800"}', "c5", "half of a surrogate pair"),
    ("read", '{"path": "\ud800"}', "c6", "half of a surrogate pair"),
    ("run", '{"command": "true", "timeout": NaN}', "c7", "NaN is not allowed"),
    ("run", '{"command": "true", "timeout": -Infinity}', "c8", "Infinity is not allowed"),
    ("run", '{"command": "true", "timeout": 1e400}', "c9", "the number 1e400 is too large"),
    ("read", '{"path": "a", "start_line": 1' + "0" * 5000 + "}", "c10", "is too large"),
    ("read", '{"path": "a", "start_line": 9223372036854775808}', "c11", "is too large"),
    ("run", '{"command": "true", "command": "false"}', "c12", "a key occurs twice"),
    ("read", '{"path": ' + "[" * 1000 + "]" * 1000 + "}", "c13", "deep"),
    ("read", '{"path": ' + "[" * 200_000, "c14", "deep"),
    ("read", '{"path": "a\\u0000b"}', "c15", "NUL"),
    ("run", '{"command": "true\\u0000; false"}', "c16", "NUL"),
    ("search", '{"pattern": "\\u0000", "path": "."}', "c17", "NUL"),
    ("edit", '{"path": "\\u0000", "old": "", "new": ""}', "c18", "NUL"),
    ("read", '{"path": 5}', "c19", "path: Input should be a valid string"),
    ("read", '{"path": "a", ' + ", ".join(f'"k{n}": 1' for n in range(2000)) + "}", "c20", "and 1995 more"),
    ("read", '{"path": "a", "' + "k" * 500_000 + '": 1}', "c21", "Extra inputs"),
    ("compile", "{}", "c22", "The tools are: "),
    ("", "{}", "c23", "The tools are: "),
    ("x" * 100_000, "{}", "c24", "The tools are: "),
    ("r\u00e9ad me", "{}", "c25", "The tools are: "),
    ("read", '{"path": "no.txt"}', "", "no.txt"),
    ("read", '{"path": "no1.txt"}', "same", "no1.txt"),
    ("read", '{"path": "no2.txt"}', "same", "no2.txt"),
    ("read", '{"path": "no3.txt"}', "x" * 70, "no3.txt"),
    ("read", '{"path": "no4.txt"}', "with spaces/and\u00e9", "no4.txt"),
]


@pytest.mark.parametrize("api", ["responses", "chat", "messages"])
def test_every_wrong_call_is_answered_and_the_goal_is_met(api: str, repo: Repo) -> None:
    """A single infinite number in a call ended the goal: it could not be written to the log."""
    asked: list[ParsedRequest] = []

    def script(request: ParsedRequest) -> Answer:
        asked.append(request)
        calls = [Call(name, arguments, call_id) for name, arguments, call_id, _ in WRONG]
        return [Answer("", calls), EDIT, DONE][min(len(asked), 3) - 1]

    with ModelServer(script) as server, session_on(server.base_url, repo.root, api=api) as session:
        assert end(start(session)).met
        events, folder = session.events(), session.folder
    assert [r.status for r in server.requests] == [200] * 3, [r.message for r in server.requests]
    requested = [e.seq for e in only(events, "tool.requested") if e.data["call_id"]]
    assert len(requested) == len(WRONG) + 1
    results = {e.data["call"]: str(e.data["output"]) for e in events if e.kind in ("tool.failed", "tool.finished")}
    for seq, (name, arguments, _, advice) in zip(requested, WRONG, strict=False):
        assert advice in results[seq], (name[:40], arguments[:60], results[seq][:300])
        assert len(results[seq]) < 2_000
    assert not {e.data["call"] for e in only(events, "tool.started")} & set(requested[: len(WRONG) - 5])
    # Each result goes back under the id of its own call, and what was too long is not paid for again.
    told = [item for item in asked[1].items if item["type"] == "tool_result"]
    assert len({item["call_id"] for item in told}) == len(WRONG)
    assert [advice in item["output"] for item, (_, _, _, advice) in zip(told, WRONG, strict=True)] == [True] * len(
        WRONG
    )
    assert len(server.requests[1].body) < 1_500_000
    proof = prove(folder)
    assert proof.problem is None
    assert proof.prompts == 3
