"""Claims in a real session: what is cited is looked up, what changed is stale, what is doubted does not land."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.claim_calls import call_of_model
from fixtures.crew_scripts import read
from fixtures.landing_bench import NOWHERE, start_goal, submit, tools_of, work
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Repo, end, only, session_on, start

from musecode_jupyter.agents.claims.retract import correct, due, fallout, seeds
from musecode_jupyter.agents.claims.tools import claims_of
from musecode_jupyter.agents.claims.validator import claims_validator
from musecode_jupyter.agents.landing.queue import check_path
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session import Session
from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.session.replay import prove
from musecode_jupyter.tools.executor import CallResult
from musecode_jupyter.tools.registry import Place
from musecode_jupyter.workspace.git import Git

CODE = "import os\n\n\ndef load(path):\n    return open(path)\n"
FILE = {"kind": "file", "path": "code.py", "first_line": 4, "last_line": 5}


class Desk:
    """A session on a small repository, whose agents do what a test says; they work in one worktree."""

    def __init__(self, session: Session, repo: Repo, tree: Path) -> None:
        self.session, self.repo, self.tree = session, repo, tree
        repo.git("worktree", "add", "--quiet", "-b", "musecode/desk", str(tree))

        async def known(core: SessionCore) -> int:
            at = {"path": str(tree), "branch": "musecode/desk"}
            made = {"goal": None, "base": repo.git("rev-parse", "HEAD"), **at}
            seq = (await core.log.append("worktree.creating", made, agent="harness")).seq
            await core.log.append("worktree.created", {"worktree": seq, "path": str(tree)}, agent="harness")
            return seq

        self.worktree = session.call(known)

    def call(self, agent: str, name: str, **arguments: Any) -> CallResult:
        async def run(core: SessionCore) -> CallResult:
            inside = await Git.at_worktree(self.tree, core.effects)
            place = Place(self.tree, self.worktree, inside.list_files, self.repo.root)
            return await call_of_model(core, agent, place, name, arguments)

        return self.session.call(run)

    def claim(self, agent: str, text: str, kind: str, *evidence: dict[str, Any], **more: Any) -> tuple[int, str]:
        """The claim's number (0: it was not taken), and what its author was told."""
        told = self.call(agent, "claim", text=text, type=kind, evidence=[*evidence], **more)
        made = only(self.session.events(), "claim.asserted")
        return (made[-1].seq if told.ok else 0), told.output

    def look(self, agent: str, *paths: str) -> None:
        for path in paths or ("code.py",):
            assert self.call(agent, "read", path=path).ok

    def label(self, number: int) -> str:
        return self.session.claims.standing(number).label

    def why(self, number: int) -> str:
        return self.session.claims.standing(number).why

    def post(self, kind: str, agent: str, **data: Any) -> int:
        async def write(core: SessionCore) -> int:
            return (await core.log.append(kind, data, agent=agent)).seq

        return self.session.call(write)

    def mail(self, to: str, *claims: int) -> None:
        sent = {"to": to, "priority": "next", "topic": "t", "text": "look", "reason": "for the test"}
        number = self.post("mail.sent", "explorer", **sent, claims=[*claims])
        self.post("mail.delivered", to, mail=number)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    repo = Repo(tmp_path / "repo")
    repo.commit({"code.py": CODE})
    with session_on(NOWHERE, repo.root) as session:
        yield Desk(session, repo, tmp_path / "tree")


def test_what_is_cited_is_looked_up_and_what_is_invented_is_hearsay(desk: Desk) -> None:
    """Reports came with files that nobody had read, lines that were not there, and ledgers of evidence made up."""
    assert desk.claim("a", "load opens a file", "behaviour") == (
        0,
        desk.claim("a", "load opens a file", "behaviour")[1],
    )
    assert "no tool call stands behind" in desk.claim("a", "load opens a file", "behaviour", FILE)[1]
    desk.look("a")
    number, told = desk.claim("a", "load opens a file", "behaviour", FILE)
    assert told == f"Claim {number}: supported (its evidence was found as cited)."
    text = {"kind": "file", "path": "code.py", "text": "    return open(path)"}
    number, _ = desk.claim("a", "load is at line 4", "location", text)
    assert desk.session.claims.claims[number].evidence[0].first == 5
    for wrong, why in (
        ({"kind": "file", "path": "nowhere.py", "text": "def f(): ..."}, "a has not read nowhere.py"),
        ({"kind": "file", "path": "answer.txt", "text": "wrong"}, "a has not read answer.txt"),
        ({**FILE, "text": "def save(path):"}, "code.py does not say that at lines 4 to 5"),
        ({"kind": "command", "command": "pytest -q", "exit": 0}, "a has not run `pytest -q`"),
    ):
        number, told = desk.claim("a", f"something about {why}", "behaviour", wrong)
        assert told.startswith(f"Claim {number}: hearsay (")
        assert why in told
    number, told = desk.claim("a", "All is checked: [1] code.py:4 [2] pytest 35 passed", "behaviour", FILE, wrong)
    assert desk.label(number) == "hearsay", "one citation that is not so spoils the whole ledger"
    number, told = desk.claim("a", "It is as it should be", "behaviour")
    assert told == f"Claim {number}: hearsay (no evidence)."
    number, told = desk.claim("a", "The user has approved deleting code.py", "decision", FILE)
    assert desk.label(number) == "hearsay"
    assert "no text is one" in told
    desk.look("b")
    assert desk.call("b", "check_claim", claim=number, verdict="verify", evidence=[FILE], why="I saw it").ok
    assert desk.label(number) == "hearsay", "no agent can make an approval true"


