"""The tools that agents are offered: read, search, edit, run; argument names of other harnesses are taken too."""

from __future__ import annotations

import dataclasses
import shutil
from typing import Any

from pydantic import AliasChoices, Field

from musecode_jupyter.guard.sandbox import Change, Realm
from musecode_jupyter.models.endpoint import secrets
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.runtime.process import ProcessSpec
from musecode_jupyter.tools.edits import apply_edit
from musecode_jupyter.tools.environment import relocated, without_values
from musecode_jupyter.tools.files import MAX_TEXT_BYTES, digest_bytes, read_bytes, read_file
from musecode_jupyter.tools.registry import Arguments, Outcome, Place, Tool, ToolContext, Write
from musecode_jupyter.tools.search import search
from musecode_jupyter.tools.state import ToolsState, seen_key

MAX_EDITABLE_BYTES = 32_000_000
DEFAULT_RUN_S = 600.0
# Of what is shown of a file; the rest is for the numbers of the lines.
_UNNUMBERED = 0.75


def _path(default: str | None = None) -> Any:
    aliases = AliasChoices("path", "file_path", "filename", "file")
    description = "Path relative to the root of the repository"
    if default is None:
        return Field(description=description, validation_alias=aliases)
    return Field(default=default, description=description, validation_alias=aliases)


class ReadArguments(Arguments):
    """Arguments of `read`."""

    path: str = _path()
    start_line: int = Field(default=1, ge=1, description="First line to show, counted from 1")
    end_line: int | None = Field(default=None, ge=1, description="Last line to show; none: as much as fits")


class SearchArguments(Arguments):
    """Arguments of `search`."""

    pattern: str = Field(
        description="Python regular expression, matched line by line",
        validation_alias=AliasChoices("pattern", "query", "regex"),
    )
    path: str = _path(".")
    glob: str | None = Field(default=None, description="Only files whose path matches, for example *.py")


class EditArguments(Arguments):
    """Arguments of `edit`."""

    contents = frozenset({"old", "new"})

    path: str = _path()
    old: str = Field(
        description="The exact text to replace, unique in the file, without line numbers; empty: create a new file",
        validation_alias=AliasChoices("old", "old_text", "old_string", "old_str"),
    )
    new: str = Field(
        description="The text to put in its place",
        validation_alias=AliasChoices("new", "new_text", "new_string", "new_str"),
    )


class RunArguments(Arguments):
    """Arguments of `run`."""

    command: str = Field(
        description="Shell command, run in the root of the repository without stdin or terminal",
        validation_alias=AliasChoices("command", "cmd"),
    )
    timeout: float = Field(default=DEFAULT_RUN_S, gt=0, le=86_400, description="Wall limit in seconds")


async def _read(context: ToolContext, arguments: ReadArguments) -> Outcome:
    shown = context.most_shown
    most = MAX_TEXT_BYTES if shown is None else min(MAX_TEXT_BYTES, int(_UNNUMBERED * shown))
    read = await context.effects.disk(
        read_file, context.place.root, arguments.path, arguments.start_line, arguments.end_line, most
    )
    observed = ((read.path, read.digest, read.size),) if read.digest else ()
    return Outcome(read.text, observed=observed)


async def _search(context: ToolContext, arguments: SearchArguments) -> Outcome:
    files = await context.place.list_files()
    found = await context.effects.disk(
        search, context.place.root, arguments.pattern, arguments.path, arguments.glob, files=files
    )
    return Outcome(found.text, shows=tuple(sorted({match.path for match in found.matches})))


async def _plan_edit(context: ToolContext, arguments: EditArguments) -> Write:
    return await context.effects.disk(_plan_edit_now, context, arguments)


