"""A self-check: what is there, what is missing, and the command or setting that mends it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from musecode_jupyter._version import __version__
from musecode_jupyter.models.model_file import LocalModelFile
from musecode_jupyter.runtime.errors import MuseError
from musecode_jupyter.session.settings import Settings

STATIC = Path(__file__).resolve().parents[1] / "static"


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `needed` says whether the product cannot work without it."""

    name: str
    ok: bool
    text: str
    needed: bool = True


def examine(settings: Settings) -> list[Finding]:
    """Look at everything that a session needs; changes nothing, calls no model."""
    looks: list[Callable[[Settings], list[Finding]]] = [
        _program,
        _git,
        _home,
        _model,
        _approvals,
        _sandbox,
        _views,
        _kernels,
    ]
    return [finding for look in looks for finding in look(settings)]


def report(findings: list[Finding]) -> str:
    """The findings as text, a line each."""
    marks = {
        (True, True): "ok     ",
        (True, False): "ok     ",
        (False, True): "MISSING",
        (False, False): "absent ",
    }
    return "\n".join(f"{marks[finding.ok, finding.needed]} {finding.name}: {finding.text}" for finding in findings)


def _program(_settings: Settings) -> list[Finding]:
    ok = sys.version_info >= (3, 11)
    text = f"{platform.python_version()}, musecode-jupyter {__version__}"
    return [Finding("Python", ok, text if ok else f"{text}; 3.11 or newer is needed")]


def _git(_settings: Settings) -> list[Finding]:
    path = shutil.which("git")
    if path is None:
        return [Finding("git", False, "not on PATH: install git, goals work in git worktrees")]
    out = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return [Finding("git", True, out.stdout.strip().removeprefix("git version "))]


def _home(settings: Settings) -> list[Finding]:
    home = settings.home_or_default()
    existing = next(folder for folder in (home, *home.parents) if os.path.exists(folder))
    try:
        # The rights alone say nothing: root has them everywhere, and some file systems make no folders.
        with tempfile.TemporaryDirectory(prefix=".musecode-", dir=existing):
            pass
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        text = f"no folder can be made in {existing} ({reason}): set MUSECODE_HOME to a folder that can be written"
        return [Finding("sessions", False, text)]
    free = shutil.disk_usage(existing).free / 1e9
    return [Finding("sessions", True, f"{home} ({free:.0f} GB free)")]


def _model(settings: Settings) -> list[Finding]:
    try:
        endpoint = settings.endpoint(os.environ)
        info = settings.info(endpoint)
    except MuseError as problem:
        return [Finding("model", False, str(problem))]
    where = "embedded" if endpoint.api == "local" else f"{endpoint.api} at {endpoint.base_url}"
    found = [Finding("model", True, f"{endpoint.model}, {where}, profile {info.profile}, tier {info.tier}")]
    if endpoint.api != "local":
        key = "from " + endpoint.key_source if endpoint.key else "none"
        return [*found, Finding("key", bool(endpoint.key), f"{key}", needed=False)]
    file = LocalModelFile(settings.home_or_default(), environ=os.environ)
    runtime = importlib.util.find_spec("xllamacpp") is not None
    found.append(
        Finding("local runtime", runtime, "xllamacpp" if runtime else "run: pip install 'musecode-jupyter[local]'")
    )
    try:
        found.append(Finding("local model", True, str(file.require())))
    except MuseError as problem:
        found.append(Finding("local model", False, str(problem)))
    return found


def _approvals(settings: Settings) -> list[Finding]:
    try:
        modes = f"{settings.mode(interactive=True)} in a notebook, {settings.mode(interactive=False)} headless"
    except MuseError as problem:
        return [Finding("approvals", False, str(problem))]
    return [Finding("approvals", True, modes)]


def _sandbox(settings: Settings) -> list[Finding]:
    from musecode_jupyter.guard.sandbox import choose
    from musecode_jupyter.runtime.effects import LiveEffects
    from musecode_jupyter.runtime.loop import RuntimeThread

    thread = RuntimeThread.start()  # a notebook's own thread has a running loop
    try:
        choice = choose(settings.sandbox, settings.network, LiveEffects(), readable=settings.readable)
        sandbox = thread.call(choice, timeout=60)
    except MuseError as problem:
        return [Finding("sandbox", False, str(problem))]
    finally:
        thread.stop()
    text = f"commands run in {sandbox.words}" if not sandbox.banner else sandbox.banner
    # Asked for by name it is what the user wants; else it is what is missing.
    return [Finding("sandbox", not sandbox.banner or settings.sandbox == "plain", text, needed=False)]


def _views(_settings: Settings) -> list[Finding]:
    built = all((STATIC / f"{name}.js").is_file() for name in ("timeline", "approvals"))
    text = "built" if built else "not built: run `make frontend`; until then views are shown as HTML and text"
    return [Finding("live views", built, text, needed=False)]


def _kernels(_settings: Settings) -> list[Finding]:
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    text = (
        "torch and triton"
        if not missing
        else f"without {' and '.join(missing)}: pip install 'musecode-jupyter[kernels]'"
    )
    return [Finding("kernel packages", not missing, text, needed=False)]
