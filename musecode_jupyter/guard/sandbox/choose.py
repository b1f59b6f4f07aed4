"""Chooses the sandbox: what the settings ask for, if a probe says that it works here; never silently another."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from musecode_jupyter.guard.sandbox.base import Network, Sandbox
from musecode_jupyter.guard.sandbox.bubblewrap import PROBE_SECONDS, Bubblewrap, find_program, probe
from musecode_jupyter.guard.sandbox.plain import Plain
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ConfigurationError

BACKENDS = ("auto", "bubblewrap", "plain")
NETWORKS: dict[str, Network] = {"allow": "allow", "deny": "deny"}

_INSTALL = "install it (Debian and Ubuntu: `apt install bubblewrap`; Fedora: `dnf install bubblewrap`)"

# One probe per process, program and setting: whether namespaces are allowed does not change under a kernel.
_probed: dict[tuple[str, Network], str] = {}


def parse_backend(text: str | None) -> str:
    """The asked-for sandbox; ConfigurationError names the choices."""
    chosen = (text or "auto").strip().lower()
    if chosen not in BACKENDS:
        raise ConfigurationError(f"Unknown sandbox {text!r}: MUSECODE_SANDBOX is one of {', '.join(BACKENDS)}.")
    return chosen


def parse_network(text: str | None) -> Network:
    """Whether commands have the network; ConfigurationError names the choices."""
    chosen = NETWORKS.get((text or "deny").strip().lower())
    if chosen is None:
        raise ConfigurationError(f"Unknown network setting {text!r}: MUSECODE_NETWORK is allow or deny.")
    return chosen


def parse_readable(text: str | None) -> tuple[Path, ...]:
    """Existing absolute places; ConfigurationError names one that is neither."""
    places = tuple(Path(os.path.expanduser(entry)) for entry in filter(None, (text or "").split(os.pathsep)))
    for place in places:
        if not place.is_absolute() or not os.path.exists(place):
            raise ConfigurationError(f"MUSECODE_READABLE names {place}, which is no absolute path of something there.")
    return places


async def why_not(network: Network, effects: Effects) -> str:
    """Why bubblewrap cannot be used here; empty if it can."""
    if sys.platform != "linux":
        return "bubblewrap needs Linux"
    program = find_program(effects.environ())
    if program is None:
        return f"bubblewrap is not installed: {_INSTALL}"
    key = (program, network)
    if key not in _probed:
        try:
            _probed[key] = await probe(program, network, effects)
        except TimeoutError:
            return f"{program} did not answer within {PROBE_SECONDS:g} s"
    return _probed[key]


async def choose(
    asked: str | None,
    network: str | None,
    effects: Effects,
    *,
    hidden: tuple[Path, ...] = (),
    readable: str | None = None,
    linked: tuple[str, ...] = (),
) -> Sandbox:
    """The sandbox for a session; `hidden` are the folders of sessions, which commands must not see.

    `readable` are places, between colons, that they may read although they would be hidden; `linked` are paths in the
    user's checkout that agents' trees link to, which they may read too.

    Raises
    ------
    ConfigurationError
        A setting has a value that there is not, or bubblewrap is demanded and cannot be used.
    """
    backend, reach = parse_backend(asked), parse_network(network)
    shown = parse_readable(readable)
    if backend == "plain":
        return Plain("MUSECODE_SANDBOX=plain")
    problem = await why_not(reach, effects)
    if not problem:
        program = find_program(effects.environ())
        assert program is not None
        environ: Mapping[str, str] = effects.environ()
        return Bubblewrap(program, reach, hidden=hidden, readable=shown, linked=linked, environ=environ)
    if backend == "bubblewrap":
        raise ConfigurationError(f"MUSECODE_SANDBOX=bubblewrap, but {problem}. Or set MUSECODE_SANDBOX=auto.")
    return Plain(problem)
