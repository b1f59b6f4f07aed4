"""What every sandbox answers: what it is, why it was taken, what it promises; and how a command is run in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, Protocol

from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.process import ProcessResult, ProcessSpec, Started

Backend = Literal["bubblewrap", "plain"]
Network = Literal["allow", "deny"]


class Promise(Enum):
    """What a sandbox can promise about a command; the conformance suite has a test for each."""

    REPOSITORY = "refs, HEAD, index, stash and objects of the user's repository cannot be changed"
    CHECKOUT = "the user's checkout cannot be changed, and its path leads to the files of the agent's tree"
    OUTSIDE = "nothing outside the tree, the private home and the private /tmp can be written"
    HOME = "the home directory cannot be seen, but for what programs need to run"
    FRESH = "a check that decides a goal finds nothing that an earlier command left in the home or in /tmp"
    SESSIONS = "the logs and the trees of sessions cannot be seen"
    NETWORK = "no network, unless it is allowed; 127.0.0.1 is the command's own"
    PROCESSES = "other processes cannot be seen, signalled or read"
    ENDED = "all processes of the command end with it, and with the kernel, whatever they do to hide"
    FOUND = (
        "those that keep its session, its environment or a parent among its processes end with it, and with the kernel"
    )
    ENVIRONMENT = "no key is in its environment"


@dataclass(frozen=True)
class Realm:
    """The folder that a command acts in. `checkout` is the user's own, if `root` is an agent's tree of it.

    `fresh`: it finds nothing that another command left in its home or in /tmp, as a check that decides a goal must.
    """

    root: Path
    writable: bool
    checkout: Path | None = None
    fresh: bool = False


@dataclass(frozen=True)
class Change:
    """One thing of the user's repository that is not as it was before a command. None stands for not there.

    `undo` is the shell command that puts it back.
    """

    what: str
    before: str | None
    after: str | None
    undo: str


@dataclass(frozen=True)
class Confined:
    """The end of a command, what it changed of the user's repository, and what its reader should know."""

    result: ProcessResult
    changes: tuple[Change, ...] = ()
    note: str = ""


class Sandbox(Protocol):
    """Runs commands. Made by `choose`; whoever made it calls `close`.

    `words` say what holds a command, for whoever is asked to approve one.
    """

    name: Backend
    network: Network
    why: str
    words: str
    promises: frozenset[Promise]

    @property
    def shows_more(self) -> bool:
        """Whether commands can read files of the user's beyond the tree that they run in, and what programs need."""
        ...

    @property
    def banner(self) -> str:
        """A line for the user where commands run without a sandbox; else empty."""
        ...

    def hide(self, places: Iterable[Path]) -> None:
        """Let no command see these places from here on, where the sandbox can hide anything."""
        ...

    async def run(
        self,
        spec: ProcessSpec,
        realm: Realm,
        effects: Effects,
        on_started: Callable[[Started], None] | None = None,
    ) -> Confined:
        """Run `spec` in `realm` to its end; as `Effects.run`, never raises for a failing command."""
        ...

    def close(self) -> None:
        """Remove what was kept for the commands of the session. Idempotent; blocks while files are deleted."""
        ...
