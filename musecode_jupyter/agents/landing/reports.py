"""What a worker is told of a merge that bounced: conflicting regions, failing output, what the target changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from musecode_jupyter.agents.landing.checks import shorten
from musecode_jupyter.agents.landing.work import Work
from musecode_jupyter.tools.executor import CallResult
from musecode_jupyter.workspace.conflicts import Conflict, conflicts_between
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.worktrees import some_names

MAX_CONFLICTS = 8
REGION_CHARS = 3_000
REGIONS_CHARS = 10_000
DIFF_CHARS = 4_000
OUTPUT_CHARS = 6_000
NAMES = 20


async def conflict_report(git: Git, work: Work, target: str, private: Callable[[str], bool]) -> str:
    """The regions in which `work` conflicts with `target`, and what the target changed in those files.

    Those that are `private` are named, and nothing of them is quoted: a worker that may see them can read them.
    """
    found = await conflicts_between(git, target, work.commit, ours=work.branch, theirs="your work")
    names = [conflict.path for conflict in found]
    shown = found[:MAX_CONFLICTS]
    room = REGIONS_CHARS // max(1, len(shown))
    parts = [
        f"Your work does not merge with {work.branch}, which has moved on: it conflicts in {some_names(names, NAMES)}. "
        f"Do it again upon {work.branch} as it is now, so that both changes are kept.",
        *(
            _conflict_text(conflict, min(room, REGION_CHARS))
            if not private(conflict.path)
            else f"Conflict in {conflict.path}, which is private and not shown here"
            for conflict in shown
        ),
    ]
    if len(found) > len(shown):
        parts.append(f"{len(found) - len(shown)} more files conflict.")
    open_names = [name for name in names if not private(name)]
    diff = await git.diff_text(work.base, target, open_names) if open_names else ""
    if diff:
        parts.append(f"What {work.branch} changed in these files since your work began:\n{shorten(diff, DIFF_CHARS)}")
    return "\n\n".join([*parts, *await target_news(git, work, target, ())])


def _conflict_text(conflict: Conflict, room: int) -> str:
    said = "\n".join(conflict.said) or f"Conflict in {conflict.path}"
    return "\n".join([said, shorten("\n[...]\n".join(conflict.regions), room)]) if conflict.regions else said


async def target_news(git: Git, work: Work, target: str, suspect: Sequence[str]) -> list[str]:
    """What changed on the target since the work's base, in a sentence; nothing if nothing did."""
    changed = await git.diff_paths(work.base, target)
    if not changed:
        return []
    news = f"Since your work began, {work.branch} changed {some_names(changed, NAMES)}."
    if suspect:
        news += f" You had read {some_names(list(suspect), NAMES)} before: read them again before you rely on them."
    return [news]


async def failure_report(
    git: Git, work: Work, target: str, suspect: Sequence[str], failed: Sequence[tuple[str, CallResult]], purpose: str
) -> str:
    """Output of the commands that fail on the merge, and what the target changed."""
    room = OUTPUT_CHARS // max(1, len(failed))
    whose = "" if purpose == "acceptance" else ", which another task needs that landed before,"
    parts = [
        f"`{command}`{whose} does not pass on a clean checkout of your work merged with {work.branch}:\n"
        f"{shorten(result.output, room)}"
        for command, result in failed
    ]
    return "\n\n".join([*parts, *await target_news(git, work, target, suspect)])
