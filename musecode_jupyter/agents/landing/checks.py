"""Runs commands on a clean checkout of exactly one commit, and says in words and records how they ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from musecode_jupyter.agents.landing.tools import HARNESS, LandingTools
from musecode_jupyter.log.payload import Check
from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.tools.executor import CallResult, FormedCall
from musecode_jupyter.tools.registry import Place
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.provision import large_files
from musecode_jupyter.workspace.sharing import share
from musecode_jupyter.workspace.worktrees import checkout_detached, create_worktree

REPORT_CHARS = 6_000


def place_of(tools: LandingTools, root: Path, worktree: int | None) -> Place:
    """The checkout at `root` as a place in which tools act; `worktree` is its seq if it is an agent's own."""

    async def list_files() -> list[str]:
        return await (await Git.at_worktree(root, tools.effects)).list_files()

    return Place(root, worktree, list_files, tools.git.root)


async def clean_place(tools: LandingTools, path: Path, commit: str, needs: Sequence[str] | None = None) -> Place:
    """A checkout of `commit` at `path` that holds nothing but its tree: no left-over file can make a check pass.

    And what the user's rule shares. Submodules are checked out where `needs`, paths and patterns, touch them, and
    large files (git-lfs) likewise; without `needs` the latter as git does it.
    """
    await _check_out(tools.git, path, commit, needs, partial(_share, tools))
    return place_of(tools, path, None)


@answered
async def _check_out(
    git: Git, path: Path, commit: str, needs: Sequence[str] | None, share_with: Callable[[Git], Awaitable[None]]
) -> None:
    lfs = needs is None or await large_files(git, needs)
    await share_with(await checkout_detached(git, path, commit, submodules=tuple(needs or ()), lfs=lfs))


async def _share(tools: LandingTools, tree: Git) -> None:
    if tools.share:
        await share(tools.git, tree, tools.share)


async def work_place(
    tools: LandingTools, path: Path, branch: str, base: str, needs: Sequence[str] | None = None
) -> None:
    """A worktree for an agent at `path`, on `branch` from `base`, with what it needs as for `clean_place`."""
    await _make_worktree(tools.git, path, branch, base, needs, partial(_share, tools))


@answered
async def _make_worktree(
    git: Git,
    path: Path,
    branch: str,
    base: str,
    needs: Sequence[str] | None,
    share_with: Callable[[Git], Awaitable[None]],
) -> None:
    lfs = needs is None or await large_files(git, needs)
    await share_with(await create_worktree(git, path, branch, base, submodules=tuple(needs or ()), lfs=lfs))


@answered
async def is_there(git: Git, path: Path) -> bool:
    """Whether there is a folder at `path`."""
    return await git.effects.disk(path.is_dir)


async def run_commands(
    tools: LandingTools,
    commands: Sequence[str],
    place: Place,
    purpose: str,
    cause: int,
    agent: str = HARNESS,
    seconds: float | None = None,
) -> list[CallResult]:
    """Run the commands one after the other in `place`; they are the user's own, so none of them needs an approval.

    Each may take as long as any command of an agent, or `seconds`.
    """
    limit = {} if seconds is None else {"timeout": seconds}
    return [
        await tools.executor.run_one(
            FormedCall("run", {"command": command, **limit}, "harness", purpose=purpose),
            agent=agent,
            turn=0,
            place=place,
            typed=frozenset(commands),
            cause=cause,
        )
        for command in commands
    ]


def as_checks(commands: Sequence[str], results: Sequence[CallResult]) -> list[dict[str, Any]]:
    """The results as events hold them."""
    return [
        Check(command=command, call=r.call, passed=r.ok, exit=r.exit, seconds=r.seconds).model_dump()
        for command, r in zip(commands, results, strict=True)
    ]


def shorten(text: str, limit: int = REPORT_CHARS) -> str:
    """At most about `limit` characters of `text`: a third of them from its beginning, the rest from its end."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 3]}\n[...]\n{text[-2 * limit // 3 :]}"
