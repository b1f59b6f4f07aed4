"""%plan: looked around for, handed in, tried, approved by digest, and only then run as a goal's tasks."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from fixtures.crew_scripts import Asking, Crew, ask, edit, is_explorer, read
from fixtures.model_scripts import Answer, Call, ParsedRequest
from fixtures.model_server import ModelServer
from fixtures.plan_scripts import PLANNED, RIGHT, Author, proposing, step
from fixtures.session_bench import Held, Repo, Watch, end, only, said, session_on, start

from musecode_jupyter.jupyter.views.plan import plan_action
from musecode_jupyter.jupyter.views.plan_html import plan_html, plan_line
from musecode_jupyter.runtime.errors import Denied, UsageProblem
from musecode_jupyter.session import GoalSpec
from musecode_jupyter.session.replay import prove

MEND = Crew({name: [[edit(f"{name}.txt", "wrong", "right")]] for name in ("one", "two")})
DEADLINE_S = 60.0


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "repo")
    repo.commit({f"{name}.txt": "wrong\n" for name in ("one", "two")})
    return repo


def snapshot(root: Path) -> dict[str, bytes]:
    """All files below a folder, but for what git keeps of worktrees that come and go."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in {"musecode.lock"}
    }


def test_from_a_sentence_to_a_landed_change(repo: Repo) -> None:
    evidence = [{"path": "one.txt", "shows": "it says wrong"}, {"path": "two.txt", "shows": "so does this"}]
    first = proposing(step("one"), questions=["Which word?"], evidence=evidence)
    second = proposing(step("one"), step("two", after=["one"]), evidence=evidence)
    author = Author([read("one.txt"), first, PLANNED], [read("two.txt"), second, PLANNED], work=MEND)
    before = snapshot(repo.root)
    with ModelServer(author) as server, session_on(server.base_url, repo.root) as session:
        plan = session.start_plan("mend the files")
        result = plan.wait(DEADLINE_S)
        assert (result.status, result.version) == ("proposed", 1), result.why
        assert result.document is not None
        assert [each["read"] for each in result.document["evidence"]] == [True, False]
        assert "NEVER READ" in plan.text()
        assert result.document["steps"][0]["trials"] == [
            {"command": f"{RIGHT} one.txt", "ended": "fails", "exit": 1},
        ]
        with pytest.raises(UsageProblem, match="not approved: look at it"):
            plan.run()
        plan.answer(1, "right")
        shown = plan.result.digest
        plan.edit("both files")
        assert plan.wait(DEADLINE_S).version == 2
        assert "+## 2. two" in plan.difference()
        with pytest.raises(UsageProblem, match="Not approved: the plan has changed since"):
            plan.approve(shown)
        assert plan.text().count("NEVER READ") == 0
        assert snapshot(repo.root) == before
        digest = plan.approve()
        folder = session.folder / "plans"
        assert sorted(path.name for path in folder.iterdir()) == [
            f"{plan.number}-v{version}.{kind}" for version in (1, 2) for kind in ("json", "md")
        ]
        document = (folder / f"{plan.number}-v2.json").read_text().rstrip("\n")
        assert digest == blake2b(document.encode(), digest_size=16).hexdigest()
        assert json.loads(document) == plan.result.document
        handle = plan.run()
        result = end(handle)
        assert result.met, result.why
        events = list(session.events())
        folder = session.folder
    assert [event.data["name"] for event in only(events, "task.created")] == ["one", "two"]
    assert only(events, "goal.set")[0].data["verify"] == [f"{RIGHT} one.txt", f"{RIGHT} two.txt"]
    assert repo.read("one.txt") + repo.read("two.txt") == "right\nright\n"
    (claim,) = [event for event in only(events, "claim.asserted") if event.agent == "user"]
    assert claim.data["type"] == "decision"
    told = [text for seen in server.requests for text in said(seen.json) if text.startswith("Change the plan")]
    assert "- Which word? right" in told[0]
    proof = prove(folder)
    assert proof.ok, proof.problem
    assert not proof.unchecked


def spoiled(**other: Any) -> list[dict[str, Any]]:
    return [step("one", **other), step("two")]


BAD = {
    "cycle": ([step("one", after=["two"]), step("two", after=["one"])], "wait for each other: one -> two -> one"),
    "unknown": (spoiled(after=["three"]), "Task 'one' comes after 'three', which is no task of this graph."),
    "no command": (spoiled(accept=[]), "Task 'one' has no acceptance command."),
    "one file": (spoiled(writes=["two.txt"]), "Steps 'one' and 'two' both write two.txt, and neither comes after"),
    "a folder": (spoiled(writes=["*.txt"]), "Steps 'one' and 'two' both write two.txt, and neither comes after"),
    "outside": (spoiled(writes=["../x"]), "'../x' leads out of the repository."),
    "field": (spoiled(cost=3), "steps.0.cost: Extra inputs are not permitted"),
    "risk": (spoiled(risk={"level": "none", "why": ""}), "steps.0.risk.level: Input should be 'low', 'medium' or"),
    "claim": ([step("one")], "There is no claim 7. Leave it out."),
}


