"""What a repository's Python sources define and refer to, read from their syntax trees only."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from musecode_jupyter.runtime.syntax import parse

_TEST_FILE = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")
_TEST_FOLDER = re.compile(r"(^|/)tests?/")

# A name that more definitions share says too little about which of them is meant.
_MOST_CANDIDATES = 6

_BUILTIN = frozenset(dir(builtins))

# What syntax calls without naming it.
_BY_SYNTAX: tuple[tuple[type[ast.AST], str], ...] = (
    (ast.In, "__contains__"), (ast.NotIn, "__contains__"), (ast.Eq, "__eq__"), (ast.NotEq, "__eq__"),
    (ast.Lt, "__lt__"), (ast.LtE, "__le__"), (ast.Gt, "__gt__"), (ast.GtE, "__ge__"), (ast.Add, "__add__"),
    (ast.Sub, "__sub__"), (ast.Mult, "__mul__"), (ast.Div, "__truediv__"), (ast.Pow, "__pow__"),
    (ast.Subscript, "__getitem__"), (ast.For, "__iter__"), (ast.comprehension, "__iter__"),
    (ast.With, "__enter__"), (ast.JoinedStr, "__str__"),
)  # fmt: skip
_BY_BUILTIN = {"len": "__len__", "str": "__str__", "repr": "__repr__", "iter": "__iter__", "bool": "__bool__",
               "hash": "__hash__", "sorted": "__lt__", "next": "__next__"}  # fmt: skip


def is_test_file(path: str) -> bool:
    """Whether a file holds tests, by the usual names."""
    return bool(_TEST_FILE.search(path) or _TEST_FOLDER.search(path))


@dataclass(frozen=True)
class Definition:
    """A function, a class's fields, or a top-level assignment: lines `start` to `end` of `path`.

    `exact` are the full names that it refers to, `loose` the attribute names on objects of unknown type.
    """

    path: str
    name: str
    start: int
    end: int
    exact: frozenset[str]
    loose: frozenset[str]
    text: str

    @property
    def short(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]


@dataclass
class CodeIndex:
    """All definitions of the given files."""

    definitions: list[Definition] = field(default_factory=list)
    _by_full: dict[str, list[Definition]] = field(default_factory=dict)
    _by_attribute: dict[str, list[Definition]] = field(default_factory=dict)
    _imports: dict[str, set[str]] = field(default_factory=dict)
    _modules: dict[str, str] = field(default_factory=dict)
    _trees: dict[str, ast.Module] = field(default_factory=dict)
    _tables: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Mapping[str, str]) -> CodeIndex:
        """Index files by path relative to the repository's root; files that do not parse are left out."""
        index = cls()
        for path, text in files.items():
            try:
                index._trees[path] = parse(text)
            except (SyntaxError, ValueError):
                continue
            index._modules[module_name(path)] = path
        for path, tree in index._trees.items():
            index._add(path, tree, files[path].splitlines())
        return index

    def at(self, path: str, line: int) -> Definition | None:
        """The innermost definition that has that line."""
        found = [d for d in self.definitions if d.path == path and d.start <= line <= d.end]
        return min(found, key=lambda d: d.end - d.start, default=None)

    def reached(self, start: Definition) -> dict[Definition, int]:
        """Definitions outside of tests that `start` may use, with the number of steps to each."""
        modules = self._reachable(start.path)
        steps = {start: 0}
        queue = [start]
        for current in queue:
            for target in self._targets(current, modules):
                if target not in steps:
                    steps[target] = steps[current] + 1
                    queue.append(target)
        return {d: n for d, n in steps.items() if d is not start and not is_test_file(d.path)}

    def guarding(self, path: str, line: int) -> set[Definition]:
        """Definitions that the conditions around a line refer to; they decide whether it runs."""
        tree = self._trees.get(path)
        tests: list[ast.expr] = []
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.If | ast.While) and node.lineno <= line <= (node.end_lineno or 0):
                tests.append(node.test)
        if not tests:
            return set()
        exact, loose = _references(tests, self._tables[path])
        source = Definition(path, "", line, line, exact, loose, "")
        return set(self._targets(source, self._reachable(path)))

    def _reachable(self, path: str) -> set[str]:
        seen = {path}
        queue = [path]
        for current in queue:
            for module in self._imports.get(current, ()):
                target = self._modules.get(module)
                if target is not None and target not in seen:
                    seen.add(target)
                    queue.append(target)
        return seen

    def _targets(self, source: Definition, modules: set[str]) -> Iterator[Definition]:
        for name in sorted(source.exact):
            yield from self._by_full.get(name, ())
        for name in sorted(source.loose):
            found = [d for d in self._by_attribute.get(name, ()) if d.path in modules]
            if len(found) <= _MOST_CANDIDATES:
                yield from found

    def _add(self, path: str, tree: ast.Module, lines: list[str]) -> None:
        module = module_name(path)
        names = _import_table(tree, module, is_package=path.endswith("__init__.py"))
        self._imports[path] = _imported_modules(tree, module, is_package=path.endswith("__init__.py"))
        local = {name: f"{module}.{name}" for name in _top_level_names(tree)}
        table = self._tables[path] = names | local

        def define(name: str, nodes: list[ast.stmt], keys: Iterable[str], attribute: str | None) -> None:
            exact, loose = _references(nodes, table)
            start = min(_first_line(node) for node in nodes)
            end = max(node.end_lineno or node.lineno for node in nodes)
            new = Definition(path, name, start, end, exact, loose, "\n".join(lines[start - 1 : end]))
            self.definitions.append(new)
            for key in keys:
                self._by_full.setdefault(key, []).append(new)
            if attribute is not None:
                self._by_attribute.setdefault(attribute, []).append(new)

        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                define(node.name, [node], [f"{module}.{node.name}"], None)
            elif isinstance(node, ast.ClassDef):
                full = f"{module}.{node.name}"
                fields: list[ast.stmt] = []
                for member in node.body:
                    if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                        # Making an object runs these without naming them.
                        keys = [f"{full}.{member.name}"]
                        if member.name in {"__init__", "__post_init__", "__new__"}:
                            keys.append(full)
                        define(f"{node.name}.{member.name}", [member], keys, member.name)
                    elif isinstance(member, ast.Assign | ast.AnnAssign):
                        fields.append(member)
                if fields:
                    define(node.name, fields, [full], None)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and path:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                named = [target.id for target in targets if isinstance(target, ast.Name)]
                if named:
                    define(named[0], [node], [f"{module}.{name}" for name in named], None)


