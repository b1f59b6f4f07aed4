"""Issues the commands of a recorded session again, by the code that issued them, and finds the first that differs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn, cast

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.crew import ASK, Crew, ask_tool, not_passed_on
from musecode_jupyter.agents.critiques.mode import parse_review
from musecode_jupyter.agents.critiques.review import Reviews
from musecode_jupyter.agents.driver import Driver
from musecode_jupyter.agents.guided import Guided
from musecode_jupyter.agents.landing.tools import COMMIT_FIRST
from musecode_jupyter.agents.loop import Loop
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.prompts import REVIEWERS
from musecode_jupyter.agents.state import AgentsState
from musecode_jupyter.agents.verifier.checks import check
from musecode_jupyter.guard.gate import Completion
from musecode_jupyter.guard.policy import Policy
from musecode_jupyter.guard.rules import Rules
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.answers import answering
from musecode_jupyter.runtime.effects import LiveEffects
from musecode_jupyter.runtime.errors import BudgetExceeded, ModelError, MuseError
from musecode_jupyter.session.crew import LEAD_NAME, awaited
from musecode_jupyter.session.grills import NOT_CONNECTED, no_files
from musecode_jupyter.session.landings import IN_SHADOW
from musecode_jupyter.session.questions import NOT_MADE
from musecode_jupyter.session.rerun.log import RerunLog, ends_with
from musecode_jupyter.session.rerun.parts import (
    NEVER,
    Rerun,
    RerunAnswers,
    RerunApprovals,
    RerunExecutor,
    RerunGate,
    Schedule,
)
from musecode_jupyter.session.rerun.record import (
    BESIDE,
    COMMANDS,
    Differs,
    RecordEnds,
    Stretch,
    interrupted_task,
    issued,
    stretches,
)
from musecode_jupyter.session.runners import REPLAYS, TOOLS, goal_runner
from musecode_jupyter.skills.fan_out import FanOutRunner
from musecode_jupyter.skills.goal import GoalTools
from musecode_jupyter.skills.goal_draft import DraftRunner
from musecode_jupyter.skills.goal_lines import goal_lines
from musecode_jupyter.skills.goal_state import GoalsState
from musecode_jupyter.skills.grill import GrillRunner, GrillTools, request_of
from musecode_jupyter.skills.ground_state import GroundsState
from musecode_jupyter.skills.plan import PlanRunner, PlanTools
from musecode_jupyter.skills.plan_state import offered_now
from musecode_jupyter.tools.registry import Place, Registry
from musecode_jupyter.workspace.git import Git

ENDS_OF = {"batch.closed": "batch", "checks.ended": "begun"}
"""What ends work beside that of agents, and the field that names the event which began it."""


@dataclass(frozen=True)
class CommandProof:
    """How many commands the code issued again; `problem` names the first event and field that differ.

    `unchecked` says why nothing was run again, or what part was not.
    """

    commands: int
    problem: str | None = None
    seq: int | None = None
    unchecked: str = ""


def check_commands(log: EventLog) -> CommandProof:
    """Run the code of this version on what `log` holds: model answers, results of tools, answers of git and the user.

    For each agent, and for the harness, each command must come in the recorded order with the recorded arguments.
    """
    events = list(log.events())
    if not any(event.kind == "session.opened" for event in events):
        return CommandProof(0, unchecked="no session was opened in it")
    last = _unlike_this_version(events)
    if last is not None:
        return CommandProof(
            0, unchecked=f"event {last.seq}: recorded by a version of this program that issued commands otherwise"
        )
    # A loop of its own: whoever asks may stand in one, as a cell of a notebook does.
    with ThreadPoolExecutor(1, thread_name_prefix="musecode-rerun") as thread:
        return thread.submit(asyncio.run, _check(log, events)).result()


def _unlike_this_version(events: list[Event]) -> Event | None:
    opened = [event for event in events if event.kind in {"session.opened", "session.resumed"}]
    return next((event for event in opened if event.data.get("replays", 0) != REPLAYS), None)


async def _check(log: EventLog, events: list[Event]) -> CommandProof:
    # What ends where the record ends is nobody's failure.
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    stand_in = RerunLog(log.folder, log.blob)
    done = 0
    left: list[Event] = []
    for stretch in stretches(events):
        before = [event for event in events[done : stretch.start.seq - events[0].seq]]
        left += [event for event in before if event.kind in COMMANDS and issued(event)]
        stand_in.begin(before, stretch)
        done = stretch.start.seq - events[0].seq + 1 + len(stretch.events)
        try:
            await _Work(stand_in, stretch, events).run()
        except Differs as differs:
            return CommandProof(stand_in.issued, str(differs), differs.seq)
        if not left:
            left = stand_in.left()
        if left:
            missed = left[0]
            return CommandProof(
                stand_in.issued,
                f"event {missed.seq}, field kind: recorded {missed.kind!r} of {missed.agent}, which is not issued now",
                missed.seq,
            )
        stand_in.finish(stretch.events)
    left = [event for event in events[done:] if event.kind in COMMANDS and issued(event)]
    if left:
        missed = left[0]
        return CommandProof(
            stand_in.issued,
            f"event {missed.seq}, field kind: recorded {missed.kind!r} of {missed.agent}, which is not issued now",
            missed.seq,
        )
    return CommandProof(stand_in.issued)


class _Work:
    """One stretch, run again."""

    def __init__(self, log: RerunLog, stretch: Stretch, events: list[Event]) -> None:
        self._log = log
        self._stretch = stretch
        self._events = events
        self._schedule = Schedule(log)
        self._rerun = Rerun(log, stretch, self._schedule)
        opened = [
            event
            for event in events
            if event.seq < stretch.start.seq and event.kind in {"session.opened", "session.resumed", "session.mode"}
        ]
        process = dict(next(event.data for event in reversed(opened) if event.kind != "session.mode"))
        switched = [event for event in events if event.kind == "tier.switched" and event.seq < stretch.start.seq]
        if switched and all(event.seq < switched[-1].seq for event in opened if event.kind != "session.mode"):
            process |= {name: switched[-1].data[name] for name in ("room", "price")}
        mode = opened[-1].data
        self._profile = str(process["profile"])
        self._review = parse_review(process.get("review") or "off", self._profile)
        # A folder that was copied or renamed goes on under its own name.
        names = [str(name) for event in opened if (name := event.data.get("session"))]
        self._session = names[-1] if names else log.folder.name
        self._workspace = Path(str(events[0].data["workspace"]))
        log.on_world = self._world
        self._runner: FanOutRunner | None = None
        self._turns: list[asyncio.Task[None]] = []
        self._reviews: Reviews | None = None
        self._tools: GoalTools | None = None
        self._gate = RerunGate(self._rerun, process)
        stand_in = cast(EventLog, log)
        effects = _NoWorld(self._rerun)
        approvals = RerunApprovals(stand_in, Rules(stand_in, effects, ""))
        approvals.rerun = self._rerun
        self._executor = RerunExecutor(
            log=stand_in,
            effects=effects,
            registry=Registry.of([*TOOLS, *([ask_tool(_nobody)] if self._has_crew() else [])]),
            policy=Policy(mode["approvals"], bool(mode["interactive"])),
            approvals=approvals,
            outputs=log.folder,
            child_env={},
            sandbox=cast(Any, None),
            offered=partial(offered_now, stand_in),
        )
        self._executor.rerun = self._rerun
        gate = cast(Any, self._gate)
        self._driver = Driver(stand_in, gate, goal_lines=partial(goal_lines, stand_in))
        mind = Guided(stand_in, gate) if self._profile == "guided" else self._driver
        self._loop = Loop(stand_in, self._executor, mind, self._checkpoint)
        self._effects = effects
        self._approvals = approvals

    async def run(self) -> None:
        """Until the work ends, or nothing of what it waits for was recorded."""
        work = asyncio.create_task(self._work())
        stopped = False
        while True:
            await _settled()
            if work.done():
                # Where the record of whoever leads the work ends, those of the workers may go on.
                if self._log.differs is None and _record_ended(work) and self._schedule.release():
                    continue
                if all(turn.done() for turn in self._turns):
                    # What standing agents do by themselves may go on when the work is done.
                    if self._log.differs is None and self._log.wake(NEVER):
                        continue
                    break
            if self._log.differs is not None:
                work.cancel()
                for turn in self._turns:
                    turn.cancel()
                self._schedule.end()
                continue
            # A standing agent's turn begins before what came of it comes about, and also where all others wait in vain.
            if self._log.wake(self._schedule.next_seq()) or self._schedule.release():
                continue
            stop = self._log.to_come(lambda event: interrupted_task(event) is not None)
            if stop is not None:
                self._log.reach(stop.seq)
                continue
            if stopped:
                self._schedule.end()
            else:
                # What it waits for did not come: the user, the end of the session or of the process stopped it here.
                work.cancel()
                for turn in self._turns:
                    turn.cancel()
            stopped = True
        self._schedule.end()
        await _settled()
        self._log.on_world = lambda _event: None
        done = [work, *self._turns]
        errors = [None if each.cancelled() else each.exception() for each in done]
        if self._log.differs is not None:
            raise self._log.differs
        if self._log.suspect is not None and self._log.left():
            raise self._log.suspect
        for error in errors:
            if error is not None and not _ended(error):
                raise error

    def _world(self, event: Event) -> None:
        """Let what the user and the world bring have its effect on the work."""
        task = interrupted_task(event)
        if task is not None and self._runner is not None:
            if self._runner.works_on(task):
                self._runner.interrupt(task, event.data["why"])
            else:
                self._log.differ(
                    event.seq, f"event {event.seq}: recorded that task {task} is stopped, now nobody is at it"
                )
        if event.kind == "agent.woken":
            self._turns.append(asyncio.create_task(self._turn(event)))
        elif event.kind == "batch.settled" and self._reviews is not None:
            self._begin_beside(event, "batch", self._reviews.review_batch)
        elif event.kind == "checks.begun" and self._tools is not None:
            self._begin_beside(event, "checks", partial(check, self._tools))

    async def _turn(self, woken: Event) -> None:
        """A turn of a standing agent; whoever asked has its answer from the record."""
        place = Place(Path(woken.data["place"]), woken.data["worktree"], _no_files)
        # How it ended was told to whoever asked.
        with contextlib.suppress(MuseError):
            task = Task(woken.agent, place, woken.seq, woken.data["goal"])
            said = await self._loop.turn(task)
            if not_passed_on(cast(EventLog, self._log), woken.agent, woken.seq, said.text):
                await self._loop.turn(task)

    def _begin_beside(self, begun: Event, what: str, work: Callable[[Event], Awaitable[object]]) -> None:
        self._turns.append(asyncio.create_task(self._beside(begun, partial(self._answered, begun, what, work))))

    async def _beside(self, begun: Event, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The review of a batch of changes, or checks, beside the work; how it ended is in the record."""
        ends = (each for each in self._stretch.events if each.kind in ENDS_OF)
        ended = next((each for each in ends if each.data[ENDS_OF[each.kind]] == begun.seq), None)
        ends_with.set(ended)
        # What came about before it began has done so.
        await self._schedule.until(begun, HARNESS)
        task = asyncio.create_task(work())
        self._turns.append(task)
        if ended is not None:
            await self._schedule.until(ended, HARNESS)
            # If it came to its end, nothing of it is left.
            task.cancel()

    async def _answered(self, begun: Event, what: str, work: Callable[[Event], Awaitable[object]]) -> None:
        with contextlib.suppress(MuseError), answering(RerunAnswers(self._rerun, f"{what} {begun.seq}")):
            await work(begun)

    def _has_crew(self) -> bool:
        """Whether models were offered to ask standing agents."""
        seeds = (event for event in self._events if event.kind == "agent.seeded")
        return any(tool["name"] == ASK for event in seeds for tool in event.data["tools"])

    async def _checkpoint(self, task: Task) -> None:
        if task.agent in REVIEWERS and self._driver.said_already(self._agents.agents[task.agent]):
            # A pass that was cut off after its last word does nothing more, and its review goes on.
            return
        await self._rerun.checkpoint(task.agent)
        self._gate.expect(task.agent)
        self._driver.effort = self._gate.effort

    async def _work(self) -> None:
        if self._stretch.goal is not None:
            await self._goal()
        elif self._stretch.plan is not None:
            place = Place(self._git().root, None, _no_files)
            tools = PlanTools(**self._landing_parts(), loop=self._loop, place=place, guided=self._profile == "guided")
            plan = self._stretch.plan
            await self._with_lead(PlanRunner(tools, plan).run, Task(LEAD_NAME, place, plan))
        elif self._stretch.draft is not None:
            place = Place(self._git().root, None, _no_files)
            tools = PlanTools(**self._landing_parts(), loop=self._loop, place=place, guided=False)
            draft = self._stretch.draft
            await self._with_lead(DraftRunner(tools, draft).run, Task(LEAD_NAME, place, draft))
        elif self._stretch.grill is not None:
            with contextlib.suppress(MuseError):
                await _attack(self._rerun)(self._grill_tools(), self._stretch.grill).run()
        elif not self._stretch.by_itself:
            task = Task(LEAD_NAME, Place(self._workspace, None, _no_files), self._stretch.start.seq)
            await self._with_lead(partial(self._loop.turn, task), task)

    def _grill_tools(self) -> GrillTools:
        git = self._git()
        listed = any(event.kind == "git.answered" for event in self._stretch.events)
        return GrillTools(
            log=cast(EventLog, self._log),
            executor=self._executor,
            place=Place(git.root, None, _no_files),
            files=git.list_files if listed else no_files,
            ask=self._ask,
            answers=partial(RerunAnswers, self._rerun),
            small=self._profile == "guided",
            room=self._gate.room,
        )

    async def _ask(self, view: Event, angle: str) -> Completion:
        """The answer to a question of a view, or why it was not sent: that is in the record of its angle."""
        events = self._stretch.events
        if not any(event.kind == "model.requested" and event.data["view"] == view.seq for event in events):
            came = next((e for e in events if e.kind == "grill.angle" and e.data["angle"] == angle), None)
            if came is not None and came.data["state"] == "not tried":
                raise BudgetExceeded(came.data["why"], scope="")
            if came is not None and came.data["state"] == "failed":
                raise ModelError(came.data["why"], kind=NOT_CONNECTED)
            # It was stopped, or cut off, before it was sent.
            await self._schedule.until(None, view.agent)
        await self._gate.ready(view.agent)
        gate = cast(Any, self._gate)
        request = request_of(gate, view, small=self._profile == "guided", effort=self._gate.effort)
        purpose = view.data["purpose"]
        return await self._gate.complete(
            request, agent=view.agent, turn=0, view=view.seq, purpose=purpose, cause=(view.seq,)
        )

    async def _with_lead(self, work: Callable[[], Awaitable[object]], task: Task) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            if self._log.next_by(LEAD_NAME) is not None:
                self._loop.drop_calls(task, NOT_MADE)
            raise
        except MuseError:
            # It was told to whoever asked.
            return

    async def _goal(self) -> None:
        goal = self._stretch.goal
        assert goal is not None
        self._log.bring(lambda event: event.kind == "goal.based")
        grounds = self._log.state("grounds")
        assert isinstance(grounds, GroundsState)
        ground = grounds.goals[goal]
        if not ground.settled:
            return
        state = self._log.state("goals")
        assert isinstance(state, GoalsState)
        tools = GoalTools(
            **self._landing_parts(),
            loop=self._loop,
            rest=self._rest,
            remedy=IN_SHADOW if ground.shadow else COMMIT_FIRST,
        )
        runner = goal_runner(
            tools,
            goal,
            workers=state.goals[goal].workers,
            agent=self._agent,
            review=self._review,
            halt=lambda _goal, _why: None,
            guided=self._profile == "guided",
            several=_several(self._schedule),
        )
        self._reviews, self._tools = runner.reviews, runner.tools
        if isinstance(runner, FanOutRunner):
            self._runner = runner
        await runner.run()

    def _landing_parts(self) -> dict[str, Any]:
        return {
            "log": cast(EventLog, self._log),
            "effects": self._effects,
            "git": self._git(),
            "executor": self._executor,
            "approvals": self._approvals,
            "worktrees": self._worktrees(),
            "session": self._session,
            "open_documents": list,
            "answers": partial(RerunAnswers, self._rerun),
        }

    def _rest(self, _goal: int) -> None:
        ending = self._stretch.ending
        if ending is None or ending.kind != "goal.paused":
            return
        following = self._log.next_of(lambda event: event.seq != ending.seq and event.agent not in BESIDE)
        if following is None or following.seq > ending.seq or (self._several and not self._begins()):
            self._rerun.end()

    def _begins(self) -> bool:
        """Whether work on a task begins later on."""
        return self._log.next_of(lambda event: event.kind in {"task.leased", "worktree.creating"}) is not None

    @property
    def _agents(self) -> AgentsState:
        state = self._log.state("agents")
        assert isinstance(state, AgentsState)
        return state

    @cached_property
    def _several(self) -> bool:
        return any(event.kind == "task.created" for event in self._events)

    async def _agent(self, agent: str, role: str) -> None:
        self._log.make(agent, amid=agent in awaited(cast(EventLog, self._log)))

    def _git(self) -> Git:
        for event in self._stretch.events:
            if event.kind == "git.answered":
                where = event.data["arguments"].get("git") or event.data["arguments"].get("self")
                if where:
                    return Git.revived(self._effects, where)
        return Git(self._workspace, self._workspace / ".git", self._workspace / ".git", self._effects)

    def _worktrees(self) -> Path:
        # What is proved may be a copy that lies elsewhere.
        for event in self._events:
            if event.kind == "worktree.creating":
                return Path(event.data["path"]).parent
            if event.kind == "git.answered" and event.data["question"] == "_check_out":
                return Path(event.data["arguments"]["path"]).parent
        return self._log.folder.parent.parent / "worktrees"


