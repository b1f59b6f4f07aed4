"""Records what a process did to the files of its worktree: nothing, or a commit on a ref of ours that holds them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from musecode_jupyter.log import EventLog
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import LogError, MuseError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.held_files import HeldFiles, HeldFilesState
from musecode_jupyter.workspace.snapshots import SNAPSHOT_PREFIX, Staged, keep_staged, stage_apart

LARGEST_KEPT = 64_000_000
"""Bytes; a larger new file is named in the log and not kept."""

MOST_KEPT = 512_000_000
"""Bytes that the changed files of one worktree may have together; with more, they are not kept."""

Found = Literal["same", "kept", "unknown"]


class ProcessFiles:
    """Called after each process that ran in a worktree. `session` names the refs; used on the runtime thread."""

    def __init__(self, log: EventLog, effects: Effects, session: str) -> None:
        self._log = log
        self._effects = effects
        self._session = session
        self._gits: dict[Path, Git] = {}

    async def keep(self, worktree: int, root: Path, call: int | None, *, ended: bool = True, label: str = "") -> Found:
        """Compare the files with what the log says, and keep them by a worktree.snapshotted event if they differ.

        Without `ended` they are kept though they do not differ: the end of the process says nothing of them. `label` is
        that of what the process may have written. What goes wrong is in the event, and raises nothing but the log's own
        errors.
        """
        held = self._state.trees.get(worktree)
        if held is None:
            return "unknown"
        try:
            git = await self._git(root)
            staged = await stage_apart(git, held.commit, LARGEST_KEPT, MOST_KEPT)
            if ended and not held.why and self._as_recorded(held, staged):
                return "same"
            commit = held.commit
            if staged is not None:
                ref = f"{SNAPSHOT_PREFIX}{self._session}/{worktree}"
                commit = await keep_staged(git, staged, ref, f"musecode: files after call {call}\n")
            left_out = [] if staged is None else list(staged.left_out)
        except LogError:
            raise
        except (MuseError, OSError) as error:
            await self._emit(worktree, call, commit=None, why=str(error), label=label)
            return "unknown"
        differing = [] if staged is None else sorted(staged.differing)
        await self._emit(worktree, call, commit=commit, left_out=left_out, differing=differing, label=label)
        return "kept"

    @property
    def _state(self) -> HeldFilesState:
        state = self._log.state("files")
        assert isinstance(state, HeldFilesState)
        return state

    async def _git(self, root: Path) -> Git:
        # Found once: a process that breaks .git makes git fail here, and never answer for an outer repository.
        if root not in self._gits:
            self._gits[root] = await Git.at_worktree(root, self._effects)
        return self._gits[root]

    def _as_recorded(self, held: HeldFiles, staged: Staged | None) -> bool:
        """Whether the worktree differs from its commit in just the edits that the log has."""
        if staged is None:
            return not held.changed and not held.left_out
        if set(staged.differing) != set(held.changed) or list(staged.left_out) != held.left_out:
            return False
        for path, (mode, blob, before) in staged.differing.items():
            digest = held.changed[path]
            if digest is None:
                if mode.strip("0"):
                    return False
                continue
            if mode != (before if before.strip("0") else "100644"):
                return False
            if blob != _blob_id(self._log.blob(digest), len(blob)):
                # Where a filter of git's stands between, too: then they are kept once more than need be.
                return False
        return True

    async def _emit(
        self,
        worktree: int,
        call: int | None,
        *,
        commit: str | None,
        left_out: list[str] | None = None,
        why: str = "",
        differing: list[str] | None = None,
        label: str = "",
    ) -> None:
        data = {
            "worktree": worktree,
            "commit": commit,
            "call": call,
            "left_out": left_out or [],
            "why": why,
            # Only what is private has to be known again by its path.
            "differing": (differing or []) if label else [],
        }
        cause = (worktree,) if call is None else (worktree, call)
        await self._log.append("worktree.snapshotted", data, agent="harness", cause=cause, label=label)


def _blob_id(data: bytes, digits: int) -> str:
    """The id that git gives to a blob with these bytes; 40 digits in most repositories, 64 in those with SHA-256."""
    state = hashlib.sha1(usedforsecurity=False) if digits == 40 else hashlib.sha256()
    state.update(b"blob %d\0" % len(data) + data)
    return state.hexdigest()
