"""Rules: what they match, where they are kept, who may bring them, and that taking one away counts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from musecode_jupyter.guard.rule_file import Rule, RuleFile, StoredRule
from musecode_jupyter.guard.rules import HeldRule, Rules, RulesReducer, RulesState, covering, look, typed_rule
from musecode_jupyter.log import EventLog, Redactor
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import UsageProblem

PATH = "/usr/local/bin:/usr/bin:/bin"
LANDING = Rule(form="landing", text="main")


def held(*rules: Rule) -> dict[int, HeldRule]:
    return {number: HeldRule(rule=rule, scope="session", since="") for number, rule in enumerate(rules, 1)}


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class TestMatching:
    def test_a_prefix_covers_plain_words_after_it_and_every_command_of_a_line(self, tmp_path: Path) -> None:
        rules = held(typed_rule("git status", path=PATH), typed_rule("cat", path=PATH))
        for text, used in (
            ("git status", (1,)),
            ("git status --short 'a b'", (1,)),
            ("git status && cat x", (1, 2)),
            ("git status | cat > out", (1, 2)),
            ("git", ()),
            ("git stash", ()),
            ("git statuses", ()),
            ("git status; git push", ()),
            ("git status *", ()),
            ("git status > ../x", ()),
            ("cd sub && git status", ()),
        ):
            assert covering(rules, look(text, path=PATH, root=tmp_path, isolated=True)) == used, text

    def test_an_exact_rule_covers_the_same_line_in_the_same_kind_of_place(self, tmp_path: Path) -> None:
        line = "cd sub && ls *.py 2>&1 | tail -5"
        rule = look(line, path=PATH, root=tmp_path, isolated=True).exact()
        assert rule is not None
        other = tmp_path / "another worktree"
        other.mkdir()
        assert covering(held(rule), look(line, path=PATH, root=other, isolated=True)) == (1,)
        assert covering(held(rule), look(line, path=PATH, root=tmp_path, isolated=False)) == ()
        assert covering(held(rule), look(line + " ", path=PATH, root=tmp_path, isolated=True)) == ()
        assert look("ls $(date)", path=PATH, root=tmp_path, isolated=True).exact() is None
        assert look("no-such-program x", path=PATH, root=tmp_path, isolated=True).exact() is None

    @pytest.mark.parametrize("name", ["tool", "bash"])
    def test_another_program_of_the_same_name_is_not_covered(self, name: str, tmp_path: Path) -> None:
        """`bash` earlier on the path than the system's had been run by a rule for commands that bash reads."""
        root, early = tmp_path / "root", tmp_path / "early"
        root.mkdir()
        early.mkdir()
        executable(tmp_path / "bin" / "tool")
        path = f"{early}:{tmp_path / 'bin'}:{PATH}"
        rules = held(typed_rule("tool", path=path))
        assert covering(rules, look("tool x", path=path, root=root, isolated=True)) == (1,)
        executable(early / name)
        assert covering(rules, look("tool x", path=path, root=root, isolated=True)) == ()

    def test_a_program_in_the_worktree_is_another_one_when_its_content_changes(self, tmp_path: Path) -> None:
        script = executable(tmp_path / "run.sh")
        rule = look("./run.sh", path=PATH, root=tmp_path, isolated=True).exact()
        assert rule is not None
        assert covering(held(rule), look("./run.sh", path=PATH, root=tmp_path, isolated=True)) == (1,)
        script.write_text("#!/bin/sh\nrm -rf x\n")
        assert covering(held(rule), look("./run.sh", path=PATH, root=tmp_path, isolated=True)) == ()

    def test_a_program_in_the_worktree_does_not_take_the_place_of_one_elsewhere(self, tmp_path: Path) -> None:
        executable(tmp_path / "bin" / "tool")
        rules = held(typed_rule("tool", path=f"{tmp_path}/bin"))
        executable(tmp_path / "root" / "tool")
        seen = look("./tool", path=f"{tmp_path}/bin", root=tmp_path / "root", isolated=True)
        assert covering(rules, seen) == ()

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "no command"),
            ("ls; rm x", "more than one"),
            ("ls $(x)", "substitution"),
            ("eval x", "eval"),
            ("python", "inline code"),
            ("python -m", "inline code|any code"),
            ("bash", "inline code"),
            ("./run.sh", "agents can change it"),
            ("no-such-program-here x", "no program"),
        ],
    )
    def test_what_is_no_rule_is_refused_with_a_reason(self, text: str, says: str) -> None:
        with pytest.raises(UsageProblem, match=says):
            typed_rule(text, path=PATH)

    def test_landings_and_tools_are_typed_too(self) -> None:
        assert typed_rule("land on main", path=PATH) == LANDING
        assert typed_rule(" land on topic/x ", path=PATH).text == "topic/x"
        assert typed_rule("tool run_in_kernel", path=PATH) == Rule(form="tool", text="run_in_kernel")


