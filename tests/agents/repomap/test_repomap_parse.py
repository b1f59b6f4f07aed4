"""Parsing in a worker: garbage is given up at a deadline, what stands beside it is known; nothing is left running."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from musecode_jupyter.agents.repomap import parse
from musecode_jupyter.agents.repomap.answer import Question, answer
from musecode_jupyter.agents.repomap.facts import NOT_YET
from musecode_jupyter.agents.repomap.map import RepoMap
from musecode_jupyter.agents.repomap.parse import BREAKS, TOO_LONG, Limits
from musecode_jupyter.agents.repomap.rank import Focus
from musecode_jupyter.agents.repomap.read import Kept
from musecode_jupyter.agents.repomap.render import render
from musecode_jupyter.runtime.command import Command, CommandAnswer
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import ToolProblem

GARBAGE = {
    "b_comments.py": "/*",
    "d_questions.rs": "a?b:",
    "f_less.cc": "a<",
    "h_quotes.ts": '"""\'',
    "j_functions.js": "fn f<",
}
"""240 KB of it take the parser of the language many seconds, minutes, or gigabytes."""
SHORT = Limits(file=0.3, megabyte=0.0)


def put(root: Path, *garbage: str) -> None:
    for name in garbage:
        (root / name).write_text((GARBAGE[name] * 40 + "\n") * (6_000 // len(GARBAGE[name])))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A proper file before, between and after what is garbage."""
    for name in "acegiz":
        (tmp_path / f"{name}.py").write_text(f"def in_{name}(): pass\n")
    return tmp_path


def names(root: Path) -> list[str]:
    return [path.name for path in root.iterdir()]


class Counted(LiveEffects):
    """The real effects; counts what is asked for, and has `edited` changed by someone each time."""

    def __init__(self, edited: Path | None = None) -> None:
        super().__init__()
        self.asked = 0
        self.edited = edited

    async def ask(self, command: Command) -> CommandAnswer:
        self.asked += 1
        if self.edited is not None:
            self.edited.write_text(f"def at_{self.asked}(): pass\n")
        return await super().ask(command)


def mapped(kept: Kept, root: Path, limits: Limits, effects: LiveEffects | None = None) -> RepoMap:
    return asyncio.run(kept.map(effects or LiveEffects(), root, names(root), time.time_ns(), limits))


def test_garbage_is_given_up_and_its_neighbours_are_known(tree: Path) -> None:
    put(tree, *GARBAGE)
    kept, effects = Kept(), Counted()
    repo = mapped(kept, tree, SHORT, effects)
    assert {name: facts.note for name, facts in repo.facts.items() if facts.note} == dict.fromkeys(GARBAGE, TOO_LONG)
    assert sorted(repo.by_name) == [f"in_{name}" for name in "acegiz"]
    assert effects.asked == len(GARBAGE) + 1, "one worker goes on until a file ends it"
    assert "b_comments.py (0 lines, takes too long to parse)" in answer(repo, Question("b_comments.py")).text
    assert mapped(kept, tree, SHORT, effects).facts == repo.facts
    assert effects.asked == len(GARBAGE) + 1, "what was given up is not tried again"


def test_when_the_time_of_a_call_is_up_the_next_one_goes_on(tree: Path) -> None:
    """Its own timer ends a worker in the middle of a file."""
    put(tree, "d_questions.rs")
    kept = Kept()
    first = mapped(kept, tree, Limits(seconds=1.0, file=600.0))
    assert {first.facts[name].note for name in ("d_questions.rs", "z.py")} == {NOT_YET}
    assert "of them not looked into yet: there was no time; ask again\n" in render(first, Focus())
    second = mapped(kept, tree, SHORT)
    assert second.facts["z.py"].symbols
    assert "ask again" not in render(second, Focus())


def test_a_file_over_which_the_parser_breaks_down_costs_only_itself(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery from errors takes memory too, half a gigabyte in a second: here the process may have little."""
    put(tree, "b_comments.py")
    before = "from musecode_jupyter.agents.repomap import parse_worker; parse_worker._MOST_MEMORY = 100_000_000\n"
    at = parse._WORKER.index("from musecode_jupyter")
    monkeypatch.setattr(parse, "_WORKER", parse._WORKER[:at] + before + parse._WORKER[at:])
    repo = mapped(Kept(), tree, Limits(file=60.0))
    assert repo.facts["b_comments.py"].note == BREAKS
    assert sorted(repo.by_name) == [f"in_{name}" for name in "acegiz"]


def test_a_cancelled_call_leaves_no_process(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tree, "d_questions.rs")
    kept, told = Kept(), tree / "pid"
    os.mkfifo(told)
    tells = f"import os\nopen({str(told)!r}, 'w').write(str(os.getpid()))\n"
    monkeypatch.setattr(parse, "_WORKER", tells + parse._WORKER)

    async def cancel() -> int:
        task = asyncio.create_task(kept.map(LiveEffects(), tree, names(tree), time.time_ns(), Limits(file=600.0)))
        pid = int(await asyncio.to_thread(told.read_text))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pid

    with pytest.raises(ProcessLookupError):
        os.kill(asyncio.run(cancel()), 0)
    monkeypatch.undo()
    assert mapped(kept, tree, SHORT).facts["z.py"].symbols, "the next call is not held up"


def test_agents_that_ask_together_have_the_files_parsed_once(tree: Path) -> None:
    kept, effects = Kept(), Counted()

    async def together() -> list[RepoMap]:
        calls = (kept.map(effects, tree, ["a.py", "c.py"], time.time_ns(), SHORT) for _ in range(3))
        return list(await asyncio.gather(*calls))

    one, two, three = asyncio.run(together())
    assert one is two is three
    assert (kept.parsed, effects.asked) == (2, 1)


def test_a_file_that_changes_before_it_is_parsed_is_shown_as_it_is(tree: Path) -> None:
    repo = mapped(Kept(), tree, SHORT, Counted(tree / "a.py"))
    shown = {name: [symbol.name for symbol in facts.symbols] for name, facts in repo.facts.items()}
    assert shown["a.py"] == ["at_1"]
    assert shown["z.py"] == ["in_z"]


def test_that_no_process_can_be_started_is_said(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "PYTHON", str(tree / "gone"))
    with pytest.raises(ToolProblem, match="cannot parse the files, no process can be started"):
        mapped(Kept(), tree, SHORT)
    monkeypatch.setattr(parse, "PYTHON", "/bin/false")
    with pytest.raises(ToolProblem, match="cannot parse the files, its process for it fails: exit status 1"):
        mapped(Kept(), tree, SHORT)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(ToolProblem, match="SIGCHLD is ignored"):
            mapped(Kept(), tree, SHORT)
    finally:
        signal.signal(signal.SIGCHLD, before)
