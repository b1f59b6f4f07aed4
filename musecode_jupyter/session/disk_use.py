"""What a session holds on disk: its folder with log and outputs, and its worktrees; looked at if it has a limit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from musecode_jupyter.guard.ledger import Limit

if TYPE_CHECKING:
    from musecode_jupyter.session.core import SessionCore


class DiskUse:
    """Bytes that the session held when it was looked at last."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self.held = 0

    async def refresh(self, *, always: bool = False) -> None:
        """Look again, if there is a limit."""
        if always or self._core.ledger.limits.get("session", Limit()).disk is not None:
            trees = [Path(tree.path) for tree in self._core.workspace_state.worktrees.values()]
            self.held = await self._core.effects.disk(bytes_below, [self._core.log.folder, *trees])


def bytes_below(folders: list[Path]) -> int:
    """Bytes that the files below the folders take on disk, each file once; what cannot be read counts nothing."""
    seen: set[tuple[int, int]] = set()
    total = 0
    waiting = [str(folder) for folder in folders]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if (status.st_dev, status.st_ino) not in seen:
                        seen.add((status.st_dev, status.st_ino))
                        total += status.st_blocks * 512
        except OSError:
            continue
    return total
