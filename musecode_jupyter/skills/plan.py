"""%plan as a state machine over events: look around, hand in, try the steps' commands, and only then propose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from musecode_jupyter.agents.claims.tools import claims_of
from musecode_jupyter.agents.landing.checks import as_checks, clean_place, run_commands
from musecode_jupyter.agents.landing.tools import HARNESS, LandingTools
from musecode_jupyter.agents.loop import Loop
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.tasks.graph import Files, TaskSpec
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.answers import answering
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.skills.plan_document import (
    MADE_BY_CHECKS,
    PlanStep,
    ProposedPlan,
    Risk,
    canonical_text,
    digest_of,
)
from musecode_jupyter.skills.plan_state import PlanRecord, plans_of
from musecode_jupyter.skills.plan_tool import PlanStalled, handed_in
from musecode_jupyter.skills.task_planning import one_for_each
from musecode_jupyter.skills.task_trials import Findings, how_ended, judge, may_run
from musecode_jupyter.tools.executor import CallResult, FormedCall
from musecode_jupyter.tools.registry import Place
from musecode_jupyter.workspace.git import Head

MAX_TURNS = 3
"""So often the author is asked for a plan that it did not hand in."""

NONE_HANDED_IN = "You have not handed in a plan. Hand one in with `propose_plan`; the user sees nothing else of it."
TRIED = "The steps' commands were run on a clean checkout of {commit}. What they say of the plan:"
AGAIN = (
    "Hand in the whole plan again: with commands that can be run here and that fail until their step is done, and "
    "without what is done already; or, where that cannot be, the same plan once more."
)


@dataclass(frozen=True)
class PlanTools(LandingTools):
    """What the runner is handed. `place` is the user's own checkout; `guided` says that the model writes no plans."""

    loop: Loop
    place: Place
    guided: bool


