"""A private repository for a folder that is in none: made outside it, only when asked, so that fan-out works."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import GitError, NoCheckout, UsageProblem
from musecode_jupyter.workspace.git import Git, init_outside
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
_SKIPPED_FOLDERS = frozenset(name.rstrip("/") for name in _EXCLUDED if name.endswith("/"))


@dataclass(frozen=True)
class FolderSize:
    """How many files a folder has and how many bytes they are; counting stops above the limits."""

    files: int
    size: int


def shadow_path(home: Path, folder: Path) -> Path:
    """Where the shadow repository of `folder` is kept below `home`: the same for the same folder."""
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return home / "shadow" / f"{digest}.git"


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
        The folder is in a git repository already, is a home or root folder, holds the shadow's place, or is too large.
    GitError
        A repository inside the folder would be left out of it, or git fails.
    """
    folder, home = await effects.disk(folder.resolve), await effects.disk(home.resolve)
    if not await effects.disk(folder.is_dir):
        raise NoCheckout(f"{folder} does not exist; choose a folder.")
    git_dir = shadow_path(home, folder)
    git = Git(folder, git_dir, git_dir, effects)
    if await effects.disk((git_dir / "HEAD").is_file) and await git.ref("HEAD") is not None:
        return git
    if not make:
        raise NoCheckout(
            f"{folder} is in no git repository; run `git init` there and make a first commit, or let a private "
            "repository outside it keep its versions."
        )
    await _require_suitable(folder, home, effects)
    size = await effects.disk(_measure, folder, most_files, most_bytes)
    if size.files > most_files or size.size > most_bytes:
        raise UsageProblem(
            f"{folder} has more than {most_files} files or {most_bytes / 1e6:.0f} MB, too much for a private copy; "
            "choose the project's own folder, or run `git init` there and list in .gitignore what is not to be kept."
        )
    await init_outside(git_dir, folder, BRANCH, effects)
    async with repository_lock(git) as lock:
        await effects.disk(_write_exclude, git_dir)
        inner = sorted(change.path for change in await git.changes() if change.path.endswith("/"))
        if inner:
            raise GitError(f"{some_names(inner)} in {folder} is a repository of its own; work in it instead.")
        await git.run_index("add", "-A", timeout=600.0, pass_fds=(lock,))
        name, _, address = AUTHOR.rstrip(">").partition(" <")
        identity = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": address}
        identity |= {"GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": address}
        args = ("commit", "--quiet", "--no-verify", "--allow-empty", "-m", f"{folder.name or folder} as it was found")
        await git.run_index(*args, env=identity, timeout=300.0, pass_fds=(lock,))
    return git


@answered
async def why_no_fan_out(git: Git) -> str:
    """Why several workers cannot work side by side here, in a sentence for the user; empty if they can."""
    if await git.ref("HEAD") is None:
        return (
            f"{git.root} has no commit yet, so no worktree can be made of it: the work is done one task at a time. "
            "Make a first commit, then several workers can work side by side."
        )
    return ""


async def _require_suitable(folder: Path, home: Path, effects: Effects) -> None:
    try:
        found = await Git.discover(folder, effects)
    except NoCheckout as error:
        if "is not in a git repository" not in str(error):
            raise UsageProblem(str(error)) from None
    else:
        raise UsageProblem(f"{folder} is in the git repository {found.root} already; work in that one.")
    environ = effects.environ()
    if folder == Path(folder.anchor) or str(folder) == environ.get("HOME", ""):
        raise UsageProblem(f"{folder} is not a project's folder; choose one.")
    if home.is_relative_to(folder):
        raise UsageProblem(f"{home} lies in {folder}; set MUSECODE_HOME to a folder outside it.")


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
