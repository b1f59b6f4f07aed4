"""Imports resolved to the files of a repository: Python first, then includes, scripts, crates and packages of Go.

Nothing is run and no file beyond the map is looked at: what is installed, generated or put on the path by a program is
not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from musecode_jupyter.agents.repomap.facts import FileFacts, Import

_ROOTS = ("", "src", "lib", "python")
_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg", "conftest.py")
_SCRIPT_ENDINGS = (".ts", ".tsx", ".js", ".jsx", ".mjs", ".cjs", ".d.ts", "/index.ts", "/index.tsx", "/index.js")
_DEEPEST = 8
_MOST_OF_A_PACKAGE = 50
_CRATE_WORD = re.compile(r"[\w:]+")


def folder(path: str) -> str:
    """The folder of a path; empty for one at the root."""
    return path.rpartition("/")[0]


def joined(*parts: str) -> str:
    """A path out of parts, of which some may be empty, and `.` and `..` taken out; empty if it leads out."""
    found: list[str] = []
    for part in "/".join(parts).split("/"):
        if part == "..":
            if not found:
                return ""
            found.pop()
        elif part not in {"", "."}:
            found.append(part)
    return "/".join(found)


@dataclass
class Resolver:
    """Finds what imports mean among the files of one repository."""

    files: Mapping[str, FileFacts]
    _folders: set[str] = field(default_factory=set)
    _by_name: dict[str, list[str]] = field(default_factory=dict)
    _roots: list[str] = field(default_factory=list)
    _go: dict[str, list[str]] = field(default_factory=dict)
    _modules: dict[tuple[str, str], str | None] = field(default_factory=dict)
    _defined: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        roots: set[str] = set()
        for path in sorted(self.files):
            above = folder(path)
            name = path[len(above) + 1 :] if above else path
            self._by_name.setdefault(name, []).append(path)
            if path.endswith(".go"):
                self._go.setdefault(above, []).append(path)
            if name in _PROJECT:
                roots |= {above, joined(above, "src")}
            if name == "__init__.py" and joined(folder(above), "__init__.py") not in self.files:
                roots.add(folder(above))
            while path.endswith((".py", ".pyi")) and above not in self._folders:
                self._folders.add(above)  # in the end also that of the root, whose name is empty
                above = folder(above)
        self._roots = [*_ROOTS, *sorted(roots - set(_ROOTS))]

    def imported(self, path: str) -> set[str]:
        """The files that `path` imports by what is written in it, without itself."""
        facts = self.files[path]
        found: set[str] = set()
        for each in facts.imports:
            if facts.language == "python":
                found |= self._python(path, each)
            elif facts.language == "c":
                found |= self._included(path, each.module)
            elif facts.language in {"javascript", "typescript", "tsx"}:
                found |= self._script(path, each.module)
            elif facts.language == "rust":
                found |= self._crate(path, each.module)
            elif facts.language == "go":
                found |= self._package(each.module)
            elif facts.language == "shell":
                found |= self._first(joined(folder(path), each.module), joined(each.module))
        return found - {path}

    def _python(self, path: str, each: Import) -> set[str]:
        base = self._module(path, each.module)
        if base is None:
            return set()
        found = {base} if base in self.files else set()
        for name, _ in each.names:
            found |= self._named(base, name, set())
        return found

    def _module(self, importer: str, name: str) -> str | None:
        """The file, or the folder without `__init__.py`, that a module name means where `importer` imports it."""
        relative = name.lstrip(".")
        level = len(name) - len(relative)
        inside = relative.replace(".", "/")
        above = folder(importer)
        if level:
            for _ in range(level - 1):
                if not above:
                    return None
                above = folder(above)
            return self._python_file(above, inside) or self._python_folder(above, inside)
        while above and f"{above}/__init__.py" in self.files:
            above = folder(above)
        if (above, inside) not in self._modules:
            self._modules[above, inside] = self._absolute(above, inside)
        return self._modules[above, inside]

    def _absolute(self, above: str, inside: str) -> str | None:
        # A script sees its own folder, a test those of its conftest.py files, all see the sources' roots.
        near = [above]
        while above:
            above = folder(above)
            near.append(above)
        roots = list(dict.fromkeys([*near, *self._roots]))
        # A folder without `__init__.py` is a package only where no root has a real one.
        for look in (self._python_file, self._python_folder):
            for root in roots:
                found = look(root, inside)
                if found is not None:
                    return found
        return None

    def _python_file(self, root: str, inside: str) -> str | None:
        at = f"{root}/{inside}" if root and inside else root or inside
        package = f"{at}/__init__.py" if at else "__init__.py"
        return next((each for each in (package, f"{at}.py", f"{at}.pyi", f"{package}i") if each in self.files), None)

    def _python_folder(self, root: str, inside: str) -> str | None:
        at = f"{root}/{inside}" if root and inside else root or inside
        return at if at in self._folders else None

    def _named(self, base: str, name: str, seen: set[tuple[str, str]]) -> set[str]:
        """The files through which `name` comes when it is imported from `base`, a file or a folder."""
        if name == "*" or (base, name) in seen:
            return set()
        seen.add((base, name))
        facts = self.files.get(base)
        if facts is not None:
            if name in self._names(base):
                return {base}
            for each in facts.imports:
                for original, bound in each.names:
                    there = self._module(base, each.module) if bound == name else None
                    if there is not None and there != base:
                        return ({there} & self.files.keys()) | self._named(there, original, seen)
            for each in facts.imports:
                there = self._module(base, each.module) if ("*", "*") in each.names else None
                found = set() if there is None else self._named(there, name, seen)
                if found:
                    return found
        package = folder(base) if base.endswith(("/__init__.py", "/__init__.pyi")) else base
        inside = self._python_file(package, name) if package in self._folders else None
        return set() if inside is None else {inside}

    def _names(self, path: str) -> frozenset[str]:
        if path not in self._defined:
            self._defined[path] = frozenset(symbol.name for symbol in self.files[path].symbols)
        return self._defined[path]

    def _first(self, *candidates: str) -> set[str]:
        return {next((each for each in candidates if each and each in self.files), "")} - {""}

    def _included(self, path: str, written: str) -> set[str]:
        name = written.strip('"<>')
        beside = [joined(folder(path), name)] if written.startswith('"') else []
        found = self._first(*beside, *(joined(root, name) for root in ("", "include", "src", "csrc")))
        if found or not name:
            return found
        ends = [each for each in self._by_name.get(name.rpartition("/")[2], ()) if f"/{each}".endswith(f"/{name}")]
        return set(ends) if len(ends) == 1 else set()

    def _script(self, path: str, written: str) -> set[str]:
        if not written.startswith("."):
            return set()
        at = joined(folder(path), written)
        # TypeScript names the file that its compiler will write.
        source = re.sub(r"\.([mc]?)js(x?)$", r".\1ts\2", at)
        return self._first(at, source, *(f"{at}{ending}" for ending in _SCRIPT_ENDINGS))

    def _crate(self, path: str, written: str) -> set[str]:
        words = written.removesuffix(";").split()
        above, stem = folder(path), path.rpartition("/")[2].removesuffix(".rs")
        own = above if stem in {"mod", "lib", "main"} else joined(above, stem)
        if "mod" in words:
            return self._rust_file(own, words[-1]) or self._rust_file(above, words[-1])
        found: set[str] = set()
        body = written.partition("use ")[2].removesuffix(";")
        head = body.partition("{")[0]
        base = above
        while base and base.rpartition("/")[2] != "src":
            base = folder(base)
        for start, root in (("crate::", base), ("self::", own), ("super::", folder(own))):
            if head.startswith(start):
                first = [word for word in head[len(start) :].split("::") if word]
                ends = _CRATE_WORD.findall(body.partition("{")[2]) or [""]
                for end in ends:
                    found |= self._longest(root, [*first, *(word for word in end.split("::") if word)])
        return found

    def _longest(self, root: str, parts: list[str]) -> set[str]:
        for count in range(len(parts), 0, -1):
            found = self._rust_file(joined(root, *parts[: count - 1]), parts[count - 1])
            if found:
                return found
        return set()

    def _rust_file(self, above: str, name: str) -> set[str]:
        return self._first(joined(above, f"{name}.rs"), joined(above, name, "mod.rs"))

    def _package(self, written: str) -> set[str]:
        parts = written.strip('"`').split("/")
        for start in range(len(parts)):
            inside = "/".join(parts[start:])
            if inside in self._go:
                sources = [each for each in self._go[inside] if not each.endswith("_test.go")]
                return set(sources[:_MOST_OF_A_PACKAGE])
        return set()


def conftests(path: str, files: Mapping[str, FileFacts]) -> set[str]:
    """The `conftest.py` files that pytest loads for a test file."""
    found: set[str] = set()
    above = folder(path)
    while True:
        found.add(joined(above, "conftest.py"))
        if not above:
            return (found & files.keys()) - {path}
        above = folder(above)
