"""A goal's clauses proposed by the lead: look around, hand in, try each command, and only then put them to the user."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from musecode_jupyter.agents.landing.checks import as_checks, clean_place, run_commands
from musecode_jupyter.agents.mind import Task
from musecode_jupyter.agents.tasks.graph import TaskSpec
from musecode_jupyter.runtime.answers import answering
from musecode_jupyter.skills.clause_judge import hold_already
from musecode_jupyter.skills.clauses import ClauseOptions, options_of, parse_metric
from musecode_jupyter.skills.draft_state import DraftRecord, drafts_of
from musecode_jupyter.skills.draft_tool import ProposedGoal, clauses_handed_in, merged
from musecode_jupyter.skills.metric import measured, missing
from musecode_jupyter.skills.plan import PlanTools
from musecode_jupyter.skills.plan_document import canonical_text, digest_of
from musecode_jupyter.skills.plan_tool import PlanStalled
from musecode_jupyter.skills.task_trials import may_run
from musecode_jupyter.skills.verify_command import cannot_run, last_line
from musecode_jupyter.tools.executor import CallResult

MAX_TURNS = 3
"""So often the lead is asked for clauses that it did not hand in, or is told that they decide nothing."""

HOW = (
    "Look around first, with `read`, `search`, `map` and, where there is one, the explorer (`ask`). Nothing is changed "
    "now. Then hand in with `propose_goal` what decides whether the goal is met: in `verify` shell commands that fail "
    "today and exit with 0 in the root of the repository once all of it is done; where the goal is a quantity, in "
    "`metrics` what it has to come to, as 'NAME >= X vs HEAD' or without a baseline, and in `measure` the command that "
    "prints NAME=value; in `forbid` what must not be imported or changed on the way, such as the tests that decide it. "
    "The clauses are to demand all of what the user wants and nothing less; say in `why` what no command can decide. "
    "The commands are run at once, and the user reads, changes or declines what you propose. When it is taken, answer "
    "in one sentence without calling a tool."
)
NONE_HANDED_IN = "You have not handed in clauses. Hand them in with `propose_goal`; the user sees nothing else."
AGAIN = "Hand in the clauses again: commands that can be run here, and of which one at least fails today."


def draft_message(text: str, given: list[str]) -> str:
    """How the wish for clauses is put to the lead; `given` are clauses that the user named, which stay."""
    kept = "\n\nThe user has named these, and they stay:\n" + "\n".join(f"- {each}" for each in given) if given else ""
    return f"Say what decides this goal, and do not begin with it: {text}{kept}\n\n{HOW}"


class DraftRunner:
    """Has clauses proposed for one goal; used on the runtime thread."""

    def __init__(self, tools: PlanTools, draft: int) -> None:
        self._t = tools
        self.draft = draft

    @property
    def record(self) -> DraftRecord:
        """The draft as folded."""
        return drafts_of(self._t.log).drafts[self.draft]

    @property
    def check_path(self) -> Path:
        """Where the commands are tried: a checkout of its own outside the repository."""
        return self._t.worktrees / f"{self._t.session}-draft-{self.draft}.check"

    async def run(self) -> None:
        """Work until there is something for the user to confirm. Raises PlanStalled, and what ends a turn otherwise."""
        with answering(self._t.answers(f"draft {self.draft}")):
            since = self.draft
            for turn in range(1, MAX_TURNS + 1):
                await self._t.loop.turn(Task(self.record.agent, self._t.place, self.draft))
                goal = clauses_handed_in(list(self._t.log.events(since=since)), self.record.agent)
                if goal is None:
                    report = NONE_HANDED_IN
                    since = await self._checked([], [], "", report if turn < MAX_TURNS else "")
                    continue
                trials, wrong, denied = await self._tried(goal)
                # Once: what the author insists on is the user's to judge, with how its trial ended.
                back = "\n".join([*wrong, AGAIN]) if wrong and turn == 1 else ""
                since = await self._checked(list(trials), list(trials.values()), denied, back)
                if not back:
                    await self._propose(goal, trials, wrong, denied)
                    return
        raise PlanStalled(f"No clauses were handed in, in {MAX_TURNS} turns.")

    async def _tried(self, goal: ProposedGoal) -> tuple[dict[str, CallResult], list[str], str]:
        """How each command ended on the user's last commit, what is wrong with them, and why they were not run."""
        options = merged(options_of(self.record.spec["clauses"]), goal)
        commands = list(dict.fromkeys([*goal.verify, *([options.measure] if options.measure else [])]))
        task = TaskSpec(name="goal", goal=self.record.text, accept=tuple(commands))
        granted, why, _ = await may_run(self._t, [task], self._ran(), self.check_path, self.record.agent)
        if not granted:
            return {}, [], why
        place = await clean_place(self._t, self.check_path, self.record.commit)
        results = await run_commands(self._t, commands, place, "try", self.draft)
        ran = dict(zip(commands, results, strict=True))
        wrong = [
            f"`{command}` cannot be run: {last_line(result.output)}."
            for command, result in ran.items()
            if cannot_run(result)
        ]
        wrong += self._unmeasured(options, ran)
        met = all(ran[command].ok for command in goal.verify)
        if not wrong and met and self._hold(options, ran):
            wrong.append("All of it holds already, so it cannot tell whether the goal is met.")
        return ran, wrong, ""

    def _unmeasured(self, options: ClauseOptions, ran: Mapping[str, CallResult]) -> list[str]:
        if not options.measure:
            return []
        result = ran[options.measure]
        why = missing([parse_metric(text) for text in options.metric], measured(result.output))
        if not result.ok:
            why = f"it exits with {result.exit}"
        return [f"`{options.measure}` does not measure: {why}."] if why else []

    def _hold(self, options: ClauseOptions, ran: Mapping[str, CallResult]) -> bool:
        metrics = [parse_metric(text) for text in options.metric]
        return not metrics or hold_already(metrics, measured(ran[options.measure or ""].output))

    def _ran(self) -> set[str]:
        """The commands that were allowed to be tried before: the user is asked of each once."""
        events = self._t.log.events(since=self.draft)
        checked = [e for e in events if e.kind == "draft.checked" and e.data["draft"] == self.draft]
        return {check["command"] for event in checked for check in event.data["checks"]}

    async def _checked(self, commands: list[str], results: list[CallResult], denied: str, report: str) -> int:
        return await self._t.emit(
            "draft.checked",
            {
                "draft": self.draft,
                "agent": self.record.agent,
                "commit": self.record.commit,
                "tree": await self._t.git.tree_of(self.record.commit),
                "checks": as_checks(commands, results),
                "denied": denied,
                "report": report,
            },
            self.draft,
        )

    async def _propose(
        self, goal: ProposedGoal, trials: Mapping[str, CallResult], wrong: list[str], denied: str
    ) -> None:
        options = merged(options_of(self.record.spec["clauses"]), goal)
        document = {
            "goal": self.record.text,
            "by": self.record.agent,
            "verify": [{"command": command, **_ended(trials.get(command))} for command in goal.verify],
            "metric": list(options.metric),
            "measure": options.measure,
            "measured": _ended(trials.get(options.measure)) if options.measure else None,
            "forbid": list(options.forbid),
            "why": goal.why,
            "wrong": wrong,
            "denied": denied,
            "commit": self.record.commit,
        }
        text = canonical_text(document)
        proposed = {"draft": self.draft, "digest": digest_of(text, {}), "document": text}
        await self._t.emit("draft.proposed", proposed, self.draft)


def _ended(result: CallResult | None) -> dict[str, Any]:
    if result is None:
        return {"ended": "not run", "exit": None}
    return {"ended": "cannot run" if cannot_run(result) else "passes" if result.ok else "fails", "exit": result.exit}
