"""The environment that a child process gets: an allow-list, neutral pager and editor, this Python's scripts on PATH."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from musecode_jupyter.models.endpoint import secrets

ALLOWED = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CONDA_DEFAULT_ENV",
        "LD_LIBRARY_PATH",
        "CUDA_HOME",
        "CUDA_VISIBLE_DEVICES",
        "TRITON_INTERPRET",
        "TRITON_CACHE_DIR",
        "PYTHONPATH",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD",
        "OMP_NUM_THREADS",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "PYENV_ROOT",
        "NVM_DIR",
    ]
)
ALLOWED_PREFIXES = ("LC_", "SLURM_")
REFUSED = frozenset({"SLURM_JWT"})

# No prompt, no pager, no colour; no byte code, since an edit and its revert within one second can leave a
# stale .pyc behind (the cache key is size and whole seconds), and since it would litter the worktree.
FIXED = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "GIT_OPTIONAL_LOCKS": "0",
}


def relocated(env: Mapping[str, str], checkout: Path, root: Path) -> dict[str, str]:
    """`env` with a PYTHONPATH that leads into `root` wherever it led into the user's `checkout`.

    Otherwise a check would import, and so judge, the user's files in place of the tree that is to land.
    """
    moved = []
    for entry in filter(None, env.get("PYTHONPATH", "").split(os.pathsep)):
        path = Path(os.path.abspath(entry))
        moved.append(str(root / path.relative_to(checkout)) if path.is_relative_to(checkout) else entry)
    return {**env, "PYTHONPATH": os.pathsep.join(moved)} if moved else dict(env)


def without_values(env: Mapping[str, str], values: Iterable[str]) -> dict[str, str]:
    """`env` without the variables that hold one of `values`, which are secrets, whatever the variable's name."""
    kept = list(values)
    return {name: text for name, text in env.items() if not any(value in text for value in kept)}


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What of `environ` a child may see, with neutral settings added. Keys and tokens never pass."""
    allowed = {
        name: value
        for name, value in environ.items()
        if (name in ALLOWED or name.startswith(ALLOWED_PREFIXES)) and name not in REFUSED
    }
    env = without_values(allowed, secrets(environ))
    env.setdefault("PATH", os.defpath)
    if "VIRTUAL_ENV" not in env and "CONDA_PREFIX" not in env:
        # A kernel in an environment that was never activated: `python` should still be that environment's.
        scripts = str(Path(sys.executable).parent)
        if scripts not in env["PATH"].split(os.pathsep):
            env["PATH"] = scripts + os.pathsep + env["PATH"]
    return {**env, **FIXED}
