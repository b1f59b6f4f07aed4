"""A process is killed at each step of making a fork or a rewind: the parent is as it was, and all can be done again."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fixtures.crash_points import some, within
from fixtures.crash_world import copy_tree
from fixtures.folders import Picture, fingerprint, picture
from fixtures.fork_victim import NOWHERE, Victim
from fixtures.model_scripts import Answer, Call, Steps
from fixtures.model_server import ModelServer
from fixtures.session_bench import DONE, EDIT, Hurried, Repo, end, only, run_of, session_on, settings, start

from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.runtime.loop import RuntimeThread
from musecode_jupyter.session import Session, open_session
from musecode_jupyter.session.api import fork_session
from musecode_jupyter.session.replay import prove
from musecode_jupyter.session.store import SessionEntry, list_sessions
from musecode_jupyter.session.worktrees import Trees

LONG = "MUSECODE_CRASH_POINTS" in os.environ
MEND_EVERY = 6
MAKE = run_of("printf made > made.txt; chmod +x other.txt; ln -s made.txt link; rm -f gone.txt")
LATER = Answer("", [Call("edit", {"path": "other.txt", "old": "other", "new": "another"})])
LATEST = Answer("", [Call("edit", {"path": "other.txt", "old": "another", "new": "yet another"})])


@dataclass
class Scene:
    """A session that rests in the middle of its goal, in folders that are put back before each kill.

    `truth` is its worktree as at event `at`, from which it is forked or rewound, and `now` as it rests.
    """

    root: Path
    album: Path
    victim: Victim
    source: Path
    git_dir: Path
    goal: int
    at: int
    truth: Picture
    now: Picture
    tree: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def repo(self) -> Path:
        return self.root / "repo"

    def git(self, *args: str) -> str:
        repo = object.__new__(Repo)
        repo.root = self.repo
        return repo.git(f"--git-dir={self.git_dir}", f"--work-tree={self.repo}", *args)

    def restore(self) -> None:
        for path in self.root.iterdir():
            shutil.rmtree(path)
        copy_tree(self.album, self.root)

    def kill(self, rewind: bool, last: int) -> tuple[bool, list[str]]:
        """Put all back, and let a child act that is killed at step `last` (0: not)."""
        self.restore()
        names = {"root": str(self.root), "repo": str(self.repo), "source": str(self.source)}
        return self.victim.act(**names, rewind=rewind, seq=self.at, last=last)

    def users(self) -> tuple[object, ...]:
        """What is the user's or the parent's own in the repository, the parent's private refs left out."""
        refs = self.git("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        mine = [ref for ref in refs if self.source.name in ref and not ref.startswith("refs/musecode/snapshot/")]
        mine += [ref for ref in refs if "musecode/" not in ref]
        return self.git("rev-parse", "HEAD"), mine, self.git("status", "--porcelain"), picture(self.repo)

    def snapshots(self) -> set[str]:
        prefix = f"refs/musecode/snapshot/{self.source.name}"
        return set(self.git("for-each-ref", "--format=%(refname)", prefix).split())

    def entries(self) -> dict[str, SessionEntry]:
        return {entry.id: entry for entry in list_sessions(self.home)}

    def listed(self) -> list[str]:
        """The agents' worktrees, as the user sees them."""
        effects, thread = Hurried(), RuntimeThread.start()

        async def text() -> str:
            return await (await Trees.of(self.repo, self.home, effects)).text()

        try:
            return thread.call(text()).splitlines()
        finally:
            thread.stop()

    def reclaim(self) -> None:
        effects, thread = Hurried(), RuntimeThread.start()

        async def work() -> None:
            await (await Trees.of(self.repo, self.home, effects)).reclaim()

        try:
            thread.call(work())
        finally:
            thread.stop()


def tell(root: Path, base: str) -> tuple[Path, Path, int, int, Picture, Picture, Path]:
    """The session: two edits and a command that changed files, an edit after the event, and rest."""
    (root / "repo").parent.mkdir(parents=True)
    if base == "shadow":
        (root / "repo").mkdir()
        for name, text in {"answer.txt": "wrong\n", "other.txt": "other\n", "gone.txt": "gone\n"}.items():
            (root / "repo" / name).write_text(text)
    else:
        repo = Repo(root / "repo")
        repo.commit({"gone.txt": "gone\n"})
        repo.write("mine.txt", "not committed\n")
    truth: dict[int, Picture] = {}
    chosen = {"head": {"base": "head"}, "dirty": {"base": "dirty"}, "shadow": {"shadow": True}}[base]
    with (
        ModelServer(Steps([MAKE, LATER, LATEST, DONE])) as server,
        session_on(server.base_url, root / "repo") as session,
    ):

        def look_at(event: object) -> None:
            tree = next(iter(session.core.workspace_state.worktrees.values()), None)
            if event.kind == "tool.finished" and tree is not None:  # type: ignore[attr-defined]
                truth[event.seq] = picture(Path(tree.path))  # type: ignore[attr-defined]

        session.read(lambda core: core.log.on_durable(look_at))
        handle = start(session, steps=3, **chosen)
        assert end(handle).status == "budget"
        tree = session.read(lambda core: next(iter(core.workspace_state.worktrees.values())))
        git_dir = session.call(lambda core: core.git(handle.number))
        folder, events = session.folder, session.events()
    first = only(events, "file.changed")[0].seq
    at = next(e.seq for e in events if e.kind == "tool.finished" and e.seq > first)
    return folder, git_dir.common_dir, handle.number, at, truth[at], picture(Path(tree.path)), Path(tree.path)


@pytest.fixture(scope="module", params=["head", "dirty", "shadow"] if LONG else ["head"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("killed")
    root, album = folder / "world", folder / "album"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSECODE_HOME", str(root / "home"))
        told = tell(root, request.param)
        victim = Victim(dict(os.environ))
    copy_tree(root, album)
    try:
        yield Scene(root, album, victim, *told)
    finally:
        victim.close()


@pytest.fixture(autouse=True)
def _home(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSECODE_HOME", str(scene.home))


def tree_of(session: Session) -> Path:
    return Path(session.read(lambda core: next(iter(core.workspace_state.worktrees.values()))).path)


def check_fork(scene: Scene, session: Session) -> None:
    """It is whole: settled, with the files of the event in a worktree of its own."""
    assert picture(tree_of(session)) == scene.truth
    assert session.id in str(tree_of(session))
    assert len(only(session.events(scene.at), "session.settled")) == 1


def check_proof(folder: Path) -> None:
    proof = prove(folder)
    assert proof.ok, proof.problem


def mend(scene: Scene, name: str) -> None:
    """Resumed, its goal is met."""
    with ModelServer(Steps([EDIT, DONE])) as server, session_on(server.base_url, scene.repo, resume=name) as session:
        handle = session.handle(scene.goal)
        handle.edit(steps=20)
        handle.resume()
        result = end(handle)
        assert result.met, result.why
        folder = session.folder
    assert (scene.repo / "answer.txt").read_text() == "right\n"
    check_proof(folder)


def check_parent(scene: Scene, before: tuple[object, ...], kept: set[str]) -> None:
    assert scene.users() == before
    assert scene.snapshots() >= kept
    assert picture(scene.tree) == scene.now


def check_killed(scene: Scene, rewind: bool, before: tuple[object, ...], kept: set[str], mends: bool) -> None:
    """What a kill left: the parent as it was; a fork that is whole, or listed as half made; and all can be redone."""
    entries = scene.entries()
    parent = entries.pop(scene.source.name)
    check_parent(scene, before, kept)
    made = [entry for entry in entries.values() if entry.state != "half made"]
    half = [entry for entry in entries.values() if entry.state == "half made"]
    assert len(entries) <= 1
    if rewind:
        # Before or after: one of the two goes on.
        assert [entry.id for entry in made] == ([parent.rewound_to] if parent.rewound_to else [])
    for line in scene.listed():
        assert line.startswith((scene.source.name, *entries)), line
    if mends:
        scene.reclaim()
        check_parent(scene, before, kept)
    with open_session(scene.repo, resume="last", settings=settings(NOWHERE), effects=Hurried()) as session:
        assert session.id == (made[0].id if made else parent.id)
    check_parent(scene, before, kept)
    for entry in half:
        if rewind:
            with pytest.raises(UsageProblem, match="cut off before it took place"):
                open_session(scene.repo, resume=entry.id, settings=settings(NOWHERE), effects=Hurried())
        else:
            with session_on(NOWHERE, scene.repo, resume=entry.id) as session:
                check_fork(scene, session)
            check_proof(entry.folder)
            assert scene.entries()[entry.id].state == "closed"
    for entry in made:
        with session_on(NOWHERE, scene.repo, resume=entry.id) as session:
            check_fork(scene, session)
        check_proof(entry.folder)
    # And once more.
    again = fork_session(scene.source, scene.at, settings=settings(NOWHERE), effects=Hurried())
    if rewind and not made:
        again.close()
        with session_on(NOWHERE, scene.repo, resume=parent.id) as session:
            again = session.rewind(scene.at, effects=Hurried())
        assert scene.entries()[parent.id].rewound_to == again.id
    with again:
        check_fork(scene, again)
    assert scene.entries()[again.id].state == "closed"
    check_parent(scene, before, kept)
    check_proof(again.folder)
    check_proof(scene.source)
    if mends:
        mend(scene, (half if half and not rewind else made or [again])[0].id)
        if scene.users()[1] != before[1]:
            names = {ref.split()[0] for ref in before[1]}  # type: ignore[attr-defined]
            assert names <= {ref.split()[0] for ref in scene.users()[1]}  # type: ignore[attr-defined]
        assert picture(scene.tree) == scene.now


def journal_of(scene: Scene) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((scene.source / "journal").iterdir()))


@pytest.mark.crash
@pytest.mark.skipif(not LONG, reason="minutes: run by make crash")
@pytest.mark.parametrize("rewind", [False, True], ids=["fork", "rewind"])
@pytest.mark.timeout(7200)
def test_a_kill_at_any_step_leaves_the_parent_and_a_fork_that_is_whole_or_said_to_be_half_made(
    scene: Scene, rewind: bool, rng: random.Random
) -> None:
    killed, names = scene.kill(rewind, 0)
    assert not killed
    assert any(name.startswith("during git") for name in names)
    failures = []
    chosen = [last for last in range(1, len(names) + 1) if within(last)]
    chosen = some(chosen, rng, lambda last: names[last - 1])
    for last in chosen:
        try:
            one(scene, rewind, last)
        except Exception as error:
            error.add_note(f"killed at step {last}, {names[last - 1 : last]}")
            failures.append(error)
            if len(failures) == 20:
                break
    print(f"\n{'rewind' if rewind else 'fork'}: {len(names)} steps, {len(chosen)} tried")
    if failures:
        raise ExceptionGroup(f"{len(failures)} steps failed", failures)


def one(scene: Scene, rewind: bool, last: int) -> None:
    """A child is killed at step `last`, or has come to its end before."""
    scene.restore()
    before, kept = scene.users(), scene.snapshots()
    print_of, journal = fingerprint(scene.source), journal_of(scene)
    scene.kill(rewind, last)
    assert rewind or fingerprint(scene.source) == print_of
    check_killed(scene, rewind, before, kept, last % MEND_EVERY == 0)
    assert journal_of(scene).startswith(journal)


@pytest.mark.skipif(LONG, reason="one of the steps that are all tried")
def test_a_kill_at_some_step_leaves_the_parent_as_it_was(scene: Scene, rng: random.Random) -> None:
    rewind, last = rng.random() < 0.5, rng.randrange(40, 90)
    print(f"{'rewind' if rewind else 'fork'}, step {last}")
    one(scene, rewind, last)
