"""What an approval is bound to: everything that decides what a call does, so that any change of it voids the answer."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from musecode_jupyter.log.events import canonical
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.files import digest_bytes
from musecode_jupyter.tools.paths import components, open_at, parent_of, real_root

_CHUNK = 1 << 20


def bound(
    tool: str,
    arguments: Mapping[str, Any],
    root: Path,
    env: Mapping[str, str],
    files: Sequence[str],
    programs: Sequence[str] = (),
) -> dict[str, Any]:
    """What is shown for a call in `root` and hashed into its approval; blocks while it reads `files`.

    The environment is named by its variables and a digest of their values, the folder by its path and identity, the
    tree by a digest of the names, modes and contents of `files`.
    """
    state = os.stat(root)
    facts: dict[str, Any] = {
        "tool": tool,
        "cwd": str(root),
        "folder": f"{state.st_dev}:{state.st_ino}",
        "environment": sorted(env),
        "environment_values": digest_bytes(canonical(sorted(env.items())).encode("ascii"))[:32],
        "tree": tree_digest(root, files),
    }
    if programs:
        facts["programs"] = list(programs)
    if isinstance(path := arguments.get("path"), str):
        facts["before"] = _before(root, path)
    # An argument never takes the place of one of these facts.
    own = dict(arguments) if not facts.keys() & arguments.keys() else {"arguments": dict(arguments)}
    return {**facts, **own}


def changed(shown: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names of what differs between two such descriptions, sorted."""
    return sorted(name for name in shown.keys() | now.keys() if shown.get(name) != now.get(name))


def tree_digest(root: Path, files: Sequence[str]) -> str:
    """BLAKE2b-128 over the names, modes and contents of `files` below `root`; links count by where they lead."""
    digest = blake2b(digest_size=16)
    base = real_root(root)
    for name in sorted(set(files)):
        digest.update(os.fsencode(name) + b"\0")
        digest.update(_entry(base, tuple(Path(name).parts)))
    return digest.hexdigest()


def _entry(base: Path, parts: tuple[str, ...]) -> bytes:
    try:
        with parent_of(base, parts, "", create=False) as parent:
            if parent is None:
                return b"missing\0"
            state = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(state.st_mode):
                return b"link\0" + os.fsencode(os.readlink(parts[-1], dir_fd=parent)) + b"\0"
            if not stat.S_ISREG(state.st_mode):
                return f"special {state.st_mode:o} {state.st_dev} {state.st_ino}\0".encode()
            with open_at(parent, parts[-1], parts[-1]) as descriptor:
                return f"{state.st_mode & 0o111:o} ".encode() + _content(descriptor)
    except (OSError, ToolProblem) as error:
        return f"unreadable {type(error).__name__}\0".encode()


def _content(descriptor: int) -> bytes:
    digest = blake2b(digest_size=32)
    offset = 0
    while piece := os.pread(descriptor, _CHUNK, offset):
        digest.update(piece)
        offset += len(piece)
    return digest.digest()


def _before(root: Path, path: str) -> str | None:
    """Digest of the file that a call names, none if there is none to read."""
    try:
        parts = components(root, path, follow_last=False)
        with parent_of(real_root(root), parts, path, create=False) as parent:
            if parent is None:
                return None
            with open_at(parent, parts[-1], path) as descriptor:
                return _content(descriptor).hex()
    except (OSError, ToolProblem):
        return None
