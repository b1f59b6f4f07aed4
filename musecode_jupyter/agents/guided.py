"""The `guided` profile: the harness runs the check, finds suspect code, asks a small model for one edit at a time.

Which step comes next is read off the log alone, so that a restart goes on where it was: every try is a question
(agent.view), an answer, an edit, a check, and - unless the check passes - a revert.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from musecode_jupyter.agents.context import build_request, items_of, parse_items
from musecode_jupyter.agents.mind import Step, Task
from musecode_jupyter.agents.prompts import ASK
from musecode_jupyter.agents.repair import (
    MAX_TRIES,
    Suspect,
    Tried,
    choice_from_answer,
    edit_from_answer,
    plan_tries,
    question,
    suspects,
)
from musecode_jupyter.agents.state import AgentsState
from musecode_jupyter.guard.gate import Completion, Gate
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event
from musecode_jupyter.models.types import Message, Picture
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.executor import FormedCall
from musecode_jupyter.tools.files import digest_bytes, read_bytes
from musecode_jupyter.tools.registry import Arguments, Outcome, Tool, ToolContext
from musecode_jupyter.tools.state import CLOSING

REPAIR_OUTPUT = 320
ASK_OUTPUT = 400
MAX_FILES = 400
MAX_FILE_BYTES = 200_000
NO_FIX = "No verified fix found"


class LocateArguments(Arguments):
    """Arguments of `locate`."""

    check: int = Field(description="seq of the tool.requested event of the failing check")


async def _locate(context: ToolContext, arguments: LocateArguments) -> Outcome:
    output = next(
        e.data["output"]
        for e in context.log.events(since=arguments.check)
        if e.kind in CLOSING and e.data["call"] == arguments.check
    )
    files = [name for name in await context.place.list_files() if name.endswith(".py")][:MAX_FILES]
    return await context.effects.disk(_locate_now, context, output, files)


def _locate_now(context: ToolContext, output: str, files: Sequence[str]) -> Outcome:
    sources: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    for name in files:
        try:
            _, data = read_bytes(context.place.root, name, limit=MAX_FILE_BYTES)
            contents[name] = data or b""
            sources[name] = contents[name].decode("utf-8").replace("\r\n", "\n")
        except (ToolProblem, UnicodeDecodeError, OSError):
            continue
    found = suspects(output, sources)
    suspected = {suspect.path: sources[suspect.path] for suspect in found}
    shown = {"suspects": [vars(suspect) for suspect in found], "sources": suspected}
    # What is suspected is what the model is shown: an edit of it is checked against this state of the file.
    observed = tuple((name, digest_bytes(contents[name]), len(contents[name])) for name in suspected)
    return Outcome(json.dumps(shown), observed=observed)


LOCATE = Tool(
    name="locate",
    description="Rank the definitions that may hold the fault which a failing check shows.",
    arguments=LocateArguments,
    effect="read",
    run=_locate,
    offered=False,
)


@dataclass
class _Attempt:
    """One answer of the model and what became of it: an edit of line `line`, applied and reverted; or a refusal.

    `position` is the place of its question in the plan of tries.
    """

    edit: Tried | None
    position: int
    line: int = 0
    refused: str = ""
    applied: bool = False
    reverted: bool = False


@dataclass
class _History:
    """What the log says about the task so far.

    `checks` has, by command, the call, result and output of the last run on the files as they are; `before` the same
    for the files without any try.
    """

    checks: dict[str, tuple[int, bool, str]] = field(default_factory=dict)
    before: dict[str, tuple[int, bool, str]] = field(default_factory=dict)
    judged_failing: bool = False
    suspects: list[Suspect] | None = None
    sources: dict[str, str] = field(default_factory=dict)
    attempts: list[_Attempt] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    last: int = 0

    @property
    def tried(self) -> list[Tried]:
        """Edits that were made and did not help, or were refused when made."""
        return [a.edit for a in self.attempts if a.edit is not None and (a.reverted or a.refused)]

    @property
    def open(self) -> _Attempt | None:
        """The attempt that is neither reverted nor refused."""
        if self.attempts and not self.attempts[-1].refused and not self.attempts[-1].reverted:
            return self.attempts[-1]
        return None


@dataclass
class Guided:
    """Forms steps from the history of the task; holds no state of its own."""

    log: EventLog
    gate: Gate

    async def next_step(self, task: Task) -> Step:
        if task.goal is None:
            return await self._answer(task)
        history = _read(self.log, task)
        open_attempt = history.open
        if open_attempt is not None and not open_attempt.applied:
            return self._call(history, _edit_call(open_attempt, history.sources, "try"))
        failing = next((c for c in task.verify if c in history.checks and not history.checks[c][1]), None)
        if failing is None:
            unknown = [c for c in task.verify if c not in history.checks]
            if unknown:
                return self._call(history, FormedCall("run", {"command": unknown[0]}, "harness", purpose="check"))
            if history.judged_failing:
                return Step(
                    (),
                    f"{NO_FIX}: the check passes in the worktree, not on a clean checkout.",
                    history.last,
                    True,
                )
            return Step((), _claim(open_attempt), history.last)
        if open_attempt is not None:
            return self._call(history, _edit_call(open_attempt, history.sources, "revert"))
        check, _, output = history.checks[failing]
        if history.suspects is None:
            return self._call(history, FormedCall("locate", {"check": check}, "harness", purpose="locate"))
        return await self._try(task, history, output)

    def _call(self, history: _History, call: FormedCall) -> Step:
        return Step((call,), "", history.last)

    async def _try(self, task: Task, history: _History, output: str) -> Step:
        assert history.suspects is not None
        plan = plan_tries(len(history.suspects))
        if not plan:
            return Step((), f"{NO_FIX}: no Python code could be connected with the failing check.", history.last, True)
        position = 0
        while (number := len(history.attempts)) < MAX_TRIES:
            position = max(position, history.attempts[-1].position + 1 if history.attempts else 0)
            if position >= len(plan):
                break
            planned = plan[position]
            try:
                asked = question(
                    planned.suspect, planned.kind, history.suspects, output, history.sources, history.tried
                )
            except ToolProblem:
                position += 1
                continue
            text = asked.user_text
            if history.hints:
                text += "\n\nThe user says: " + " ".join(history.hints)
            await self._question(
                task,
                purpose=f"repair {position} {planned.suspect} {planned.kind}",
                instructions=asked.instructions,
                text=text,
                schema=asked.json_schema,
                temperature=0.0,
                seed=1,
                limit=REPAIR_OUTPUT,
                cause=history.last,
            )
            history = _read(self.log, task)
            assert history.suspects is not None
            attempt = history.open
            if attempt is not None:
                return self._call(history, _edit_call(attempt, history.sources, "try"))
        return Step(
            (), f"{NO_FIX} in {number} tries. Each is in the log; the files are as they were.", history.last, True
        )

    async def _answer(self, task: Task) -> Step:
        state = self.log.state("agents")
        assert isinstance(state, AgentsState)
        said = self.log.get(task.since)
        seqs = (*said.cause, said.seq)
        parts = [item for seq in seqs for item in items_of(self.log.get(seq), lambda _: None, self.log.blob)]
        spoken = [item.in_words() if isinstance(item, Picture) else item for item in parts]
        message = "\n\n".join(item.text for item in spoken if isinstance(item, Message))
        completion = await self._question(
            task,
            purpose="ask",
            instructions=ASK,
            text=message,
            schema=None,
            temperature=0.0,
            seed=1,
            limit=ASK_OUTPUT,
            cause=task.since,
        )
        text = completion.text.strip()
        if completion.final.status == "incomplete":
            text += " [...]"
        return Step((), text, completion.seq)

    async def _question(
        self,
        task: Task,
        *,
        purpose: str,
        instructions: str,
        text: str,
        schema: dict[str, Any] | None,
        temperature: float,
        seed: int,
        limit: int,
        cause: int,
    ) -> Completion:
        await self.gate.ready()
        view = await self.log.append(
            "agent.view",
            {
                "purpose": purpose,
                "instructions": instructions,
                "items": [Message(role="user", text=text).model_dump(mode="json")],
                "json_schema": schema,
            },
            agent=task.agent,
            cause=(cause,),
        )
        request = build_request(
            {
                "model": self.gate.model,
                "max_output_tokens": limit,
                "effort": None,
                "temperature": temperature,
                "seed": seed,
                "cache_key": None,
            },
            instructions=view.data["instructions"],
            items=parse_items(view.data["items"]),
            tools=(),
            json_schema=view.data["json_schema"],
        )
        return await self.gate.complete(
            request, agent=task.agent, turn=0, view=view.seq, purpose=purpose, cause=(view.seq,)
        )


def _claim(attempt: _Attempt | None) -> str:
    if attempt is None or attempt.edit is None:
        return "The check passes."
    edit = attempt.edit
    return f"Changed one line of {edit.path}: `{edit.old.strip()}` is now `{edit.new.strip()}`. The check passes."


def _edit_call(attempt: _Attempt, sources: dict[str, str], purpose: str) -> FormedCall:
    edit = attempt.edit
    assert edit is not None
    old, new = _unique(sources[edit.path], edit, attempt.line)
    if purpose == "revert":
        old, new = new, old
    return FormedCall("edit", {"path": edit.path, "old": old, "new": new}, "harness", purpose=purpose)


def _unique(source: str, edit: Tried, number: int) -> tuple[str, str]:
    """The edit of line `number` with as many lines before it as make its old and its new text unique in the file."""
    lines = source.split("\n")
    changed = [*lines[: number - 1], edit.new, *lines[number:]]
    for start in range(number - 1, -1, -1):
        old, new = "\n".join(lines[start:number]), "\n".join(changed[start:number])
        if source.count(old) == 1 and "\n".join(changed).count(new) == 1:
            return old, new
    return "\n".join(lines[:number]), "\n".join(changed[:number])


def _read(log: EventLog, task: Task) -> _History:
    history = _History()
    requested: dict[int, Event] = {}
    views: dict[int, Event] = {}
    questions: dict[int, int] = {}
    for event in log.events(since=task.since):
        if event.kind == "user.steer" and event.data["to"] == task.agent:
            history.hints.append(event.data["text"])
        if event.agent != task.agent:
            continue
        history.last = event.seq
        if event.kind == "tool.requested":
            requested[event.seq] = event
        elif event.kind in CLOSING and event.data["call"] in requested:
            _closed(history, requested[event.data["call"]], event)
        elif event.kind == "agent.view":
            views[event.seq] = event
        elif event.kind == "model.requested" and event.data["view"] is not None:
            questions[event.seq] = event.data["view"]
        elif event.kind == "model.completed" and event.data["request"] in questions:
            _answered(history, views.get(questions[event.data["request"]]), event)
        elif event.kind == "goal.judged" and event.data["where"] == "landing" and not event.data["passed"]:
            history.judged_failing = True
    return history


def _closed(history: _History, call: Event, closing: Event) -> None:
    purpose = call.data["purpose"]
    finished = closing.kind == "tool.finished"
    attempt = history.attempts[-1] if history.attempts else None
    if purpose == "check" and finished:
        history.checks[call.data["arguments"]["command"]] = (
            call.seq,
            closing.data["ok"],
            closing.data["output"],
        )
    elif purpose == "locate" and finished:
        found = json.loads(closing.data["output"])
        history.suspects = [Suspect(**suspect) for suspect in found["suspects"]]
        history.sources = found["sources"]
    elif purpose == "try" and attempt is not None:
        attempt.applied = finished
        if finished:
            history.before, history.checks = history.checks, {}
        else:
            attempt.refused = closing.data["output"]
    elif purpose == "revert" and attempt is not None and finished:
        attempt.reverted = True
        history.checks = history.before


def _answered(history: _History, view: Event | None, completed: Event) -> None:
    if view is None or not view.data["purpose"].startswith("repair ") or history.suspects is None:
        return
    _, position, which, kind = view.data["purpose"].split()
    suspect = history.suspects[int(which)]
    source = history.sources[suspect.path]
    text = "".join(item["text"] for item in completed.data["items"] if item["type"] == "message")
    try:
        if kind == "edit":
            old, new, line = edit_from_answer(text, suspect, source, history.tried)
        else:
            old, new, line = choice_from_answer(text, suspect, kind, source, history.tried)
    except ToolProblem as problem:
        history.attempts.append(_Attempt(None, int(position), refused=str(problem)))
        return
    history.attempts.append(_Attempt(Tried(suspect.path, old, new), int(position), line))
