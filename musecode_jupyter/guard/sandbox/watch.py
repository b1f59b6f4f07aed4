"""What a command without a sandbox changed of the user's refs, HEAD, index and stash, found by reading files alone."""

from __future__ import annotations

import contextlib
import os
import shlex
import struct
from dataclasses import dataclass
from pathlib import Path

from musecode_jupyter.guard.sandbox.base import Change
from musecode_jupyter.guard.sandbox.gitdirs import GitDirs

# What the harness itself makes, and what git's own fetches and commands note down beside the refs.
_OURS = ("refs/heads/musecode/", "refs/musecode/")
_STASH = "refs/stash"
_MAX_TOLD = 20


@dataclass(frozen=True)
class Snapshot:
    """The state at one moment. `refs` are full names with what they point to; symbolic ones begin with `ref: `."""

    dirs: GitDirs
    head: str
    refs: dict[str, str]
    index: bytes | None
    stash: tuple[str, ...]


Known = dict[bytes, tuple[tuple[int, int, int], str]]
"""Loose refs as read before: by path, what tells a file that is still the same, and what it said."""


def snapshot(dirs: GitDirs, known: Known | None = None) -> Snapshot:
    """Read the state now. A file that cannot be read counts as absent; one that is as in `known` is not read again."""
    index = _read(dirs.own / "index")
    stash = (_read(dirs.common / "logs" / _STASH) or b"").splitlines()
    return Snapshot(
        dirs,
        _text(_read(dirs.own / "HEAD")),
        _refs(dirs.common, {} if known is None else known),
        index,
        tuple(os.fsdecode(line) for line in stash),
    )


def compare(before: Snapshot, keep: Path, known: Known | None = None) -> tuple[Change, ...]:
    """What is otherwise now. An index that changed is kept as it was beside the file `keep`."""
    after = snapshot(before.dirs, known)
    git = f"git -C {shlex.quote(str(before.dirs.top))}"
    changes: list[Change] = []
    if before.head != after.head:
        if before.head.startswith("ref: "):
            undo = f"{git} symbolic-ref HEAD {shlex.quote(before.head.removeprefix('ref: '))}"
        else:
            undo = f"{git} update-ref --no-deref HEAD {before.head}"
        changes.append(Change("HEAD", before.head or None, after.head or None, undo))
    for name in sorted(before.refs.keys() | after.refs.keys()):
        old, new = before.refs.get(name), after.refs.get(name)
        if old == new or name == _STASH:
            continue
        if old is None:
            undo = f"{git} update-ref -d {shlex.quote(name)}"
        elif old.startswith("ref: "):
            undo = f"{git} symbolic-ref {shlex.quote(name)} {shlex.quote(old.removeprefix('ref: '))}"
        else:
            undo = f"{git} update-ref {shlex.quote(name)} {old}"
        changes.append(Change(name, old, new, undo))
    changes += _stash_changes(before, after, git)
    if _entries(before.index) != _entries(after.index):
        changes.append(_index_change(before, keep))
    return tuple(changes[:_MAX_TOLD])


def _stash_changes(before: Snapshot, after: Snapshot, git: str) -> list[Change]:
    if before.stash == after.stash and before.refs.get(_STASH) == after.refs.get(_STASH):
        return []
    left = {_new_value(line) for line in after.stash}
    changes = []
    for line in before.stash:
        commit, message = _new_value(line), line.partition("\t")[2]
        if commit not in left:
            undo = f"{git} stash store -m {shlex.quote(message)} {commit}"
            changes.append(Change(f"stash entry {message!r}", commit, None, undo))
    known = {_new_value(line) for line in before.stash}
    for number, line in enumerate(reversed(after.stash)):
        commit = _new_value(line)
        if commit not in known:
            undo = f"{git} stash drop 'stash@{{{number}}}'"
            changes.append(Change(f"stash entry {line.partition(chr(9))[2]!r}", None, commit, undo))
    if not changes and before.refs.get(_STASH) != after.refs.get(_STASH):
        old, new = before.refs.get(_STASH), after.refs.get(_STASH)
        undo = f"{git} update-ref -d {_STASH}" if old is None else f"{git} update-ref {_STASH} {old}"
        changes.append(Change(_STASH, old, new, undo))
    return changes


def _index_change(before: Snapshot, keep: Path) -> Change:
    index = before.dirs.own / "index"
    if before.index is None:
        return Change("index", None, "present", f"rm {shlex.quote(str(index))}")
    kept = keep.with_name(keep.name + ".index")
    descriptor = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(before.index)
    return Change("index", "kept", "changed", f"cp {shlex.quote(str(kept))} {shlex.quote(str(index))}")


def _new_value(line: str) -> str:
    words = line.split(" ", 2)
    return words[1] if len(words) > 1 else ""


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _text(data: bytes | None) -> str:
    return os.fsdecode((data or b"").strip())


def _refs(common: Path, known: Known) -> dict[str, str]:
    refs: dict[str, str] = {}
    for line in (_read(common / "packed-refs") or b"").splitlines():
        value, _, name = line.partition(b" ")
        if name and not line.startswith((b"#", b"^")):
            refs[os.fsdecode(name)] = os.fsdecode(value)
    start = len(os.fsencode(common)) + 1
    folders = [os.fsencode(common / "refs")]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.name.endswith(b".lock"):
                    refs[os.fsdecode(entry.path[start:])] = _loose(entry, known)
    tables = _read(common / "reftable" / "tables.list")
    if tables is not None:  # the other format of refs: that they changed is seen, not which
        refs["refs (in reftable)"] = _text(tables).replace("\n", " ")
    return {name: value for name, value in refs.items() if not name.startswith(_OURS)}


def _loose(entry: os.DirEntry[bytes], known: Known) -> str:
    # Git writes a ref as a new file and renames it.
    stat = entry.stat()
    same = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
    before = known.get(entry.path)
    if before is not None and before[0] == same:
        return before[1]
    with open(entry.path, "rb") as file:
        value = _text(file.read(4096))
    known[entry.path] = (same, value)
    return value


def _entries(index: bytes | None) -> object:
    """What an index says of files, without their times: those change with every `git status` of an editor.

    Versions 2 and 3 (https://git-scm.com/docs/index-format); of others the bytes are compared.
    """
    if index is None or index[:4] != b"DIRC" or len(index) < 32:
        return index
    version, count = struct.unpack_from(">II", index, 4)
    if version not in (2, 3):
        return index
    entries, position = [], 12
    try:
        for _ in range(count):
            (flags,) = struct.unpack_from(">H", index, position + 60)
            name_at = position + (64 if flags & 0x4000 else 62)
            end = index.index(b"\0", name_at)
            # Mode, object, stage and the other flags, path.
            entries.append((index[position + 24 : position + 28], index[position + 40 : name_at], index[name_at:end]))
            position += (end - position + 8) // 8 * 8
    except (struct.error, ValueError):
        return index
    return entries
