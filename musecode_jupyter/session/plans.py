"""Plans as a session does them: begun, written beside the user's cells, answered, approved, kept as files, run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from musecode_jupyter.agents.claims.state import ClaimsState
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.tasks.graph import TaskSpec
from musecode_jupyter.runtime.errors import Denied, GitError, MuseError, UsageProblem
from musecode_jupyter.session.claims import look_again
from musecode_jupyter.session.crew import LEAD_NAME
from musecode_jupyter.session.grills import accepted
from musecode_jupyter.session.landings import landing_parts
from musecode_jupyter.session.preflight import MOST_WORKERS, GoalSpec, check_model
from musecode_jupyter.skills.plan import PlanRunner, PlanTools
from musecode_jupyter.skills.plan_document import commands_of, digest_of, tasks_of
from musecode_jupyter.skills.plan_state import (
    PlanRecord,
    being_written,
    digest_now,
    document_of,
    document_text,
    plans_of,
)
from musecode_jupyter.skills.plan_text import edit_message, plan_markdown, plan_message, plan_text, standing
from musecode_jupyter.skills.verify_command import check_command
from musecode_jupyter.tools.environment import child_environment
from musecode_jupyter.tools.files import digest_bytes, read_bytes
from musecode_jupyter.tools.registry import Place
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.history import last_commits
from musecode_jupyter.workspace.worktrees import discard_detached

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore

logger = logging.getLogger(__name__)

FOLDER = "plans"
NO_PLAN = "There is no plan. Have one written: %plan TEXT"
NO_TEXT = 'What is to be planned? Give the text, for example: %plan "make the tests pass"'
GUIDED = (
    "The model {model} cannot write a plan by itself: it drives no tools. Say which checks are to pass: with "
    "`%plan TEXT --verify 'COMMAND'` each that fails becomes a step. Or choose a larger model."
)
_MOST_BYTES = 64 << 20


class Plans:
    """Owner of the tasks in which plans are written; used on the runtime thread."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def active(self) -> int:
        """The newest plan; UsageProblem if there is none."""
        number = plans_of(self._core.log).active
        if number is None:
            raise UsageProblem(NO_PLAN)
        return number

    def record(self, plan: int) -> PlanRecord:
        """A plan of this session; UsageProblem if there is none of this number."""
        record = plans_of(self._core.log).plans.get(plan)
        if record is None:
            raise UsageProblem(f"There is no plan {plan} in this session.")
        return record

    async def begin(self, text: str, verify: Sequence[str] = ()) -> int:
        """Have a plan written for `text`; returns its number at once. Raises UsageProblem or GitError if it cannot be.

        `verify` are commands that are to pass in the end.
        """
        core = self._core
        if not text.strip():
            raise UsageProblem(NO_TEXT)
        guided = core.gate.info.profile == "guided"
        if guided and not verify:
            raise UsageProblem(GUIDED.format(model=core.gate.model))
        async with core.exclusive():
            await check_model(core.settings, core.effects)
            git = await core.git()
            path = child_environment(core.effects.environ())["PATH"]
            for command in verify:
                await core.effects.disk(check_command, command, git.root, path)
            head = await git.head()
            await core.crew.rest()
            message = "" if guided else plan_message(text.strip(), verify, await last_commits(git))
            begun = await core.log.append(
                "plan.begun",
                {
                    "text": text.strip(),
                    "verify": list(verify),
                    "agent": LEAD_NAME,
                    "commit": head.commit,
                    "branch": head.branch,
                    "message": message,
                },
                agent="user",
            )
            self._start(begun.seq, git)
        return begun.seq

    async def edit(self, plan: int, text: str) -> None:
        """Have the plan changed as `text` says, and by the answers to its questions; another version follows."""
        core, record = self._core, self.record(plan)
        guided = core.gate.info.profile == "guided"
        if guided:
            raise UsageProblem(
                "A plan that was made from checks cannot be edited in words: plan anew with other checks."
            )
        self._not_over(plan)
        wishes = accepted(core, plan)
        if not text.strip() and not record.answers and not wishes:
            raise UsageProblem("What is to change? Give the text: %plan edit TEXT.")
        async with core.exclusive():
            await check_model(core.settings, core.effects)
            git = await core.git()
            head = await git.head()
            await core.crew.rest()
            document = document_of(core.log, plan)
            questions = [] if document is None else list(document["questions"])
            answers = {questions[number - 1]: said for number, said in record.answers.items()}
            await core.log.append(
                "plan.edited",
                {
                    "plan": plan,
                    "text": text.strip(),
                    "agent": record.agent,
                    "commit": head.commit,
                    "message": edit_message(text.strip(), answers, wishes),
                },
                agent="user",
                cause=(plan,),
            )
            self._start(plan, git)

    async def resume(self, plan: int) -> None:
        """Go on with a plan whose writing was stopped or cut off."""
        core, record = self._core, self.record(plan)
        if record.status != "stopped":
            raise UsageProblem(f"Plan {plan} is {record.status}: there is nothing to go on with.")
        async with core.exclusive():
            await check_model(core.settings, core.effects)
            git = await core.git()
            await core.crew.rest()
            await core.log.append("plan.resumed", {"plan": plan}, agent="user", cause=(plan,))
            self._start(plan, git)

    def _start(self, plan: int, git: Git) -> None:
        self._tasks[plan] = self._core.questions.start(self._run(plan, git), f"plan {plan}")

    async def _run(self, plan: int, git: Git) -> None:
        core = self._core
        place = Place(git.root, None, git.list_files, None)
        tools = PlanTools(
            **landing_parts(core, None, git), loop=core.loop, place=place, guided=core.gate.info.profile == "guided"
        )
        runner = PlanRunner(tools, plan)
        try:
            with core.questions.noting("plan", plan, lambda: self.record(plan).status == "writing"):
                await core.questions.plan(runner.run, Task(LEAD_NAME, place, plan))
                await keep(core, plan)
        finally:
            try:
                await discard_detached(git, runner.check_path)
            except (GitError, OSError) as problem:
                logger.warning("%s is left: %s", runner.check_path, problem)

    async def wait(self, plan: int) -> PlanRecord:
        """Wait until the plan is not written any more; cancelling ends the wait only."""
        task = self._tasks.get(plan)
        if task is not None:
            await asyncio.wait([task])
        return self.record(plan)

    def answer(self, plan: int, number: int, text: str) -> None:
        """Answer question `number`, from 1, of the newest version; what the user decides is a claim too."""
        core, record = self._core, self.record(plan)
        document = self._document(plan)
        self._not_over(plan)
        questions = document["questions"]
        if not 1 <= number <= len(questions):
            there_are = f"it has {len(questions)}" if questions else "it has none"
            raise UsageProblem(f"There is no question {number} in the plan: {there_are}.")
        if not text.strip():
            raise UsageProblem(f"What is the answer? Give the text: %plan answer {number} TEXT.")
        said = f"The user decided, asked {questions[number - 1]!r}: {text.strip()}"
        claim = core.log.post("claim.asserted", {"type": "decision", "text": said, "evidence": []}, agent="user")
        core.log.post(
            "plan.answered",
            {
                "plan": plan,
                "version": record.version,
                "question": number,
                "text": text.strip(),
                "claim": claim.seq,
            },
            agent="user",
            cause=(plan, claim.seq),
        )

    async def approve(self, plan: int, digest: str | None = None) -> str:
        """Agree to the plan as it stands, or to that of which `digest` is (its beginning will do); returns the digest.

        Raises UsageProblem where it is not as it was shown any more, or cannot be approved.
        """
        core, record = self._core, self.record(plan)
        self._document(plan)
        if record.status == "approved":
            raise UsageProblem(f"Plan {plan} is approved already. `%goal --plan` runs it.")
        self._not_over(plan)
        now = digest_now(core.log, plan)
        if digest is not None and not (len(digest) >= 6 and now.startswith(digest)):
            raise UsageProblem(
                f"Not approved: the plan has changed since ({digest[:12]} was shown, it is {now[:12]} now). "
                "Look at it again: %plan."
            )
        approved = {"plan": plan, "version": record.version, "digest": now}
        await core.log.append("plan.approved", approved, agent="user", cause=(plan, record.versions[-1]))
        return now

    async def reject(self, plan: int, why: str = "") -> None:
        """Say no to the plan, for good."""
        core, record = self._core, self.record(plan)
        self._document(plan)
        self._not_over(plan)
        rejected = {"plan": plan, "version": record.version, "why": why.strip()}
        await core.log.append("plan.rejected", rejected, agent="user", cause=(plan,))

    async def cancel(self, plan: int) -> None:
        """End the writing of the plan, if it is written, and want it no more."""
        core = self._core
        if self.record(plan).status in {"cancelled", "rejected"}:
            raise UsageProblem(f"Plan {plan} is {self.record(plan).status} already.")
        if self.record(plan).status == "writing":
            await core.questions.stop("the plan was cancelled")
            await self.wait(plan)
        await core.log.append("plan.cancelled", {"plan": plan}, agent="user", cause=(plan,))

    def _document(self, plan: int) -> Mapping[str, Any]:
        if self.record(plan).status == "writing":
            raise UsageProblem(f"Plan {plan} is being written: wait for it.")
        document = document_of(self._core.log, plan)
        if document is None:
            raise UsageProblem(f"Plan {plan} has no version yet. `%plan resume` goes on with it.")
        return document

    def _not_over(self, plan: int) -> None:
        record = self.record(plan)
        if record.status == "writing":
            raise UsageProblem(f"Plan {plan} is being written: wait for it, or end it with `%plan cancel`.")
        if record.status in {"rejected", "cancelled"}:
            raise UsageProblem(f"Plan {plan} was {record.status}: have a new one written with %plan TEXT.")

    # --- as text and as files ----------------------------------------------------------------------------

    def markdown(self, plan: int) -> str:
        """The plan as it stands, as Markdown."""
        log = self._core.log
        return plan_markdown(self.record(plan), plan, document_of(log, plan), digest_now(log, plan))

    def text(self, plan: int, *, figures: bool = True) -> str:
        """The same as plain text, with or without numbers and digests that differ from run to run."""
        log = self._core.log
        return plan_text(self.record(plan), plan if figures else 0, document_of(log, plan), digest_now(log, plan))

    def shown(self, plan: int) -> dict[str, Any]:
        """The plan as the views see it, all of it plain data; `document` is None as long as there is no version."""
        log, record = self._core.log, self.record(plan)
        return {
            "number": plan,
            "text": record.text,
            "status": record.status,
            "standing": standing(record),
            "version": record.version,
            "digest": digest_now(log, plan),
            "document": document_of(log, plan),
            "answers": {str(number): text for number, text in record.answers.items()},
            "difference": self.difference(plan),
        }

    def difference(self, plan: int) -> str:
        """What the newest version changed of the one before it, as a unified diff; empty if there is no such."""
        record = self.record(plan)
        if record.version < 2:
            return ""
        before = self._of_version(plan, record.version - 1).splitlines()
        after = self._of_version(plan, record.version).splitlines()
        names = (f"version {record.version - 1}", f"version {record.version}")
        return "\n".join(unified_diff(before, after, *names, lineterm="", n=1))

    def _of_version(self, plan: int, version: int) -> str:
        return plan_markdown(None, plan, document_of(self._core.log, plan, version), "")

    # --- running it --------------------------------------------------------------------------------------

    async def to_run(self, plan: int) -> tuple[str, tuple[str, ...], tuple[TaskSpec, ...], list[str]]:
        """Text, checks and tasks of a goal that does what the approved plan says, and what of its ground has moved.

        Raises UsageProblem where it is not approved as it stands; Denied where its ground has moved, and the user, or
        the approvals mode, does not want it run all the same.
        """
        core, record = self._core, self.record(plan)
        if record.status != "approved" or record.approved != digest_now(core.log, plan):
            raise UsageProblem(
                f"Plan {plan} is {record.status}, not approved: look at it with `%plan`, then `%plan approve`."
            )
        document = self._document(plan)
        moved = await self.moved(plan)
        if moved:
            await self._ask_moved(plan, moved)
        questions = document["questions"]
        decided = [f"- {questions[number - 1]} {said}" for number, said in sorted(record.answers.items())]
        more = "\n".join(["", "", "The user has decided:", *decided]) if decided else ""
        return str(document["goal"]) + more, commands_of(document), tasks_of(document), moved

    async def _ask_moved(self, plan: int, moved: list[str]) -> None:
        core = self._core
        verdict = core.policy.landing(None)
        granted, why = verdict.decision == "allow", verdict.rule
        if verdict.decision == "ask":
            shown = {
                "plan": f"{plan}, version {self.record(plan).version}",
                "moved since it was written": moved,
                "if you approve": "it is run as it is",
                "if you deny": "nothing is run; `%plan edit TEXT` brings it up to date",
            }
            answer = await core.approvals.ask(
                "run the plan", f"plan {plan}, whose ground has moved", shown, agent="user", no_rule="asked each time"
            )
            granted, why = answer.granted, answer.why or "the user's answer"
        if not granted:
            raise Denied(f"Not run, since its ground has moved ({why}): {'; '.join(moved)}. `%plan edit` renews it.")

    async def moved(self, plan: int) -> list[str]:
        """What has changed of that on which the plan rests, since it was written: a clause each."""
        core = self._core
        await look_again(core)
        document = self._document(plan)
        ground = document["ground"]
        git = await core.git()
        head = await git.head()
        found = []
        if head.branch != ground["branch"]:
            found.append(f"HEAD is on {head.branch or 'no branch'}, not on {ground['branch'] or 'no branch'}")
        if head.commit != ground["commit"]:
            found.append(f"the last commit is {head.commit[:10]}, not {ground['commit'][:10]}")
        digests = await core.effects.disk(_digests, git.root, list(ground["files"]))
        for path, then in ground["files"].items():
            now = digests[path]
            if now != then:
                found.append(f"{path} is gone" if now is None else f"{path} has changed since it was read")
        state = core.log.state("claims")
        assert isinstance(state, ClaimsState)
        standings = state.standings()
        for claim in document["claims"]:
            standing = standings.get(claim["claim"])
            if standing is None or standing.out:
                found.append(f"claim {claim['claim']} is {'gone' if standing is None else standing.label}")
        return found

    async def run(self, plan: int, wanted: GoalSpec) -> int:
        """Start a goal that does what the approved plan says, or queue it while one runs; returns its number.

        `wanted` has its limits, and, if they are given, other checks than the plan's and the number of workers.
        """
        core = self._core
        if core.asking:
            core.no_running_goal()
        text, verify, tasks, moved = await self.to_run(plan)
        workers = wanted.workers if wanted.workers > 1 else min(len(tasks), MOST_WORKERS)
        spec = replace(wanted, text=text, verify=wanted.verify or verify, tasks=tasks, workers=workers, plan=plan)
        goal = await core.set_goal(spec)
        if goal in core.goals.goals:
            await self.ran(plan, goal, moved)
        return goal

    async def ran(self, plan: int, goal: int, moved: list[str]) -> None:
        """Write down that a goal has begun which does what the plan says; `moved` of its ground, and the user knew."""
        run = {"plan": plan, "version": self.record(plan).version, "goal": goal, "moved": moved}
        await self._core.log.append("plan.run", run, agent="user", cause=(plan, goal))

    async def still_holds(self, plan: int, spec: GoalSpec) -> list[str]:
        """What of the ground of a plan that was queued has moved by now, where it is run all the same.

        Raises UsageProblem where it is another plan by now, or not approved any more; Denied as `to_run`.
        """
        text, _, tasks, moved = await self.to_run(plan)
        if (text, tasks) != (spec.text, spec.tasks):
            raise UsageProblem(f"Plan {plan} was changed while it waited: `%goal --plan` runs it as it is now.")
        return moved

    async def save(self, plan: int, path: str) -> str:
        """Copy the newest version as Markdown to `path` in the repository, if the user or a rule says so.

        Nothing is overwritten. Raises UsageProblem, and Denied.
        """
        core = self._core
        self._document(plan)
        root = (await core.git()).root
        inside = PurePosixPath(path.strip())
        if not path.strip() or inside.is_absolute() or ".." in inside.parts or inside.parts[0].lower() == ".git":
            raise UsageProblem("%plan save takes a path inside the repository, such as docs/plan.md.")
        target = root / inside
        if await core.effects.disk(_taken, root, target):
            raise UsageProblem(f"{inside} is there already, or leads elsewhere: nothing is overwritten. Name another.")
        text = self.markdown(plan)
        verdict = core.policy.landing(None)
        granted, why = verdict.decision == "allow", verdict.rule
        if verdict.decision == "ask":
            shown = {"path": str(inside), "text": text}
            answer = await core.approvals.ask(
                "write", f"save plan {plan}", shown, agent="user", no_rule="each file is a question of its own"
            )
            granted, why = answer.granted, answer.why or "the user's answer"
        if not granted:
            raise Denied(f"Not saved: denied ({why}).")
        await core.effects.disk(_write_new, root, target, text)
        saved = {"plan": plan, "version": self.record(plan).version, "path": str(inside)}
        await core.log.append("plan.saved", saved, agent="user", cause=(plan,))
        return str(inside)


