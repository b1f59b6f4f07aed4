"""Files of one worktree: reading in bounded memory; atomic writing that refuses what was not observed."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.encoding import bom_of, decode, is_binary, shown
from musecode_jupyter.tools.paths import (
    components,
    open_at,
    opened,
    parent_of,
    real_root,
    resolve_inside,
    target_of,
)

__all__ = [
    "KEPT_BYTES",
    "MAX_TEXT_BYTES",
    "FileRead",
    "Written",
    "clear_cut_off",
    "digest_bytes",
    "digest_file",
    "read_bytes",
    "read_file",
    "resolve_inside",
    "write_atomic",
]

MAX_TEXT_BYTES = 64_000
KEPT_BYTES = 2_000_000
_DECODED_WHOLE = 8_000_000
_CHUNK = 1 << 20
_MAX_ENTRIES = 1_000
_TEMPORARY = re.compile(r"\.musecode-[0-9a-f]{16}\.tmp")


@dataclass(frozen=True)
class FileRead:
    """What was read of a file, or of a directory (`kind` "directory": its entries; `digest` is then empty).

    `path` is relative to the root, with links resolved. `lines` is the text of lines `first_line` to
    `last_line` with LF endings; `text` is the same with line numbers and remarks, for a model. `digest` is
    BLAKE2b-256 of the whole file, `size` its bytes; `data` is its content if it has at most `KEPT_BYTES`.
    `hard_links` above 1: other names of this file exist, perhaps outside the root, and a write is refused.
    """

    path: str
    kind: str
    text: str
    lines: str
    first_line: int
    last_line: int
    total_lines: int
    truncated: bool
    digest: str
    size: int
    data: bytes | None
    hard_links: int


@dataclass(frozen=True)
class Written:
    """A finished write: the digest of the new content."""

    path: str
    digest: str
    size: int


def digest_bytes(data: bytes) -> str:
    """BLAKE2b-256 of `data` as 64 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def digest_file(path: Path) -> str:
    """BLAKE2b-256 of a file's bytes, read a piece at a time; OSError as `open` raises it."""
    with open(path, "rb") as file:
        return _digest_open(file.fileno())


def read_file(
    root: Path, path: str, start_line: int = 1, end_line: int | None = None, max_bytes: int = MAX_TEXT_BYTES
) -> FileRead:
    """Read lines `start_line` to `end_line` (from 1, inclusive; None: to the end), at most `max_bytes` of
    them.

    The whole file is read once, in bounded memory, for its digest and its number of lines.

    Raises
    ------
    ToolProblem
        As `resolve_inside`; or there is no such file, it is not a regular file or directory, it cannot be
        read, or the lines asked for do not exist.
    """
    parts = components(root, path, follow_last=True)
    name = "/".join(parts) or "."
    with opened(real_root(root), parts, path) as descriptor:
        state = os.fstat(descriptor)
        if stat.S_ISDIR(state.st_mode):
            return _list_directory(descriptor, name)
        try:
            return _read_lines(descriptor, name, state, start_line, end_line, max_bytes)
        except OSError as error:
            raise ToolProblem(f"{path} cannot be read: {error.strerror}.") from error


def read_bytes(root: Path, path: str, limit: int) -> tuple[str, bytes | None]:
    """The path relative to the root and the content of a regular file; None as content if nothing is there.

    Raises
    ------
    ToolProblem
        As `resolve_inside`; or it is a link, no regular file, cannot be read, or has more than `limit` bytes.
    """
    parts = components(root, path, follow_last=False)
    with parent_of(real_root(root), parts, path, create=False) as parent:
        if parent is None or not target_of(parent, parts[-1], path):
            return "/".join(parts), None
        with open_at(parent, parts[-1], path) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > limit:
                raise ToolProblem(f"{path} has {size} bytes; only files of up to {limit} bytes can be edited here.")
            with os.fdopen(os.dup(descriptor), "rb") as file:
                data = file.read(limit + 1)
    if len(data) > limit:
        raise ToolProblem(f"{path} grew over {limit} bytes while being read; only smaller files can be edited here.")
    return "/".join(parts), data


def write_atomic(root: Path, path: str, data: bytes, expected_digest: str | None) -> Written:
    """Replace a file's content, or with `expected_digest` None create it, directories included.

    The new content is complete and synced to disk before it takes the name. Mode, and owner where allowed,
    are kept.

    Raises
    ------
    ToolProblem
        As `resolve_inside`; or the file is no longer the one with `expected_digest` (None: it exists), the
        target is a link, no regular file or one with other names, or it cannot be written (disk full,
        read-only); then nothing has changed.
    """
    parts = components(root, path, follow_last=False)
    try:
        with parent_of(real_root(root), parts, path, create=expected_digest is None) as parent:
            if parent is None:
                raise ToolProblem(f"{path} is no longer there. Look at its directory again before you edit.")
            _replace(parent, parts[-1], path, data, _check_unchanged(parent, parts[-1], path, expected_digest))
    except OSError as error:
        raise ToolProblem(f"{path} cannot be written: {error.strerror}. Nothing was changed.") from error
    return Written("/".join(parts), digest_bytes(data), len(data))


