"""Keeps a repository's rules across sessions: one file in the user's own data folder, never in the repository."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from musecode_jupyter.runtime.errors import UsageProblem

MAX_FILE_BYTES = 1_000_000
Form = Literal["exact", "prefix", "tool", "landing", "role", "tier", "label"]


class Rule(BaseModel):
    """What may be done without a question.

    `form` says what `text` is: a whole command line, the first words of a command, a tool's name, a branch, a role
    that the repository brings, a data tier that it is opted in to, or a path with the label in `words`. `programs` are
    what the shell and each command's name led to when the rule was made, and of a role or a tier the digest of the file
    that it is bound to; `place` is where the rule holds: in agents' own worktrees, or in the user's checkout.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    form: Form
    text: str
    words: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    place: Literal["worktree", "checkout"] = "worktree"

    @property
    def name(self) -> str:
        """The rule in words, as questions and decisions name it."""
        return {
            "exact": f"run: {self.text}",
            "prefix": f"run: {self.text} ...",
            "tool": self.text,
            "landing": f"land on {self.text}",
            "role": f"role {self.text}",
            "tier": f"opted in to the {self.text} tier",
            "label": f"label {self.text} {' '.join(self.words)}",
        }[self.form]


class StoredRule(BaseModel):
    """A rule of a repository, and when it was added (ISO 8601, UTC)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Rule
    since: str


class _Content(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    repository: str
    rules: tuple[StoredRule, ...] = ()


class RuleFile:
    """The rules of one repository, known by the folder that all its worktrees share: path, device and inode.

    Methods block. A repository that was put in the place of another one has no rules.
    """

    def __init__(self, home: Path, repository: Path) -> None:
        real = os.path.realpath(repository)
        state = os.stat(real)
        key = blake2b(f"{real}\0{state.st_dev}\0{state.st_ino}".encode(errors="surrogateescape"), digest_size=16)
        self.repository = real
        self.path = home / "rules" / f"{key.hexdigest()}.json"

    def read(self) -> tuple[tuple[StoredRule, ...], str]:
        """The rules, and one line that says why there are none if the file cannot be used."""
        try:
            return self._content().rules, ""
        except FileNotFoundError:
            return (), ""
        except (OSError, ValueError) as error:
            why = "its content is damaged" if isinstance(error, ValueError) else error.strerror or str(error)
            return (), f"The workspace rules in {self.path} are not used: {why}. Mend or remove the file."

    def change(self, alter: Callable[[tuple[StoredRule, ...]], tuple[StoredRule, ...]]) -> None:
        """Replace the rules by what `alter` makes of them, one writer at a time; a damaged file is kept beside.

        Raises
        ------
        UsageProblem
            The file cannot be written; the rules are as before.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._alone():
                rules, problem = self.read()
                if problem:
                    os.replace(self.path, self.path.with_suffix(f".damaged-{secrets.token_hex(4)}"))
                self._write(_Content(repository=self.repository, rules=alter(rules)))
        except OSError as error:
            raise UsageProblem(f"Workspace rules cannot be written to {self.path}: {error.strerror}.") from error

    def _content(self) -> _Content:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            # No name at all means that a writer has put a new file in its place meanwhile.
            if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
                raise OSError(0, "it is not a plain file of its own")
            # Only the user may have written it: what git checks out is readable by the group or by all.
            if state.st_uid != os.geteuid() or state.st_mode & 0o077:
                raise OSError(0, "others can read or write it; its mode must be 0600, and its owner you")
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise OSError(0, "it is too large")
        try:
            content = _Content.model_validate(json.loads(data))
        except (ValidationError, RecursionError) as error:
            raise ValueError("not the form of a rules file") from error
        if content.repository != self.repository:
            raise ValueError("the rules of another repository")
        return content

    def _write(self, content: _Content) -> None:
        temporary = self.path.with_suffix(f".{secrets.token_hex(8)}.tmp")
        data = json.dumps(content.model_dump(mode="json"), indent=1).encode("ascii") + b"\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o600)
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.replace(temporary, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path.with_suffix(".lock"), flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
