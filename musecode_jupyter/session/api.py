"""The session as users hold it: usable from any thread, with or without IPython; and the handle of a goal."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from musecode_jupyter.agents.claims.state import ClaimsState
from musecode_jupyter.agents.tasks.graph import TaskSpec
from musecode_jupyter.agents.tasks.propose import parse_tasks
from musecode_jupyter.guard.approvals import ApprovalsState, Decision, Given
from musecode_jupyter.guard.ledger import LedgerState
from musecode_jupyter.guard.rules import RulesState, Scope
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.effects import Effects, LiveEffects
from musecode_jupyter.runtime.errors import LogReadOnly, UsageProblem
from musecode_jupyter.runtime.loop import RuntimeThread
from musecode_jupyter.session import claims, goals, landings, looks, roles, tiers, time_travel, worktrees
from musecode_jupyter.session.core import SessionCore
from musecode_jupyter.session.cost import CostReport, cost_of
from musecode_jupyter.session.drafts import DraftHandle
from musecode_jupyter.session.files_at import session_at
from musecode_jupyter.session.fork import make_fork, settled, take_away
from musecode_jupyter.session.goal_result import GoalResult, result_of
from musecode_jupyter.session.grill_handle import GrillHandle
from musecode_jupyter.session.plan_handle import PlanHandle
from musecode_jupyter.session.preflight import GoalSpec, check_goal
from musecode_jupyter.session.settings import Settings
from musecode_jupyter.session.stops import stop_agent
from musecode_jupyter.session.store import SessionEntry, find_session, list_sessions, require_finished, sessions_around
from musecode_jupyter.skills.clauses import ClauseOptions
from musecode_jupyter.skills.goal_state import GoalsState
from musecode_jupyter.skills.limits import Limits
from musecode_jupyter.tools.registry import Tool

T = TypeVar("T")

# How long an interrupt of a cell that awaits may take at most, in seconds.
WAKE_S = 0.2


class GoalHandle:
    """A goal that was started: await it, wait for it, stop it; interrupting a wait leaves the goal running.

    `session` is where it runs. One that waits in the queue begins by itself when its turn has come.
    """

    def __init__(self, session: Session, number: int, text: str) -> None:
        self.session = session
        self._number = number
        self.text = text

    @property
    def number(self) -> int:
        """The seq of its goal.set event, or of goal.queued as long as it waits in the queue."""
        return self.session.core.queue.number(self._number)

    @property
    def result(self) -> GoalResult:
        """How the goal stands now."""
        return self.session.goal_result(self.number)

    @property
    def status(self) -> str:
        """queued, running, paused, met, budget, stalled, blocked, stopped or error."""
        return self.result.status

    def wait(self, timeout: float | None = None) -> GoalResult:
        """Block until the goal does not run any more; TimeoutError after `timeout` seconds, and the goal goes on."""
        self.session.call(lambda core: core.wait(self.number), timeout=timeout)
        return self.result

    def __await__(self) -> Generator[Any, None, GoalResult]:
        return self._wait().__await__()

    async def _wait(self) -> GoalResult:
        await self.session.run(lambda core: core.wait(self.number))
        return self.result

    def pause(self) -> None:
        """Rest after the step that is under way."""
        self.session.pause(self.number)

    def resume(self) -> None:
        """Go on after a pause or a stop short of the goal."""
        self.session.resume_goal(self.number)

    def edit(
        self,
        text: str | None = None,
        *,
        usd: float | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        hours: float | None = None,
        steps: int | None = None,
        verify: str | Sequence[str] = (),
        clauses: ClauseOptions | None = None,
    ) -> None:
        """Give the goal another text, limits, verify commands or clauses; works while it runs, and does not resume it.

        Raises UsageProblem if nothing is given, a limit is used up already, or the goal is met or cleared.
        """
        limits = Limits(usd, tokens, calls, hours, steps)
        commands = (verify,) if isinstance(verify, str) else tuple(verify)
        self.session.call(lambda core: goals.edit_goal(core, self.number, text, limits, commands, clauses))
        self.text = self.session.read(lambda core: core.goals.goals[self.number].text)

    def history(self) -> str:
        """Every version of the goal's text, clauses and limits as text, oldest first."""
        return self.session.read(lambda core: goals.history_text(core, self.number))

    def clear(self) -> str:
        """Forget the goal, which must not run; it cannot be resumed. Returns the branch that keeps its work, if any."""
        return self.session.call(lambda core: core.clear_goal(self.number))

    def stop(self) -> None:
        """End what runs, at once; what was done so far is kept."""
        self.session.call(lambda core: core.stop(self.number))

    def steer(self, text: str, *, now: bool = False) -> bool:
        """Tell the agent something while it works. `now` ends the command that it runs; returns whether it ran one."""
        return self.session.call(lambda core: core.steer(text, now=now))

    def diff(self) -> str:
        """What has landed, and after it what waits in worktrees, as a unified diff."""
        return "".join(self.changes())

    def changes(self) -> tuple[str, str]:
        """The diff of what has landed, and that of what waits in worktrees."""
        return self.session.call(lambda core: looks.changes(core, self.number))

    def __repr__(self) -> str:
        return f"Goal({self.text!r}, status={self.status!r})"