async def keep(core: SessionCore, plan: int) -> None:
    """Write the versions of a plan into the session's folder, as Markdown and as JSON, where they are not there."""
    record = plans_of(core.log).plans[plan]
    files: dict[str, str] = {}
    for version in range(1, record.version + 1):
        text = document_text(core.log, plan, version)
        document = document_of(core.log, plan, version)
        assert text is not None
        digest = digest_of(text, {})
        files[f"{plan}-v{version}.json"] = text + "\n"
        files[f"{plan}-v{version}.md"] = plan_markdown(None, plan, document, digest)
    await core.effects.disk(_keep_files, core.log.folder / FOLDER, files)


async def settle_plans(core: SessionCore, why: str) -> None:
    """After a restart or in a fork: the plan that was being written rests, and what the folder lacks is written."""
    plan = being_written(core.log, LEAD_NAME)
    if plan is not None:
        stopped = {"plan": plan, "state": "interrupted", "why": why}
        await core.log.append("plan.stopped", stopped, agent="harness", cause=(plan,))
    for number in plans_of(core.log).plans:
        await keep(core, number)


def _keep_files(folder: Path, files: Mapping[str, str]) -> None:
    if not files:
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, text in files.items():
        data = text.encode("utf-8", "backslashreplace")
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            scratch = folder / f".{name}"
            scratch.write_bytes(data)
            scratch.replace(path)


def _digests(root: Path, paths: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for path in paths:
        try:
            _, data = read_bytes(root, path, _MOST_BYTES)
        except (MuseError, OSError):
            data = None
        found[path] = None if data is None else digest_bytes(data)
    return found


def _taken(root: Path, target: Path) -> bool:
    parent = target.parent
    while not parent.exists() and parent != root:
        parent = parent.parent
    return target.is_symlink() or target.exists() or not parent.resolve().is_relative_to(root.resolve())


def _write_new(root: Path, target: Path, text: str) -> None:
    if _taken(root, target):
        raise UsageProblem(f"{target.relative_to(root)} is there by now: nothing is overwritten.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        file.write(text.encode("utf-8", "backslashreplace"))
