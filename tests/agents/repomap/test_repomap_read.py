"""The map of files on disk: a change costs one parse, however it was made; odd files and names stop nothing."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from musecode_jupyter.agents.repomap.answer import Question, answer
from musecode_jupyter.agents.repomap.map import RepoMap
from musecode_jupyter.agents.repomap.rank import Focus
from musecode_jupyter.agents.repomap.read import Kept
from musecode_jupyter.agents.repomap.render import render
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.tools.files import digest_bytes

LATER_NS = 10_000_000_000
NAMES = st.sampled_from(
    ["a.py", "b.py", "p/__init__.py", "p/c.py", "p/A.py", "tests/test_a.py", "tests/conftest.py", "n.md"]
)
TEXTS = st.sampled_from(
    ["", "import a", "from p import c", "from .c import f\n", "def f(): pass\n", "def g(): pass\n", "# f\n", "def ("]
)


def mapped(kept: Kept, root: Path, names: list[str], now_ns: int) -> RepoMap:
    return asyncio.run(kept.map(LiveEffects(), root, names, now_ns))


def listed(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or path.is_symlink()]


class Edits(RuleBasedStateMachine):
    """Files are written, moved and removed in a worktree; the map that is kept is the one made anew."""

    kept = Kept()
    """One for all worktrees, as in a kernel: what is in a file is parsed once."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(name=NAMES, text=TEXTS)
    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    @rule(name=NAMES, other=NAMES)
    def move(self, name: str, other: str) -> None:
        if (self.root / name).is_file():
            (self.root / other).parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.root / name, self.root / other)

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    @invariant()
    def what_is_kept_is_what_is_made_anew(self) -> None:
        names = listed(self.root)
        found = mapped(self.kept, self.root, names, time.time_ns())
        anew = RepoMap.of({name: (self.root / name).read_bytes() for name in names})
        assert found.facts == anew.facts
        assert (found.imports, found.tests, found.by_name) == (anew.imports, anew.tests, anew.by_name)
        assert list(found.facts) == sorted(names)


TestEdits = Edits.TestCase
TestEdits.settings = settings(deadline=None, max_examples=25, stateful_step_count=12)


def test_a_changed_file_costs_one_parse_and_another_worktree_none(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for root in (one, two):
        root.mkdir()
        for number in range(30):
            (root / f"m{number}.py").write_text(f"def f{number}(): pass\n")
    kept = Kept()
    later = time.time_ns() + LATER_NS
    first = mapped(kept, one, listed(one), later)
    assert kept.parsed == 30
    assert mapped(kept, one, listed(one), later) is first, "nothing has changed"
    assert mapped(kept, two, listed(two), later) == first
    assert kept.parsed == 30
    (two / "m7.py").write_text("def other(): pass\n")
    os.rename(two / "m8.py", two / "moved.py")
    changed = mapped(kept, two, listed(two), later)
    assert kept.parsed == 31
    assert [symbol.name for symbol in changed.facts["m7.py"].symbols] == ["other"]
    assert changed.facts["moved.py"] == first.facts["m8.py"]
    assert mapped(kept, one, listed(one), later) == first


def test_a_file_that_changes_right_after_it_was_read_is_read_again(tmp_path: Path) -> None:
    """Its size stays, and a file system's clock may give it the same time: what is so new is not trusted."""
    path = tmp_path / "a.py"
    path.write_text("def f(): pass\n")
    state = path.stat()
    kept = Kept()
    mapped(kept, tmp_path, ["a.py"], state.st_mtime_ns)
    path.write_text("def g(): pass\n")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    found = mapped(kept, tmp_path, ["a.py"], state.st_mtime_ns)
    assert [symbol.name for symbol in found.facts["a.py"].symbols] == ["g"]


def test_a_repository_of_odd_files(tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("def secret(): pass\n")
    root = tmp_path / "root"
    (root / "a folder").mkdir(parents=True)
    (root / "a folder" / "two words.py").write_text("def here(): pass\n")
    (root / "new\nline.py").write_text("import os\n")
    odd = os.fsdecode(b"caf\xe9.py")
    (root / odd).write_text("def odd(): pass\n")
    (root / "Case.py").write_text("def upper(): pass\n")
    (root / "case.py").write_text("def lower(): pass\n")
    (root / "link.py").symlink_to(outside)
    (root / "nowhere.py").symlink_to("gone.py")
    (root / "up").symlink_to(tmp_path)
    os.mkfifo(root / "pipe.py")
    with open(root / "wide.py", "wb") as file:
        file.truncate(24_000_000)
    (root / "min.js").write_text("var a=1;" * 1_000)
    names = [*listed(root), "pipe.py", "up/outside.py", "removed.py", "../outside.py"]
    repo = mapped(Kept(), root, names, time.time_ns())
    notes = {name: facts.note for name, facts in repo.facts.items()}
    assert notes == {
        "a folder/two words.py": "",
        "new\nline.py": "",
        odd: "cannot be read",  # no tool takes such a name
        "Case.py": "",
        "case.py": "",
        "link.py": "a link",
        "nowhere.py": "a link",
        "up": "a link",
        "up/outside.py": "cannot be read",
        "../outside.py": "cannot be read",
        "pipe.py": "no file",
        "wide.py": "large",
        "min.js": "minified",
    }
    assert "secret" not in repo.by_name
    assert repo.digests["Case.py"] == digest_bytes(b"def upper(): pass\n")
    assert answer(repo, Question(odd)).text == "caf\ufffd.py (0 lines, cannot be read)\n"
    render(repo, Focus()).encode("utf-8")
    for name in repo.facts:
        answer(repo, Question(name)).text.encode("utf-8")
    assert [place.symbol.name for name in ("upper", "lower") for place in repo.defined(name)] == ["upper", "lower"]


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    kept = Kept()
    for number in range(40):
        root = tmp_path / str(number)
        root.mkdir()
        (root / "a.py").write_text(f"def f{number % 3}(): pass\n")
        mapped(kept, root, ["a.py"], time.time_ns() + LATER_NS)
    again = kept.parsed
    mapped(kept, tmp_path / "0", ["a.py"], time.time_ns() + LATER_NS)
    assert kept.parsed == again, "a folder that was forgotten is read, and what its files say is still known"
