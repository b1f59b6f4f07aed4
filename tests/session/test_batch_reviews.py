"""What settles in a worktree is reviewed while the work on it goes on; its author is told, and a landing builds on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from fixtures.crew_scripts import edit, read
from fixtures.model_scripts import Answer, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.review_scripts import Reviewed, finding, span
from fixtures.session_bench import DEADLINE_S, DONE, EDIT, Repo, Watch, end, kinds, only, run_of, session_on, start

from musecode_jupyter.agents.critiques.state import CritiquesState
from musecode_jupyter.agents.critiques.text import critiques_of
from musecode_jupyter.session import Session
from musecode_jupyter.session.replay import prove

STOP = edit("shop.py", "return 1", "breakpoint()\n    return 1")
GO = edit("shop.py", "    breakpoint()\n", "")
LOOK = run_of("cat shop.py")
SEE = read("shop.py")


class Working:
    """Plays the lead: its answers in order, the last one again and again.

    Before the answers number `waits` (from 0) it waits until that many reviews of batches have ended.
    """

    def __init__(self, answers: Sequence[Answer], waits: dict[int, int]) -> None:
        self._answers = answers
        self._waits = waits
        self._given = 0
        self._ended = 0
        self._changed = threading.Condition()
        self.asked: list[ParsedRequest] = []

    def follow(self, session: Session) -> None:
        def saw(event: object) -> None:
            if getattr(event, "kind", "") == "batch.closed":
                with self._changed:
                    self._ended += 1
                    self._changed.notify_all()

        session.read(lambda core: core.log.on_durable(saw))

    def __call__(self, request: ParsedRequest) -> Answer:
        number, self._given = self._given, self._given + 1
        self.asked.append(request)
        wanted = self._waits.get(number, 0)
        with self._changed:
            assert self._changed.wait_for(lambda: self._ended >= wanted, DEADLINE_S)
        return self._answers[min(number, len(self._answers) - 1)]


def critiques(session: Session) -> CritiquesState:
    return session.read(lambda core: critiques_of(core.log).model_copy(deep=True))


def told(request: ParsedRequest) -> list[str]:
    """The letters of reviews in a conversation."""
    return [i["text"] for i in request.items if i.get("text", "").startswith("Mail from reviewer")]


def test_a_batch_is_reviewed_while_its_author_works_who_is_told_and_mends_it(repo: Repo) -> None:
    repo.commit({"shop.py": "def f():\n    return 1\n"})
    objects = finding("answer.txt", 1, "It says too little.", span("answer.txt", 1, "right"))
    better = edit("answer.txt", "right", "all right")
    work = Working([STOP, EDIT, LOOK, LOOK, GO, better, SEE, SEE, DONE], {3: 1, 7: 2})
    script = Reviewed(work, {"correctness": [[objects], []]})
    with ModelServer(script) as server, session_on(server.base_url, repo.root, review="full") as session:
        work.follow(session)
        assert end(start(session)).met
        events, folder = list(session.events()), session.folder
        found = critiques(session).findings
    assert {(each.check, each.state, each.merge) for each in found.values()} == {
        ("wrong-result", "fixed", None),
        ("debugging", "fixed", None),
    }
    first, second = only(events, "batch.settled")
    assert (first.data["files"], first.data["agent"]) == (["shop.py", "answer.txt"], "lead")
    # The cause of each pass is its batch; the landing of what was reviewed brings none.
    asked = only(events, "critique.asked")
    assert [event.data["batch"] for event in asked] == [first.seq] * 3 + [second.seq] * 3
    assert all(event.data["batch"] in event.cause for event in asked)
    assert [event.data["ok"] for event in only(events, "merge.reviewed")] == [True]
    assert [event.data["why"] for event in only(events, "batch.closed")] == ["", ""]
    assert "`cat shop.py` passed" in asked[0].data["text"]
    # The author has one letter, between two steps.
    assert [len(told(request)) for request in work.asked] == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    (letter,) = told(work.asked[-1])
    assert "It says too little." in letter
    assert "breakpoint" in letter
    assert len({event.agent for event in only(events, "agent.created")}) == 4
    proof = prove(folder)
    assert (proof.problem, proof.unchecked) == (None, "")
