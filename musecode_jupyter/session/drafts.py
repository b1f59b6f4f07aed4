"""Goals whose clauses the lead proposes: begun, tried, shown; set only once the user has confirmed them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.roles import offered
from musecode_jupyter.runtime.errors import GitError, UsageProblem
from musecode_jupyter.session.crew import LEAD_NAME
from musecode_jupyter.session.goal_queue import as_data, from_data
from musecode_jupyter.session.landings import landing_parts
from musecode_jupyter.session.preflight import GoalSpec, check_goal, check_model
from musecode_jupyter.skills.clauses import ClauseOptions, options_of, parse_forbid
from musecode_jupyter.skills.draft_state import (
    PROPOSE_GOAL,
    DraftRecord,
    being_drafted,
    draft_document,
    drafts_of,
)
from musecode_jupyter.skills.goal_draft import DraftRunner, draft_message
from musecode_jupyter.skills.plan import PlanTools
from musecode_jupyter.tools.registry import Place
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.worktrees import discard_detached

if TYPE_CHECKING:
    from musecode_jupyter.session.api import GoalHandle, Session
    from musecode_jupyter.session.core import SessionCore

logger = logging.getLogger(__name__)

NO_DRAFT = 'There is nothing to confirm. Start a goal: %goal "TEXT" --verify "COMMAND"'
NAME_IT = "Say what decides the goal: add --verify 'COMMAND', for example --verify 'python -m pytest -q'."
CONFIRM = (
    "`%goal confirm` sets the goal so; with --verify, --metric, --measure or --forbid it is set with yours in place of "
    "those; `%goal cancel` drops it."
)


class Drafts:
    """Owner of the tasks in which clauses are looked for; used on the runtime thread."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def active(self) -> int:
        """The newest draft; UsageProblem if there is none."""
        number = drafts_of(self._core.log).active
        if number is None:
            raise UsageProblem(NO_DRAFT)
        return number

    def record(self, draft: int) -> DraftRecord:
        """A draft of this session; UsageProblem if there is none of this number."""
        record = drafts_of(self._core.log).drafts.get(draft)
        if record is None:
            raise UsageProblem(f"There is no draft {draft} in this session.")
        return record

    async def begin(self, spec: GoalSpec) -> int:
        """Have the lead propose what decides the goal; returns the number at once. UsageProblem if it cannot."""
        core = self._core
        if core.gate.info.profile == "guided":
            raise UsageProblem(f"{core.gate.model} cannot propose checks: it drives no tools. {NAME_IT}")
        if core.busy:
            raise UsageProblem(f"The lead is at a goal and cannot propose checks now. {NAME_IT} Then it is queued.")
        names = offered(core.log, LEAD_NAME)
        if names is not None and PROPOSE_GOAL not in names:
            raise UsageProblem(f"The lead of this session, which is an older one, cannot propose checks. {NAME_IT}")
        async with core.exclusive():
            await check_model(core.settings, core.effects)
            found = await check_goal(spec, core.workspace, core.settings, core.effects, may_ask=True, decided=False)
            if found.git is None or found.head is None:
                raise UsageProblem(f"There is no commit here yet on which checks could be tried. {NAME_IT}")
            for pattern in spec.clauses.forbid:
                parse_forbid(pattern)
            await core.crew.rest()
            given = [f"forbid: {each}" for each in spec.clauses.forbid]
            begun = await core.log.append(
                "draft.begun",
                {
                    "text": spec.text.strip(),
                    "spec": as_data(spec),
                    "agent": LEAD_NAME,
                    "commit": found.head.commit,
                    "message": draft_message(spec.text.strip(), given),
                },
                agent="user",
            )
            self._tasks[begun.seq] = core.questions.start(self._run(begun.seq, found.git), f"draft {begun.seq}")
        return begun.seq

    async def _run(self, draft: int, git: Git) -> None:
        core = self._core
        place = Place(git.root, None, git.list_files, None)
        tools = PlanTools(**landing_parts(core, None, git), loop=core.loop, place=place, guided=False)
        runner = DraftRunner(tools, draft)
        try:
            with core.questions.noting("draft", draft, lambda: self.record(draft).status == "asking"):
                await core.questions.plan(runner.run, Task(LEAD_NAME, place, draft), "what decides a goal")
        finally:
            try:
                await discard_detached(git, runner.check_path)
            except (GitError, OSError) as problem:
                logger.warning("%s is left: %s", runner.check_path, problem)

    async def wait(self, draft: int) -> DraftRecord:
        """Wait until the lead has proposed something, or will not; cancelling ends the wait only."""
        task = self._tasks.get(draft)
        if task is not None:
            await asyncio.wait([task])
        return self.record(draft)

    async def confirm(
        self, draft: int, digest: str, verify: Sequence[str] = (), given: ClauseOptions | None = None
    ) -> int:
        """Set the goal with what was shown under `digest`, or with the user's own clauses in place of those.

        A kind of clause that is given takes the place of what was proposed of that kind. Returns the goal's number.
        """
        core, record = self._core, self.record(draft)
        document = draft_document(core.log, draft)
        if document is None:
            raise UsageProblem(f"Nothing was proposed that could be confirmed ({record.why or record.status}).")
        if record.status == "cancelled" or record.goal is not None:
            done = "was cancelled" if record.goal is None else f"is goal {record.goal} already"
            raise UsageProblem(f"Draft {draft} {done}: start another goal.")
        if digest != record.digest:
            raise UsageProblem("What was proposed is not what was shown any more: look at it again with `%goal`.")
        given = given or ClauseOptions()
        spec = from_data(record.spec)
        own = options_of(record.spec["clauses"])
        options = ClauseOptions(
            forbid=given.forbid or tuple(document["forbid"]),
            holdout=given.holdout or own.holdout,
            metric=given.metric or tuple(document["metric"]),
            measure=given.measure or document["measure"],
            reserve=given.reserve or own.reserve,
        )
        commands = tuple(verify) or tuple(each["command"] for each in document["verify"])
        changed = (["verify"] if verify else []) + [name for name, value in asdict(given).items() if value]
        spec = replace(spec, verify=commands, clauses=options, draft=draft)
        # What cannot decide anything is told before it counts as confirmed.
        await check_goal(spec, core.workspace, core.settings, core.effects, may_ask=True)
        confirmed = {
            "draft": draft,
            "digest": digest,
            "verify": list(commands),
            "clauses": asdict(options),
            "changed": changed,
        }
        await core.log.append("draft.confirmed", confirmed, agent="user", cause=(draft, record.proposed or 0))
        return await core.set_goal(spec)

    async def cancel(self, draft: int) -> None:
        """Want no goal of it; ends the lead's looking around, if it does so."""
        core, record = self._core, self.record(draft)
        if record.status == "cancelled" or record.goal is not None:
            raise UsageProblem(NO_DRAFT)
        if record.status == "asking":
            await core.questions.stop("the goal was cancelled")
            await self.wait(draft)
        await core.log.append("draft.cancelled", {"draft": draft}, agent="user", cause=(draft,))

    def open(self) -> int | None:
        """The newest draft, if it waits for the lead or for the user."""
        number = drafts_of(self._core.log).active
        return number if number is not None and self.record(number).status in {"asking", "proposed"} else None

    def text(self, draft: int) -> str:
        """How it stands, in lines; what was proposed, with how each command ended today."""
        record, document = self.record(draft), draft_document(self._core.log, draft)
        if document is None:
            ended = f"The lead proposed nothing: {record.why} {NAME_IT}" if record.why else "The lead looks for checks."
            return f"Goal, not set: {record.text}\n{ended}\n"
        return draft_text(document, record)