def test_a_plan_that_cannot_be_taken_is_told_in_one_line_and_tried_again_a_few_times(repo: Repo) -> None:
    handed_in = [proposing(*steps, claims=[7] if name == "claim" else []) for name, (steps, _) in BAD.items()]
    three = [[*handed_in[number : number + 3], proposing(step("one")), PLANNED] for number in (0, 3, 6)]
    with ModelServer(Author(*three, handed_in)) as server, session_on(server.base_url, repo.root) as session:
        for _ in three:
            assert session.start_plan("mend the files").wait(DEADLINE_S).version == 1
        told = [event.data["output"] for event in only(list(session.events()), "tool.failed")]
        assert len(told) == len(BAD)
        for output, (_, says) in zip(told, BAD.values(), strict=True):
            assert says in output, output
            assert "\n" not in output
        result = session.start_plan("mend the files").wait(DEADLINE_S)
        assert (result.status, result.document) == ("stopped", None)
        assert result.why.startswith("No plan was handed in that can be taken, in 4 tries. The last one: The plan")
        assert len(only(list(session.events()), "tool.failed")) == len(BAD) + 4
        folder = session.folder
    proof = prove(folder)
    assert proof.ok, proof.problem


def test_while_a_plan_is_written_nothing_can_be_changed_or_run(repo: Repo) -> None:
    tries = [
        edit("one.txt", "wrong", "right"),
        Answer("", [Call("run", {"command": "echo right > one.txt"})]),
        Answer("", [Call("propose_tasks", {"tasks": []})]),
        proposing(step("one")),
        PLANNED,
        PLANNED,
    ]
    before = snapshot(repo.root)
    with ModelServer(Author(tries)) as server, session_on(server.base_url, repo.root) as session:
        assert session.start_plan("mend it").wait(DEADLINE_S).status == "proposed"
        failed = [event.data["output"] for event in only(list(session.events()), "tool.failed")]
        assert [output.partition(".")[0] for output in failed] == [
            f"There is no tool '{name}'" for name in ("edit", "run", "propose_tasks")
        ]
        # What the program ran are the steps' commands, in a checkout outside the repository that is gone again.
        started = [event for event in only(list(session.events()), "tool.started") if event.data["effect"] != "read"]
        assert {event.agent for event in started} == {"harness"}
        assert not any(Path(event.data["cwd"]).is_relative_to(repo.root) for event in started)
        assert not any(Path(event.data["cwd"]).exists() for event in started)
        # Outside planning nobody wants one.
        session.call(lambda core: core.ask("Plan this, please."), timeout=DEADLINE_S)
        last = only(list(session.events()), "tool.failed")[-1]
        assert last.data["output"].startswith("There is no tool 'propose_plan'")
    assert snapshot(repo.root) == before


def test_commands_that_pass_already_or_cannot_be_run_are_told_once_and_shown(repo: Repo) -> None:
    odd = [
        step("one", accept=["pytset one.txt"]),
        step("two", accept=["test -e two.txt"]),
        step("made", accept=["./made.sh"], writes=["made.sh"]),
    ]
    author = Author([proposing(*odd), PLANNED])
    with ModelServer(author) as server, session_on(server.base_url, repo.root) as session:
        result = session.start_plan("mend the files").wait(DEADLINE_S)
        assert result.document is not None
        ended = [trial["ended"] for each in result.document["steps"] for trial in each["trials"]]
        assert ended == ["cannot run", "passes", "to be made"]
        text = session.newest_plan().text()
        first, second = only(list(session.events()), "plan.checked")
    assert "PASSES ALREADY" in text
    assert "CANNOT BE RUN (exit 127)" in text
    assert "Task one: `pytset one.txt` cannot be run" in first.data["report"]
    assert "Step two: its commands pass already" in first.data["report"]
    assert second.data["report"] == ""
    with ModelServer(author) as server, session_on(server.base_url, repo.root, approvals="deny") as session:
        result = session.start_plan("mend the files").wait(DEADLINE_S)
        assert result.document is not None
        assert result.document["denied"] == "approvals mode deny"
        assert "The commands were not run: approvals mode deny" in session.newest_plan().text()
        assert [e for e in only(list(session.events()), "tool.started") if e.data["effect"] == "process"] == []


