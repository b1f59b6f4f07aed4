"""Freezes a goal's typed clauses at its start, with what of them can be decided at once, and hides held-out files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from musecode_jupyter.log.blobs import digest_of
from musecode_jupyter.log.goal_kinds import GoalClauses, Holdout
from musecode_jupyter.runtime.errors import GitError, UsageProblem
from musecode_jupyter.skills.clause_state import ClausesRecord, ClausesState
from musecode_jupyter.skills.clauses import ClauseOptions, parse_holdout, parse_metric, parse_reserve
from musecode_jupyter.workspace.git import Git

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

MOST_HELD = 64 * 1024 * 1024
"""Bytes that a held-out file may have: it is kept in the session's folder."""


@dataclass(frozen=True)
class Frozen:
    """Clauses as events hold them, and the blobs that go with the event."""

    clauses: GoalClauses = field(default_factory=GoalClauses)
    blobs: dict[str, bytes] = field(default_factory=dict)


def clauses_of(core: SessionCore, goal: int) -> ClausesRecord:
    """The clauses of a goal as folded."""
    state = core.log.state("clauses")
    assert isinstance(state, ClausesState)
    return state.goals[goal]


def filled(options: ClauseOptions, before: GoalClauses) -> ClauseOptions:
    """The options with what they leave out as it was before, but for held-out files."""
    return ClauseOptions(
        options.forbid or tuple(before.forbid),
        options.holdout,
        options.metric or tuple(each.text for each in before.metrics),
        options.measure or before.measure or None,
        options.reserve or f"{100 * before.reserve:g}%",
    )


def kept(core: SessionCore, goal: int, frozen: Frozen, options: ClauseOptions) -> Frozen:
    """The frozen clauses of an edit, with what it leaves out as it was: held-out files, and commits of baselines."""
    before = clauses_of(core, goal)
    changed: dict[str, object] = {}
    blobs = dict(frozen.blobs)
    if not options.metric:
        changed["metrics"] = before.clauses.metrics
    if not options.holdout and before.clauses.holdout:
        known = core.log.get(before.where).blobs
        changed["holdout"] = before.clauses.holdout
        blobs |= {each.blob: core.log.blob(known[each.blob].digest) for each in before.clauses.holdout}
    return Frozen(frozen.clauses.model_copy(update=changed), blobs)


async def freeze(core: SessionCore, options: ClauseOptions, git: Git | None) -> Frozen:
    """The clauses with commits and contents as they are now.

    Raises UsageProblem if a baseline is no commit, a held-out file is not there or could be seen by agents, or the
    model or the folder cannot have such clauses.
    """
    if not options.given:
        return Frozen()
    metrics = [parse_metric(text) for text in options.metric]
    if core.gate.info.profile == "guided" and (metrics or options.holdout):
        raise UsageProblem(
            f"{core.gate.model} works along a failing check that it can run: leave --metric and --holdout out, or "
            "choose another model."
        )
    if metrics and git is None:
        raise UsageProblem("--metric compares commits, and there is none here: run `git init` and commit first.")
    frozen = []
    for metric in metrics:
        commit = "" if git is None or not metric.baseline else await _commit(git, metric.text, metric.baseline)
        frozen.append(metric.model_copy(update={"commit": commit}))
    held, blobs = await _held(core, options, git)
    return Frozen(
        GoalClauses(
            forbid=[pattern.strip() for pattern in options.forbid],
            holdout=held,
            metrics=frozen,
            measure=(options.measure or "").strip(),
            reserve=0.0 if options.reserve is None else parse_reserve(options.reserve),
        ),
        blobs,
    )


async def _commit(git: Git, text: str, name: str) -> str:
    try:
        return await git.resolve(name)
    except GitError:
        raise UsageProblem(f"--metric {text!r}: there is no commit {name} here.") from None


async def _held(core: SessionCore, options: ClauseOptions, git: Git | None) -> tuple[list[Holdout], dict[str, bytes]]:
    if not options.holdout:
        return [], {}
    if core.sandbox.name != "bubblewrap":
        raise UsageProblem(
            "--holdout needs the bubblewrap sandbox: without it, commands of agents could read the file "
            f"({core.sandbox.why or 'commands run plainly'})."
        )
    held, blobs = [], {}
    inside = [core.workspace, *([] if git is None else [git.root, git.common_dir])]
    for number, text in enumerate(options.holdout, 1):
        source, place = parse_holdout(text)
        path, content = await core.effects.disk(_read, core.workspace / source)
        if any(path.is_relative_to(folder) for folder in inside):
            raise UsageProblem(
                f"--holdout {text}: {path} lies in the folder in which agents read. Keep it outside, and give its "
                "place in the repository as FILE:PLACE."
            )
        if git is not None and place in await git.list_files():
            raise UsageProblem(
                f"--holdout {text}: the repository has {place} already, which agents can read. Give another place as "
                "FILE:PLACE."
            )
        blob = f"holdout{number}"
        blobs[blob] = content
        held.append(
            Holdout(source=str(path), place=place, blob=blob, digest=digest_of(content).digest, size=len(content))
        )
    if len({each.place for each in held}) < len(held):
        raise UsageProblem("Two --holdout files have one place: give them as FILE:PLACE.")
    return held, blobs


def _read(path: Path) -> tuple[Path, bytes]:
    try:
        real = path.resolve(strict=True)
        if not real.is_file():
            raise UsageProblem(f"--holdout {path}: it is no file.")
        if real.stat().st_size > MOST_HELD:
            raise UsageProblem(f"--holdout {path}: it is larger than {MOST_HELD // 2**20} MiB.")
        return real, real.read_bytes()
    except OSError as error:
        raise UsageProblem(f"--holdout {path}: {error.strerror}.") from None


def hide_held(core: SessionCore) -> None:
    """Hide the held-out files of all goals of the session from every command of agents."""
    state = core.log.state("clauses")
    assert isinstance(state, ClausesState)
    core.sandbox.hide(Path(each.source) for goal in state.goals.values() for each in goal.clauses.holdout)
