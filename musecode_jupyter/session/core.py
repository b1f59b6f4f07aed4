"""A session on the runtime thread: the log, the gate, the crew, and the goals that run; owner of all their tasks."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from musecode_jupyter._version import __version__
from musecode_jupyter.agents.driver import Driver
from musecode_jupyter.agents.guided import LOCATE, Guided
from musecode_jupyter.agents.loop import Loop
from musecode_jupyter.agents.mind import Mind, Task
from musecode_jupyter.agents.prompts import ASK, LEAD
from musecode_jupyter.agents.state import AgentsState
from musecode_jupyter.guard.approvals import Approvals
from musecode_jupyter.guard.gate import Gate
from musecode_jupyter.guard.ledger import LedgerState, Scope
from musecode_jupyter.guard.policy import Policy
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.redaction import Redactor
from musecode_jupyter.models.endpoint import secrets
from musecode_jupyter.models.model_file import LocalModelFile
from musecode_jupyter.models.types import ModelClient
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ConfigurationError, GitError, LogReadOnly, MuseError, UsageProblem
from musecode_jupyter.runtime.loop import assert_runtime_thread
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.session.settings import Settings
from musecode_jupyter.session.store import new_id, sessions_dir, worktrees_dir
from musecode_jupyter.skills.goal import (
    GoalRunner,
    GoalTools,
    PauseRequested,
    check_command,
    check_limits,
)
from musecode_jupyter.skills.goal_state import GoalRecord, GoalsState
from musecode_jupyter.tools.builtin import BUILTIN
from musecode_jupyter.tools.environment import child_environment
from musecode_jupyter.tools.executor import Executor
from musecode_jupyter.tools.registry import Place, Registry
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.state import WorkspaceState

logger = logging.getLogger(__name__)

LEAD_NAME = "lead"


@dataclass(frozen=True)
class GoalSpec:
    """What the user asked for. Limits: USD, tokens, tool calls, hours of wall time, model calls (`steps`)."""

    text: str
    verify: tuple[str, ...]
    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    hours: float | None = None
    steps: int | None = 200

    def check_limits(self) -> None:
        """Raise UsageProblem unless every limit is a number above 0."""
        for name in ("usd", "tokens", "calls", "hours", "steps"):
            limit = getattr(self, name)
            if limit is not None and not (math.isfinite(limit) and limit > 0):
                option = "budget" if name == "usd" else name
                raise UsageProblem(f"--{option} {limit:g} is no limit: give a number above 0, or leave it out.")


class SessionCore:
    """One open session. All methods run on the runtime thread; the facade in `session.api` gets them there."""

    def __init__(
        self,
        *,
        log: EventLog,
        settings: Settings,
        effects: Effects,
        workspace: Path,
        interactive: bool,
        client: ModelClient | None = None,
    ) -> None:
        self.log = log
        self.settings = settings
        self.workspace = workspace
        self.id = log.folder.name
        self._effects = effects
        self._home = settings.home_or_default()
        environ = effects.environ()
        endpoint = settings.endpoint(environ)
        info = settings.info(endpoint)
        local_file = LocalModelFile(self._home, environ=environ) if endpoint.api == "local" else None
        self.gate = Gate(
            log=log,
            effects=effects,
            endpoint=endpoint,
            info=info,
            scopes=self._scopes,
            local_file=local_file,
            client=client,
        )
        self.approvals = Approvals(log)
        self.policy = Policy(settings.mode(interactive=interactive), interactive)
        outputs = log.folder / "outputs"
        outputs.mkdir(mode=0o700, exist_ok=True)
        self.executor = Executor(
            log=log,
            effects=effects,
            registry=Registry.of([*BUILTIN, LOCATE]),
            policy=self.policy,
            approvals=self.approvals,
            outputs=outputs,
            child_env=child_environment(environ),
        )
        self._mind: Mind = (
            Guided(log, self.gate) if info.profile == "guided" else Driver(log, self.gate, settings.effort or "medium")
        )
        self.loop = Loop(log, self.executor, self._mind, self._checkpoint)
        self._tasks: dict[int, asyncio.Task[GoalRecord]] = {}
        self._pausing: dict[int, str] = {}
        self._asking = asyncio.Lock()
        self._starting = asyncio.Lock()
        self._closed = False

    @classmethod
    async def create(
        cls,
        workspace: Path,
        settings: Settings,
        effects: Effects,
        *,
        interactive: bool,
        client: ModelClient | None = None,
    ) -> SessionCore:
        """Begin a session for `workspace`; ConfigurationError if no model can be used, before anything is written.

        `client` answers in place of the configured endpoint: a recorded one, in a replay.
        """
        assert_runtime_thread()
        endpoint = settings.endpoint(effects.environ())
        settings.info(endpoint)
        settings.mode(interactive=interactive)
        root = sessions_dir(settings.home_or_default())
        folder = root / new_id(effects.now(), effects.token(2))
        try:
            log = EventLog.create(
                folder, reducers=all_reducers(), redactor=Redactor(secrets(effects.environ())), now=effects.now
            )
        except LogReadOnly as problem:
            raise ConfigurationError(f"{problem}: set MUSECODE_HOME") from problem
        try:
            core = cls(
                log=log,
                settings=settings,
                effects=effects,
                workspace=workspace,
                interactive=interactive,
                client=client,
            )
            await core._open("session.opened", {"session": folder.name, "workspace": str(workspace)})
        except BaseException:
            await log.close()
            raise
        return core

    @classmethod
    async def resume(cls, folder: Path, settings: Settings, effects: Effects, *, interactive: bool) -> SessionCore:
        """Open a session of an earlier process, settle what that left open; goals wait until they are resumed."""
        from musecode_jupyter.session.restart import reconcile

        assert_runtime_thread()
        log = EventLog.open(
            folder, reducers=all_reducers(), redactor=Redactor(secrets(effects.environ())), now=effects.now
        )
        try:
            last_seq = log.last_seq
            opened = log.get(1)
            workspace = Path(str(opened.data["workspace"]))
            if not workspace.is_dir():
                raise UsageProblem(f"The workspace {workspace} of this session is not there any more.")
            core = cls(log=log, settings=settings, effects=effects, workspace=workspace, interactive=interactive)
            await core._open("session.resumed", {"last_seq": last_seq})
            await reconcile(core)
        except BaseException:
            await log.close()
            raise
        return core

    async def _open(self, kind: str, data: dict[str, object]) -> None:
        info, endpoint = self.gate.info, self.gate.endpoint
        await self.log.append(
            kind,
            {
                "version": __version__,
                "model": endpoint.model,
                "api": endpoint.api,
                "profile": info.profile,
                "approvals": self.policy.mode,
                **data,
            },
        )
        if LEAD_NAME not in self.agents.agents:
            await self.log.append(
                "agent.created",
                {"role": "lead", "profile": info.profile, "model": endpoint.model},
                agent=LEAD_NAME,
            )
        guided = info.profile == "guided"
        specs = () if guided else self.executor.registry.specs()
        seed = {
            "instructions": ASK if guided else LEAD,
            "tools": [spec.model_dump(mode="json") for spec in specs],
        }
        seeded = self.agents.agents[LEAD_NAME].seeded
        if seeded is None or dict(self.log.get(seeded).data) != seed:
            await self.log.append("agent.seeded", seed, agent=LEAD_NAME)

    @property
    def agents(self) -> AgentsState:
        """The agents as folded."""
        state = self.log.state("agents")
        assert isinstance(state, AgentsState)
        return state

    @property
    def goals(self) -> GoalsState:
        """The goals as folded."""
        state = self.log.state("goals")
        assert isinstance(state, GoalsState)
        return state

    @property
    def ledger(self) -> LedgerState:
        """Money and tokens as folded."""
        state = self.log.state("ledger")
        assert isinstance(state, LedgerState)
        return state

    @property
    def workspace_state(self) -> WorkspaceState:
        """Worktrees and merges as folded."""
        state = self.log.state("workspace")
        assert isinstance(state, WorkspaceState)
        return state

    @property
    def busy(self) -> bool:
        """Whether a goal is running."""
        return any(not task.done() for task in self._tasks.values())

    @property
    def effects(self) -> Effects:
        """What this session reaches the outside world through."""
        return self._effects

    def now(self) -> datetime:
        """Wall-clock time in UTC."""
        return self._effects.now()

    async def ask(self, text: str) -> str:
        """One turn with the lead, outside any goal: it may read the workspace, and change nothing in it."""
        if not text.strip():
            raise UsageProblem("What do you want to ask? Give the text: %muse ask TEXT.")
        async with self._asking:
            # A question and a goal at once would share the lead's conversation.
            if self.busy or self._starting.locked():
                raise UsageProblem(
                    "A goal is running with the lead. `%goal steer TEXT` reaches it; or pause the goal first."
                )
            event = await self.log.append("user.message", {"text": text, "to": LEAD_NAME}, agent="user")
            await self.log.append("agent.state", {"state": "running", "why": "a question"}, agent=LEAD_NAME)
            try:
                step = await self.loop.turn(Task(LEAD_NAME, self._own_place(), event.seq))
            finally:
                await self.log.append("agent.state", {"state": "idle", "why": ""}, agent=LEAD_NAME)
            return step.text

    async def set_goal(self, spec: GoalSpec) -> int:
        """Check the goal's clauses, write it down and start it; returns its seq."""
        async with self._starting:
            return await self._set_goal(spec)

    async def _set_goal(self, spec: GoalSpec) -> int:
        self._no_running_goal()
        if not spec.text.strip():
            raise UsageProblem(
                'What is the goal? For example: %goal "make the tests pass" --verify "python -m pytest -q"'
            )
        if not spec.verify:
            raise UsageProblem(
                "A goal needs a check that decides it: add --verify 'COMMAND', for example 'python -m pytest -q'."
            )
        spec.check_limits()
        git = await Git.discover(self.workspace, self._effects)
        head = await git.head()
        path = child_environment(self._effects.environ())["PATH"]
        for command in spec.verify:
            check_command(command, git.root, path)
        event = await self.log.append(
            "goal.set",
            {
                "text": spec.text,
                "verify": list(spec.verify),
                "agent": LEAD_NAME,
                "branch": head.branch,
                "base": head.commit,
                "usd": spec.usd,
                "tokens": spec.tokens,
                "calls": spec.calls,
                "hours": spec.hours,
                "steps": spec.steps,
                "model": self.gate.model,
            },
            agent="user",
        )
        self._start(event.seq, git)
        return event.seq

    def pause(self, goal: int, why: str = "asked by the user") -> None:
        """Let the running step end, then rest."""
        self._running(goal)
        self._pausing[goal] = why

    async def resume_goal(self, goal: int) -> None:
        """Go on with a goal that was paused or stopped short."""
        record = self._record(goal)
        if self._is_running(goal):
            if goal in self._pausing:
                del self._pausing[goal]
                return
            raise UsageProblem(f"Goal {goal} is running already.")
        async with self._starting:
            self._no_running_goal()
            if record.status == "met":
                raise UsageProblem(f"Goal {goal} is met.")
            git = await Git.discover(self.workspace, self._effects)
            await self.log.append(
                "goal.resumed", {"goal": goal, "why": "asked by the user"}, agent="user", cause=(goal,)
            )
            self._start(goal, git)

    async def stop(self, goal: int, why: str = "stopped by the user") -> None:
        """End what runs, at once; worktree and branch are kept, and the goal can be resumed."""
        record = self._record(goal)
        if record.final:
            raise UsageProblem(f"Goal {goal} has ended already: {record.status}.")
        await self._cancel(goal)
        if not self._record(goal).final:
            await self.log.append("user.interrupt", {"scope": f"goal {goal}"}, agent="user", cause=(goal,))
            await self.log.append(
                "goal.stopped",
                {"goal": goal, "state": "stopped", "why": why},
                agent=record.agent,
                cause=(goal,),
            )

    async def steer(self, text: str, agent: str = LEAD_NAME) -> None:
        """Say something to an agent that may be busy; it is in the next request that the agent makes."""
        if not text.strip():
            raise UsageProblem("What do you want to say? Give the text.")
        if agent not in self.agents.agents:
            raise UsageProblem(f"There is no agent {agent!r}. There are: {', '.join(self.agents.agents)}.")
        await self.log.append("user.steer", {"text": text, "to": agent}, agent="user")

    async def wait(self, goal: int) -> GoalRecord:
        """Wait until the goal does not run any more; cancelling ends the wait only."""
        task = self._tasks.get(goal)
        if task is not None:
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is not None:
                raise task.exception() or MuseError("the goal ended in an unknown error")
        return self._record(goal)

    async def diff(self, goal: int | None = None) -> str:
        """What the goal (the newest by default) changed: the landed diff, or the worktree's so far."""
        number = self._goal_or_newest(goal)
        record = self._record(number)
        git = await Git.discover(self.workspace, self._effects)
        workspace = self.workspace_state
        landed = [m for m in workspace.merges.values() if m.goal == number and m.state == "landed"]
        if landed and landed[-1].old and landed[-1].new:
            return await git.diff_text(landed[-1].old, landed[-1].new)
        seq = workspace.of_goal(number)
        if seq is None:
            return ""
        inside = await Git.at_worktree(Path(workspace.worktrees[seq].path), self._effects)
        return await inside.diff_worktree(record.base)

    async def close(self, reason: str) -> None:
        """End the session in order: running goals are paused, the log is sealed. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for goal in [goal for goal in self._tasks if self._is_running(goal)]:
            await self._cancel(goal)
            if self._record(goal).status == "running":
                await self.log.append(
                    "goal.paused",
                    {"goal": goal, "why": reason},
                    agent=self._record(goal).agent,
                    cause=(goal,),
                )
        await self.gate.aclose()
        try:
            await self.log.append("session.closed", {"reason": reason})
        finally:
            await self.log.close()

    async def clean_up(self) -> None:
        """Remove the worktrees of goals that were met just before a crash."""
        trees = self.workspace_state.worktrees.values()
        for goal in {tree.goal for tree in trees if tree.goal is not None}:
            if self._record(goal).status != "met":
                continue
            try:
                await self._runner(goal, await Git.discover(self.workspace, self._effects)).clean_up()
            except GitError as problem:
                logger.warning("worktrees of goal %s are kept: %s", goal, problem)

    def _runner(self, goal: int, git: Git) -> GoalRunner:
        return GoalRunner(
            GoalTools(
                log=self.log,
                effects=self._effects,
                git=git,
                executor=self.executor,
                loop=self.loop,
                approvals=self.approvals,
                worktrees=worktrees_dir(self._home),
                session=self.id,
                rest=self._rest,
            ),
            goal,
        )

    def _start(self, goal: int, git: Git) -> None:
        self._pausing.pop(goal, None)
        task = asyncio.create_task(self._runner(goal, git).run(), name=f"goal {goal} of {self.id}")
        task.add_done_callback(_log_failure)
        self._tasks[goal] = task

    async def _cancel(self, goal: int) -> None:
        task = self._tasks.get(goal)
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=30)

    async def _checkpoint(self, task: Task) -> None:
        if task.goal is None:
            return
        self._rest(task.goal)
        check_limits(self._record(task.goal), self._effects.now())

    def _rest(self, goal: int) -> None:
        if goal in self._pausing:
            raise PauseRequested(self._pausing.pop(goal))

    def _scopes(self, agent: str) -> list[Scope]:
        active = self.goals.active
        if active is None:
            return []
        record = self.goals.goals[active]
        if record.agent != agent or record.final:
            return []
        open_usd = sum(r.usd for r in self.ledger.open.values() if r.agent == agent)
        open_tokens = sum(r.tokens for r in self.ledger.open.values() if r.agent == agent)
        return [
            Scope(
                f"goal {active}",
                record.limit_usd,
                record.used_usd + open_usd,
                record.limit_tokens,
                record.used_tokens + open_tokens,
            )
        ]

    def _own_place(self) -> Place:
        root = self.workspace

        async def list_files() -> list[str]:
            try:
                return await (await Git.discover(root, self._effects)).list_files(root)
            except GitError:
                return await self._effects.disk(_files_below, root)

        return Place(root, None, list_files)

    def _record(self, goal: int) -> GoalRecord:
        record = self.goals.goals.get(goal)
        if record is None:
            raise UsageProblem(f"There is no goal {goal} in this session.")
        return record

    def _goal_or_newest(self, goal: int | None) -> int:
        if goal is not None:
            return goal
        if not self.goals.goals:
            raise UsageProblem('There is no goal yet. Start one: %goal "TEXT" --verify "COMMAND"')
        return max(self.goals.goals)

    def _is_running(self, goal: int) -> bool:
        task = self._tasks.get(goal)
        return task is not None and not task.done()

    def _running(self, goal: int) -> None:
        self._record(goal)
        if not self._is_running(goal):
            raise UsageProblem(f"Goal {goal} is not running: it is {self._record(goal).status}.")

    def _no_running_goal(self) -> None:
        if self._asking.locked():
            raise UsageProblem("A question to the lead is under way. Wait for its answer, then start the goal.")
        running = [goal for goal in self._tasks if self._is_running(goal)]
        if running:
            raise UsageProblem(
                f"Goal {running[0]} is running. Wait for it, or end it with `%goal stop`; one goal runs at a time."
            )


def _files_below(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()]


def _log_failure(task: asyncio.Task[GoalRecord]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, MuseError):
        # Raised again to whoever waits, and by everything that is tried next.
        logger.info("%s ended: %s", task.get_name(), error)
    elif error is not None:
        logger.error("%s failed", task.get_name(), exc_info=error)
