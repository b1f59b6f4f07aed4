"""What is attacked, as data and in words: a version of a plan, a goal's task graph, a goal, or a given text; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from musecode_jupyter.agents.frames import clause_lines
from musecode_jupyter.agents.tasks.state import TasksState
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.log.grill_kinds import Target as Kind
from musecode_jupyter.runtime.errors import UsageProblem
from musecode_jupyter.skills.clause_state import ClausesState
from musecode_jupyter.skills.goal_state import GoalRecord, GoalsState
from musecode_jupyter.skills.grill_state import plan_scope
from musecode_jupyter.skills.plan_document import canonical_text
from musecode_jupyter.skills.plan_state import digest_now, document_of, plans_of
from musecode_jupyter.skills.plan_text import plan_text
from musecode_jupyter.tools.files import digest_bytes

WHOLE = ""
"""The part that is everything."""
MOST_TEXT = 40_000
NO_TEXT = "What is to be attacked? Give the text: %grill TEXT, or the text below %%grill."


@dataclass(frozen=True)
class Target:
    """What is attacked. `document` has its `steps` (none: it has none), `commands` and whatever else a check looks at.

    `shown` is what reviewers and the user read, `scope` what another attack on the same thing is known by, `digest`
    what it is now.
    """

    kind: Kind
    scope: str
    digest: str
    shown: str
    document: Mapping[str, Any]
    plan: int | None = None
    version: int = 0
    goal: int | None = None

    @property
    def steps(self) -> Sequence[Mapping[str, Any]]:
        """Its steps or tasks."""
        steps: Sequence[Mapping[str, Any]] = self.document.get("steps", ())
        return steps

    @property
    def commands(self) -> list[str]:
        """All commands by which it is judged."""
        named = [command for step in self.steps for command in step["accept"]]
        return list(dict.fromkeys([*self.document.get("verify", ()), *self.document.get("measure", ()), *named]))

    def step(self, name: str) -> Mapping[str, Any] | None:
        """The step of this name."""
        return next((step for step in self.steps if step["name"] == name), None)

    @property
    def parts(self) -> dict[str, str]:
        """The whole and each step, with digests by which it shows what has changed."""
        return {WHOLE: self.digest, **{step["name"]: _digest(_of_author(step)) for step in self.steps}}

    @property
    def patterns(self) -> list[str]:
        """The files that it says it rests on, reads and writes; folders and globs too."""
        evidence = [each["path"] for each in self.document.get("evidence", ())]
        named = [path for step in self.steps for path in (*step["writes"], *step["reads"])]
        return list(dict.fromkeys([*evidence, *named]))

    @property
    def names(self) -> list[str]:
        """The words of its commands and of its text that may be files."""
        words = [word.split("::")[0] for command in self.commands for word in command.split()]
        said = [word.rstrip(".,;:") for word in str(self.document["goal"]).split()]
        return list(dict.fromkeys(word.strip("`'\"()[]") for word in (*words, *said)))

    @property
    def words(self) -> str:
        """What it is, for people."""
        return {
            "plan": f"plan {self.plan}, version {self.version}",
            "graph": f"the tasks of goal {self.goal}",
            "goal": f"goal {self.goal}",
            "text": "the text",
        }[self.kind]


def _of_author(step: Mapping[str, Any]) -> dict[str, Any]:
    # How its commands ended is no part of what its author wrote.
    return {name: value for name, value in step.items() if name != "trials"}


def _digest(data: Any) -> str:
    return digest_bytes(canonical_text(data).encode("ascii"))


def of_plan(log: EventLog, plan: int, version: int | None = None) -> Target:
    """A version of a plan, the newest if none is named; UsageProblem if there is none yet."""
    record = plans_of(log).plans.get(plan)
    if record is None:
        raise UsageProblem(f"There is no plan {plan} in this session.")
    number = record.version if version is None else version
    document = document_of(log, plan, number)
    if document is None:
        raise UsageProblem(f"Plan {plan} has no version yet: wait for it, or go on with `%plan resume`.")
    shown = plan_text(None, 0, document, "")
    digest = digest_now(log, plan) if number == record.version else record.digests[number - 1]
    return Target("plan", plan_scope(plan), digest, shown, document, plan=plan, version=number)


def of_graph(log: EventLog, goal: int) -> Target:
    """The task graph of a goal, as its tasks are now; UsageProblem if it has none."""
    record, tasks = _goal(log, goal), log.state("tasks")
    assert isinstance(tasks, TasksState)
    newest = max((task.plan for task in tasks.of_goal(goal).values()), default=0)
    mine = [task for task in tasks.of_goal(goal).values() if task.plan == newest]
    if not mine:
        raise UsageProblem(f"Goal {goal} has no tasks: it is worked on as a whole. Attack it with `%grill --goal`.")
    steps = [{**task.spec.model_dump(mode="json"), "state": task.state} for task in mine]
    return _made("graph", f"tasks of goal {goal}", {"goal": record.text, "verify": record.verify, "steps": steps}, goal)


def of_goal(log: EventLog, goal: int) -> Target:
    """A goal: its text, the commands that decide it, its other clauses and its limits."""
    record, clauses = _goal(log, goal), log.state("clauses")
    assert isinstance(clauses, ClausesState)
    mine = clauses.of(goal)
    limits = {
        "USD": record.limit_microusd,
        "tokens": record.limit_tokens,
        "tool calls": record.limit_calls,
        "model calls": record.limit_steps,
        "hours": record.limit_hours,
    }
    document = {
        "goal": record.text,
        "verify": record.verify,
        "clauses": clause_lines(mine.model_dump()),
        "forbid": mine.forbid,
        "metrics": [metric.text for metric in mine.metrics],
        "measure": [mine.measure] if mine.measure else [],
        "holdout": [held.place for held in mine.holdout],
        "limits": [name for name, limit in limits.items() if limit is not None],
    }
    return _made("goal", f"goal {goal}", document, goal)


def of_text(text: str) -> Target:
    """A text of the user's; UsageProblem if there is none, or it is too long to be read in one go."""
    if not text.strip():
        raise UsageProblem(NO_TEXT)
    if len(text) > MOST_TEXT:
        raise UsageProblem(f"The text has {len(text)} characters; at most {MOST_TEXT} are attacked at once.")
    document = {"goal": text.strip()}
    return _made("text", f"text {_digest(document)}", document)


