"""A goal with several workers: split into tasks, worked on side by side, landed one by one, judged as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from musecode_jupyter.agents.context import task_message
from musecode_jupyter.agents.landing.checks import as_checks, clean_place, is_there, run_commands, work_place
from musecode_jupyter.agents.landing.queue import MergeQueue
from musecode_jupyter.agents.landing.state import FINAL, MergesState
from musecode_jupyter.agents.landing.tools import HARNESS
from musecode_jupyter.agents.landing.work import Verdict, Work
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.prompts import WORKER
from musecode_jupyter.agents.tasks.facts import imports_below
from musecode_jupyter.agents.tasks.graph import TaskSpec, expand, problems_of
from musecode_jupyter.agents.tasks.propose import proposed
from musecode_jupyter.agents.tasks.scheduling import FileSets, Footprint, Repository, choose, related
from musecode_jupyter.agents.tasks.state import OVER, PlanRecord, TaskRecord, TasksState
from musecode_jupyter.guard.ledger import LedgerState
from musecode_jupyter.runtime.answers import answered, answering
from musecode_jupyter.runtime.errors import GitError, LogError, MuseError, UsageProblem
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.skills.goal import GoalRunner, GoalTools, branch_gone
from musecode_jupyter.skills.task_planning import one_for_each
from musecode_jupyter.skills.task_trials import Findings, judge, may_run
from musecode_jupyter.tools.executor import CallResult, FormedCall
from musecode_jupyter.tools.registry import Place
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.rework import rework_on
from musecode_jupyter.workspace.worktrees import some_names

MAX_ROUNDS = 3
"""So often a task's work may be sent back, since the user let it go on, before it is done with nothing beside it."""

MAX_PLANS = 3
"""So often a goal is split into tasks before it counts as stalled."""

LOST = (
    "The folder of your worktree was taken away, and was made again with what you had handed in before, if anything. "
    "What you changed after that is not in it: look at the files, and do it again."
)

CORRECT = "Make it run and resume; or correct the tasks and set the goal anew."


@dataclass(frozen=True)
class FanOutTools:
    """What the runner is handed beside the tools of any goal.

    `worker` makes sure that the agent of this name exists. `halt` has every worker of the goal rest at its next step.
    `guided` says that the model cannot propose tasks. `history` gives what was committed together.
    """

    queue: MergeQueue
    worker: Callable[[str], Awaitable[None]]
    halt: Callable[[int, str], None]
    guided: bool
    history: Callable[[], Awaitable[Repository]]


