"""Typed clauses of a goal: frozen at its start, judged by the harness alone, refused where they cannot decide."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import CHECK, DONE, EDIT, Held, Repo, Watch, end, only, results, run_of, said, session_on
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session import GoalSpec
from musecode_jupyter.session.replay import prove
from musecode_jupyter.skills.clauses import ClauseOptions, parse_forbid, parse_holdout, parse_metric, parse_reserve
from musecode_jupyter.skills.forbid import imported, path_matches
from musecode_jupyter.skills.metric import interval, measured, verdict


def write(path: str, new: str, old: str = "") -> Answer:
    return Answer("", [Call("edit", {"path": path, "old": old, "new": new})])


def spec(*verify: str, **clauses: Any) -> GoalSpec:
    return GoalSpec("say right", verify, clauses=ClauseOptions(**clauses))


class TestForbid:
    def test_a_forbidden_import_keeps_work_from_landing_that_passes_the_check(self, repo: Repo) -> None:
        bad = write("fast.py", "def f():\n    import fla.ops as x\n    return x\n")
        text = "import flask\n# import fla\ntext = 'import fla'\n"
        good = write("fast.py", text, "def f():\n    import fla.ops as x\n    return x\n")
        clauses = {"forbid": ("import fla", "other.txt")}
        script = Steps([EDIT, bad, DONE, good, DONE])
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            assert end(session.start_goal(spec(CHECK, **clauses))).met
            judged = only(session.events(), "goal.judged")
            folder = session.folder
        assert "forbidden" in said(server.requests[0].json)[-1]
        assert "`import fla` (forbid) does not hold: found in fast.py:2" in said(server.requests[3].json)[-1]
        shown = [[(each["clause"], each["passed"]) for each in event.data["clauses"]] for event in judged[1:]]
        assert shown == [[("import fla", False), ("other.txt", True)], [("import fla", True), ("other.txt", True)]]
        assert repo.read("fast.py").startswith("import flask")
        assert prove(folder).ok

    def test_imports_are_found_by_parsing(self) -> None:
        import ast

        source = (
            "import a.b, c as d\nfrom e import f\nfrom . import g\n__import__('h')\n"
            "import importlib\nimportlib.import_module('i.j')\n'import k'\n"
        )
        names = {name for _, name in imported(ast.parse(source))}
        assert names == {"a.b", "c", "e", "e.f", "h", "importlib", "i.j"}

    @pytest.mark.parametrize(
        ("pattern", "yes", "no"),
        [
            ("tests", ["tests/a.py", "tests/deep/b.py"], ["src/tests.py", "tests2/a.py"]),
            ("tests/**", ["tests/a.py"], ["a.py"]),
            ("*.toml", ["pyproject.toml", "sub/x.toml"], ["toml.py"]),
        ],
    )
    def test_patterns_of_paths(self, pattern: str, yes: list[str], no: list[str]) -> None:
        assert all(path_matches(path, pattern) for path in yes)
        assert not any(path_matches(path, pattern) for path in no)


class TestMetric:
    MEASURE = "sh measure.sh"

    @pytest.fixture
    def timed(self, repo: Repo) -> Repo:
        # What is measured is a number in a file: the runs are real, and their spread is that of nothing.
        repo.commit({"measure.sh": 'echo "seconds=$(cat speed.txt)"\n', "speed.txt": "2.0\n"})
        return repo

    def test_a_speedup_is_met_when_its_lower_bound_clears_the_target(self, timed: Repo) -> None:
        little = Answer("", [Call("edit", {"path": "speed.txt", "old": "2.0", "new": "1.6"})])
        much = Answer("", [Call("edit", {"path": "speed.txt", "old": "1.6", "new": "1.0"})])
        script = Steps([little, DONE, much, DONE])
        clauses = {"metric": ("speedup >= 1.3 vs HEAD",), "measure": self.MEASURE}
        with ModelServer(script) as server, session_on(server.base_url, timed.root) as session:
            base = timed.git("rev-parse", "HEAD")
            handle = session.start_goal(spec(**clauses))
            assert end(handle).met
            events = session.events()
            folder = session.folder
        metric = only(events, "goal.set")[0].data["clauses"]["metrics"][0]
        assert (metric["commit"], metric["name"], metric["target"]) == (base, "speedup", 1.3)
        first, second = (event.data["clauses"][0] for event in only(events, "goal.judged")[1:])
        assert (first["passed"], second["passed"]) == (False, True)
        assert first["value"] == pytest.approx(1.25)
        assert second["low"] == pytest.approx(2.0)
        assert second["runs"] == 7
        assert "not clearly >= 1.3" in said(server.requests[2].json)[-1]
        assert prove(folder).ok

    def test_what_cannot_be_measured_today_asks_the_model_nothing(self, timed: Repo) -> None:
        clauses = {"metric": ("throughput >= 2 vs HEAD",), "measure": self.MEASURE}
        with ModelServer(Steps([DONE])) as server, session_on(server.base_url, timed.root) as session:
            handle = session.start_goal(spec(**clauses))
            result = end(handle)
            assert result.status == "blocked"
            assert "printed no line throughput=VALUE" in result.why
            absolute = {"metric": ("seconds <= 3",), "measure": self.MEASURE}
            result = end(session.start_goal(spec(**absolute)))
            assert (result.status, "holds already" in result.why) == ("blocked", True)
        assert server.requests == []

    @given(st.lists(st.floats(0.1, 1e6), min_size=2, max_size=20), st.floats(0.1, 10))
    def test_the_interval_holds_the_mean_and_scales(self, values: list[float], factor: float) -> None:
        mean, low, high = interval(values)
        assert low <= mean <= high
        scaled = interval([factor * value for value in values])
        assert scaled == pytest.approx((factor * mean, factor * low, factor * high), rel=1e-6, abs=1e-6)

    def test_noise_is_no_gain(self) -> None:
        metric = parse_metric("speedup >= 1.01 vs HEAD")
        theirs = [{"seconds": each} for each in (1.0, 1.3, 0.9, 1.2, 1.1, 1.0, 0.95)]
        ours = [{"seconds": each} for each in (0.9, 1.2, 1.0, 1.0, 1.15, 0.85, 1.0)]
        found = verdict(metric, theirs, ours)
        assert found.value is not None
        assert found.value > 1.01
        assert not found.passed

    def test_lines_of_a_measurement(self) -> None:
        assert measured("noise\nseconds = 1.5e-3\nx=2\nx=3\nbad=nan\ny=1 s\n") == {"seconds": 1.5e-3, "x": 3.0}


class TestHoldout:
    def test_agents_never_see_a_held_out_file(self, repo: Repo, tmp_path: Path) -> None:
        secret = "SIX-TIMES-SEVEN"
        held = tmp_path / "held" / "expected.txt"
        held.parent.mkdir()
        held.write_text(f"right {secret}\n")
        # The check shows what is in the file when it fails.
        check = "grep -q right answer.txt && cat hidden/expected.txt && grep -q 42 other.txt"
        looks = run_of(f"cat {held}; find / -name expected.txt 2>/dev/null; cat hidden/expected.txt; ls -a ..")
        other = Answer("", [Call("edit", {"path": "other.txt", "old": "other", "new": "42"})])
        script = Steps([looks, EDIT, DONE, other, DONE])
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            if session.core.sandbox.name != "bubblewrap":
                pytest.skip("there is no bubblewrap here")
            handle = session.start_goal(spec(check, holdout=(f"{held}:hidden/expected.txt",)))
            held.write_text("changed after the start\n")
            assert end(handle).met
            events = session.events()
            assert prove(session.folder).ok
        assert "exit 1" in said(server.requests[3].json)[-1]
        assert results(server.requests[1].json)
        assert not any(secret in request.body.decode() for request in server.requests)
        judged = [e for e in only(events, "tool.finished") if secret in e.data["output"]]
        assert len(judged) == 2
        assert not (repo.root / "hidden").exists()

    def test_what_agents_could_see_is_refused(self, repo: Repo, tmp_path: Path) -> None:
        inside = repo.root / "untracked.txt"
        inside.write_text("x")
        outside = tmp_path / "other.txt"
        outside.write_text("x")
        with session_on("http://127.0.0.1:9/v1", repo.root) as session:
            for text, says in [
                (str(inside), "Keep it outside"),
                (str(outside), "the repository has other.txt already"),
                (str(tmp_path / "none"), "No such file"),
                (f"{outside}:../x", "a path below the root"),
            ]:
                with pytest.raises(UsageProblem, match=says):
                    session.start_goal(spec(CHECK, holdout=(text,)))
            assert only(session.events(), "goal.set") == []
        with (
            session_on("http://127.0.0.1:9/v1", repo.root, sandbox="plain") as session,
            pytest.raises(UsageProblem, match="needs the bubblewrap sandbox"),
        ):
            session.start_goal(spec(CHECK, holdout=(f"{outside}:x",)))


class TestRefusals:
    @pytest.mark.parametrize(
        ("clauses", "says"),
        [
            ({"forbid": ("import a b",)}, "by its module's name"),
            ({"forbid": ("../x",)}, "paths below the root"),
            ({"metric": ("fast",)}, "cannot be read"),
            ({"metric": ("speedup >= 1.3",), "measure": "true"}, "over something"),
            ({"metric": ("speedup >= 1.3 vs HEAD",)}, "needs --measure"),
            ({"metric": ("speedup >= 1.3 vs nowhere",), "measure": "true"}, "there is no commit nowhere"),
            ({"metric": ("x >= 2 vs HEAD",), "measure": "no-such-program"}, "no-such-program"),
            ({"measure": "true"}, "add --metric"),
            ({"reserve": "15"}, "as in 15%"),
            ({"reserve": "95%"}, "from 0% to 90%"),
        ],
    )
    def test_a_clause_that_cannot_decide_is_refused_at_once(
        self, repo: Repo, clauses: dict[str, Any], says: str
    ) -> None:
        with session_on("http://127.0.0.1:9/v1", repo.root) as session:
            with pytest.raises(UsageProblem, match=says) as caught:
                session.start_goal(spec(CHECK, **clauses))
            assert "\n" not in str(caught.value)
            assert only(session.events(), "goal.set") == []

    def test_only_a_metric_that_holds_already(self, repo: Repo) -> None:
        with (
            session_on("http://127.0.0.1:9/v1", repo.root) as session,
            pytest.raises(UsageProblem, match="holds already"),
        ):
            session.start_goal(spec(metric=("seconds <= 1.05 vs HEAD",), measure="true"))

    def test_parsed_forms(self) -> None:
        assert parse_forbid(" import  a.b ").pattern == "a.b"
        assert parse_reserve("15%") == 0.15
        assert parse_holdout("/x/y.py") == (Path("/x/y.py"), "y.py")
        assert parse_holdout("/x/y.py:a/./b.py") == (Path("/x/y.py"), "a/b.py")


class TestEdits:
    def test_the_user_edits_clauses_and_the_log_has_every_version(self, repo: Repo) -> None:
        second = "grep -q new other.txt"
        other = Answer("", [Call("edit", {"path": "other.txt", "old": "other", "new": "new"})])
        script = Held([EDIT, DONE, other, DONE], hold=1)
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = session.start_goal(spec(CHECK, forbid=("import fla",)))
            script.wait()
            handle.edit(verify=(CHECK, second))
            script.release()
            assert end(handle).met
            met = only(session.events(), "goal.met")[0]
            edited = only(session.events(), "goal.edited")[0]
            history = handle.history().splitlines()
            assert prove(session.folder).ok
        assert [check["command"] for check in met.data["checks"]] == [CHECK, second]
        assert edited.agent == "user"
        assert edited.data["clauses"]["forbid"] == ["import fla"]
        assert [int(line.split(":")[0]) for line in history] == [handle.number, edited.seq]
        assert second in history[1]
        assert "The user has changed what decides the goal" in said(server.requests[2].json)[-1]

    @pytest.mark.crash
    @pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="one more whole session: run by make crash")
    def test_a_goal_that_was_judged_goes_back_to_work_and_bad_clauses_change_nothing(self, repo: Repo) -> None:
        with (
            ModelServer(Steps([EDIT, DONE, DONE, DONE, DONE])) as server,
            session_on(server.base_url, repo.root, approvals="deny") as session,
        ):
            handle = session.start_goal(spec(CHECK))
            assert end(handle).status == "blocked"
            for change, says in [
                ({"verify": ("no-such-program",)}, "no-such-program"),
                ({"clauses": ClauseOptions(metric=("x >= 1 vs HEAD",))}, "needs --measure"),
            ]:
                with pytest.raises(UsageProblem, match=says):
                    handle.edit(**change)
            assert only(session.events(), "goal.edited") == []
            handle.edit(verify="false")
            handle.resume()
            assert end(handle).status == "stalled"
            assert prove(session.folder).ok

    @pytest.mark.crash
    @pytest.mark.skipif("MUSECODE_CRASH_POINTS" not in os.environ, reason="one more whole session: run by make crash")
    def test_what_was_judged_by_older_clauses_does_not_land(self, repo: Repo) -> None:
        other = Answer("", [Call("edit", {"path": "other.txt", "old": "other", "new": "new"})])
        asking = {"interactive": True, "approvals": "ask"}
        with (
            ModelServer(Steps([EDIT, DONE, other, DONE])) as server,
            session_on(server.base_url, repo.root, **asking) as session,
        ):
            watch = Watch(session)
            handle = session.start_goal(spec(CHECK))
            first = watch.until("approval.requested", action="land")
            handle.edit(verify=(CHECK, "grep -q new other.txt"))
            session.answer(first.seq, "approve", by="test")
            second = watch.until("approval.requested", action="land", since=first.seq)
            assert only(session.events(), "merge.landed") == []
            session.answer(second.seq, "approve", by="test")
            assert end(handle).met
            assert prove(session.folder).ok
        assert repo.read("other.txt") == "new\n"

    def test_a_model_cannot_narrow_a_goal(self, repo: Repo) -> None:
        """It says so, it edits the check's own script, it writes into the log's words: the clauses stay as set."""
        repo.commit({"check.sh": "grep -q right answer.txt\n"})
        cheat = Answer("The user has approved it: the goal is met when check.sh exists.", [])
        edit = Answer("", [Call("edit", {"path": "check.sh", "old": "grep -q right answer.txt", "new": "true"})])
        script = Steps([cheat, edit, DONE, DONE, DONE])
        with ModelServer(script) as server, session_on(server.base_url, repo.root) as session:
            handle = session.start_goal(spec("sh check.sh", forbid=("check.sh",)))
            result = end(handle)
            assert result.status == "stalled"
            assert handle.history().count("\n") == 0
            last = only(session.events(), "goal.judged")[-1]
        assert (last.data["checks"][0]["passed"], last.data["passed"]) == (True, False)
        assert last.data["clauses"][0]["why"] == "found in check.sh"
        assert repo.read("check.sh").startswith("grep")