def draft_text(document: Mapping[str, Any], record: DraftRecord) -> str:
    """What was proposed, as text."""
    lines = [f"Goal, not set: {document['goal']}", f"{document['by']} proposes that it is met when:"]
    lines += [f"- `{each['command']}` exits with 0 ({_today(each)})" for each in document["verify"]]
    if document["metric"]:
        how = f"measured by `{document['measure']}`"
        lines += [f"- {text}, {how} ({_today(document['measured'])})" for text in document["metric"]]
    lines += [f"- nothing has what is forbidden: {text}" for text in document["forbid"]]
    lines.append(f"Why: {' '.join(document['why'].split())}")
    lines += [f"WRONG: {each}" for each in document["wrong"]]
    if document["denied"]:
        lines.append(f"The commands were not run: {document['denied']}")
    standing = {"confirmed": f"Confirmed: goal {record.goal}.", "cancelled": "It was cancelled."}
    lines.append(standing.get(record.status, CONFIRM))
    return "\n".join(lines) + "\n"


def _today(each: Mapping[str, Any]) -> str:
    said = {"fails": "fails today", "passes": "PASSES ALREADY", "cannot run": "CANNOT BE RUN", "not run": "not run"}
    return said[each["ended"]] + (f", exit {each['exit']}" if each["exit"] else "")