class PlanRunner:
    """Writes one plan from wherever the log says it is, up to the next version; used on the runtime thread."""

    def __init__(self, tools: PlanTools, plan: int) -> None:
        self._t = tools
        self.plan = plan

    @property
    def record(self) -> PlanRecord:
        """The plan as folded."""
        return plans_of(self._t.log).plans[self.plan]

    @property
    def check_path(self) -> Path:
        """Where the steps' commands are run: a checkout of its own outside the repository."""
        return self._t.worktrees / f"{self._t.session}-plan-{self.plan}.check"

    async def run(self) -> None:
        """Work until there is another version. Raises PlanStalled if none comes, and what ends a turn otherwise."""
        with answering(self._t.answers(f"plan {self.plan}")):
            head = await self._t.git.head()
            while not await self._version(head):
                pass

    async def _version(self, head: Head) -> bool:
        """One turn of the author, and what comes of it; False if the author is asked again."""
        plan = await (self._by_checks(head) if self._t.guided else self._by_lead())
        if plan is None:
            if self._returned() + 1 >= MAX_TURNS:
                raise PlanStalled(f"No plan was handed in, in {MAX_TURNS} turns.")
            await self._checked(head, [], [], "", NONE_HANDED_IN)
            return False
        specs = [step.task() for step in plan.steps]
        files = Files(await self._t.git.list_files())
        typed = {*self.record.verify, *self._allowed()}
        granted, why, _ = await may_run(self._t, specs, typed, self.check_path, self.record.agent)
        ran = await self._try(specs, head) if granted else {}
        known = {spec.name: spec for spec in specs}
        passed = {command: result.ok for command, result in ran.items()}
        findings = judge(specs, ran, passed, known, files)
        back = not self._t.guided and not self._returned() and bool(findings.wrong or findings.done)
        report = _report(findings, head.commit) if back else ""
        await self._checked(head, list(ran), list(ran.values()), "" if granted else why, report)
        if back:
            return False
        trials = [
            [
                {
                    "command": command,
                    "ended": how_ended(spec, command, ran[command], known, files) if command in ran else "not run",
                    "exit": ran[command].exit if command in ran else None,
                }
                for command in spec.accept
            ]
            for spec in specs
        ]
        await self._propose(plan, trials, head, why if not granted else "")
        return True

    async def _by_lead(self) -> ProposedPlan | None:
        record = self.record
        await self._t.loop.turn(Task(record.agent, self._t.place, self.plan))
        return handed_in(list(self._t.log.events(since=self._last_word())), record.agent)

    async def _by_checks(self, head: Head) -> ProposedPlan:
        commands = self.record.verify
        place = await clean_place(self._t, self.check_path, head.commit)
        results = await run_commands(self._t, commands, place, "plan", self.plan)
        failing = [(c, r) for c, r in zip(commands, results, strict=True) if not r.ok]
        if not failing:
            raise UsageProblem("All of the checks pass at the last commit: there is nothing to plan.")
        located = [
            await self._t.executor.run_one(
                FormedCall("locate", {"check": result.call}, "harness", purpose="plan"),
                agent=HARNESS,
                turn=0,
                place=place,
                typed=frozenset(),
                cause=self.plan,
            )
            for _, result in failing
        ]
        risk = Risk(
            level="medium", why="nobody has looked at the code; the files are those in which a fault is suspected"
        )
        steps = [
            PlanStep(name=task.name, goal=task.goal, writes=task.writes, accept=task.accept, risk=risk, tokens=0)
            for task in one_for_each([command for command, _ in failing], located)
        ]
        return ProposedPlan(summary=MADE_BY_CHECKS, steps=steps)

    async def _try(self, specs: Sequence[TaskSpec], head: Head) -> dict[str, CallResult]:
        """Run each command once, on a clean checkout of the user's last commit."""
        ran: dict[str, CallResult] = {}
        for spec in specs:
            new = [command for command in dict.fromkeys(spec.accept) if command not in ran]
            if new:
                needs = (*spec.reads, *spec.writes) or None
                place = await clean_place(self._t, self.check_path, head.commit, needs)
                ran.update(zip(new, await run_commands(self._t, new, place, "try", self.plan), strict=True))
        return ran

    async def _checked(
        self, head: Head, commands: list[str], results: list[CallResult], denied: str, report: str
    ) -> None:
        await self._t.emit(
            "plan.checked",
            {
                "plan": self.plan,
                "agent": self.record.agent,
                "commit": head.commit,
                "tree": await self._t.git.tree_of(head.commit),
                "checks": as_checks(commands, results),
                "denied": denied,
                "report": report,
            },
            self.plan,
        )

    async def _propose(
        self, plan: ProposedPlan, trials: Sequence[Sequence[Mapping[str, Any]]], head: Head, denied: str
    ) -> None:
        log, record = self._t.log, self.record
        read = files_read(log, self.plan)
        claims = claims_of(log)
        standings = claims.standings()
        named = [str(PurePosixPath(each.path)) for each in plan.evidence]
        document = {
            "goal": asked_for(log, self.plan),
            "verify": record.verify,
            "by": "harness" if self._t.guided else record.agent,
            "summary": plan.summary,
            "steps": [
                {**step.model_dump(mode="json"), "trials": list(tried)}
                for step, tried in zip(plan.steps, trials, strict=True)
            ],
            "denied": denied,
            "questions": list(plan.questions),
            "evidence": [
                {"path": path, "shows": each.shows, "read": path in read}
                for path, each in zip(named, plan.evidence, strict=True)
            ],
            "looked_at": sorted(set(read) - set(named)),
            "claims": [
                {"claim": n, "text": claims.claims[n].text, "label": standings[n].label}
                for n in plan.claims
                if n in standings
            ],
            "ground": {
                "commit": head.commit,
                "branch": head.branch,
                "files": dict(sorted(read.items())),
                "uncommitted": sorted(set(read) & set(await self._t.git.status())),
            },
        }
        text = canonical_text(document)
        await self._t.emit(
            "plan.proposed",
            {
                "plan": self.plan,
                "version": record.version + 1,
                "digest": digest_of(text, {}),
                "document": text,
            },
            self.plan,
        )

    def _allowed(self) -> set[str]:
        """The commands of earlier versions that were allowed to be run: the user is asked of each once."""
        checked = [event for event in self._events(self.plan) if event.kind == "plan.checked"]
        return {check["command"] for event in checked for check in event.data["checks"]}

    def _since(self) -> int:
        """The event since which this version is written: resuming it gives its author no more turns."""
        record = self.record
        return max([self.plan, *record.versions[-1:], *self._edits()])

    def _edits(self) -> list[int]:
        return [event.seq for event in self._events(self.plan) if event.kind == "plan.edited"]

    def _last_word(self) -> int:
        """The event with which its author was last told something of the plan."""
        told = [e.seq for e in self._events(self._since()) if e.kind == "plan.checked" and e.data["report"]]
        return max([self._since(), *told])

    def _returned(self) -> int:
        """How often this version went back to its author."""
        return sum(bool(e.data["report"]) for e in self._events(self._since()) if e.kind == "plan.checked")

    def _events(self, since: int) -> list[Event]:
        events = self._t.log.events(since=since)
        return [event for event in events if event.kind.startswith("plan.") and event.data.get("plan") == self.plan]


def _report(findings: Findings, commit: str) -> str:
    passing = [
        f"Step {name}: its commands pass already, so they cannot tell whether it is done." for name in findings.done
    ]
    return "\n".join([TRIED.format(commit=commit[:10]), *findings.wrong, *passing, AGAIN])


def files_read(log: EventLog, plan: int) -> dict[str, str]:
    """The files of the user's checkout that agents have read since the plan was begun, with the digests then."""
    return {
        event.data["path"]: event.data["digest"]
        for event in log.events(since=plan)
        if event.kind == "file.observed" and event.data["worktree"] is None and event.agent != HARNESS
    }


def asked_for(log: EventLog, plan: int) -> str:
    """What the user asked for, with each change that they asked for after that."""
    edits = [e.data["text"] for e in log.events(since=plan) if e.kind == "plan.edited" and e.data["plan"] == plan]
    return "\n\n".join([plans_of(log).plans[plan].text, *edits])