class FanOutRunner(GoalRunner):
    """Drives a goal with tasks from wherever the log says it is; used on the runtime thread."""

    def __init__(self, tools: GoalTools, fan_out: FanOutTools, goal: int) -> None:
        super().__init__(tools, goal)
        self._f = fan_out
        self._repository: Repository | None = None
        self._holds: dict[int, str] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._stopping: dict[int, str] = {}
        self._granted: set[str] = set()
        self._imports: dict[str, frozenset[str]] = {}

    @property
    def tasks(self) -> dict[int, TaskRecord]:
        """The tasks of this goal as folded, by seq of task.created."""
        return self._tasks_state.of_goal(self.goal)

    @property
    def _tasks_state(self) -> TasksState:
        state = self._t.log.state("tasks")
        assert isinstance(state, TasksState)
        return state

    @property
    def _plan_record(self) -> PlanRecord:
        return self._tasks_state.plan(self.goal)

    @property
    def _since(self) -> int:
        """The event since which a new graph is wanted."""
        return max(self.goal, max(self.tasks, default=0))

    async def _baseline_place(self) -> Place:
        return await self._clean_place(self.record.base)

    # --- tasks -------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        await self._settle_merges()
        if not await (self._try_those_left() if self._planned() else self._plan()):
            return
        await self._fan_out()
        waiting = {seq: task for seq, task in self.tasks.items() if task.state == "paused"}
        if waiting:
            told = " ".join(f"Task {task.spec.name}: {task.why}" for task in waiting.values())
            await self._stop("blocked", told)
            return
        await self._emit("goal.claimed", text=_told(self.tasks), cause=self.goal)

    def _planned(self) -> bool:
        """Whether there are tasks that stand for what is left: some to do, or all over and not judged yet."""
        tasks = self.tasks
        left = any(task.state not in OVER for task in tasks.values())
        return left or max(tasks, default=0) > self._plan_record.settled

    async def _plan(self) -> bool:
        """Split what is left of the goal into tasks; False if the goal has stopped instead."""
        if self._plans() >= MAX_PLANS:
            left = [f"{t.spec.name}: {t.why}" for t in self.tasks.values() if t.state == "abandoned"]
            more = f" Not done: {'; '.join(left)}" if left else ""
            await self._stop("stalled", f"Split into tasks {MAX_PLANS} times, and the check still fails.{more}")
            return False
        self._repository = None
        specs = await (self._by_checks() if self._f.guided else self._by_lead())
        if not specs and self._f.guided:
            return True  # no check fails any more: what is left is to judge
        specs = _renamed(specs, {task.spec.name for task in self.tasks.values()})
        problems = problems_of(specs)
        if problems:
            await self._stop("stalled", f"The goal was not split into tasks: {problems[0]}")
            return False
        if self._f.guided:
            await self._create(specs)
            return True
        if not await self._may_run(specs):
            return False
        back = self._plan_record.returned <= self._since
        findings = await self._try(specs, send_back=back)
        if back and (findings.wrong or findings.done):
            return await self._plan()
        if findings.wrong:
            await self._stop("stalled", f"The goal was not split into tasks: {' '.join(findings.wrong)}")
            return False
        await self._leave_out(await self._create(specs), findings)
        return True

    async def _create(self, specs: Sequence[TaskSpec]) -> dict[str, int]:
        """Write the graph down, all of it in one go; returns the seqs by name."""
        by, plan = "harness" if self._f.guided else "lead", self._tasks_state.graphs(self.goal) + 1
        made = {
            spec.name: self._t.log.post(
                "task.created", task_created(self.goal, spec, by, plan), agent=self.record.agent, cause=(self.goal,)
            ).seq
            for spec in specs
        }
        await self._t.log.flush()
        return made

    def _plans(self) -> int:
        """How often the goal was split into tasks, since the user last let it go on."""
        return self._tasks_state.graphs(self.goal) - self._plan_record.before

    # --- trials ------------------------------------------------------------------------------------------

    async def _try_those_left(self) -> bool:
        """Try what nobody has begun, such as the user's own tasks; False if the goal has stopped instead."""
        # Those that the harness made are failing checks.
        left = {
            seq: task
            for seq, task in self.tasks.items()
            if task.state == "open" and not task.agent and task.by != "harness"
        }
        findings = await self._try([task.spec for task in left.values()], send_back=False)
        if findings.wrong:
            await self._stop("blocked", f"{' '.join(findings.wrong)} {CORRECT}")
            return False
        await self._leave_out({task.spec.name: seq for seq, task in left.items()}, findings)
        return True

    async def _leave_out(self, made: dict[str, int], findings: Findings) -> None:
        tip = await self._tip() if findings.done else ""
        for name in findings.done:
            why = f"not worked on: its acceptance commands passed already at {tip[:10]}"
            await self._task("task.done", made[name], merge=None, commit=tip, why=why)

    async def _try(self, specs: Sequence[TaskSpec], *, send_back: bool) -> Findings:
        """Run the acceptance commands of `specs` on a clean checkout of the tip, but for what is known of its tree.

        What comes out is written down; with `send_back` the lead is told of what is wrong with the graph.
        """
        tip = await self._tip()
        tree = await self._t.git.tree_of(tip)
        ran: dict[str, CallResult] = {}
        for spec in specs:
            if all(command in ran or self._known_result(command, tree) for command in spec.accept):
                continue
            self._t.rest(self.goal)
            needs = (*spec.reads, *spec.writes) or None
            place = await clean_place(self._t, self._check_path, tip, needs)
            results = await run_commands(self._t, spec.accept, place, "try", self.goal)
            ran.update(zip(spec.accept, results, strict=True))
        trials = self._plan_record.trials
        passed = {command: trial.passed for command, trial in trials.items() if trial.tree == tree}
        passed |= {command: result.ok for command, result in ran.items()}
        known = {task.spec.name: task.spec for task in self.tasks.values()} | {spec.name: spec for spec in specs}
        findings = judge(specs, ran, passed, known, (await self._known()).paths)
        report = findings.report() if findings.wrong or (send_back and findings.done) else ""
        if ran or report:
            await self._emit_raw(
                "tasks.tried",
                {
                    "goal": self.goal,
                    "agent": self.record.agent if send_back else "",
                    "tree": tree,
                    "commit": tip,
                    "checks": as_checks(list(ran), list(ran.values())),
                    "report": report,
                },
            )
        return findings

    def _known_result(self, command: str, tree: str) -> bool:
        """Whether a run of `command` on `tree` is known that stands. A failure by which a graph went back does not:
        the user may have made the command run since."""
        plan = self._plan_record
        trial = plan.trials.get(command)
        if trial is None or trial.tree != tree:
            return False
        return trial.passed or trial.call > plan.returned or command in self.record.verify

    async def _by_checks(self) -> list[TaskSpec]:
        place = await self._clean_place(await self._tip())
        results = await self._verify(place, "plan")
        failing = [(c, r) for c, r in zip(self._ran, results, strict=True) if not r.ok]
        located = [await self._locate(result, place) for _, result in failing]
        return one_for_each([command for command, _ in failing], located)

    async def _locate(self, check: CallResult, place: Place) -> CallResult:
        call = FormedCall("locate", {"check": check.call}, "harness", purpose="plan")
        return await self._t.executor.run_one(
            call, agent=HARNESS, turn=0, place=place, typed=frozenset(), cause=self.goal
        )

    async def _by_lead(self) -> list[TaskSpec]:
        record = self.record
        place = await self._clean_place(await self._tip())
        try:
            await self._agent_state("running", f"splits goal {self.goal} into tasks")
            await self._t.loop.turn(Task(record.agent, place, self.goal, self.goal, tuple(record.verify)))
        finally:
            await self._agent_state("idle", "")
        return proposed(list(self._t.log.events(since=self._since)), record.agent)

    async def _may_run(self, specs: Sequence[TaskSpec]) -> bool:
        """Whether the acceptance commands may run; if not, the goal is stopped."""
        typed = {*self.record.verify, *self._granted}
        granted, why, asked = await may_run(self._t, specs, typed, self._check_path, self.record.agent)
        if granted:
            self._granted.update(command for spec in specs for command in spec.accept)
        else:
            await self._stop("blocked", f"The tasks' acceptance commands were denied ({why}): {'; '.join(asked)}")
        return granted

    # --- workers -----------------------------------------------------------------------------------------

    async def _fan_out(self) -> None:
        running = self._running = {}
        try:
            while True:
                await self._start_ready(running)
                if not running:
                    break
                done, _ = await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
                for seq in [seq for seq, task in running.items() if task in done]:
                    running.pop(seq).result()
        except asyncio.CancelledError:
            for task in running.values():
                task.cancel()
            await to_the_end(_all_ended(running.values()))
            raise
        except Exception as first:
            # The others end the step that is under way, and rest.
            self._f.halt(self.goal, f"another worker ended: {first}")
            await _all_ended(running.values())
            for task in running.values():
                error = None if task.cancelled() else task.exception()
                if isinstance(error, LogError):
                    raise error from first
            raise
        if any(task.state == "paused" for task in self.tasks.values()):
            return
        for seq, left in self.tasks.items():
            if left.state == "open":
                await self._task("task.abandoned", seq, why="what it comes after was not done")

    async def _start_ready(self, running: dict[int, asyncio.Task[None]]) -> None:
        self._t.rest(self.goal)
        tasks = self.tasks
        for seq in list(tasks):
            await self._widen(seq)
        tasks = self.tasks
        waiting = {seq: task for seq, task in tasks.items() if task.state == "open" and seq not in running}
        alone = next((seq for seq, task in waiting.items() if task.exclusive), None)
        if alone is not None or any(tasks[seq].exclusive for seq in running):
            # Its work met with others' too often: nothing else runs beside it.
            names = [] if running or alone is None else [alone]
        else:
            names = await self._choose(waiting, running)
        for seq in names:
            agent = self._free_agent(tasks[seq], running)
            await self._f.worker(agent)
            self._holds[seq] = agent
            running[seq] = asyncio.create_task(self.until_stopped(seq, agent), name=f"task {seq} of goal {self.goal}")

    async def _choose(self, waiting: dict[int, TaskRecord], running: dict[int, asyncio.Task[None]]) -> list[int]:
        by_name = {task.spec.name: seq for seq, task in self.tasks.items()}
        abandoned = {task.spec.name for task in self.tasks.values() if task.state in {"abandoned", "paused"}}
        chosen = choose(
            [task.spec for seq, task in self.tasks.items() if seq in waiting or task.state == "done" or seq in running],
            done={task.spec.name for task in self.tasks.values() if task.state == "done"},
            running={self.tasks[seq].spec.name: self.tasks[seq].sets for seq in running},
            repository=await self._known(),
            width=await self._width(len(running)),
            held=abandoned,
        )
        return [by_name[name] for name in chosen]

    async def _known(self) -> Repository:
        if self._repository is None:
            place = await self._clean_place(await self._tip())
            files = await place.list_files()
            imports = await imports_below(self._t.effects, place.root, files)
            history = await self._f.history()
            self._repository = Repository(
                files=tuple(files), imports=imports, together=history.together, commits=history.commits
            )
        return self._repository

    @answered
    async def _width(self, running: int) -> int:
        """How many may run: the user's ceiling, and no more than the budget has reserves for."""
        record = self.record
        ledger = self._t.log.state("ledger")
        assert isinstance(ledger, LedgerState)
        reserves = [reserve.microusd for reserve in ledger.open.values() if reserve.agent in record.agents]
        largest = max(reserves, default=0)
        if record.limit_microusd is None or not largest:
            return record.workers
        room = (record.limit_microusd - record.used_microusd - sum(reserves)) // largest
        return max(1, min(record.workers, running + max(0, room)))

    def _free_agent(self, task: TaskRecord, running: dict[int, asyncio.Task[None]]) -> str:
        busy = {self._holds[seq] for seq in running}
        if task.agent and task.agent not in busy:
            return task.agent
        return next(name for n in range(1, len(busy) + 2) if (name := f"{WORKER}{n}") not in busy)

    async def stop_worker(self, agent: str, why: str, by: str = "user") -> str:
        """End what `agent` does at once; its task waits for the user, and its work so far is kept. Says so in a line.

        What had begun to move the branch lands. Raises UsageProblem if the agent has no task now.
        """
        seq = next((seq for seq, task in self._running.items() if self._holds[seq] == agent and not task.done()), None)
        if seq is None:
            raise UsageProblem(f"{agent} has no task now; `%muse agents` says what each does.")
        if seq not in self._stopping:
            self._t.log.post("user.interrupt", {"scope": agent, "why": why}, agent=by, cause=(self.goal, seq))
            self.interrupt(seq, why)
        await asyncio.wait([self._running[seq]])
        self._stopping.pop(seq, None)
        task = self.tasks[seq]
        if task.state in OVER:
            return f"{agent} is stopped; its task {task.spec.name} is {task.state}."
        return f"{agent} is stopped: its task {task.spec.name} waits, with what was done so far. The others go on."

    def works_on(self, task: int) -> bool:
        """Whether somebody is at task `task` now."""
        return task in self._running

    def interrupt(self, task: int, why: str) -> None:
        """Have the worker of `task` end at once, because of an event user.interrupt."""
        self._stopping[task] = why
        self._running[task].cancel()

    async def until_stopped(self, seq: int, agent: str) -> None:
        """Have `agent` work on task `seq` until the task has landed, waits for the user, is given up, or is stopped."""
        try:
            await self._work_on(seq, agent)
        except asyncio.CancelledError:
            why = self._stopping.get(seq)
            if why is None:
                raise
            with answering(self._t.answers(agent)):
                await to_the_end(self._stopped(seq, agent, why))

    async def _stopped(self, seq: int, agent: str, why: str) -> None:
        """What becomes of a task whose worker was stopped: it waits, unless its work had landed just then."""
        await self._settle_merges(seq)
        task = self.tasks[seq]
        if task.state in OVER:
            return
        kept = "" if task.worktree is None else f" What {agent} did so far is kept in its worktree, "
        if task.worktree is not None:
            kept += f"on branch {self._workspace.worktrees[task.worktree].branch}."
        await self._task("task.paused", seq, why=f"{agent} was {why}.{kept}")

    async def _work_on(self, seq: int, agent: str) -> None:
        """Work on one task until it has landed, waits for the user, or is given up."""
        with answering(self._t.answers(agent)):
            try:
                await self._rounds(seq, agent)
            except GitError as error:
                # What is wrong is wrong with this task's worktree: the others need not end for it.
                await self._task("task.paused", seq, why=str(error))

    async def _rounds(self, seq: int, agent: str) -> None:
        lost = await self._is_lost(seq)
        worktree = await self._task_worktree(seq)
        told = bool(self.tasks[seq].since) and self.tasks[seq].agent == agent
        text = "" if told else task_message(self._t.log.get(seq).data)
        await self._task("task.leased", seq, agent=agent, worktree=worktree, text=text)
        if told and lost:
            why = "the folder of its worktree was gone"
            await self._task("task.bounced", seq, agent=agent, merge=None, why=why, report=LOST, exclusive=False)
        while True:
            record = self.tasks[seq]
            place = self._place(worktree)
            try:
                await self._worker_state(agent, "running", f"task {record.spec.name}")
                step = await self._t.loop.turn(Task(agent, place, record.since, self.goal, record.spec.accept))
            finally:
                await self._worker_state(agent, "idle", "")
            if step.gave_up:
                await self._task("task.abandoned", seq, why=step.text)
                return
            await self._widen(seq)
            verdict = await self._hand_in(seq, agent, worktree)
            if verdict is None or verdict.kind == "landed":
                return
            if verdict.kind == "held":
                await self._task("task.paused", seq, why=verdict.why)
                return
            back = self._sent_back(seq)
            if back >= MAX_ROUNDS:
                await self._task("task.abandoned", seq, why=f"sent back {back + 1} times; {verdict.why}")
                return
            if await self._send_back(seq, agent, worktree, verdict):
                return

    async def _hand_in(self, seq: int, agent: str, worktree: int) -> Verdict | None:
        """Commit the work and have it land; None if there was nothing to land and the task is over or sent back."""
        record = self.tasks[seq]
        tree = self._workspace.worktrees[worktree]
        inside = await Git.at_worktree(Path(tree.path), self._t.effects)
        title = record.spec.goal.strip().splitlines()[0][:72].rstrip(".")
        try:
            commit = await self._committed(inside, tree, title, f"Musecode-Task: {record.spec.name}")
        except GitError as error:
            # Its worker can mend it, mostly: a repository in the tree, a file that cannot be read.
            if self._sent_back(seq) >= MAX_ROUNDS:
                raise
            return Verdict("bounced", 0, str(error), f"Your work cannot be committed: {error}")
        if await self._t.git.tree_of(commit) == await self._t.git.tree_of(tree.base):
            return await self._nothing_to_land(seq, agent, worktree, commit)
        branch = f"refs/heads/{self.record.branch}"
        target = await self._t.git.ref(branch)
        if target is None:
            return Verdict("held", 0, branch_gone(self.record))
        if not await self._still_holds(target, tree.base):
            again = await to_the_end(self._follow(inside, worktree, commit, target))
            if again:
                return self._again(again)
            commit = (await inside.head()).commit
            if await self._t.git.tree_of(commit) == await self._t.git.tree_of(tree.base):
                return await self._nothing_to_land(seq, agent, worktree, commit)
        written = set(await self._t.git.diff_paths(tree.base, commit))
        await self._learn_imports(inside, written)
        verdict = await self._f.queue.submit(
            Work(
                goal=self.goal,
                task=seq,
                title=title,
                agent=agent,
                worktree=worktree,
                commit=commit,
                base=tree.base,
                kept=tree.branch,
                ref=branch,
                accept=record.spec.accept,
                reads=frozenset({*record.spec.reads, *record.read}),
                affected=partial(self._affected, seq, written),
                usd=self.record.used_usd,
                needs=self._needs(seq),
            )
        )
        if verdict.kind == "landed":
            await self._task("task.done", seq, merge=verdict.merge, commit=verdict.commit)
            await self._remove(worktree, verdict.commit or commit)
        return verdict

    def _again(self, paths: list[str]) -> Verdict:
        branch = self.record.branch
        why = f"{branch} was rewritten meanwhile, and the work conflicts with it in {some_names(paths)}."
        report = (
            f"{branch} was rewritten while you worked. Your worktree holds it as it is now, with your other changes on "
            f"top. These files are as they are there, without your changes: {some_names(paths, 20)}. Read them again, "
            "and do those changes again."
        )
        return Verdict("bounced", 0, why, report)

    async def _nothing_to_land(self, seq: int, agent: str, worktree: int, commit: str) -> Verdict | None:
        results = await run_commands(self._t, self.tasks[seq].spec.accept, self._place(worktree), "accept", self.goal)
        if all(result.ok for result in results):
            await self._task("task.done", seq, merge=None, commit=commit)
            await self._remove(worktree, commit)
            return None
        output = next(result.output for result in results if not result.ok)
        return Verdict(
            "bounced",
            0,
            "nothing was changed, and the check fails",
            f"Nothing was changed, and the check fails:\n{output}",
        )

    async def _learn_imports(self, inside: Git, written: set[str]) -> None:
        """Add what the `written` files of a worktree import to what is known of the others."""
        known = (await self._known()).imports
        found = await imports_below(self._t.effects, inside.root, await inside.list_files(), sorted(written))
        for path, used in [*(known.items() if not self._imports else ()), *found.items()]:
            self._imports[path] = self._imports.get(path, frozenset()) | used

    def _affected(self, seq: int, written: set[str]) -> tuple[str, ...]:
        """Acceptance commands of landed tasks that this one's change could break, or that could break this one."""
        mine = self.tasks[seq]
        footprint = Footprint(frozenset(mine.read), frozenset(written))
        commands: dict[str, None] = {}
        for task in self.tasks.values():
            if task.state == "done" and task.merge is not None:
                theirs = Footprint(frozenset(task.read), frozenset(task.written))
                if related(footprint, theirs, self._imports):
                    commands.update(dict.fromkeys(task.spec.accept))
        return tuple(command for command in commands if command not in mine.spec.accept)

    async def _send_back(self, seq: int, agent: str, worktree: int, verdict: Verdict) -> bool:
        """Give the task back to its worker, on top of what the target holds now; True if it has to wait its turn."""
        exclusive = self._sent_back(seq) + 1 >= MAX_ROUNDS
        tree = self._workspace.worktrees[worktree]
        report = verdict.report
        if verdict.commit is not None and verdict.commit != tree.base:
            inside = await Git.at_worktree(Path(tree.path), self._t.effects)
            files = await self._t.git.diff_paths(tree.base, verdict.commit)
            if await self._still_holds(verdict.commit, tree.base):
                again = await rework_on(inside, verdict.commit)
                head = (await inside.head()).commit
                await self._emit_raw(
                    "worktree.updated",
                    {"worktree": worktree, "commit": head, "target": verdict.commit, "files": files},
                )
            else:
                commit = (await inside.head()).commit
                again = await to_the_end(self._follow(inside, worktree, commit, verdict.commit))
            report += f"\n\nYour worktree holds what landed meanwhile ({some_names(files)}). Read these files again."
            if again:
                report += f" These files are as they landed, without your changes: {some_names(again)}. Do those again."
        await self._task(
            "task.bounced",
            seq,
            agent=agent,
            merge=verdict.merge or None,
            why=verdict.why,
            report=report,
            exclusive=exclusive,
        )
        return exclusive

    def _sent_back(self, seq: int) -> int:
        """How often a task was sent back since the user last let the goal go on."""
        count = 0
        for event in self._t.log.events(since=seq):
            if event.kind == "goal.resumed" and event.data["goal"] == self.goal:
                count = 0
            elif event.kind == "task.bounced" and event.data["task"] == seq:
                count += 1
        return count

    async def _settle_merges(self, only: int | None = None) -> None:
        """Bring what was cut off to its end: a merge that was landing lands, others are handed in again.

        `only` the merges of this task, if given.
        """
        state = self._t.log.state("merges")
        assert isinstance(state, MergesState)
        for number, merge in list(state.merges.items()):
            if merge.goal != self.goal or merge.task is None or only not in (None, merge.task):
                continue
            if self.tasks[merge.task].state in OVER:
                continue
            if merge.state not in FINAL:
                await self._f.queue.finish(number)
            landed = state.merges[number]
            if landed.state == "landed" and landed.new is not None:
                await self._task("task.done", merge.task, merge=number, commit=landed.new)
                worktree = self.tasks[merge.task].worktree
                if worktree is not None:
                    await self._remove(worktree, landed.new)

    # --- the end -----------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        tip = await self._tip()
        results = await self._verify(await self._clauses.place(tip), "judge")
        passed = all(result.ok for result in results)
        verdicts = await self._clauses.verdicts(tip, self.record.base, measure=passed)
        passed = passed and all(each.passed for each in verdicts)
        untouched = [task.spec.name for task in self.tasks.values() if task.state == "done" and task.why]
        more = f" Nobody worked on {', '.join(untouched)}: the acceptance commands passed already." if untouched else ""
        report = "" if passed else f"{self._report(results, verdicts)}{more} Propose the tasks that are left."
        await self._judged("landing", await self._t.git.tree_of(tip), tip, results, passed, report, verdicts)

    async def _land(self) -> None:
        # Everything has landed, task by task; what was judged is the branch itself. A goal that is met is not resumed:
        # nobody would come back for its worktrees.
        await to_the_end(self._meet_and_clean())

    async def _meet_and_clean(self) -> None:
        await self._meet()
        await self.clean_up()

    # --- small things ------------------------------------------------------------------------------------

    async def _tip(self) -> str:
        tip = await self._t.git.ref(f"refs/heads/{self.record.branch}")
        if tip is None:
            raise MuseError(branch_gone(self.record))
        return tip

    async def _task_worktree(self, seq: int) -> int:
        known = before = self._workspace.of_task(seq)
        if known is None:
            name = f"{self._t.session}-{self.goal}-{self.tasks[seq].spec.name}"
            known = await self._emit_raw(
                "worktree.creating",
                {
                    "goal": self.goal,
                    "task": seq,
                    "path": str(self._t.worktrees / name),
                    "branch": f"musecode/{self._t.session}/{self.goal}-{self.tasks[seq].spec.name}",
                    "base": await self._tip(),
                },
            )
        tree = self._workspace.worktrees[known]
        if not tree.created or not await is_there(self._t.git, Path(tree.path)):
            await work_place(self._t, Path(tree.path), tree.branch, tree.base, self._needs(seq))
            await self._worktree_made(known, tree, again=before is not None)
        return known

    async def _is_lost(self, seq: int) -> bool:
        """Whether the task had a worktree whose folder somebody has taken away."""
        known = self._workspace.of_task(seq)
        tree = None if known is None else self._workspace.worktrees[known]
        return tree is not None and tree.created and not await is_there(self._t.git, Path(tree.path))

    def _needs(self, seq: int) -> tuple[str, ...] | None:
        """What it says that it touches; None where it says nothing, or a check of the whole is to be had."""
        spec = self.tasks[seq].spec
        return (*spec.reads, *spec.writes) or None

    async def _widen(self, seq: int) -> None:
        """Write down what the task reads and writes beyond what was declared, if that has grown."""
        if self.tasks[seq].state in OVER or not (self.tasks[seq].read or self.tasks[seq].written):
            return
        files = (await self._known()).paths
        task = self.tasks[seq]
        declared = expand(task.spec.writes, files)
        wider = FileSets(
            tuple(sorted(set(task.read) - declared - expand(task.spec.reads, files))),
            tuple(sorted(set(task.written) - declared)),
        )
        if wider != task.wider:
            await self._task("task.widened", seq, reads=list(wider.reads), writes=list(wider.writes))

    async def _remove(self, worktree: int, contained_in: str) -> None:
        """Take the worktree of a task away whose work has landed; what holds more than that is kept."""
        tree = self._workspace.worktrees.get(worktree)
        if tree is not None:
            await self._remove_worktree(worktree, tree, contained_in)

    async def _worker_state(self, agent: str, state: str, why: str) -> None:
        await self._t.log.append("agent.state", {"state": state, "why": why}, agent=agent)

    async def _task(self, kind: str, seq: int, **data: object) -> int:
        event = await self._t.log.append(kind, {"goal": self.goal, "task": seq, **data}, agent=HARNESS, cause=(seq,))
        return event.seq


