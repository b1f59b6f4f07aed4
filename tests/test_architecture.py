"""The rules that keep the floors apart: who may import whom, who may run git, what `%load_ext` may load."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "musecode_jupyter"
FLOORS = (
    "runtime",
    "log",
    "models",
    "guard",
    "tools",
    "workspace",
    "agents",
    "skills",
    "session",
    "jupyter",
    "cli",
)
HEIGHT = {floor: height for height, floor in enumerate(FLOORS)}
HEIGHT["cli"] = HEIGHT["jupyter"]  # the two faces stand side by side and do not know each other
CORE = FLOORS[: FLOORS.index("jupyter")]

# make_client builds one, so that it counts as one.
CLIENTS = ("responses", "chat", "messages", "client", "local", "endpoint.make_client")
WORLD = {"time", "random", "uuid", "socket", "urllib", "requests"}
DIRECT = {
    "asyncio.sleep",
    "asyncio.to_thread",
    "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
    "datetime.now",
    "datetime.utcnow",
}
# The self-check looks at the machine as it is, outside any session.
LIVE = {"musecode_jupyter.session.doctor"}
FACE_LIBRARIES = {"IPython", "ipywidgets", "anywidget", "ipykernel"}
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc"}
HEAVY = ("httpx", "git", "gitdb", "torch", "triton", "anywidget", "ipywidgets", "xllamacpp")


def module_name(path: Path) -> str:
    parts = ("musecode_jupyter", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def floor_of(module: str) -> str | None:
    """The floor on which a module of this package stands; None for the package itself and its version."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in HEIGHT else None


def called_name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def imports_of(module: str) -> Iterator[tuple[int, str]]:
    """Every import in a module, lazy and type-checking ones too, as line and absolute dotted name.

    `from a import b` gives `a.b`, so that a module imported from its package is seen as that module.
    """
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]) if base else ".".join(above)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and called_name(node) in {"import_module", "__import__"} and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def of_each_module(rule: Callable[[str], None]) -> Callable[[], None]:
    """A test of `rule` that names all modules which break it; a test for each would take longer than the rules do."""

    def test() -> None:
        broken = []
        for module in MODULES:
            try:
                rule(module)
            except AssertionError as error:
                broken.append(error)
        if broken:
            raise ExceptionGroup(f"{len(broken)} modules break it", broken)

    test.__doc__ = rule.__doc__
    return test


@of_each_module
def test_imports_point_down(module: str) -> None:
    here = floor_of(module)
    for line, name in imports_of(module):
        if not within(name, "musecode_jupyter") or within(name, "musecode_jupyter._version"):
            continue
        where = f"{module}:{line} imports {name}"
        if here is None:
            assert module == "musecode_jupyter", f"{where}: {module} stands on no floor"
            continue
        if name == "musecode_jupyter":
            continue  # the bare package, for its place on disk; it loads nothing
        there = floor_of(name)
        assert there or name == "musecode_jupyter.__version__", (
            f"{where}, which is on no floor: import from the floor that owns it"
        )
        if there and there != here:
            assert HEIGHT[there] < HEIGHT[here], f"{where}: {here} must not know {there}"


@of_each_module
def test_only_the_gate_imports_a_model_client(module: str) -> None:
    beside_the_clients = floor_of(module) == "models" and module != "musecode_jupyter.models"
    if beside_the_clients or module == "musecode_jupyter.guard.gate":
        return
    for line, name in imports_of(module):
        clients = [client for client in CLIENTS if within(name, f"musecode_jupyter.models.{client}")]
        assert not clients, f"{module}:{line} imports the model client {name}: only guard/gate.py may"


@of_each_module
def test_the_core_knows_no_notebook(module: str) -> None:
    if floor_of(module) not in CORE:
        return
    for line, name in imports_of(module):
        assert name.split(".")[0] not in FACE_LIBRARIES, (
            f"{module}:{line} imports {name}: the core works without IPython"
        )


@of_each_module
def test_no_module_patches_the_event_loop(module: str) -> None:
    for line, name in imports_of(module):
        assert not name.startswith("nest_asyncio"), f"{module}:{line} imports {name}"


@of_each_module
def test_only_workspace_git_runs_git(module: str) -> None:
    for line, name in imports_of(module):
        # Even its import starts a process, with the whole environment and beside the effects.
        assert not within(name, "git"), f"{module}:{line} imports GitPython: go through workspace/git.py"
        if within(name, "gitdb"):
            assert module == "musecode_jupyter.workspace.objects", f"{module}:{line} imports gitdb: ask workspace/git"
    if module == "musecode_jupyter.workspace.git":
        return
    for node in ast.walk(TREES[module]):
        if not isinstance(node, ast.Call):
            continue
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            match argument:
                case ast.List(elts=[ast.Constant(value="git"), *_]) | ast.Tuple(elts=[ast.Constant(value="git"), *_]):
                    pytest.fail(f"{module}:{node.lineno} runs git: go through workspace/git.py")
                case ast.Constant(value=str(text)) if called_name(node) in {
                    "run",
                    "Popen",
                    "system",
                    "check_output",
                }:
                    assert not text.startswith("git "), f"{module}:{node.lineno} runs git: go through workspace/git.py"
                case _:
                    pass


@of_each_module
def test_the_world_is_asked_through_the_effects(module: str) -> None:
    """What is not a function of the log goes through runtime/effects.py, so that it can be recorded."""
    if floor_of(module) not in CORE[CORE.index("guard") :] or module in LIVE:
        return
    for line, name in imports_of(module):
        assert name.split(".")[0] not in WORLD, f"{module}:{line} imports {name}: ask the effects"
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in DIRECT, f"{module}:{node.lineno} calls {called}: ask the effects"
        elif isinstance(node, ast.Attribute):
            assert ast.unparse(node) != "os.environ", f"{module}:{node.lineno} reads os.environ: ask the effects"


@of_each_module
def test_a_module_says_its_job_and_stays_small(module: str) -> None:
    path = MODULES[module]
    assert ast.get_docstring(TREES[module]), f"{path} does not say in its first line what it is responsible for"
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 800, f"{path} has {lines} lines: split it"
    assert path.stem not in DRAWERS, f"{path} is a drawer: name it after what it does"


def test_every_package_folder_is_a_floor() -> None:
    folders = {path.parent.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*/*.py")}
    assert folders <= set(FLOORS), f"not on the list of floors: {sorted(folders - set(FLOORS))}"


LOAD = """
import contextlib, io, json, sys, time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
printed = io.StringIO()
started = time.perf_counter()
with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
    shell.run_line_magic("load_ext", "musecode_jupyter")
seconds = time.perf_counter() - started
print(json.dumps({"seconds": seconds, "printed": printed.getvalue(), "modules": sorted(sys.modules)}))
"""


def load_in_a_fresh_process() -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_load_ext_is_silent_and_light() -> None:
    loads = [load_in_a_fresh_process() for _ in range(3)]
    assert loads[0]["printed"] == ""
    loaded = [name for name in HEAVY if name in loads[0]["modules"]]
    assert not loaded, f"%load_ext loads {loaded}"
    # The fastest of three: the others may have waited for the disk or for another process.
    assert min(load["seconds"] for load in loads) < 0.3
