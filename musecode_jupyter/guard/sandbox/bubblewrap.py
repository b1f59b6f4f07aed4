"""The bubblewrap sandbox: which namespaces, mounts and variables a command gets; the probe of whether it works."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from musecode_jupyter.guard.sandbox import gitdirs, toolchain
from musecode_jupyter.guard.sandbox.base import Backend, Confined, Network, Promise, Realm
from musecode_jupyter.guard.sandbox.mounts import Mounts
from musecode_jupyter.guard.sandbox.scratch import Room, Scratch
from musecode_jupyter.runtime.command import Command
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ConfigurationError
from musecode_jupyter.runtime.process import STATUS_FD, ProcessResult, ProcessSpec, Started, to_the_end

_DEVICES = ("nvidia*", "dri", "kfd")
# Root may write these without any capability; core_pattern names a program that the kernel runs outside.
_PROC_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
# Root in the sandbox is root on its own files and no more: it can mount, trace and configure nothing.
_ROOT_KEEPS = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID")
# Where the private home is shown if the user has none that could be hidden.
_NO_HOME = Path("/tmp/home")
PROBE_SECONDS = 20.0
# What git and others say when they try to write to what is read-only.
_REFUSED = "Read-only file system"
NOTE = (
    "the repository's git data is read-only here, and your work is committed for you: "
    "to restore a file, write `git show HEAD:PATH > PATH`"
)


def namespaces(network: Network) -> list[str]:
    """The options that do not depend on the command."""
    options = ["--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    options += ["--unshare-cgroup-try", "--hostname", "localhost"]
    if network == "deny":
        options.append("--unshare-net")
    if os.geteuid() == 0:
        options += ["--cap-drop", "ALL", *(word for name in _ROOT_KEEPS for word in ("--cap-add", name))]
    else:
        options.append("--unshare-user")
    return options


def _system() -> list[str]:
    options = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for name in _PROC_SETTINGS:
        options += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    for pattern in _DEVICES:
        for device in sorted(Path("/dev").glob(pattern)):
            options += ["--dev-bind-try", str(device), str(device)]
    return options


async def probe(program: str, network: Network, effects: Effects) -> str:
    """Why the sandbox cannot be used here; empty if a command was really run in it.

    Raises
    ------
    TimeoutError
        It did not answer within 20 s: the machine is busy, or it hangs.
    ConfigurationError
        The end of a program cannot be seen in this process, so that nothing is known.
    """
    words = (program, *namespaces(network), *_system(), "--tmpfs", "/tmp", "--", "/bin/sh", "-c", "test -d /proc/1")
    try:
        answer = await effects.ask(Command(words, Path("/"), {"PATH": os.defpath, "LC_ALL": "C"}, None, PROBE_SECONDS))
    except TimeoutError:
        raise
    except ChildProcessError as error:
        raise ConfigurationError(str(error)) from error
    except OSError as error:
        return f"{program} cannot be run: {error.strerror or error}"
    if answer.code == 0:
        return ""
    said = answer.err.strip().splitlines()
    return f"{program} does not work here: {said[-1] if said else f'exit status {answer.code}'}"


class Bubblewrap:
    """Commands see the system read-only, an agent's tree, and a private home and /tmp; nothing else of the user's.

    `hidden` are folders that no command sees: those of all sessions. `environ` is the environment of this process,
    read for the places of secrets only. `readable` are places that the user lets commands read. `linked` are paths in
    the user's checkout to which agents' trees have links: they can be read there.
    """

    name: Backend = "bubblewrap"
    promises = frozenset(Promise)
    banner = ""

    def __init__(
        self,
        program: str,
        network: Network,
        *,
        hidden: tuple[Path, ...] = (),
        readable: tuple[Path, ...] = (),
        linked: tuple[str, ...] = (),
        environ: Mapping[str, str],
    ) -> None:
        self.network = network
        self.words = f"bubblewrap, {'with' if network == 'allow' else 'without'} network"
        self.why = ""
        self._program = program
        self._hidden = hidden
        self._readable = readable
        self._linked = linked
        self._environ = environ
        self._scratch = Scratch()
        self._needed: dict[str, list[Path]] = {}

    @property
    def shows_more(self) -> bool:
        """Whether the user lets commands read places that would be hidden."""
        return bool(self._readable)

    def hide(self, places: Iterable[Path]) -> None:
        """Let no command see these places from here on."""
        self._hidden = tuple(dict.fromkeys((*self._hidden, *places)))

    async def run(
        self,
        spec: ProcessSpec,
        realm: Realm,
        effects: Effects,
        on_started: Callable[[Started], None] | None = None,
    ) -> Confined:
        """Run `spec` in the sandbox."""
        room: Room | None = None
        try:
            room = await effects.disk(self._scratch.room, fresh=realm.fresh)
            confined = await effects.disk(self._confine, spec, realm, room)
            result = await effects.run(confined, on_started)
        except OSError as error:
            why = f"the sandbox cannot be set up: {error}"
            return Confined(ProcessResult(None, "not started", 0.0, why, spec.output, 0))
        finally:
            if room is not None and realm.fresh:
                await to_the_end(effects.disk(self._scratch.discard, room))
        # In a replay the recorded text has the note already.
        refused = _REFUSED in result.text and ".git" in result.text and result.exit != 0 and NOTE not in result.text
        return Confined(result, note=NOTE if refused else "")

    def close(self) -> None:
        """Delete the private home and /tmp."""
        self._scratch.close()

    def _confine(self, spec: ProcessSpec, realm: Realm, room: Room) -> ProcessSpec:
        root = realm.root.resolve()
        home, env = _home(spec.env)
        mounts = self._mounts(root, realm, room, home, env)
        words = [self._program, "--json-status-fd", STATUS_FD, *namespaces(self.network), *_system()]
        words += [*mounts.arguments(), "--chdir", str(spec.cwd.resolve()), "--"]
        return replace(spec, wrapper=tuple(words), env=env)

    def _mounts(self, root: Path, realm: Realm, room: Room, home: Path, env: Mapping[str, str]) -> Mounts:
        mounts = Mounts(self._scratch.empty)
        real_home = home if home == _NO_HOME else home.resolve()
        toolchain.hide_secrets(mounts, self._environ, [real_home, Path(_home_of_user()).resolve()])
        for place in (*self._hidden, Path(tempfile.gettempdir())):
            mounts.hide(place)
        mounts.back(Path("/tmp").resolve(), room.tmp)
        mounts.back(real_home, room.home)
        checkout = None if realm.checkout is None else realm.checkout.resolve()
        if checkout is not None and not toolchain.is_system(checkout) and checkout not in (root, real_home):
            mounts.hide(checkout)
        else:
            checkout = None
        if home != _NO_HOME:
            mounts.follow(home)
        self._show_toolchain(mounts, env, real_home, checkout, root)
        for place in self._readable:
            mounts.show(place)
        self._show_root(mounts, root, realm, real_home)
        if checkout is not None:
            for name in self._linked:
                mounts.show(checkout / name)
            mounts.mirror(checkout, root, {".git"})
        return mounts

    def _show_root(self, mounts: Mounts, root: Path, realm: Realm, home: Path) -> None:
        dirs = gitdirs.find(root)
        if home.is_relative_to(root):
            # The home as the place of work: what is not hidden by its name can be read.
            for entry in os.scandir(root):
                if not entry.name.startswith("."):
                    mounts.show(Path(entry.path))
            return
        mounts.show(root, writable=realm.writable)
        if dirs is None:
            return
        if not realm.writable and not home.is_relative_to(dirs.top):
            mounts.show(dirs.top)
        if realm.writable and dirs.top == root:
            mounts.protect(root / ".git")
        mounts.show(dirs.common)
        mounts.show(dirs.own)
        for objects in gitdirs.alternates(dirs.common):
            mounts.show(objects)
        config = dirs.common / "config"
        if os.path.isfile(config):
            text = config.read_bytes()
            clean = gitdirs.without_secrets(text)
            if clean != text:
                name = blake2b(os.fsencode(config), digest_size=8).hexdigest()
                mounts.replace(config, self._scratch.file(name, clean))

    def _show_toolchain(
        self, mounts: Mounts, env: Mapping[str, str], home: Path, checkout: Path | None, root: Path
    ) -> None:
        key = repr((checkout, toolchain.installed(), [env.get(name) for name in toolchain.VARIABLES]))
        known = self._needed.get(key)
        kept = []
        for place in known if known is not None else dict.fromkeys(toolchain.needed(env, home)):
            inside = checkout is not None and place.is_relative_to(checkout)
            # What is in the tree is taken from the tree, not from the checkout.
            shown = mounts.show(place) if not inside or not _in_tree(place, checkout or place, root) else False
            if inside or shown or not os.path.lexists(place):
                kept.append(place)
        # Most places can be seen anyway, and need no look the next time.
        self._needed[key] = kept


def find_program(environ: Mapping[str, str]) -> str | None:
    """bubblewrap's program on PATH, or where distributions install it."""
    return shutil.which("bwrap", path=environ.get("PATH")) or shutil.which("bwrap", path="/usr/bin:/usr/local/bin")


def _home_of_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/nonexistent"


def _home(env: Mapping[str, str]) -> tuple[Path, dict[str, str]]:
    """The home as commands name it, really the private one, and the environment that goes with it."""
    home = Path(env.get("HOME") or _home_of_user())
    changed = dict(env)
    if not home.is_absolute() or not os.path.isdir(home) or toolchain.is_system(home.resolve()):
        home = _NO_HOME
    changed["HOME"] = str(home)
    if "TMPDIR" in changed:
        changed["TMPDIR"] = "/tmp"
    if "TRITON_CACHE_DIR" in changed:
        changed["TRITON_CACHE_DIR"] = str(home / ".triton" / "cache")
    return home, changed


def _in_tree(place: Path, checkout: Path, root: Path) -> bool:
    inside = place.relative_to(checkout)
    return not inside.parts or os.path.lexists(root / inside.parts[0])