def test_what_moved_under_a_plan_is_told_and_asked_before_it_is_run(repo: Repo) -> None:
    author = Author([read("one.txt"), proposing(step("one", writes=["one.txt"])), PLANNED], work=MEND)
    asking = {"interactive": True, "approvals": "ask"}
    with ModelServer(author) as server, session_on(server.base_url, repo.root, **asking) as session:
        session.allow("grep -q")
        session.allow("land on main")
        plan = session.start_plan("mend it")
        plan.wait(DEADLINE_S)
        plan.approve()
        assert plan.moved() == []
        repo.commit({"one.txt": "wrong still\n"})
        head = repo.git("rev-parse", "HEAD")
        was = repo.git("rev-parse", "HEAD^")
        moved = [f"the last commit is {head[:10]}, not {was[:10]}", "one.txt has changed since it was read"]
        assert plan.moved() == moved
        watch = Watch(session)
        for decision in ("deny", "approve"):
            future = session._runtime.submit(session.core.plans.run(plan.number, GoalSpec("", ())))
            asked = watch.until("approval.requested", action="run the plan", since=session.log.last_seq - 1)
            assert asked.data["shown"]["moved since it was written"] == moved
            session.answer(asked.seq, decision, by="test")
            if decision == "deny":
                with pytest.raises(Denied, match=r"Not run, since its ground has moved .* one\.txt has changed"):
                    future.result(DEADLINE_S)
                assert only(list(session.events()), "goal.set") == []
        result = end(session.handle(future.result(DEADLINE_S)))
        assert result.met, result.why
        (run,) = only(list(session.events()), "plan.run")
        assert run.data["moved"] == moved
        folder = session.folder
    assert repo.read("one.txt") == "right still\n"
    proof = prove(folder)
    assert proof.ok, proof.problem


def test_words_that_do_not_fit_say_what_does(repo: Repo) -> None:
    late = Held([Answer("late"), proposing(step("one")), PLANNED], hold=0)
    with ModelServer(late) as server, session_on(server.base_url, repo.root) as session:
        for words, says in (
            (lambda: session.newest_plan(), "There is no plan. Have one written"),
            (lambda: session.start_plan(" "), "What is to be planned"),
            (lambda: session.start_plan("x", ["pytset"]), "there is no 'pytset' here"),
        ):
            with pytest.raises(UsageProblem, match=says):
                words()
        plan = session.start_plan("mend it")
        late.wait()
        for words, says in (
            (lambda: plan.approve(), "is being written: wait for it"),
            (lambda: plan.edit("more"), "is being written: wait for it"),
            (lambda: session.start_plan("another"), "A plan is being written"),
            (lambda: start(session), "A plan is being written"),
            (lambda: session.call(lambda core: core.ask("why?")), "A plan is being written"),
        ):
            with pytest.raises(UsageProblem, match=says):
                words()
    # The end of the session stops the writing; the next process goes on with it.
    late.release()
    with ModelServer(late) as server, session_on(server.base_url, repo.root, resume=session.id) as session:
        plan = session.newest_plan()
        assert plan.result.status == "stopped"
        plan.resume()
        result = plan.wait(DEADLINE_S)
        assert result.status == "proposed", result.why
        for words, says in (
            (lambda: plan.resume(), "is proposed: there is nothing to go on with"),
            (lambda: plan.answer(1, "x"), "There is no question 1 in the plan: it has none"),
            (lambda: plan.edit(), "What is to change"),
            (lambda: plan.approve("0" * 32), "the plan has changed since"),
            (lambda: plan.save("../plan.md"), "takes a path inside the repository"),
            (lambda: plan.save("one.txt"), "nothing is overwritten"),
            (lambda: plan.run(GoalSpec("other", ())), "has its text and tasks from the plan"),
        ):
            with pytest.raises(UsageProblem, match=says):
                words()
        assert repo.read("one.txt") == "wrong\n"
        (repo.root / "away").symlink_to(repo.root.parent)
        with pytest.raises(UsageProblem, match="leads elsewhere"):
            plan.save("away/plan.md")
        assert plan.save("docs/plan.md") == "docs/plan.md"
        assert repo.read("docs/plan.md") == plan.markdown()
        plan.reject("no")
        for words in (plan.approve, plan.reject, plan.run):
            with pytest.raises(UsageProblem, match="rejected"):
                words()
        folder = session.folder
    proof = prove(folder)
    assert proof.ok, proof.problem


