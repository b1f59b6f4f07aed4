"""A false claim with plausible evidence: how far it gets where claims are kept apart from facts, and where not.

The lead claims, before it splits a goal into tasks, what the file that it cites does not say; the workers have it by
mail and build on it, until one of them finds otherwise. Mail is put into the log by the test, all else is the session.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from fixtures.claim_calls import call_of_model
from fixtures.crew_scripts import Crew, edit, place_of, read
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.model_server import ModelServer, SeenRequest
from fixtures.session_bench import DEADLINE_S, Repo, Watch, end, only, said, session_on

from musecode_jupyter.agents.claims.retract import fallout
from musecode_jupyter.agents.claims.state import VALIDATOR
from musecode_jupyter.agents.landing.work import Validator
from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.agents.tasks.state import TasksState
from musecode_jupyter.session import GoalSpec, Session, core, runners
from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.session.replay import prove

NOTE = "The words are kept in upper case.\n"
CITED = {"kind": "file", "path": "notes.txt", "first_line": 1, "text": NOTE.strip()}
BUILDS = ("one", "two")
JUDGE = "judge"


@dataclass(frozen=True)
class Spread:
    """How far the claim got: requests that carried it, tasks that were handed in with it, and commits that landed."""

    requests: int
    handed_in: int
    landed: int
    text: tuple[str, ...]


class Players(Crew):
    """The lead claims and splits; two workers build; the third looks at the notes and finds otherwise."""

    def __init__(self, number: Callable[[], int]) -> None:
        mend = {
            name: [[edit(f"{name}.txt", "wrong", "RIGHT")], [edit(f"{name}.txt", "RIGHT", "right")]] for name in BUILDS
        }
        tasks = [
            {"name": name, "goal": f"Mend {name}.", "accept": [f"grep -qi right {name}.txt"], "writes": [f"{name}.txt"]}
            for name in (*BUILDS, JUDGE)
        ]
        claim = {"text": "Every word has to be in upper case.", "type": "behaviour", "evidence": [CITED]}
        plan = [
            read("notes.txt"),
            Answer("", [Call("claim", claim)]),
            Answer("", [Call("propose_tasks", {"tasks": tasks})]),
            Answer("They are split."),
        ]
        super().__init__({**mend, JUDGE: [[]]}, plan)
        self.deeds: dict[tuple[str, int, int], Callable[[], object]] = {}
        self._number = number

    def __call__(self, request: ParsedRequest) -> Answer:
        place = place_of(request)
        if (deed := self.deeds.pop(place, None)) is not None:
            deed()
        if place[0] != JUDGE:
            return super().__call__(request)
        doubt = {"claim": self._number(), "verdict": "challenge", "why": "That holds for names of files only."}
        steps = [
            read("notes.txt"),
            Answer(
                "",
                [Call("check_claim", {**doubt, "evidence": [{"kind": "file", "path": "notes.txt", "first_line": 2}]})],
            ),
            edit("judge.txt", "wrong", "right"),
        ]
        return [*steps, Answer("It is done.")][min(place[2], len(steps))]


def said_of(request: SeenRequest) -> list[str]:
    return said(json.loads(request.body))


def number_of(session: Session, author: str = "lead") -> int:
    return next(seq for seq, claim in session.claims.claims.items() if claim.author == author)


def deliver(session: Session, task: str, author: str = "lead") -> None:
    """What mail between agents does: the worker of `task` has the claim before it from here on."""
    number = number_of(session, author)

    async def write(core: SessionCore) -> None:
        state = core.log.state("tasks")
        assert isinstance(state, TasksState)
        to = next(each.agent for each in state.tasks.values() if each.spec.name == task)
        mail = {
            "to": to,
            "priority": "next",
            "topic": "words",
            "text": "upper case",
            "reason": "asked",
            "claims": [number],
        }
        sent = await core.log.append("mail.sent", mail, agent=author)
        await core.log.append("mail.delivered", {"mail": sent.seq}, agent=to)

    session.call(write)


def spread(tmp_path: Path, *, pauses: bool) -> tuple[Spread, Path, list[str]]:
    repo = Repo(tmp_path / "repo")
    files = {f"{name}.txt": "wrong\n" for name in (*BUILDS, JUDGE)}
    repo.commit({"notes.txt": f"{NOTE}That is: the names of files.\n", **files})
    opened: list[Session] = []
    players = Players(lambda: number_of(opened[0]))
    with ModelServer(players) as server, session_on(server.base_url, repo.root) as session:
        opened.append(session)
        watch = Watch(session)
        for name in BUILDS:
            players.deeds[name, 0, 0] = lambda name=name: deliver(session, name)
            # What is built is handed in when the claim is known to be false, and not before.
            players.deeds[name, 0, 1] = lambda: watch.until("task.paused" if pauses else "claim.challenged")
        verify = tuple(f"grep -qi right {name}" for name in files)
        handle = session.start_goal(GoalSpec("mend all", verify, workers=3))
        if pauses:
            assert end(handle).status == "blocked"
            assert [repo.read(name) for name in files] == ["wrong\n", "wrong\n", "right\n"]
            (card,) = session.take_notices()
            assert card.startswith(f"Claim {number_of(session)} of lead: Every word has to be in upper case.\n")
            assert sorted(card.splitlines()[-1].rpartition(": ")[2].rstrip(".").split(", ")) == [*BUILDS]
            assert {event.agent for event in only(session.events(), "user.interrupt")} == {"harness"}
            session.resume_goal(handle.number)
        assert end(handle).met
        number = number_of(session)
        touched = session.read(lambda core: fallout(core.log, number))
        merges = session.claims.merges
        asked = [text for request in server.requests for text in said_of(request)]
        others = [holder for holder in touched.holders if holder.agent != "lead"]
        counted = Spread(
            requests=sum(holder.requests for holder in others),
            handed_in=sum(number in merge.rests for merge in merges.values()),
            landed=len(touched.landed),
            text=tuple(repo.git("show", f"main:{name}.txt") for name in BUILDS),
        )
        assert touched.standing.label == "contradicted"
        assert len(only(session.events(), "claim.challenged")) == 1
    return counted, session.folder, asked


def test_with_the_layer_no_commit_lands_that_carries_it(tmp_path: Path) -> None:
    counted, folder, asked = spread(tmp_path, pauses=True)
    assert counted.landed == 0
    assert counted.text == ("right", "right")
    assert counted.handed_in == 2
    told = [text for text in asked if "found otherwise: That holds for names of files only." in text]
    assert told, "the workers are told why their work came back"
    proof = prove(folder)
    assert proof.ok, proof.problem
    assert proof.commands


@pytest.mark.crash
@pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="run by make crash")
def test_without_the_layer_every_commit_that_was_built_on_it_lands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(runners, "claims_validator", lambda *_: Validator(VALIDATOR, nothing))
    monkeypatch.setattr(core, "heed", lambda *_: None)
    counted, folder, _ = spread(tmp_path, pauses=False)
    assert counted.landed == counted.handed_in == 2
    assert counted.text == ("RIGHT", "RIGHT")
    assert counted.requests
    assert prove(folder).ok


def test_a_claim_that_the_user_takes_back_lets_the_tasks_wait_that_rest_on_it(tmp_path: Path) -> None:
    """Its worker is told before its next step; the others go on."""
    repo = Repo(tmp_path / "repo")
    repo.commit({"notes.txt": NOTE, **{f"{name}.txt": "wrong\n" for name in BUILDS}})
    held = threading.Event()
    accept = {name: [f"grep -q right {name}.txt"] for name in BUILDS}
    graph = parse_tasks(
        [{"name": n, "goal": f"Mend {n}.", "accept": accept[n], "writes": [f"{n}.txt"]} for n in BUILDS]
    )
    stands = {"text": "one.txt is as the task wants it", "type": "decision"}
    cited = [{"kind": "file", "path": "one.txt", "text": "right"}]
    again = [read("one.txt"), Answer("", [Call("claim", {**stands, "evidence": cited})])]
    crew = Crew(
        {name: [[edit(f"{name}.txt", "wrong", "right")], again] for name in BUILDS},
        deeds={("one", 0, 1): lambda: held.wait(DEADLINE_S)},
    )
    with ModelServer(crew) as server, session_on(server.base_url, repo.root) as session:
        watch = Watch(session)

        async def claim(core: SessionCore) -> None:
            said = {"text": "in upper case", "type": "behaviour", "evidence": [{**CITED, "text": NOTE.strip()}]}
            for name, arguments in (("read", {"path": "notes.txt"}), ("claim", said)):
                assert (await call_of_model(core, "explorer", core.own_place(), name, arguments)).ok

        session.call(claim)
        handle = session.start_goal(GoalSpec("mend all", tuple(accept["one"] + accept["two"]), workers=2, tasks=graph))
        try:
            watch.until("file.changed", path="one.txt")
            deliver(session, "one", "explorer")
            number = number_of(session, "explorer")
            card = session.retract_claim(number, "I looked it up")
        finally:
            held.set()
        task = next(event.seq for event in only(session.events(), "task.created") if event.data["name"] == "one")
        assert f"  tasks that rest on it: {task}" in card
        assert card.splitlines()[-1] == "These tasks wait; `%goal resume` goes on with them: one."
        result = end(handle)
        assert result.status == "blocked"
        assert f"stopped, because its work relies on claim {number}" in result.why
        assert (repo.read("one.txt"), repo.read("two.txt")) == ("wrong\n", "right\n")
        session.resume_goal(handle.number)
        assert end(handle).met
        requests = [text for request in server.requests for text in said_of(request)]
        assert any("Taken back by user: I looked it up." in text for text in requests)
    proof = prove(session.folder, commands=False)
    assert proof.ok, proof.problem