def _several(schedule: Schedule) -> type[FanOutRunner]:
    class Several(FanOutRunner):
        """Workers of whom each ends where its own record ends: the others go on to the ends of theirs."""

        async def until_stopped(self, seq: int, agent: str) -> None:
            try:
                await super().until_stopped(seq, agent)
            except RecordEnds:
                await schedule.until(None, agent)

    return Several


def _attack(rerun: Rerun) -> type[GrillRunner]:
    class Attack(GrillRunner):
        """An attack of which each chain ends where its own record ends: the others go on to the ends of theirs."""

        async def append(self, kind: str, data: Mapping[str, Any], agent: str, *cause: int) -> Event:
            if rerun.stretch.stopped and rerun.log.next_by(agent) is None:
                await rerun.schedule.until(None, agent)
            return await super().append(kind, data, agent, *cause)

    return Attack


def _record_ended(work: asyncio.Task[None]) -> bool:
    return not work.cancelled() and isinstance(work.exception(), RecordEnds)


def _ended(error: BaseException) -> bool:
    """Whether the error, or each of several, says no more than that the record ends."""
    if isinstance(error, BaseExceptionGroup):
        return all(_ended(each) for each in error.exceptions)
    return isinstance(error, RecordEnds | asyncio.CancelledError)


def _nobody() -> Crew:
    raise AssertionError("what was asked was answered in the record")


async def _no_files() -> list[str]:
    return []


async def _settled() -> None:
    """Return when nothing on this loop can go on by itself."""
    ready: Callable[[], int] = partial(len, getattr(asyncio.get_running_loop(), "_ready", [None]))
    for _ in range(10_000):
        await _Pass()
        if not ready():
            break


class _Pass:
    """Lets whatever else is ready on the loop go first."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class _NoWorld(LiveEffects):
    """No world: whatever is asked of it was not recorded."""

    def __init__(self, rerun: Rerun) -> None:
        super().__init__()
        self._rerun = rerun

    def now(self) -> datetime:
        return self._rerun.now()

    def environ(self) -> Mapping[str, str]:
        return {}

    async def sleep(self, seconds: float) -> None:
        self._asked("a pause")

    async def run(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        self._asked("a process")

    async def ask(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        self._asked("a program")

    async def disk(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        self._asked("a file")

    def http(self) -> NoReturn:
        self._asked("the network")

    def _asked(self, what: str) -> NoReturn:
        last = self._rerun.log.last_seq
        raise self._rerun.log.differ(last, f"after event {last}: {what} is asked for now, which was not recorded")
