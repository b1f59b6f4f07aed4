"""The fold of the roles that the repository brings and the user trusts, and which agents stand."""

from __future__ import annotations

from functools import lru_cache

from pydantic import BaseModel, Field

from musecode_jupyter.agents.roles import STANDING, Role, role
from musecode_jupyter.agents.roles.users import users_role
from musecode_jupyter.log import EventLog
from musecode_jupyter.log.events import Event


class TakenRole(BaseModel):
    """A role that was taken over, as its file was then; `seq` is its role.taken."""

    seq: int
    path: str
    digest: str
    text: str


class RolesState(BaseModel):
    """`roles` by name."""

    roles: dict[str, TakenRole] = Field(default_factory=dict)


class RolesReducer:
    """Folds role.* events."""

    name = "roles"
    kinds = frozenset({"role.taken", "role.dropped"})

    def initial(self) -> RolesState:
        return RolesState()

    def apply(self, state: RolesState, event: Event) -> None:
        data = event.data
        if event.kind == "role.taken":
            state.roles[data["name"]] = TakenRole(
                seq=event.seq, path=data["path"], digest=data["digest"], text=data["text"]
            )
        elif event.kind == "role.dropped":
            state.roles.pop(data["name"], None)


def roles_of(log: EventLog) -> RolesState:
    """The repository's roles that are in use, as folded."""
    state = log.state("roles")
    assert isinstance(state, RolesState)
    return state


def standing(log: EventLog) -> tuple[str, ...]:
    """The names of the agents that stand, ours first; each has the role of its name."""
    return (*STANDING, *sorted(roles_of(log).roles))


def role_of(log: EventLog, name: str) -> Role:
    """The role of this name: the repository's, as it was taken over, or ours."""
    taken = roles_of(log).roles.get(name)
    return role(name) if taken is None else _parsed(name, taken.text)


@lru_cache(maxsize=64)
def _parsed(name: str, text: str) -> Role:
    return users_role(name, text.encode("utf-8"))
