"""Runs git, and is the only place that does: scrubbed environment, structured answers, one error type.

What the repository's files say for certain is read from them (`workspace/reads.py`); whatever changes something, and
whatever they leave open, is a git command.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.command import Command
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import GitError, NoCheckout, NoRepository
from musecode_jupyter.workspace.objects import Unsure
from musecode_jupyter.workspace.reads import BAD_REF, Reader, linked_checkout, reader_of

P = ParamSpec("P")
T = TypeVar("T")

MINIMUM_VERSION = (2, 38)
"""The first git with `merge-tree --write-tree`; `worktree list -z` needs 2.36."""

# What filters such as git-lfs or nbstripout need to start, and where the user keeps configuration. No key of
# the user's and no GIT_DIR, GIT_INDEX_FILE or GIT_WORK_TREE gets through: each would redirect or leak.
_KEPT_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "TMPDIR",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CEILING_DIRECTORIES",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
)

_SET_VARIABLES = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
}

_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "core.safecrlf=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "commit.gpgsign=false",
    "credential.helper=",
    "i18n.commitEncoding=UTF-8",
    "submodule.recurse=false",
    "log.showSignature=false",
    "merge.verifySignatures=false",
    "rerere.enabled=false",
)

_DIFF_BLOB_LIMIT = "16m"  # larger files show as binary in a diff, so that a diff stays bounded in memory


@dataclass(frozen=True)
class GitResult:
    """What a git command answered: exit status, raw standard output, decoded standard error."""

    code: int
    out: bytes
    err: str

    def line(self) -> str:
        """The output as one path or name: without its one final newline, surrogateescape for odd bytes."""
        return os.fsdecode(self.out.removesuffix(b"\n"))

    def names(self) -> list[str]:
        """The output of a `-z` command as names."""
        return [os.fsdecode(part) for part in self.out.split(b"\0") if part]


class IndexLocked(GitError):
    """The index of a checkout was locked all the while, so the command did nothing."""


@dataclass(frozen=True)
class Head:
    """Where HEAD is. `branch` is the short branch name, None when HEAD is detached."""

    commit: str
    branch: str | None

    @property
    def ref(self) -> str | None:
        """The full name of the branch, `refs/heads/...`."""
        return None if self.branch is None else f"refs/heads/{self.branch}"


@dataclass(frozen=True)
class Change:
    """One path that differs from HEAD (`staged`), from the index (`unstaged`) or is in neither (`untracked`).

    An untracked nested repository has a `path` that ends in a slash. `ignored` only when asked for.
    """

    path: str
    staged: bool = False
    unstaged: bool = False
    untracked: bool = False
    unmerged: bool = False
    submodule: bool = False
    ignored: bool = False


@dataclass(frozen=True)
class Git:
    """A repository seen from one checkout. Make it with `discover` or `at_worktree`.

    Every command runs with the git directory and the work tree pinned, so a lost `.git` file can never make
    git answer for an outer repository.

    Attributes
    ----------
    root
        Top level of this checkout.
    git_dir
        Its own git directory (`.git`, or `.git/worktrees/<id>` of a linked worktree).
    common_dir
        The git directory that all worktrees of the repository share.
    effects
        What runs git and touches files.
    """

    root: Path
    git_dir: Path
    common_dir: Path
    effects: Effects = field(repr=False, compare=False)

    def plain(self) -> dict[str, str]:
        """Where it is, as data."""
        return {"root": str(self.root), "git_dir": str(self.git_dir), "common_dir": str(self.common_dir)}

    @staticmethod
    def revived(model: Git | Effects, data: Mapping[str, str]) -> Git:
        """The checkout that such data tells of, reached as `model` is."""
        effects = model.effects if isinstance(model, Git) else model
        return Git(Path(data["root"]), Path(data["git_dir"]), Path(data["common_dir"]), effects)

    @classmethod
    @answered
    async def discover(cls, path: Path, effects: Effects) -> Git:
        """The innermost repository that holds `path` (a folder or a file).

        Raises
        ------
        GitError
            Git is missing or too old, `path` does not exist, is in no repository, or in a bare one.
        """
        start = path if await effects.disk(path.is_dir) else path.parent
        if not await effects.disk(start.is_dir):
            raise NoCheckout(f"{path} does not exist; choose a folder inside a git repository.")
        await _check_version(start, effects)
        where = ("--absolute-git-dir", "--git-common-dir", "--show-toplevel")
        args = ("rev-parse", "--is-bare-repository", "--is-inside-work-tree")
        answer = await _execute(effects, (*args, *where), cwd=start, env={})
        lines = os.fsdecode(answer.out).split("\n")
        if answer.code == 0 and lines[:2] == ["false", "true"] and len(lines) == 6:
            return cls(Path(lines[4]), Path(lines[2]), await effects.disk((start / lines[3]).resolve), effects)
        # Something is wrong, or a path has a newline in it: one by one.
        kind = await _execute(effects, args, cwd=start, env={})
        if kind.code != 0:
            raise _no_repository(start, kind)
        bare, inside = kind.out.split()
        if bare == b"true":
            raise NoCheckout(f"{start} is a bare repository; clone it and work in the clone.")
        if inside != b"true":
            raise NoCheckout(f"{start} is inside a .git folder; choose the folder of the checkout.")
        top, git_dir, common = await asyncio.gather(
            _execute(effects, ("rev-parse", "--show-toplevel"), cwd=start, env={}),
            _execute(effects, ("rev-parse", "--absolute-git-dir"), cwd=start, env={}),
            _execute(effects, ("rev-parse", "--git-common-dir"), cwd=start, env={}),
        )
        for answer in (top, git_dir, common):
            if answer.code != 0:
                raise _no_repository(start, answer)
        common_dir = await effects.disk((start / common.line()).resolve)
        return cls(Path(top.line()), Path(git_dir.line()), common_dir, effects)

    @classmethod
    @answered
    async def at_worktree(cls, path: Path, effects: Effects) -> Git:
        """The checkout whose top level is exactly `path`.

        Raises
        ------
        GitError
            `path` has lost its `.git` (git would answer for an outer repository), or was copied or moved.
        """
        try:
            root, git_dir, common_dir = await effects.disk(linked_checkout, path)
        except Unsure:
            pass
        else:
            await _check_version(path, effects)
            return cls(root, git_dir, common_dir, effects)
        if not await effects.disk(os.path.lexists, path):
            raise GitError(f"The folder {path} is gone; put it back if it was moved.")
        fix = f"run `git worktree repair {path}` in the main checkout, or remove the folder"
        if not await effects.disk(os.path.lexists, path / ".git"):
            raise GitError(f"{path} has no .git entry, so it is not a checkout any more; {fix}.")
        git = await cls.discover(path, effects)
        if git.root != await effects.disk(path.resolve):
            raise GitError(f"git takes {path} for a part of {git.root}: its .git entry is broken; {fix}.")
        if git.git_dir != git.common_dir:
            backlink = os.fsdecode((await effects.disk((git.git_dir / "gitdir").read_bytes)).rstrip(b"\n"))
            # Newer versions of git may write it relative to the administrative folder.
            if await effects.disk((git.git_dir / backlink).parent.resolve) != git.root:
                raise GitError(f"{path} is a copy or was moved: its repository knows it as {backlink}; {fix}.")
        return git

    @answered
    async def run(
        self,
        *args: str,
        input: bytes | None = None,
        cwd: Path | None = None,
        check: bool = True,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> GitResult:
        """Run `git *args` in this checkout.

        Parameters
        ----------
        input
            Bytes for standard input; without them it is empty.
        cwd
            Folder to run in; the root by default.
        check
            Raise on a non-zero exit status.
        timeout
            Seconds after which the process group is ended and GitError raised.
        env
            Variables on top of the scrubbed environment (identities, dates, an index file).
        pass_fds
            Descriptors the command keeps open: a lock so held outlives a kill of this process while git runs.

        Raises
        ------
        GitError
            Git cannot be started, took too long, or (with `check`) failed.
        """
        pinned = {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(self.root), **(env or {})}
        result = await _execute(
            self.effects, args, cwd=cwd or self.root, env=pinned, input=input, timeout=timeout, pass_fds=pass_fds
        )
        if check and result.code != 0:
            raise await self.failure(args, result)
        return result

    @answered
    async def run_index(
        self,
        *args: str,
        input: bytes | None = None,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        patience: float = 3.0,
    ) -> GitResult:
        """Like `run`, for a command that takes the index lock first; waits `patience` seconds for it."""
        deadline = self.effects.monotonic() + patience
        while True:
            result = await self.run(*args, input=input, check=False, timeout=timeout, env=env, pass_fds=pass_fds)
            if result.code == 0:
                return result
            # The lock may be gone by now: then git's own words tell that it was the reason.
            locked = await self.effects.disk(self.index_lock.exists) or "index.lock" in result.err
            if not locked:
                raise await self.failure(args, result)
            if self.effects.monotonic() > deadline:
                error = await self.failure(args, result)
                raise IndexLocked(str(error), args_run=error.args_run, code=error.code, stderr=error.stderr)
            await self.effects.sleep(0.05)

    @property
    def index_lock(self) -> Path:
        """The file that git holds while it rewrites this checkout's index."""
        return self.git_dir / "index.lock"

    @answered
    async def failure(self, args: Sequence[str], result: GitResult) -> GitError:
        """The error for a command that failed: git's own reason, and what to do where that is known."""
        text = f"git {args[0]} failed in {self.root}: {_reason(result.err) or f'exit status {result.code}'}"
        try:
            written = (await self.effects.disk(self.index_lock.stat)).st_mtime
        except OSError:
            pass
        else:
            age = max(0.0, self.effects.now().timestamp() - written)
            text = (
                f"{self.index_lock} exists (written {age:.0f} s ago): another git process is at work on "
                f"{self.root}, or one was killed. Wait for it; if no git is running there, delete that file "
                "and try again."
            )
        return GitError(text, args_run=tuple(args), code=result.code, stderr=result.err)

    @answered
    async def head(self) -> Head:
        """Commit and branch of HEAD.

        Raises
        ------
        GitError
            HEAD is unborn: there is no commit yet.
        """
        try:
            found, ref = await self._read(Reader.head)
        except Unsure:
            pass
        else:
            return Head(found, None if ref is None else ref.removeprefix("refs/heads/"))
        commit = await self.run("rev-parse", "-q", "--verify", "HEAD^{commit}", check=False)
        if commit.code != 0:
            raise NoRepository(
                f"{self.root} has no commit yet, so no worktree can be made of it: make a first commit "
                "(`git add --all`, `git commit`), then start again.",
                code=commit.code,
            )
        symbolic = await self.run("symbolic-ref", "-q", "HEAD", check=False)
        branch = symbolic.line().removeprefix("refs/heads/") if symbolic.code == 0 else None
        return Head(commit.line(), branch)

    @answered
    async def resolve(self, name: str) -> str:
        """The full id of the commit that `name` stands for; GitError if there is none."""
        try:
            return await self._read(Reader.resolve, name)
        except Unsure:
            return await self._verify(name, "commit")

    @answered
    async def tree_of(self, commit: str) -> str:
        """The id of the tree of `commit`."""
        try:
            return (await self._read(Reader.commit, commit)).tree
        except Unsure:
            return await self._verify(commit, "tree")

    @answered
    async def parents(self, commit: str) -> tuple[str, ...]:
        """The full ids of the parents of `commit`, first parent first."""
        return (await self._facts(commit))[1]

    @answered
    async def committed(self, commit: str) -> int:
        """When `commit` was committed, in seconds since 1970 (UTC)."""
        return (await self._facts(commit))[0]

    async def _facts(self, commit: str) -> tuple[int, tuple[str, ...]]:
        try:
            found = await self._read(Reader.commit, commit)
        except Unsure:
            args = ("rev-list", "--max-count=1", "--timestamp", "--parents", "--end-of-options", commit, "--")
            stamp, _, *parents = (await self.run(*args)).line().split()
            return int(stamp), tuple(parents)
        return found.time, found.parents

    async def _read(self, work: Callable[Concatenate[Reader, Path, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the files of this repository say, off the loop; Unsure where git is to be asked."""
        return await self.effects.disk(work, reader_of(self.common_dir), self.git_dir, *args, **kwargs)

    async def _verify(self, name: str, kind: str) -> str:
        args = ("rev-parse", "-q", "--verify", "--end-of-options", f"{name}^{{{kind}}}")
        result = await self.run(*args, check=False)
        if result.code != 0:
            raise GitError(
                f"{self.root} has no {kind} called {name!r}; check the name.",
                args_run=args,
                code=result.code,
                stderr=result.err,
            )
        return result.line()

    @answered
    async def ref(self, name: str) -> str | None:
        """The commit that the full ref `name` points to, None if there is no such ref."""
        try:
            return await self._read(Reader.ref, name)
        except Unsure:
            pass
        result = await self.run("rev-parse", "-q", "--verify", "--end-of-options", f"{name}^{{commit}}", check=False)
        return result.line() if result.code == 0 else None

    @answered
    async def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether `older` is `newer` or reachable from it."""
        try:
            return await self._read(Reader.is_ancestor, older, newer)
        except Unsure:
            pass
        args = ("merge-base", "--is-ancestor", older, newer)
        result = await self.run(*args, check=False)
        if result.code not in (0, 1):
            raise await self.failure(args, result)
        return result.code == 0

    @answered
    async def check_ref_name(self, ref: str) -> None:
        """Raise GitError unless `ref` is a well-formed full ref name."""
        if BAD_REF.search(ref) or not ref.startswith("refs/") or "/-" in ref:
            raise GitError(f"{ref!r} is not a ref name that git accepts; choose another name.")

    @answered
    async def changes(self, *, untracked: bool = True, ignored: bool = False) -> list[Change]:
        """What differs from HEAD in index and files, each path once; a rename is two paths."""
        return (await self.head_and_changes(untracked=untracked, ignored=ignored))[1]

    @answered
    async def head_and_changes(
        self, *, untracked: bool = True, ignored: bool = False
    ) -> tuple[str | None, list[Change]]:
        """The commit of HEAD (None: unborn), and `changes`, with one process."""
        result = await self.run(
            "status",
            "--porcelain=v2",
            "--branch",
            "--no-ahead-behind",
            "-z",
            "--no-renames",
            "--ignore-submodules=none",
            f"--untracked-files={'all' if untracked else 'no'}",
            f"--ignored={'matching' if ignored else 'no'}",
            timeout=300.0,
        )
        records = result.names()
        oid = next((r.removeprefix("# branch.oid ") for r in records if r.startswith("# branch.oid ")), "(initial)")
        # A name that begins with "#" stands after the two characters of its kind.
        changes = [_change(record) for record in records if not record.startswith("# ")]
        return (None if oid == "(initial)" else oid), changes

    @answered
    async def status(self) -> list[str]:
        """The paths that are staged, changed or untracked, sorted, relative to the root."""
        return sorted({change.path for change in await self.changes()})

    @answered
    async def list_files(self, cwd: Path | None = None) -> list[str]:
        """Files that are tracked or could be (not ignored), below `cwd` (default: the root), relative to it.

        Submodules and nested repositories are left out; a tracked file deleted on disk is still listed.
        """
        tracked, others = await asyncio.gather(
            self.run("ls-files", "-s", "-z", cwd=cwd),
            self.run("ls-files", "-o", "--exclude-standard", "-z", cwd=cwd, timeout=300.0),
        )
        names = {record.partition("\t")[2] for record in tracked.names() if not record.startswith("160000 ")}
        names.update(name for name in others.names() if not name.endswith("/"))
        return sorted(names)

    @answered
    async def diff_text(self, a: str, b: str, paths: Sequence[str] | None = None) -> str:
        """Unified diff from `a` to `b` (commits or trees), to be read: bytes that are not UTF-8 are replaced.

        Renames are shown as such; no colour, external diff or textconv; a file over 16 MiB shows as binary.
        """
        result = await self.run(
            "-c",
            f"core.bigFileThreshold={_DIFF_BLOB_LIMIT}",
            "diff-tree",
            "-r",
            "-p",
            "-M",
            "--full-index",
            "--no-color",
            "--no-ext-diff",
            "--no-textconv",
            "--src-prefix=a/",
            "--dst-prefix=b/",
            "--end-of-options",
            a,
            b,
            "--",
            *(paths or ()),
        )
        return result.out.decode("utf-8", "replace")

    @answered
    async def diff_paths(self, a: str, b: str) -> list[str]:
        """Every path that differs between `a` and `b` (commits or trees), both sides of a rename, sorted."""
        result = await self.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--end-of-options", a, b)
        return sorted(result.names())


@answered
async def init_outside(git_dir: Path, folder: Path, branch: str, effects: Effects) -> None:
    """Make an empty repository at `git_dir` whose checkout is `folder`, which stays as it is; fine if it exists."""
    await effects.disk(git_dir.parent.mkdir, parents=True, exist_ok=True)
    # No template: hooks and settings of the user's are not for this one.
    args = ("init", "--quiet", f"--initial-branch={branch}", "--template=")
    env = {"GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(folder)}
    answer = await _execute(effects, args, cwd=folder, env=env)
    if answer.code != 0:
        raise GitError(f"git init failed in {git_dir}: {_reason(answer.err)}", args_run=args, code=answer.code)


def _change(record: str) -> Change:
    """Read one record of `status --porcelain=v2 -z --no-renames`."""
    kind = record[0]
    if kind in "?!":
        return Change(record[2:], untracked=kind == "?", ignored=kind == "!")
    fields = record.split(" ", 10 if kind == "u" else 8)
    return Change(
        fields[-1],
        staged=fields[1][0] != ".",
        unstaged=fields[1][1] != ".",
        unmerged=kind == "u",
        submodule=fields[2].startswith("S"),
    )


def _reason(stderr: str) -> str:
    """The line of git's standard error that says why."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for prefix in ("fatal: ", "error: "):
        for line in lines:
            if line.startswith(prefix):
                return line.removeprefix(prefix)
    return lines[0] if lines else ""


def _no_repository(start: Path, answer: GitResult) -> NoCheckout:
    told: dict[str, Any] = {"args_run": ("rev-parse",), "code": answer.code, "stderr": answer.err}
    if "not a git repository" in answer.err:
        text = f"{start} is not in a git repository; choose another folder, or run `git init` there and make a "
        return NoRepository(f"{text}first commit.", **told)
    if "dubious ownership" in answer.err:
        return NoCheckout(
            f"git refuses {start} because another user owns it; if you trust it, run "
            f"`git config --global --add safe.directory {start}`.",
            **told,
        )
    return NoCheckout(f"git cannot read the repository at {start}: {_reason(answer.err)}", **told)


# The answers of `git version` that were new enough, by the PATH that git was found on.
_known_versions: set[str] = set()


async def _check_version(cwd: Path, effects: Effects) -> None:
    path = effects.environ().get("PATH", "")
    if path in _known_versions:
        return
    answer = await _execute(effects, ("version",), cwd=cwd, env={})
    found = re.search(rb"(\d+)\.(\d+)", answer.out)
    if found is None or (int(found[1]), int(found[2])) < MINIMUM_VERSION:
        raise GitError(
            f"git {'.'.join(map(str, MINIMUM_VERSION))} or later is needed and this is "
            f"{answer.line() or 'unknown'}; install a newer one (for example `conda install git`)."
        )
    _known_versions.add(path)


async def _execute(
    effects: Effects,
    args: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    input: bytes | None = None,
    timeout: float = 60.0,
    pass_fds: Sequence[int] = (),
) -> GitResult:
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    environ = effects.environ()
    environment = {name: environ[name] for name in _KEPT_VARIABLES if name in environ}
    environment |= _SET_VARIABLES | dict(env)
    argv = ("git", "--no-pager", *settings, *args)
    try:
        answer = await effects.ask(Command(argv, cwd, environment, input, timeout, tuple(pass_fds)))
    except TimeoutError:
        raise GitError(
            f"git {args[0]} took longer than {timeout:g} s in {cwd} and was ended; try again when the disk "
            "is less busy.",
            args_run=tuple(args),
        ) from None
    except OSError as error:
        if not await effects.disk(cwd.is_dir):
            raise GitError(f"The folder {cwd} is gone; restore it or choose another.", args_run=tuple(args)) from error
        if isinstance(error, FileNotFoundError):
            raise GitError("git is not installed or not on PATH; install it, then start again.") from error
        raise GitError(f"git cannot be started: {error}", args_run=tuple(args)) from error
    return GitResult(answer.code, answer.out, answer.err)
