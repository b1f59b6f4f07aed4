"""Commands as the user, without a sandbox: what they changed of the user's repository is found afterwards and told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from musecode_jupyter.guard.sandbox import gitdirs
from musecode_jupyter.guard.sandbox.base import Backend, Change, Confined, Network, Promise, Realm
from musecode_jupyter.guard.sandbox.watch import Known, Snapshot, compare, snapshot
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.process import ProcessSpec, Started

MEANING = "Commands run as you: they can reach your files, your repository and the network."


class Plain:
    """No sandbox. `why` says why; the network cannot be denied."""

    name: Backend = "plain"
    network: Network = "allow"
    words = "none: the command can do what you can"
    promises = frozenset({Promise.FOUND, Promise.ENVIRONMENT})
    shows_more = True

    def __init__(self, why: str) -> None:
        self.why = why
        self._known: Known = {}

    @property
    def banner(self) -> str:
        """The line that is shown before the first command."""
        return f"No sandbox ({self.why}). {MEANING}"

    def hide(self, places: Iterable[Path]) -> None:
        """Nothing can be hidden."""

    async def run(
        self,
        spec: ProcessSpec,
        realm: Realm,
        effects: Effects,
        on_started: Callable[[Started], None] | None = None,
    ) -> Confined:
        """Run `spec`, and compare refs, HEAD, index and stash of the user's repository before and after."""
        before = await effects.disk(_look, realm, self._known)
        result = await effects.run(spec, on_started)
        if before is None:
            return Confined(result)
        changes: tuple[Change, ...] = await effects.disk(compare, before, spec.output, self._known)
        return Confined(result, changes)

    def close(self) -> None:
        """Nothing was made."""


def _look(realm: Realm, known: Known) -> Snapshot | None:
    dirs = gitdirs.find(realm.root)
    users = dirs if realm.checkout is None else gitdirs.find(realm.checkout)
    if dirs is None or users is None:
        return None
    return snapshot(users, known)
