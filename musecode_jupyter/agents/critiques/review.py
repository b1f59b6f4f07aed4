"""Reviews of a change: what is proven without a model, then independent passes of reviewers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from musecode_jupyter.agents.critiques.asked import asked_of, runs_before
from musecode_jupyter.agents.critiques.changed import Asked, Found
from musecode_jupyter.agents.critiques.drafts import Draft, merged, of_mechanical, of_raised
from musecode_jupyter.agents.critiques.finding_tool import Settled, raised_since, settled_since
from musecode_jupyter.agents.critiques.mechanical import MECHANICAL, Spot, look_at, mechanical_findings, standing
from musecode_jupyter.agents.critiques.mode import ReviewMode
from musecode_jupyter.agents.critiques.state import CritiquesState, Finding, scope_of
from musecode_jupyter.agents.critiques.text import critiques_of, put
from musecode_jupyter.agents.landing.checks import clean_place, shorten
from musecode_jupyter.agents.landing.tools import HARNESS, LandingTools
from musecode_jupyter.agents.loop import Loop
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.prompts import EMPHASES, REVIEWERS
from musecode_jupyter.guard.labels import above, written
from musecode_jupyter.guard.tiers import released_diff, tiers_of
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.errors import GitError, LogError, MuseError
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.tools.registry import Place
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.snapshots import SNAPSHOT_PREFIX, drop_snapshot, take_snapshot
from musecode_jupyter.workspace.state import WorkspaceState
from musecode_jupyter.workspace.worktrees import discard_detached

logger = logging.getLogger(__name__)

MAX_STEPS = 16
"""Model calls that one pass may take; what it has raised until then counts."""
MAX_ROUNDS = 2
"""So often findings may send work back before it is left to the user."""
DIFF_CHARS = 48_000


class PassOver(MuseError):
    """A pass has used its steps."""


@dataclass(frozen=True)
class Change:
    """What is to be reviewed: the difference between the commits `base` and `commit`, of which `tree` is the tree.

    `author` is whose work it is; `checks` are the commands that ran on it, each with its call and whether it passed.
    `batch` is the batch.settled that is reviewed while the work goes on; of none the change asks to land. Each pass may
    take `steps` model calls.
    """

    goal: int | None
    author: str
    base: str
    commit: str
    tree: str
    asked: Asked
    task: int | None = None
    worktree: int | None = None
    merge: int | None = None
    checks: tuple[tuple[str, int, bool], ...] = ()
    batch: int | None = None
    steps: int = MAX_STEPS

    @property
    def scope(self) -> str:
        """The piece of work that it is the change of."""
        return scope_of(self.goal, self.task, self.worktree)


class Turn:
    """Whose turn it is to review: one review at a time, since a reviewer has one conversation."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self, work: str) -> None:
        """Wait for the turn, for a review of `work`."""
        await _turn_for(self._lock, work)

    def free(self) -> None:
        """Let the next review begin."""
        if self._lock.locked():
            self._lock.release()


@answered
async def _turn_for(lock: asyncio.Lock, work: str) -> bool:
    # Which of several reviews came first is no function of the log: it is noted down like an answer of git.
    del work
    return await lock.acquire()


async def _at_once(_change: Change) -> None:
    """Nothing has to end first."""


