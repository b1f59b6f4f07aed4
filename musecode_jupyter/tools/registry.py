"""What a tool is: a name, validated arguments, an effect class, and a function; and the set of tools of an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from musecode_jupyter.guard.sandbox import Sandbox
from musecode_jupyter.log import EventLog
from musecode_jupyter.models.conversation import arguments_object
from musecode_jupyter.models.types import ToolSpec
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.pictures import PictureFile

Effect = Literal["read", "write", "process"]

# Of wrong arguments so many are told, and of a made-up name so many characters.
_TOLD = 5
_NAME = 80


class Arguments(BaseModel):
    """Base of all tool arguments: nothing unknown, nothing coerced silently across types.

    Only fields named in `contents` may hold NUL characters: no path, command or pattern can.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    contents: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="after")
    def _no_nul(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, str) and "\0" in value and name not in self.contents:
                raise ValueError(f"{name} holds a NUL character: leave it out")
        return self


@dataclass(frozen=True)
class Place:
    """Where an agent acts: a worktree (`seq` of its worktree.creating event, none for the user's own checkout).

    `checkout` is the user's own checkout of the same repository, if `root` is another one.
    """

    root: Path
    worktree: int | None
    list_files: Callable[[], Awaitable[list[str]]]
    checkout: Path | None = None


@dataclass(frozen=True)
class ToolContext:
    """What a running tool is handed. `call` is the seq of its tool.requested event."""

    agent: str
    call: int
    place: Place
    log: EventLog
    effects: Effects
    outputs: Path
    child_env: Mapping[str, str]
    sandbox: Sandbox
    most_shown: int | None = None
    """Bytes of output that the model can be shown of this call; None: no limit but the tool's own."""


@dataclass(frozen=True)
class Outcome:
    """What the model is shown, and how it went. `ok` is false for a command that failed.

    `observed` are files that were seen as a whole, with digest and size; of those in `shows` there are lines in it.
    """

    output: str
    ok: bool = True
    exit: int | None = None
    seconds: float = 0.0
    output_path: str | None = None
    output_digest: str = ""
    observed: tuple[tuple[str, str, int], ...] = ()
    pictures: tuple[PictureFile, ...] = ()
    shows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Write:
    """A change of one file, computed but not yet made: path inside the worktree, digest before, bytes after."""

    path: str
    before: str | None
    data: bytes
    before_data: bytes | None
    outcome: Outcome


@dataclass(frozen=True)
class Tool:
    """A tool. Reads and processes have `run`; writes have `plan`, and the executor makes the change.

    `where` says on what it acts: the agent's place, or the user's kernel and notebook. For the latter `shown` gives
    what the user is asked about, and `harmless` says why nobody need be asked now, or nothing.
    """

    name: str
    description: str
    arguments: type[Arguments]
    effect: Effect
    run: Callable[[ToolContext, Any], Awaitable[Outcome]] | None = None
    plan: Callable[[ToolContext, Any], Awaitable[Write]] | None = None
    offered: bool = True
    where: Literal["place", "kernel"] = "place"
    shown: Callable[[Any], Awaitable[Mapping[str, Any]]] | None = None
    harmless: Callable[[], Awaitable[str]] | None = None

    def spec(self) -> ToolSpec:
        """The tool as shown to a model."""
        return ToolSpec(name=self.name, description=self.description, parameters=deepcopy(_schema(self.arguments)))


@cache
def _schema(arguments: type[Arguments]) -> dict[str, Any]:
    """Making it takes a few milliseconds, for each tool and each agent that is made."""
    schema = arguments.model_json_schema(by_alias=False)
    schema.pop("description", None)
    # Titles say the names once more, in each prompt.
    for each in (schema, *schema.get("$defs", {}).values()):
        each.pop("title", None)
        for prop in each.get("properties", {}).values():
            prop.pop("title", None)
    return schema


@dataclass(frozen=True)
class Registry:
    """The tools by name. `specs` are sorted by name, so that the order of registration never changes a prompt."""

    tools: Mapping[str, Tool] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> Registry:
        """Build a registry; two tools of one name raise ValueError."""
        by_name = {tool.name: tool for tool in tools}
        if len(by_name) != len(tools):
            raise ValueError("two tools have the same name")
        return cls(by_name)

    def over(self, tools: Sequence[Tool]) -> Registry:
        """This registry with `tools` added; one of the same name is replaced."""
        return Registry({**self.tools, **{tool.name: tool for tool in tools}})

    def specs(self) -> tuple[ToolSpec, ...]:
        """What models are offered."""
        return tuple(self.tools[name].spec() for name in sorted(self.tools) if self.tools[name].offered)

    def get(self, name: str) -> Tool:
        """The tool called `name`, or ToolProblem that lists those that there are."""
        tool = self.tools.get(name)
        if tool is None:
            raise self._unknown(name)
        return tool

    def _unknown(self, name: str) -> ToolProblem:
        return ToolProblem(no_such_tool(name, (tool.name for tool in self.tools.values() if tool.offered)))

    def parse(self, name: str, arguments: str) -> tuple[Tool, dict[str, Any]]:
        """Validate the model's own argument text; ToolProblem says what is wrong with it."""
        tool = self.get(name)
        if not tool.offered:
            raise self._unknown(name)
        try:
            raw = arguments_object(arguments)
        except ValueError as error:
            raise ToolProblem(f"The arguments of {name} cannot be used ({error}). Send one JSON object.") from None
        return tool, self.validate(tool, raw)

    def validate(self, tool: Tool, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Normalised arguments as JSON-like values, or ToolProblem."""
        try:
            return tool.arguments.model_validate(dict(raw)).model_dump(mode="json")
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            problems = [f"{_place(each['loc'])}: {each['msg']}" for each in found[:_TOLD]]
            if len(found) > _TOLD:
                problems.append(f"and {len(found) - _TOLD} more")
            raise ToolProblem(f"Wrong arguments for {tool.name}: {'; '.join(problems)}.") from None


def _place(loc: tuple[int | str, ...]) -> str:
    # A name that the model made up can be as long as its whole answer.
    return ".".join(str(part) for part in loc)[:_NAME] or "arguments"


def no_such_tool(name: str, known: Iterable[str]) -> str:
    """What a model is told that calls a tool which it does not have, of those that are `known`."""
    return f"There is no tool {name[:_NAME]!r}. The tools are: {', '.join(sorted(known))}."
