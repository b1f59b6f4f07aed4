"""What scheduling wants to know of a repository and can read from its files: which file imports which."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

from musecode_jupyter.agents.code_index import module_name
from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.runtime.effects import Effects
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.runtime.syntax import parse
from musecode_jupyter.tools.files import read_bytes

MOST_FILES = 4_000
MOST_BYTES = 400_000


def imports_of(sources: Mapping[str, str], others: Collection[str] = ()) -> dict[str, frozenset[str]]:
    """Which Python files each of `sources` (text by path) imports, of these and of `others` (paths).

    Files that do not parse import nothing.
    """
    by_module = {module_name(path): path for path in [*others, *sources]}
    found: dict[str, frozenset[str]] = {}
    for path, text in sources.items():
        try:
            tree = parse(text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        names = {name for node in ast.walk(tree) for name in _imported(node, path)}
        found[path] = frozenset(by_module[name] for name in names if name in by_module) - {path}
    return {path: used for path, used in found.items() if used}


def read_imports(root: Path, files: list[str], only: Collection[str] | None = None) -> dict[str, frozenset[str]]:
    """`imports_of` the Python files among `files` below `root`, or just `only` these; blocks while it reads them."""
    python = [name for name in files if name.endswith(".py")]
    sources: dict[str, str] = {}
    for name in [name for name in python if only is None or name in only][:MOST_FILES]:
        try:
            _, data = read_bytes(root, name, limit=MOST_BYTES)
        except (ToolProblem, OSError):
            continue
        sources[name] = (data or b"").decode("utf-8", "replace")
    return imports_of(sources, python if only is not None else ())


@answered
async def imports_below(
    effects: Effects, root: Path, files: list[str], only: list[str] | None = None
) -> dict[str, frozenset[str]]:
    """`read_imports` off the loop."""
    return await effects.disk(read_imports, root, files, only)


def _imported(node: ast.AST, path: str) -> list[str]:
    """Full names of modules that an import may mean: `from a import b` may mean a, and a.b."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        package = PurePosixPath(path).parts[: -node.level]
        inside = module_name("/".join([*package, "__init__.py"])) if package else ""
        base = ".".join(part for part in (inside, base) if part)
    return [base, *(f"{base}.{alias.name}" if base else alias.name for alias in node.names)]
