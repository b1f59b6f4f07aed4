"""What each kind of agent is for, is told and may use: one small file for each role, beside this one.

A role file begins with a head between lines of three dashes, of lines `name: value`: `purpose` in a sentence, `tools`
(names of tools; `*` for all that are offered, `-name` for all but that one), `wakes` (what begins a turn of such an
agent: user, task, mail, changes). The rest is the fixed beginning of its prompts: no clock and no counter in it, so
that a provider's prefix cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from musecode_jupyter.agents.state import AgentsState
from musecode_jupyter.log import EventLog
from musecode_jupyter.models.types import ToolSpec
from musecode_jupyter.runtime.errors import ConfigurationError

WAKES = frozenset({"user", "task", "mail", "changes"})
STANDING = ("explorer",)
"""Roles of which one agent stands from the beginning, under the role's name."""


@dataclass(frozen=True)
class Role:
    """One role; `instructions` is what its agents' prompts begin with."""

    name: str
    purpose: str
    tools: tuple[str, ...]
    wakes: frozenset[str]
    instructions: str

    def offered(self, specs: Sequence[ToolSpec]) -> list[ToolSpec]:
        """Those of `specs`, in their order, that an agent of this role may use."""
        left_out = {name[1:] for name in self.tools if name.startswith("-")}
        return [spec for spec in specs if spec.name not in left_out and ("*" in self.tools or spec.name in self.tools)]


def parse_role(name: str, text: str) -> Role:
    """The role that a file describes.

    Raises
    ------
    ConfigurationError
        It describes none; says what is wrong.
    """
    head, separator, instructions = text.removeprefix("---\n").partition("\n---\n")
    if not text.startswith("---\n") or not separator:
        raise ConfigurationError(f"Role {name}: the file begins with a head between two lines of three dashes.")
    fields: dict[str, str] = {}
    for line in head.splitlines():
        field, colon, value = line.partition(":")
        if not colon or field not in {"purpose", "tools", "wakes"} or field in fields:
            raise ConfigurationError(
                f"Role {name}: the head has purpose, tools and wakes once each, not {line[:80]!r}."
            )
        fields[field] = value.strip()
    missing = {"purpose", "tools", "wakes"} - fields.keys()
    if missing:
        raise ConfigurationError(f"Role {name}: the head lacks {', '.join(sorted(missing))}.")
    wakes = frozenset(fields["wakes"].split())
    if not wakes <= WAKES:
        raise ConfigurationError(f"Role {name}: wakes takes {', '.join(sorted(WAKES))}, not {fields['wakes'][:80]!r}.")
    if not instructions.strip():
        raise ConfigurationError(f"Role {name}: after the head comes what its agents are told.")
    return Role(name, fields["purpose"], tuple(fields["tools"].split()), wakes, instructions)


@cache
def role(name: str) -> Role:
    """The role of this name, of those that come with the program."""
    return parse_role(name, files(__name__).joinpath(f"{name}.md").read_text("utf-8"))


def offered(log: EventLog, agent: str) -> frozenset[str] | None:
    """The tools that the agent's prompts offer it; None if it has none of its own to choose from."""
    state = log.state("agents")
    assert isinstance(state, AgentsState)
    record = state.agents.get(agent)
    if record is None or record.seeded is None:
        return None
    return frozenset(str(tool["name"]) for tool in log.get(record.seeded).data["tools"])
