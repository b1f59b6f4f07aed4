"""The map as text for a prompt or a notebook: a pure function of map, focus and budget, the same bytes each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from musecode_jupyter.agents.repomap.facts import NOT_YET, FileFacts, Symbol
from musecode_jupyter.agents.repomap.imports import folder
from musecode_jupyter.agents.repomap.map import RepoMap, is_test
from musecode_jupyter.agents.repomap.rank import Focus, Ranking, rank
from musecode_jupyter.tools.encoding import shown

BUDGET = 8_000
"""Characters of a text, if nothing else is said: about 2,000 tokens."""

_MOST_FOLDERS = 16
_MOST_OF_A_FILE = 12
_MOST_OF_A_TEST = 4
_SHORTEST = 7
"""Characters of the shortest line: so many lines as the budget has of these cannot fit."""


def name_of(path: str) -> str:
    """A path as it is shown: on one line, without bytes that are no text."""
    return shown(path).replace("\n", "\ufffd")


def render(repo: RepoMap, focus: Focus, budget: int = BUDGET) -> str:
    """The most important files and signatures first, at most `budget` characters.

    With a focus, what matters for it; `focus.paths` of folders show what is below them only.
    """
    head = "" if focus.paths or focus.words else overview(repo)
    ranking = rank(repo, focus)
    below = [path for path in focus.paths if path not in repo.facts]
    paths = [
        path
        for path in sorted(repo.facts, key=lambda path: (-ranking.files[path], path))
        if (not below or any(path.startswith(f"{each.rstrip('/')}/") for each in below))
        and repo.facts[path].language
        and (repo.facts[path].symbols or repo.facts[path].summary)
    ]
    items = _items(repo, ranking, paths)[: budget // _SHORTEST]
    low, high = 0, len(items)
    text = _text(repo, head, paths, items[:0])
    while low < high:
        middle = (low + high + 1) // 2
        candidate = _text(repo, head, paths, items[:middle])
        if len(candidate) <= budget:
            low, text = middle, candidate
        else:
            high = middle - 1
    return text if len(text) <= budget else f"{text[: max(budget - 6, 0)]}\n[...]"[:budget]


def overview(repo: RepoMap) -> str:
    """How many files there are, in which languages and folders."""
    languages = Counter(facts.language for facts in repo.facts.values() if facts.language)
    ordered = sorted(languages.items(), key=lambda each: (-each[1], each[0]))
    kinds = ", ".join(f"{count} {name}" for name, count in ordered)
    folders = Counter("/".join(folder(path).split("/")[:2]) for path in repo.facts)
    most = sorted(folders.items(), key=lambda each: (-each[1], each[0]))[:_MOST_FOLDERS]
    lines = [f"{len(repo.facts)} files" + (f": {kinds}" if kinds else "")]
    if len(folders) > 1:
        parts = [f"{name_of(name) or '.'}/ {count}" for name, count in sorted(most)]
        rest = len(folders) - len(most)
        lines.append("  ".join(parts) + (f"  and {rest} more folders" if rest else ""))
    late = sum(facts.note == NOT_YET for facts in repo.facts.values())
    if late:
        lines.append(f"{late} of them {NOT_YET}: there was no time; ask again")
    return "\n".join(lines) + "\n"


def head_of(repo: RepoMap, path: str) -> str:
    """A line on a file: its name, size, what it is for, and how many import it."""
    facts = repo.facts[path]
    importers = repo.importers.get(path, ())
    sources = sum(not is_test(each) for each in importers)
    known = [f"{facts.lines} lines"]
    if importers:
        tests = len(importers) - sources
        known.append(f"imported by {sources}" + (f" and {tests} of the tests" if tests else ""))
    if facts.note:
        known.append(facts.note)
    return f"{name_of(path)} ({', '.join(known)})" + (f": {shown(facts.summary)}" if facts.summary else "")


def line_of(symbol: Symbol) -> str:
    """A line on a symbol: where it begins, and its signature, indented as deep as it lies."""
    return f"{symbol.start:>5} {'  ' * _depth(symbol)}{shown(symbol.signature)}"


def _depth(symbol: Symbol) -> int:
    return 0 if symbol.kind == "heading" else symbol.name.count(".")


def _items(repo: RepoMap, ranking: Ranking, paths: Sequence[str]) -> list[tuple[str, Symbol | None]]:
    """Files and symbols, the most important first; a file comes with its name before its symbols do."""
    items: list[tuple[float, int, int, str, Symbol | None]] = []
    for place, path in enumerate(paths):
        facts = repo.facts[path]
        weight = ranking.files[path]
        items.append((-weight, place, 0, path, None))
        best = _best(facts, ranking, path)
        total = sum(value for value, _ in best) or 1.0
        # One that is a small part of its file's use comes later; none before its file.
        for value, symbol in best:
            items.append((-weight * min(value / total * 2, 0.99), place, symbol.start, path, symbol))
    items.sort(key=lambda item: item[:4])
    return [(path, symbol) for _, _, _, path, symbol in items]


def _best(facts: FileFacts, ranking: Ranking, path: str) -> list[tuple[float, Symbol]]:
    valued = [(ranking.symbols[path, symbol.name], symbol) for symbol in facts.symbols]
    valued.sort(key=lambda each: (-each[0], each[1].start, each[1].name))
    return valued[: _MOST_OF_A_TEST if is_test(path) else _MOST_OF_A_FILE]


def _text(repo: RepoMap, head: str, paths: Sequence[str], items: Sequence[tuple[str, Symbol | None]]) -> str:
    chosen: dict[str, list[Symbol]] = {}
    for path, symbol in items:
        kept = chosen.setdefault(path, [])
        if symbol is not None:
            kept.append(symbol)
    parts = [head]
    for path in paths:
        if path in chosen:
            parts.append(head_of(repo, path) + "\n")
            parts += [
                line_of(symbol) + "\n" for symbol in sorted(chosen[path], key=lambda each: (each.start, each.line))
            ]
    left = len(paths) - len(chosen)
    if left:
        parts.append(f"[{left} more files with symbols]\n")
    return "".join(parts)
