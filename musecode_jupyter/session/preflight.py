"""What is looked at before a goal starts, so that a start that is refused writes, spends and leaves nothing."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from musecode_jupyter.agents.tasks.graph import TaskSpec
from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.guard.sandbox import Sandbox, choose
from musecode_jupyter.models.model_file import LocalModelFile
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ConfigurationError, NoRepository, UsageProblem
from musecode_jupyter.session.repository import find_repository, unborn_root
from musecode_jupyter.session.settings import Settings
from musecode_jupyter.session.store import sessions_dir, worktrees_dir
from musecode_jupyter.skills.clauses import ClauseOptions, check_options
from musecode_jupyter.skills.goal import branch_gone
from musecode_jupyter.skills.goal_state import GoalRecord
from musecode_jupyter.skills.limits import Limits
from musecode_jupyter.skills.verify_command import check_command
from musecode_jupyter.tools.environment import child_environment
from musecode_jupyter.workspace.git import Git, Head
from musecode_jupyter.workspace.shadow import require_suitable, shadows_dir
from musecode_jupyter.workspace.sharing import parse_share
from musecode_jupyter.workspace.worktrees import list_worktrees

RUNTIME_MISSING = (
    "the local model's runtime is not installed: run `pip install 'musecode-jupyter[local]'`, or choose another model"
)


MOST_WORKERS = 64

BASES = ("head", "dirty")
"""Where the work starts: from the user's last commit, or from their files as they are."""


@dataclass(frozen=True)
class GoalSpec:
    """What the user asked for. Limits: USD, tokens, tool calls, hours in which it runs, model calls (`steps`).

    With more than one of `workers`, the most that work side by side, or with `tasks` given, the goal is worked on as
    a graph of tasks. `shadow` lets a folder that is in no repository get a private one outside it. `base` is one of
    `BASES`: from the last commit, or from the files as they are; None asks where somebody can be asked. `draft` is the
    number of the draft whose clauses the user has confirmed, `plan` that of the plan whose tasks these are.
    """

    text: str
    verify: tuple[str, ...]
    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    hours: float | None = None
    steps: int | None = 200
    workers: int = 1
    tasks: tuple[TaskSpec, ...] = ()
    shadow: bool = False
    base: str | None = None
    clauses: ClauseOptions = field(default_factory=ClauseOptions)
    draft: int | None = None
    plan: int | None = None

    @property
    def limits(self) -> Limits:
        """The limits by themselves."""
        return Limits(self.usd, self.tokens, self.calls, self.hours, self.steps)


def clause_options(arguments: Any) -> ClauseOptions:
    """The options --forbid, --holdout, --metric, --measure and --reserve as parsed from a line."""
    return ClauseOptions(
        tuple(arguments.forbid),
        tuple(arguments.holdout),
        tuple(arguments.metric),
        arguments.measure,
        arguments.reserve,
    )


def graph_options(*, workers: int | None, tasks: str | None) -> dict[str, Any]:
    """The options --workers and --tasks as fields of `GoalSpec`; UsageProblem if the file cannot be used."""
    found: dict[str, Any] = {} if workers is None else {"workers": workers}
    if tasks is not None:
        path = Path(tasks).expanduser()
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageProblem(f"--tasks {tasks}: {error.strerror}.") from None
        except ValueError as error:
            raise UsageProblem(f"--tasks {tasks} is no JSON: {error}.") from None
        found["tasks"] = parse_tasks(raw)
        found.setdefault("workers", min(len(found["tasks"]), MOST_WORKERS))
    return found


@dataclass(frozen=True)
class Found:
    """Where a goal can work: `git` and its `head`, or neither if the private repository of `root` is to be made."""

    root: Path
    git: Git | None
    head: Head | None
    shadow: bool


async def check_goal(
    spec: GoalSpec,
    workspace: Path,
    settings: Settings,
    effects: Effects,
    *,
    may_ask: bool = False,
    decided: bool = True,
) -> Found:
    """Where the goal can work. With `may_ask`, a folder without a repository is fine if it could get a private one.

    Without `decided` what decides it is still to be said.

    Raises
    ------
    UsageProblem
        The goal has no text or no check that can run, a limit is none, HEAD is detached, or MUSECODE_HOME lies in the
        repository.
    NoCheckout, GitError
        The folder is no checkout with a commit, or git cannot be used.
    """
    if not spec.text.strip():
        raise UsageProblem('What is the goal? For example: %goal "make the tests pass" --verify "python -m pytest -q"')
    if decided:
        check_options(spec.clauses, spec.verify)
    if decided and not spec.verify and not spec.clauses.metric:
        raise UsageProblem(
            "A goal needs a check that decides it: add --verify 'COMMAND', for example 'python -m pytest -q'."
        )
    spec.limits.check()
    if not 1 <= spec.workers <= MOST_WORKERS:
        raise UsageProblem(f"--workers {spec.workers}: give a number from 1 to {MOST_WORKERS}.")
    _check_base(spec)
    found = await _find(spec, workspace, settings.home_or_default(), effects, may_ask=may_ask)
    if found.head is not None and found.head.branch is None:
        raise UsageProblem(_detached(found.root))
    if found.git is not None and not found.shadow:
        await _check_home(found.git, settings.home_or_default(), effects)
    await check_commands([*spec.verify, *([spec.clauses.measure] if spec.clauses.measure else [])], found.root, effects)
    path = child_environment(effects.environ())["PATH"]
    given = [(task.name, command) for task in spec.tasks for command in task.accept]
    for task, command in given:
        await effects.disk(check_command, command, found.root, path, task)
    return found