class TestFile:
    def rule_file(self, tmp_path: Path, name: str = "repo") -> RuleFile:
        repository = tmp_path / name / ".git"
        repository.mkdir(parents=True, exist_ok=True)
        return RuleFile(tmp_path / "home", repository)

    def add(self, file: RuleFile, rule: Rule = LANDING) -> None:
        file.change(lambda rules: (*rules, StoredRule(rule=rule, since="2026-01-01T00:00:00+00:00")))

    def test_rules_are_kept_privately_and_for_this_repository_only(self, tmp_path: Path) -> None:
        file = self.rule_file(tmp_path)
        assert file.read() == ((), "")
        self.add(file)
        assert [each.rule for each in self.rule_file(tmp_path).read()[0]] == [LANDING]
        assert file.path.stat().st_mode & 0o777 == 0o600
        assert file.path.parent.stat().st_mode & 0o777 == 0o700
        assert not file.path.is_relative_to(tmp_path / "repo")
        assert self.rule_file(tmp_path, "other").read() == ((), "")

    def test_a_repository_in_the_place_of_another_has_no_rules(self, tmp_path: Path) -> None:
        self.add(self.rule_file(tmp_path))
        (tmp_path / "repo").rename(tmp_path / "old")
        assert self.rule_file(tmp_path).read() == ((), "")
        assert self.rule_file(tmp_path, "old").read() == ((), "")

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "damaged"),
            (b"{", "damaged"),
            (b"\xff\xfe", "damaged"),
            (b"[]", "damaged"),
            (b'{"version": 2, "repository": "x", "rules": []}', "damaged"),
            (b'{"version": 1, "repository": "x", "rules": []}', "damaged"),
            (b"[" * 100_000, "damaged"),
            (b" " * 2_000_000, "too large"),
        ],
    )
    def test_a_damaged_file_is_one_line_and_no_rules_and_is_kept(
        self, content: bytes, says: str, tmp_path: Path
    ) -> None:
        file = self.rule_file(tmp_path)
        self.add(file)
        file.path.write_bytes(content)
        rules, problem = file.read()
        assert rules == ()
        assert says in problem
        assert "\n" not in problem
        self.add(file)
        assert [each.rule for each in file.read()[0]] == [LANDING]
        [kept] = file.path.parent.glob("*.damaged-*")
        assert kept.read_bytes() == content

    def test_a_file_that_others_could_have_written_is_not_used(self, tmp_path: Path) -> None:
        file = self.rule_file(tmp_path)
        self.add(file)
        file.path.chmod(0o644)
        assert "0600" in file.read()[1]
        file.path.chmod(0o600)
        os.link(file.path, tmp_path / "second name")
        assert "plain file" in file.read()[1]
        (tmp_path / "second name").unlink()
        assert file.read()[0]
        os.replace(file.path, tmp_path / "elsewhere")
        file.path.symlink_to(tmp_path / "elsewhere")
        assert file.read()[1]
        file.path.unlink()
        os.mkfifo(file.path, 0o600)
        assert "plain file" in file.read()[1]

    def test_writers_of_several_processes_lose_nothing(self, tmp_path: Path) -> None:
        file = self.rule_file(tmp_path)
        program = (
            "import sys; from pathlib import Path;"
            "from musecode_jupyter.guard.rule_file import Rule, RuleFile, StoredRule;"
            "file = RuleFile(Path(sys.argv[1]), Path(sys.argv[2]));"
            "one = lambda n: StoredRule(rule=Rule(form='landing', text=f'{sys.argv[3]}-{n}'), since='');"
            "[file.change(lambda rules: (*rules, one(n))) for n in range(20)]"
        )
        arguments = [sys.executable, "-c", program, str(tmp_path / "home"), str(tmp_path / "repo" / ".git")]
        running = [subprocess.Popen([*arguments, name]) for name in "abc"]
        assert [each.wait(60) for each in running] == [0, 0, 0]
        rules, problem = file.read()
        assert problem == ""
        assert {each.rule.text for each in rules} == {f"{name}-{n}" for name in "abc" for n in range(20)}
        assert [path.name for path in file.path.parent.glob("*.tmp")] == []

    def test_a_folder_that_cannot_be_written_is_said(self, tmp_path: Path) -> None:
        file = self.rule_file(tmp_path)
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "rules").write_text("a file in the way")
        with pytest.raises(UsageProblem, match="cannot be written"):
            self.add(file)