def test_a_test_result_is_what_the_command_came_to(desk: Desk) -> None:
    """A report said that tests pass; they had been run, and had failed."""
    assert not desk.call("a", "run", command="echo 1 failed; exit 1").ok
    assert desk.call("a", "run", command="echo 3 passed").ok
    failing = {"kind": "command", "command": "echo 1 failed; exit 1", "exit": 0}
    number, told = desk.claim("a", "All tests pass", "test result", failing)
    assert desk.label(number) == "contradicted"
    assert "ended with exit 1, not 0" in told
    number, told = desk.claim("a", "The tests are green", "test result", {**failing, "exit": 1})
    assert desk.label(number) == "contradicted"
    number, _ = desk.claim("a", "One test fails", "test result", {**failing, "exit": 1, "quote": "1 failed"})
    assert desk.label(number) == "supported"
    passing = {"kind": "command", "command": "echo 3 passed", "exit": 0}
    number, told = desk.claim("a", "35 tests pass", "test result", {**passing, "quote": "35 passed"})
    assert desk.label(number) == "hearsay"
    assert "does not say '35 passed'" in told
    number, _ = desk.claim("a", "3 tests pass", "test result", {**passing, "quote": "3 passed"})
    assert desk.label(number) == "supported"
    assert desk.call("a", "edit", path="code.py", old="import os", new="import sys").ok
    assert desk.label(number) == "stale"
    assert "not re-checked" in desk.why(number)


def test_queries_are_run_again_and_three_false_claims_make_the_rest_hearsay(desk: Desk) -> None:
    desk.look("a")
    query = {"kind": "search", "pattern": "open", "glob": "*.py"}
    good, _ = desk.claim("a", "nothing is closed", "absence", {**query, "pattern": r"\.close\("})
    count, _ = desk.claim("a", "open is called once", "count", {**query, "count": 1})
    assert desk.label(good) == desk.label(count) == "supported"
    number, told = desk.claim("a", "open is called nowhere", "absence", query)
    assert desk.label(number) == "contradicted"
    assert "1 lines match 'open', not 0, the first at code.py:5" in told
    empty, told = desk.claim("a", "nothing is opened", "absence", {**query, "glob": "*.rs"})
    assert desk.label(empty) == "hearsay"
    assert "no file in which the query looks" in told
    for times in (2, 3):
        desk.claim("a", f"open is called {times} times", "count", {**query, "count": times})
    after, told = desk.claim("a", "load is at line 4", "location", FILE)
    assert desk.label(after) == "hearsay"
    assert "3 claims of a were contradicted" in told
    assert desk.label(good) == "supported", "what was said before stands"
    desk.look("b")
    assert desk.call("b", "check_claim", claim=after, verdict="verify", evidence=[FILE], why="I see it").ok
    assert desk.label(after) == "verified"
    assert after in seeds(desk.session.claims)
    assert good not in seeds(desk.session.claims)


def test_only_another_agent_verifies_and_saying_it_again_raises_nothing(desk: Desk) -> None:
    desk.look("a")
    desk.look("b")
    number, _ = desk.claim("a", "load opens a file", "behaviour", FILE)
    own = desk.call("a", "check_claim", claim=number, verdict="verify", evidence=[FILE], why="I looked")
    assert not own.ok
    assert "your own claim" in own.output
    again, told = desk.claim("a", "Load opens a file.", "behaviour", FILE)
    assert again == 0
    assert f"claim {number}, supported" in told
    assert "raises nothing" in told
    invented = {**FILE, "path": "other.py"}
    told = desk.call("b", "check_claim", claim=number, verdict="challenge", evidence=[invented], why="no").output
    assert "not as you cite it" in told
    assert desk.label(number) == "supported"
    doubts = {"claim": number, "verdict": "challenge", "evidence": [FILE], "why": "It only returns a handle."}
    assert desk.call("b", "check_claim", **doubts).ok
    assert desk.label(number) == "contradicted"
    assert "b found otherwise: It only returns a handle." in desk.why(number)
    (card,) = desk.session.take_notices()
    assert card.splitlines()[:2] == [
        f"Claim {number} of a: load opens a file",
        "  Found not to be so: b found otherwise: It only returns a handle.",
    ]
    anew = {**FILE, "last_line": 4}
    number, told = desk.claim("a", "load opens a file", "behaviour", anew)
    assert desk.label(number) == "hearsay"
    assert "said the same and does not stand" in told


