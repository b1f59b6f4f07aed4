"""Content-addressed files beside the journal: durable before `put` returns, checked on every read."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from musecode_jupyter.log.events import BlobRef
from musecode_jupyter.runtime.errors import LogError

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_CHUNK = 1 << 20


def digest_of(content: bytes) -> BlobRef:
    """The reference under which `content` is stored."""
    return BlobRef(blake2b(content, digest_size=32).hexdigest(), len(content))


def sync_folder(folder: Path) -> None:
    """Make the entries of `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content`, however short the single writes are."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


class BlobStore:
    """Blobs under `folder`, as `ab/cdef...` by the BLAKE2b-256 of their bytes; several threads may use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._durable: set[str] = set()
        self._lock = threading.Lock()
        self._names = itertools.count()

    def put(self, content: bytes) -> BlobRef:
        """Store `content`; durable on return.

        Raises
        ------
        OSError
            The disk takes no writes.
        """
        return self.put_all([content])[0]

    def put_all(self, contents: Iterable[bytes]) -> list[BlobRef]:
        """Store several blobs with one sync per folder; all durable on return. Raises as `put`."""
        refs: list[BlobRef] = []
        touched: set[Path] = set()
        with self._lock:
            for content in contents:
                ref = digest_of(content)
                refs.append(ref)
                if ref.digest not in self._durable:
                    target = self.path_of(ref.digest)
                    if not self._matches(target, ref):
                        self._write(target, content, touched)
                    # An equal file may stem from a process that was killed between rename and sync.
                    touched.add(target.parent)
            for folder in sorted(touched):
                sync_folder(folder)
            self._durable.update(ref.digest for ref in refs)
        return refs

    def get(self, digest: str) -> bytes:
        """The bytes of a blob.

        Raises
        ------
        LogError
            There is no such blob, or its bytes are not those that were stored.
        """
        try:
            content = self.path_of(digest).read_bytes()
        except OSError as problem:
            raise LogError(f"blob {digest} cannot be read ({problem.strerror}); restore {self.folder}") from problem
        if digest_of(content).digest != digest:
            raise LogError(f"blob {digest} is damaged: its bytes do not match its name; restore {self.folder}")
        return content

    def has(self, digest: str) -> bool:
        """Whether there is a file for this blob; only `get` and `check` look at its bytes."""
        return self.path_of(digest).is_file()

    def check(self, ref: BlobRef) -> str | None:
        """What is wrong with a blob, none if nothing is; reads it in pieces."""
        path = self.path_of(ref.digest)
        try:
            if path.stat().st_size != ref.size:
                return f"blob {ref.digest} has {path.stat().st_size} bytes instead of {ref.size}"
            return None if self._matches(path, ref) else f"blob {ref.digest} does not match its name"
        except FileNotFoundError:
            return f"blob {ref.digest} is missing"
        except OSError as problem:
            return f"blob {ref.digest} cannot be read ({problem.strerror})"

    def sweep(self) -> None:
        """Remove what a killed writer left half-written; call it only as the one writer."""
        with contextlib.suppress(FileNotFoundError):
            for path in (self.folder / "tmp").iterdir():
                path.unlink()

    def __iter__(self) -> Iterator[str]:
        """Digests of all blobs, sorted."""
        for folder in sorted(self.folder.glob("[0-9a-f][0-9a-f]")):
            for path in sorted(folder.iterdir()):
                yield folder.name + path.name

    def path_of(self, digest: str) -> Path:
        """The file of a blob; LogError if `digest` is none."""
        if not _DIGEST.match(digest):
            raise LogError(f"{digest!r} is not the digest of a blob; it has 64 hexadecimal digits")
        return self.folder / digest[:2] / digest[2:]

    def _matches(self, path: Path, ref: BlobRef) -> bool:
        state = blake2b(digest_size=32)
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size != ref.size:
                    return False
                while piece := file.read(_CHUNK):
                    state.update(piece)
        except FileNotFoundError:
            return False
        return state.hexdigest() == ref.digest

    def _write(self, target: Path, content: bytes, touched: set[Path]) -> None:
        temporary = self.folder / "tmp" / f"{os.getpid()}-{next(self._names)}"
        if not target.parent.is_dir():
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            touched.update({self.folder, self.folder.parent})
        temporary.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                write_all(descriptor, content)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.rename(target)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