async def check_commands(commands: Sequence[str], root: Path, effects: Effects) -> None:
    """Raise UsageProblem if one of the commands plainly cannot run in `root`."""
    path = child_environment(effects.environ())["PATH"]
    for command in commands:
        await effects.disk(check_command, command, root, path, "")


def _check_base(spec: GoalSpec) -> None:
    if spec.base not in (None, *BASES):
        raise UsageProblem(f"--base {spec.base}: it is one of {', '.join(BASES)}.")
    if spec.base == "dirty" and (spec.workers > 1 or spec.tasks):
        raise UsageProblem(
            "Several workers start from your last commit: commit what they are to have, or let one worker start from "
            "your files as they are (--base dirty without --workers and --tasks)."
        )


async def _find(spec: GoalSpec, workspace: Path, home: Path, effects: Effects, *, may_ask: bool) -> Found:
    try:
        git, shadow = await find_repository(workspace, home, effects)
    except NoRepository as problem:
        root = await unborn_root(workspace, effects) or workspace
        try:
            await require_suitable(root, home, effects)
        except UsageProblem as unsuitable:
            raise NoRepository(f"{problem} A private one cannot take its place: {unsuitable}") from None
        if spec.shadow or may_ask:
            return Found(root, None, None, shadow=True)
        raise NoRepository(
            f"{problem} Or give --shadow: then a private repository outside the folder keeps its versions, and nothing "
            "but the work that lands is written into it."
        ) from None
    return Found(git.root, git, await git.head(), shadow)


async def landing_branch(record: GoalRecord, git: Git) -> tuple[str | None, str]:
    """For a goal that is resumed: its branch if it had none so far, and what to say where HEAD is elsewhere.

    Raises UsageProblem if there is no branch to land on (any more).
    """
    symbolic = await git.run("symbolic-ref", "-q", "HEAD", check=False)
    here = symbolic.line().removeprefix("refs/heads/") if symbolic.code == 0 else None
    if record.branch is None:
        # Set by an older version, which let a goal start where HEAD is detached.
        if here is None:
            raise UsageProblem(_detached(git.root))
        return here, f"The work lands on {here}."
    if await git.ref(f"refs/heads/{record.branch}") is None:
        raise UsageProblem(branch_gone(record))
    if here == record.branch:
        return None, ""
    where = "HEAD is detached" if here is None else f"HEAD is on {here}"
    return None, f"{where} now; the work still lands on {record.branch}."


def _detached(root: Path) -> str:
    return (
        f"HEAD is detached in {root}, so there is no branch to land on: make one with `git switch -c NAME`, or go to "
        "one with `git switch NAME`, then try again."
    )


async def _check_home(git: Git, home: Path, effects: Effects) -> None:
    """The agent's worktrees lie below `home`: inside a checkout they would be the user's untracked files."""
    folder = await effects.disk(worktrees_dir(home).resolve)
    for inside in [git.common_dir, *(tree.path for tree in await list_worktrees(git))]:
        if folder.is_relative_to(inside):
            raise UsageProblem(
                f"MUSECODE_HOME ({home}) lies inside the repository {inside}, where an agent cannot have its worktree: "
                "set MUSECODE_HOME to a folder outside it."
            )


async def check_model(settings: Settings, effects: Effects) -> None:
    """Raise ConfigurationError if the model cannot be used: no key, no price, or nothing to run the local one with.

    Likewise if what is to be reviewed cannot be read.
    """
    endpoint = settings.endpoint(effects.environ())
    settings.review_mode(settings.info(endpoint).profile)
    if endpoint.api != "local":
        return
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigurationError(RUNTIME_MISSING)
    file = LocalModelFile(settings.home_or_default(), environ=effects.environ())
    await effects.disk(file.require)


async def choose_sandbox(settings: Settings, effects: Effects) -> Sandbox:
    """The sandbox for commands of a session, from which what other sessions keep is hidden."""
    home = settings.home_or_default()
    hidden = (sessions_dir(home), worktrees_dir(home), shadows_dir(home))
    linked = tuple(rule.path for rule in parse_share(settings.share or "") if rule.how == "link")
    return await choose(
        settings.sandbox, settings.network, effects, hidden=hidden, readable=settings.readable, linked=linked
    )