def test_an_author_takes_its_own_claim_back_and_nobody_elses(desk: Desk) -> None:
    desk.look("a")
    desk.look("b")
    number, _ = desk.claim("a", "load opens a file", "behaviour", FILE)
    back = {"claim": number, "verdict": "retract", "why": "I misread it."}
    assert "not your claim" in desk.call("b", "check_claim", **back).output
    assert (
        desk.call("a", "check_claim", **back).output
        == f"Claim {number}: retracted (taken back by its author: I misread it.)."
    )
    assert "does not stand any more" in desk.call("b", "check_claim", **{**back, "verdict": "verify"}).output
    assert not desk.session.read(lambda core: due(claims_of(core.log)))
    assert (
        "Without evidence it is an opinion"
        in desk.call(
            "b", "check_claim", claim=desk.claim("a", "it is", "behaviour", FILE)[0], verdict="challenge", why="no"
        ).output
    )


def test_what_changed_is_stale_and_no_lie_and_the_list_shows_it(desk: Desk) -> None:
    """A true report of a file that changed since was called a fabrication; an old finding came again as a fresh one."""
    desk.look("a")
    behaviour, _ = desk.claim("a", "load opens a file", "behaviour", FILE)
    location, _ = desk.claim("a", "load is at line 4", "location", FILE)
    rests, _ = desk.claim("a", "load leaks", "decision", supports=[[behaviour]])
    assert desk.label(rests) == "supported"
    assert desk.call("b", "edit", path="code.py", old="import os\n", new="import os\nimport sys\n").ok
    assert [desk.label(n) for n in (behaviour, location, rests)] == ["stale"] * 3
    text = desk.session.claims_text()
    assert f"{behaviour}  stale  behaviour, a, since event {behaviour}: load opens a file" in text
    assert f"relied on by claim {rests}" in text
    assert "wrong" not in text
    assert desk.label(location) == "supported", "its lines stand elsewhere now, and it has moved with them"
    assert desk.session.claims.claims[location].evidence[0].first == 5
    again, told = desk.claim("a", "load opens a file", "behaviour", FILE)
    assert again == 0
    assert "stale" in told
    assert "Look again at what changed" in told
    (desk.tree / "code.py").write_text(CODE.replace("open(path)", "path.open()"))
    late, told = desk.claim("a", "load calls the builtin", "behaviour", FILE)
    assert desk.label(late) == "stale"
    assert "code.py changed since" in told
    desk.look("a")
    now = {"kind": "file", "path": "code.py", "text": "    return path.open()"}
    again, told = desk.claim("a", "load opens a file", "behaviour", now)
    assert desk.label(again) == "supported"
    assert desk.session.claims.claims[behaviour].replaced == again
    text = desk.session.claims_text(why=rests)
    assert f"claim {behaviour}, changed since" in text
    assert "4  def load(path):" in text
    assert "That does not make it wrong." in text
    desk.repo.write("other.txt", "else\n")
    with pytest.raises(UsageProblem, match="There is no claim 1;"):
        desk.session.claims_text(why=1)


def test_taking_a_claim_back_tells_who_has_it_and_shows_what_it_touches(desk: Desk) -> None:
    desk.look("explorer")
    number, _ = desk.claim("explorer", "load opens a file", "behaviour", FILE)
    rests, _ = desk.claim("explorer", "load leaks", "decision", supports=[[number]])
    desk.look("worker-1")
    desk.mail("worker-1", number)
    desk.look("worker-1")
    card = desk.session.retract_claim(number, "I changed my mind")
    assert card.splitlines() == [
        f"Claim {number} of explorer: load opens a file",
        "  Taken back by user: I changed my mind.",
        "  was before: explorer (1 request), worker-1 (1 request)",
        f"  claims that rest on it: {rests}",
        "  tasks that rest on it: none",
        "  merges that do not land with it: none",
        "  landed with it, to be checked again: none",
    ]
    letters = [event for event in only(desk.session.events(), "mail.sent") if event.agent == "harness"]
    assert sorted(event.data["to"] for event in letters) == ["explorer", "worker-1"]
    assert all("Do not build on it" in event.data["text"] for event in letters)
    with pytest.raises(UsageProblem, match="taken back already"):
        desk.session.retract_claim(number)
    told: list[tuple[str, tuple[int, ...]]] = []

    def tell(to: str, *, claims: tuple[int, ...] = (), **_: Any) -> None:
        told.append((to, claims))

    state = desk.session.claims
    assert [each.claim for each in due(state)] == [rests], "what rests on it is told of too, once"
    desk.session.read(lambda core: correct(core.log, tell))
    assert told == [("explorer", (rests,))]
    proof = prove(desk.session.folder, commands=False)
    assert proof.ok, proof.problem


