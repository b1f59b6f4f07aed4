"""A goal that starts from the user's uncommitted files: its work is checked with and without them, lands without."""

from __future__ import annotations

import logging
from pathlib import Path

from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.skills.goal import GoalRunner
from musecode_jupyter.skills.ground_state import Ground, GroundsState
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.landing import MergeCheck, check_delta, check_merge, check_overlay
from musecode_jupyter.workspace.snapshots import SNAPSHOT_PREFIX, drop_snapshot, keep_commit
from musecode_jupyter.workspace.worktrees import some_names

logger = logging.getLogger(__name__)


class DirtyGoalRunner(GoalRunner):
    """Drives a goal whose worktree was made from a snapshot of the user's uncommitted files.

    What lands is the difference between that snapshot and the work, as one commit on the user's branch that has
    neither in its history: so nothing of what the user did not commit gets on the branch. Where the two meet, nothing
    lands until the user has committed their part.
    """

    @property
    def ground(self) -> Ground:
        """What the goal starts from, as folded."""
        state = self._t.log.state("grounds")
        assert isinstance(state, GroundsState)
        return state.goals[self.goal]

    @property
    def _start(self) -> str:
        return self.ground.snapshot

    async def _uncommitted(self) -> str:
        return (
            f"Work starts from your files as they are, with what is not committed ({some_names(self.ground.files)}). "
        )

    async def _check(self, target: str, commit: str, title: str) -> MergeCheck:
        message = f"{title}\n\nMusecode-Session: {self._t.session}\nMusecode-Goal: {self.goal}\n"
        worktree = self._workspace.of_goal(self.goal)
        assert worktree is not None
        base = await self._upon(self._workspace.worktrees[worktree].base)
        return await check_delta(self._t.git, target, base.commit or self.ground.snapshot, commit, message)

    async def _upon(self, commit: str) -> MergeCheck:
        """The commit of the user's with their uncommitted changes, as they were when the work began."""
        return await check_merge(self._t.git, commit, self.ground.snapshot, "Uncommitted changes\n")

    async def _still_holds(self, target: str, base: str) -> bool:
        # The snapshot is on no branch; what it was taken upon is.
        return await super()._still_holds(target, self.record.base if base == self.ground.snapshot else base)

    async def _cannot_follow(self, inside: Git, base: str, commit: str, target: str) -> str:
        # The work stands upon the snapshot: what of it is whose can only be told upon the commit that both began from.
        return "The work began from your uncommitted changes too, so it is not put onto another history by itself."

    def _conflict(self, paths: list[str]) -> tuple[str, str]:
        if not set(paths) & set(self.ground.files):
            return super()._conflict(paths)
        why = f"The work meets your uncommitted changes in {', '.join(paths)}, so it cannot land without them."
        return why, "commit these, then resume."

    async def _judge_merge(self, worktree: int, merge: int, check: MergeCheck, target: str) -> None:
        """Check the work together with the user's uncommitted files, as it will be on their disk, and then alone."""
        tree, git = self._workspace.worktrees[worktree], self._t.git
        commit = (await (await Git.at_worktree(Path(tree.path), self._t.effects)).head()).commit
        assert check.commit is not None
        assert check.tree is not None
        beside = await self._upon(target)
        whole = beside
        if beside.commit is not None:
            whole = await check_overlay(git, target, check.commit, beside.commit, commit)
        if whole.commit is None or whole.tree is None:
            why = f"Your uncommitted changes conflict with {self.record.branch} in {', '.join(whole.conflicts)}."
            await self._held(merge, tree.branch, why, "Settle that, commit, then resume.")
            return
        results = await self._verify(await self._clauses.place(whole.commit), "judge")
        if not all(result.ok for result in results):
            await to_the_end(self._take_over(worktree, whole.commit, target))
            await self._judged("landing", whole.tree, whole.commit, results, False, self._report(results))
            await self._stall_if_silent()
            return
        results = await self._verify(await self._clauses.place(check.commit), "judge")
        failed = [f"`{c}`" for c, result in zip(self._ran, results, strict=True) if not result.ok]
        if failed:
            # Not the agent's to repair: what is missing is the user's, and not committed.
            why = (
                f"{', '.join(failed)} passes on the work together with your uncommitted changes "
                f"({some_names(self.ground.files)}), and not without them."
            )
            await self._held(merge, tree.branch, why, "Commit them, then resume.")
            return
        verdicts = await self._clauses.verdicts(check.commit, target, measure=True)
        if not all(each.passed for each in verdicts):
            await to_the_end(self._take_over(worktree, whole.commit, target))
            report = self._report(results, verdicts)
            await self._judged("landing", check.tree, check.commit, results, False, report, verdicts)
            await self._stall_if_silent()
        elif await self._agreed(worktree, check.commit, check.tree, target, results, upon=whole.commit):
            await self._judged("landing", check.tree, check.commit, results, True, "", verdicts)

    async def _held(self, merge: int, branch: str, why: str, remedy: str) -> None:
        await self._bounce(merge, why, branch)
        await self._stop("blocked", f"{why} Nothing was landed; the work is on branch {branch}. {remedy}")

    def _on_card(self) -> dict[str, object]:
        return {
            "your uncommitted changes": self.ground.files,
            "what becomes of them": "the checks passed with them, as they were when the work began, and without them; "
            "they do not land, and stay as they are",
        }

    async def _contained_in(self) -> str:
        """A private ref that keeps the work with the files that it began in: no branch is to have those."""
        landed = await super()._contained_in()
        git, ground, worktree = self._t.git, self.ground, self._workspace.of_goal(self.goal)
        ref = f"refs/musecode/landed/{self._t.session}/{self.goal}"
        try:
            if worktree is not None:
                tip = await git.ref(f"refs/heads/{self._workspace.worktrees[worktree].branch}")
                if tip is not None:
                    await keep_commit(git, ref, tip)
            if await git.ref(ref) is None:
                return landed
            # That of the session from which this one was forked is its own to drop.
            if ground.kept.startswith(f"{SNAPSHOT_PREFIX}{self._t.session}/"):
                await drop_snapshot(git, ground.kept.removeprefix(SNAPSHOT_PREFIX), ground.snapshot)
        except GitError as error:
            logger.warning("the work of goal %s is kept where it is: %s", self.goal, error)
            return landed
        return ref
