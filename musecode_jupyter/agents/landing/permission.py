"""May verified work land? What of the user's is in the way, and what the user's rules or answer say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from musecode_jupyter.agents.landing.tools import LandingTools
from musecode_jupyter.guard.rules import LANDING, Rule
from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.tools.notebook import is_document
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.landing import holders, overlaps
from musecode_jupyter.workspace.worktrees import some_names


@dataclass(frozen=True)
class Candidate:
    """A move of the branch `ref` from `old` to `new` that is asked for; `kept` is the branch that has the work."""

    ref: str
    old: str
    new: str
    agent: str
    kept: str

    @property
    def branch(self) -> str:
        """The short name of `ref`."""
        return self.ref.removeprefix("refs/heads/")


@dataclass(frozen=True)
class Obstacle:
    """Something of the user's that a move of the branch would touch, as a clause."""

    kind: Literal["changes", "open"]
    what: str


@dataclass(frozen=True)
class Refusal:
    """Why it may not land: `why` for the record, `told` for the user, with what to do about it."""

    why: str
    told: str


def land_rule(branch: str) -> str:
    """Name of the session rule that lets work land on `branch` without a question."""
    return f"{LANDING}{branch}"


def branch_gone(branch: str, base: str) -> str:
    """What is said where the branch to land on is not there any more; the work began at `base`."""
    return (
        f"The branch {branch}, on which the work is to land, is gone: bring it back, for example with "
        f"`git branch {branch} {base[:10]}`, then resume."
    )


async def obstacle(tools: LandingTools, ref: str, old: str, new: str) -> Obstacle | None:
    """What is in the way of moving `ref` from `old` to `new` in the checkouts that have it, and in open notebooks.

    Raises
    ------
    GitError
        A merge or the like is under way in such a checkout.
    """
    return await _obstacle(tools.git, tools.open_documents, ref, old, new)


@answered
async def _obstacle(
    git: Git, open_documents: Callable[[], list[Path]], ref: str, old: str, new: str
) -> Obstacle | None:
    clauses = [
        f"{'your checkout' if root == git.root else f'the checkout {root}'} has changes of its own in "
        f"{', '.join(paths)}"
        for root, paths in (await overlaps(git, ref, old, new)).items()
    ]
    if clauses:
        return Obstacle("changes", ", and ".join(clauses))
    documents = open_documents()
    if not documents:
        return None
    roots = [tree.path for tree in await holders(git, ref)]
    changed = await git.diff_paths(old, new)
    open_now = await git.effects.disk(_same_files, changed, roots, documents)
    return Obstacle("open", some_names(open_now)) if open_now else None


async def refusal(tools: LandingTools, asked: Candidate, card: Mapping[str, Any]) -> Refusal | None:
    """Why `asked` may not land now, or None if it may; asks the user if the rules leave it to them.

    `card` is shown with the question, beside branch, commits, files and diff.
    """
    found = await obstacle(tools, asked.ref, asked.old, asked.new)
    if found is not None and found.kind == "changes":
        why = f"Verified, but {found.what}."
        return Refusal(why, f"{why} Nothing was touched; the work is on branch {asked.kept}. {tools.remedy}")
    if found is not None:
        why = f"Verified, but {found.what}, which the work changes, is open in a notebook."
        return Refusal(
            why,
            f"{why} Its next save would undo the change. Nothing was touched; the work is on branch {asked.kept}. "
            "Save and close it, or merge the branch by hand, then resume.",
        )
    branch, git = asked.branch, tools.git
    verdict = tools.executor.policy.landing(await tools.approvals.rules.covers("landing", branch))
    granted, why = verdict.decision == "allow", verdict.rule
    if verdict.decision == "ask":
        shown = {
            "branch": branch,
            "from": asked.old,
            "to": asked.new,
            "files": await git.diff_paths(asked.old, asked.new),
            "diff": await git.diff_text(asked.old, asked.new),
            **card,
        }
        await _agent_state(tools, asked.agent, "waiting", "for approval to land")
        offer = Rule(form="landing", text=branch)
        try:
            answer = await tools.approvals.ask("land", land_rule(branch), shown, agent=asked.agent, offer=offer)
        finally:
            await _agent_state(tools, asked.agent, "idle", "")
        granted, why = answer.granted, answer.why or "the user's answer"
    if granted:
        return None
    return Refusal(
        f"Landing was denied: {why}.",
        f"Verified, but landing on {branch} was denied ({why}). The work is on branch {asked.kept}.",
    )


async def _agent_state(tools: LandingTools, agent: str, state: str, why: str) -> None:
    await tools.log.append("agent.state", {"state": state, "why": why}, agent=agent)


def _same_files(changed: Sequence[str], roots: Sequence[Path], documents: Sequence[Path]) -> list[str]:
    found = []
    for path in changed:
        places = {(root / path).resolve() for root in roots}
        if any(is_document(document, places) for document in documents):
            found.append(path)
    return found