def test_a_small_model_has_its_plan_made_from_the_checks_that_fail(repo: Repo) -> None:
    guided = {"api": "chat", "profile": "guided", "price": "0/0/0"}
    with ModelServer(lambda _: Answer("?")) as server, session_on(server.base_url, repo.root, **guided) as session:
        with pytest.raises(UsageProblem, match=r"cannot write a plan by itself: .* `%plan TEXT --verify 'COMMAND'`"):
            session.start_plan("mend the files")
        commands = [f"{RIGHT} one.txt", f"{RIGHT} two.txt", "test -e one.txt"]
        result = session.start_plan("mend the files", commands).wait(DEADLINE_S)
        assert result.status == "proposed", result.why
        assert result.document is not None
        assert [each["accept"] for each in result.document["steps"]] == [[command] for command in commands[:2]]
        assert result.document["by"] == "harness"
        with pytest.raises(UsageProblem, match=r"A plan .* made from checks cannot be edited in words"):
            session.newest_plan().edit("more")
        result = session.start_plan("nothing", commands[2:]).wait(DEADLINE_S)
        assert (result.status, result.why) == (
            "stopped",
            "All of the checks pass at the last commit: there is nothing to plan.",
        )
        folder = session.folder
    assert server.requests == []
    proof = prove(folder)
    assert proof.ok, proof.problem


def test_what_a_model_wrote_is_no_markup_wherever_it_is_shown(repo: Repo) -> None:
    evil = "<img src=x onerror=1> [a](javascript:b) `c` \u202e# d"
    named = step("one", goal=evil.replace("\u202e", ""), risk={"level": "low", "why": evil.replace("\u202e", "")})
    plan = proposing(named, summary=evil, questions=[evil], evidence=[{"path": "`<b>`", "shows": evil}])
    with ModelServer(Author([plan, PLANNED])) as server, session_on(server.base_url, repo.root) as session:
        handle = session.start_plan("mend it")
        handle.wait(DEADLINE_S)
        shown = session.read(lambda core: core.plans.shown(handle.number))
        markdown = handle.markdown()
    html = plan_html(shown)
    assert "<img" not in html + markdown
    assert "&lt;img src=x onerror=1&gt;" in html
    assert "\u202e" not in html
    assert r"\[a\](javascript:b) \`c\`" in markdown
    assert "`` `<b>` ``" in markdown
    assert plan_line(shown) == "Plan(status='proposed', steps=1)"
    assert plan_action({"type": "approve", "digest": ""}) is None
    assert plan_action({"type": "answer", "question": True, "text": "x"}) is None
    assert plan_action({"type": "edit", "text": "x", "more": 1}) == {"type": "edit", "text": "x"}


def test_what_the_explorer_read_counts_and_what_is_not_committed_is_told(repo: Repo) -> None:
    lead = [
        ask("What does one.txt say?"),
        proposing(step("one"), evidence=[{"path": "one.txt", "shows": "wrong"}]),
        PLANNED,
    ]
    author = Author(lead)
    explorer = Asking()
    repo.write("one.txt", "wrong for now\n")

    def model(request: ParsedRequest) -> Answer:
        return explorer(request) if is_explorer(request) else author(request)

    with ModelServer(model) as server, session_on(server.base_url, repo.root, crew="on") as session:
        plan = session.start_plan("mend it")
        result = plan.wait(DEADLINE_S)
        assert result.status == "proposed", result.why
        assert result.document is not None
        assert result.document["evidence"] == [{"path": "one.txt", "shows": "wrong", "read": True}]
        assert result.document["ground"]["uncommitted"] == ["one.txt"]
        assert "READ WITH CHANGES THAT ARE NOT COMMITTED, without which work starts: `one.txt`" in plan.text()
        assert len(explorer.explored) == 2
        folder = session.folder
    proof = prove(folder)
    assert proof.ok, proof.problem
    assert not proof.unchecked


def test_a_plan_that_is_run_while_a_goal_runs_waits_its_turn_and_its_ground_is_looked_at_then(repo: Repo) -> None:
    """It was refused: the user had to come back when the goal had ended."""
    author = Author([proposing(step("one")), PLANNED], work=MEND)
    running = Held([edit("answer.txt", "wrong", "right"), Answer("Done.")], hold=0)

    def model(request: ParsedRequest) -> Answer:
        mine = any(item.get("text", "").startswith("Goal: say right") for item in request.items)
        return running(request) if mine else author(request)

    with ModelServer(model) as server, session_on(server.base_url, repo.root) as session:
        plan = session.start_plan("mend it")
        plan.wait(DEADLINE_S)
        plan.approve()
        first = start(session)
        running.wait()
        queued = plan.run(GoalSpec("", (), steps=50))
        again = plan.run()
        assert (queued.status, again.status) == ("queued", "queued")
        assert only(list(session.events()), "plan.run") == []
        running.release()
        assert end(first).met
        result = end(queued)
        assert result.met, result.why
        # What it is to do is done by now, so that nothing is left to run a second time.
        assert end(again).status in {"blocked", "met", "cleared"}
        run, *_ = only(list(session.events()), "plan.run")
        folder = session.folder
    assert run.data["goal"] == queued.number
    assert run.data["moved"][0].startswith("the last commit is ")
    assert repo.read("one.txt") + repo.read("answer.txt") == "right\nright\n"
    proof = prove(folder)
    assert proof.ok, proof.problem
