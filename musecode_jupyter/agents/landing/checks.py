"""Runs commands on a clean checkout of exactly one commit, and says in words and records how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from musecode_jupyter.agents.landing.tools import HARNESS, LandingTools
from musecode_jupyter.log.payload import Check
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
    lfs = needs is None or await large_files(tools.git, needs)
    tree = await checkout_detached(tools.git, path, commit, submodules=tuple(needs or ()), lfs=lfs)
    if tools.share:
        await share(tools.git, tree, tools.share)
    return place_of(tools, path, None)


async def work_place(
    tools: LandingTools, path: Path, branch: str, base: str, needs: Sequence[str] | None = None
) -> None:
    """A worktree for an agent at `path`, on `branch` from `base`, with what it needs as for `clean_place`."""
    lfs = needs is None or await large_files(tools.git, needs)
    tree = await create_worktree(tools.git, path, branch, base, submodules=tuple(needs or ()), lfs=lfs)
    if tools.share:
        await share(tools.git, tree, tools.share)


async def run_commands(
    tools: LandingTools, commands: Sequence[str], place: Place, purpose: str, cause: int
) -> list[CallResult]:
    """Run the commands one after the other in `place`; they are the user's own, so none of them needs an approval."""
    return [
        await tools.executor.run_one(
            FormedCall("run", {"command": command}, "harness", purpose=purpose),
            agent=HARNESS,
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