async def settle_drafts(core: SessionCore, why: str) -> None:
    """After a restart or in a fork: what was being looked for rests."""
    draft = being_drafted(core.log, LEAD_NAME)
    if draft is not None:
        stopped = {"draft": draft, "state": "interrupted", "why": f"{why}."}
        await core.log.append("draft.stopped", stopped, agent="harness", cause=(draft,))


@dataclass(frozen=True)
class DraftResult:
    """How a draft stands. `status` is asking, proposed, confirmed, cancelled or stopped; `document` as proposed."""

    status: str
    why: str
    document: dict[str, Any] | None


class DraftHandle:
    """A goal for which the lead proposes clauses: await it, look at it, confirm it with changes or none, cancel it."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number
        self._seen = ""

    @property
    def result(self) -> DraftResult:
        """How it stands now."""

        def look(core: SessionCore) -> tuple[DraftRecord, Mapping[str, Any] | None]:
            return core.drafts.record(self.number).model_copy(deep=True), draft_document(core.log, self.number)

        record, document = self.session.read(look)
        self._seen = record.digest
        return DraftResult(record.status, record.why, None if document is None else dict(document))

    @property
    def status(self) -> str:
        """asking, proposed, confirmed, cancelled or stopped."""
        return self.session.read(lambda core: core.drafts.record(self.number).status)

    def wait(self, timeout: float | None = None) -> DraftResult:
        """Block until there is something to confirm, or will not be; TimeoutError after `timeout` seconds."""
        self.session.call(lambda core: core.drafts.wait(self.number), timeout=timeout)
        return self.result

    def __await__(self) -> Generator[Any, None, DraftResult]:
        return self._wait().__await__()

    async def _wait(self) -> DraftResult:
        await self.session.run(lambda core: core.drafts.wait(self.number))
        return self.result

    def text(self) -> str:
        """What was proposed, as text."""
        _ = self.result
        return self.session.read(lambda core: core.drafts.text(self.number))

    def confirm(self, *, verify: str | Sequence[str] = (), clauses: ClauseOptions | None = None) -> GoalHandle:
        """Set the goal with what this handle showed last; `verify` and each kind of `clauses` that is given replace it.

        Raises UsageProblem if there is nothing to confirm, or it could not decide anything.
        """
        if not self._seen:
            _ = self.result
        commands = (verify,) if isinstance(verify, str) else tuple(verify)
        number = self.session.call(lambda core: core.drafts.confirm(self.number, self._seen, commands, clauses))
        return self.session.handle(number)

    def cancel(self) -> None:
        """Want no goal of it."""
        self.session.call(lambda core: core.drafts.cancel(self.number))

    def __repr__(self) -> str:
        return f"Draft(status={self.status!r})"
