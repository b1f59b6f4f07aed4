"""A goal whose clauses the lead proposes: tried at once, shown, and set only as the user confirms it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fixtures.crew_scripts import read
from fixtures.draft_scripts import HANDED_IN, DraftingLead, proposing_clauses
from fixtures.model_scripts import Answer, Call, ParsedRequest, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, DEADLINE_S, DONE, EDIT, Held, Repo, end, only, run_of, session_on

from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session import GoalSpec
from musecode_jupyter.session.replay import prove
from musecode_jupyter.skills.clauses import ClauseOptions

WANTED = GoalSpec("make the answer right", (), tokens=500_000, clauses=ClauseOptions(forbid=("other.txt",)))


def corrected(request: ParsedRequest) -> Answer:
    return DONE if request.items[-1]["type"] == "tool_result" else EDIT


def test_what_the_lead_proposes_is_tried_shown_and_set_as_the_user_confirms_it(repo: Repo) -> None:
    measure = "wc -l < answer.txt | sed s/^/lines=/"
    good = proposing_clauses(CHECK, forbid=["import os"], metrics=["lines >= 1"], measure=measure)
    lead = DraftingLead([proposing_clauses("true", "no-such-program here"), good], work=corrected)
    with ModelServer(lead) as server, session_on(server.base_url, repo.root) as session:
        draft = session.draft_goal(WANTED)
        result = draft.wait(DEADLINE_S)
        assert result.status == "proposed", result.why
        assert session.goals.goals == {}
        text = draft.text()
        assert f"- `{CHECK}` exits with 0 (fails today, exit 1)" in text
        assert f"- lines >= 1, measured by `{measure}` (passes today)" in text.replace("PASSES ALREADY", "passes today")
        assert "- nothing has what is forbidden: other.txt" in text
        assert "- nothing has what is forbidden: import os" in text
        handle = draft.confirm()
        ended = end(handle)
        assert ended.met, ended.why
        with pytest.raises(UsageProblem, match=f"is goal {handle.number} already"):
            draft.confirm()
        with pytest.raises(UsageProblem, match="There is nothing to confirm"):
            draft.cancel()
        events = list(session.events())
        folder = session.folder
    (goal,) = only(events, "goal.set")
    assert (goal.data["verify"], goal.data["tokens"]) == ([CHECK], 500_000)
    assert goal.data["clauses"]["forbid"] == ["other.txt", "import os"]
    assert [each["text"] for each in goal.data["clauses"]["metrics"]] == ["lines >= 1"]
    assert (goal.agent, goal.data["draft"]) == ("user", draft.number)
    first, second = only(events, "draft.checked")
    assert "`no-such-program here` cannot be run" in first.data["report"]
    assert [check["passed"] for check in second.data["checks"]] == [False, True]
    (proposed,) = only(events, "draft.proposed")
    assert json.loads(proposed.data["document"])["by"] == "lead"
    (confirmed,) = only(events, "draft.confirmed")
    assert (confirmed.agent, confirmed.data["changed"]) == ("user", [])
    assert confirmed.data["digest"] == proposed.data["digest"]
    proof = prove(folder)
    assert proof.ok, proof.problem
    assert not proof.unchecked


def test_the_user_confirms_with_clauses_of_their_own_and_a_model_narrows_nothing(repo: Repo) -> None:
    # It insists on a check that holds already, and would change a file at once, which it cannot while it looks.
    insists = [Answer("", [Call("edit", {"path": "answer.txt", "old": "wrong", "new": "x"})]), HANDED_IN]
    lead = DraftingLead([proposing_clauses("true"), proposing_clauses("true")], insists, [], work=corrected)
    with ModelServer(lead) as server, session_on(server.base_url, repo.root) as session:
        draft = session.draft_goal(WANTED)
        assert draft.wait(DEADLINE_S).status == "proposed"
        assert "WRONG: All of it holds already" in draft.text()
        with pytest.raises(UsageProblem, match="there is no 'pytset' here"):
            draft.confirm(verify="pytset -q")
        assert session.goals.goals == {}
        assert end(draft.confirm(verify=CHECK)).met
        changing = session.draft_goal(GoalSpec("something else", ()))
        assert changing.wait(DEADLINE_S).status == "stopped"
        assert repo.read("answer.txt") == "right\n"
        assert "No clauses were handed in, in 3 turns." in changing.text()
        with pytest.raises(UsageProblem, match="Nothing was proposed that could be confirmed"):
            changing.confirm()
        events = list(session.events())
        folder = session.folder
    (confirmed,) = only(events, "draft.confirmed")
    assert confirmed.data["changed"] == ["verify"]
    assert only(events, "goal.set")[0].data["clauses"]["forbid"] == ["other.txt"]
    assert [event.data["state"] for event in only(events, "draft.stopped")] == ["stalled"]
    assert prove(folder).ok


def test_clauses_that_cannot_be_taken_are_told_and_a_restart_leaves_none(repo: Repo) -> None:
    both = proposing_clauses(CHECK, metrics=["lines >= x"], measure="echo lines=1")
    apart = proposing_clauses(CHECK, metrics=["lines >= 1 vs main"], measure="echo lines=1")
    held = Held([both, apart, proposing_clauses(), HANDED_IN], hold=4)
    with ModelServer(held) as server, session_on(server.base_url, repo.root) as session:
        draft = session.draft_goal(WANTED)
        held.wait()
        refused = [event.data["output"] for event in only(session.events(), "tool.failed")]
        with pytest.raises(UsageProblem, match="A question to the lead is under way"):
            session.draft_goal(WANTED)
        draft.cancel()
        held.release()
        assert draft.status == "cancelled"
        assert prove(session.folder).ok
    assert "cannot be read" in refused[0]
    assert "compared with HEAD" in refused[1]
    assert "Nothing decides the goal" in refused[2]
    held = Held([read("answer.txt")], hold=1)
    with ModelServer(held) as server:
        with session_on(server.base_url, repo.root) as session:
            session.draft_goal(WANTED)
            held.wait()
        held.release()
        with session_on(server.base_url, repo.root, resume="last") as again:
            assert again.open_draft() is None
            assert len(only(again.events(), "draft.stopped")) == 1
            assert prove(again.folder).ok


def test_whoever_cannot_propose_says_to_name_the_check(repo: Repo) -> None:
    small: dict[str, Any] = {"api": "chat", "profile": "guided"}
    with ModelServer(Steps([run_of("echo 1")])) as server, session_on(server.base_url, repo.root, **small) as session:
        with pytest.raises(UsageProblem, match=r"drives no tools\. Say what decides the goal: add --verify 'COMMAND'"):
            session.draft_goal(WANTED)
        with pytest.raises(UsageProblem, match="A goal needs a check that decides it: add --verify 'COMMAND'"):
            session.start_goal(WANTED)
