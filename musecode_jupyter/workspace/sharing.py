"""Gives a worktree ignored folders of the main checkout, such as `node_modules`, by link or copy, as the user says."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.errors import ConfigurationError, GitError
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.provision import RESERVE, require_space

PART_SUFFIX = ".musecode-part"
"""Ends the name of the folder beside a worktree in which what is shared is put together before it is moved in."""

_ABSENT = "the checkout does not have it"
_FORM = "write it like MUSECODE_SHARE=node_modules=link,build=copy"


@dataclass(frozen=True)
class Share:
    """A rule: `path`, relative to the root of the checkout, is shared by `how`.

    A file that is linked is one link. A folder that is linked is a folder with a link for each of its entries: so it
    matches ignore patterns such as `build/`, and what is made new in it stays in the worktree. What is written through
    a link changes the user's own.
    """

    path: str
    how: Literal["link", "copy"]


@dataclass(frozen=True)
class Shared:
    """What was done: the paths that the worktree has now, and why not for the others."""

    done: tuple[str, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)


def parse_share(text: str) -> tuple[Share, ...]:
    """Read a rule as the user writes it: `node_modules=link,build=copy`; an empty text is no rule.

    Raises
    ------
    ConfigurationError
        A part is not `path=link` or `path=copy`, a path is absolute, leads out of the repository or into `.git`, or
        two rules meet.
    """
    rules: list[Share] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, how = (word.strip() for word in part.rpartition("="))
        if not sign or how not in ("link", "copy"):
            raise ConfigurationError(f"{part!r} is no rule for sharing a folder; {_FORM}.")
        rules.append(Share(_clean(name), "link" if how == "link" else "copy"))
    for rule in rules:
        for other in rules:
            if rule is not other and PurePosixPath(other.path).is_relative_to(rule.path):
                raise ConfigurationError(f"{rule.path} and {other.path} are both to be shared; name only the outer.")
    return tuple(rules)


def _clean(name: str) -> str:
    path = PurePosixPath(name)
    if not name or not path.parts:
        raise ConfigurationError(f"A rule for sharing has no path; {_FORM}.")
    if path.is_absolute() or name.startswith("~") or ".." in path.parts or "\0" in name:
        raise ConfigurationError(f"{name} leads out of the repository; share only folders inside it.")
    if any(part.casefold() == ".git" for part in path.parts):
        raise ConfigurationError(f"{name} belongs to git, which shares it by itself; take it out of MUSECODE_SHARE.")
    return str(path)


@answered
async def share(source: Git, tree: Git, rules: Sequence[Share], reserve: int = RESERVE) -> Shared:
    """Share what `rules` name from the checkout `source` with its worktree `tree`.

    What the source does not have, or the worktree has already, is skipped. Done again after a crash, it goes on:
    everything is put together beside the worktree and moved in as a whole.

    Raises
    ------
    ConfigurationError
        A path is tracked, or git does not ignore it, so that it would be committed with an agent's work; it is a
        repository of its own; or it lies behind a link.
    GitError
        The disk is too full for a copy, or a file cannot be read or written.
    """
    obstacles = {rule: await source.effects.disk(_obstacle, source.root, tree.root, rule.path) for rule in rules}
    for rule in rules:
        folder = await source.effects.disk((source.root / rule.path).is_dir)
        if obstacles[rule] != _ABSENT:
            await _require_ignored(tree, rule.path, folder=folder)
    done, skipped = [], {rule.path: why for rule, why in obstacles.items() if why is not None}
    part = tree.root.with_name(tree.root.name + PART_SUFFIX)
    for rule in rules:
        if obstacles[rule] is not None:
            continue
        origin, place = source.root / rule.path, tree.root / rule.path
        if rule.how == "copy":
            await require_space(source, tree.root, await source.effects.disk(_size, origin), reserve)
        try:
            await source.effects.disk(_put, origin, place, part, rule.how)
        except (OSError, shutil.Error) as error:
            raise GitError(f"{rule.path} cannot be shared with {tree.root}: {_first(error)}.") from error
        done.append(rule.path)
    return Shared(tuple(done), skipped)


async def _require_ignored(tree: Git, path: str, *, folder: bool) -> None:
    if (await tree.run("ls-files", "-z", "--", path)).out:
        raise ConfigurationError(f"{path} holds files that git tracks; share only what it ignores.")
    # A pattern such as `build/` is only for folders. This command takes no literal paths; `./` makes it one.
    asked = os.fsencode(f"./{path}{'/' * folder}")
    answer = await tree.run(
        "check-ignore", "-q", "-z", "--stdin", input=asked, env={"GIT_LITERAL_PATHSPECS": "0"}, check=False
    )
    if answer.code == 1:
        raise ConfigurationError(
            f"git does not ignore {path}, so it would be committed with an agent's work; "
            "add it to .gitignore or take it out of MUSECODE_SHARE."
        )
    if answer.code != 0:
        raise await tree.failure(("check-ignore",), answer)


def _obstacle(source: Path, tree: Path, name: str) -> str | None:
    """Why `name` is not shared; raises for what must never be."""
    for root in (source, tree):
        for folder in reversed((root / name).parents):
            if folder.is_relative_to(root) and folder.is_symlink():
                raise ConfigurationError(f"{folder} is a link; share only what lies in the repository itself.")
    origin = source / name
    if origin.is_symlink():
        raise ConfigurationError(f"{origin} is a link; share only what lies in the repository itself.")
    if os.path.lexists(origin / ".git"):
        raise ConfigurationError(f"{origin} is a repository of its own; it cannot be shared.")
    if not os.path.lexists(origin):
        return _ABSENT
    if not (origin.is_dir() or origin.is_file()):
        return "it is neither a file nor a folder"
    if os.path.lexists(tree / name):
        return "the worktree has it already"
    return None


def _put(origin: Path, place: Path, part: Path, how: str) -> None:
    if part.is_symlink() or part.is_file():
        part.unlink()
    elif part.is_dir():
        shutil.rmtree(part)
    if how == "copy":
        if origin.is_dir():
            shutil.copytree(origin, part, symlinks=True, ignore=_special)
        else:
            shutil.copy2(origin, part)
    elif origin.is_dir():
        part.mkdir()
        for entry in os.scandir(origin):
            os.symlink(entry.path, part / entry.name)
    else:
        os.symlink(origin, part)
    place.parent.mkdir(parents=True, exist_ok=True)
    os.rename(part, place)


def _special(folder: str, names: list[str]) -> set[str]:
    """Pipes, sockets and devices are not copied: reading one may never end."""
    found = set()
    for name in names:
        mode = os.lstat(os.path.join(folder, name)).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            found.add(name)
    return found


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.lstat().st_size
    return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names)


def _first(error: OSError | shutil.Error) -> str:
    """The reason in one line; `copytree` gathers many."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        name, _, reason = error.args[0][0]
        return f"{name}: {reason}"
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
