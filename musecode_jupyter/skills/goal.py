"""%goal as a state machine over events: prepare, work, judge on a clean checkout, land, and only then met."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from musecode_jupyter.agents.claims.harness import assert_result
from musecode_jupyter.agents.claims.state import VALIDATOR
from musecode_jupyter.agents.claims.text import relied_lines
from musecode_jupyter.agents.claims.validator import objection
from musecode_jupyter.agents.critiques.asked import all_said
from musecode_jupyter.agents.critiques.changed import Asked
from musecode_jupyter.agents.critiques.gate import judge
from musecode_jupyter.agents.critiques.review import Change, Reviews, discard, review_path
from musecode_jupyter.agents.critiques.state import REVIEW
from musecode_jupyter.agents.critiques.text import card_lines
from musecode_jupyter.agents.landing import permission
from musecode_jupyter.agents.landing.checks import (
    as_checks,
    clean_place,
    is_there,
    place_of,
    run_commands,
    shorten,
    work_place,
)
from musecode_jupyter.agents.landing.move import move
from musecode_jupyter.agents.landing.permission import Candidate, refusal
from musecode_jupyter.agents.landing.tools import LandingTools
from musecode_jupyter.agents.loop import Loop
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.log.goal_kinds import ClauseVerdict
from musecode_jupyter.runtime.answers import answering
from musecode_jupyter.runtime.errors import (
    BudgetExceeded,
    ContextFull,
    GitError,
    LogError,
    ModelError,
    MuseError,
    Stuck,
)
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.skills.clause_judge import ClauseJudge, clause_report
from musecode_jupyter.skills.goal_state import GoalRecord, GoalsState
from musecode_jupyter.skills.handover import handover
from musecode_jupyter.skills.verify_command import cannot_run, last_line
from musecode_jupyter.tools.executor import CallResult
from musecode_jupyter.tools.registry import Place
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.landing import MergeCheck, check_merge
from musecode_jupyter.workspace.rework import conflicts_onto, on_base, onto_rewritten
from musecode_jupyter.workspace.state import MergeRecord, WorkspaceState, WorktreeRecord
from musecode_jupyter.workspace.worktrees import (
    commit_all,
    discard_detached,
    fast_forward,
    remove_branch,
    remove_worktree,
    some_names,
)

logger = logging.getLogger(__name__)

MAX_SILENT_TURNS = 3
MAX_MOVES = 3
MAX_DOUBTS = 2
"""So often work is sent back because of claims; then it is the user's turn."""


class PauseRequested(MuseError):
    """Raised by the checkpoint when the user asked for a pause."""


@dataclass(frozen=True)
class GoalTools(LandingTools):
    """What the runner is handed. `rest` is asked between phases; it raises PauseRequested if a pause was asked for.

    `reviews` looks at what is to land; None: nobody does.
    """

    loop: Loop
    rest: Callable[[int], None]
    reviews: Reviews | None = field(default=None, kw_only=True)


def branch_gone(record: GoalRecord) -> str:
    """What is said where the branch to land on is not there any more."""
    return permission.branch_gone(record.branch or "", record.base)


