"""Which places hold the programs and libraries that commands need, and which hold what commands must not see."""

from __future__ import annotations

import json
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from musecode_jupyter.guard.sandbox.mounts import Mounts

# Read once: user code may set them otherwise later.
_PREFIXES = tuple(dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)))
_EXECUTABLE = sys.executable
_PACKAGES = sysconfig.get_path("purelib")

_SYSTEM = tuple(map(Path, ("/", "/usr", "/usr/local", "/etc", "/opt", "/var", "/bin", "/sbin", "/lib", "/lib64")))

_HIDDEN = ("/home", "/root", "/run", "/var/run", "/var/tmp", "/var/spool", "/boot")
# Root can read these, whatever their mode.
_SYSTEM_SECRETS = ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/gshadow-", "/etc/sudoers.d", "/etc/ssl/private")
_RUNTIME = ("/run/current-system", "/run/opengl-driver", "/run/nvidia-persistenced", "/etc/resolv.conf")

# Variables that name a file or a folder with keys, tokens, connections or settings in them.
_SECRET_VARIABLES = (
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    "JUPYTER_RUNTIME_DIR",
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "IPYTHONDIR",
    "GNUPGHOME",
    "SSH_AUTH_SOCK",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "CLOUDSDK_CONFIG",
    "AZURE_CONFIG_DIR",
    "KUBECONFIG",
    "DOCKER_CONFIG",
    "NETRC",
    "PIP_CONFIG_FILE",
    "NPM_CONFIG_USERCONFIG",
    "HF_TOKEN_PATH",
    "GIT_CONFIG_GLOBAL",
    "KAGGLE_CONFIG_DIR",
    "PGPASSFILE",
    "XAUTHORITY",
)

# Variables that lead to programs, libraries and certificates.
_PLACES = ("LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "PYENV_ROOT", "NVM_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR")

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
# All that `needed` reads of an environment.
VARIABLES = ("PATH", "HOME", "VIRTUAL_ENV", "CONDA_PREFIX", *_PLACES)


def installed() -> int:
    """A number that changes when a package is installed in this Python or removed from it."""
    try:
        return os.stat(_PACKAGES).st_mtime_ns
    except OSError:
        return 0


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex(match.group(1).decode())


def is_system(path: Path) -> bool:
    """Whether `path` is one of the system's own folders, which are never hidden as a whole."""
    return path in _SYSTEM


def hide_secrets(mounts: Mounts, environ: Mapping[str, str], homes: list[Path]) -> None:
    """Hide homes, places of sockets and connection files, and what `environ` names as holding secrets."""
    for place in (*_HIDDEN, *_SYSTEM_SECRETS):
        mounts.hide(Path(place))
    for home in homes:
        if not is_system(home):
            mounts.hide(home)
    for name in _SECRET_VARIABLES:
        for entry in filter(os.path.isabs, environ.get(name, "").split(os.pathsep)):
            # A data folder inside a Python installation (share/jupyter) holds nothing of the user's.
            if not is_system(Path(entry)) and not any(Path(entry).is_relative_to(prefix) for prefix in _PREFIXES):
                mounts.hide(Path(entry))


def needed(env: Mapping[str, str], home: Path) -> list[Path]:
    """The places that programs on PATH, Python and its packages need to be seen; in an order of no meaning."""
    places = [Path(place) for place in _RUNTIME]
    pythons = {Path(prefix) for prefix in _PREFIXES}
    pythons |= {Path(env[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.path.isabs(env.get(name, ""))}
    for entry in filter(os.path.isabs, env.get("PATH", "").split(os.pathsep)):
        folder = Path(entry)
        places.append(folder)
        above = folder.parent
        if folder.name in {"bin", "condabin"} and os.path.isfile(above / "pyvenv.cfg"):
            pythons.add(above)
        elif folder.name in {"bin", "shims", "condabin"} and _is_installation(above, home):
            places.append(above)
    for prefix in pythons:
        places += [prefix, *_behind(prefix)]
    places.append(Path(_EXECUTABLE))
    for name in _PLACES:
        places += [Path(entry) for entry in env.get(name, "").split(os.pathsep) if os.path.isabs(entry)]
    if site.ENABLE_USER_SITE:
        places.append(Path(site.getuserbase()) / "lib")
    if os.path.isdir(home / ".rustup" / "toolchains"):
        places.append(home / ".rustup")
    for prefix in pythons:
        places += editables(prefix)
    return [place for place in places if place != home and not home.is_relative_to(place)]


def _is_installation(folder: Path, home: Path) -> bool:
    """Whether a folder is all program: an installation prefix, not a place of the user's with a `bin` in it."""
    if folder == home or folder == home / ".local" or home.is_relative_to(folder) or is_system(folder):
        return False
    return any(os.path.isdir(folder / name) for name in ("lib", "lib64", "libexec", "conda-meta"))


def _behind(prefix: Path) -> Iterator[Path]:
    """The installation from which a virtual environment was made."""
    try:
        lines = (prefix / "pyvenv.cfg").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.partition("=")
        folder = Path(value.strip())
        if name.strip() == "home" and folder.is_absolute():
            yield folder
            real = folder.resolve()
            yield real.parent if real.name == "bin" and not is_system(real.parent) else real
    for link in _glob(prefix / "bin", "python*"):
        real = link.resolve()
        if not real.is_relative_to(prefix):
            yield link
            yield real.parent.parent if not is_system(real.parent.parent) else real


def editables(prefix: Path) -> Iterator[Path]:
    """The folders of packages that are installed in `prefix` in editable mode (PEP 610 names them)."""
    for record in _glob(prefix, "lib/python3*/site-packages/*.dist-info/direct_url.json"):
        try:
            origin = json.loads(record.read_bytes())
            if origin["dir_info"]["editable"] and origin["url"].startswith("file://"):
                yield Path(os.fsdecode(_ESCAPE.sub(_unescaped, os.fsencode(origin["url"].removeprefix("file://")))))
        except (OSError, ValueError, LookupError, TypeError):
            continue


def _glob(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(folder.glob(pattern))
    except OSError:
        return []