@dataclass(frozen=True)
class Reviews:
    """Reviews changes in one repository, one at a time. `reviewer` makes sure that the agent of this name exists.

    `make_way` is awaited before a change that asks to land is reviewed.
    """

    tools: LandingTools
    loop: Loop
    mode: ReviewMode
    reviewer: Callable[[str], Awaitable[None]]
    make_way: Callable[[Change], Awaitable[None]] = _at_once
    turn: Turn = field(default_factory=Turn, compare=False)

    @property
    def state(self) -> CritiquesState:
        """The findings as folded."""
        return critiques_of(self.tools.log)

    @property
    def passes(self) -> list[str]:
        """The passes that a review has."""
        return [] if self.mode == "off" else [MECHANICAL, *(EMPHASES if self.mode == "full" else ())]

    async def review(self, change: Change) -> list[Finding]:
        """Review `change` unless that was done, and return the findings for which it cannot land.

        Nothing is reviewed in mode `off`, nor what a reviewer did. A review that was cut off goes on: passes that are
        complete are not made again.

        Raises
        ------
        BudgetExceeded, ModelError
            The model cannot be asked; what was found so far is in the log once the review goes on.
        GitError
            There are no such commits.
        """
        if self.mode == "off" or change.author in REVIEWERS:
            return []
        if change.batch is None:
            await self.make_way(change)
        await self.turn.take(change.scope)
        try:
            done = self.state.reviewed.get(change.scope)
            known = done is not None and (done.base, done.tree) == (change.base, change.tree)
            if done is None or not known or not set(self.passes) <= set(done.passes):
                await self._review(change)
        finally:
            self.turn.free()
        return self.state.blocking(change.scope)

    async def review_batch(self, settled: Event, taken: Callable[[], None] = lambda: None) -> list[Finding]:
        """Review what is in a worktree now, committed or not, against what its work began from.

        For a batch of changes that has settled (`settled`, batch.settled), beside the work itself: the files are looked
        at in a snapshot, and the worktree is left alone. The findings belong to the same piece of work as those of its
        landing, which does not review again what did not change. It comes to its end, with all that was found in the
        log, or leaves no finding. `taken` is called once the snapshot is there. Raises as `review`.
        """
        data, git = settled.data, self.tools.git
        worktree = data["worktree"]
        state = self.tools.log.state("workspace")
        assert isinstance(state, WorkspaceState)
        tree = state.worktrees[worktree]
        asked, ran = asked_of(self.tools.log, settled), runs_before(self.tools.log, settled)
        inside = await Git.at_worktree(Path(tree.path), self.tools.effects)
        name = snapshot_name(self.tools, worktree)
        await forget_snapshot(git, name)
        snapshot = await take_snapshot(inside, name)
        taken()
        try:
            if snapshot.tree == await git.tree_of(tree.base):
                return []
            change = Change(
                tree.goal,
                data["agent"],
                tree.base,
                snapshot.commit,
                snapshot.tree,
                asked,
                task=tree.task,
                worktree=worktree,
                checks=ran,
                batch=settled.seq,
                steps=data["steps"],
            )
            mode = self.mode if data["steps"] or self.mode == "off" else "mechanical"
            return await replace(self, mode=mode).review(change)
        finally:
            # The worktree may be gone by now: its work can land, or be given up, meanwhile.
            await to_the_end(drop_snapshot(git, name, snapshot.commit))

    async def _review(self, change: Change) -> None:
        git = self.tools.git
        found = await mechanical_findings(git, change.base, change.commit, change.asked)
        asked = await self._passes(change) if self.mode == "full" else {}
        # From here on it is not stopped: what is found is there as a whole, or not at all.
        await to_the_end(self._conclude(change, found, asked))

    async def _conclude(self, change: Change, found: Sequence[Found], asked: dict[str, int]) -> None:
        """Write down what was found, what became of earlier findings, and that the review is complete."""
        drafts = [of_mechanical(each) for each in found]
        settled: list[Settled] = []
        if self.mode == "full":
            for agent, seq in asked.items():
                drafts += [of_raised(each, REVIEWERS[agent]) for each in raised_since(self.tools.log, seq, agent)]
                settled += settled_since(self.tools.log, seq, agent)
        # What the model may not get is not looked at for it either: a finding says what stands at its place.
        tiers = tiers_of(self.tools.log)
        drafts = [each for each in drafts if not above(tiers.path(each.path).label, tiers.clearance() or "private")]
        drafts = await self._placed(change, drafts)
        await self._settle(change, drafts, settled)
        raised = [await self._raise(change, draft, asked) for draft in self._new(change, drafts)]
        # Posted after the findings, and what tells that they are all there.
        await self._emit(
            "critique.reviewed",
            change,
            merge=change.merge,
            agent=change.author,
            passes=self.passes,
            raised=raised,
            blocking=[finding.number for finding in self.state.blocking(change.scope)],
            batch=change.batch,
        )

    # --- passes ------------------------------------------------------------------------------------------

    async def _passes(self, change: Change) -> dict[str, int]:
        """Make the passes, side by side; the event that each began with, by reviewer."""
        path = self._path(change)
        whole = await self.tools.git.diff_text(change.base, change.commit)
        text, label = released_diff(tiers_of(self.tools.log), whole)
        diff = shorten(text, DIFF_CHARS)
        asked = await to_the_end(self._ask_all(change, diff, label))
        try:
            place = await clean_place(self.tools, path, change.commit, change.asked.writes or None)
            await _all([self._pass(change, agent, seq, place) for agent, seq in asked.items()])
        finally:
            await to_the_end(discard(self.tools, path))
        return asked

    async def _ask_all(self, change: Change, diff: str, label: str) -> dict[str, int]:
        return {agent: await self._ask(change, agent, diff, label) for agent in REVIEWERS}

    async def _ask(self, change: Change, agent: str, diff: str, label: str) -> int:
        """Put the change to a reviewer, unless a pass on it was cut off: that goes on."""
        await self.reviewer(agent)
        begun = self.state.passes.get(agent)
        if begun is not None and (begun.scope, begun.base, begun.tree) == (change.scope, change.base, change.tree):
            return begun.seq
        emphasis = REVIEWERS[agent]
        earlier = [each for each in self.state.of(change.scope) if each.state != "fixed"]
        text = put(
            emphasis,
            change.asked,
            diff,
            change.checks,
            earlier,
            beside=change.batch is not None,
            broken_off=begun is not None and begun.scope == change.scope and not begun.complete,
        )
        cause = () if change.batch is None else (change.batch,)
        return await self._emit(
            "critique.asked", change, cause, label, agent=agent, emphasis=emphasis, text=text, batch=change.batch
        )

    async def _pass(self, change: Change, agent: str, seq: int, place: Place) -> None:
        log = self.tools.log

        async def checkpoint(task: Task) -> None:
            calls = sum(event.kind == "model.requested" and event.agent == agent for event in log.events(seq))
            if calls >= change.steps:
                raise PassOver(f"{agent} has used its {change.steps} model calls.")
            await self.loop.checkpoint(task)

        loop = replace(self.loop, checkpoint=checkpoint)
        try:
            await log.append("agent.state", {"state": "running", "why": f"reviews {change.scope}"}, agent=agent)
            await loop.turn(Task(agent, place, seq, change.goal))
        except PassOver as over:
            logger.info("%s", over)
        finally:
            await log.append("agent.state", {"state": "idle", "why": ""}, agent=agent)

    def _path(self, change: Change) -> Path:
        return review_path(self.tools, change.goal if change.goal is not None else change.worktree)

    # --- findings ----------------------------------------------------------------------------------------

    async def _placed(self, change: Change, drafts: Sequence[Draft]) -> list[Draft]:
        """The drafts with what stands at their places and the diff around them; those of one thing as one."""
        spots = [Spot(each.path, each.start, each.end, each.side) for each in drafts]
        seen = await look_at(self.tools.git, change.base, change.commit, spots) if spots else []
        return merged([each.seen(found.text, found.hunk) for each, found in zip(drafts, seen, strict=True)])

    def _new(self, change: Change, drafts: Sequence[Draft]) -> list[Draft]:
        """Those that were not raised before, or are here again after they were fixed."""
        known = {finding.key for finding in self.state.of(change.scope) if finding.state != "fixed"}
        return [draft for draft in drafts if draft.key not in known]

    async def _settle(self, change: Change, drafts: Sequence[Draft], settled: Sequence[Settled]) -> None:
        """Write down which of the earlier findings do not hold any more."""
        again = {draft.key for draft in drafts}
        left = [each for each in self.state.of(change.scope) if each.state == "open" and each.key not in again]
        of_model = [each for each in left if MECHANICAL not in each.passes]
        places = [(each.place.path, each.place.text) for each in of_model]
        there = await standing(self.tools.git, change.commit, places) if places else []
        gone = {each.number for each, still in zip(of_model, there, strict=True) if not still}
        said = {each.number: each for each in settled}
        for finding in left:
            cause = (finding.number,)
            if MECHANICAL in finding.passes or finding.number in gone:
                why = "The check finds it no more." if MECHANICAL in finding.passes else "What stood there was changed."
                data = {"critique": finding.number, "tree": change.tree, "why": why}
                await self.tools.log.append("critique.fixed", data, agent=HARNESS, cause=cause)
            elif (word := said.get(finding.number)) is not None:
                kind = f"critique.{word.how}"
                data = {"critique": finding.number, "why": f"{word.agent}: {word.why}"}
                if word.how == "fixed":
                    data["tree"] = change.tree
                await self.tools.log.append(kind, data, agent=HARNESS, cause=cause)

    async def _raise(self, change: Change, draft: Draft, asked: dict[str, int]) -> int:
        cause = [asked[agent] for agent in asked if REVIEWERS[agent] in draft.passes]
        if change.batch is not None:
            cause.append(change.batch)
        label = tiers_of(self.tools.log).path(draft.path).label
        return await self._emit("critique.raised", change, cause, label, merge=change.merge, **draft.said())

    async def _emit(self, kind: str, change: Change, cause: Sequence[int] = (), label: str = "", **data: object) -> int:
        of = {"goal": change.goal, "task": change.task, "worktree": change.worktree}
        all_causes = [each for each in (change.goal, change.task, change.merge) if each is not None]
        event = await self.tools.log.append(
            kind,
            {**of, "base": change.base, "tree": change.tree, **data},
            agent=HARNESS,
            cause=(*all_causes, *cause),
            label=written(label),
        )
        return event.seq