class GoalRunner:
    """Drives one goal from whatever phase the log says it is in; used on the runtime thread."""

    def __init__(self, tools: GoalTools, goal: int) -> None:
        self._t = tools
        self.goal = goal
        self._ran: tuple[str, ...] = ()

    @property
    def record(self) -> GoalRecord:
        """The goal as folded."""
        state = self._t.log.state("goals")
        assert isinstance(state, GoalsState)
        return state.goals[self.goal]

    @property
    def tools(self) -> GoalTools:
        """What it was handed."""
        return self._t

    @property
    def reviews(self) -> Reviews | None:
        """What reviews the goal's work."""
        return self._t.reviews

    @property
    def _start(self) -> str:
        """The commit in which the work starts."""
        return self.record.base

    @property
    def _check_path(self) -> Path:
        # With a dot, which the name of no task has, and each task has a worktree beside it.
        return self._t.worktrees / f"{self._t.session}-{self.goal}.check"

    @property
    def _clauses(self) -> ClauseJudge:
        return ClauseJudge(self._t, self.goal, self._check_path, self._check_path.with_suffix(".base"))

    @property
    def _workspace(self) -> WorkspaceState:
        state = self._t.log.state("workspace")
        assert isinstance(state, WorkspaceState)
        return state

    async def run(self) -> GoalRecord:
        """Work until the goal is met, stopped or paused; every way out is an event, and is resumable but for met."""
        with answering(self._t.answers(f"goal {self.goal}")):
            return await self._run()

    async def _run(self) -> GoalRecord:
        phases: dict[str, Callable[[], Awaitable[None]]] = {
            "preparing": self._prepare,
            "working": self._work,
            "judging": self._judge,
            "landing": self._land,
        }
        try:
            while self.record.status == "running":
                self._t.rest(self.goal)
                exhausted = self._clauses.record.exhausted
                if exhausted and self.record.phase == "working":
                    await self._stop("budget", f"{exhausted} The last verification did not pass.")
                    break
                try:
                    await phases[self.record.phase]()
                except BudgetExceeded as error:
                    if self.record.phase != "working" or not self._clauses.clauses.reserve:
                        raise
                    await self._exhausted(error)
        except (PauseRequested, ContextFull) as pause:
            await self._emit("goal.paused", why=str(pause))
        except BudgetExceeded as error:
            await self._exceeded(error)
            await self._stop("budget", str(error))
        except Stuck as stuck:
            await self._stop(stuck.state, str(stuck), ladder=True)
        except LogError:
            raise
        except (ModelError, MuseError) as error:
            await self._stop("error", str(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception("goal %s ended in an unexpected error", self.goal)
            await self._stop("error", f"Unexpected {type(error).__name__}: {error}. The log holds all up to here.")
        return self.record

    async def _exceeded(self, error: BudgetExceeded) -> None:
        await self._emit_raw("budget.exceeded", {"scope": error.scope, "why": str(error), "needed": error.needed})

    async def _exhausted(self, error: BudgetExceeded) -> None:
        """Have what there is judged on the reserve."""
        await self._exceeded(error)
        await self._emit("goal.exhausted", limit=error.scope, why=str(error))

    async def _prepare(self) -> None:
        clauses = self._clauses
        held = clauses.clauses.holdout or clauses.clauses.metrics
        place = await (clauses.place(self._start) if held else self._baseline_place())
        results = await self._verify(place, "baseline")
        missing = next((r for r in results if cannot_run(r)), None)
        head = await self._t.git.tree_of(self._start)
        if missing is not None:
            await self._stop("blocked", f"The verify command cannot run: {last_line(missing.output)}")
            return
        why, already = await clauses.before(place)
        if why:
            await self._stop("blocked", f"The metric cannot be measured at {self._start[:10]}. {why}.")
            return
        passed = all(r.ok for r in results) and already
        await self._judged("baseline", head, self._start, results, passed, "")
        if passed:
            what = "The verify command is already green" if results else "The metric holds already"
            await self._stop(
                "blocked",
                f"{what} at {self._start[:10]}: nothing to do. "
                f"{await self._uncommitted()}Give a --verify that fails as long as the goal is not met.",
            )

    async def _baseline_place(self) -> Place:
        """Where the verify commands are run before any work."""
        return self._place(await self._worktree(self.record))

    async def _uncommitted(self) -> str:
        changed = await self._t.git.status()
        if not changed:
            return ""
        return f"Work starts from the last commit, without what is not committed ({some_names(changed)}). "

    async def _work(self) -> None:
        record = self.record
        worktree = await self._worktree(record)
        try:
            # Within: it is written down also where the work is ended while that is awaited.
            await self._agent_state("running", f"goal {self.goal}")
            step = await self._t.loop.turn(self.task(worktree))
        finally:
            await self._agent_state("idle", "")
        if step.gave_up:
            await self._stop("stalled", step.text)
            return
        await self._emit("goal.claimed", text=step.text, cause=step.cause)

    def task(self, worktree: int) -> Task:
        """The agent's task in its worktree."""
        record = self.record
        measure = self._clauses.clauses.measure
        typed = (*record.verify, *([measure] if measure else []))
        return Task(record.agent, self._place(worktree), self.goal, self.goal, typed)

    async def _judge(self) -> None:
        record = self.record
        worktree = await self._worktree(record)
        tree = self._workspace.worktrees[worktree]
        inside = await Git.at_worktree(Path(tree.path), self._t.effects)
        title = record.text.strip().splitlines()[0][:72]
        commit = await self._committed(inside, tree, title, f"Musecode-Goal: {self.goal}")
        if await self._t.git.tree_of(commit) == await self._t.git.tree_of(tree.base):
            await self._nothing_changed(record, commit)
            return
        ref = f"refs/heads/{record.branch}"
        target = await self._t.git.ref(ref)
        if target is None:
            await self._stop("blocked", f"{branch_gone(record)} The work is on branch {tree.branch}.")
            return
        if not await self._still_holds(target, tree.base):
            why = await self._cannot_follow(inside, tree.base, commit, target)
            if why:
                told = f"{rewritten(record.branch, tree.base)} {why}"
                await self._stop("blocked", f"{told} It is kept on branch {tree.branch}: take it over by hand.")
                return
            await to_the_end(self._follow(inside, worktree, commit, target))
            commit = (await inside.head()).commit
        merge = await self._emit_raw(
            "merge.enqueued",
            {"goal": self.goal, "commit": commit, "tree": await self._t.git.tree_of(commit), "ref": ref},
        )
        check = await self._check(target, commit, title)
        await self._emit_raw(
            "merge.checked",
            {
                "merge": merge,
                "target": target,
                "tree": check.tree,
                "commit": check.commit,
                "conflicts": check.conflicts,
            },
        )
        if check.commit is None or check.tree is None:
            why, remedy = self._conflict(check.conflicts)
            await self._bounce(merge, why, tree.branch)
            await self._stop("blocked", f"{why} It is kept on branch {tree.branch}: {remedy}")
            return
        await self._judge_merge(worktree, merge, check, target)

    async def _check(self, target: str, commit: str, title: str) -> MergeCheck:
        """The merge that would land."""
        return await check_merge(self._t.git, target, commit, f"{title}\n\nMerge {commit[:12]} into {target[:12]}\n")

    def _conflict(self, paths: list[str]) -> tuple[str, str]:
        """What is said of a merge with conflicts, and what helps."""
        return f"The work conflicts with {self.record.branch} in {', '.join(paths)}.", "merge it by hand."

    async def _judge_merge(self, worktree: int, merge: int, check: MergeCheck, target: str) -> None:
        assert check.commit is not None
        assert check.tree is not None
        await self._judge_commit(worktree, check.commit, check.tree, target)

    async def _committed(self, inside: Git, tree: WorktreeRecord, title: str, trailer: str) -> str:
        """Everything in the worktree as a commit on its branch that holds what the work began from."""
        await self._back_on_branch(inside, tree)
        text = f"{title}\n\nMusecode-Session: {self._t.session}\n{trailer}"
        return await on_base(inside, tree.base, await commit_all(inside, text))

    async def _still_holds(self, target: str, base: str) -> bool:
        return target == base or await self._t.git.is_ancestor(base, target)

    async def _cannot_follow(self, inside: Git, base: str, commit: str, target: str) -> str:
        """Why the work cannot be put onto a branch that the user has rewritten; empty if it can."""
        conflicts = await conflicts_onto(inside, base, commit, target)
        return f"The work conflicts with it in {some_names(conflicts)}." if conflicts else ""

    async def _follow(self, inside: Git, worktree: int, commit: str, target: str) -> list[str]:
        """Put the work onto the branch as the user has rewritten it; the paths that are as there, and to be redone."""
        base = self._workspace.worktrees[worktree].base
        files = await self._t.git.diff_paths(base, target)
        again = await onto_rewritten(inside, base, target, self._t.backup_ref(f"work-{commit[:16]}"))
        head = (await inside.head()).commit
        await self._emit_raw(
            "worktree.updated", {"worktree": worktree, "commit": head, "target": target, "files": files}
        )
        return again

    async def _back_on_branch(self, inside: Git, tree: WorktreeRecord) -> None:
        """Point the worktree's HEAD at our branch again, files untouched, if a command of the model moved it.

        Without this, work would be committed on whatever branch the model checked out, the user's included.
        """
        ref = f"refs/heads/{tree.branch}"
        if (await inside.run("symbolic-ref", "-q", "HEAD", check=False)).line() == ref:
            return
        if await inside.ref(ref) is None:
            await inside.run("update-ref", ref, tree.base)
        await inside.run("symbolic-ref", "HEAD", ref)

    async def _nothing_changed(self, record: GoalRecord, commit: str) -> None:
        results = await self._verify(await self._clauses.place(commit), "judge")
        if all(result.ok for result in results) and not self._clauses.clauses.metrics:
            await self._stop("blocked", "The verify command passes without any change now: it is not a steady check.")
            return
        report = self._report(results, more=["Nothing has changed yet."] if all(r.ok for r in results) else [])
        await self._judged("landing", await self._t.git.tree_of(commit), commit, results, False, report)
        await self._stall_if_silent()

    async def _judge_commit(self, worktree: int, commit: str, tree: str, target: str) -> None:
        results = await self._verify(await self._clauses.place(commit), "judge")
        passed = all(result.ok for result in results)
        verdicts = await self._clauses.verdicts(commit, target, measure=passed)
        passed = passed and all(each.passed for each in verdicts)
        if passed and not await self._agreed(worktree, commit, tree, target, results):
            return
        if not passed:
            await to_the_end(self._take_over(worktree, commit, target))
        report = "" if passed else self._report(results, verdicts)
        await self._judged("landing", tree, commit, results, passed, report, verdicts)
        if not passed:
            await self._stall_if_silent()

    async def _agreed(
        self, worktree: int, commit: str, tree: str, target: str, results: list[CallResult], upon: str = ""
    ) -> bool:
        """As `_reviewed`, after a look at the claims on which the work relies."""
        return await self._believed(worktree, commit, tree, target, results, upon) and await self._reviewed(
            worktree, commit, tree, target, results, upon
        )

    async def _believed(
        self, worktree: int, commit: str, tree: str, target: str, results: list[CallResult], upon: str
    ) -> bool:
        merge = self._workspace.last_merge(self.goal)
        assert merge is not None
        why = await self._doubts(merge, commit, tree)
        if not why:
            return True
        if self._doubted() > MAX_DOUBTS:
            branch = self._workspace.worktrees[worktree].branch
            told = f"Sent back {MAX_DOUBTS} times because of claims: {why}"
            await self._bounce(merge, told, branch)
            await self._stop("blocked", f"{told} The work is on branch {branch}; `%muse claims` shows the claims.")
            return False
        await to_the_end(self._take_over(worktree, upon or commit, target))
        report = "\n\n".join([*self._news(), f"Your work does not land as it is: {why}"])
        await self._judged("landing", tree, commit, results, False, report)
        return False

    async def _doubts(self, merge: int, commit: str, tree: str) -> str:
        """Why claims do not let the work land, which is written down; empty if they do."""

        async def merged_at() -> Path:
            return (await self._clean_place(commit)).root

        why = await objection(self._t, merge, self.record.agent, tree, merged_at)
        if why:
            said = {"merge": merge, "tree": tree, "validator": VALIDATOR, "ok": False, "why": why}
            await self._emit_raw("merge.reviewed", said)
        return why

    def _doubted(self) -> int:
        """How often claims have kept the work from landing since the goal was begun, or resumed."""
        count = 0
        for event in self._t.log.events(since=self.goal):
            if event.kind == "goal.resumed" and event.data["goal"] == self.goal:
                count = 0
            elif event.kind == "merge.reviewed" and event.data["validator"] == VALIDATOR:
                count += self.goal in event.cause
        return count

    async def _reviewed(
        self, worktree: int, commit: str, tree: str, target: str, results: list[CallResult], upon: str = ""
    ) -> bool:
        """Whether what is to land may do so for all that reviews find; else it has gone back, or waits for the user.

        `upon`: what the agent goes on from, if it is not `commit`.
        """
        reviews, record = self._t.reviews, self.record
        merge = self._workspace.last_merge(self.goal)
        if reviews is None or reviews.mode == "off" or merge is None:
            return True
        checks = tuple((c, r.call, r.ok) for c, r in zip(self._ran, results, strict=True))
        asked = Asked(all_said(self._t.log, self.goal, record.agent, record.text))
        opinion = await judge(
            reviews,
            Change(self.goal, record.agent, target, commit, tree, asked, merge=merge, checks=checks),
        )
        agrees = opinion.kind == "agrees"
        said = {"validator": REVIEW, "ok": agrees, "why": opinion.why}
        await self._emit_raw("merge.reviewed", {"merge": merge, "tree": tree, **said})
        if opinion.kind == "held":
            branch = self._workspace.worktrees[worktree].branch
            await self._bounce(merge, opinion.why, branch)
            await self._stop("blocked", f"{opinion.why} The work is on branch {branch}.")
        elif opinion.kind == "back":
            await to_the_end(self._take_over(worktree, upon or commit, target))
            report = "\n\n".join([opinion.report, *self._news()])
            await self._judged("landing", tree, commit, results, False, report)
        return agrees

    async def _take_over(self, worktree: int, commit: str, target: str) -> None:
        """Give the agent what the user committed meanwhile, in the merge that failed: without it, it cannot repair."""
        tree = self._workspace.worktrees[worktree]
        if await self._t.git.is_ancestor(target, tree.base):
            return
        files = await self._t.git.diff_paths(tree.base, target)
        await fast_forward(await Git.at_worktree(Path(tree.path), self._t.effects), commit)
        await self._emit_raw(
            "worktree.updated", {"worktree": worktree, "commit": commit, "target": target, "files": files}
        )

    async def _stall_if_silent(self) -> None:
        if self.record.silent >= MAX_SILENT_TURNS:
            await self._stop("stalled", f"{MAX_SILENT_TURNS} turns without a tool call, and the check still fails.")

    async def _land(self) -> None:
        record = self.record
        assert record.branch is not None
        seq = self._workspace.last_merge(self.goal)
        assert seq is not None
        merge = self._workspace.merges[seq]
        worktree = self._workspace.of_goal(self.goal)
        branch = "" if worktree is None else self._workspace.worktrees[worktree].branch
        if merge.state not in {"landing", "landed"} and not await self._may_land(record, merge, seq, branch):
            return
        if self.record.phase != "landing":
            # What was judged was another goal's: the user edited it while the question waited.
            await self._bounce(seq, "The goal was edited meanwhile.", branch)
            return
        # Between the branch and its checkout nothing may stop: a checkout left behind looks like a revert.
        await to_the_end(self._move_and_meet(record, merge, seq, branch))

    async def _move_and_meet(self, record: GoalRecord, merge: MergeRecord, seq: int, branch: str) -> None:
        if merge.state != "landed" and not await self._move(record, merge, seq, branch):
            return
        assert merge.new is not None
        await self._meet()
        await self.clean_up()

    async def _may_land(self, record: GoalRecord, merge: MergeRecord, seq: int, branch: str) -> bool:
        assert merge.target is not None
        assert merge.merged_commit is not None
        card: dict[str, object] = {
            "checks": [f"{check['command']}: passed" for check in self._last_checks()],
            "usd": record.used_usd,
            **self._on_card(),
        }
        if critiques := card_lines(self._t.log, self.goal, None):
            card["critiques"] = critiques
        if claims := relied_lines(self._t.log, record.agent, self._workspace.of_goal(self.goal)):
            card["claims relied on"] = claims
        asked = Candidate(merge.ref, merge.target, merge.merged_commit, record.agent, branch)
        refused = await refusal(self._t, asked, card)
        if refused is None:
            # The question may have waited long; what goes back is judged, and told, as a new merge.
            why = await self._doubts(seq, merge.merged_commit, record.tree or "")
            if why:
                await self._bounce(seq, why, branch)
            return not why
        await self._bounce(seq, refused.why, branch)
        await self._stop("blocked", refused.told)
        return False

    def _on_card(self) -> dict[str, object]:
        """What else belongs on the card that asks whether the work may land."""
        return {}

    async def _move(self, record: GoalRecord, merge: MergeRecord, seq: int, branch: str) -> bool:
        old, new = merge.target, merge.merged_commit
        assert old is not None
        assert new is not None
        backup, announced = self._t.backup_ref(str(seq)), merge.state == "landing"
        outcome = await move(self._t, seq, merge.ref, old, new, backup, announced=announced, cause=self.goal)
        if outcome.kind == "moved":
            await self._bounce(seq, f"{record.branch} has moved meanwhile.", branch)
            moves = sum(
                m.goal == self.goal and m.why.endswith("moved meanwhile.") for m in self._workspace.merges.values()
            )
            if moves >= MAX_MOVES:
                await self._stop(
                    "blocked",
                    f"{record.branch} moved {moves} times while landing. The work is on branch {branch}.",
                )
        elif outcome.kind == "blocked":
            await self._bounce(seq, outcome.text, branch)
            await self._stop("blocked", f"{outcome.text} Nothing was landed; the work is on branch {branch}.")
        return outcome.kind == "landed"

    async def clean_up(self) -> None:
        """Remove the worktrees of a goal that is met; what holds anything beyond what was landed is kept."""
        contained_in = await self._contained_in()
        paths = [self._check_path, *([self._clauses.base] if self._clauses.clauses.metrics else [])]
        for path in paths:
            try:
                await discard_detached(self._t.git, path)
            except GitError as error:
                logger.warning("verification tree %s is kept: %s", path, error)
        if self._t.reviews is not None and self._t.reviews.mode == "full":
            await discard(self._t, review_path(self._t, self.goal))
        for seq, tree in list(self._workspace.worktrees.items()):
            if tree.goal == self.goal:
                await self._remove_worktree(seq, tree, contained_in)

    async def _contained_in(self) -> str:
        """What holds all the work of a goal that is met."""
        assert self.record.commit is not None
        return self.record.commit

    async def _remove_worktree(self, seq: int, tree: WorktreeRecord, contained_in: str) -> None:
        await self._emit_raw("worktree.removing", {"worktree": seq})
        try:
            await remove_worktree(self._t.git, Path(tree.path), contained_in)
            await remove_branch(self._t.git, tree.branch, contained_in)
        except GitError as error:
            logger.warning("worktree %s is kept: %s", tree.path, error)
            return
        await self._emit_raw("worktree.removed", {"worktree": seq, "contained_in": contained_in})

    async def _worktree(self, record: GoalRecord) -> int:
        seq = known = self._workspace.of_goal(self.goal)
        if seq is None:
            path = self._t.worktrees / f"{self._t.session}-{self.goal}"
            branch = f"musecode/{self._t.session}/{self.goal}"
            seq = await self._emit_raw(
                "worktree.creating",
                {"goal": self.goal, "path": str(path), "branch": branch, "base": self._start},
            )
        tree = self._workspace.worktrees[seq]
        if not tree.created or not await is_there(self._t.git, Path(tree.path)):
            await work_place(self._t, Path(tree.path), tree.branch, tree.base)
            await self._worktree_made(seq, tree, again=known is not None)
        return seq

    async def _worktree_made(self, seq: int, tree: WorktreeRecord, *, again: bool) -> None:
        """Write down that a worktree is there; one made `again` holds what its branch has, which may have moved."""
        commit = await self._t.git.ref(f"refs/heads/{tree.branch}") if again else None
        await self._emit_raw("worktree.created", {"worktree": seq, "path": tree.path, "commit": commit or ""})

    def _place(self, worktree: int) -> Place:
        return place_of(self._t, Path(self._workspace.worktrees[worktree].path), worktree)

    async def _clean_place(self, commit: str) -> Place:
        return await clean_place(self._t, self._check_path, commit)

    async def _verify(self, place: Place, purpose: str) -> list[CallResult]:
        # The user may edit them while they run.
        self._ran = tuple(self.record.verify)
        return await run_commands(self._t, self._ran, place, purpose, self.goal)

    def _report(
        self, results: list[CallResult], verdicts: Sequence[ClauseVerdict] = (), more: Sequence[str] = ()
    ) -> str:
        # What a command prints may show what is in a file that the agent is not to see.
        held = bool(self._clauses.clauses.holdout)
        parts = [
            f"`{command}` does not pass on a clean checkout of your work"
            + (f" with the held-out files: exit {result.exit}." if held else f":\n{shorten(result.output)}")
            for command, result in zip(self._ran, results, strict=True)
            if not result.ok
        ]
        return "\n\n".join([*self._news(), *parts, *clause_report(verdicts), *more, "The goal is not met yet. Go on."])

    def _news(self) -> list[str]:
        """What came into the worktree since the judgement before, told to the agent."""
        for event in reversed(list(self._t.log.events(since=self.goal))):
            if event.kind == "goal.judged" and event.data["goal"] == self.goal:
                break
            if event.kind == "worktree.updated":
                return [
                    f"{self.record.branch} has moved on meanwhile: the user changed {some_names(event.data['files'])}. "
                    "Those commits are merged with your work in your worktree now, and the check ran on that merge. "
                    "Read these files again before you rely on them."
                ]
        return []

    async def _judged(
        self,
        where: str,
        tree: str,
        commit: str,
        results: list[CallResult],
        passed: bool,
        report: str,
        verdicts: Sequence[ClauseVerdict] = (),
    ) -> None:
        checks = as_checks(self._ran, results)
        judged = await self._emit(
            "goal.judged",
            tree=tree,
            commit=commit,
            where=where,
            passed=passed,
            checks=checks,
            report=report,
            clauses=[each.model_dump() for each in verdicts],
        )
        if checks:
            assert_result(self._t.log, tree, checks, judged)

    def _last_checks(self) -> list[dict[str, object]]:
        for event in reversed(list(self._t.log.events(since=self.goal))):
            if event.kind == "goal.judged" and event.data["goal"] == self.goal:
                return list(event.data["checks"])
        return []

    async def _bounce(self, merge: int, why: str, kept: str) -> None:
        await self._emit_raw("merge.bounced", {"merge": merge, "why": why, "kept": kept})

    async def _stop(self, state: str, why: str, *, ladder: bool = False) -> None:
        left = handover(self._t.log, self.goal, state)
        await self._emit("goal.stopped", state=state, why=why, ladder=ladder, handover=left)

    async def _meet(self) -> None:
        left, record = handover(self._t.log, self.goal, "met"), self.record
        await self._emit("goal.met", tree=record.tree, commit=record.commit, checks=self._last_checks(), handover=left)

    async def _agent_state(self, state: str, why: str) -> None:
        await self._t.log.append("agent.state", {"state": state, "why": why}, agent=self.record.agent)

    async def _emit(self, kind: str, *, cause: int | None = None, **data: object) -> int:
        event = await self._t.log.append(
            kind,
            {"goal": self.goal, **data},
            agent=self.record.agent,
            cause=(self.goal,) if cause is None else (self.goal, cause),
        )
        return event.seq

    async def _emit_raw(self, kind: str, data: dict[str, object]) -> int:
        return await self._t.emit(kind, data, self.goal)


def rewritten(branch: str | None, base: str) -> str:
    """What is said where the branch does not hold any more what the work began from."""
    return f"{branch} was rewritten meanwhile: it does not hold {base[:10]} any more, from which the work began."
