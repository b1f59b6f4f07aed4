"""Checks at assertion: what an agent cites must be what it saw, what it ran, or what a query gives when run again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from musecode_jupyter.agents.claims.state import in_scope
from musecode_jupyter.agents.state import AgentsState
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.claim_kinds import ClaimEvidence, EvidenceKind
from musecode_jupyter.log.events import Event
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.encoding import decode, shown
from musecode_jupyter.tools.files import digest_bytes
from musecode_jupyter.tools.registry import ToolContext
from musecode_jupyter.tools.search import SearchResult, search

MOST_MATCHES = 10_000
KEPT_CHARS = 1_000
"""So much of the cited lines is kept in the event."""

_NUMBERED = re.compile(r" *([0-9]+)\t(.*)")
_SUCCESS = re.compile(r"\b(?:pass(?:es|ed|ing)?|succeed(?:s|ed)?|green|ok|clean)\b", re.IGNORECASE)
_FAILURE = re.compile(r"\b(?:fail\w*|not|never|no longer|red|broken|error\w*)\b|n't\b", re.IGNORECASE)


class Cited(BaseModel):
    """Evidence as an agent cites it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: EvidenceKind = Field(
        description="file: lines that you have read; command: a command that you have run; search: a query, run again"
    )
    path: str = Field(default="", description="file: its path; search: the folder, default all")
    first_line: int | None = Field(default=None, ge=1, description="file: first line")
    last_line: int | None = Field(default=None, ge=1, description="file: last line")
    text: str = Field(default="", description="file: the lines, word for word; needed if there are no line numbers")
    command: str = Field(default="", description="command: exactly as you ran it")
    exit: int | None = Field(default=None, description="command: its exit code")
    quote: str = Field(default="", description="command: a line of its output, word for word")
    pattern: str = Field(default="", description="search: regular expression")
    glob: str = Field(default="", description="search: only files whose path matches")
    count: int | None = Field(default=None, ge=0, description="search: how many lines match")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "file" and not (self.path and (self.text.strip() or self.first_line is not None)):
            raise ValueError("evidence of kind file needs path, and the lines: first_line and last_line, or text")
        if self.kind == "command" and not (self.command and self.exit is not None):
            raise ValueError("evidence of kind command needs command and exit")
        if self.kind == "search" and not self.pattern:
            raise ValueError("evidence of kind search needs pattern")
        return self


@dataclass(frozen=True)
class Seen:
    """A finished call of an agent, as its conversation has it."""

    call: int
    name: str
    arguments: dict[str, Any]
    ended: Event


def calls_of(log: EventLog, agent: str) -> Iterator[Seen]:
    """What the agent has called and seen the end of, newest first; claims themselves are not among it."""
    state = log.state("agents")
    assert isinstance(state, AgentsState)
    record = state.agents.get(agent)
    for seq in reversed([] if record is None else record.view):
        event = log.get(seq)
        if event.kind == "tool.finished":
            asked = log.get(event.data["call"])
            if asked.data["name"] not in {"claim", "check_claim"}:
                yield Seen(asked.seq, asked.data["name"], dict(asked.data["arguments"]), event)


async def look_up(context: ToolContext, cited: Sequence[Cited], said: str, kind: str) -> list[ClaimEvidence]:
    """What is found of each thing that the agent of `context` cites for a claim `said` of type `kind`."""
    return [await _look_up(context, each, said, kind) for each in cited]


async def _look_up(context: ToolContext, cited: Cited, said: str, kind: str) -> ClaimEvidence:
    if cited.kind == "file":
        return _file(context, cited)
    if cited.kind == "command":
        return _command(context, cited, said, kind)
    files = await context.place.list_files()
    return await context.effects.disk(_search, context, cited, kind, files)


# --- files ---------------------------------------------------------------------------------------------------


def _file(context: ToolContext, cited: Cited) -> ClaimEvidence:
    log, path = context.log, _normal(cited.path)
    known: dict[str, Any] = {"kind": "file", "path": path, "worktree": context.place.worktree}
    seen_at_all = False
    for seen in calls_of(log, context.agent):
        if seen.name not in {"read", "edit"} or _normal(str(seen.arguments.get("path", ""))) != path:
            continue
        event, lines = _shown(log, seen, context.agent)
        if event is None:
            continue
        seen_at_all = True
        found = _lines_of(cited, lines)
        if found is None:
            continue
        first, last, text = found
        digest = event.data["digest"] if event.kind == "file.observed" else event.data["after"]
        return ClaimEvidence(
            **known,
            holds=True,
            event=event.seq,
            first=first,
            last=last,
            text=text[:KEPT_CHARS],
            span=span_digest(text),
            digest=digest,
        )
    numbers = f" at lines {cited.first_line} to {cited.last_line or cited.first_line}" if cited.first_line else ""
    why = f"{path} does not say that{numbers} in what {context.agent} saw of it"
    return ClaimEvidence(**known, holds=False, why=why if seen_at_all else f"{context.agent} has not read {path}")


