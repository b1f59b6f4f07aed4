"""Has the checks of work that goes on run beside it, and tells at once what turned red or green."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.beside import CUT_OFF, GOAL_ENDS, TASK_ENDS, Beside
from musecode_jupyter.agents.critiques.asked import runs_before
from musecode_jupyter.agents.critiques.batch_state import AUTHORS, has_settled
from musecode_jupyter.agents.critiques.state import scope_of
from musecode_jupyter.agents.landing.checks import as_checks
from musecode_jupyter.agents.landing.tools import LandingTools
from musecode_jupyter.agents.mail.box import Mailbox
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.state import AgentsState
from musecode_jupyter.agents.tasks.state import TasksState
from musecode_jupyter.agents.verifier.checks import MOST_SECONDS, Checked, check, checks_of, commands_of, letter, turned
from musecode_jupyter.agents.verifier.state import VERIFIER, ChecksState
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.answers import answering

HANDED_IN = "The work asks to land, and is checked as a whole."


@dataclass
class Verifier:
    """Owner of the checks beside the work; used on the runtime thread. It asks no model.

    Work is checked where its author has changed files and then taken a step in which it changed none; one check at a
    time. `goal_commands` gives those of a goal, `make` makes the agent as which the commands are run; `tools` are those
    of the goal that runs, nothing is checked where there are none.
    """

    log: EventLog
    mailbox: Mailbox
    goal_commands: Callable[[int], Sequence[str]]
    make: Callable[[], Awaitable[None]]
    tools: LandingTools | None = None
    _checked: dict[int, Checked] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._beside = Beside(self.log, self._ended)
        self.log.on_durable(self._saw)

    @property
    def state(self) -> ChecksState:
        """Checks as folded."""
        return checks_of(self.log)

    @property
    def busy(self) -> list[int]:
        """The checks that are under way."""
        return self._beside.busy

    async def before_step(self, task: Task) -> None:
        """Begin to check what has settled as an agent is about to take a step; take back what it need not read.

        Returns once the files are taken down as they are now: the step may change them.
        """
        agents = self.log.state("agents")
        assert isinstance(agents, AgentsState)
        author = agents.agents[task.agent]
        if task.goal is None or author.role not in AUTHORS:
            return
        worktree = task.place.worktree
        scope = "" if worktree is None else self.state.works.get(worktree, "")
        self._drop(task.agent, "it is about other work", but=scope)
        if worktree is None or self.tools is None or self.state.open:
            return
        changed = self.state.changed.get(worktree)
        if changed is None or not has_settled(author, changed):
            return
        tasks = self.log.state("tasks")
        assert isinstance(tasks, TasksState)
        of_task = tasks.by_worktree.get(worktree)
        every = commands_of(self.log, self.goal_commands(task.goal), of_task, changed.files)
        slow = {each for each in every if self.state.seconds.get(each, 0.0) >= MOST_SECONDS}
        commands = [each for each in every if each not in slow and each not in self.state.flaky]
        if not commands:
            return
        begun = self.log.post(
            "checks.begun",
            {
                "goal": task.goal,
                "task": of_task,
                "worktree": worktree,
                "agent": task.agent,
                "commands": commands,
                "left_out": [each for each in every if each not in commands],
            },
            agent=HARNESS,
            cause=(task.goal, changed.last),
        )
        taken = asyncio.Event()
        self._beside.begin(begun, self._check(self.tools, begun, taken), "checks")
        await self._beside.until(begun.seq, taken)

    async def _check(self, tools: LandingTools, begun: Event, taken: asyncio.Event) -> None:
        await self.make()
        scope = scope_of(begun.data["goal"], begun.data["task"], begun.data["worktree"])
        self.log.post("agent.state", {"state": "running", "why": f"checks {scope}"}, agent=VERIFIER)
        try:
            with answering(tools.answers(f"checks {begun.seq}")):
                self._checked[begun.seq] = await check(tools, begun, taken.set)
        finally:
            if self.log.writable:
                self.log.post("agent.state", {"state": "idle", "why": ""}, agent=VERIFIER)

    def _ended(self, begun: Event, why: str, again: bool) -> None:
        checked = self._checked.pop(begun.seq, None)
        ended: dict[str, object] = {"begun": begun.seq, "why": why, "again": again}
        told: list[dict[str, object]] = []
        if checked is not None and not why:
            told = turned(self.log, begun, checked)
            ended |= {"tree": checked.tree, "checks": as_checks(checked.commands, checked.results)}
            ended |= {"turned": told, "flaky": list(checked.flaky)}
        seq = self.log.post("checks.ended", ended, agent=HARNESS, cause=(begun.seq,)).seq
        if checked is not None and (told or checked.flaky):
            self._tell(begun, checked, seq, told)

    def _tell(self, begun: Event, checked: Checked, seq: int, told: Sequence[dict[str, object]]) -> None:
        """Write to the author of what it does not know yet: what it ran itself, it has seen."""
        data = begun.data
        seen = {command: passed for command, _, passed in runs_before(self.log, begun)}
        new = {str(each["command"]) for each in told if seen.get(str(each["command"])) != each["passed"]}
        scope = scope_of(data["goal"], data["task"], data["worktree"])
        if told:
            self._drop(data["agent"], "it is so no longer")
        if new or checked.flaky:
            self.mailbox.send(
                VERIFIER,
                data["agent"],
                subject="transition",
                topic=_topic(scope),
                text=letter(checked, new),
                cause=(seq,),
                evident=True,
            )

    def _drop(self, to: str, why: str, but: str | None = None) -> None:
        for seq, each in list(self.mailbox.state.waiting(to).items()):
            if each.sender == VERIFIER and (but is None or each.topic != _topic(but)):
                self.mailbox.drop(seq, why)

    def _saw(self, event: Event) -> None:
        """End checks of work that has come to rest, or asks to land: then all of it is checked."""
        data = event.data
        for seq, run in self.state.open.items():
            of_goal = data.get("goal") == run.goal
            if (event.kind in TASK_ENDS and data["task"] == run.task) or (event.kind in GOAL_ENDS and of_goal):
                self._beside.end(seq, f"the work has come to rest ({event.kind})")
            elif (event.kind == "goal.claimed" and of_goal and run.task is None) or (
                event.kind == "merge.enqueued" and of_goal and data.get("task") == run.task
            ):
                self._beside.end(seq, HANDED_IN)
        if event.kind in {"goal.claimed", "merge.enqueued"}:
            author = event.agent if event.kind == "goal.claimed" else data.get("agent")
            if author:
                self._drop(author, HANDED_IN)

    async def rest(self, *, gently: bool = False) -> None:
        """End all checks as their goal comes to rest: at once, or `gently` with the command that runs."""
        await self._beside.rest("the goal has come to rest", gently=gently)

    def settle(self, why: str = CUT_OFF) -> None:
        """After a restart: the checks that were under way are given up; what they were about is not checked yet."""
        for seq in list(self.state.open):
            self.log.post("checks.ended", {"begun": seq, "why": why, "again": True}, agent=HARNESS, cause=(seq,))


def _topic(scope: str) -> str:
    return f"checks of {scope}"
