"""What the events of roles hold: those that a repository brings, as they were taken over, and who has one no more."""

from __future__ import annotations

from pydantic import Field

from musecode_jupyter.log.payload import Payload


class RoleTaken(Payload):
    """A standing agent can be made of this role from here on: the whole file, so that nobody reads it again."""

    name: str
    path: str
    digest: str
    text: str


class RoleDropped(Payload):
    """The role is used no more."""

    name: str
    why: str


class AgentRetired(Payload):
    """The envelope's `agent` is gone, with its conversation; what it claimed stays. Another one may take its name."""

    why: str
    numbers: dict[str, float] = Field(default_factory=dict, description="what the decision was made from")


ROLE_KINDS: dict[str, type[Payload]] = {
    "agent.retired": AgentRetired,
    "role.taken": RoleTaken,
    "role.dropped": RoleDropped,
}
