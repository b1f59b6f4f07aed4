"""Where commands run: in bubblewrap, or plainly as the user with a watch on the repository; chosen by a probe."""

from musecode_jupyter.guard.sandbox.base import Change, Confined, Promise, Realm, Sandbox
from musecode_jupyter.guard.sandbox.choose import BACKENDS, NETWORKS, choose, parse_backend, parse_network
from musecode_jupyter.guard.sandbox.plain import Plain

__all__ = [
    "BACKENDS",
    "NETWORKS",
    "Change",
    "Confined",
    "Plain",
    "Promise",
    "Realm",
    "Sandbox",
    "choose",
    "parse_backend",
    "parse_network",
]
