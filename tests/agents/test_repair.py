"""The guided repair technique: reading the check, ranking suspects, asking, and checking the answer."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.agents.check_output import excerpt, failing_tests
from musecode_jupyter.agents.code_index import CodeIndex, is_test_file, module_name
from musecode_jupyter.agents.repair import (
    MAX_TRIES,
    Kind,
    Question,
    Suspect,
    Tried,
    choice_from_answer,
    edit_from_answer,
    plan_tries,
    question,
    suspects,
)
from musecode_jupyter.runtime.errors import ToolProblem

REPOS = Path(__file__).parents[1] / "fixtures" / "repos"

SOURCE = '''\
"""Counts."""

LIMIT = 3


class Counter:
    """Counts up to a limit."""

    def __init__(self, limit=LIMIT):
        self.limit = limit
        self.count = 0

    def step(self, by=1):
        """Go on."""
        # One more.
        if self.count < self.limit:
            self.count += by
            self.log("up")
        else:
            self.log("full")
            self.count += by
        return self.count
'''
KINDS: tuple[Kind, ...] = ("choice", "names", "edit")
STEP = Suspect("counter.py", "Counter.step", 13, 22, 1.0, "")


def _answer(old: str, new: str) -> str:
    return json.dumps({"old_line": old, "new_line": new})


def _chosen(new: str) -> str:
    return json.dumps({"new_line": new})


def _ask(kind: Kind, *tried: Tried, suspect: Suspect = STEP, source: str = SOURCE) -> Question:
    return question(0, kind, [suspect], "E  assert 1 == 2", {suspect.path: source}, tried)


def _offered(*tried: Tried, suspect: Suspect = STEP) -> list[str]:
    offered: list[str] = _ask("edit", *tried, suspect=suspect).json_schema["properties"]["old_line"]["enum"]
    return offered


def _choices(kind: Kind, *tried: Tried, suspect: Suspect = STEP, source: str = SOURCE) -> list[str]:
    schema = _ask(kind, *tried, suspect=suspect, source=source).json_schema
    choices: list[str] = schema["properties"]["new_line"]["enum"]
    return choices


def _check(folder: Path) -> str:
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout


def _sources(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.py")}


@pytest.mark.parametrize("name", sorted(path.name for path in REPOS.iterdir()))
def test_the_faulty_definition_is_among_those_that_are_tried(name: str) -> None:
    folder = REPOS / name / "repo"
    (edit,) = json.loads((REPOS / name / "repair.json").read_text("utf-8"))
    sources = _sources(folder)
    output = _check(folder)
    ranked = suspects(output, sources)
    plan = plan_tries(len(ranked))[:MAX_TRIES]
    places = [
        number
        for number, suspect in enumerate(ranked)
        if suspect.path == edit["path"]
        and edit["old"] in sources[suspect.path].split("\n")[suspect.start - 1 : suspect.end]
    ]
    assert not any(is_test_file(suspect.path) for suspect in ranked)

    first = next(step for step in plan if step.suspect in places)
    assert first.kind == "choice"
    suspect = ranked[first.suspect]
    asked = question(first.suspect, "choice", ranked, output, sources, [])
    assert edit["new"].strip() in asked.json_schema["properties"]["new_line"]["enum"]
    assert len(asked.user_text) < 8_000
    assert asked.user_text.count(edit["old"]) >= 1
    source = sources[suspect.path]
    old, new, line = choice_from_answer(_chosen(edit["new"].strip()), suspect, "choice", source)
    assert (old, new) == (edit["old"], edit["new"])
    assert source.split("\n")[line - 1] == old

    asked = question(first.suspect, "edit", ranked, output, sources, [])
    assert edit["old"].strip() in asked.json_schema["properties"]["old_line"]["enum"]
    answer = _answer(edit["old"].strip(), edit["new"].strip())
    assert edit_from_answer(answer, suspect, source) == (old, new, line)


def test_failing_tests_are_read_from_a_real_run(tmp_path: Path) -> None:
    (tmp_path / "maths.py").write_text("def half(n):\n    return 1 / n\n", "utf-8")
    (tmp_path / "test_maths.py").write_text(
        "import pytest\nfrom maths import half\n\n\n"
        "@pytest.mark.parametrize('n', [0, 2])\ndef test_half(n):\n    assert half(n) == 0.5\n\n\n"
        "class TestMore:\n    def test_four(self):\n        assert half(4) == 2\n",
        "utf-8",
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    output = _check(tmp_path)
    first, second = failing_tests(output, ["maths.py", "test_maths.py"])
    assert (first.path, first.name) == ("test_maths.py", "test_half")
    assert first.frames == (("test_maths.py", 7), ("maths.py", 2))
    assert "ZeroDivisionError" in first.message
    assert second.name == "TestMore.test_four"
    assert suspects(output, _sources(tmp_path))[0].name == "half"


def test_a_test_file_that_cannot_be_imported_points_at_the_module(tmp_path: Path) -> None:
    (tmp_path / "table.py").write_text("COLUMNS = ['a', 'b']\n\n\nLAST = COLUMNS[2]\n", "utf-8")
    (tmp_path / "test_table.py").write_text("from table import LAST\n\n\ndef test_last():\n    assert LAST\n", "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    output = _check(tmp_path)
    (failing,) = failing_tests(output, ["table.py", "test_table.py"])
    assert (failing.path, failing.name) == ("test_table.py", "")
    assert suspects(output, _sources(tmp_path))[0].name == "LAST"


def test_a_plain_traceback_with_absolute_paths_is_followed() -> None:
    files = {
        "app/rates.py": "def rate(a, b):\n    return a / b\n",
        "run.py": "from app.rates import rate\nrate(1, 0)\n",
    }
    output = (
        'Traceback (most recent call last):\n  File "/tmp/w/run.py", line 2, in <module>\n'
        '  File "/tmp/w/app/rates.py", line 2, in rate\nZeroDivisionError: division by zero\n'
    )
    assert [suspect.name for suspect in suspects(output, files)] == ["rate"]


def test_output_that_says_nothing_gives_no_suspects() -> None:
    assert suspects("make: *** Error 2", {"a.py": "def f():\n    return 1 + 1\n"}) == []
    assert plan_tries(0) == []


def test_files_that_do_not_parse_are_left_out() -> None:
    index = CodeIndex.of({"good.py": "def f():\n    return 1\n", "bad.py": "def f(:\n"})
    assert [definition.path for definition in index.definitions] == ["good.py"]


def test_what_a_failing_condition_refers_to_is_suspected_first(tmp_path: Path) -> None:
    """A guard that raises is rarely the fault; what it asked is. The raising function once hid it."""
    files = {
        "box.py": "def fits(n):\n    return n < 3\n\n\ndef other(n):\n    return n + 1\n",
        "store.py": "import box\n\n\ndef put(n):\n    n = box.other(n)\n    if not box.fits(n):\n"
        "        raise ValueError(n)\n    return n\n",
        "tests/test_store.py": "from store import put\n\n\ndef test_put():\n    assert put(2) == 3\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    assert suspects(_check(tmp_path), files)[0].name == "fits"


def test_what_a_test_does_not_load_is_no_suspect_by_the_name_of_an_attribute() -> None:
    """In a large repository a name such as `items` led through packages that are imported for types, or only when
    asked, to everything; and what was furthest away was suspected most."""
    files = {
        "app/__init__.py": "def __getattr__(name):\n    from app import far\n    return far\n",
        "app/near.py": (
            "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from app import typed\n\n\n"
            "def count(box):\n    return box.items() + 1\n"
        ),
        "app/far.py": "class Far:\n    def items(self):\n        return 2 + 1\n",
        "app/typed.py": "class Typed:\n    def items(self):\n        return 3 + 1\n",
        "tests/test_near.py": "from app.near import count\n\n\ndef test_count():\n    assert count({}) == 1\n",
    }
    index = CodeIndex.of(files)
    (test,) = [each for each in index.definitions if each.name == "test_count"]
    assert [each.name for each in index.reached(test)] == ["count"]


def test_modules_are_named_as_they_are_imported() -> None:
    assert module_name("src/pack/__init__.py") == "pack"
    assert module_name("pack/part.py") == "pack.part"


def test_only_lines_with_a_decision_are_offered_and_without_indentation() -> None:
    assert _offered() == [
        "def step(self, by=1):",
        "if self.count < self.limit:",
        "self.count += by  # line 17",
        'self.log("up")',
        'self.log("full")',
        "self.count += by  # line 21",
        "return self.count",
    ]


def test_a_line_that_failed_gives_way_to_the_others() -> None:
    """Sampled again, the local model chose the same wrong line; the right one stood next to it."""
    failed = Tried("counter.py", "        if self.count < self.limit:", "        if self.count < 1:")
    assert "if self.count < self.limit:" in _offered()
    assert "if self.count < self.limit:" not in _offered(failed)


def test_a_worn_out_suspect_is_offered_whole_again() -> None:
    limit = Suspect("counter.py", "LIMIT", 3, 3, 1.0, "")
    failed = [Tried("counter.py", "LIMIT = 3", f"LIMIT = {n}") for n in (1, 2)]
    assert _offered(*failed, suspect=limit) == ["LIMIT = 3"]


def test_a_region_without_a_decision_is_a_problem() -> None:
    for kind in KINDS:
        with pytest.raises(ToolProblem, match=r"no line of Counter in counter.py is left"):
            _ask(kind, suspect=Suspect("counter.py", "Counter", 6, 8, 1.0, ""))


def test_the_prefix_is_shared_by_all_tries() -> None:
    limit = Suspect("counter.py", "LIMIT", 3, 3, 0.5, "")
    tried = [Tried("counter.py", "LIMIT = 3", "LIMIT = 4")]
    asked = [
        question(which, kind, [STEP, limit], "E  assert 1 == 2", {"counter.py": SOURCE}, edits)
        for which in (0, 1)
        for kind in KINDS
        for edits in ([], tried)
    ]
    assert len({one.instructions for one in asked}) == 1
    assert len({one.user_text.rpartition("\n\n")[0] for one in asked}) == 1
    assert "self.count += by" in asked[0].user_text.rpartition("\n\n")[0]
    assert {one.user_text.rpartition("\n\n")[2].split(" is wrong")[0] for one in asked} == {
        "One line of `Counter.step` in counter.py",
        "One line of `LIMIT` in counter.py",
    }
    assert "pattern" not in json.dumps([one.json_schema for one in asked])


def test_a_choice_is_a_corrected_line_that_stands_for_one_edit() -> None:
    choices = _choices("choice")
    assert "if self.count <= self.limit:" in choices
    assert "def step(self, by=2):" in choices
    assert choice_from_answer(_chosen("if self.count <= self.limit:"), STEP, "choice", SOURCE) == (
        "        if self.count < self.limit:",
        "        if self.count <= self.limit:",
        16,
    )
    assert "if self.count < by:" not in choices
    assert "return self.limit" in _choices("names")


def test_every_choice_is_offered_in_the_end_and_none_twice() -> None:
    every = set(_choices("names"))
    tried: list[Tried] = []
    for _ in range(len(every)):
        choice = _choices("names", *tried)[0]
        old, new, _ = choice_from_answer(_chosen(choice), STEP, "names", SOURCE, tried)
        tried.append(Tried("counter.py", old, new))
        with pytest.raises(ToolProblem, match="not one of the lines"):
            choice_from_answer(_chosen(choice), STEP, "names", SOURCE, tried)
    assert {edit.new.strip() for edit in tried} == every
    with pytest.raises(ToolProblem, match="is left to try"):
        _choices("names", *tried)


def test_a_place_that_was_tried_gives_way_to_the_others() -> None:
    """The local model went through all comparisons of one place while the wrong one stood next to it."""
    source = "def inside(a, b, c):\n    return a < b and b < c\n"
    suspect = Suspect("span.py", "inside", 1, 2, 1.0, "")
    old, new = "    return a < b and b < c", "    return a < b and b <= c"
    left = _choices("choice", Tried("span.py", old, new), suspect=suspect, source=source)
    assert "return a <= b and b < c" in left
    assert not [choice for choice in left if choice.startswith("return a < b and b ")]


def test_a_choice_keeps_the_line_ends_of_other_systems() -> None:
    source = SOURCE.replace("\n", "\r\n")
    old, new, line = choice_from_answer(_chosen("if self.count > self.limit:"), STEP, "choice", source)
    assert (old, new, line) == ("        if self.count < self.limit:\r", "        if self.count > self.limit:\r", 16)


@pytest.mark.parametrize("kind", ["choice", "names"])
def test_every_choice_changes_one_line_of_the_suspect_and_parses(kind: Kind) -> None:
    lines = SOURCE.split("\n")
    for choice in _choices(kind):
        old, new, number = choice_from_answer(_chosen(choice), STEP, kind, SOURCE)
        assert lines[number - 1] == old != new
        assert new.strip() == choice
        assert STEP.start <= number <= STEP.end
        ast.parse("\n".join([*lines[: number - 1], new, *lines[number:]]))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("not JSON", "not the JSON object"),
        ("[1]", "not the JSON object"),
        ('{"old_line": "x"}', "not the JSON object"),
        ('{"new_line": 1}', "not one of the lines"),
        (_chosen("return self.count"), "not one of the lines"),
    ],
)
def test_an_answer_that_is_no_choice_is_refused_with_a_reason(answer: str, reason: str) -> None:
    with pytest.raises(ToolProblem, match=reason):
        choice_from_answer(answer, STEP, "choice", SOURCE)


def test_duplicates_are_told_apart_by_line() -> None:
    assert edit_from_answer(_answer("self.count += by  # line 21", "self.count -= by"), STEP, SOURCE) == (
        "            self.count += by",
        "            self.count -= by",
        21,
    )
    # The number is a mark of ours: it does not become part of the program.
    answer = _answer("self.count += by  # line 17", "self.count += 2 * by  # line 17")
    assert edit_from_answer(answer, STEP, SOURCE)[1:] == ("            self.count += 2 * by", 17)


def test_a_dropped_colon_is_restored() -> None:
    answer = _answer("if self.count < self.limit:", "if self.count <= self.limit")
    assert edit_from_answer(answer, STEP, SOURCE)[1] == "        if self.count <= self.limit:"


def test_line_ends_of_other_systems_are_kept() -> None:
    source = SOURCE.replace("\n", "\r\n")
    old, new, line = edit_from_answer(_answer('self.log("up")', 'self.log("down")'), STEP, source)
    assert (old, new, line) == ('            self.log("up")\r', '            self.log("down")\r', 18)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("not JSON", "not the JSON object"),
        ("[1]", "not the JSON object"),
        ('{"old_line": "x"}', "not the JSON object"),
        (_answer("else:", "elif by:"), "not one of the lines"),
        (json.dumps({"old_line": 1, "new_line": "x"}), "not one of the lines"),
        (_answer('self.log("up")', ""), "not one line"),
        (_answer('self.log("up")', "pass\nself.log('x')"), "not one line"),
        (_answer('self.log("up")', "self.log('up')  # same"), "means the same"),
        (_answer('self.log("up")', "self.log((1)"), "syntax error"),
    ],
)
def test_an_answer_that_is_no_edit_is_refused_with_a_reason(answer: str, reason: str) -> None:
    with pytest.raises(ToolProblem, match=reason):
        edit_from_answer(answer, STEP, SOURCE)


def test_an_edit_is_not_tried_twice() -> None:
    limit = Suspect("counter.py", "LIMIT", 3, 3, 1.0, "")
    tried = [Tried("counter.py", "LIMIT = 3", "LIMIT = 4")]
    with pytest.raises(ToolProblem, match="tried before"):
        edit_from_answer(_answer("LIMIT = 3", "LIMIT = 4"), limit, SOURCE, tried)


def test_a_repeated_answer_stands_for_the_parts_of_its_change() -> None:
    """The local model answered `a < b and c <= d` for `a <= b and c < d` again; half of it was right."""
    source = "def overlaps(a, b, c, d):\n    return a <= b and c < d\n"
    suspect = Suspect("span.py", "overlaps", 1, 2, 1.0, "")
    answer = _answer("return a <= b and c < d", "return a < b and c <= d")
    tried: list[Tried] = []
    found = []
    for _ in range(3):
        old, new, _ = edit_from_answer(answer, suspect, source, tried)
        found.append(new.strip())
        # A line that was tried is offered again only because there is no other.
        tried.append(Tried("span.py", old, new))
    assert found == ["return a < b and c <= d", "return a < b and c < d", "return a <= b and c <= d"]
    with pytest.raises(ToolProblem, match="tried before"):
        edit_from_answer(answer, suspect, source, tried)


@given(st.text(max_size=40), st.sampled_from(range(7)))
def test_an_accepted_edit_changes_one_line_and_parses(new: str, which: int) -> None:
    old = _offered()[which]
    try:
        old_full, new_full, number = edit_from_answer(_answer(old, new), STEP, SOURCE)
    except ToolProblem:
        return
    lines = SOURCE.split("\n")
    assert lines[number - 1] == old_full
    assert STEP.start <= number <= STEP.end
    changed = [*lines[: number - 1], new_full, *lines[number:]]
    assert ast.dump(ast.parse("\n".join(changed))) != ast.dump(ast.parse(SOURCE))
    assert len("\n".join(changed).split("\n")) == len(lines)


@given(st.integers(min_value=1, max_value=30))
def test_the_plan_offers_choices_first_and_asks_most_about_the_best(count: int) -> None:
    plan = plan_tries(count)
    order = list(dict.fromkeys(step.suspect for step in plan))
    assert order == list(range(min(count, 8)))
    for which in order:
        assert next(step.kind for step in plan if step.suspect == which) == "choice"
        assert {step.kind for step in plan if step.suspect == which} == set(KINDS)
    # At every moment the more suspect was asked about at least as often.
    for end in range(1, len(plan) + 1):
        visits = [[step.suspect for step in plan[:end]].count(which) for which in order]
        assert visits == sorted(visits, reverse=True)
    # The best is asked for everything before the tries are used up.
    assert {step.kind for step in plan[:MAX_TRIES] if step.suspect == 0} == set(KINDS)


def test_definitions_that_no_token_could_correct_come_last() -> None:
    """A fault once ranked behind three of them, and so was never asked about."""
    files = {
        "box.py": "def first(n):\n    return plain(n)\n\n\ndef plain(n):\n    return n.half.size\n\n\n"
        "def second(n):\n    return n + 1\n",
        "test_box.py": "import box\n\n\ndef test_first():\n    assert box.first(1) == box.second(1)\n",
    }
    output = "FAILED test_box.py::test_first - AssertionError\n"
    assert [suspect.name for suspect in suspects(output, files)] == ["second", "first", "plain"]


def test_the_excerpt_is_the_first_failure_and_bounded() -> None:
    shown = excerpt(
        "=== FAILURES ===\n___ test_a ___\n\n" + "x\n" * 90 + "E   assert 1 == 2\n___ test_b ___\nE   other\n"
    )
    assert shown.endswith("E   assert 1 == 2")
    assert len(shown.splitlines()) <= 22
    assert "other" not in shown