def clear_cut_off(root: Path, path: str) -> None:
    """Remove what writes of `path` left beside it that were killed before it had the name; nothing writes there now.

    Git would take it for a file of the work. Raises ToolProblem as `resolve_inside`, or if it cannot be removed.
    """
    parts = components(root, path, follow_last=False)
    try:
        with parent_of(real_root(root), parts, path, create=False) as parent:
            if parent is None:
                return
            with os.scandir(parent) as scan:
                left = [entry.name for entry in scan if _TEMPORARY.fullmatch(entry.name)]
            for name in left:
                os.unlink(name, dir_fd=parent)
    except OSError as error:
        raise ToolProblem(f"What a write left beside {path} cannot be removed: {error.strerror}.") from error


def _check_unchanged(parent: int, name: str, path: str, expected: str | None) -> os.stat_result | None:
    state = target_of(parent, name, path)
    if expected is None:
        if state is not None:
            raise ToolProblem(f"{path} exists already. Read it, then edit it.")
        return None
    if state is None:
        raise ToolProblem(f"{path} is no longer there. Look at its directory again before you edit.")
    with open_at(parent, name, path) as descriptor:
        state = os.fstat(descriptor)
        if state.st_nlink > 1:
            state = _alone(parent, descriptor, path)
        if _digest_open(descriptor) != expected:
            raise ToolProblem(f"{path} has changed since you last saw it. Read it again, then edit.")
    return state


def _alone(parent: int, descriptor: int, path: str) -> os.stat_result:
    """The state of an open file once its only other names are ones that a killed write left here; else refused."""
    state = os.fstat(descriptor)
    with os.scandir(parent) as scan:
        ours = [entry.name for entry in scan if _TEMPORARY.fullmatch(entry.name) and entry.inode() == state.st_ino]
    for name in ours:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=parent)
    state = os.fstat(descriptor)
    if state.st_nlink > 1:
        raise ToolProblem(
            f"{path} is one of {state.st_nlink} names of one file (hard links), perhaps outside the worktree, and a "
            "write would part them. Make it a file of its own first (copy it and move the copy in its place)."
        )
    return state


def _replace(parent: int, name: str, path: str, data: bytes, before: os.stat_result | None) -> None:
    temporary = f".musecode-{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # A new file gets the mode that the umask leaves; one that replaces is private until it has the old one's
    # mode.
    descriptor = os.open(temporary, flags, 0o666 if before is None else 0o600, dir_fd=parent)
    try:
        try:
            if before is not None:
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if before is None:
            _take_free_name(parent, temporary, name, path)
        else:
            now = target_of(parent, name, path)
            if now is None or _identity(now) != _identity(before):
                raise ToolProblem(f"{path} has changed since you last saw it. Read it again, then edit.")
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise
    os.fsync(parent)