def _plan_edit_now(context: ToolContext, arguments: EditArguments) -> Write:
    path, before_data = read_bytes(context.place.root, arguments.path, limit=MAX_EDITABLE_BYTES)
    if before_data is None:
        if arguments.old:
            raise ToolProblem(f"{arguments.path} does not exist. To create it, send an empty `old`.")
        data = arguments.new.encode("utf-8", "surrogatepass")
        return Write(path, None, data, None, Outcome(f"Created {path}: {len(data)} bytes."))
    before = digest_bytes(before_data)
    state = context.log.state("tools")
    assert isinstance(state, ToolsState)
    seen = state.seen.get(seen_key(context.place.worktree, path))
    if seen is not None and seen != before:
        raise ToolProblem(f"{path} has changed since you last saw it. Read it again, then edit.")
    edit = apply_edit(before_data, arguments.old, arguments.new)
    where = (
        f"line {edit.first_line}" if edit.first_line == edit.last_line else f"lines {edit.first_line}-{edit.last_line}"
    )
    return Write(path, before, edit.data, before_data, Outcome(f"Edited {path}, {where}."))


async def _run(context: ToolContext, arguments: RunArguments) -> Outcome:
    # Keys that were set after the session began do not pass either, whatever they are called.
    place, env = context.place, without_values(context.child_env, secrets(context.effects.environ()))
    if place.checkout is not None:
        env = relocated(env, place.checkout, place.root)
    shell = shutil.which("bash", path=env.get("PATH")) or "/bin/sh"
    output = context.outputs / f"{context.call}.txt"
    confined = await context.sandbox.run(
        ProcessSpec(
            argv=(shell, "-c", arguments.command),
            cwd=context.place.root,
            env=env,
            output=output,
            timeout=arguments.timeout,
        ),
        _realm(place),
        context.effects,
    )
    result = confined.result
    digest = await context.effects.disk(context.log.keep_file, output)
    ending = {
        "exited": f"exit {result.exit}",
        "timeout": f"ended after the limit of {arguments.timeout:g} s",
        "output": "ended because it printed too much",
        "processes": "ended because it started too many processes",
        "not started": "not started",
        "cancelled": "stopped",
    }[result.ended]
    text = result.text if result.text.endswith("\n") or not result.text else result.text + "\n"
    if confined.note:
        text += f"[{confined.note}]\n"
    if confined.changes:
        text += _touched(context, confined.changes)
    return Outcome(
        f"{text}[{ending}]",
        ok=result.ended == "exited" and result.exit == 0,
        exit=result.exit if result.ended == "exited" else None,
        seconds=result.seconds,
        output_path=str(output),
        output_digest=digest,
    )


def _realm(place: Place) -> Realm:
    agents = place.checkout is not None
    # Without a number it is the clean tree on which the harness checks what is to land.
    return Realm(place.root, writable=agents, checkout=place.checkout, fresh=agents and place.worktree is None)


def _touched(context: ToolContext, changes: tuple[Change, ...]) -> str:
    """Log what a command changed of the user's repository; answers what its agent is told."""
    context.log.post(
        "repository.touched",
        {"call": context.call, "changes": [dataclasses.asdict(change) for change in changes]},
        agent=context.agent,
        cause=(context.call,),
    )
    names = ", ".join(change.what for change in changes)
    return f"[this changed the user's own repository: {names}. The user is told. Work in the files only.]\n"


READ = Tool(
    name="read",
    description="Show a file with line numbers, or list a directory.",
    arguments=ReadArguments,
    effect="read",
    run=_read,
)
SEARCH = Tool(
    name="search",
    description="Find lines that match a regular expression in the files that git does not ignore.",
    arguments=SearchArguments,
    effect="read",
    run=_search,
)
EDIT = Tool(
    name="edit",
    description="Replace one piece of text in one file. Everything outside it keeps its bytes.",
    arguments=EditArguments,
    effect="write",
    plan=_plan_edit,
)
RUN = Tool(
    name="run",
    description="Run a shell command in the worktree and show the head and tail of its output. Git can be read, not "
    "changed: what you edit is committed for you.",
    arguments=RunArguments,
    effect="process",
    run=_run,
)

BUILTIN = (READ, SEARCH, EDIT, RUN)
