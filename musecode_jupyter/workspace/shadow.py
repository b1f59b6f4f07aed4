"""A private repository for a folder that is in none: made outside it, only when asked, so that fan-out works."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import GitError, NoCheckout, NoRepository, UsageProblem
from musecode_jupyter.workspace.git import Git, init_outside
from musecode_jupyter.workspace.landing import BACKUP_PREFIX
from musecode_jupyter.workspace.locking import repository_lock
from musecode_jupyter.workspace.worktrees import AUTHOR, some_names

MOST_FILES = 20_000
MOST_BYTES = 500_000_000
"""More than that is a data folder or a home directory, not a project: a copy of it is not made in passing."""

BRANCH = "main"

# What is never kept, whatever the folder's own .gitignore files say: big, made again at will, or secret.
_EXCLUDED = (
    "__pycache__/",
    ".ipynb_checkpoints/",
    "node_modules/",
    ".venv/",
    "venv/",
    ".env",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    "*.pyc",
)
_SKIPPED_FOLDERS = frozenset({".git", *(name.rstrip("/") for name in _EXCLUDED if name.endswith("/"))})


@dataclass(frozen=True)
class FolderSize:
    """How many files a folder has and how many bytes they are; counting stops above the limits."""

    files: int
    size: int


def shadows_dir(home: Path) -> Path:
    """The folder below `home` that holds all shadow repositories."""
    return home / "shadow"


def shadow_path(home: Path, folder: Path) -> Path:
    """Where the shadow repository of `folder` is kept below `home`: the same for the same folder."""
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return shadows_dir(home) / f"{digest}.git"


@answered
async def find_shadow(folder: Path, home: Path, effects: Effects) -> Git | None:
    """The shadow repository of `folder`, or of the innermost folder around it that has one; None if none has."""
    folder, home = await effects.disk(folder.resolve), await effects.disk(home.resolve)
    for place in await effects.disk(_with_shadow, folder, home):
        git_dir = shadow_path(home, place)
        git = Git(place, git_dir, git_dir, effects)
        # Without a commit it was not made to the end.
        if await git.ref("HEAD") is not None:
            return git
    return None


@answered
async def open_shadow(
    folder: Path,
    home: Path,
    effects: Effects,
    *,
    make: bool = False,
    most_files: int = MOST_FILES,
    most_bytes: int = MOST_BYTES,
) -> Git:
    """The shadow repository of `folder`, whose files are its checkout; made, with a first commit, only with `make`.

    Nothing is written into the folder. Done again after a crash, it goes on.

    Raises
    ------
    NoCheckout
        There is none yet and `make` was not given.
    UsageProblem
        The folder is in a git repository with a commit already, is a home or root folder, holds the shadow's place,
        or is too large.
    GitError
        A repository inside the folder would be left out of it, or git fails.
    """
    found = await find_shadow(folder, home, effects)
    if found is not None:
        return found
    folder, home = await effects.disk(folder.resolve), await effects.disk(home.resolve)
    if not make:
        raise NoRepository(
            f"{folder} is in no git repository; run `git init` there and make a first commit, or let a private "
            "repository outside it keep its versions."
        )
    await require_suitable(folder, home, effects, most_files=most_files, most_bytes=most_bytes)
    git_dir = shadow_path(home, folder)
    await init_outside(git_dir, folder, BRANCH, effects)
    git = Git(folder, git_dir, git_dir, effects)
    await effects.disk(_write_exclude, git_dir)
    await _commit_files(git, f"{folder.name or folder} as it was found")
    return git


@answered
async def keep_files(git: Git, *, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES) -> bool:
    """Commit what has changed in the folder of the shadow repository `git`, so that work starts from it.

    Nobody else commits there: without this, the user's own changes would stand in the way of every landing. Not to be
    called while a landing is under way, whose half-updated files it would take for the user's. True if anything had
    changed.

    Raises
    ------
    UsageProblem
        The folder has become too large.
    GitError
        A repository inside the folder would be left out of it, or git fails.
    """
    await _require_size(git.root, git.effects, most_files, most_bytes)
    if not await git.changes():
        return False
    await _commit_files(git, f"{git.root.name or git.root} as it was found again")
    return True


@answered
async def half_moved(git: Git) -> bool:
    """Whether a landing, or taking one back, has moved the branch of the shadow repository `git` and not yet its files.

    Nobody stages anything there, so the index is that of the last commit, but for two moments: while files are kept,
    and while a move is under way, when it is still that of the commit which the move has kept.
    """
    index = await git.run("write-tree", check=False)
    if index.code != 0 or index.line() == await git.tree_of("HEAD"):
        return False
    kept = await git.run("for-each-ref", "--format=%(tree)", BACKUP_PREFIX)
    return index.line() in os.fsdecode(kept.out).split()


async def _commit_files(git: Git, message: str) -> None:
    async with repository_lock(git) as lock:
        inner = sorted(change.path for change in await git.changes() if change.path.endswith("/"))
        if inner:
            raise GitError(f"{some_names(inner)} in {git.root} is a repository of its own; work in it instead.")
        await git.run_index("add", "-A", timeout=600.0, pass_fds=(lock,))
        name, _, address = AUTHOR.rstrip(">").partition(" <")
        identity = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": address}
        identity |= {"GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": address}
        args = ("commit", "--quiet", "--no-verify", "--allow-empty", "-m", message)
        await git.run_index(*args, env=identity, timeout=300.0, pass_fds=(lock,))


@answered
async def require_suitable(
    folder: Path, home: Path, effects: Effects, *, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES
) -> None:
    """Raise UsageProblem or GitError, as `open_shadow` does, if no shadow repository can be made for `folder`."""
    folder, home = await effects.disk(folder.resolve), await effects.disk(home.resolve)
    if not await effects.disk(folder.is_dir):
        raise NoCheckout(f"{folder} does not exist; choose a folder.")
    try:
        found = await Git.discover(folder, effects)
    except NoRepository:
        pass
    except NoCheckout as error:
        raise UsageProblem(str(error)) from None
    else:
        # One without a commit can neither make worktrees nor be landed on.
        if found.root != folder or await found.ref("HEAD") is not None:
            raise UsageProblem(f"{folder} is in the git repository {found.root} already; work in that one.")
    environ = effects.environ()
    if folder == Path(folder.anchor) or str(folder) == environ.get("HOME", ""):
        raise UsageProblem(f"{folder} is not a project's folder; choose one.")
    if home.is_relative_to(folder):
        raise UsageProblem(f"{home} lies in {folder}; set MUSECODE_HOME to a folder outside it.")
    await _require_size(folder, effects, most_files, most_bytes)


async def _require_size(folder: Path, effects: Effects, most_files: int, most_bytes: int) -> None:
    size = await effects.disk(_measure, folder, most_files, most_bytes)
    if size.files > most_files or size.size > most_bytes:
        raise UsageProblem(
            f"{folder} has more than {most_files} files or {most_bytes / 1e6:.0f} MB, too much for a private copy; "
            "choose the project's own folder, or run `git init` there and list in .gitignore what is not to be kept."
        )


def _with_shadow(folder: Path, home: Path) -> list[Path]:
    return [place for place in (folder, *folder.parents) if (shadow_path(home, place) / "HEAD").is_file()]


def _measure(folder: Path, most_files: int, most_bytes: int) -> FolderSize:
    files = size = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        for name in names:
            status = os.lstat(os.path.join(place, name))
            files += 1
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
        if files > most_files or size > most_bytes:
            break
    return FolderSize(files, size)


def _write_exclude(git_dir: Path) -> None:
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info" / "exclude").write_text("".join(f"{pattern}\n" for pattern in _EXCLUDED))
