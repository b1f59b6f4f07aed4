"""What a sandbox shows of the file system: everything read-only, places that are hidden, and what shows through."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MAX_LINKS = 40  # as the kernel's own limit


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


@contextlib.contextmanager
def _way(start: Path, parts: Sequence[str]) -> Iterator[int]:
    """A descriptor of the folder `parts` below `start`, made where it is missing.

    A command can write there: a link that it put in the way would lead what is made here, or mounted by bubblewrap, to
    places outside. It is taken away.
    """
    folder = os.open(start, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            _clear_link(part, folder)
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(part, flags, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _clear_link(name: str, folder: int) -> None:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        os.unlink(name, dir_fd=folder)


@dataclass
class Mounts:
    """A view of the file system, made in memory; `arguments` are bubblewrap's for it.

    All places are real paths: bubblewrap does not follow links in the places that it mounts on. `empty` is the empty
    file that is shown for a hidden one. `backing` are hidden places that are shown as another, writable folder; links
    that are needed in them are made in that folder. `made` counts the links.
    """

    empty: Path
    backing: dict[Path, Path] = field(default_factory=dict)
    _hidden: set[Path] = field(default_factory=set)
    _masked: dict[Path, Path] = field(default_factory=dict)
    _shown: dict[Path, bool] = field(default_factory=dict)
    _links: dict[Path, Path] = field(default_factory=dict)
    _sealed: set[Path] = field(default_factory=set)
    _replaced: dict[Path, Path] = field(default_factory=dict)
    made: int = 0

    def hide(self, place: Path) -> None:
        """Put an empty folder, or for a file an empty file, in the place; nothing if it is not there."""
        real = place.resolve()
        if os.path.isdir(real):
            if real != Path("/"):
                self._hidden.add(real)
        elif os.path.isfile(real) or _is_socket(real):  # not a device, as /dev/null is
            self._masked[real] = self.empty

    def back(self, place: Path, folder: Path) -> None:
        """Show the writable `folder` in a place, which must be there."""
        self._hidden.add(place)
        self.backing[place] = folder

    def replace(self, file: Path, other: Path) -> None:
        """Show the file `other` in place of `file`."""
        self._replaced[file] = other

    def show(self, path: Path, *, writable: bool = False) -> bool:
        """Let `path` show through, with the links on the way to it; answers whether that took anything."""
        links = self.made
        real = self.follow(path)
        if real is None or not os.path.lexists(real) or real == Path("/"):
            return False
        if writable:
            self._shown[real] = True
        elif not self.visible(real):
            self._shown[real] = False
        else:
            return self.made > links
        return True

    def protect(self, path: Path) -> None:
        """Make something inside a writable place read-only."""
        self._shown.setdefault(path, False)

    def mirror(self, place: Path, root: Path, left_out: Iterable[str]) -> None:
        """Show in `place`, read-only, a link to each entry of `root`, beside what of `place` itself shows through."""
        self._hidden.add(place)
        self._sealed.add(place)
        self._reflect(place, root, frozenset(left_out))

    def _reflect(self, place: Path, root: Path, left_out: frozenset[str]) -> None:
        around = {above for path in self._shown if path.is_relative_to(place) for above in path.parents}
        for entry in os.scandir(root):
            here = place / entry.name
            if entry.name in left_out or here in self._shown:
                continue
            if here not in around:
                self._links[here] = Path(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                # Something in it shows through, so it is a folder of its own here, and not one link.
                self._reflect(here, Path(entry.path), frozenset())

    def visible(self, path: Path) -> bool:
        """Whether `path`, without links in it, can be seen."""
        if path in self._masked:
            return False
        for place in (path, *path.parents):
            if place in self._shown:
                return True
            if place in self._hidden:
                return False
        return True

    def follow(self, path: Path) -> Path | None:
        """The real path, with each link that lies in a hidden place made there; None if it leads nowhere."""
        rest = list(Path(os.path.abspath(path)).parts[1:])
        here, links = Path("/"), 0
        while rest:
            following = here / rest.pop(0)
            if not os.path.islink(following):
                here = following
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            target = Path(os.path.normpath(here / os.readlink(following)))
            if not self.visible(following):
                self._link(following, target)
            here, rest = Path("/"), [*target.parts[1:], *rest]
        return here

    def _link(self, place: Path, target: Path) -> None:
        self.made += 1
        inside = next((folder for folder in (place, *place.parents) if folder in self._hidden), None)
        if inside is None or inside not in self.backing:
            self._links[place] = target
            return
        way = place.relative_to(inside).parts
        with contextlib.suppress(OSError), _way(self.backing[inside], way[:-1]) as folder:
            os.symlink(target, way[-1], dir_fd=folder)

    def _prepare(self, place: Path, *, file: bool) -> None:
        """Make the place of a mount in the writable folder that it will be in; real folders all the way."""
        inside = next((above for above in place.parents if above in self._hidden or above in self._shown), None)
        if inside not in self.backing or inside in self._shown:
            return
        way = place.relative_to(inside).parts
        with contextlib.suppress(FileExistsError), _way(self.backing[inside], way[:-1]) as folder:
            _clear_link(way[-1], folder)
            if file:
                os.close(os.open(way[-1], os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600, dir_fd=folder))
            else:
                os.mkdir(way[-1], dir_fd=folder)

    def mounted(self) -> list[Path]:
        """The places on which something is mounted, outer ones first."""
        masks = [place for place in {**self._masked, **self._replaced} if self.visible(place.parent)]
        hidden = [place for place in self._hidden if self._needs_hiding(place)]
        return sorted({*hidden, *self._shown, *masks}, key=lambda place: len(place.parts))

    def _needs_hiding(self, place: Path) -> bool:
        # Without that it is hidden with what is around it.
        return place in self.backing or place in self._sealed or self.visible(place.parent)

    def arguments(self) -> list[str]:
        """The options for bubblewrap, outer places first."""
        for place in self.mounted():
            self._prepare(place, file=not os.path.isdir(place))
        steps: list[tuple[int, int, list[str]]] = []
        for place in self._hidden:
            folder = self.backing.get(place)
            if not self._needs_hiding(place):
                continue
            option = ["--tmpfs", str(place)] if folder is None else ["--bind", str(folder), str(place)]
            steps.append((len(place.parts), 0, option))
        for place, writable in self._shown.items():
            option = ["--bind" if writable else "--ro-bind", str(place), str(place)]
            steps.append((len(place.parts), 1, option))
        for place, target in self._links.items():
            steps.append((len(place.parts), 2, ["--symlink", str(target), str(place)]))
        for place, other in {**self._masked, **self._replaced}.items():
            if self.visible(place.parent):
                steps.append((len(place.parts), 3, ["--ro-bind", str(other), str(place)]))
        steps.sort(key=lambda step: step[:2])
        words = [word for _, _, option in steps for word in option]
        for place in sorted(self._sealed):
            words += ["--remount-ro", str(place)]
        return words
