"""Answers from a repository's files, without a git process, what they say for certain: refs, commits, worktrees.

A git process takes some milliseconds, and a worktree's life asks for dozens of such facts. Only the plain case is
answered: a repository of format version 0 (SHA-1 ids, refs as files), nothing grafted, replaced, shallow or borrowed
from another repository, names that are full ids, refs or plain branch and tag names. All else raises `Unsure`, and
`workspace/git.py` asks git. Nothing is written, and no answer about a ref is remembered.
"""

from __future__ import annotations

import heapq
import os
import re
import stat
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from musecode_jupyter.workspace.objects import FULL_ID, Commit, Objects, Unsure

P = ParamSpec("P")
T = TypeVar("T")

# The rules of git-check-ref-format(1).
BAD_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|(^|/)\.|\.lock(/|$)|[./]$")

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")
_REF_VALUE = re.compile(rb"([0-9a-f]{40})\s*")
_SYMBOLIC = re.compile(rb"ref:[ \t]*(refs/[^\n]*?)\s*")
_FORMAT = re.compile(r"(?m)^[ \t]*repositoryformatversion[ \t]*=[ \t]*0[ \t]*$")
_NOT_BARE = re.compile(r"(?m)^[ \t]*bare[ \t]*=[ \t]*false[ \t]*$")
# Refs that each worktree has of its own.
_PRIVATE = ("refs/bisect/", "refs/worktree/", "refs/rewritten/")
# Where git looks for a name, in this order (gitrevisions(7)).
_RULES = ("refs/{}", "refs/tags/{}", "refs/heads/{}", "refs/remotes/{}", "refs/remotes/{}/HEAD")

# Commits read anew, and commits looked at; a longer walk takes git, which has indexes for it, less time.
_MOST_READ = 200
_MOST_STEPS = 1500
_READERS = 16


def _certain(work: Callable[Concatenate[Reader, P], T]) -> Callable[Concatenate[Reader, P], T]:
    """One at a time; files that are gone, unreadable or damaged make it Unsure."""

    @wraps(work)
    def asked(self: Reader, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.lock, _doubts():
            return work(self, *args, **kwargs)

    return asked


@contextmanager
def _doubts() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, zlib.error) as error:
        raise Unsure(str(error)) from error


