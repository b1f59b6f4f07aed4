"""Judges `forbid` clauses on exactly one tree: imports by parsing its changed Python files, paths by their names."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from musecode_jupyter.log.goal_kinds import ClauseVerdict
from musecode_jupyter.runtime.answers import answered
from musecode_jupyter.skills.clauses import Forbidden, parse_forbid
from musecode_jupyter.workspace.git import Git
from musecode_jupyter.workspace.worktrees import some_names

_PYTHON = (".py", ".pyi", ".pyw", ".ipynb")


async def forbid_verdicts(git: Git, patterns: Sequence[str], base: str, commit: str) -> list[ClauseVerdict]:
    """What each pattern comes to on `commit`, of which the changes since `base` are looked at."""
    if not patterns:
        return []
    return [
        ClauseVerdict(
            kind="forbid", clause=pattern, passed=not found, why=f"found in {some_names(found)}" if found else ""
        )
        for pattern, found in zip(patterns, await violations(git, list(patterns), base, commit), strict=True)
    ]


@answered
async def violations(git: Git, patterns: list[str], base: str, commit: str) -> list[list[str]]:
    """For each pattern where it is broken, as paths, or paths with lines."""
    changed = await git.diff_paths(base, commit)
    parsed = [parse_forbid(pattern) for pattern in patterns]
    imports = [each.pattern for each in parsed if each.kind == "import"]
    found: dict[str, list[str]] = {name: [] for name in imports}
    if imports:
        for path in changed:
            if path.lower().endswith(_PYTHON):
                shown = await git.run("cat-file", "blob", f"{commit}:{path}", check=False)
                if shown.code == 0:
                    _look(path, shown.out, found)
    return [_paths(each, changed) if each.kind == "path" else found[each.pattern] for each in parsed]


def _paths(pattern: Forbidden, changed: Sequence[str]) -> list[str]:
    return [path for path in changed if path_matches(path, pattern.pattern)]


def path_matches(path: str, pattern: str) -> bool:
    """Whether the pattern names the path, or a folder that it lies in; `*` matches across folders too."""
    pattern = pattern.rstrip("/")
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}/*") or fnmatchcase(f"/{path}", pattern)


def _look(path: str, content: bytes, found: dict[str, list[str]]) -> None:
    try:
        source = _cells(content) if path.lower().endswith(".ipynb") else content
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # What cannot be parsed cannot be shown to be free of it.
        for places in found.values():
            places.append(f"{path} (cannot be parsed)")
        return
    for line, name in imported(tree):
        for module, places in found.items():
            if name == module or name.startswith(f"{module}."):
                places.append(f"{path}:{line}")


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of each absolute import in the tree, `__import__` and `import_module` of a constant too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"__import__", "import_module"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def _cells(content: bytes) -> str:
    notebook = json.loads(content)
    cells = [cell for cell in notebook.get("cells", []) if cell.get("cell_type") == "code"]
    lines = "\n".join("".join(cell.get("source", [])) for cell in cells).split("\n")
    return "\n".join("" if line.lstrip().startswith(("%", "!", "?")) else line for line in lines)
