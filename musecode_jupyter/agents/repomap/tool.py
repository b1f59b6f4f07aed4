"""`map`: how an agent asks the map of the repository, in place of reading files to find its way."""

from __future__ import annotations

import contextlib
from functools import partial

from pydantic import AliasChoices, Field

from musecode_jupyter.agents.repomap.answer import Question, answer
from musecode_jupyter.agents.repomap.read import read_map
from musecode_jupyter.runtime.errors import GitError, ToolProblem
from musecode_jupyter.tools.files import read_file
from musecode_jupyter.tools.registry import Arguments, Outcome, Tool, ToolContext
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.history import History, last_commits, read_history

_NEWEST = 5
"""Commits of one file that are told."""

_LAST = 500
"""Commits of the history that are looked at for what changes together."""

_SHOWN_LINES = 60
"""A definition that is no longer is shown with its text."""


class MapArguments(Arguments):
    """Arguments of `map`."""

    path: str = Field(
        default="",
        description="A file: its outline, what it imports, who imports it, its tests; or a folder: what is in it",
        validation_alias=AliasChoices("path", "file_path", "filename", "file"),
    )
    symbol: str = Field(
        default="",
        description="A function, class or method (f, Class.method or pkg/mod.py:f): where it is defined and used",
        validation_alias=AliasChoices("symbol", "name"),
    )
    query: str = Field(
        default="",
        description="Words of a question: the files and signatures that belong to it",
        validation_alias=AliasChoices("query", "words"),
    )


async def history_of(git: Git, path: str) -> tuple[History, list[str]]:
    """What the last commits changed together, and the last ones of the file at `path`; nothing without a history."""
    try:
        history = await read_history(git, last=_LAST)
        return history, (await last_commits(git, _NEWEST, path)).splitlines()
    except GitError:
        return History(), []


async def _map(context: ToolContext, arguments: MapArguments) -> Outcome:
    place = context.place
    repo = await read_map(context.effects, place.root, await place.list_files())
    question = Question(arguments.path, arguments.symbol, arguments.query)
    # Only the answer on a file tells of the history.
    history, commits = History(), list[str]()
    if question.path in repo.facts:
        with contextlib.suppress(GitError):
            history, commits = await history_of(await Git.discover(place.root, context.effects), question.path)
    found = await context.effects.disk(partial(answer, repo, question, history, commits=commits))
    text = found.text
    observed = [(path, repo.digests[path], repo.facts[path].size) for path in found.shown if path in repo.digests]
    if found.place is not None and found.place.symbol.end - found.place.symbol.start < _SHOWN_LINES:
        symbol = found.place.symbol
        try:
            read = await context.effects.disk(read_file, place.root, found.place.path, symbol.start, symbol.end)
        except ToolProblem:
            pass
        else:
            text, observed = text + read.text, [(read.path, read.digest, read.size)]
    return Outcome(text, observed=tuple(observed))


MAP = Tool(
    name="map",
    description="Look at the map of the repository: without arguments its most important files and signatures; or one "
    "file, folder or symbol, or what belongs to a question. Ask it before you read or search.",
    arguments=MapArguments,
    effect="read",
    run=_map,
)
