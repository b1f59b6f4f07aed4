"""Paths that cannot leave one worktree: resolving them, and opening what they name.

Every open walks down from the root one directory at a time without following links, after the links that lead
within the root were resolved: a link put in place between check and open makes the open fail, not escape.
"""

from __future__ import annotations

import contextlib
import os
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from musecode_jupyter.runtime.errors import ToolProblem

# What Linux takes; macOS takes a quarter of it and says so itself.
MAX_PATH_BYTES = 4_095
MAX_NAME_BYTES = 255


def resolve_inside(root: Path, path: str) -> Path:
    """Where `path` (relative to `root`, or absolute within it) leads, links resolved; it need not exist.

    Raises
    ------
    ToolProblem
        It leads out of `root`, into `.git`, or cannot be a path.
    """
    return real_root(root).joinpath(*components(root, path, follow_last=True))


def real_root(root: Path) -> Path:
    """The root with links resolved: what lies below it is compared with this."""
    return Path(os.path.realpath(root))


def components(root: Path, path: str, *, follow_last: bool) -> tuple[str, ...]:
    """The components of `path` below the real root; a link in the last one is followed only with
    `follow_last`.

    Raises ToolProblem as `resolve_inside` does.
    """
    if not path:
        raise ToolProblem("The path is empty. Send a path relative to the root of the repository.")
    if "\0" in path:
        raise ToolProblem("The path holds a NUL character, which no path can.")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise ToolProblem("The path holds a lone surrogate, which is not a character. Send the path as text.") from None
    base = real_root(root)
    joined = os.path.join(root, path)
    encoded = os.fsencode(joined)
    # Reached a directory at a time, a longer path could be made, and then be named by nobody any more.
    if len(encoded) > MAX_PATH_BYTES or max(map(len, encoded.split(b"/"))) > MAX_NAME_BYTES:
        raise ToolProblem(f"The path is too long: {path[:40]}... Use a shorter one.")
    if follow_last:
        real = _real(joined, path)
    else:
        head, last = os.path.split(joined.rstrip("/"))
        if last in ("", ".", ".."):
            raise ToolProblem(f"{path} is a directory, not a file.")
        real = _real(head, path) / last
    if not real.is_relative_to(base):
        raise ToolProblem(f"{path} leads out of the worktree. Only files below {base} can be used.")
    parts = real.relative_to(base).parts
    if not parts and not follow_last:
        raise ToolProblem(f"{path} is a directory, not a file.")
    # The path as written too: `.git` may be a link to elsewhere within the root.
    written = Path(os.path.relpath(joined, root)).parts
    if any(map(is_git, (*parts, *(() if written[:1] == ("..",) else written)))):
        raise ToolProblem(f"{path} is inside .git, which belongs to git. Use a git command instead.")
    return parts


def _real(joined: str, path: str) -> Path:
    try:
        return Path(os.path.realpath(joined))
    except OSError as error:  # a link was replaced by something else just as it was followed
        raise ToolProblem(f"{path} cannot be looked at: {error.strerror}. Try again.") from error


def is_git(part: str) -> bool:
    """Whether a component is `.git` on any file system that a checkout may lie on, or be copied to.

    Some compare without case, drop invisible characters, final dots and spaces or what follows a colon, or know it
    under a short name (git's own core.protectHFS and core.protectNTFS guard the same).
    """
    seen = "".join(character for character in part if unicodedata.category(character) != "Cf")
    return seen.partition(":")[0].rstrip(". ").casefold() in {".git", "git~1"}


@contextlib.contextmanager
def opened(base: Path, parts: tuple[str, ...], path: str) -> Iterator[int]:
    """A descriptor for reading the regular file or directory at `parts`; `path` names it in errors."""
    with parent_of(base, parts, path, create=False) as parent:
        if parent is None:
            raise ToolProblem(f"{path} does not exist. Search or list a directory to find the right path.")
        with open_at(parent, parts[-1] if parts else ".", path) as descriptor:
            yield descriptor


@contextlib.contextmanager
def open_at(parent: int, name: str, path: str) -> Iterator[int]:
    """A descriptor of the regular file or directory `name`; a FIFO or device is not even opened."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=parent)
        else:
            raise ToolProblem(f"{path} is {_kind(mode)}, not a file or directory.")
    except FileNotFoundError:
        raise ToolProblem(f"{path} does not exist. Search or list a directory to find the right path.") from None
    except OSError as error:
        raise ToolProblem(f"{path} cannot be opened: {error.strerror}.") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ToolProblem(f"{path} is {_kind(mode)}, not a file or directory.")
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def parent_of(base: Path, parts: tuple[str, ...], path: str, *, create: bool) -> Iterator[int | None]:
    """A descriptor of the directory that holds the last of `parts`; None if it does not exist."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        current = os.open(base, flags)
    except OSError as error:
        raise ToolProblem(f"The worktree {base} cannot be opened: {error.strerror}.") from error
    try:
        for part in parts[:-1]:
            try:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=current)
                below = os.open(part, flags, dir_fd=current)
            except FileNotFoundError:
                yield None
                return
            except OSError as error:
                raise ToolProblem(f"{path} cannot be reached: {part}: {error.strerror}.") from error
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a directory" if stat.S_ISDIR(mode) else "a device"


def target_of(parent: int, name: str, path: str) -> os.stat_result | None:
    """The state of a regular file that is to be changed; None if nothing has this name."""
    try:
        state = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ToolProblem(f"{path} cannot be looked at: {error.strerror}.") from error
    if stat.S_ISLNK(state.st_mode):
        raise ToolProblem(f"{path} is a symbolic link. Edit the file that it leads to, under its own path.")
    if not stat.S_ISREG(state.st_mode):
        raise ToolProblem(f"{path} is {_kind(state.st_mode)}, not a file.")
    return state
