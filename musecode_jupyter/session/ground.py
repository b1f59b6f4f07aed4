"""Settles what a goal starts from before its work begins: asks the user where that is theirs to say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.session.repository import unborn_root
from musecode_jupyter.skills.ground_state import Ground
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.shadow import half_moved, keep_files, open_shadow, shadow_path
from musecode_jupyter.workspace.snapshots import SNAPSHOT_PREFIX, take_snapshot

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

SHADOW = "make a private repository"
DIRTY = "start from your uncommitted files"
# Jupyter's own copies of notebooks: nobody means them by changes.
_CHECKPOINTS = ".ipynb_checkpoints"


def shadow_text(root: Path) -> str:
    """What the user is told where a private repository is made."""
    return f"{root} is in no git repository: a private one outside it keeps its versions."


async def own_changes(core: SessionCore, git: Git) -> list[str]:
    """What the user has changed and not committed, but for the notebooks that are open and their checkpoints."""
    changed = [path for path in await git.status() if _CHECKPOINTS not in path.split("/")]
    if not changed:
        return []
    documents = core.open_documents()
    return await core.effects.disk(_without, git.root, changed, documents)


async def settle(core: SessionCore, goal: int) -> Git | None:
    """The repository in which `goal` works, with all settled that it starts from; None if it was stopped instead.

    Raises
    ------
    UsageProblem, GitError
        The repository cannot be made, or the files cannot be kept as they are.
    """
    ground = core.ground(goal)
    if ground.settled:
        return await core.git(goal)
    if ground.shadow:
        return await _settle_shadow(core, goal)
    git = await core.git(goal)
    return git if await _settle_start(core, goal, ground, git) else None


async def make_shadow(core: SessionCore, root: Path) -> Git:
    """The private repository of `root`, made if there is none, with the files as they are now."""
    git = await open_shadow(root, core.home, core.effects, make=True)
    await take_in(core, git)
    return git


async def take_in(core: SessionCore, git: Git) -> None:
    """Commit what the user changed in the folder of the private repository `git`, unless a move there was cut off."""
    merges = core.merges.merges.values()
    # What a landing has half written, of this session or another one, would be taken for the user's.
    if not any(merge.state in {"landing", "undoing"} for merge in merges) and not await half_moved(git):
        await keep_files(git)


async def _settle_shadow(core: SessionCore, goal: int) -> Git | None:
    root = await unborn_root(core.workspace, core.effects) or core.workspace
    home: Path = await core.effects.disk(core.home.resolve)
    shown = {
        "folder": str(root),
        "why": "it is in no git repository with a commit, so nothing could keep its versions or be landed on",
        "private repository": str(shadow_path(home, root)),
        "what happens": "its files are copied there; into the folder nothing is written but work that lands",
    }
    if not await _granted(core, goal, SHADOW, shown):
        why = (
            f"{root} is in no git repository, and a private one was not wanted. Run `git init` there and make a first "
            "commit, then resume."
        )
        await core.stop_goal(goal, "blocked", why)
        return None
    git = await make_shadow(core, root)
    head = await git.head()
    await core.log.append(
        "goal.based",
        {"goal": goal, "base": head.commit, "branch": head.branch},
        agent=core.record(goal).agent,
        cause=(goal,),
    )
    return git


async def _settle_start(core: SessionCore, goal: int, ground: Ground, git: Git) -> bool:
    record = core.record(goal)
    data: dict[str, object] = {"goal": goal, "base": record.base, "branch": record.branch}
    if ground.start == "dirty" or await _wants_files(core, goal, git):
        head = await git.head()
        if head.branch != record.branch:
            raise UsageProblem(
                f"The work is to start from your files on {record.branch}, and HEAD is elsewhere now: "
                f"`git switch {record.branch}`, then resume."
            )
        # One that a crash left behind keeps its name, and may hold other files.
        name = f"{core.id}/{goal}-{core.log.last_seq}"
        taken = await take_snapshot(git, name)
        data["base"] = taken.head
        if taken.dirty:
            files = await git.diff_paths(taken.head, taken.commit)
            data |= {"snapshot": taken.commit, "kept": SNAPSHOT_PREFIX + name, "files": files}
        data["left_out"] = list(taken.left_out)
    await core.log.append("goal.based", data, agent=record.agent, cause=(goal,))
    return True


async def _wants_files(core: SessionCore, goal: int, git: Git) -> bool:
    record = core.record(goal)
    shown = {
        "files": await own_changes(core, git),
        "if you approve": "the work starts from your files as they are; they stay uncommitted, and only what the agent "
        f"changes lands on {record.branch}",
        "if you deny": f"it starts from your last commit, {record.base[:10]}, without these changes",
        "from now on": "--base dirty or --base head says so without a question",
    }
    return await _granted(core, goal, DIRTY, shown)


async def _granted(core: SessionCore, goal: int, action: str, shown: Mapping[str, object]) -> bool:
    if core.policy.landing(None).decision != "ask":
        return False  # nobody can be asked any more
    agent = core.record(goal).agent
    waits = {"state": "waiting", "why": "for an answer before it begins"}
    try:
        await core.log.append("agent.state", waits, agent=agent)
        answer = await core.approvals.ask(action, f"goal {goal}", {"goal": goal, **shown}, agent=agent)
    finally:
        await core.log.append("agent.state", {"state": "idle", "why": ""}, agent=agent)
    return answer.granted


def _without(root: Path, names: list[str], documents: list[Path]) -> list[str]:
    open_now = {path.resolve() for path in documents}
    return [name for name in names if (root / name).resolve() not in open_now]
