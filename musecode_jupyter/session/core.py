"""A session on the runtime thread: the log, the gate, the crew, and the goals that run; owner of all their tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from musecode_jupyter._version import __version__
from musecode_jupyter.agents.conversations import prompt_parts
from musecode_jupyter.agents.driver import Driver
from musecode_jupyter.agents.guided import Guided
from musecode_jupyter.agents.landing.state import MergesState
from musecode_jupyter.agents.loop import Loop
from musecode_jupyter.agents.mind import Mind, Task
from musecode_jupyter.agents.state import AgentsState
from musecode_jupyter.guard.approvals import Approvals
from musecode_jupyter.guard.gate import Gate
from musecode_jupyter.guard.ledger import LedgerState
from musecode_jupyter.guard.policy import Policy
from musecode_jupyter.guard.rules import Rules
from musecode_jupyter.guard.sandbox import Sandbox
from musecode_jupyter.guard.scopes import check_step
from musecode_jupyter.guard.tiers import Labeller, tiers_of
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.outputs import FOLDER as OUTPUTS
from musecode_jupyter.log.redaction import Redactor
from musecode_jupyter.models.endpoint import secrets
from musecode_jupyter.models.model_file import LocalModelFile
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import (
    ConfigurationError,
    GitError,
    LogError,
    LogReadOnly,
    MuseError,
    NoRepository,
    UsageProblem,
)
from musecode_jupyter.runtime.loop import assert_runtime_thread
from musecode_jupyter.session import goals
from musecode_jupyter.session.beside import make_batches, make_verifier, run_beside
from musecode_jupyter.session.budget import goal_scopes
from musecode_jupyter.session.claims import heed, send_corrections
from musecode_jupyter.session.clauses import hide_held
from musecode_jupyter.session.crew import LEAD_NAME, make_agents, make_crew, take_up, take_up_steps
from musecode_jupyter.session.day import Day
from musecode_jupyter.session.disk_use import DiskUse
from musecode_jupyter.session.drafts import Drafts
from musecode_jupyter.session.goal_queue import GoalQueue, waits
from musecode_jupyter.session.goal_watch import check_progress, share, warn
from musecode_jupyter.session.grills import UNDER_WAY, Grills
from musecode_jupyter.session.ground import settle, take_in
from musecode_jupyter.session.landings import landing_parts
from musecode_jupyter.session.plans import Plans
from musecode_jupyter.session.preflight import GoalSpec, check_model, choose_sandbox, landing_branch
from musecode_jupyter.session.questions import WRITING, Questions
from musecode_jupyter.session.reducers import all_reducers
from musecode_jupyter.session.repository import files_below, find_repository, unborn_root
from musecode_jupyter.session.roles import take_roles
from musecode_jupyter.session.runners import REPLAYS, TOOLS, goal_runner
from musecode_jupyter.session.settings import Settings
from musecode_jupyter.session.store import new_id, sessions_dir
from musecode_jupyter.session.summary import notice_of
from musecode_jupyter.session.tiers import check_opted, kept_model, open_tiers, rule_of_part
from musecode_jupyter.skills.fan_out import FanOutRunner
from musecode_jupyter.skills.goal import GoalRunner, GoalTools, PauseRequested
from musecode_jupyter.skills.goal_lines import goal_lines
from musecode_jupyter.skills.goal_state import GoalRecord, GoalsState
from musecode_jupyter.skills.ground_state import Ground, GroundsState
from musecode_jupyter.skills.handover import handover
from musecode_jupyter.skills.limits import check_limits
from musecode_jupyter.skills.plan_state import being_written, offered_now
from musecode_jupyter.tools.environment import child_environment
from musecode_jupyter.tools.executor import Executor
from musecode_jupyter.tools.notebook import AttachedCell
from musecode_jupyter.tools.registry import Place, Registry, Tool
from musecode_jupyter.tools.release import Release
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.process_files import ProcessFiles
from musecode_jupyter.workspace.shadow import find_shadow
from musecode_jupyter.workspace.sharing import Share, parse_share
from musecode_jupyter.workspace.state import WorkspaceState

logger = logging.getLogger(__name__)

# How long the end of what was told to stop is waited for, in seconds.
STOP_S = 30.0
NO_GOAL = 'There is no goal. Start one: %goal "TEXT" --verify "COMMAND"'


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
        sandbox: Sandbox,
        tools: Sequence[Tool] = (),
    ) -> None:
        self.log = log
        self.settings = settings
        self.workspace = workspace
        self.sandbox = sandbox
        self.id = log.folder.name
        self._effects = effects
        self._home = settings.home_or_default()
        self.day = Day(self)
        self.disk = DiskUse(self)
        environ = effects.environ()
        endpoint = settings.endpoint(environ)
        info = settings.info(endpoint)
        local_file = LocalModelFile(self._home, environ=environ) if endpoint.api == "local" else None
        self.gate = Gate(
            log=log,
            effects=effects,
            endpoint=endpoint,
            info=info,
            scopes=partial(goal_scopes, self),
            before=self.day.refresh,
            admission=self.day.admission,
            local_file=local_file,
            before_wait=self._rest_agent,
            parts=partial(prompt_parts, log),
            why=partial(rule_of_part, self),
        )
        log.labeller = Labeller(log)
        self.below = ""
        """The folder of the repository that the workspace is."""
        env = child_environment(environ)
        self.rules = Rules(log, effects, env["PATH"])
        self.approvals = Approvals(log, self.rules)
        self.open_documents: Callable[[], list[Path]] = list
        """Asked before a landing for the notebooks that a front end has open; set by the host."""
        self.notices: list[str] = []
        """Lines that the user has not been told yet; whoever tells them takes them out."""
        log.on_durable(self._notice)
        log.on_durable(partial(heed, self))
        log.on_durable(partial(warn, self))
        hide_held(self)
        self.policy = Policy(settings.mode(interactive=interactive), interactive)
        self.with_crew = info.profile != "guided" and settings.crew_wanted()
        """Whether standing agents work beside the lead."""
        self.with_verifier = self.with_crew and settings.verifier_wanted()
        outputs = log.folder / OUTPUTS
        outputs.mkdir(mode=0o700, exist_ok=True)
        self.executor = Executor(
            log=log,
            effects=effects,
            registry=Registry.of(TOOLS).over(tools),
            offered=partial(offered_now, log),
            policy=self.policy,
            approvals=self.approvals,
            outputs=outputs,
            child_env=env,
            sandbox=sandbox,
            keep_files=ProcessFiles(log, effects, self.id).keep,
            room=info.room,
            release=Release(log, effects, sandbox, lambda root: self.below if root == workspace else ""),
        )
        self._mind: Mind = (
            Guided(log, self.gate)
            if info.profile == "guided"
            else Driver(log, self.gate, settings.effort or "medium", partial(goal_lines, log))
        )
        self.loop = Loop(log, self.executor, self._mind, self._checkpoint)
        self.crew = make_crew(self)
        self.batches = make_batches(self)
        self.verifier = make_verifier(self)
        self._tasks: dict[int, asyncio.Task[GoalRecord]] = {}
        self._runners: dict[int, GoalRunner] = {}
        self._pausing: dict[int, str] = {}
        self.questions = Questions(self)
        """What the lead is asked outside goals: the user's questions, and plans."""
        self.plans = Plans(self)
        self.drafts = Drafts(self)
        """Goals for which the lead proposes what decides them."""
        self.grills = Grills(self)
        self.start_lock = asyncio.Lock()
        """Held while a goal is being started or resumed."""
        self.queue = GoalQueue(self)
        self.undoing = asyncio.Lock()
        """Held while a landing is taken back: one at a time."""
        self._asides: set[asyncio.Task[Any]] = set()
        self._closed = False

    @classmethod
    async def create(
        cls,
        workspace: Path,
        settings: Settings,
        effects: Effects,
        *,
        interactive: bool,
        tools: Sequence[Tool] = (),
    ) -> SessionCore:
        """Begin a session for `workspace`; ConfigurationError if no model can be used, before anything is written.

        `tools` are the host's own.
        """
        assert_runtime_thread()
        await check_model(settings, effects)
        settings.mode(interactive=interactive)
        settings.steps_of_a_question()
        sandbox = await choose_sandbox(settings, effects)
        info = settings.info(settings.endpoint(effects.environ()))
        await check_opted(info.id, info.profile, workspace, settings.home_or_default(), effects)
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
                sandbox=sandbox,
                tools=tools,
            )
            await core._open("session.opened", {"session": folder.name, "workspace": str(workspace)})
            core.crew.opened = True
        except BaseException:
            await log.close()
            raise
        return core

    @classmethod
    async def resume(
        cls, folder: Path, settings: Settings, effects: Effects, *, interactive: bool, tools: Sequence[Tool] = ()
    ) -> SessionCore:
        """Open a session of an earlier process, settle what that left open; goals wait until they are resumed."""
        from musecode_jupyter.session.restart import reconcile

        assert_runtime_thread()
        sandbox = await choose_sandbox(settings, effects)
        log = EventLog.open(
            folder, reducers=all_reducers(), redactor=Redactor(secrets(effects.environ())), now=effects.now
        )
        try:
            last_seq = log.last_seq
            opened = log.get(1) if last_seq else None
            if opened is None or opened.kind != "session.opened":
                raise UsageProblem(
                    f"Session {folder.name} ended before its first event was on disk: there is nothing to resume. "
                    "Start anew."
                )
            workspace = Path(str(opened.data["workspace"]))
            if not workspace.is_dir():
                raise UsageProblem(f"The workspace {workspace} of this session is not there any more.")
            endpoint, api = settings.endpoint(effects.environ()), str(opened.data["api"])
            settings = kept_model(settings, endpoint, tiers_of(log), api)
            core = cls(
                log=log,
                settings=settings,
                effects=effects,
                workspace=workspace,
                interactive=interactive,
                sandbox=sandbox,
                tools=tools,
            )
            await core._open("session.resumed", {"last_seq": last_seq, "session": folder.name})
            forked = await reconcile(core)
            core.crew.opened = True
            if not forked:
                take_up_steps(core, cut_off=True)
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
                "sandbox": self.sandbox.name + (f": {self.sandbox.why}" if self.sandbox.why else ""),
                "network": self.sandbox.network,
                "interactive": self.policy.interactive,
                "review": self.settings.review_mode(info.profile),
                "replays": REPLAYS,
                "remote": endpoint.remote,
                **info.recorded,
                **data,
            },
        )
        await self.day.open()
        try:
            repository = (await self.git()).common_dir
        except MuseError:
            repository = self.workspace
        problem = await self.rules.open(self._home, repository)
        if problem:
            self.notices.append(problem)
        await open_tiers(self)
        await take_roles(self)
        await make_agents(self)

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

    def ground(self, goal: int) -> Ground:
        """What `goal` starts from, as folded."""
        state = self.log.state("grounds")
        assert isinstance(state, GroundsState)
        return state.goals[goal]

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
    def merges(self) -> MergesState:
        """Merges with their evidence as folded."""
        state = self.log.state("merges")
        assert isinstance(state, MergesState)
        return state

    @property
    def home(self) -> Path:
        """Where sessions, worktrees and the local model live."""
        return self._home

    @property
    def busy(self) -> bool:
        """Whether a goal is running."""
        return any(not task.done() for task in self._tasks.values())

    @property
    def closing(self) -> bool:
        """Whether the session ends."""
        return self._closed

    @property
    def starting(self) -> bool:
        """Whether a goal is being started or resumed."""
        return self.start_lock.locked()

    def begin(self, work: Coroutine[Any, Any, object], name: str) -> None:
        """Let `work`, which waits for the user, go on beside whoever asked for it; ended with the session."""
        task = asyncio.create_task(work, name=f"{name} of {self.id}")
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)

    @property
    def effects(self) -> Effects:
        """What this session reaches the outside world through."""
        return self._effects

    def _notice(self, event: Event) -> None:
        if text := notice_of(event):
            self.notices.append(text)

    @property
    def asking(self) -> bool:
        """Whether a question of the user is being answered."""
        return self.questions.open

    def now(self) -> datetime:
        """Wall-clock time in UTC."""
        return self._effects.now()

    async def ask(self, text: str, cell: AttachedCell | None = None) -> str:
        """One turn with the lead, outside any goal: it may read the workspace, and change nothing in it.

        `cell` is a cell of the notebook that goes with the question. Raises Stopped if the user ends it.
        """
        return await self.questions.ask(text, cell)

    async def stop_work(self, why: str) -> None:
        """End what runs, at once: the questions, and whoever waits for them gets Stopped; or else the goal.

        Raises UsageProblem if there is neither.
        """
        if self.asking:
            await self.questions.stop(why)
        elif self.goals.active is None:
            raise UsageProblem("Nothing is running: there is no goal and no question.")
        else:
            await self.stop(self.goals.active, why)

    @property
    def fan_out(self) -> FanOutRunner | None:
        """What drives the workers of the active goal, while it runs with several."""
        runner = self._runners.get(self.goals.active or 0)
        return runner if isinstance(runner, FanOutRunner) else None

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Within it nothing else begins that works with the lead; UsageProblem if something is under way."""
        async with self.start_lock:
            self.no_running_goal()
            yield

    async def set_goal(self, spec: GoalSpec) -> int:
        """Check the goal's clauses, write it down and start it, or queue it while one runs; returns its number."""
        async with self.start_lock:
            number = await (self.queue.add(spec) if self.busy and not self.asking else goals.set_goal(self, spec))
        # What was waited for may have ended meanwhile.
        self.queue.advance()
        return number

    def pause(self, goal: int, why: str = "asked by the user") -> None:
        """Let the running step end, then rest; a wait before another attempt at a failed request ends at once."""
        self._running(goal)
        record = self.record(goal)
        for agent in record.agents:
            self.gate.end_wait(agent, PauseRequested(why))
        self._pausing[goal] = why

    async def resume_goal(self, goal: int) -> str:
        """Go on with a goal that was paused or stopped short; returns what the user should know, or nothing.

        Raises UsageProblem before anything is spent if there is no branch to land on.
        """
        record = self.record(goal)
        if self._is_running(goal):
            if goal in self._pausing:
                del self._pausing[goal]
                return ""
            raise UsageProblem(f"Goal {goal} is running already.")
        async with self.start_lock:
            self.no_running_goal()
            await self.crew.rest()
            if record.cleared:
                raise UsageProblem(f"Goal {goal} was cleared: set a new one.")
            if record.status == "met":
                raise UsageProblem(f"Goal {goal} is met.")
            await check_model(self.settings, self._effects)
            branch, note = None, ""
            if record.base:
                git = await self.git(goal)
                if self.ground(goal).shadow:
                    await take_in(self, git)
                branch, note = await landing_branch(record, git)
            resumed = {"goal": goal, "why": "asked by the user", "branch": branch}
            await self.log.append("goal.resumed", resumed, agent="user", cause=(goal,))
            self.begin_goal(goal)
            return note

    async def clear_goal(self, goal: int) -> str:
        """Forget a goal that does not run: it cannot be resumed. Returns the branch that keeps its work, or nothing."""
        if self.queue.place(goal):
            await self.queue.drop(goal, "cleared by the user")
            return ""
        record = self.record(goal)
        if self._is_running(goal):
            raise UsageProblem(f"Goal {goal} is running: end it with `%goal stop`, then clear it.")
        if not record.cleared:
            await self.log.append("goal.cleared", {"goal": goal}, agent="user", cause=(goal,))
        tree = self.workspace_state.of_goal(goal)
        return "" if tree is None else self.workspace_state.worktrees[tree].branch

    async def set_interactive(self, interactive: bool) -> None:
        """Say whether whoever asks for work now can be asked for approvals; a goal that runs keeps its policy."""
        policy = Policy(self.settings.mode(interactive=interactive), interactive)
        if self.busy or policy == self.policy:
            return
        self.policy = self.executor.policy = policy
        await self.log.append("session.mode", {"approvals": policy.mode, "interactive": interactive}, agent="user")

    async def repository(self) -> Path:
        """The root of the repository in which goals of this session work and verify commands run.

        The workspace itself if it is in none yet.
        """
        try:
            return (await self.git()).root
        except NoRepository:
            return await unborn_root(self.workspace, self._effects) or self.workspace

    async def git(self, goal: int | None = None) -> Git:
        """The repository of the workspace, or that in which `goal` works: its private one, if it began in that."""
        if goal is not None and self.ground(goal).shadow:
            root = await unborn_root(self.workspace, self._effects) or self.workspace
            found = await find_shadow(root, self._home, self._effects)
            if found is not None:
                return found
        return (await find_repository(self.workspace, self._home, self._effects))[0]

    async def stop(self, goal: int, why: str = "stopped by the user") -> None:
        """End what runs, at once; worktree and branch are kept, and the goal can be resumed."""
        record = self.record(goal)
        if record.final:
            raise UsageProblem(f"Goal {goal} has ended already: {record.status}.")
        await self._cancel(goal)
        if not self.record(goal).final:
            await self.log.append("user.interrupt", {"scope": f"goal {goal}"}, agent="user", cause=(goal,))
            await self.stop_goal(goal, "stopped", why)

    async def stop_goal(self, goal: int, state: str, why: str) -> None:
        """Write down that a goal that does not run has ended."""
        stopped = {"goal": goal, "state": state, "why": why, "handover": handover(self.log, goal, state)}
        await self.log.append("goal.stopped", stopped, agent=self.record(goal).agent, cause=(goal,))

    async def steer(self, text: str, agent: str = LEAD_NAME, *, now: bool = False) -> bool:
        """Say something to an agent that may be busy; it is in the next request that the agent makes.

        `now` ends the command that the agent runs. Returns whether there was one.
        """
        if not text.strip():
            raise UsageProblem("What do you want to say? Give the text.")
        if agent not in self.agents.agents:
            raise UsageProblem(f"There is no agent {agent!r}. There are: {', '.join(self.agents.agents)}.")
        said = await self.log.append("user.steer", {"text": text, "to": agent}, agent="user")
        return now and bool(self.executor.underway.end(agent, said.seq))

    async def wait(self, goal: int) -> GoalRecord | None:
        """Wait until the goal does not run any more, None if it left the queue; cancelling ends the wait only."""
        begun = await self.queue.turn(goal)
        if begun is None:
            return None
        goal = begun
        task = self._tasks.get(goal)
        if task is not None:
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is not None:
                raise task.exception() or MuseError("the goal ended in an unknown error")
        return self.record(goal)

    async def close(self, reason: str) -> None:
        """End the session in order: running goals are paused, the log is sealed. Idempotent.

        All is ended and freed, whatever fails of it; what failed last is raised, as LogReadOnly where the log did.
        """
        if self._closed:
            return
        self._closed = True
        async with AsyncExitStack() as ends:
            # What was pushed last comes first.
            ends.push_async_callback(self.log.close)
            ends.push_async_callback(self.log.append, "session.closed", {"reason": reason})
            ends.push_async_callback(self._effects.disk, self.sandbox.close)
            ends.push_async_callback(self.gate.aclose)
            ends.push_async_callback(self.crew.rest)
            for goal in reversed(self._tasks):
                ends.push_async_callback(self._pause_for_good, goal, reason)
            ends.push_async_callback(self._stop_asides)
            await self.questions.stop(reason)

    async def _stop_asides(self) -> None:
        for aside in self._asides:
            aside.cancel()
        if self._asides:
            await asyncio.wait(self._asides, timeout=STOP_S)

    async def _pause_for_good(self, goal: int, why: str) -> None:
        if self._is_running(goal):
            await self._cancel(goal)
            if self.record(goal).status == "running":
                paused = {"goal": goal, "why": why}
                await self.log.append("goal.paused", paused, agent=self.record(goal).agent, cause=(goal,))

    def runner(self, goal: int, git: Git) -> GoalRunner:
        """What drives `goal` in the repository `git`."""
        return goal_runner(
            GoalTools(**landing_parts(self, goal, git), loop=self.loop, rest=self._rest),
            goal,
            workers=self.record(goal).workers,
            agent=partial(take_up, self),
            review=self.settings.review_mode(self.gate.info.profile),
            make_way=self.batches.make_way,
            halt=self._pausing.__setitem__,
            guided=self.gate.info.profile == "guided",
        )

    def shared(self) -> tuple[Share, ...]:
        """What the user shares with the agents' worktrees; ConfigurationError if the rule cannot be read."""
        return parse_share(self.settings.share or "")

    def begin_goal(self, goal: int) -> None:
        """Let a goal run, from wherever the log says it is."""
        self._pausing.pop(goal, None)
        task = asyncio.create_task(self._run(goal), name=f"goal {goal} of {self.id}")
        task.add_done_callback(_log_failure)
        task.add_done_callback(lambda _: self._runners.pop(goal, None))
        # What asked the goal's workers to rest is not meant for a later question to the lead.
        task.add_done_callback(lambda _: self._pausing.pop(goal, None))
        task.add_done_callback(lambda _: self.queue.advance())
        self._tasks[goal] = task

    async def _run(self, goal: int) -> GoalRecord:
        try:
            git = await settle(self, goal)
        except LogError:
            raise
        except MuseError as problem:
            await self.stop_goal(goal, "error", str(problem))
            git = None
        if git is None:
            return self.record(goal)
        runner = self._runners[goal] = self.runner(goal, git)
        return await run_beside(self, runner, lambda: goal in self._pausing)

    async def _cancel(self, goal: int) -> None:
        task = self._tasks.get(goal)
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=STOP_S)

    async def _checkpoint(self, task: Task) -> None:
        if task.goal is None:
            self.questions.check(task)
        else:
            self._rest(task.goal)
            check_limits(self.record(task.goal), self._effects.now(), share(self, task.goal))
            check_progress(self, task)
        await self.disk.refresh()
        check_step(self.ledger, task.agent, self._effects.now(), self.disk.held)
        send_corrections(self)
        await asyncio.gather(self.batches.before_step(task), self.verifier.before_step(task))
        self.crew.before_step(task)

    def _rest(self, goal: int) -> None:
        # Kept until the goal has come to rest: each of its workers is told at its own next step.
        if goal in self._pausing:
            raise PauseRequested(self._pausing[goal])

    def _rest_agent(self, agent: str) -> None:
        active = self.goals.active
        if active is not None and agent in self.goals.goals[active].agents:
            self._rest(active)

    def own_place(self) -> Place:
        """The user's own checkout, in which agents read."""
        root = self.workspace

        async def list_files() -> list[str]:
            try:
                return await (await self.git()).list_files(root)
            except GitError:
                return await self._effects.disk(files_below, root)

        return Place(root, None, list_files)

    def record(self, goal: int) -> GoalRecord:
        """A goal of this session; UsageProblem if there is none of this number."""
        record = self.goals.goals.get(goal)
        if record is None:
            waits(self, goal)
            raise UsageProblem(f"There is no goal {goal} in this session.")
        return record

    def active_goal(self) -> int:
        """The goal that was set or resumed last; UsageProblem if there is none, or it was cleared."""
        if self.goals.active is None:
            raise UsageProblem(NO_GOAL)
        return self.goals.active

    def _is_running(self, goal: int) -> bool:
        task = self._tasks.get(goal)
        return task is not None and not task.done()

    def _running(self, goal: int) -> None:
        self.record(goal)
        if not self._is_running(goal):
            raise UsageProblem(f"Goal {goal} is not running: it is {self.record(goal).status}.")

    def no_running_goal(self) -> None:
        """Raise UsageProblem while a goal runs or a question is answered."""
        if self.asking:
            if being_written(self.log, LEAD_NAME) is not None:
                raise UsageProblem(WRITING)
            if self.grills.running is not None:
                raise UsageProblem(UNDER_WAY)
            raise UsageProblem(
                "A question to the lead is under way. Wait for its answer or end it with `%muse stop`, then begin."
            )
        running = [goal for goal in self._tasks if self._is_running(goal)]
        if running:
            raise UsageProblem(
                f"Goal {running[0]} is running. Wait for it, or end it with `%goal stop`; one goal runs at a time."
            )


def _log_failure(task: asyncio.Task[GoalRecord]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, MuseError):
        # Raised again to whoever waits, and by everything that is tried next.
        logger.info("%s ended: %s", task.get_name(), error)
    elif error is not None:
        logger.error("%s failed", task.get_name(), exc_info=error)
