"""The merge queue: one merge at a time is checked, tested, reviewed, approved and moved onto the user's branch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from musecode_jupyter.agents.claims.text import relied_lines
from musecode_jupyter.agents.critiques.text import card_lines
from musecode_jupyter.agents.landing.checks import as_checks, clean_place, run_commands
from musecode_jupyter.agents.landing.move import move
from musecode_jupyter.agents.landing.permission import Candidate, branch_gone, refusal
from musecode_jupyter.agents.landing.reports import conflict_report, failure_report, target_news
from musecode_jupyter.agents.landing.state import FINAL, Merge, MergesState
from musecode_jupyter.agents.landing.tools import HARNESS, LandingTools
from musecode_jupyter.agents.landing.work import Merged, Review, Validator, Verdict, Work
from musecode_jupyter.agents.tasks.graph import expand
from musecode_jupyter.guard.tiers import tiers_of
from musecode_jupyter.runtime.errors import GitError
from musecode_jupyter.runtime.process import to_the_end
from musecode_jupyter.tools.executor import CallResult
from musecode_jupyter.workspace.landing import check_merge
from musecode_jupyter.workspace.worktrees import discard_detached

__all__ = ["MergeQueue", "Merged", "Review", "Validator", "Verdict", "Work"]

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""How often a merge starts over because its target moved, before it is left to the user."""
CUT_OFF = "It was cut off before it landed."