class Session:
    """An open session. Methods without `async` block the calling thread, and only that.

    Made by `open_session`; close it with `close()` or use it in a `with` block.
    """

    def __init__(self, core: SessionCore, runtime: RuntimeThread, effects: Effects, *, owns_runtime: bool) -> None:
        self._core = core
        self._runtime = runtime
        self._effects = effects
        self._owns_runtime = owns_runtime
        self.while_waiting: Callable[[], object] | None = None
        """Called again and again by a thread that waits in `call` or `run`; the host may use that thread meanwhile."""
        self._closed = False
        # Whether somebody was told that the log takes no events any more.
        self._told = False

    @property
    def id(self) -> str:
        """Name of the session's folder."""
        return self._core.id

    @property
    def workspace(self) -> Path:
        """The user's repository or folder."""
        return self._core.workspace

    @property
    def folder(self) -> Path:
        """Where the log lies."""
        return self._core.log.folder

    @property
    def log(self) -> EventLog:
        """The event log; write to it from the runtime thread only."""
        return self._core.log

    @property
    def core(self) -> SessionCore:
        """The session on its own thread; for code that runs there."""
        return self._core

    @property
    def model(self) -> str:
        """The pinned model id."""
        return self._core.gate.model

    @property
    def tier(self) -> str:
        """The data tier of the pinned model: standard, contributor or local."""
        return self._core.gate.info.tier

    def tier_text(self) -> str:
        """Where the session stands, what the contributor tier means, and what it would have cost; in lines."""
        return self.call(tiers.told)

    def set_tier(self, tier: str) -> str:
        """Switch to the pinned model's id in `tier`, once the user agrees; says what was done.

        Raises UsageProblem if it cannot be, Denied if it may not be; nothing has changed then.
        """
        return self.call(lambda core: tiers.set_tier(core, tier))

    def set_model(self, model: str) -> str:
        """Pin `model` from here on, once the user agrees, or again after another one answered. Raises as `set_tier`."""
        return self.call(lambda core: tiers.switch(core, model))

    def opt_in(self, words: str) -> str:
        """Opt the repository in to the contributor tier by the words that `tier_text` tells; switches nothing yet."""
        return self.call(lambda core: tiers.opt_in(core, words))

    def withdraw(self) -> str:
        """Take the opt-in back: nothing is sent to a model of the contributor tier any more."""
        return self.call(tiers.withdraw)

    def label(self, path: str, label: str) -> str:
        """Give what lies at a path or glob of the repository a label, public, standard or private, from now on."""
        return self.call(lambda core: tiers.label(core, path, label))

    @property
    def profile(self) -> str:
        """driver or guided."""
        return self._core.gate.info.profile

    @property
    def approvals(self) -> ApprovalsState:
        """Pending questions, as of now."""
        return self.read(lambda core: core.approvals.state.model_copy(deep=True))

    @property
    def rules(self) -> RulesState:
        """The rules in force, as of now."""
        return self.read(lambda core: core.rules.state.model_copy(deep=True))

    @property
    def goals(self) -> GoalsState:
        """All goals, as of now."""
        return self.read(lambda core: core.goals.model_copy(deep=True))

    @property
    def claims(self) -> ClaimsState:
        """What the crew believes, as of now; `standings()` of it says how far."""
        return self.read(lambda core: claims.claims_state(core).model_copy(deep=True))

    def claims_text(self, why: int | None = None) -> str:
        """The claims, or what claim `why` rests on; files are looked at first. UsageProblem if there is none."""
        if why is not None:
            return self.call(lambda core: claims.why_text(core, why))
        return self.call(claims.claims_text)

    def retract_claim(self, number: int, why: str = "") -> str:
        """Take a claim back: whoever has it is told; says what it touches. UsageProblem if there is no such claim."""
        return self.call(lambda core: claims.retract(core, number, why))

    @property
    def ledger(self) -> LedgerState:
        """Money and tokens, as of now."""
        return self.read(lambda core: core.ledger.model_copy(deep=True))

    def call(self, work: Callable[[SessionCore], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        """Run `work` on the runtime thread and wait; an interrupt ends the waiting, not the work."""
        with self._telling():
            return self._runtime.call(work(self._core), timeout=timeout, meanwhile=self.while_waiting)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except LogReadOnly:
            self._told = True
            raise

    def read(self, look: Callable[[SessionCore], T]) -> T:
        """The value of `look` taken on the runtime thread, where nothing changes meanwhile."""

        async def now() -> T:
            return look(self._core)

        return self._runtime.call(now(), timeout=60)

    async def run(self, work: Callable[[SessionCore], Coroutine[Any, Any, T]]) -> T:
        """Run `work` on the runtime thread and await it from another loop; cancelling ends the waiting only."""
        future = asyncio.wrap_future(self._runtime.submit(work(self._core)))
        # asyncio.wait leaves the future alone when it is cancelled. It polls because ipykernel (7.4) takes an
        # interrupt with a plain call_soon, which does not wake a loop that sleeps.
        while not future.done():
            await asyncio.wait((future,), timeout=WAKE_S)
            if self.while_waiting is not None:
                self.while_waiting()
        with self._telling():
            return future.result()

    def repository(self) -> Path:
        """The root of the repository in which goals work and verify commands run, or the folder if it is in none."""
        return self.call(lambda core: core.repository())

    def post(self, function: Callable[[], object]) -> None:
        """Run `function` on the runtime thread soon, without waiting."""
        self._runtime.post(function)

    async def ask(self, text: str) -> str:
        """One turn with the lead, outside any goal."""
        return await self.run(lambda core: core.ask(text))

    async def goal(
        self,
        text: str,
        *,
        verify: str | Sequence[str] = (),
        usd: float | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        hours: float | None = None,
        steps: int | None = 200,
        workers: int = 1,
        tasks: Sequence[TaskSpec | Mapping[str, Any]] = (),
        shadow: bool = False,
        base: str | None = None,
        forbid: Sequence[str] = (),
        holdout: Sequence[str] = (),
        metric: Sequence[str] = (),
        measure: str | None = None,
        reserve: str | None = None,
    ) -> GoalHandle:
        """Start a goal and return its handle at once. Limits: USD, tokens, tool calls, hours, model calls.

        `workers` is the most that work side by side. `tasks` are `TaskSpec`s, or mappings with their fields; without
        them a goal for several workers is split into tasks first. `shadow` lets a folder that is in no repository get
        a private one outside it. `base` is "head", from the last commit, or "dirty", from the files as they are.
        `forbid`, `holdout`, `metric`, `measure` and `reserve` are as the options of `%goal`.

        Raises UsageProblem or GitError, each saying what to do, if the goal cannot be started.
        """
        commands = (verify,) if isinstance(verify, str) else tuple(verify)
        graph = parse_tasks([dict(task) for task in tasks]) if tasks else ()
        clauses = ClauseOptions(tuple(forbid), tuple(holdout), tuple(metric), measure, reserve)
        spec = GoalSpec(text, commands, usd, tokens, calls, hours, steps, workers, graph, shadow, base, clauses)
        number = await self.run(lambda core: core.set_goal(spec))
        return GoalHandle(self, number, text)

    def start_goal(self, spec: GoalSpec) -> GoalHandle:
        """Like `goal`, for callers without an event loop."""
        return GoalHandle(self, self.call(lambda core: core.set_goal(spec)), spec.text)

    def draft_goal(self, spec: GoalSpec) -> DraftHandle:
        """Have the lead propose what decides a goal; it is set once `confirm` of the handle says so."""
        return DraftHandle(self, self.call(lambda core: core.drafts.begin(spec)))

    def open_draft(self) -> DraftHandle | None:
        """Handle of the draft that waits for the lead or the user, if there is one."""
        number = self.read(lambda core: core.drafts.open())
        return None if number is None else DraftHandle(self, number)

    async def plan(self, text: str, *, verify: str | Sequence[str] = ()) -> PlanHandle:
        """Have the lead write a plan for `text`, and return its handle at once; nothing is changed for it.

        `verify` are commands that are to pass in the end. Raises UsageProblem or GitError if it cannot be begun.
        """
        commands = (verify,) if isinstance(verify, str) else tuple(verify)
        return PlanHandle(self, await self.run(lambda core: core.plans.begin(text, commands)))

    def start_plan(self, text: str, verify: Sequence[str] = ()) -> PlanHandle:
        """Like `plan`, for callers without an event loop."""
        return PlanHandle(self, self.call(lambda core: core.plans.begin(text, verify)))

    async def grill(self, text: str | None = None, *, goal: int | None = None, tasks: int | None = None) -> GrillHandle:
        """Attack the newest plan, or the given text, a goal, or the tasks of one; returns its handle at once.

        What can be proven is found at once; reviewers then look from each angle. Of `goal` and `tasks`, 0 is the newest
        goal. Raises UsageProblem if there is no such thing, or something else is under way.
        """
        return GrillHandle(self, await self.run(lambda core: core.grills.begin(text=text, goal=goal, tasks=tasks)))

    def start_grill(self, text: str | None = None, *, goal: int | None = None, tasks: int | None = None) -> GrillHandle:
        """Like `grill`, for callers without an event loop."""
        return GrillHandle(self, self.call(lambda core: core.grills.begin(text=text, goal=goal, tasks=tasks)))

    def newest_grill(self) -> GrillHandle:
        """Handle of the newest attack; UsageProblem if there is none."""
        return GrillHandle(self, self.read(lambda core: core.grills.newest()))

    def newest_plan(self) -> PlanHandle:
        """Handle of the newest plan; UsageProblem if there is none."""
        return PlanHandle(self, self.read(lambda core: core.plans.active()))

    def newest_goal(self) -> GoalHandle:
        """Handle of the goal that was set or resumed last; UsageProblem if there is none or it was cleared."""
        return self.handle(self.read(lambda core: core.active_goal()))

    def handle(self, number: int) -> GoalHandle:
        """Handle of goal `number`."""

        def text(core: SessionCore) -> str:
            waiting = core.queue.state.waiting.get(number)
            return core.goals.goals[core.queue.number(number)].text if waiting is None else str(waiting["text"])

        return GoalHandle(self, number, self.read(text))

    def resume_goal(self, number: int) -> str:
        """Go on with goal `number`; returns what the user should know about where it lands, or nothing."""
        return self.call(lambda core: core.resume_goal(number))

    def begin_queued(self) -> GoalHandle | None:
        """Begin the first goal of the queue that can begin, where no goal runs; None if none waits."""
        number = self.call(lambda core: core.queue.begin_next())
        return None if number is None else self.handle(number)

    def queued(self) -> list[GoalHandle]:
        """The goals that wait for their turn, in order."""
        waiting = self.read(
            lambda core: {number: str(spec["text"]) for number, spec in core.queue.state.waiting.items()}
        )
        return [GoalHandle(self, number, text) for number, text in waiting.items()]

    def goal_result(self, number: int) -> GoalResult:
        """How goal `number` stands now."""
        return self.read(lambda core: result_of(core, number))

    def undo(self, landing: int) -> str:
        """Take landing `landing` (its number in `merges`) back; says in a line what was done.

        Raises UsageProblem or GitError, each saying why not; nothing was touched then.
        """
        return self.call(lambda core: landings.undo(core, landing))

    def merges(self) -> str:
        """The merge queue and what became of earlier merges, as text."""
        return self.read(looks.merges_text)

    def tasks_text(self) -> str:
        """The tasks of the active goal, or of the last that had any: state, files, and who is in whose way."""
        return self.call(looks.tasks_text)

    def map_text(self, asked: str = "") -> str:
        """The map of the repository: all of it, or what `asked` names: a file, a folder, a symbol, words."""
        return self.call(lambda core: looks.map_text(core.workspace, core.effects, asked))

    def worktrees_text(self) -> str:
        """Every worktree of agents on this repository, of all sessions, and what it holds."""
        return self.call(worktrees.listed)

    def reclaim_worktrees(self, name: str | None = None) -> str:
        """Remove the worktrees that hold nothing of their own, or the one of this name; says what became of each.

        One that is named and holds something is asked about; where nobody can be asked, UsageProblem says what it
        holds, and it is kept.
        """
        return self.call(lambda core: worktrees.reclaim(core, name))

    def quarantine_worktree(self, name: str, why: str = "") -> str:
        """Move the worktree of this name out of the way, with all that it holds; says where it is."""
        return self.call(lambda core: worktrees.set_aside(core, name, why or "asked by the user"))

    def stop(self, agent: str = "") -> str:
        """End what runs, at once, or only what `agent` does; says in a line what became of it. All work is kept.

        Raises UsageProblem if nothing runs, or there is no such agent or it does nothing.
        """
        return self.call(lambda core: stop_agent(core, agent, "stopped by the user"))

    def pause(self, number: int) -> None:
        """Let goal `number` rest after the step that is under way."""
        self.read(lambda core: core.pause(number))

    def answer(self, approval: int | None, decision: Decision, *, by: str, why: str = "") -> int:
        """Answer a question (the only pending one if None); returns its number."""
        return self.give(approval, decision, by=by, why=why).approval

    def give(self, approval: int | None, decision: Decision, *, by: str, why: str = "") -> Given:
        """Answer a question (the only pending one if None); returns what became of the answer."""
        return self.call(lambda core: core.approvals.answer(approval, decision, by=by, why=why))

    def allow(self, text: str, scope: Scope = "session", *, by: str = "api") -> int:
        """Put a rule in force: the first words of a command, `land on BRANCH` or `tool NAME`; returns its number."""
        return self.call(lambda core: core.rules.add_typed(text, scope, by=by))

    def disallow(self, number: int, *, by: str = "api") -> None:
        """Take a rule out of force; UsageProblem if there is none of this number."""
        self.call(lambda core: core.rules.remove(number, by=by))

    def roles_text(self) -> str:
        """The roles that the repository brings: whether each is trusted, and whether this session uses it."""
        return self.call(roles.roles_text)

    def trust_roles(self) -> str:
        """Trust the repository's roles as their files are now; says what that gives. UsageProblem if there are none."""
        return self.call(roles.trust)

    def distrust_roles(self) -> str:
        """Trust no role of the repository any more; says so in a line."""
        return self.call(roles.distrust)

    def take_notices(self) -> list[str]:
        """Lines that the user has not been told yet."""

        def take(core: SessionCore) -> list[str]:
            notices, core.notices = core.notices, []
            return notices

        return self.read(take)

    @property
    def cost(self) -> CostReport:
        """What the session cost so far, from its log; shown as a table in a notebook."""
        return cost_of(self.folder)

    def events(self, since: int = 0) -> list[Event]:
        """The durable events from `since` on."""

        async def read() -> list[Event]:
            await self._core.log.flush()
            return list(self._core.log.events(since))

        return self._runtime.call(read())

    def event(self, seq: int) -> Event:
        """Event `seq`; UsageProblem if there is none."""

        async def read() -> Event:
            await self._core.log.flush()
            if not 1 <= seq <= self._core.log.last_seq:
                raise UsageProblem(f"There is no event {seq}: the log holds 1 to {self._core.log.last_seq}.")
            return self._core.log.get(seq)

        return self._runtime.call(read())

    def fork(self, seq: int, *, effects: Effects | None = None, tools: Sequence[Tool] = ()) -> Session:
        """A new session, open beside this one, that continues from event `seq` with the files as they were then.

        It has worktrees of its own, and none of the rights that were given in this session; its goals wait to be
        resumed. This session is not touched. The parameters are as for `open_session`.

        Raises
        ------
        UsageProblem, LogError
            There is no such event.
        GitError
            The files of that event cannot be had any more.
        """
        return self._continued(seq, rewind=False, effects=effects, tools=tools)

    def rewind(self, seq: int, *, effects: Effects | None = None, tools: Sequence[Tool] = ()) -> Session:
        """Go back to event `seq`, if the user agrees: this session ends, and the one that is returned goes on.

        Conversations and the files of agents' worktrees are as they were; what came after `seq`, its files too, is
        kept in this session. Landings on the user's branch stay: `undo` takes them back. Raises as `fork`, and Denied.

        It takes place when this session's log says so: cut off before that, this session goes on as after any crash,
        and what was made is listed as half made; cut off after that, the other session can be resumed.
        """
        self.call(lambda core: time_travel.ask_rewind(core, seq))
        forked = self._continued(seq, rewind=True, effects=effects, tools=tools)
        try:
            self.call(lambda core: time_travel.rewound(core, seq, forked.id))
            forked.call(settled)
            self.close(f"rewound to event {seq}")
        except BaseException:
            # Nobody gets it. Whether it can be resumed is in the log of this session.
            forked.close(f"session {self.id} did not end")
            raise
        return forked

    def _continued(self, seq: int, *, rewind: bool, effects: Effects | None, tools: Sequence[Tool]) -> Session:
        async def ready(core: SessionCore) -> None:
            time_travel.check_event(core, seq)
            await core.log.flush()

        self.call(ready)
        return fork_session(
            self.folder,
            seq,
            settings=self._core.settings,
            interactive=self._core.policy.interactive,
            runtime=None if self._owns_runtime else self._runtime,
            effects=effects,
            tools=tools,
            rewind=rewind,
        )

    def close(self, reason: str = "closed by the user") -> None:
        """End the session in order. Running goals are paused and can be resumed. Idempotent.

        Lock, threads and processes are freed whatever happens. Raises LogReadOnly if the log could not be written to
        its end and nobody was told so before.
        """
        if self._closed:
            return
        self._closed = True

        async def end() -> None:
            try:
                await self._core.close(reason)
            finally:
                await self._effects.aclose()

        try:
            self._runtime.call(end(), timeout=60)
        except LogReadOnly:
            if not self._told:
                raise
        finally:
            if self._owns_runtime:
                self._runtime.stop()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Session(model={self.model!r}, profile={self.profile!r})"


def open_session(
    workspace: str | Path | None = None,
    *,
    resume: str | None = None,
    settings: Settings | None = None,
    interactive: bool = False,
    goal: GoalSpec | None = None,
    runtime: RuntimeThread | None = None,
    effects: Effects | None = None,
    tools: Sequence[Tool] = (),
) -> Session:
    """Open a new session for `workspace` (the current folder), or resume one.

    Parameters
    ----------
    workspace
        Folder of the user's repository; with `resume`, that of the session.
    resume
        Id of a session, a unique beginning of it, or its folder; "last" is the newest one of `workspace`, or else of
        the nearest folder above it that has any; not a fork that is half made.
    settings
        Defaults; the environment is put over them.
    interactive
        Whether somebody can be asked for approvals.
    goal
        What a new session is opened for: if it cannot start, that is said before anything is written. It is not
        started.
    runtime, effects
        Given by hosts that share a runtime thread; otherwise made, and ended by `Session.close`.
    tools
        Tools of the host, such as those for its notebook; one with the name of a built-in tool takes its place.

    Raises
    ------
    ConfigurationError
        No usable model, key, price or approvals mode.
    UsageProblem, LogLocked, LogDamaged
        The session to resume is not there, open elsewhere, or damaged; the goal cannot start.
    GitError
        The folder is no checkout in which `goal` could work.
    """
    effects = effects or LiveEffects()
    chosen = (settings or Settings()).over(effects.environ())
    folder = Path(os.path.expanduser(workspace or Path.cwd())).resolve()
    if not folder.is_dir():
        raise UsageProblem(f"There is no folder {folder}.")
    to_resume = None if resume is None else _folder_to_resume(chosen.home_or_default(), resume, folder)
    if to_resume is not None:
        require_finished(to_resume)
    return _open(folder, to_resume, chosen, interactive, goal, runtime, effects, tools)


def _open(
    folder: Path,
    to_resume: Path | None,
    chosen: Settings,
    interactive: bool,
    goal: GoalSpec | None,
    runtime: RuntimeThread | None,
    effects: Effects,
    tools: Sequence[Tool],
) -> Session:
    thread = runtime or RuntimeThread.start()

    async def open_core() -> SessionCore:
        if to_resume is not None:
            return await SessionCore.resume(to_resume, chosen, effects, interactive=interactive, tools=tools)
        if goal is not None:
            may_ask = interactive and chosen.mode(interactive=True) == "ask"
            await check_goal(goal, folder, chosen, effects, may_ask=may_ask)
        return await SessionCore.create(folder, chosen, effects, interactive=interactive, tools=tools)

    try:
        core = thread.call(open_core())
    except BaseException:
        with contextlib.suppress(Exception):
            thread.call(effects.aclose(), timeout=10)
        if runtime is None:
            thread.stop()
        raise
    return Session(core, thread, effects, owns_runtime=runtime is None)


def fork_session(
    source: Path,
    seq: int,
    *,
    settings: Settings | None = None,
    interactive: bool = False,
    runtime: RuntimeThread | None = None,
    effects: Effects | None = None,
    tools: Sequence[Tool] = (),
    rewind: bool = False,
) -> Session:
    """A new open session that continues the one in folder `source`, which is only read, from event `seq`.

    Parameters are as for `open_session`; `rewind` says that the other one ends with this. Raises as `open_session`
    does to resume, and GitError if the files of that event cannot be had any more; nothing is left behind then.
    """
    effects = effects or LiveEffects()
    chosen = (settings or Settings()).over(effects.environ())
    home = chosen.home_or_default()
    thread = runtime or RuntimeThread.start()
    try:
        folder = thread.call(make_fork(source, seq, home, effects, rewind=rewind))
        workspace = session_at(folder).workspace
        try:
            return _open(workspace, folder, chosen, interactive, None, runtime, effects, tools)
        except BaseException:
            # First the session, so that nobody resumes it when its worktrees are gone.
            take_away(folder)
            thread.call(time_travel.discard(workspace, home, folder.name, effects))
            raise
    finally:
        if runtime is None:
            thread.stop()


def _folder_to_resume(home: Path, name: str, workspace: Path) -> Path:
    if name != "last":
        return find_session(home, name)
    entries = _made(list_sessions(home, workspace))
    # From a folder inside a workspace, that workspace's: the nearest one's.
    entries = entries or sorted(_made(sessions_around(home, workspace)), key=lambda e: len(e.workspace), reverse=True)
    if not entries:
        raise UsageProblem(f"There is no earlier session of {workspace}.")
    return entries[0].folder


def _made(entries: list[SessionEntry]) -> list[SessionEntry]:
    """Without forks that are half made: nobody has worked in them."""
    return [entry for entry in entries if entry.state != "half made"]
