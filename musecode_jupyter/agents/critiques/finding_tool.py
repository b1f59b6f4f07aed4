"""`finding`: how a reviewer raises a finding; its evidence is compared with the files, the diff and the log at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from musecode_jupyter.agents.critiques.changed import lines_of, normal, span_text
from musecode_jupyter.agents.critiques.mechanical import MECHANICAL
from musecode_jupyter.agents.critiques.state import CritiquesState
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.critique_kinds import CritiqueEvidence, Severity
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.files import read_bytes
from musecode_jupyter.tools.registry import Arguments, Outcome, Tool, ToolContext
from musecode_jupyter.tools.state import CLOSING

FINDING = "finding"
SETTLE = "settle_finding"
MAX_FILE_BYTES = 4_000_000
MOST_LINES = 60
"""Of a finding's place: more is no place."""

Kind = Literal[
    "wrong-result",
    "crash",
    "edge-case",
    "data-loss",
    "security",
    "race",
    "missing-test",
    "weak-test",
    "complexity",
    "duplication",
    "naming",
    "interface",
    "documentation",
    "other",
]


class EvidenceArgument(BaseModel):
    """One piece of evidence, as the reviewer gives it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    form: Literal["span", "hunk", "command"] = Field(
        description="span: lines of a file of the changed tree; hunk: lines of the diff with their signs; "
        "command: text that a command printed"
    )
    text: str = Field(min_length=1, description="The exact text, without line numbers")
    path: str = Field(default="", description="span, hunk: the file")
    start_line: int = Field(default=0, ge=0, description="span: its first line")
    call: int | None = Field(default=None, description="command: its number")


class FindingArguments(Arguments):
    """Arguments of `finding`."""

    contents = frozenset({"text", "suggestion"})

    kind: Kind = Field(description="What sort of fault it is")
    severity: Severity
    path: str = Field(description="File of the changed tree, relative to the root of the repository")
    start_line: int = Field(ge=1)
    end_line: int = Field(ge=1)
    text: str = Field(min_length=1, description="What is wrong, and what follows from it, in a few sentences")
    suggestion: str = Field(default="", description="What to do instead")
    evidence: list[EvidenceArgument] = Field(default_factory=list)


async def _finding(context: ToolContext, arguments: FindingArguments) -> Outcome:
    asked = _asked(context.log, context.agent)
    if asked is None:
        raise ToolProblem("Only a reviewer raises findings. Say it in your answer.")
    if not arguments.start_line <= arguments.end_line < arguments.start_line + MOST_LINES:
        raise ToolProblem(f"The place is no span of 1 to {MOST_LINES} lines: end_line is not before start_line.")
    text = await context.effects.disk(_file_text, context, arguments.path)
    if text is None:
        raise ToolProblem(f"There is no file {arguments.path} in the changed tree.")
    if arguments.end_line > len(lines_of(text)):
        raise ToolProblem(f"{arguments.path} has {len(lines_of(text))} lines.")
    if not arguments.evidence:
        return Outcome("Taken as an opinion, which stops nothing: it has no evidence.")
    for given in arguments.evidence:
        problem = await context.effects.disk(_problem, context, given, str(asked.data["text"]))
        if problem:
            return Outcome(f"Taken as an opinion, which stops nothing: {problem}", ok=False)
    return Outcome("Taken; the evidence holds.")


def _asked(log: EventLog, agent: str) -> Event | None:
    state = log.state("critiques")
    assert isinstance(state, CritiquesState)
    found = state.passes.get(agent)
    return None if found is None else log.get(found.seq)


def _file_text(context: ToolContext, path: str) -> str | None:
    _, data = read_bytes(context.place.root, path, limit=MAX_FILE_BYTES)
    return None if data is None else data.decode("utf-8", "replace")


def _problem(context: ToolContext, given: EvidenceArgument, put: str) -> str:
    """Why this evidence does not hold; empty if it does. `put` is what the reviewer was shown, with the diff."""
    if given.form == "span":
        text = _file_text(context, given.path)
        count = len(lines_of(given.text.rstrip("\n")))
        if text is None or not given.start_line:
            return f"there is no line {given.start_line} of {given.path or 'no file'}."
        found = span_text(text, given.start_line, given.start_line + count - 1)
        if normal(found) != normal(given.text):
            return f"lines {given.start_line} to {given.start_line + count - 1} of {given.path} do not say that."
    elif given.form == "hunk":
        wanted = given.text.strip("\n").split("\n")
        if not any(line[:1] in {"+", "-"} for line in wanted) or not _contains(put.split("\n"), wanted):
            return f"the diff of {given.path or 'the change'} has no such lines: give them with their signs."
    else:
        output = _output(context.log, given.call)
        if output is None:
            return f"there is no command {given.call} that ended."
        if normal(given.text) not in normal(output):
            return f"command {given.call} did not print that."
    return ""


def _contains(lines: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the `wanted` lines stand one after the other among `lines`."""
    trimmed = [line.rstrip() for line in wanted]
    first = trimmed[0]
    for at, line in enumerate(lines):
        if line.rstrip() == first and [each.rstrip() for each in lines[at : at + len(trimmed)]] == trimmed:
            return True
    return False


