"""Task graphs are checked, and two tasks run side by side only if nothing of either is in the other's way."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musecode_jupyter.agents.tasks.graph import TaskSpec, expand, meeting, problems_of
from musecode_jupyter.agents.tasks.scheduling import FileSets, Repository, choose, obstacles, weights

FILES = ("README.md", "pyproject.toml", "src/a.py", "src/b.py", "src/deep/c.py", "tests/test_a.py", "uv.lock")


def task(name: str, *writes: str, reads: tuple[str, ...] = (), after: tuple[str, ...] = (), **more: object) -> TaskSpec:
    return TaskSpec(name=name, goal="g", accept=("true",), writes=writes, reads=reads, after=after, **more)


# Checks of a proposal


def test_a_sound_graph_has_no_problems() -> None:
    assert problems_of([task("one", "src/a.py"), task("two", "src/**/*.py", after=("one",))]) == []


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([], "has no task"),
        ([task(f"t{n}", "a") for n in range(65)], "at most 64"),
        ([task("one", "a"), task("one", "b")], "Two tasks are called 'one'"),
        ([task("One", "a")], "no task name"),
        ([TaskSpec(name="one", goal=" ", accept=("true",))], "says no goal"),
        ([TaskSpec(name="one", goal="g", accept=("",))], "no acceptance command"),
        ([TaskSpec(name="one", goal="g", accept=("false", " "))], "empty acceptance command"),
        ([task("one", "/etc/passwd")], "is absolute"),
        ([task("one", "C:/x")], "is absolute"),
        ([task("one", "a/../../b")], "leads out of the repository"),
        ([task("one", ".git/config")], "git's own folder"),
        ([task("one", ".GIT/config")], "git's own folder"),
        ([task("one", "a\0b")], "is no path"),
        ([task("one", "\ud800")], "the character U+D800"),
        ([TaskSpec(name="one", goal="a\0b", accept=("true",))], "the character U+0000"),
        ([TaskSpec(name="one", goal="g", accept=("rm \u202ex",))], "the character U+202E"),
        ([TaskSpec(name="one", goal="g", accept=("true",), risk="\x1b[2J")], "the character U+001B"),
        ([task("one", "x[b-a]")], "is no glob"),
        ([task("one", "a", after=("one",))], "comes after itself"),
        ([task("one", "a", after=("two",))], "no task of this graph"),
    ],
)
def test_what_is_wrong_is_said(tasks: list[TaskSpec], said: str) -> None:
    assert any(said in problem for problem in problems_of(tasks)), problems_of(tasks)


def test_a_cycle_is_named() -> None:
    tasks = [task("a", "x", after=("c",)), task("b", "y", after=("a",)), task("c", "z", after=("b",)), task("d", "w")]
    problem = next(problem for problem in problems_of(tasks) if "wait for each other" in problem)
    assert {"a", "b", "c"} <= set(problem.replace(".", "").split())


@given(st.integers(1, 12), st.integers(0, 2**32))
def test_a_cycle_is_found_exactly_if_there_is_one(size: int, seed: int) -> None:
    choice = random.Random(seed)
    names = [f"t{n}" for n in range(size)]
    after = {name: tuple(n for n in names if n != name and choice.random() < 0.15) for name in names}
    tasks = [task(name, "x", after=after[name]) for name in names]
    left = dict(after)
    while free := [name for name, before in left.items() if not set(before) & set(left)]:
        for name in free:
            del left[name]
    found = [problem for problem in problems_of(tasks) if "wait for each other" in problem]
    assert bool(found) == bool(left)


# Files


@pytest.mark.parametrize(
    ("patterns", "meant"),
    [
        (["src/a.py"], {"src/a.py"}),
        (["src"], {"src/a.py", "src/b.py", "src/deep/c.py"}),
        (["src/"], {"src/a.py", "src/b.py", "src/deep/c.py"}),
        (["./src/a.py"], {"src/a.py"}),
        (["src/*.py"], {"src/a.py", "src/b.py"}),
        (["*.py"], {"src/a.py", "src/b.py", "src/deep/c.py", "tests/test_a.py"}),
        (["."], set(FILES)),
        (["new/file.py"], {"new/file.py"}),
        (["none/*.py"], set()),
    ],
)
def test_patterns_mean_files(patterns: list[str], meant: set[str]) -> None:
    assert expand(patterns, FILES) == meant


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("src/a.py", "src/a.py", True),
        ("src/a.py", "./src/a.py", True),
        ("src/a.py", "src/b.py", False),
        ("src", "src/deep/c.py", True),
        ("new", "new/file.py", True),
        ("new/x.py", "new/*.py", True),
        ("new/x.py", "new/*.txt", False),
        ("new/**/*.py", "new/deep/*.py", True),
        ("new/*.py", "old/*.py", False),
        ("src/*.py", "tests/*.py", False),
        (".", "anything/new.py", True),
        ("*.py", "brand/new.py", True),
    ],
)
def test_patterns_meet_on_files_that_are_there_and_on_new_ones(one: str, other: str, meet: bool) -> None:
    assert bool(meeting([one], [other], FILES)) == meet
    assert bool(meeting([other], [one], FILES)) == meet


# Side by side


def sets(*writes: str, reads: tuple[str, ...] = ()) -> FileSets:
    return FileSets(reads, writes)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (sets("src/a.py"), sets("src"), "both write src/a.py"),
        (sets("src/a.py", reads=("src/b.py",)), sets("src/b.py"), "the first reads src/b.py, which the second writes"),
        (sets("src/b.py"), sets("src/a.py", reads=("src/*.py",)), "the second reads"),
        (sets(), sets("src/a.py"), "the first may write anything"),
        (sets("db/migrations/1.py"), sets("db/migrations/2.py"), "do not add up"),
        (sets("src/b.py"), sets("src/a.py"), "src/b.py imports src/a.py"),
        (sets("README.md"), sets("src/deep/c.py"), "history changes these together"),
    ],
)
def test_obstacles_are_said(one: FileSets, other: FileSets, said: str) -> None:
    repository = Repository(
        FILES,
        imports={"src/b.py": frozenset({"src/a.py"})},
        together={("README.md", "src/deep/c.py"): 4},
        commits={"README.md": 9, "src/deep/c.py": 5},
    )
    assert any(said in reason for reason in obstacles(one, other, repository)), obstacles(one, other, repository)
    assert obstacles(other, one, repository)


def test_what_is_in_nobodys_way_runs_side_by_side() -> None:
    repository = Repository(
        FILES, together={("README.md", "src/deep/c.py"): 3}, commits={"README.md": 3, "src/deep/c.py": 3}
    )
    assert obstacles(sets("README.md"), sets("src/deep/c.py"), repository) == []
    assert obstacles(sets("src/a.py", reads=("README.md",)), sets("src/b.py", reads=("README.md",)), repository) == []
    assert obstacles(sets("pyproject.toml"), sets("src/a.py"), repository) == []


def test_what_was_really_written_widens_the_sets() -> None:
    declared, other = task("one", "src/a.py"), sets("src/b.py")
    assert not obstacles(FileSets.of(declared), other, Repository(FILES))
    assert obstacles(FileSets.of(declared, written={"src/b.py"}), other, Repository(FILES))
    assert obstacles(FileSets.of(declared, read={"src/b.py"}), other, Repository(FILES))


# What runs next


def test_those_that_most_wait_for_start_first_and_width_holds() -> None:
    tasks = [task("x", "x"), task("y", "y"), task("z", "z", after=("y",)), task("w", "w", after=("z",))]
    assert weights(tasks) == {"x": 0, "y": 2, "z": 1, "w": 0}
    chosen = choose(tasks, done=(), running={}, repository=Repository(), width=1)
    assert chosen == ["y"]
    assert choose(tasks, done=(), running={}, repository=Repository(), width=4) == ["y", "x"]
    assert choose(tasks, done={"y"}, running={"x": sets("x")}, repository=Repository(), width=4) == ["z"]
    assert choose(tasks, done={"y"}, running={}, repository=Repository(), width=4, held={"x"}) == ["z"]


paths = st.sampled_from(["a.py", "b.py", "c.py", "d", "d/e.py", "*.md", "d/*.py"])


@st.composite
def graphs(draw: st.DrawFn) -> list[TaskSpec]:
    size = draw(st.integers(1, 8))
    return [
        task(
            f"t{n}",
            *draw(st.lists(paths, max_size=2)),
            reads=tuple(draw(st.lists(paths, max_size=2))),
            after=tuple(f"t{m}" for m in range(n) if draw(st.booleans()) and draw(st.booleans())),
        )
        for n in range(size)
    ]


@given(graphs(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_graph_is_worked_off_and_no_two_that_run_are_in_each_others_way(
    tasks: list[TaskSpec], width: int, choice: random.Random
) -> None:
    repository = Repository(("a.py", "b.py", "d/e.py"))
    done: set[str] = set()
    running: dict[str, FileSets] = {}
    by_name = {one.name: one for one in tasks}
    while len(done) < len(tasks):
        shuffled = choice.sample(tasks, len(tasks))
        chosen = choose(tasks, done=done, running=running, repository=repository, width=width)
        assert chosen == choose(shuffled, done=done, running=running, repository=repository, width=width)
        for name in chosen:
            assert set(by_name[name].after) <= done
            running[name] = FileSets.of(by_name[name])
        assert 1 <= len(running) <= width, "nothing runs and nothing starts"
        beside = list(running.values())
        assert not any(obstacles(a, b, repository) for i, a in enumerate(beside) for b in beside[:i])
        ended = choice.choice(sorted(running))
        del running[ended]
        done.add(ended)