class Reader:
    """What the files of one repository say. Its methods read files, so they belong off the loop; any thread may.

    Each raises Unsure where git is to be asked. `git_dir` is that of the checkout which is looked from.
    """

    def __init__(self, common_dir: Path) -> None:
        self.lock = threading.Lock()
        self._common = common_dir
        self._objects = Objects(common_dir / "objects")

    @_certain
    def head(self, git_dir: Path) -> tuple[str, str | None]:
        """The commit of HEAD, and the full name of the ref that it is on, None if it is detached."""
        self._sound()
        value, name = self._follow(git_dir, "HEAD")
        if value is None:
            raise Unsure("HEAD is unborn")
        return self._objects.peeled(value), None if name == "HEAD" else name

    @_certain
    def ref(self, git_dir: Path, name: str) -> str | None:
        """The commit that the ref with this full name leads to, None if there is no such ref."""
        self._sound()
        if not name.startswith("refs/"):
            raise Unsure(f"{name} is no full name")
        value, last = self._follow(git_dir, name)
        if value is None:
            if last != name:
                raise Unsure(f"{name} leads to {last}, which is not there")
            return None
        return self._objects.peeled(value)

    @_certain
    def resolve(self, git_dir: Path, name: str) -> str:
        """The commit that `name`, a full id, HEAD, or a plain name of a ref, stands for."""
        self._sound()
        return self._resolve(git_dir, name)

    @_certain
    def commit(self, git_dir: Path, name: str) -> Commit:
        """What the commit says that `name` stands for; its tree is there."""
        self._sound()
        found = self._objects.commit(self._resolve(git_dir, name))
        if not self._objects.has_tree(found.tree):
            raise Unsure(f"the tree {found.tree} is not here")
        return found

    @_certain
    def is_ancestor(self, git_dir: Path, older: str, newer: str) -> bool:
        """Whether the commit `older` is `newer` or reachable from it."""
        self._sound()
        return self._is_ancestor(self._resolve(git_dir, older), self._resolve(git_dir, newer))

    @_certain
    def worktrees(self) -> list[dict[str, str]]:
        """The worktrees in the order and with the fields of `git worktree list --porcelain -z`, the main one first."""
        self._sound()
        config = self._config()
        elsewhere = self._common.name != ".git" or _lines(config, "worktree") or "worktreeconfig" in config
        if elsewhere or not _says_only(config, "bare", _NOT_BARE):
            raise Unsure("the main checkout is not the folder that holds .git")
        found = []
        folder = self._common / "worktrees"
        for name in os.listdir(folder) if folder.is_dir() else []:
            file = os.fsdecode((folder / name / "gitdir").read_bytes().rstrip())
            if not file.startswith("/") or not file.endswith("/.git"):
                raise Unsure(f"{name} says in another way where it is")
            found.append(self._worktree(folder / name, file.removesuffix("/.git")))
        found.sort(key=lambda fields: os.fsencode(fields["worktree"]))
        return [self._worktree(self._common, str(self._common.parent)), *found]

    def _worktree(self, git_dir: Path, path: str) -> dict[str, str]:
        value, name = self._follow(git_dir, "HEAD")
        if value is None:
            raise Unsure(f"{path} has no commit yet")
        fields = {"worktree": path, "HEAD": value}
        fields |= {"detached": ""} if name == "HEAD" else {"branch": name}
        if git_dir != self._common and (git_dir / "locked").exists():
            fields["locked"] = os.fsdecode((git_dir / "locked").read_bytes().strip())
        return fields

    def _config(self) -> str:
        return (self._common / "config").read_text("utf-8", "surrogateescape").lower()

    def _sound(self) -> None:
        """Raise Unsure unless this is a repository that is understood here."""
        # Any other version may mean any extension: other ids, other files for refs, objects that are elsewhere.
        if not _says_only(self._config(), "repositoryformatversion", _FORMAT):
            raise Unsure("the repository has another format")
        for name in ("shallow", "info/grafts", "objects/info/alternates", "reftable"):
            if os.path.lexists(self._common / name):
                raise Unsure(f"the repository has {name}")
        if b" refs/replace/" in self._packed_refs() or _holds_files(self._common / "refs" / "replace"):
            raise Unsure("objects are replaced")

    def _packed_refs(self) -> bytes:
        try:
            return (self._common / "packed-refs").read_bytes()
        except FileNotFoundError:
            return b""

    def _follow(self, git_dir: Path, name: str) -> tuple[str | None, str]:
        """The id that a ref leads to, None if it is not there, and the last name on the way."""
        for _ in range(5):
            if BAD_REF.search(name) or name.startswith(_PRIVATE):
                raise Unsure(f"{name} is read by git")
            place = (git_dir if name == "HEAD" else self._common) / name
            try:
                mode = os.lstat(place).st_mode
                if stat.S_ISREG(mode):
                    content = place.read_bytes()
                elif stat.S_ISDIR(mode):
                    raise FileNotFoundError
                else:
                    raise Unsure(f"{place} is no file")
            except (FileNotFoundError, NotADirectoryError):
                # In this order: git writes the packed refs before it takes the file away.
                return self._packed(name), name
            value = _REF_VALUE.fullmatch(content)
            if value is not None:
                return value[1].decode(), name
            link = _SYMBOLIC.fullmatch(content)
            if link is None:
                raise Unsure(f"{place} holds neither an id nor a name")
            name = os.fsdecode(link[1])
        raise Unsure(f"{name} is too far away")

    def _packed(self, name: str) -> str | None:
        packed = b"\n" + self._packed_refs()
        end = packed.find(b" %s\n" % os.fsencode(name))
        if end < 0:
            return None
        line = packed[end - 41 : end]
        if not line.startswith(b"\n") or not FULL_ID.fullmatch(line[1:].decode("ascii", "replace")):
            raise Unsure(f"{name} is packed in another way")
        return line[1:].decode()

    def _resolve(self, git_dir: Path, name: str) -> str:
        if FULL_ID.fullmatch(name):
            return self._objects.peeled(name)
        if name == "HEAD" or name.startswith("refs/"):
            names = [name]
        elif not _PLAIN_NAME.fullmatch(name) or any(os.path.lexists(place / name) for place in (git_dir, self._common)):
            # The second: what lies in the git directory itself comes first.
            raise Unsure(f"{name} is for git to understand")
        else:
            names = [rule.format(name) for rule in _RULES]
        for each in names:
            value, last = self._follow(git_dir, each)
            if value is not None:
                return self._objects.peeled(value)
            if last != each:
                break
        raise Unsure(f"{name} is not there")

    def _is_ancestor(self, older: str, newer: str) -> bool:
        """Walk from both, newest first, until all that is left is reachable from both.

        What lies between the two is never reachable from `older`, so that wrong dates cost time but no truth.
        """
        flags = {older: 1}
        flags[newer] = flags.get(newer, 0) | 2
        queue = [(-self._objects.known_commit(name).time, name) for name in flags]
        heapq.heapify(queue)
        read = steps = 0
        while flags[older] != 3 and any(flags[name] != 3 for _, name in queue):
            _, name = heapq.heappop(queue)
            steps += 1
            for parent in self._objects.known_commit(name).parents:
                if flags.get(parent, 0) | flags[name] == flags.get(parent, 0):
                    continue
                flags[parent] = flags.get(parent, 0) | flags[name]
                read += not self._objects.remembers(parent)
                if read > _MOST_READ or steps > _MOST_STEPS:
                    raise Unsure("the way is long")
                heapq.heappush(queue, (-self._objects.known_commit(parent).time, parent))
        return flags[older] == 3