def _output(log: EventLog, call: int | None) -> str | None:
    """What a command printed, of a call of `run` that ended."""
    if call is None or not 1 <= call <= log.last_seq:
        return None
    asked = log.get(call)
    if asked.kind != "tool.requested" or asked.data["name"] != "run":
        return None
    return next((e.data["output"] for e in log.events(call) if e.kind in CLOSING and e.data["call"] == call), None)


RAISE_FINDING = Tool(
    name=FINDING,
    description="Raise one fault of the change that you were put, with the evidence for it.",
    arguments=FindingArguments,
    effect="read",
    run=_finding,
)


class SettleArguments(Arguments):
    """Arguments of `settle_finding`."""

    contents = frozenset({"why"})

    number: int = Field(description="The number of a finding that was raised before and is open")
    how: Literal["fixed", "withdrawn"] = Field(description="fixed: the change mends it; withdrawn: it was wrong")
    why: str = Field(min_length=1)


async def _settle(context: ToolContext, arguments: SettleArguments) -> Outcome:
    state = context.log.state("critiques")
    assert isinstance(state, CritiquesState)
    begun = state.passes.get(context.agent)
    if begun is None:
        raise ToolProblem("Only a reviewer settles findings. Say it in your answer.")
    finding = state.findings.get(arguments.number)
    if finding is None or finding.scope != begun.scope or finding.state != "open":
        raise ToolProblem(f"There is no open finding {arguments.number} about this work.")
    if MECHANICAL in finding.passes:
        raise ToolProblem(f"Finding {arguments.number} is proven by a check, which says itself when it is fixed.")
    return Outcome("Noted.")


SETTLE_FINDING = Tool(
    name=SETTLE,
    description="Say of a finding that was raised before that the change fixes it, or that it was wrong.",
    arguments=SettleArguments,
    effect="read",
    run=_settle,
)
REVIEW_ONLY = (RAISE_FINDING, SETTLE_FINDING)
"""Tools that only reviewers have."""


@dataclass(frozen=True)
class Settled:
    """What a reviewer said of an earlier finding."""

    agent: str
    number: int
    how: str
    why: str


def settled_since(log: EventLog, asked: int, agent: str) -> list[Settled]:
    """What `agent` said of earlier findings in the pass that event `asked` began; a pure function of the log."""
    return [
        Settled(agent, arguments["number"], arguments["how"], arguments["why"])
        for arguments, _ in _taken(log, asked, agent, SETTLE)
    ]


@dataclass(frozen=True)
class Raised:
    """A finding as a reviewer raised it; `evidence` is empty unless all of it held."""

    agent: str
    kind: str
    severity: Severity
    path: str
    start: int
    end: int
    text: str
    suggestion: str
    evidence: tuple[CritiqueEvidence, ...]


def raised_since(log: EventLog, asked: int, agent: str) -> list[Raised]:
    """What `agent` raised in the pass that event `asked` began, in order; a pure function of the log."""
    return [_raised(agent, arguments, held=held) for arguments, held in _taken(log, asked, agent, FINDING)]


def _taken(log: EventLog, asked: int, agent: str, tool: str) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """The arguments of each call of `tool` by `agent` since `asked` that was carried out, and whether it was ok.

    Reads of one answer end in any order: they come in the order in which they were asked for.
    """
    calls: dict[int, Mapping[str, Any]] = {}
    ended: dict[int, bool] = {}
    for event in log.events(asked):
        if event.agent != agent:
            continue
        if event.kind == "tool.requested" and event.data["name"] == tool:
            calls[event.seq] = event.data["arguments"]
        elif event.kind == "tool.finished" and event.data["call"] in calls:
            ended[event.data["call"]] = event.data["ok"]
    yield from ((calls[call], ended[call]) for call in sorted(ended))


def _raised(agent: str, arguments: Mapping[str, Any], *, held: bool) -> Raised:
    given = FindingArguments.model_validate(dict(arguments))
    evidence = tuple(
        CritiqueEvidence(
            form=each.form,
            path=each.path,
            start=each.start_line,
            end=each.start_line + len(lines_of(each.text.rstrip("\n"))) - 1 if each.start_line else 0,
            call=each.call,
            text=each.text,
        )
        for each in given.evidence
    )
    return Raised(
        agent,
        given.kind,
        given.severity,
        given.path,
        given.start_line,
        given.end_line,
        given.text,
        given.suggestion,
        evidence if held else (),
    )
