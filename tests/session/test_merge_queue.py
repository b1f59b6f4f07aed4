"""The merge queue on real repositories: what lands, what bounces with which report, what is left to the user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.landing_bench import NOWHERE, merges, start_goal, submit, work
from fixtures.session_bench import Repo, kinds, only, session_on

from musecode_jupyter.agents.landing.queue import Merged, Review, Validator, Work
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import BudgetExceeded
from musecode_jupyter.session import Session
from musecode_jupyter.session.replay import prove

LINES = "".join(f"line {n}\n" for n in range(1, 31))


@pytest.fixture
def session(repo: Repo) -> Iterator[Session]:
    repo.commit({"lines.txt": LINES})
    with session_on(NOWHERE, repo.root) as opened:
        yield opened
    assert prove(opened.folder, commands=False).problem is None
    assert repo.git("status", "--porcelain") == "" or (repo.root / ".dirty").exists()


@pytest.fixture
def goal(session: Session, repo: Repo) -> int:
    return start_goal(session, repo)


def of_merges(session: Session) -> list[Event]:
    return [event for event in session.events() if event.kind.startswith("merge.")]


def assert_tested(session: Session, repo: Repo) -> None:
    """What landed is what was tested: each landed commit has the tree of its green evidence."""
    for seq, merge in merges(session).items():
        if merge.state == "landed":
            assert merge.new is not None
            tree = repo.git("rev-parse", f"{merge.new}^{{tree}}")
            assert merge.tested, seq
            assert {(evidence.tree, evidence.passed) for evidence in merge.tested} == {(tree, True)}


class TestLanding:
    def test_clean_work_lands_with_its_evidence(self, repo: Repo, session: Session, goal: int) -> None:
        old = repo.git("rev-parse", "main")
        made = work(
            repo, goal, "a", {"answer.txt": "right\n"}, "grep -q right answer.txt", reads=frozenset({"other.txt"})
        )
        (verdict,) = submit(session, made)
        assert (verdict.kind, verdict.commit) == ("landed", repo.git("rev-parse", "main")), verdict.why
        assert repo.read("answer.txt") == "right\n"
        events = of_merges(session)
        assert kinds(events) == ["merge.enqueued", "merge.checked", "merge.tested", "merge.landing", "merge.landed"]
        tested = events[2].data
        assert tested["tree"] == repo.git("rev-parse", "main^{tree}")
        assert [(check["command"], check["passed"]) for check in tested["checks"]] == [
            ("grep -q right answer.txt", True)
        ]
        assert (tested["passed"], tested["flaky"]) == (True, [])
        assert events[1].data["suspect"] == []
        assert repo.git("rev-parse", events[4].data["backup"]) == old
        assert repo.worktrees == 2, "the verification tree is left"
        assert_tested(session, repo)

    def test_two_at_once_land_in_order_and_the_second_is_tested_merged(
        self, repo: Repo, session: Session, goal: int
    ) -> None:
        first = work(repo, goal, "a", {"answer.txt": "right\n"}, "grep -q right answer.txt")
        both = "grep -q right answer.txt && grep -q new other.txt"
        second = work(repo, goal, "b", {"other.txt": "new\n"}, both)
        verdicts = submit(session, first, second)
        assert [verdict.kind for verdict in verdicts] == ["landed", "landed"]
        order = [(event.kind, event.data.get("merge", event.seq)) for event in of_merges(session)]
        a, b = verdicts[0].merge, verdicts[1].merge
        assert a < b
        assert order.index(("merge.landed", a)) < order.index(("merge.checked", b))
        assert (repo.read("answer.txt"), repo.read("other.txt")) == ("right\n", "new\n")
        assert repo.git("log", "-1", "--format=%s") == "work b"
        assert_tested(session, repo)

    def test_files_that_were_read_and_have_changed_make_it_suspect(
        self, repo: Repo, session: Session, goal: int
    ) -> None:
        reads = frozenset({"other.txt", "docs/*.md", "sub", "answer.txt"})
        made = work(repo, goal, "a", {"answer.txt": "right\n"}, "true", reads=reads)
        for folder in ("docs", "sub"):
            (repo.root / folder).mkdir()
        repo.commit({"other.txt": "x\n", "docs/a.md": "x\n", "docs/a.txt": "x\n", "sub/deep.txt": "x\n", "new.txt": ""})
        (verdict,) = submit(session, made)
        assert verdict.kind == "landed"
        (checked,) = only(session.events(), "merge.checked")
        assert checked.data["suspect"] == ["docs/a.md", "other.txt", "sub/deep.txt"]

    def test_what_is_in_the_branch_already_is_tested_and_counts_as_landed(
        self, repo: Repo, session: Session, goal: int
    ) -> None:
        made = work(repo, goal, "a", {"answer.txt": "right\n"})
        repo.git("merge", "--quiet", "--ff-only", made.kept)
        (verdict,) = submit(session, made)
        assert (verdict.kind, verdict.commit) == ("landed", made.commit)

    def test_work_without_an_acceptance_command_is_refused(self, repo: Repo, session: Session, goal: int) -> None:
        made = Work(goal, None, "w", "a", 0, repo.git("rev-parse", "main"), "", "k", "refs/heads/main", ())
        with pytest.raises(ValueError, match="no acceptance command"):
            submit(session, made)
        assert of_merges(session) == []


class TestBouncing:
    def test_a_conflict_bounces_with_its_regions_and_what_the_target_changed(
        self, repo: Repo, session: Session, goal: int
    ) -> None:
        made = work(repo, goal, "a", {"lines.txt": LINES.replace("line 9\n", "mine\n"), "answer.txt": None})
        target = repo.commit(
            {"lines.txt": LINES.replace("line 9\n", "theirs\n"), "answer.txt": "changed\n", "other.txt": "new\n"}
        )
        (verdict,) = submit(session, made)
        assert (verdict.kind, verdict.commit) == ("bounced", target)
        assert verdict.why == "It conflicts with main in answer.txt, lines.txt."
        region = "<<<<<<< main\ntheirs\n||||||| "
        assert region in verdict.report
        assert "=======\nmine\n>>>>>>> your work" in verdict.report
        assert "line 6\nline 7\nline 8\n<<<<<<<" in verdict.report
        assert "line 5" not in verdict.report.split("What main changed")[0]
        assert "answer.txt deleted in your work and modified in main" in verdict.report
        assert "-line 9\n+theirs\n" in verdict.report.split("What main changed")[1]
        assert "main changed answer.txt, lines.txt, other.txt" in verdict.report
        assert repo.git("rev-parse", "main") == target
        assert kinds(of_merges(session)) == ["merge.enqueued", "merge.checked", "merge.bounced"]
        # Done again upon the target, it lands.
        again = work(repo, goal, "b", {"lines.txt": LINES.replace("line 9\n", "both\n")}, base=target)
        assert submit(session, again)[0].kind == "landed"

    def test_the_report_of_large_conflicts_is_bounded(self, repo: Repo, session: Session, goal: int) -> None:
        names = [f"wide{n}.txt" for n in range(12)]
        repo.commit({name: "base\n" * 2000 for name in names})
        made = work(repo, goal, "a", {name: "mine of all\n" * 2000 for name in names})
        repo.commit({name: "theirs of all\n" * 2000 for name in names})
        (verdict,) = submit(session, made)
        assert verdict.kind == "bounced"
        assert len(verdict.report) < 25_000
        assert "4 more files conflict." in verdict.report

    def test_a_semantic_conflict_is_caught_before_it_lands(self, repo: Repo, session: Session, goal: int) -> None:
        """One renames a function, another adds a call of its old name: merged cleanly, and broken."""
        lib = "def area(a, b):\n    return a * b\n"
        use = "from lib import *\n\n\ndef check():\n    assert area(2, 3) == 6\n"
        repo.commit({"lib.py": lib, "use.py": use})
        check = "python -c 'import use; use.check()'"
        renamed = {"lib.py": lib.replace("area", "surface"), "use.py": use.replace("area", "surface")}
        first = work(repo, goal, "rename", renamed, check)
        more = "from lib import area\n\n\ndef check():\n    assert area(1, 1) == 1\n"
        second_check = "python -c 'import more; more.check()'"
        second = work(
            repo,
            goal,
            "call",
            {"more.py": more},
            second_check,
            reads=frozenset({"lib.py"}),
            affected=lambda: (check, check),
        )
        one, two = submit(session, first, second)
        assert (one.kind, two.kind) == ("landed", "bounced")
        assert two.why == f"`{second_check}` does not pass on the merge."
        assert "cannot import name 'area'" in two.report
        assert "main changed lib.py, use.py" in two.report
        assert "You had read lib.py before" in two.report
        assert two.commit == one.commit == repo.git("rev-parse", "main")
        tested = only(session.events(), "merge.tested")[-1]
        assert [check["passed"] for check in tested.data["checks"]] == [False, False]
        assert_tested(session, repo)

    def test_what_breaks_an_earlier_task_bounces(self, repo: Repo, session: Session, goal: int) -> None:
        made = work(
            repo, goal, "a", {"other.txt": "new\n"}, "true", affected=lambda: ("grep -q other other.txt", "true")
        )
        (verdict,) = submit(session, made)
        assert verdict.kind == "bounced"
        assert "`grep -q other other.txt`, which another task needs that landed before" in verdict.report
        purposes = [(e.data["purpose"], e.data["passed"]) for e in only(session.events(), "merge.tested")]
        assert purposes == [("acceptance", True), ("affected", False)]

    def test_a_validator_that_objects_bounces_it_and_sees_the_merge(
        self, repo: Repo, session: Session, goal: int
    ) -> None:
        seen: dict[str, str] = {}

        async def objects(made: Work, merged: Merged) -> Review:
            seen[made.title] = merged.tree
            return Review(made.title != "work a", "a.py has no test")

        validators = [Validator("reviewer", objects)]
        made = [work(repo, goal, name, {f"{name}.txt": "x\n"}) for name in "ab"]
        one, two = submit(session, *made, validators=validators)
        assert (one.kind, one.report, two.kind) == ("bounced", "reviewer objects: a.py has no test", "landed")
        reviews = {e.data["tree"]: e.data["ok"] for e in only(session.events(), "merge.reviewed")}
        assert reviews == {seen["work a"]: False, seen["work b"]: True}
        assert seen["work b"] == repo.git("rev-parse", "main^{tree}")

    def test_what_a_validator_raises_is_raised_and_closes_the_merge(
        self, repo: Repo, session: Session, goal: int
    ) -> None:
        async def too_dear(made: Work, merged: Merged) -> Review:
            raise BudgetExceeded("too dear", scope="usd")

        with pytest.raises(BudgetExceeded):
            submit(session, work(repo, goal, "a", {"a.txt": "x\n"}), validators=[Validator("reviewer", too_dear)])
        assert [merge.state for merge in merges(session).values()] == ["bounced"]
        assert repo.worktrees == 2


class TestFlakyCommands:
    @pytest.mark.parametrize(
        ("script", "kind", "flaky"),
        [("g", "landed", 0), ("rgg", "landed", 1), ("rr", "bounced", 0), ("rgr", "bounced", 0)],
    )
    def test_a_red_command_needs_two_greens_and_is_recorded(
        self, repo: Repo, tmp_path: Path, script: str, kind: str, flaky: int
    ) -> None:
        """The runs end as in `script`, a letter each: g passes, r fails."""
        file = tmp_path / "runs"
        file.write_text(script)
        command = (
            f"""python -c "p = '{file}'; t = open(p).read(); open(p, 'w').write(t[1:]); assert t[0] == 'g'" """.strip()
        )
        # A sandboxed command could remember nothing from run to run.
        with session_on(NOWHERE, repo.root, sandbox="plain") as session:
            goal = start_goal(session, repo)
            made = work(repo, goal, "a", {"a.txt": "x\n"}, "test -e a.txt", command, "true")
            (verdict,) = submit(session, made)
            (tested,) = only(session.events(), "merge.tested")
            assert_tested(session, repo)
        assert verdict.kind == kind, verdict.report
        ran = [check["passed"] for check in tested.data["checks"] if check["command"] == command]
        assert ran == [letter == "g" for letter in script]
        assert tested.data["flaky"] == [command] * flaky
        assert file.read_text() == ""

    def test_a_left_over_file_helps_no_second_run(self, repo: Repo, session: Session, goal: int) -> None:
        """A command that passes only where it ran before is not flaky: it fails."""
        command = "test -e trace || { touch trace; exit 1; }"
        (verdict,) = submit(session, work(repo, goal, "a", {"a.txt": "x\n"}, command))
        assert verdict.kind == "bounced"
