"""The session as users hold it: usable from any thread, with or without IPython; and the handle of a goal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from musecode_jupyter.guard.approvals import ApprovalsState
from musecode_jupyter.guard.ledger import LedgerState
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.effects import Effects, LiveEffects
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.runtime.loop import RuntimeThread
from musecode_jupyter.session.core import GoalSpec, SessionCore
from musecode_jupyter.session.settings import Settings
from musecode_jupyter.session.store import find_session, list_sessions
from musecode_jupyter.skills.goal_state import GoalRecord, GoalsState

T = TypeVar("T")

# How long an interrupt of a cell that awaits may take at most, in seconds.
WAKE_S = 0.2


@dataclass(frozen=True)
class GoalResult:
    """How a goal stands or ended. `status` is running, paused, met, budget, stalled, blocked, stopped or error."""

    status: str
    why: str
    commit: str | None
    model_calls: int
    tool_calls: int
    tokens: int
    usd: float
    seconds: float

    @property
    def met(self) -> bool:
        """Whether all clauses hold on the landed tree."""
        return self.status == "met"


class GoalHandle:
    """A goal that was started: await it, wait for it, stop it; interrupting a wait leaves the goal running.

    `session` is where it runs, `number` the seq of its goal.set event.
    """

    def __init__(self, session: Session, number: int, text: str) -> None:
        self.session = session
        self.number = number
        self.text = text

    @property
    def result(self) -> GoalResult:
        """How the goal stands now."""
        return self.session.goal_result(self.number)

    @property
    def status(self) -> str:
        """running, paused, met, budget, stalled, blocked, stopped or error."""
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
        self.session.call(lambda core: core.resume_goal(self.number))

    def stop(self) -> None:
        """End what runs, at once; what was done so far is kept."""
        self.session.call(lambda core: core.stop(self.number))

    def steer(self, text: str) -> None:
        """Tell the agent something while it works."""
        self.session.call(lambda core: core.steer(text))

    def diff(self) -> str:
        """The landed diff, or what the worktree holds so far."""
        return self.session.call(lambda core: core.diff(self.number))

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
        self._closed = False

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
    def profile(self) -> str:
        """driver or guided."""
        return self._core.gate.info.profile

    @property
    def approvals(self) -> ApprovalsState:
        """Pending questions and session rules, as of now."""
        return self.read(lambda core: core.approvals.state.model_copy(deep=True))

    @property
    def goals(self) -> GoalsState:
        """All goals, as of now."""
        return self.read(lambda core: core.goals.model_copy(deep=True))

    @property
    def ledger(self) -> LedgerState:
        """Money and tokens, as of now."""
        return self.read(lambda core: core.ledger.model_copy(deep=True))

    def call(self, work: Callable[[SessionCore], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        """Run `work` on the runtime thread and wait; an interrupt ends the waiting, not the work."""
        return self._runtime.call(work(self._core), timeout=timeout)

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
        return future.result()

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
        verify: str | Sequence[str],
        usd: float | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        hours: float | None = None,
        steps: int | None = 200,
    ) -> GoalHandle:
        """Start a goal and return its handle at once. Limits: USD, tokens, tool calls, hours, model calls.

        Raises UsageProblem or GitError, each saying what to do, if the goal cannot be started.
        """
        commands = (verify,) if isinstance(verify, str) else tuple(verify)
        spec = GoalSpec(text, commands, usd, tokens, calls, hours, steps)
        number = await self.run(lambda core: core.set_goal(spec))
        return GoalHandle(self, number, text)

    def start_goal(self, spec: GoalSpec) -> GoalHandle:
        """Like `goal`, for callers without an event loop."""
        return GoalHandle(self, self.call(lambda core: core.set_goal(spec)), spec.text)

    def newest_goal(self) -> GoalHandle:
        """Handle of the newest goal; UsageProblem if there is none."""
        goals = self.goals.goals
        if not goals:
            raise UsageProblem('There is no goal yet. Start one: %goal "TEXT" --verify "COMMAND"')
        number = max(goals)
        return GoalHandle(self, number, goals[number].text)

    def goal_result(self, number: int) -> GoalResult:
        """How goal `number` stands now."""
        return self.read(lambda core: _result(core, number))

    def pause(self, number: int) -> None:
        """Let goal `number` rest after the step that is under way."""
        self.read(lambda core: core.pause(number))

    def answer(
        self,
        approval: int | None,
        decision: Literal["approve", "approve_session", "deny"],
        *,
        by: str,
        why: str = "",
    ) -> int:
        """Answer a question (the only pending one if None); returns its number."""
        return self.call(lambda core: core.approvals.answer(approval, decision, by=by, why=why))

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

    def close(self, reason: str = "closed by the user") -> None:
        """End the session in order. Running goals are paused and can be resumed. Idempotent."""
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
    runtime: RuntimeThread | None = None,
    effects: Effects | None = None,
) -> Session:
    """Open a new session for `workspace` (the current folder), or resume one.

    Parameters
    ----------
    workspace
        Folder of the user's repository; with `resume`, that of the session.
    resume
        Id of a session, a unique beginning of it, or its folder; "last" is the newest one of `workspace`.
    settings
        Defaults; the environment is put over them.
    interactive
        Whether somebody can be asked for approvals.
    runtime, effects
        Given by hosts that share a runtime thread; otherwise made, and ended by `Session.close`.

    Raises
    ------
    ConfigurationError
        No usable model, key, price or approvals mode.
    UsageProblem, LogLocked, LogDamaged
        The session to resume is not there, open elsewhere, or damaged.
    """
    effects = effects or LiveEffects()
    chosen = (settings or Settings()).over(effects.environ())
    folder = Path(workspace or Path.cwd()).expanduser().resolve()
    if not folder.is_dir():
        raise UsageProblem(f"There is no folder {folder}.")
    to_resume = None if resume is None else _folder_to_resume(chosen.home_or_default(), resume, folder)
    thread = runtime or RuntimeThread.start()

    async def open_core() -> SessionCore:
        if to_resume is not None:
            return await SessionCore.resume(to_resume, chosen, effects, interactive=interactive)
        return await SessionCore.create(folder, chosen, effects, interactive=interactive)

    try:
        core = thread.call(open_core())
    except BaseException:
        with contextlib.suppress(Exception):
            thread.call(effects.aclose(), timeout=10)
        if runtime is None:
            thread.stop()
        raise
    return Session(core, thread, effects, owns_runtime=runtime is None)


def _folder_to_resume(home: Path, name: str, workspace: Path) -> Path:
    if name != "last":
        return find_session(home, name)
    entries = list_sessions(home, workspace)
    if not entries:
        raise UsageProblem(f"There is no earlier session of {workspace}.")
    return entries[0].folder


def _result(core: SessionCore, number: int) -> GoalResult:
    record: GoalRecord | None = core.goals.goals.get(number)
    if record is None:
        raise UsageProblem(f"There is no goal {number} in this session.")
    seconds = 0.0
    if record.started:
        end = datetime.fromisoformat(record.ended) if record.ended else core.now()
        seconds = max(0.0, (end - datetime.fromisoformat(record.started)).total_seconds())
    return GoalResult(
        status=record.status,
        why=record.why,
        commit=record.commit,
        model_calls=record.model_calls,
        tool_calls=record.tool_calls,
        tokens=record.used_tokens,
        usd=record.used_usd,
        seconds=seconds,
    )