def _shown(log: EventLog, seen: Seen, agent: str) -> tuple[Event | None, dict[int, str]]:
    """The event by which a file was seen, or written, in a call, with its lines by number."""
    for event in log.events(since=seen.call):
        if event.seq >= seen.ended.seq:
            break
        if event.agent == agent and event.data.get("call") == seen.call:
            if event.kind == "file.observed":
                found = (_NUMBERED.fullmatch(line) for line in seen.ended.data["output"].split("\n"))
                return event, {int(each[1]): each[2] for each in found if each is not None}
            if event.kind == "file.changed" and event.data["after"] is not None:
                decoded = decode(log.blob(event.data["after"]))
                lines = [] if decoded is None else shown(decoded.text).split("\n")
                return event, dict(enumerate(lines, 1))
    return None, {}


def _lines_of(cited: Cited, lines: dict[int, str]) -> tuple[int, int, str] | None:
    """First line, last line and text of what is cited, if it stands in `lines`."""
    wanted = cited.text.strip("\n").split("\n") if cited.text.strip() else []
    first = cited.first_line
    if first is None:
        starts = [n for n in lines if all(lines.get(n + i) == line for i, line in enumerate(wanted))]
        if len(starts) != 1:
            return None
        first = starts[0]
    last = first + len(wanted) - 1 if wanted else cited.last_line or first
    if cited.last_line not in (None, last) or any(n not in lines for n in range(first, last + 1)):
        return None
    found = [lines[n] for n in range(first, last + 1)]
    if wanted and [line.strip() for line in wanted] != [line.strip() for line in found]:
        return None
    return first, last, "\n".join(found)


def span_digest(text: str) -> str:
    """Digest of some lines, whatever their endings are."""
    return digest_bytes("\n".join(text.splitlines()).encode("utf-8", "surrogatepass"))


def _normal(path: str) -> str:
    return str(PurePosixPath(path))


# --- commands ------------------------------------------------------------------------------------------------


def _command(context: ToolContext, cited: Cited, said: str, kind: str) -> ClaimEvidence:
    known: dict[str, Any] = {"kind": "command", "command": cited.command, "worktree": context.place.worktree}
    ran = (seen for seen in calls_of(context.log, context.agent) if seen.name == "run")
    seen = next((each for each in ran if str(each.arguments.get("command")).strip() == cited.command.strip()), None)
    if seen is None:
        return ClaimEvidence(**known, holds=False, why=f"{context.agent} has not run `{cited.command}` to its end")
    data = seen.ended.data
    output = data["output"]
    known |= {
        "event": seen.ended.seq,
        "exit": data["exit"],
        "digest": digest_bytes(output.encode("utf-8", "surrogatepass")),
    }
    ended = f"`{cited.command}` ended with exit {data['exit']}"
    if data["exit"] is None:
        return ClaimEvidence(**known, holds=False, why=f"`{cited.command}` was ended before its own end")
    if data["exit"] != cited.exit:
        return ClaimEvidence(
            **known, holds=False, refutes=True, why=f"{ended}, not {cited.exit} (event {seen.ended.seq})"
        )
    succeeds = bool(_SUCCESS.search(said)) and not _FAILURE.search(said)
    if kind == "test result" and succeeds and data["exit"]:
        return ClaimEvidence(**known, holds=False, refutes=True, why=f"{ended} (event {seen.ended.seq})")
    quote = cited.quote.strip()
    if quote and quote not in output:
        return ClaimEvidence(**known, holds=False, why=f"the output of `{cited.command}` does not say {quote[:200]!r}")
    return ClaimEvidence(**known, holds=True, text=quote[:KEPT_CHARS])


# --- queries -------------------------------------------------------------------------------------------------


def _search(context: ToolContext, cited: Cited, kind: str, files: list[str]) -> ClaimEvidence:
    path = _normal(cited.path or ".")
    known: dict[str, Any] = {
        "kind": "search",
        "worktree": context.place.worktree,
        "path": path,
        "pattern": cited.pattern,
        "glob": cited.glob,
    }
    try:
        found = search(context.place.root, cited.pattern, path, cited.glob or None, MOST_MATCHES, files=files)
    except ToolProblem as problem:
        return ClaimEvidence(**known, holds=False, why=f"the query cannot be run: {problem}")
    why = unfinished(found)
    if not why and not any(in_scope(file, path, cited.glob) for file in files):
        why = "there is no file in which the query looks"
    if why:
        return ClaimEvidence(**known, holds=False, why=why)
    count = len(found.matches)
    expected = 0 if kind == "absence" else cited.count
    if expected is not None and count != expected:
        first = f", the first at {found.matches[0].path}:{found.matches[0].line}" if found.matches else ""
        why = f"{count} lines match {cited.pattern!r}, not {expected}{first}"
        return ClaimEvidence(**known, holds=False, refutes=kind in {"absence", "count"}, count=count, why=why)
    if kind == "count" and cited.count is None:
        return ClaimEvidence(**known, holds=False, count=count, why="it does not say how many lines match")
    return ClaimEvidence(**known, holds=True, count=count)


def unfinished(found: SearchResult) -> str:
    """Why a search says nothing of how many lines there are; empty if it does."""
    if found.timed_out:
        return "the query did not come to its end"
    if found.truncated:
        return f"more than {MOST_MATCHES} lines match"
    if found.literal:
        return "the pattern is no regular expression"
    return ""
