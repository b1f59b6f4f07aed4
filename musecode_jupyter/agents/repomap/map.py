"""The map: what the files of a repository hold, who imports whom, which tests belong to which sources."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from musecode_jupyter.agents.code_index import is_test_file
from musecode_jupyter.agents.repomap.facts import FileFacts, Symbol, facts_of
from musecode_jupyter.agents.repomap.imports import Resolver, conftests, folder
from musecode_jupyter.agents.repomap.languages import language_of

_TEST = re.compile(r"(^|/)(__tests__|testdata)/|[._-](test|spec)\.[cm]?[jt]sx?$|_test\.(go|cc|cpp|cu|rs)$")
_CANDIDATES = 6
"""A name that more files define says too little about which of them is meant."""
_EVERYWHERE = 200
"""A name that more places define, such as `main` in a large repository, is not followed: a use costs a look at all."""
_GUESS = 0.3
"""Weight of a use of which it is not sure what it means."""
_EXACT = frozenset({"python", "rust", "go"})
"""Languages in which a name of another file is imported, or is taken from what is."""
TEST_WEIGHT = 0.3
"""A use in a test says less of what the rest is built on than one in a source."""

_TEST_NAME = re.compile(r"^test_(.+)|(.+?)[._-](?:test|spec)$")


def is_test(path: str) -> bool:
    """Whether a file belongs to the tests, by the usual names; helpers and `conftest.py` too."""
    return is_test_file(path) or _TEST.search(path) is not None


@dataclass(frozen=True)
class Place:
    """Where a symbol is defined."""

    path: str
    symbol: Symbol


@dataclass(frozen=True)
class RepoMap:
    """The facts on each file by its path relative to the root, and what follows from them.

    A function of `facts` alone: the same files give the same map, however it came about.
    """

    facts: Mapping[str, FileFacts]
    digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> RepoMap:
        """The map of files with these contents, by path."""
        return cls({path: facts_of(language_of(path), data) for path, data in sorted(files.items())})

    @cached_property
    def imports(self) -> Mapping[str, frozenset[str]]:
        """The files that each file imports directly; a test file also loads its `conftest.py` files."""
        resolver = Resolver(self.facts)
        found: dict[str, frozenset[str]] = {}
        for path, facts in self.facts.items():
            used = resolver.imported(path) if facts.imports else set()
            if facts.language == "python" and (_holds_tests(path) or PurePosixPath(path).name == "conftest.py"):
                used |= conftests(path, self.facts)
            if used:
                found[path] = frozenset(used)
        return found

    @cached_property
    def importers(self) -> Mapping[str, tuple[str, ...]]:
        """The files that import each file directly, in order."""
        return _turned(self.imports)

    @cached_property
    def tests(self) -> Mapping[str, tuple[str, ...]]:
        """The test files of each source: those named after it first, then those that import it."""
        named: dict[str, list[str]] = {}
        importing: dict[str, list[str]] = {}
        sources: dict[str, list[str]] = {}
        for path in self.facts:
            if not is_test(path) and self.facts[path].language not in {"", "prose"}:
                sources.setdefault(PurePosixPath(path).name.partition(".")[0], []).append(path)
        for path in self.facts:
            if not _holds_tests(path):
                continue
            for source in _named_after(path, sources, self.imports.get(path, frozenset())):
                named.setdefault(source, []).append(path)
            for source in sorted(self._imported_by_test(path)):
                importing.setdefault(source, []).append(path)
        return {
            path: tuple(dict.fromkeys([*named.get(path, ()), *importing.get(path, ())]))
            for path in sorted(named.keys() | importing.keys())
        }

    def _imported_by_test(self, path: str) -> set[str]:
        """The sources that a test imports, itself or through helpers among the tests."""
        found: set[str] = set()
        seen = {path}
        queue = [path]
        for current in queue:
            for used in self.imports.get(current, ()):
                if not is_test(used):
                    found.add(used)
                elif used not in seen:
                    seen.add(used)
                    queue.append(used)
        return found

    def reaching(self, paths: Collection[str]) -> set[str]:
        """`paths` and every file that imports one of them, directly or through others."""
        seen = set(paths)
        queue = sorted(seen)
        for current in queue:
            for importer in self.importers.get(current, ()):
                if importer not in seen:
                    seen.add(importer)
                    queue.append(importer)
        return seen

    def affected_tests(self, paths: Collection[str]) -> list[str]:
        """The test files that a change of `paths` can break, as far as imports say it."""
        return sorted(path for path in self.reaching(paths) if _holds_tests(path))

    @cached_property
    def by_name(self) -> Mapping[str, tuple[Place, ...]]:
        """Where each name is defined, by the last part of the name; sources before tests, then in order of paths."""
        found: dict[str, list[Place]] = {}
        for path in sorted(self.facts, key=lambda path: (is_test(path), path)):
            for symbol in self.facts[path].symbols:
                if symbol.kind != "heading":
                    found.setdefault(symbol.short, []).append(Place(path, symbol))
        return {name: tuple(places) for name, places in found.items()}

    @cached_property
    def references(self) -> dict[tuple[str, str], dict[str, float]]:
        """Which files use which symbol how much: by file and name of the symbol, by using file.

        A bare name was imported, or (where imports do not say which names) may be any of its language. A name that is
        taken from an object is a method of this name, more likely one of a file that is imported.
        """
        found: dict[tuple[str, str], dict[str, float]] = {}
        fields = Counter(name for facts in self.facts.values() for name in facts.fields)
        for path, facts in self.facts.items():
            test = is_test(path)
            imported = self.imports.get(path, frozenset())
            for name, lines in facts.used():
                taken = name.startswith(".")
                everywhere = self.by_name.get(name.removeprefix("."), ())
                if len(everywhere) > _EVERYWHERE:
                    continue
                places = [
                    place
                    for place in everywhere
                    if place.path != path
                    and (place.path in imported or (taken or facts.language not in _EXACT))
                    and (place.path in imported or place.symbol.kind == "method" or not taken)
                    and (taken or place.symbol.kind != "method")
                    and _family(self.facts[place.path].language) == _family(facts.language)
                    and (test or not is_test(place.path))
                ]
                near = [place for place in places if place.path in imported]
                meant = near or places
                # What is taken from an object may as well be a field of another class.
                meanings = len(places) + (fields[name[1:]] if taken else 0)
                if not meant or meanings > _CANDIDATES:
                    continue
                weight = math.sqrt(len(lines)) / meanings * (TEST_WEIGHT if test else 1.0) * (1.0 if near else _GUESS)
                for place in meant:
                    uses = found.setdefault((place.path, place.symbol.name), {})
                    uses[path] = uses.get(path, 0.0) + weight
        return found

    def defined(self, name: str) -> tuple[Place, ...]:
        """Where `name` is defined: `f`, `Class.method`, `module.f` or `package/module.py:f`."""
        path, _, rest = name.rpartition(":")
        parts = [part for part in re.split(r"\.|::", rest) if part]
        if not parts:
            return ()
        wanted = tuple(
            place
            for place in self.by_name.get(parts[-1], ())
            if f".{_dotted(place)}".endswith("." + ".".join(parts)) and place.path.endswith(path)
        )
        exact = tuple(place for place in wanted if place.symbol.name == ".".join(parts))
        return exact or wanted

    def users(self, place: Place) -> list[tuple[str, list[int]]]:
        """Files that may mention a symbol, with lines: its own first, then those that import its file, then others.

        Only names are compared. A method is taken from an object, which may come from anywhere that reaches its file
        through imports; another name is imported, or no imports tell, as in C.
        """
        symbol, name = place.symbol, place.symbol.short
        method = symbol.kind == "method"
        family = _family(self.facts[place.path].language)
        reached = self.reaching([place.path]) if method else {place.path, *self.importers.get(place.path, ())}
        found = []
        for path, facts in self.facts.items():
            if _family(facts.language) == family and (path in reached or (facts.language not in _EXACT and not method)):
                own = {each.line for each in facts.symbols if each.short == name}
                lines = [line for line in facts.lines_of(name, bare=not method) if line not in own]
                if lines:
                    found.append((path, lines))
        direct = self.imports
        found.sort(
            key=lambda each: (
                each[0] != place.path,
                place.path not in direct.get(each[0], ()),
                is_test(each[0]),
                each[0],
            )
        )
        return found


def _family(language: str) -> str:
    return "typescript" if language in {"javascript", "tsx"} else language


def _dotted(place: Place) -> str:
    module = place.path.rpartition(".")[0].removesuffix("/__init__").replace("/", ".")
    return f"{module}.{place.symbol.name}"


def _holds_tests(path: str) -> bool:
    """Whether a file is run by a test runner, and is no helper of tests."""
    name = PurePosixPath(path).name.partition(".")[0]
    return is_test(path) and (_TEST_NAME.match(name) is not None or _TEST.search(path) is not None)


def _named_after(test: str, sources: Mapping[str, list[str]], imported: Collection[str]) -> list[str]:
    """The source after which a test file is called; where several are, the one that it imports or that lies nearest."""
    name = PurePosixPath(test).name
    match = _TEST_NAME.match(name.rpartition(".")[0])
    found = sources.get((match[1] or match[2]).partition(".")[0], []) if match else []
    found = [path for path in found if path in imported] or found
    if len(found) > 1:
        words = set(folder(test).split("/"))
        shared = {path: len(words & set(folder(path).split("/"))) for path in found}
        most = max(shared.values())
        found = [path for path in found if shared[path] == most]
    return found if len(found) == 1 else []


def _turned(edges: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for path in sorted(edges):
        for used in sorted(edges[path]):
            found.setdefault(used, []).append(path)
    return {used: tuple(paths) for used, paths in sorted(found.items())}