def task_created(goal: int, spec: TaskSpec, by: str, plan: int = 1) -> dict[str, object]:
    """The data of task.created for `spec` in the goal's graph number `plan`; `by` is user, lead or harness."""
    return {
        "goal": goal,
        "name": spec.name,
        "text": spec.goal,
        "accept": list(spec.accept),
        "reads": list(spec.reads),
        "writes": list(spec.writes),
        "after": list(spec.after),
        "risk": spec.risk,
        "by": by,
        "plan": plan,
    }


def _renamed(specs: Sequence[TaskSpec], taken: set[str]) -> list[TaskSpec]:
    """The tasks under names that no earlier task of the goal has."""
    names: dict[str, str] = {}
    for spec in specs:
        number, name = 2, spec.name
        while name in taken or name in names.values():
            name, number = f"{spec.name[:36]}-{number}", number + 1
        names.setdefault(spec.name, name)
    return [
        spec.model_copy(update={"name": names[spec.name], "after": tuple(names.get(one, one) for one in spec.after)})
        for spec in specs
    ]


def _told(tasks: dict[int, TaskRecord]) -> str:
    done = [task.spec.name for task in tasks.values() if task.state == "done"]
    left = [task.spec.name for task in tasks.values() if task.state == "abandoned"]
    return f"Done: {', '.join(done) or 'nothing'}." + (f" Given up: {', '.join(left)}." if left else "")


async def _all_ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    if waiting := list(tasks):
        await asyncio.wait(waiting)
