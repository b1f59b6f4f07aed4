"""Whatever workers and the user do: uncommitted bytes stay, what lands is what was tested, no work is lost."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from subprocess import CalledProcessError

import pytest
from fixtures.landing_bench import NOWHERE, merges, start_goal, submit, work
from fixtures.session_bench import Repo, session_on
from hypothesis import given, note
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from musecode_jupyter.agents.landing.work import Work
from musecode_jupyter.runtime.errors import GitError, UsageProblem
from musecode_jupyter.session import Session
from musecode_jupyter.session.replay import prove

EXAMPLES = 5 if "MUSECODE_CRASH_POINTS" not in os.environ else 100
NAMES = ("f0.txt", "f1.txt", "f2.txt")
LIMIT = 6
CHECK = f"test $(cat {' '.join(NAMES)} | grep -c x) -le {LIMIT}"
"""Work that passes alone fails merged: the sum over all files decides."""

names = st.sampled_from(NAMES)
counts = st.integers(0, 4)
edits = st.tuples(st.just("work"), names, counts, st.integers(0, 2))
steps = st.one_of(
    edits,
    edits,
    st.tuples(st.just("commit"), names, counts),
    st.tuples(st.just("dirty"), names),
    st.tuples(st.just("submit")),
    st.tuples(st.just("undo"), st.integers(0, 3)),
)


class World:
    """A repository, its user and its workers, and what must hold of them."""

    def __init__(self, session: Session, repo: Repo) -> None:
        self.session = session
        self.repo = repo
        self.goal = start_goal(session, repo)
        self.pending: list[Work] = []
        self.all: list[Work] = []
        self.dirty: dict[str, str] = {}
        self.made = 0

    def text(self, count: int) -> str:
        self.made += 1
        return "".join(f"x {self.made}\n" for _ in range(count)) + f"made {self.made}\n"

    def work(self, name: str, count: int, back: int) -> None:
        history = self.repo.git("rev-list", "--first-parent", "main").split()
        base = history[min(back, len(history) - 1)]
        self.pending.append(work(self.repo, self.goal, f"w{len(self.all)}", {name: self.text(count)}, CHECK, base=base))
        self.all.append(self.pending[-1])

    def commit(self, name: str, count: int) -> None:
        self.repo.write(name, self.text(count))
        self.dirty.pop(name, None)
        self.repo.git("commit", "--quiet", "--message", "user", "--", name)

    def make_dirty(self, name: str) -> None:
        self.dirty[name] = self.text(0)
        self.repo.write(name, self.dirty[name])

    def submit(self) -> None:
        works, self.pending = self.pending, []
        tip = self.repo.git("rev-parse", "main")
        verdicts = submit(self.session, *works)
        note(f"{[(verdict.kind, verdict.why) for verdict in verdicts]}")
        landed = [verdict.commit for verdict in verdicts if verdict.kind == "landed"]
        assert self.repo.git("rev-parse", "main") == (landed[-1] if landed else tip)
        assert all(verdict.report for verdict in verdicts if verdict.kind == "bounced")

    def undo(self, number: int) -> None:
        landings = [seq for seq, merge in merges(self.session).items() if merge.state in {"landed", "undone"}]
        tip = self.repo.git("rev-parse", "main")
        try:
            self.session.undo(landings[number] if number < len(landings) else 1)
        except (UsageProblem, GitError) as error:
            note(f"undo: {error}")
            assert self.repo.git("rev-parse", "main") == tip
        else:
            undone = merges(self.session)[landings[number]]
            assert (undone.undo_old, undone.undo_new) == (tip, self.repo.git("rev-parse", "main"))

    def check(self) -> None:
        assert {name: self.repo.read(name) for name in self.dirty} == self.dirty
        changed = self.repo.git("status", "--porcelain").split("\n")
        assert sorted(line.split()[-1] for line in changed if line) == sorted(self.dirty)
        for merge in merges(self.session).values():
            if merge.state != "landed":
                continue
            assert merge.new is not None
            tree = self.repo.git("rev-parse", f"{merge.new}^{{tree}}")
            assert [(evidence.tree, evidence.passed) for evidence in merge.tested] == [(tree, True)]
            texts = [self.repo.git("show", f"{merge.new}:{name}") for name in NAMES]
            assert sum(line.startswith("x") for text in texts for line in text.split("\n")) <= LIMIT
        for made in self.all:
            assert self.repo.git("for-each-ref", "--contains", made.commit), made.title


@pytest.mark.crash
@hypothesis_settings(max_examples=EXAMPLES)
@given(story=st.lists(steps, min_size=5, max_size=14))
def test_nothing_of_the_users_changes_unasked_and_what_lands_was_tested(story: list[tuple]) -> None:  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory() as folder:
        repo = Repo(Path(folder) / "repo")
        repo.commit(dict.fromkeys(NAMES, "base\n"))
        with session_on(NOWHERE, repo.root, home=Path(folder) / "home") as session:
            world = World(session, repo)
            deeds = {"work": world.work, "commit": world.commit, "dirty": world.make_dirty, "undo": world.undo}
            for kind, *arguments in [*story, ("submit",)]:
                if kind == "submit":
                    world.submit()
                    world.check()
                else:
                    deeds[kind](*arguments)
            world.check()
        assert prove(session.folder, commands=False).problem is None


def test_the_check_of_these_tests_can_fail(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    repo.commit(dict.fromkeys(NAMES, "x\n" * 3))
    with pytest.raises(CalledProcessError):
        repo.git("-c", f"alias.check=!{CHECK}", "check")
