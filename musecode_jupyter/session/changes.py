"""The unified diff of a change of one file, from its contents before and after; pure."""

from __future__ import annotations

import difflib


def unified(path: str, before: bytes | None, after: bytes | None) -> str:
    """The diff as text; None stands for no file, and bytes that are not UTF-8 are shown as replacement characters."""
    old, new = ((side or b"").decode("utf-8", "replace").splitlines(keepends=True) for side in (before, after))
    return "".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}"))
