"""The agents' worktrees as the user deals with them: listed, removed once nothing is lost by it, set aside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from musecode_jupyter.agents.landing.tools import HARNESS
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import GitError, MuseError, UsageProblem
from musecode_jupyter.session.repository import find_repository
from musecode_jupyter.session.store import list_sessions, worktrees_dir
from musecode_jupyter.workspace import survey
from musecode_jupyter.workspace.git import Change, Git
from musecode_jupyter.workspace.survey import Surveyed

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

LISTED = "`%muse worktrees` or `jupyter musecode worktrees` lists them"
NONE = "There are no worktrees of agents on this repository."


@dataclass(frozen=True)
class Trees:
    """The worktrees of agents on the repository `git`, of all sessions below `home`.

    `session` is the id of the open session, if there is one, and `busy` says whether it works now. `own` has the seqs
    of its worktrees by their path.
    """

    git: Git
    home: Path
    session: str = ""
    busy: bool = False
    own: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    async def of(cls, workspace: Path, home: Path, effects: Effects) -> Trees:
        """Those on the repository of `workspace`, where no session is open; GitError if there is none."""
        return cls((await find_repository(workspace, home, effects))[0], home)

    @property
    def folder(self) -> Path:
        """Where they lie."""
        return worktrees_dir(self.home)

    async def found(self) -> list[Surveyed]:
        """All of them, with what they hold."""
        return await survey.survey(self.git, self.folder)

    async def text(self) -> str:
        """All of them, a line each."""
        return "\n".join([self._line(tree) for tree in await self.found()]) or NONE

    async def named(self, name: str) -> Surveyed:
        """The one with this name or path; UsageProblem if there is none."""
        path = await self.git.effects.disk(_resolved, name)
        for tree in await self.found():
            if name == tree.path.name or path == tree.path:
                return tree
        raise UsageProblem(f"There is no worktree {name}; {LISTED}.")

    async def reclaim(self) -> tuple[list[Surveyed], list[str]]:
        """Remove all in which nobody works and that hold nothing of their own; and a line for each of the others."""
        found = await self.found()
        in_use = await self._in_use(found)
        removed, kept = await survey.reclaim(self.git, [tree for tree in found if tree.path not in in_use])
        lines = []
        for tree in found:
            why = in_use.get(tree.path) or tree.holds or kept.get(tree.path)
            if tree.path not in removed:
                lines.append(f"{tree.path.name} is kept: {why}")
        return [tree for tree in found if tree.path in removed], lines

    async def take(self, tree: Surveyed) -> str:
        """Remove `tree` if it holds nothing of its own; returns why it is kept, or nothing."""
        await self.require_idle(tree)
        _, kept = await survey.reclaim(self.git, [tree])
        return (tree.holds or kept[tree.path]) if kept else ""

    async def discard(self, tree: Surveyed) -> str:
        """Remove `tree` though it holds something, as the user agreed; returns the ref that keeps what it held."""
        await self.require_idle(tree)
        now = await self.named(str(tree.path))
        if now != tree:
            raise GitError(f"{tree.path} is not any more as it was shown ({now.holds}); it is kept.")
        return await survey.discard(self.git, tree, f"removed/{tree.path.name}-{self.git.effects.now():%Y%m%d-%H%M%S}")

    async def set_aside(self, tree: Surveyed, why: str) -> Path:
        """Move `tree` out of the way, with all that it holds; returns where it is."""
        await self.require_idle(tree)
        return await survey.quarantine(self.git, tree.path, self.folder, why)

    async def require_idle(self, tree: Surveyed) -> None:
        """Raise UsageProblem if a session may work in `tree` now."""
        why = (await self._in_use([tree])).get(tree.path)
        if why:
            raise UsageProblem(f"{tree.path.name} is kept: {why}")

    async def _in_use(self, trees: list[Surveyed]) -> dict[Path, str]:
        # Asked after the worktrees: whoever made one of them was open before it.
        entries = await self.git.effects.disk(list_sessions, self.home)
        live = {entry.id for entry in entries if entry.state == "live" and (entry.id != self.session or self.busy)}
        owner = {tree.path: next((one for one in live if tree.path.name.startswith(f"{one}-")), "") for tree in trees}
        return {path: f"session {one} works there" for path, one in owner.items() if one}

    def _line(self, tree: Surveyed) -> str:
        mine = " (this session's)" if str(tree.path) in self.own else ""
        branch = f" on {tree.branch}" if tree.branch else ""
        return f"{tree.path.name}: {tree.state}{branch}{mine}: {tree.holds or 'nothing that is not landed'}"


def reclaimed_text(removed: list[Surveyed], kept: list[str]) -> str:
    """What became of all of them, a line each."""
    lines = [f"{tree.path.name} is removed." for tree in removed] + kept
    return "\n".join(lines) or NONE


def aside_text(tree: Surveyed, place: Path) -> str:
    """What is said of one that was set aside, with the way back."""
    return f"{tree.path.name} is set aside at {place}; `git worktree unlock {place}` gives it free again."


def removed_text(tree: Surveyed, ref: str) -> str:
    """What is said of one that was removed with what it held."""
    return f"{tree.path.name} is removed; {ref} keeps what it held."


async def trees_of(core: SessionCore) -> Trees:
    """Those on the repository of an open session."""
    own = {tree.path: seq for seq, tree in core.workspace_state.worktrees.items()}
    return Trees(await core.git(), core.home, core.id, core.busy or core.starting, own)


async def listed(core: SessionCore) -> str:
    """All of them, a line each."""
    return await (await trees_of(core)).text()


async def reclaim(core: SessionCore, name: str | None) -> str:
    """Remove what holds nothing of its own: all of it, or the one of this name; says what became of each.

    One that holds something is asked about, and the answer is not waited for; where nobody can be asked, it is kept.

    Raises
    ------
    UsageProblem
        There is none of this name, a session works in it, or it is kept.
    GitError
        Git fails.
    """
    trees = await trees_of(core)
    if name is None:
        removed, kept = await trees.reclaim()
        for tree in removed:
            await _forget(core, trees, tree, "HEAD")
        return reclaimed_text(removed, kept)
    tree = await trees.named(name)
    why = await trees.take(tree)
    if not why:
        await _forget(core, trees, tree, "HEAD")
        return f"{tree.path.name} is removed."
    if core.policy.landing(None).decision != "ask":
        raise UsageProblem(
            f"{tree.path.name} is kept: {why}. Nobody can be asked here: `jupyter musecode worktrees reclaim "
            f"{tree.path.name} --discard` removes it and keeps what it holds as a snapshot."
        )
    core.begin(_asked(core, trees, tree), f"the question about {tree.path.name}")
    return f"{tree.path.name} holds something: {why}. `%approve` removes it all the same, `%deny` leaves it."


async def set_aside(core: SessionCore, name: str, why: str) -> str:
    """Move the worktree of this name out of the way, with all that it holds; says where it is."""
    trees = await trees_of(core)
    tree = await trees.named(name)
    place = await trees.set_aside(tree, why)
    return aside_text(tree, place)


async def _asked(core: SessionCore, trees: Trees, tree: Surveyed) -> None:
    ignored = [change.path for change in await _changes(trees, tree) if change.ignored]
    shown = {
        "path": str(tree.path),
        "holds": tree.describe(),
        "what happens": "the folder is deleted; its commits and files are kept as a snapshot on a private ref",
        "deleted with it, since git ignores it": ignored[:20],
    }
    answer = await core.approvals.ask("remove a worktree", f"worktree {tree.path.name}", shown, agent=HARNESS)
    if not answer.granted:
        return
    try:
        ref = await trees.discard(tree)
    except MuseError as problem:
        core.notices.append(str(problem))
        return
    await _forget(core, trees, tree, ref)
    core.notices.append(removed_text(tree, ref))


async def _changes(trees: Trees, tree: Surveyed) -> list[Change]:
    try:
        return await (await Git.at_worktree(tree.path, trees.git.effects)).changes(ignored=True)
    except GitError:
        return []


async def _forget(core: SessionCore, trees: Trees, tree: Surveyed, contained_in: str) -> None:
    """Write down that a worktree of this session is gone."""
    seq = trees.own.get(str(tree.path))
    if seq is not None:
        done = {"worktree": seq, "contained_in": contained_in}
        await core.log.append("worktree.removed", done, agent=HARNESS, cause=(seq,))


def _resolved(name: str) -> Path:
    return Path(name).expanduser().resolve()
