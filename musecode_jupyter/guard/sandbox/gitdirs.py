"""Where a checkout's git directories are, found by reading files alone, and what of their configuration is secret."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

_MAX_ALTERNATES = 20
_URL_USER = re.compile(rb"(://)[^/@\s\"]+@")
_HEADER = re.compile(rb"(?im)^(\s*extraheader\s*=).*$")
_CREDENTIAL = re.compile(rb"(?im)^(\s*(?:password|token|helper)\s*=).*$")


@dataclass(frozen=True)
class GitDirs:
    """Real paths: top of the checkout, its own git directory, and the one that all its worktrees share."""

    top: Path
    own: Path
    common: Path

    @property
    def linked(self) -> bool:
        """Whether this is a linked worktree."""
        return self.own != self.common


def find(folder: Path) -> GitDirs | None:
    """The git directories of the checkout that holds `folder`; None if it is in none."""
    start = folder.resolve()
    for top in (start, *start.parents):
        entry = top / ".git"
        with contextlib.suppress(OSError):
            if os.path.isdir(entry):
                own = entry.resolve()
            elif os.path.isfile(entry):
                text = entry.read_bytes()[:8192]
                if not text.startswith(b"gitdir:"):
                    return None
                own = (top / os.fsdecode(text[len(b"gitdir:") :].strip())).resolve()
            else:
                continue
            return GitDirs(top, own, _common(own)) if os.path.isfile(own / "HEAD") else None
    return None


def _common(own: Path) -> Path:
    try:
        text = (own / "commondir").read_bytes()
    except OSError:
        return own
    return (own / os.fsdecode(text.strip())).resolve()


def alternates(common: Path) -> list[Path]:
    """Object folders of other repositories that this one borrows from, and those from which they borrow."""
    found: list[Path] = []
    queue = [common / "objects"]
    while queue and len(found) < _MAX_ALTERNATES:
        objects = queue.pop()
        try:
            lines = (objects / "info" / "alternates").read_bytes().splitlines()
        except OSError:
            continue
        for line in lines:
            if not line.strip() or line.startswith(b"#"):
                continue
            folder = (objects / os.fsdecode(line.strip())).resolve()
            if os.path.isdir(folder) and folder not in found:
                found.append(folder)
                queue.append(folder)
    return found


def without_secrets(config: bytes) -> bytes:
    """A git configuration without user names and passwords in addresses, extra headers and credential helpers."""
    config = _URL_USER.sub(rb"\1", config)
    config = _HEADER.sub(rb"\1", config)
    return _CREDENTIAL.sub(rb"\1", config)