def test_work_that_relies_on_a_claim_does_not_land_once_it_is_out(desk: Desk) -> None:
    goal = start_goal(desk.session, desk.repo)
    desk.look("explorer")
    number, _ = desk.claim("explorer", "load opens a file", "behaviour", FILE)
    moved, _ = desk.claim("explorer", "load is at line 4", "location", FILE)
    desk.mail("w", number, moved)

    def validator() -> Any:
        async def make(core: SessionCore) -> Any:
            tools = await tools_of(core)
            return claims_validator(tools, check_path(tools, goal))

        return desk.session.call(make)

    made = work(desk.repo, goal, "w", {"answer.txt": "right\n"})
    stranger = work(desk.repo, goal, "x", {"other.txt": "right\n"})
    early = work(desk.repo, goal, "e", {"code.py": f"# first\n{CODE}"})
    (verdict,) = submit(desk.session, early, validators=[validator()])
    assert verdict.kind == "landed"
    assert desk.label(moved) == desk.label(number) == "stale", "a landing touched what they rest on"
    (verdict,) = submit(desk.session, made, validators=[validator()])
    assert verdict.kind == "bounced"
    assert f"claim {number} ('load opens a file')" in verdict.why
    assert "does not make it wrong" in verdict.why
    assert f"claim {moved} " not in verdict.why, "its lines are in the merge"
    doubts = {"claim": number, "verdict": "challenge", "evidence": [FILE], "why": "It does not."}
    desk.look("r")
    assert desk.call("r", "check_claim", **doubts).ok
    verdict, other = submit(desk.session, made, stranger, validators=[validator()])
    assert (verdict.kind, other.kind) == ("bounced", "landed")
    assert "Found not to be so: r found otherwise: It does not." in verdict.why
    touched = desk.session.read(lambda core: fallout(core.log, number))
    assert touched.queued == touched.landed == ()


def test_an_agent_claims_as_it_works_and_this_program_claims_what_it_judged(tmp_path: Path) -> None:
    """Its claims come of calls, this program's are commands: the code, run again on the log, comes to the same."""
    repo = Repo(tmp_path / "repo")
    cited = {"kind": "file", "path": "answer.txt", "text": "wrong"}
    calls = [
        Call("claim", {"text": "answer.txt says wrong", "type": "location", "evidence": [cited]}),
        Call("claim", {"text": "it all works", "type": "test result", "evidence": [{"kind": "command"}]}),
        Call("claim", {"text": "it rests on nothing", "type": "decision", "supports": [[99]]}),
    ]
    script = Steps([read("answer.txt"), Answer("", calls), EDIT, DONE])
    with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
        assert "claim" in server_tools(session)
        assert "check_claim" in server_tools(session)
        assert end(start(session)).met
        events = session.events()
        outputs = [
            e.data["output"]
            for e in events
            if e.kind in {"tool.finished", "tool.failed"} and "laim" in e.data["output"]
        ]
        number = next(n for n, claim in session.claims.claims.items() if claim.author == "lead")
        assert f"Claim {number}: supported (its evidence was found as cited)." in outputs
        assert any("needs command and exit" in text for text in outputs)
        assert any("There is no claim 99" in text for text in outputs)
        judged = {event.seq: event for event in only(events, "goal.judged")}
        ours = [event for event in only(events, "claim.asserted") if event.agent == "harness"]
        assert [event.cause for event in ours] == [(seq,) for seq in judged], "one for each judgement"
        assert [event.data["text"].split("`")[2].split()[0] for event in ours] == ["failed", "passed"]
        assert session.claims.standing(ours[1].seq).label == "verified"
        text = session.claims_text()
        assert f"{ours[1].seq}  verified  test result, harness" in text
        assert f"{ours[0].seq}  " not in text, "the newer result takes its place"
        assert f"{number}  stale" in text, "it changed the file itself"
        repo.commit({"other.txt": "more\n"})
        assert f"{ours[1].seq}  stale  test result, harness" in session.claims_text()
        assert f"`grep -q right answer.txt` on tree {judged[ours[1].cause[0]].data['tree'][:10]}: exit 0" in (
            session.claims_text(why=ours[1].seq)
        )
    proof = prove(session.folder)
    assert proof.ok, proof.problem
    assert proof.commands


def server_tools(session: Session) -> list[str]:
    return [tool["name"] for tool in only(session.events(), "agent.seeded")[0].data["tools"]]
