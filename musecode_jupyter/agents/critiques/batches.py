"""Has batches of file changes reviewed while the work on them goes on, and tells their authors what was found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from musecode_jupyter.agents.answers import HARNESS
from musecode_jupyter.agents.beside import CUT_OFF, GOAL_ENDS, TASK_ENDS, Beside
from musecode_jupyter.agents.critiques.batch_state import AUTHORS, REVIEWER, BatchesState, Changed, has_settled
from musecode_jupyter.agents.critiques.review import Change, Reviews
from musecode_jupyter.agents.critiques.state import Finding, scope_of
from musecode_jupyter.agents.critiques.text import critiques_of, letter
from musecode_jupyter.agents.mail.box import Mailbox
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.state import AgentsState
from musecode_jupyter.agents.tasks.state import TasksState
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.answers import answering

MOST_OF_A_TASK = 6
"""So many batches of one piece of work are put to a model; of those that follow is said what is proven without one."""
HANDED_IN = "The work asks to land, and is reviewed as a whole."


@dataclass(frozen=True)
class Steps:
    """How many model calls each reviewer of a batch may take; with 0, `why` says why none."""

    steps: int
    why: str = ""


@dataclass
class Batches:
    """Owner of the reviews of batches; used on the runtime thread.

    A batch has settled where an agent has changed files and then taken a step, its calls with their results, in which
    it changed none. One review is under way at a time: what settles meanwhile waits, and is one batch with what comes
    next. `steps` says what the budget of a goal has for a batch of an agent; `reviews` reviews the work of the goal
    that runs, none does where it is None.
    """

    log: EventLog
    mailbox: Mailbox
    steps: Callable[[int, str], Steps]
    reviews: Reviews | None = None

    def __post_init__(self) -> None:
        self._beside = Beside(self.log, self._ended)
        self.log.on_durable(self._saw)

    @property
    def state(self) -> BatchesState:
        """Batches as folded."""
        state = self.log.state("batches")
        assert isinstance(state, BatchesState)
        return state

    @property
    def _agents(self) -> AgentsState:
        state = self.log.state("agents")
        assert isinstance(state, AgentsState)
        return state

    @property
    def busy(self) -> list[int]:
        """The batches whose review is under way."""
        return self._beside.busy

    async def before_step(self, task: Task) -> None:
        """Begin the review of what has settled as an agent is about to take a step; take back what it need not read.

        Returns once the files are taken down as they are now: the step may change them.
        """
        author = self._agents.agents[task.agent]
        if task.goal is None or author.role not in AUTHORS:
            return
        worktree = task.place.worktree
        scope = "" if worktree is None else self.state.works.get(worktree, "")
        for seq, each in list(self.mailbox.state.waiting(task.agent).items()):
            if each.sender == REVIEWER and each.topic not in {_topic(scope), _notes(scope)}:
                self.mailbox.drop(seq, "it is about other work")
        reviews = self.reviews
        if worktree is None or reviews is None or reviews.mode == "off" or self.state.open:
            return
        changed = self.state.changed.get(worktree)
        if changed is not None and has_settled(author, changed):
            await self._begin(reviews, task.goal, worktree, task.agent, scope, changed)

    async def _begin(
        self, reviews: Reviews, goal: int, worktree: int, agent: str, scope: str, changed: Changed
    ) -> None:
        tasks = self.log.state("tasks")
        assert isinstance(tasks, TasksState)
        if reviews.mode != "full":
            given = Steps(0)
        elif self.state.asked.get(scope, 0) >= MOST_OF_A_TASK:
            given = Steps(0, f"{MOST_OF_A_TASK} batches of it were put to one")
        else:
            given = self.steps(goal, agent)
        settled = self.log.post(
            "batch.settled",
            {
                "goal": goal,
                "task": tasks.by_worktree.get(worktree),
                "worktree": worktree,
                "agent": agent,
                "files": list(changed.files),
                "steps": given.steps,
                "why": given.why,
            },
            agent=HARNESS,
            cause=(goal, changed.last),
        )
        taken = asyncio.Event()
        self._beside.begin(settled, self._review(reviews, settled, taken), "review of batch")
        await self._beside.until(settled.seq, taken)

    async def _review(self, reviews: Reviews, settled: Event, taken: asyncio.Event) -> None:
        with answering(reviews.tools.answers(f"batch {settled.seq}")):
            await reviews.review_batch(settled, taken.set)

    def _ended(self, settled: Event, why: str, again: bool) -> None:
        closed = {"batch": settled.seq, "why": why, "again": again}
        self.log.post("batch.closed", closed, agent=HARNESS, cause=(settled.seq,))
        if not why:
            self._tell(settled)

    def _tell(self, settled: Event) -> None:
        """Write to the author of what was found and is not known to them: one letter of what is proven and grave, and
        one for the digest; each takes the place of one that still waits."""
        data = settled.data
        scope = scope_of(data["goal"], data["task"], data["worktree"])
        told = set(self.state.told)
        left = [each for each in critiques_of(self.log).of(scope) if each.state == "open" and each.number not in told]
        grave = [each for each in left if _grave(each)]
        other = [each for each in left if not _grave(each)]
        waiting = self.mailbox.state.waiting(data["agent"])
        for findings, topic in ((grave, _topic(scope)), (other, _notes(scope))):
            numbers = tuple(each.number for each in findings)
            before = [seq for seq, each in waiting.items() if each.sender == REVIEWER and each.topic == topic]
            if before and set(self.state.letters.get(before[-1], [])) == set(numbers):
                continue
            if numbers:
                self.mailbox.send(
                    REVIEWER,
                    data["agent"],
                    subject="finding" if findings is grave else "note",
                    topic=topic,
                    text=letter(findings),
                    cause=(settled.seq, *numbers),
                    evident=True,
                )
            else:
                for seq in before:
                    self.mailbox.drop(seq, "what it told is settled")

    async def make_way(self, change: Change) -> None:
        """Before a change that asks to land is reviewed: no review of a batch of it is under way.

        One of the very tree is waited for, another is given up. Its author is told the rest with the landing.
        """
        for batch in [seq for seq, each in self.state.open.items() if each.scope == change.scope]:
            put = (change.scope, change.base, change.tree)
            passes = [each for each in critiques_of(self.log).passes.values() if not each.complete]
            if not any((each.scope, each.base, each.tree) == put for each in passes):
                self._beside.end(batch, HANDED_IN)
            await self._beside.wait(batch)
        for seq, each in list(self.mailbox.state.waiting(change.author).items()):
            if each.sender == REVIEWER and each.topic in {_topic(change.scope), _notes(change.scope)}:
                self.mailbox.drop(seq, HANDED_IN)

    def _saw(self, event: Event) -> None:
        """End reviews of work that has come to rest."""
        if event.kind in TASK_ENDS or event.kind in GOAL_ENDS:
            for seq, batch in self.state.open.items():
                of_task = event.kind in TASK_ENDS and batch.task == event.data["task"]
                if of_task or (event.kind in GOAL_ENDS and batch.goal == event.data["goal"]):
                    self._beside.end(seq, f"the work has come to rest ({event.kind})")

    async def rest(self, *, gently: bool = False) -> None:
        """End all reviews of batches, as their goal comes to rest.

        At once, or `gently` with the step that is under way, after which their reviewers find that they are to pause.
        """
        await self._beside.rest("the goal has come to rest", gently=gently)

    def settle(self, why: str = CUT_OFF) -> None:
        """After a restart: the reviews that were under way are given up; what they looked at is not reviewed yet."""
        for batch in list(self.state.open):
            self.log.post("batch.closed", {"batch": batch, "why": why, "again": True}, agent=HARNESS, cause=(batch,))


def _grave(finding: Finding) -> bool:
    return finding.blocks or (finding.proven and finding.severity in {"blocking", "major"})


def _topic(scope: str) -> str:
    return f"review of {scope}"


def _notes(scope: str) -> str:
    return f"notes on {scope}"