def _take_free_name(parent: int, temporary: str, name: str, path: str) -> None:
    try:
        os.link(temporary, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
    except FileExistsError:
        raise ToolProblem(f"{path} exists already. Read it, then edit it.") from None
    except OSError:  # a file system without hard links
        if target_of(parent, name, path) is not None:
            raise ToolProblem(f"{path} exists already. Read it, then edit it.") from None
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    else:
        os.unlink(temporary, dir_fd=parent)


def _identity(state: os.stat_result) -> tuple[int, ...]:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _digest_open(descriptor: int) -> str:
    digest = hashlib.blake2b(digest_size=32)
    offset = 0
    while chunk := os.pread(descriptor, _CHUNK, offset):
        digest.update(chunk)
        offset += len(chunk)
    return digest.hexdigest()


def _list_directory(descriptor: int, name: str) -> FileRead:
    entries = []
    with os.scandir(descriptor) as scan:
        for entry in scan:
            if entry.name != ".git":
                mark = "@" if entry.is_symlink() else "/" if entry.is_dir(follow_symlinks=False) else ""
                entries.append(shown(entry.name).replace("\n", "\ufffd") + mark)
    entries.sort()
    total = len(entries)
    lines = "".join(f"{entry}\n" for entry in entries[:_MAX_ENTRIES])
    text = f"[directory {name}, {total} entries]\n{lines}"
    if total > _MAX_ENTRIES:
        text += f"[{total - _MAX_ENTRIES} more entries]\n"
    last = min(total, _MAX_ENTRIES)
    return FileRead(name, "directory", text, lines, 1, last, total, total > last, "", 0, None, 1)


def _read_lines(
    descriptor: int, name: str, state: os.stat_result, start_line: int, end_line: int | None, max_bytes: int
) -> FileRead:
    if start_line < 1 or (end_line is not None and end_line < start_line):
        raise ToolProblem(f"Lines {start_line} to {end_line} do not exist: lines count from 1, and the end follows.")
    source = _Source(descriptor)
    if is_binary(source.start):
        for _ in source.pieces():
            pass
        text = f"[{name} is a binary file of {source.size} bytes; it is not shown]\n"
        window, kind = _Window("", 0, 0, False), "binary"
    else:
        window, kind = _window(source.characters(state.st_size), start_line, end_line, max_bytes), "text"
        if start_line > max(window.total, 1):
            raise ToolProblem(f"{name} has only {window.total} lines; line {start_line} does not exist.")
        text = _numbered(name, window, start_line, end_line)
    data = b"".join(source.kept) if source.size <= KEPT_BYTES else None
    return FileRead(
        path=name,
        kind=kind,
        text=text,
        lines=window.text,
        first_line=start_line,
        last_line=window.last,
        total_lines=window.total,
        truncated=window.cut,
        digest=source.digest.hexdigest(),
        size=source.size,
        data=data,
        hard_links=state.st_nlink,
    )


class _Source:
    """One pass over an open file: what is decoded from it is what its digest and size are of."""

    def __init__(self, descriptor: int) -> None:
        self.start = os.pread(descriptor, 8_192, 0)
        self.digest = hashlib.blake2b(digest_size=32)
        self.size = 0
        self.kept: list[bytes] = []
        self._descriptor = descriptor

    def pieces(self) -> Iterator[bytes]:
        """The content in pieces of bounded size."""
        while piece := os.pread(self._descriptor, _CHUNK, self.size):
            self.digest.update(piece)
            self.size += len(piece)
            if self.size <= KEPT_BYTES:
                self.kept.append(piece)
            else:
                self.kept.clear()
            yield piece

    def characters(self, size: int) -> Iterator[str]:
        """The content as text. A file too large to be decoded at once is UTF-8, unless marked otherwise."""
        if size <= _DECODED_WHOLE:
            data = b"".join(self.pieces())
            decoded = decode(data)
            yield data.decode("latin-1") if decoded is None else decoded.text
            return
        bom, codec = bom_of(self.start)
        decoder = codecs.getincrementaldecoder(codec or "utf-8")("replace")
        skip = len(bom)
        for piece in self.pieces():
            yield decoder.decode(piece[skip:])
            skip = 0
        yield decoder.decode(b"", final=True)


@dataclass(frozen=True)
class _Window:
    text: str
    last: int
    total: int
    cut: bool


def _window(characters: Iterator[str], start: int, end: int | None, max_bytes: int) -> _Window:
    """Lines `start` to `end`, at most `max_bytes` in UTF-8; whole lines if the first one fits."""
    taken: list[str] = []
    room = max_bytes
    line = 1  # the line that the next character is in
    cut = False
    final = "\n"
    for piece in _normalised(characters):
        if not piece:
            continue
        final = piece[-1]
        newlines = piece.count("\n")
        if room > 0 and line + newlines >= start and (end is None or line <= end):
            first = _after_newlines(piece, max(start - line, 0))
            last = len(piece) if end is None else _after_newlines(piece, end - line + 1)
            wanted = piece[first:last].encode()
            cut = len(wanted) > room
            taken.append(wanted[:room].decode("utf-8", "ignore"))
            room = 0 if cut else room - len(wanted)
        elif room == 0 and (end is None or line <= end):
            cut = True
        line += newlines
    total = line if final != "\n" else line - 1
    text = "".join(taken)
    if cut and "\n" in text:
        text = text[: text.rindex("\n") + 1]
    shown_lines = text.count("\n") + (0 if not text or text.endswith("\n") else 1)
    return _Window(text, start + shown_lines - 1, total, cut)


def _normalised(characters: Iterator[str]) -> Iterator[str]:
    held = ""
    for piece in characters:
        piece = held + piece
        # CR may belong to an ending that goes on in the next piece; a file of CRs only must not pile up.
        kept = piece.rstrip("\r")
        held = piece[len(kept) :] if len(piece) - len(kept) < 1_000 else ""
        yield shown(piece[: len(piece) - len(held)])
    yield shown(held)


def _after_newlines(text: str, count: int) -> int:
    """The position after the `count`-th LF of `text`; its length if it has fewer."""
    position = 0
    for _ in range(count):
        position = text.find("\n", position) + 1
        if position == 0:
            return len(text)
    return position


def _numbered(name: str, window: _Window, start: int, end: int | None) -> str:
    if not window.total:
        return f"[{name} is empty]\n"
    width = len(str(window.last))
    lines = window.text.removesuffix("\n").split("\n")
    text = "".join(f"{start + index:>{width}}\t{line}\n" for index, line in enumerate(lines))
    if window.cut and window.last == start and not window.text.endswith("\n"):
        return f"{text}[line {start} is longer than can be shown; it is cut. {name} has {window.total} lines]\n"
    if window.last < window.total:
        return f"{text}[lines {start} to {window.last} of {window.total}]\n"
    return text