def _lines(config: str, key: str) -> int:
    """How often a configuration, in lower case, sets `key` in any section; more than that at most."""
    return len(re.findall(rf"(?m)\b{key}[ \t]*(?:[=#;]|$)", config))


def _says_only(config: str, key: str, wanted: re.Pattern[str]) -> bool:
    """Whether it sets `key` once, on a line of its own to the wanted value."""
    return _lines(config, key) == 1 and wanted.search(config) is not None


def _holds_files(folder: Path) -> bool:
    return any(files for _, _, files in os.walk(folder))


_readers: OrderedDict[Path, Reader] = OrderedDict()


def reader_of(common_dir: Path) -> Reader:
    """The reader of the repository with this git directory, one for each in a process; from the loop's thread only."""
    if common_dir not in _readers:
        _readers[common_dir] = Reader(common_dir)
        if len(_readers) > _READERS:
            _readers.popitem(last=False)
    _readers.move_to_end(common_dir)
    return _readers[common_dir]


def linked_checkout(path: Path) -> tuple[Path, Path, Path]:
    """Top level, git directory and common directory of the worktree at `path`, with all that git checks; else Unsure.

    Only a linked worktree of this user's whose `.git` file and administrative folder name each other.
    """
    with _doubts():
        file = path / ".git"
        for place in (path, file):
            status = os.lstat(place)
            # git refuses what another user owns.
            if status.st_uid != os.geteuid() or stat.S_ISLNK(status.st_mode):
                raise Unsure(f"{place} is another user's or a link")
        content = os.fsdecode(file.read_bytes())
        root = path.resolve(strict=True)
        git_dir = Path(content.removeprefix("gitdir: ").removesuffix("\n"))
        if not content.startswith("gitdir: /") or git_dir.parent.name != "worktrees" or git_dir.resolve() != git_dir:
            raise Unsure(f"{file} leads elsewhere")
        if (git_dir / "commondir").read_bytes() != b"../..\n":
            raise Unsure(f"{git_dir} is arranged in another way")
        if os.fsdecode((git_dir / "gitdir").read_bytes()) != f"{root}/.git\n":
            raise Unsure(f"{git_dir} names another folder")
        common = git_dir.parent.parent
        config = (common / "config").read_text("utf-8", "surrogateescape").lower()
        head = (git_dir / "HEAD").read_bytes()
        if not _says_only(config, "repositoryformatversion", _FORMAT) or "worktreeconfig" in config:
            raise Unsure("the repository has another format")
        if os.lstat(git_dir).st_uid != os.geteuid() or not (_REF_VALUE.fullmatch(head) or _SYMBOLIC.fullmatch(head)):
            raise Unsure(f"{git_dir} is another user's or damaged")
        return root, git_dir, common