class MergeQueue:
    """Lands work in the order in which it was submitted; used on the runtime thread. All that it does is events."""

    def __init__(self, tools: LandingTools, validators: Sequence[Validator] = ()) -> None:
        self._t = tools
        self._validators = tuple(validators)
        self._arrival = asyncio.Lock()
        self._turn = asyncio.Lock()

    async def submit(self, work: Work) -> Verdict:
        """Bring `work` onto its branch, or say why not; waits for its turn and, if need be, for the user.

        If it is cancelled before the branch moves, the merge is closed as cut off and nothing was changed; while the
        branch moves, it lands and is cancelled then. What goes wrong in git is the verdict; what a validator raises
        is raised, and the merge closed.

        Raises
        ------
        GitError
            There is no such commit.
        ValueError
            There is no acceptance command, so nothing could prove the work.
        """
        if not work.accept:
            raise ValueError(f"{work.title!r} has no acceptance command")
        # Git is asked before the event, and nobody overtakes meanwhile: the numbers are in the order of the calls.
        async with self._arrival:
            data = {
                "goal": work.goal,
                "task": work.task,
                "agent": work.agent,
                "title": work.title,
                "commit": work.commit,
                "tree": await self._t.git.tree_of(work.commit),
                "base": work.base,
                "ref": work.ref,
                "kept": work.kept,
            }
            # Not waited for: a merge that is in the log must not be left open by a stop.
            seq = self._t.log.post("merge.enqueued", data, agent=HARNESS, cause=_cause(work.goal, work.task)).seq
        async with self._closing(seq, work.goal), self._turn:
            try:
                return await self._rounds(seq, work)
            except GitError as error:
                return await self._hold(seq, work, f"{error} The work is on branch {work.kept}.")
            finally:
                await to_the_end(_discard(self._t, work.goal))

    async def finish(self, merge: int) -> Verdict | None:
        """After a restart: bring a merge whose branch may have moved to its end, and close any other as cut off.

        None if there is nothing to finish. What is `bounced` has no report: submit it again.
        """
        async with self._turn:
            record = self._merges.get(merge)
            if record is None or record.state in FINAL or record.state == "undoing":
                return None
            if record.state == "landing":
                return await to_the_end(self._finish_move(merge, record))
            return await self._bounce(merge, record.goal, record.kept, CUT_OFF, "", record.target)

    @property
    def _merges(self) -> dict[int, Merge]:
        state = self._t.log.state("merges")
        assert isinstance(state, MergesState)
        return state.merges

    @contextlib.asynccontextmanager
    async def _closing(self, seq: int, goal: int) -> AsyncIterator[None]:
        """Leave no merge open, however this ends."""
        try:
            yield
        finally:
            record = self._merges[seq]
            # One that is landing has its branch moved, perhaps: `finish` finds out.
            if record.state not in {*FINAL, "landing"} and self._t.log.writable:
                bounced = {"merge": seq, "why": CUT_OFF, "kept": record.kept}
                self._t.log.post("merge.bounced", bounced, agent=HARNESS, cause=(goal, seq))

    async def _rounds(self, seq: int, work: Work) -> Verdict:
        for _ in range(1 + MAX_RESTARTS):
            verdict = await self._once(seq, work)
            if verdict is not None:
                return verdict
        why = f"{work.branch} moved {1 + MAX_RESTARTS} times while landing."
        return await self._hold(seq, work, f"{why} The work is on branch {work.kept}.")

    async def _once(self, seq: int, work: Work) -> Verdict | None:
        """One attempt against the target as it is now; None if the target moved meanwhile."""
        git = self._t.git
        target = await git.ref(work.ref)
        if target is None:
            gone = branch_gone(work.branch, work.base)
            return await self._hold(seq, work, f"{gone} The work is on branch {work.kept}.")
        if target != work.base and not await git.is_ancestor(work.base, target):
            # The user has amended, rebased or reset it, or took a landing back: a merge would bring all that back.
            why = f"{work.branch} was rewritten: it does not hold {work.base[:10]} any more, from which the work began."
            return await self._bounce(seq, work.goal, work.kept, why, why, target)
        message = f"{work.title}\n\nMerge {work.commit[:12]} into {target[:12]}\n"
        check = await check_merge(git, target, work.commit, message)
        changed = set(await git.diff_paths(work.base, target))
        suspect = sorted(changed & (work.reads | expand(work.reads, changed)))
        checked = {
            "merge": seq,
            "target": target,
            "tree": check.tree,
            "commit": check.commit,
            "conflicts": check.conflicts,
            "suspect": suspect,
        }
        await self._emit("merge.checked", seq, work.goal, checked)
        if check.commit is None or check.tree is None:
            why = f"It conflicts with {work.branch} in {', '.join(check.conflicts)}."
            report = await conflict_report(git, work, target, self._private)
            return await self._bounce(seq, work.goal, work.kept, why, report, target)
        merged = Merged(seq, target, check.commit, check.tree, tuple(suspect))
        refused = await self._prove(work, merged)
        if refused is not None:
            return refused
        if merged.commit != target:
            no = await refusal(self._t, self._candidate(work, merged), self._card(seq, work))
            if no is not None:
                return await self._hold(seq, work, no.told, no.why)
            refused = await self._review(work, merged, (each for each in self._validators if each.again))
            if refused is not None:
                return refused
        return await to_the_end(self._move(seq, work, merged))

    async def _prove(self, work: Work, merged: Merged) -> Verdict | None:
        """Test and review the merge; the verdict if it is not good."""
        for purpose, commands in self._groups(work):
            failed = await self._test(work, merged, purpose, commands)
            if failed:
                names = ", ".join(f"`{command}`" for command, _ in failed)
                why = f"{names} {'does' if len(failed) == 1 else 'do'} not pass on the merge."
                report = await failure_report(self._t.git, work, merged.target, merged.suspect, failed, purpose)
                return await self._bounce(merged.merge, work.goal, work.kept, why, report, merged.target)
        return await self._review(work, merged, self._validators)

    async def _review(self, work: Work, merged: Merged, validators: Iterable[Validator]) -> Verdict | None:
        """Ask `validators`; the verdict if one of them objects."""
        for validator in validators:
            review = await validator.review(work, merged)
            if review is None:
                continue
            said = {"validator": validator.name, "ok": review.ok, "why": review.why}
            seq = merged.merge
            await self._emit("merge.reviewed", seq, work.goal, {"merge": seq, "tree": merged.tree, **said})
            if not review.ok:
                why = f"{validator.name} objects: {review.why}"
                if review.hold:
                    return await self._hold(seq, work, f"{why} The work is on branch {work.kept}.", why)
                news = await target_news(self._t.git, work, merged.target, merged.suspect)
                report = "\n\n".join([review.report or why, *news])
                return await self._bounce(seq, work.goal, work.kept, why, report, merged.target)
        return None

    def _groups(self, work: Work) -> list[tuple[str, list[str]]]:
        accept = list(dict.fromkeys(work.accept))
        affected = [command for command in dict.fromkeys(work.affected()) if command not in accept]
        return [("acceptance", accept), *([("affected", affected)] if affected else [])]

    async def _test(
        self, work: Work, merged: Merged, purpose: str, commands: list[str]
    ) -> list[tuple[str, CallResult]]:
        """Run `commands` on a clean checkout of the merge.

        A command that fails gets another run: if it fails again, that decides; if not, it has to pass once more.
        """
        runs: list[tuple[str, CallResult]] = []
        reds: Counter[str] = Counter()
        greens: Counter[str] = Counter()
        wanted = commands
        while wanted and max(reds.values(), default=0) < 2:
            place = await clean_place(self._t, check_path(self._t, work.goal), merged.commit, work.needs)
            results = await run_commands(self._t, wanted, place, "judge", merged.merge)
            for command, result in zip(wanted, results, strict=True):
                runs.append((command, result))
                reds[command] += not result.ok
                greens[command] = greens[command] + 1 if result.ok else 0
            unsure = [command for command in commands if reds[command] and greens[command] < 2]
            # What comes before such a command may have prepared it, so it runs again too, in a clean checkout.
            wanted = commands[: 1 + max(map(commands.index, unsure), default=-1)]
        last = {command: result for command, result in runs if not result.ok}
        failed = [(command, last[command]) for command in commands if reds[command] > 1]
        flaky = [command for command in commands if reds[command] == 1 and greens[command] > 1]
        data = {
            "merge": merged.merge,
            "tree": merged.tree,
            "commit": merged.commit,
            "purpose": purpose,
            "checks": as_checks([command for command, _ in runs], [result for _, result in runs]),
            "passed": not failed,
            "flaky": flaky,
        }
        await self._emit("merge.tested", merged.merge, work.goal, data)
        return failed

    def _candidate(self, work: Work, merged: Merged) -> Candidate:
        return Candidate(work.ref, merged.target, merged.commit, work.agent, work.kept)

    def _card(self, seq: int, work: Work) -> dict[str, Any]:
        """What is shown with the question whether the work may land, beside the change itself."""
        record = self._merges[seq]
        card: dict[str, Any] = {
            "work": work.title,
            "checks": [f"{command}: passed" for evidence in record.tested for command in evidence.commands],
            "tree": record.tree,
            "usd": work.usd,
        }
        flaky = [command for evidence in record.tested for command in evidence.flaky]
        if flaky:
            card["failed once, then passed twice"] = flaky
        if record.suspect:
            card["read for it and changed since"] = record.suspect
        if record.reviewed:
            card["reviews"] = [f"{review.validator}: {review.why or 'agrees'}" for review in record.reviewed]
        if critiques := card_lines(self._t.log, work.goal, work.task):
            card["critiques"] = critiques
        if claims := relied_lines(self._t.log, work.agent, work.worktree):
            card["claims relied on"] = claims
        return card

    async def _move(self, seq: int, work: Work, merged: Merged) -> Verdict | None:
        record = self._merges[seq]
        assert all(evidence.passed and evidence.tree == merged.tree for evidence in record.tested)
        # A backup of an earlier round keeps another commit under its name.
        backup = self._t.backup_ref(str(seq) if record.rounds == 1 else f"{seq}-{record.rounds}")
        try:
            outcome = await move(
                self._t, seq, work.ref, merged.target, merged.commit, backup, announced=False, cause=work.goal
            )
        except GitError as error:
            return await self._hold(seq, work, f"{error} Nothing was landed; the work is on branch {work.kept}.")
        if outcome.kind == "landed":
            return Verdict("landed", seq, outcome.text, commit=merged.commit)
        if outcome.kind == "blocked":
            told = f"{outcome.text} Nothing was landed; the work is on branch {work.kept}."
            return await self._hold(seq, work, told, outcome.text)
        moved = {"merge": seq, "ref": work.ref, "expected": merged.target, "found": outcome.found}
        await self._emit("merge.moved", seq, work.goal, moved)
        return None

    async def _finish_move(self, seq: int, record: Merge) -> Verdict:
        assert record.old is not None
        assert record.new is not None
        assert record.backup is not None
        try:
            outcome = await move(
                self._t, seq, record.ref, record.old, record.new, record.backup, announced=True, cause=record.goal
            )
        except GitError as error:
            return await self._hold(seq, record, f"{error} The work is on branch {record.kept}.")
        if outcome.kind == "landed":
            return Verdict("landed", seq, outcome.text, commit=record.new)
        if outcome.kind == "blocked":
            return await self._hold(seq, record, f"{outcome.text} The work is on branch {record.kept}.")
        return await self._bounce(seq, record.goal, record.kept, outcome.text, "", outcome.found)

    async def _hold(self, seq: int, work: Work | Merge, told: str, why: str = "") -> Verdict:
        """Leave it to the user: `told` says what to do, `why` (the same if empty) is for the record."""
        bounced = {"merge": seq, "why": why or told, "kept": work.kept}
        await self._emit("merge.bounced", seq, work.goal, bounced)
        return Verdict("held", seq, told)

    async def _bounce(self, seq: int, goal: int, kept: str, why: str, report: str, target: str | None) -> Verdict:
        await self._emit("merge.bounced", seq, goal, {"merge": seq, "why": why, "kept": kept})
        return Verdict("bounced", seq, why, report, target)

    def _private(self, path: str) -> bool:
        return tiers_of(self._t.log).path(path).label == "private"

    async def _emit(self, kind: str, seq: int, goal: int, data: dict[str, Any]) -> None:
        await self._t.emit(kind, data, goal, seq)


async def discard_left_over(tools: LandingTools) -> None:
    """After a restart: remove the verification trees of merges that a process before did not get to remove."""
    state = tools.log.state("merges")
    assert isinstance(state, MergesState)
    for goal in sorted({merge.goal for merge in state.merges.values() if merge.agent}):
        await _discard(tools, goal)


def check_path(tools: LandingTools, goal: int) -> Path:
    """Where the merges of `goal` are checked out, one at a time, to be tested."""
    return tools.worktrees / f"{tools.session}-{goal}.merge"


async def _discard(tools: LandingTools, goal: int) -> None:
    path = check_path(tools, goal)
    try:
        await discard_detached(tools.git, path)
    except GitError as error:
        logger.warning("verification tree %s is kept: %s", path, error)


def _cause(goal: int, task: int | None) -> tuple[int, ...]:
    return (goal,) if task is None else (goal, task)