def module_name(path: str) -> str:
    """The name under which a file is imported; a leading `src` folder does not count."""
    parts = path.removesuffix(".py").split("/")
    if parts[0] == "src" and len(parts) > 1:
        parts = parts[1:]
    if parts[-1] == "__init__" and len(parts) > 1:
        parts = parts[:-1]
    return ".".join(parts)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _top_level_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _origin(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _import_table(tree: ast.Module, module: str, *, is_package: bool) -> dict[str, str]:
    table: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                table[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, module, is_package=is_package)
            for alias in node.names:
                table[alias.asname or alias.name] = f"{origin}.{alias.name}" if origin else alias.name
    return table


def _imported_modules(tree: ast.Module, module: str, *, is_package: bool) -> set[str]:
    """What is imported where the module is used; of a package, which others import by the way, where it is loaded."""
    found: set[str] = set()
    for node in _run(tree, functions=not is_package):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, module, is_package=is_package)
            found.add(origin)
            found.update(f"{origin}.{alias.name}" for alias in node.names)
    # Importing a.b.c runs a and a.b too.
    return {".".join(parts[:count]) for parts in (n.split(".") for n in found) for count in range(1, len(parts) + 1)}


def _run(tree: ast.Module, *, functions: bool) -> Iterator[ast.AST]:
    """The nodes of a module that run: not what is there for type checkers alone, nor functions if not wanted."""
    queue: list[ast.AST] = [tree]
    for node in queue:
        yield node
        inner: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if isinstance(node, ast.If) and _dotted(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            inner = node.orelse
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not functions:
            inner = ()
        queue.extend(inner)


def _references(nodes: Sequence[ast.AST], table: Mapping[str, str]) -> tuple[frozenset[str], frozenset[str]]:
    exact: set[str] = set()
    loose: set[str] = set()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if node.id in table:
                exact.add(table[node.id])
            elif node.id in _BUILTIN and node.id in _BY_BUILTIN:
                loose.add(_BY_BUILTIN[node.id])
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            dotted = _dotted(node)
            head, _, rest = dotted.partition(".")
            if head in table:
                exact.add(f"{table[head]}.{rest}")
            loose.add(node.attr)
        else:
            loose.update(name for kind, name in _BY_SYNTAX if isinstance(node, kind))
    return frozenset(exact), frozenset(loose)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return node.id if isinstance(node, ast.Name) else ""