class Bench:
    """Rules on a real log, in a loop of their own."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = tmp_path / "home"
        self.repository = tmp_path / "repo"
        self.repository.mkdir(exist_ok=True)
        self.tmp_path = tmp_path
        self.sessions = 0

    def run(self, work: Any) -> Any:
        """`work(rules)` in a new session; answers with its result."""
        self.sessions += 1

        async def session() -> Any:
            log = EventLog.create(
                self.tmp_path / f"session{self.sessions}",
                reducers=[RulesReducer()],
                redactor=Redactor(),
                now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
            )
            try:
                rules = Rules(log, LiveEffects(), PATH)
                self.problem = await rules.open(self.home, self.repository)
                done: Coroutine[Any, Any, Any] = work(rules)
                result = await done
                self.events = list(log.events())
                return result
            finally:
                await log.close()

        return asyncio.run(session())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class TestRules:
    def test_a_session_rule_ends_with_its_session_and_a_workspace_rule_does_not(self, bench: Bench) -> None:
        async def add(rules: Rules) -> None:
            await rules.add_typed("git status", "session", by="test")
            number = await rules.add_typed("git log", "workspace", by="test")
            assert await rules.add_typed("git log", "workspace", by="test") == number
            told = await rules.covers_command("git log && git status", root=bench.repository, isolated=True)
            assert told == "workspace rule 2: run: git log ...; session rule 1: run: git status ..."

        async def look_again(rules: Rules) -> list[str]:
            assert await rules.covers_command("git status", root=bench.repository, isolated=True) is None
            assert await rules.covers_command("git log", root=bench.repository, isolated=True) is not None
            return [each.name for each in rules.state.held.values()]

        bench.run(add)
        assert [event.kind for event in bench.events] == ["rule.added"] * 2
        assert bench.run(look_again) == ["run: git log ..."]

    def test_what_is_removed_here_or_elsewhere_counts_at_once(self, bench: Bench) -> None:
        async def work(rules: Rules) -> None:
            number = await rules.add_typed("git log", "workspace", by="test")
            file = RuleFile(bench.home, bench.repository)
            file.change(lambda _: ())
            assert await rules.covers_command("git log", root=bench.repository, isolated=True) is None
            with pytest.raises(UsageProblem, match=f"no rule {number}"):
                await rules.remove(number, by="test")
            again = await rules.add(LANDING, "workspace", by="test")
            assert await rules.covers("landing", "main") == f"workspace rule {again}: land on main"
            assert await rules.covers("landing", "other") is None
            await rules.remove(again, by="test")
            assert await rules.covers("landing", "main") is None
            assert file.read() == ((), "")

        bench.run(work)
        assert [event.kind for event in bench.events] == ["rule.added", "rule.removed"] * 2

    def test_what_others_add_counts_from_the_next_session_on(self, bench: Bench) -> None:
        """A command that may run could otherwise write itself a rule and have it within the same session."""

        async def meanwhile(rules: Rules) -> None:
            await rules.add_typed("git status", "workspace", by="test")
            file = RuleFile(bench.home, bench.repository)
            file.change(lambda held: (*held, StoredRule(rule=LANDING, since="")))
            assert await rules.covers("landing", "main") is None

        async def later(rules: Rules) -> str | None:
            return await rules.covers("landing", "main")

        bench.run(meanwhile)
        assert bench.run(later)

    def test_a_damaged_file_is_told_and_a_rule_can_still_be_added(self, bench: Bench) -> None:
        async def add(rules: Rules) -> int:
            return await rules.add(LANDING, "workspace", by="test")

        bench.run(add)
        file = RuleFile(bench.home, bench.repository)
        file.path.write_text("{")
        bench.run(add)
        assert "damaged" in bench.problem
        assert [each.rule for each in file.read()[0]] == [LANDING]

    def test_nothing_in_the_repository_is_read_as_rules(self, bench: Bench) -> None:
        stored = {
            "version": 1,
            "repository": str(bench.repository),
            "rules": [{"rule": LANDING.model_dump(), "since": ""}],
        }
        for name in ("rules.json", ".musecode/rules.json", ".git/rules.json", "rules/x.json", ".musecode.json"):
            path = bench.repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(stored))
            path.chmod(0o600)

        async def none(rules: Rules) -> RulesState:
            return rules.state

        assert bench.run(none).held == {}
        assert bench.problem == ""

    def test_without_a_repository_only_session_rules_can_be_kept(self, tmp_path: Path) -> None:
        async def session() -> None:
            log = EventLog.create(
                tmp_path / "session", reducers=[RulesReducer()], redactor=Redactor(), now=lambda: datetime.now(UTC)
            )
            try:
                rules = Rules(log, LiveEffects(), PATH)
                with pytest.raises(UsageProblem, match="session rules"):
                    await rules.add(LANDING, "workspace", by="test")
                assert await rules.add(LANDING, "session", by="test") == 1
            finally:
                await log.close()

        asyncio.run(session())

    def test_rules_of_the_first_version_cover_landings_and_no_command(self, tmp_path: Path) -> None:
        state = RulesState()
        for seq, name in ((3, "land on main"), (4, "run: ls")):
            RulesReducer().apply(
                state,
                Event(1, seq, "", 1, 1, "user", 0, (), "rule.added", "", {"rule": name, "action": "", "approval": 2}),
            )
        assert state.held[3].rule == LANDING
        assert covering(state.held, look("ls", path=PATH, root=tmp_path, isolated=True)) == ()

    def test_readers_of_other_threads_see_whole_files(self, tmp_path: Path) -> None:
        (tmp_path / "repo").mkdir()
        file = RuleFile(tmp_path / "home", tmp_path / "repo")
        file.change(lambda rules: rules)
        problems: list[str] = []
        ended = threading.Event()

        def read() -> None:
            while not ended.is_set():
                problems.append(file.read()[1])

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for number in range(60):
                rule = StoredRule(rule=Rule(form="landing", text=str(number)), since="")
                file.change(lambda rules, rule=rule: (*rules, rule))
        finally:
            ended.set()
            reader.join()
        assert set(problems) == {""}
