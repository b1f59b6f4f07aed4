"""Reads commits and tags from a repository's object files, without a git process, and checks them against their ids."""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gitdb.pack import PackEntity

FULL_ID = re.compile(r"[0-9a-f]{40}")

_COMMIT = re.compile(rb"tree ([0-9a-f]{40})\n((?:parent [0-9a-f]{40}\n)*)author [^\n]*\ncommitter ([^\n]*)\n")
_STAMP = re.compile(rb"[^<>]*<[^<>]*> ([0-9]{1,11}) [+-][0-9]{4}")
_TAG = re.compile(rb"object ([0-9a-f]{40})\ntype ([a-z]+)\n")

_LARGEST = 1_000_000  # bytes of a loose object file; commits and tags are far smaller
_KEPT = 4096


class Unsure(Exception):
    """The files do not say for certain, as far as they are understood here; git is to be asked."""


@dataclass(frozen=True)
class Commit:
    """What a commit says: its tree, its parents, and when it was committed, in seconds since 1970 (UTC)."""

    tree: str
    parents: tuple[str, ...]
    time: int


class Objects:
    """The objects of one repository with SHA-1 ids. Not for use from two threads at once.

    Loose objects are read here. Packs are read by gitdb, GitPython's object database, which starts no process; of it
    only the reader of one pack is used, since its own list of packs goes stale when another process repacks. Whatever
    is read is hashed, so that a commit that is returned is the commit that was asked for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packs: dict[str, PackEntity] = {}
        self._commits: OrderedDict[str, Commit] = OrderedDict()

    def commit(self, name: str) -> Commit:
        """The commit with this id; Unsure if it is not here, is no commit or is oddly written."""
        kind, body = self._read(name)
        if kind != b"commit":
            raise Unsure(f"{name} is no commit")
        return self._keep(name, body)

    def known_commit(self, name: str) -> Commit:
        """The same, perhaps from memory: for a commit that one that is here has among its ancestors."""
        if name in self._commits:
            self._commits.move_to_end(name)
            return self._commits[name]
        return self.commit(name)

    def remembers(self, name: str) -> bool:
        """Whether `known_commit` answers without reading."""
        return name in self._commits

    def peeled(self, name: str) -> str:
        """The id of the commit that this id is of, or that the tag with this id leads to."""
        for _ in range(5):
            kind, body = self._read(name)
            if kind == b"commit":
                self._keep(name, body)
                return name
            found = _TAG.match(body) if kind == b"tag" else None
            if found is None:
                break
            name = found[1].decode()
        raise Unsure(f"{name} leads to no commit")

    def has_tree(self, name: str) -> bool:
        """Whether the tree with this id is here."""
        file = self._loose(name)
        try:
            with open(file, "rb") as handle:
                return zlib.decompressobj().decompress(handle.read(64), 5) == b"tree "
        except FileNotFoundError:
            return self._packed(name, whole=False)[0] == b"tree"

    def _keep(self, name: str, body: bytes) -> Commit:
        found = _COMMIT.match(body)
        stamp = _STAMP.fullmatch(found[3]) if found else None
        if found is None or stamp is None:
            raise Unsure(f"{name} is oddly written")
        parents = tuple(found[2].decode().replace("parent ", "").split())
        self._commits[name] = commit = Commit(found[1].decode(), parents, int(stamp[1]))
        if len(self._commits) > _KEPT:
            self._commits.popitem(last=False)
        return commit

    def _loose(self, name: str) -> Path:
        return self._folder / name[:2] / name[2:]

    def _read(self, name: str) -> tuple[bytes, bytes]:
        """Kind and content of an object, proved by its id."""
        try:
            with open(self._loose(name), "rb") as handle:
                raw = handle.read(_LARGEST + 1)
        except FileNotFoundError:
            kind, body = self._packed(name, whole=True)
        else:
            if len(raw) > _LARGEST:
                raise Unsure(f"{name} is large")
            header, _, body = zlib.decompress(raw).partition(b"\0")
            kind = header.partition(b" ")[0]
        head = b"%s %d\0" % (kind, len(body))
        if hashlib.sha1(head + body, usedforsecurity=False).hexdigest() != name:
            raise Unsure(f"{name} does not have that content")
        return kind, body

    def _packed(self, name: str, *, whole: bool) -> tuple[bytes, bytes]:
        self._look_for_packs()
        key = bytes.fromhex(name)
        for pack in self._packs.values():
            try:
                at = pack.index().sha_to_index(key)
                if at is None:
                    continue
                info = pack.info_at_index(at)
                # Another kind is of no use here, and may be of any size.
                body = pack.stream_at_index(at).read() if whole and info.type in (b"commit", b"tag") else b""
                return bytes(info.type), bytes(body)
            except Exception as error:
                # A pack that another process takes away or that gitdb cannot read: whatever it raises, git will know.
                raise Unsure(f"{name} cannot be read from its pack") from error
        raise Unsure(f"{name} is not here")

    def _look_for_packs(self) -> None:
        """Take note of packs that came and went; the folder is listed each time, which costs little."""
        from gitdb.pack import PackEntity
        from gitdb.util import mman

        folder = self._folder / "pack"
        names = set(os.listdir(folder)) if folder.is_dir() else set()
        here = {name for name in names if name.endswith(".pack") and f"{name[:-5]}.idx" in names}
        gone = self._packs.keys() - here
        for name in gone:
            del self._packs[name]
        for name in sorted(here - self._packs.keys()):
            self._packs[name] = PackEntity(str(folder / name))
        if gone:
            # What is deleted holds its disk space for as long as it is mapped.
            mman.collect()