def target_of(log: EventLog, begun: Event) -> Target:
    """What the attack that event `begun` began is on, as it was then."""
    data = begun.data
    if data.get("target", "plan") == "plan":
        found = of_plan(log, data["plan"], data["version"])
        return Target("plan", found.scope, data["digest"], found.shown, found.document, found.plan, found.version)
    return _made(data["target"], data["scope"], json.loads(data["document"]), data["goal"])


def _goal(log: EventLog, goal: int) -> GoalRecord:
    goals = log.state("goals")
    assert isinstance(goals, GoalsState)
    record = goals.goals.get(goal)
    if record is None:
        raise UsageProblem(f"There is no goal {goal} in this session.")
    return record


def _made(kind: Kind, scope: str, document: Mapping[str, Any], goal: int | None = None) -> Target:
    return Target(kind, scope, _digest(document), _shown(document), document, goal=goal)


def _shown(document: Mapping[str, Any]) -> str:
    lines = [str(document["goal"])]
    if document.get("verify"):
        lines += ["", "It is met when each of these commands passes:"]
        lines += [f"- `{command}`" for command in document["verify"]]
    if document.get("clauses"):
        lines += ["", *document["clauses"]]
    if "limits" in document:
        lines += ["", f"Limits: {', '.join(document['limits']) or 'none'}"]
    for step in document.get("steps", ()):
        lines += ["", f"## {step['name']}", step["goal"]]
        lines += [f"- done when `{command}` passes" for command in step["accept"]]
        lines += [f"- {name} {', '.join(step[name]) or '(not said)'}" for name in ("reads", "writes")]
        lines += [f"- after {', '.join(step['after'])}"] if step["after"] else []
        lines += [f"- {step['state']}"] if step.get("state") else []
    return "\n".join(lines) + "\n"


def document_text(target: Target) -> str:
    """What is attacked as canonical JSON; empty for a plan, whose versions the log has."""
    return "" if target.kind == "plan" else canonical_text(dict(target.document))
