"""%grill: what is wrong with a plan, proven without a model; each flaw once, answered, mended by the next version."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.crew_scripts import read
from fixtures.model_server import ModelServer
from fixtures.plan_scripts import PLANNED, RIGHT, Author, proposing, step
from fixtures.session_bench import DEADLINE_S, Repo, only, said, session_on

from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.grills import answer_finding, grill
from musecode_jupyter.session.replay import prove
from musecode_jupyter.skills.grill_checks import ANGLES, attack
from musecode_jupyter.skills.grill_state import grills_of

GROUND = {"files": {"a.py": "0"}, "uncommitted": []}


def plan_of(*steps: dict[str, object]) -> dict[str, object]:
    with_trials = [
        {**each, "trials": [{"command": c, "ended": "fails", "exit": 1} for c in each["accept"]]}  # type: ignore[attr-defined]
        for each in steps
    ]
    return {"steps": with_trials, "evidence": [], "ground": GROUND, "by": "lead"}


@pytest.mark.parametrize(
    ("steps", "angles"),
    [
        ([step("one"), step("two")], []),
        ([step("one", reads=["two.txt"]), step("two")], ["one file"]),
        ([step("one", reads=["two.txt"], after=["two"]), step("two")], []),
        ([step("one", reads=["two.txt"], after=["mid"]), step("mid", after=["two"]), step("two")], []),
        ([step("one", accept=["test -e one.txt"], writes=["two.txt"])], ["unverifiable acceptance"]),
        ([step("one", accept=["python -m pytest tests/test_a.py::test_x"], writes=["tests"])], ["own judge"]),
        ([step("one", accept=["python -m pytest tests/test_b.py"], writes=["tests/test_b.py"])], []),
        ([step("one", goal="Run git push --force."), step("two")], ["irreversible"]),
        ([step("one", accept=["rm -rf build && make"])], ["irreversible"]),
        ([step("one", reads=["conf/.env"])], ["security"]),
        ([step("one", writes=["keys/host.pem"])], ["security"]),
        ([step("one", tokens=0)], ["cost"]),
    ],
)
def test_what_a_plan_says_of_itself(steps: list[dict[str, object]], angles: list[str]) -> None:
    found = attack(plan_of(*steps), ["a.py", "tests/test_a.py", "one.txt"])
    assert [flaw.angle for flaw in found] == angles
    assert all(flaw.evidence and flaw.change and flaw.angle in ANGLES for flaw in found)


def test_a_second_attack_says_what_is_resolved_and_what_remains(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    repo.commit({"one.txt": "wrong\n", "two.txt": "wrong\n"})
    bad = [step("one", accept=["pytset one.txt"]), step("two", tokens=0)]
    evidence = [{"path": "two.txt", "shows": "it says wrong"}]
    first = proposing(*bad, evidence=evidence)
    mended = proposing(step("one"), step("two", tokens=0), evidence=evidence)
    author = Author([read("one.txt"), first, PLANNED], [first, PLANNED], [mended, PLANNED])
    with ModelServer(author) as server, session_on(server.base_url, repo.root) as session:
        with pytest.raises(UsageProblem, match="There is no plan"):
            session.call(lambda core: grill(core, core.plans.active()))
        plan = session.start_plan("mend the files")
        assert plan.wait(DEADLINE_S).status == "proposed"
        digest = plan.result.digest
        text = session.call(lambda core: grill(core, plan.number))
        numbers = session.read(lambda core: list(grills_of(core.log).findings))
        unread, broken, silent = numbers
        assert f"{broken} blocking, unverifiable acceptance [open]: The command of one cannot be run.\n" in text
        assert f"{unread} major, wrong evidence [open]: The plan rests on two.txt, which nobody has read.\n" in text
        assert f"{silent} minor, cost [open]: Nothing is said of what two takes.\n    evidence: tokens: 0\n" in text
        # To be attacked changes nothing of what an approval is bound to.
        assert plan.result.digest == digest
        for number, word, why, says in (
            (broken, "accept", "", f"Finding {broken} is accepted. `%plan edit` has the plan changed by it."),
            (silent, "answer", "it does not matter", f"Finding {silent} is answered."),
        ):
            answer = session.call(lambda core, n=number, w=word, y=why: answer_finding(core, n, w, y))
            assert answer == says
        for number, word, says in (
            (broken, "reject", "is accepted already"),
            (unread, "answer", "What do you answer"),
            (9999, "accept", "There is no finding 9999"),
        ):
            with pytest.raises(UsageProblem, match=says):
                session.call(lambda core, n=number, w=word: answer_finding(core, n, w))
        plan.edit()
        assert plan.wait(DEADLINE_S).version == 2
        text = session.call(lambda core: grill(core, plan.number))
        (_, again) = only(list(session.events()), "grill.ended")
        assert (again.data["found"], again.data["resolved"], again.data["remain"]) == ([], [broken], [unread])
        assert f"{broken} resolved: The command of one cannot be run." in text
        assert f"{silent} answered: Nothing is said of what two takes. (it does not matter)" in text
        told = [line for seen in server.requests for line in said(seen.json) if line.startswith("Change the plan")]
        folder = session.folder
    assert "- The command of one cannot be run. Name one that can." in told[0]
    proof = prove(folder)
    assert proof.ok, proof.problem


def test_an_attack_that_finds_nothing_says_so(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    repo.commit({"one.txt": "wrong\n"})
    evidence = [{"path": "one.txt", "shows": RIGHT}]
    author = Author([read("one.txt"), proposing(step("one"), evidence=evidence), PLANNED])
    with ModelServer(author) as server, session_on(server.base_url, repo.root) as session:
        session.start_plan("mend it").wait(DEADLINE_S)
        text = session.call(lambda core: grill(core, core.plans.active()))
        assert text.splitlines()[1] == "Nothing was found that stands."
        repo.write("one.txt", "wrong still\n")
        text = session.call(lambda core: grill(core, core.plans.active()))
        assert "The ground has moved: one.txt has changed since it was read." in text
