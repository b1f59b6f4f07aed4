"""Data tiers: what is private is in no request to a contributor model, whatever the session did with it before."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fixtures.crew_scripts import is_explorer
from fixtures.long_talks import asks_for_summary
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.model_server import ModelServer, SeenRequest
from fixtures.plan_scripts import proposing, step
from fixtures.session_bench import EDIT, MODEL, Repo, Watch, end, only, results, said, session_on, settings, start

from musecode_jupyter.runtime.errors import (
    ConfigurationError,
    Denied,
    ModelError,
    TierBlocked,
    UsageProblem,
    WrongModel,
)
from musecode_jupyter.session import Session
from musecode_jupyter.session.api import fork_session
from musecode_jupyter.session.replay import prove

CONTRIBUTOR = f"{MODEL}-contributor"
WORDS = "repo may be used for training"
MARK = "patient-4711-has-a-rare-thing"
READ = Call("read", {"path": "data/patients.csv"})


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "repo")
    (made.root / "data").mkdir()
    made.commit({"data/patients.csv": f"id,what\n1,{MARK}\n", ".gitignore": "local.txt\n"})
    made.write("local.txt", f"{MARK}\n")
    return made


def sent_to(server: ModelServer, model: str) -> list[SeenRequest]:
    return [seen for seen in server.requests if seen.json["model"] == model]


def assert_kept(server: ModelServer) -> None:
    """The private file's content is in no request to the contributor model."""
    for seen in sent_to(server, CONTRIBUTOR):
        assert MARK.encode() not in seen.body, seen.json["input"][-3:]


def proved(session: Session) -> None:
    session.close()
    proof = prove(session.folder)
    assert proof.problem is None, proof.problem
    assert proof.unchecked == ""


