"""What the events of roles hold: those that a repository brings, as they were when the session took them over."""

from __future__ import annotations

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


ROLE_KINDS: dict[str, type[Payload]] = {
    "role.taken": RoleTaken,
    "role.dropped": RoleDropped,
}