async def _all(passes: Sequence[Coroutine[None, None, None]]) -> None:
    """Let all passes come to their end; raises what the first raised. What stops one lets the others end their step."""
    tasks = [asyncio.create_task(each) for each in passes]
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await to_the_end(_ended(tasks))
        raise
    errors = [error for task in tasks if (error := None if task.cancelled() else task.exception()) is not None]
    for error in sorted(errors, key=lambda each: not isinstance(each, LogError)):
        raise error
    if any(task.cancelled() for task in tasks):
        raise asyncio.CancelledError


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


def review_path(tools: LandingTools, work: int | None) -> Path:
    """Where the tree that is reviewed is checked out, for a goal or a worktree."""
    return tools.worktrees / f"{tools.session}-{work}.review"


def snapshot_name(tools: LandingTools, worktree: int) -> str:
    """Under which name what is in a worktree is kept while it is reviewed."""
    return f"{tools.session}/review-{worktree}"


async def forget_snapshot(git: Git, name: str) -> None:
    """Drop the snapshot that a review has left which was cut off, if there is one."""
    left = await git.ref(SNAPSHOT_PREFIX + name)
    if left is not None:
        await drop_snapshot(git, name, left)


async def discard(tools: LandingTools, path: Path) -> None:
    """Remove a checkout that was made for a review, if it is there."""
    try:
        await discard_detached(tools.git, path)
    except GitError as error:
        logger.warning("the reviewed tree %s is kept: %s", path, error)