class Says:
    """Gives the answers in order, the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)

    def __call__(self, request: ParsedRequest) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def asked(session: Session, text: str = "Go on.") -> str:
    return session.call(lambda core: core.ask(text))


def test_a_contributor_model_gets_nothing_before_the_owner_has_opted_in(repo: Repo) -> None:
    with ModelServer(Says(Answer("x"))) as server:
        with (
            pytest.raises(ConfigurationError, match=r"is not opted in: use muse-spark-.*, or opt in with"),
            session_on(server.base_url, repo.root, model=CONTRIBUTOR),
        ):
            pass
        assert server.requests == []
        with session_on(server.base_url, repo.root) as session:
            with pytest.raises(UsageProblem, match="is not opted in"):
                session.set_tier("contributor")
            with pytest.raises(UsageProblem, match=f"type these words: {WORDS}"):
                session.opt_in("yes")
            assert session.tier == "standard"
            session.opt_in(WORDS)
            assert session.tier == "standard", "opting in switches nothing"
            (added,) = only(session.events(), "rule.added")
            assert (added.data["form"], added.data["words"]) == ("tier", [WORDS])


def test_what_was_read_in_the_standard_tier_stays_out_of_the_contributor_tier(repo: Repo) -> None:
    answers = Says(Answer("", [READ]), Answer(f"It says {MARK}."), Answer("What else?"))
    with ModelServer(answers) as server, session_on(server.base_url, repo.root) as session:
        session.opt_in(WORDS)
        assert MARK in asked(session, "What is in the data?")
        labels = {event.kind: event.label for event in session.events()}
        assert labels["tool.finished"] == labels["model.completed"] == "private"
        session.set_tier("contributor")
        asked(session, "And what else is there?")
        (seen,) = sent_to(server, CONTRIBUTOR)
        assert_kept(server)
        assert "And what else is there?" in said(seen.json)[-1]
        assert "What is in the data?" in said(seen.json)[0], "the user's own words go along"
        (compacted,) = only(session.events(), "context.compacted")
        assert compacted.data["why"].endswith(f"may not go to {CONTRIBUTOR}")
        proved(session)


def test_the_contributor_model_is_not_shown_what_is_private(repo: Repo) -> None:
    calls = [
        READ,
        Call("read", {"path": "local.txt"}),
        Call("search", {"pattern": "patient"}),
        Call("read", {"path": "answer.txt"}),
    ]
    with (
        ModelServer(Says(Answer("", calls), Answer("I see."))) as server,
        session_on(server.base_url, repo.root) as session,
    ):
        session.opt_in(WORDS)
        session.set_tier("contributor")
        asked(session)
        shown = results(sent_to(server, CONTRIBUTOR)[-1].json)
        assert_kept(server)
        assert "Not shown: it is private (data/patients.csv: data by default (data))" in shown[0]
        assert "local.txt: git does not list it" in shown[1]
        assert "no line matches" in shown[2]
        assert "wrong" in shown[3]
        proved(session)


class Parrot:
    """Puts all that it knows of the patient into whatever it writes: answers, claims, questions, files, summaries."""

    def __init__(self) -> None:
        self.lead = 0

    def __call__(self, request: ParsedRequest) -> Answer:
        knows = MARK if MARK in json.dumps(request.raw) else "nothing"
        last = request.items[-1]
        if asks_for_summary(request):
            return Answer(f"## Found\n{knows}")
        if is_explorer(request):
            if last["type"] == "tool_result":
                return Answer(f"It says {knows}.")
            return Answer("", [READ, Call("claim", self._claim(knows))])
        told = [n for n, item in enumerate(request.items) if item["type"] == "message" and item["role"] == "user"]
        if request.items[told[-1]]["text"].startswith("Plan this,"):
            if last["type"] == "tool_result":
                return Answer("There it is.")
            return proposing(step("mend", goal=f"It knows {knows}."), summary=f"Know {knows}.")
        self.lead += 1
        number = self.lead // 12
        steps = [
            READ,
            Call("run", {"command": "cat data/patients.csv"}),
            Call("ask", {"agent": "explorer", "question": f"Is it {knows}?"}),
            Call("claim", self._claim(knows)),
            Call("edit", {"path": f"copy{number}.txt", "old": "", "new": f"{knows}\n"}),
            Call("read", {"path": f"copy{number - 1}.txt"}),
            Call("run", {"command": f"cp data/patients.csv other{number}.txt"}),
            Call("read", {"path": f"other{number}.txt"}),
            Call("search", {"pattern": "patient"}),
            Call("read", {"path": "other.txt"}),
            EDIT.calls[0],
        ]
        place = self.lead % 12
        return Answer(f"I know {knows}.", [steps[place]] if place < len(steps) else [])

    @staticmethod
    def _claim(knows: str) -> dict[str, object]:
        return {"text": f"It is {knows}.", "type": "decision", "evidence": []}


def test_a_private_file_is_in_no_request_to_a_contributor_model_in_a_long_session(repo: Repo) -> None:
    """500 events with goals, mail, claims, plans, summaries and retractions, before and after the switch."""
    parrot = Parrot()
    with ModelServer(parrot) as server, session_on(server.base_url, repo.root, crew="on", context="10240") as session:
        session.opt_in(WORDS)

        def work(most: int) -> None:
            while session.log.last_seq < most:
                begun = session.log.last_seq
                asked(session, "Look at the data. " + "All of it counts. " * 40)
                assert session.log.last_seq > begun

        assert end(start(session, steps=60)).status
        work(250)
        session.start_plan("Mend it.").wait(timeout=60)
        claims = session.claims.claims
        assert claims, "there is nothing to retract"
        session.retract_claim(min(claims))
        before = session.events()
        assert {"mail.sent", "context.compacted", "plan.begun", "claim.retracted"} <= {each.kind for each in before}
        assert any(MARK.encode() in seen.body for seen in server.requests), "it was never read"
        session.set_tier("contributor")
        repo.git("checkout", "--quiet", "main", "--", "answer.txt")
        repo.commit({"answer.txt": "wrong\n"})
        assert end(start(session, steps=60)).status
        work(520)
        session.start_plan("Mend it again.").wait(timeout=60)
        session.retract_claim(max(session.claims.claims))
        assert session.log.last_seq >= 500
        assert len(sent_to(server, CONTRIBUTOR)) > 20
        assert_kept(server)
        proved(session)


@pytest.mark.parametrize("says", ["served", "header"])
def test_another_model_than_the_pinned_one_stops_the_session(repo: Repo, says: str) -> None:
    """19 of 19 calls were answered by the contributor model though the standard one was pinned; once is enough."""
    with ModelServer(Says(Answer("x"))) as server, session_on(server.base_url, repo.root) as session:
        setattr(server, says, CONTRIBUTOR)
        with pytest.raises(ModelError, match=f"answered with '{CONTRIBUTOR}' although '{MODEL}' was asked for"):
            asked(session)
        assert len(server.requests) == 1, "it was tried again"
        setattr(server, says, "")
        with pytest.raises(WrongModel, match="No call is made: another model"):
            asked(session)
        assert len(server.requests) == 1
        session.set_model(MODEL)
        assert asked(session) == "x"
        assert {seen.json["model"] for seen in server.requests} == {MODEL}
        proved(session)


def test_the_opt_in_is_of_one_repository_and_outlives_the_session(repo: Repo, tmp_path: Path) -> None:
    other = Repo(tmp_path / "other")
    with ModelServer(Says(Answer("x"))) as server:
        with session_on(server.base_url, repo.root) as session:
            session.opt_in(WORDS)
            session.set_tier("contributor")
            asked(session)
            name = session.id
        with pytest.raises(ConfigurationError, match="other is not opted in"):
            session_on(server.base_url, other.root, model=CONTRIBUTOR).__enter__()
        with session_on(server.base_url, repo.root, resume=name) as session:
            assert (session.model, session.tier) == (CONTRIBUTOR, "contributor"), "it has the model that it had"
            asked(session)
            forked = fork_session(session.folder, session.log.last_seq, settings=settings(server.base_url))
            assert (forked.model, forked.tier) == (CONTRIBUTOR, "contributor"), "a fork changes no model"
            forked.close()
            session.withdraw()
            with pytest.raises(TierBlocked, match=f"Nothing is sent to {CONTRIBUTOR}: this repository is not opted in"):
                asked(session)
            assert session.set_tier("standard").startswith(f"{MODEL} is pinned")
            asked(session)
            blocked = only(session.events(), "tier.blocked")
            assert [each.data["clearance"] for each in blocked] == [""]
            proved(session)
        with pytest.raises(ConfigurationError, match="repo is not opted in"):
            session_on(server.base_url, repo.root, model=CONTRIBUTOR).__enter__()
    assert len(sent_to(server, CONTRIBUTOR)) == 2


def test_a_standard_session_is_not_resumed_with_a_contributor_model(repo: Repo) -> None:
    with ModelServer(Says(Answer("x"))) as server:
        with session_on(server.base_url, repo.root) as session:
            session.opt_in(WORDS)
            name = session.id
        with pytest.raises(ConfigurationError, match=f"pinned to {MODEL}, and {CONTRIBUTOR} is of the"):
            session_on(server.base_url, repo.root, resume=name, model=CONTRIBUTOR).__enter__()


def test_a_changed_tier_file_voids_the_opt_in(repo: Repo) -> None:
    with ModelServer(Says(Answer("x"))) as server:
        with session_on(server.base_url, repo.root) as session:
            session.opt_in(WORDS)
        (repo.root / ".musecode").mkdir()
        repo.write(".musecode/tiers.toml", '[paths]\n"data" = "standard"\n')
        with session_on(server.base_url, repo.root) as session:
            (told,) = [line for line in session.take_notices() if "tiers.toml" in line]
            assert "changed since this repository was opted in" in told
            with pytest.raises(UsageProblem, match="is not opted in"):
                session.set_tier("contributor")
            session.opt_in(WORDS)
            session.set_tier("contributor")
        repo.write(".musecode/tiers.toml", '[paths]\n"data" = "stadard"\n')
        with pytest.raises(ConfigurationError, match=r"tiers\.toml, line 2: 'stadard' is no label"):
            session_on(server.base_url, repo.root).__enter__()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_private_goes_to_no_other_machine_where_the_owner_says_so(repo: Repo, host: str) -> None:
    """Under 0.0.0.0, which is no name of this machine, the server counts as one on another machine."""
    (repo.root / ".musecode").mkdir()
    repo.write(".musecode/tiers.toml", '[clearance]\nstandard = "standard"\n')
    with ModelServer(Says(Answer("", [READ]), Answer("I see."))) as server:
        address = server.base_url.replace("127.0.0.1", host)
        with session_on(address, repo.root) as session:
            asked(session)
            shown = results(server.requests[-1].json)[0]
            if host == "127.0.0.1":
                assert MARK in shown
            else:
                assert f"and {MODEL} is not on this machine" in shown
                assert all(MARK.encode() not in seen.body for seen in server.requests)
            proved(session)


def test_the_users_own_label_counts_and_is_kept(repo: Repo) -> None:
    with ModelServer(Says(Answer("", [READ]), Answer("I see."))) as server:
        with session_on(server.base_url, repo.root) as session:
            assert session.label("data/patients.csv", "standard").startswith(
                "data/patients.csv is standard from now on"
            )
            with pytest.raises(UsageProblem, match="'secret' is no label"):
                session.label("data", "secret")
        with session_on(server.base_url, repo.root) as session:
            session.opt_in(WORDS)
            session.set_tier("contributor")
            asked(session)
            assert MARK in results(sent_to(server, CONTRIBUTOR)[-1].json)[0], "it is the owner's word"
            proved(session)


def test_a_switch_is_asked_and_a_no_changes_nothing(repo: Repo) -> None:
    with (
        ModelServer(Says(Answer("x"))) as server,
        session_on(server.base_url, repo.root, interactive=True, approvals="ask") as session,
    ):
        session.opt_in(WORDS)
        asked(session)
        watch = Watch(session)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(session.set_tier, "contributor")
            question = watch.until("approval.requested")
            assert "would have cost" in question.data["shown"]["price"]
            assert "may be used for training" in question.data["shown"]["means"]
            session.answer(question.seq, "deny", by="magic", why="no")
            with pytest.raises(Denied, match="Not switched"):
                waits.result(30)
            assert session.model == MODEL
            waits = pool.submit(session.set_tier, "contributor")
            session.answer(watch.until("approval.requested", since=question.seq).seq, "approve", by="magic")
            assert waits.result(30).startswith(f"{CONTRIBUTOR} is pinned")
        text = session.tier_text()
        assert text.startswith(
            f"{CONTRIBUTOR}, of the contributor tier, gets what is public or standard. repo is opted in."
        )
        proved(session)


NO_BWRAP = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.mark.parametrize("sandbox", ["plain", pytest.param("bubblewrap", marks=NO_BWRAP)])
def test_output_of_a_command_has_the_label_of_what_it_could_read(tmp_path: Path, sandbox: str) -> None:
    """Without a sandbox that is anything; what the command writes is known by its path, and is not shown either."""
    repo = Repo(tmp_path / "repo")
    (tmp_path / "outside.txt").write_text(MARK)
    outside = tmp_path / "outside.txt"
    calls = [
        Call("run", {"command": f"cat {outside}; cp {outside} copied.txt; echo done > made.txt"}),
        Call("read", {"path": "copied.txt" if sandbox == "plain" else "made.txt"}),
    ]
    script = Says(*(Answer("", [each]) for each in calls), EDIT, Answer("It is corrected."))
    with ModelServer(script) as server, session_on(server.base_url, repo.root, sandbox=sandbox) as session:
        session.opt_in(WORDS)
        session.set_tier("contributor")
        assert end(start(session)).met
        ran, seen = results(sent_to(server, CONTRIBUTOR)[2].json)
        assert_kept(server)
        if sandbox == "plain":
            assert "Not shown: it is private (a command without a sandbox may read any file of yours)" in ran
            assert "[exit 0]" in ran
            assert "copied.txt: written by what may have read something private" in seen
        else:
            assert "No such file" in ran
            assert "done" in seen
        proved(session)
