"""What matters most in a repository, or most for a question: PageRank over who uses whose names.

Files are nodes; a file points to the files that define the names it uses. The importance of a file is its PageRank
(Page, Brin, Motwani, Winograd 1999), for a question with the restarts at what the question names (personalised:
Haveliwala 2002); aider ranks its repository map in this way too. Sums are made in a fixed order, so that they are the
same each time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from musecode_jupyter.agents.repomap.imports import folder
from musecode_jupyter.agents.repomap.map import TEST_WEIGHT, RepoMap, is_test
from musecode_jupyter.guard.wrappers import word_set

_DAMPING = 0.85
_DAMPING_IN_FOCUS = 0.5
"""With a question one goes on less far from what it names."""
_ROUNDS = 30
_BARE = 0.2
"""Weight of an import of which no name is seen to be used."""
_BACK = 0.5
"""With a question who uses what it names matters half as much as what that uses."""
_NAMED_FIRST = 0.5
"""Share of a rank in focus that is what the question itself says."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ENDING = re.compile(r"(?<=...)(?:ing|ed|es|s|e)$")
_STOP = word_set(
    "a an and are as at be by can do does for from how i in is it of on or that the this to what when where which who "
    "why with def class return self none true false"
)


@dataclass(frozen=True)
class Ranking:
    """The weight of each file, all together 1, and of each symbol within its file (by file and name)."""

    files: Mapping[str, float]
    symbols: Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Focus:
    """What a map is to be about: paths of files or folders, and the words of a question."""

    paths: tuple[str, ...] = ()
    words: str = ""


def words_of(text: str) -> list[str]:
    """The words of a name or a question, without endings: `readHTTPHeaders_now` is read, http, header, now.

    Endings are cut by form alone, so that a question that says "reserved" finds `reserve`.
    """
    words = [word for word in (each.lower() for each in _WORDS.findall(text)) if word not in _STOP and len(word) > 1]
    return [_ENDING.sub("", word) for word in words]


def rank(repo: RepoMap, focus: Focus = Focus()) -> Ranking:
    """Weights of all files and symbols."""
    uses = repo.references
    named = _named(repo, focus)
    edges: dict[str, dict[str, float]] = {path: {} for path in repo.facts}
    for (path, _), users in uses.items():
        for user, weight in users.items():
            edges[user][path] = edges[user].get(path, 0.0) + weight
            if named:
                edges[path][user] = edges[path].get(user, 0.0) + _BACK * weight
    for path, used in repo.imports.items():
        for each in sorted(used):
            edges[path].setdefault(each, _BARE * (TEST_WEIGHT if is_test(path) else 1.0))
    total = sum(named.values())
    start = {path: named.get(path, 0.0) / total if total else 1.0 / len(repo.facts) for path in repo.facts}
    files = _pagerank(edges, start, _DAMPING_IN_FOCUS if total else _DAMPING)
    if total:
        files = {path: _NAMED_FIRST * start[path] + (1 - _NAMED_FIRST) * value for path, value in files.items()}
    return Ranking(files, _symbols(repo, uses, set(words_of(focus.words))))


def _pagerank(edges: Mapping[str, Mapping[str, float]], start: Mapping[str, float], damping: float) -> dict[str, float]:
    order = sorted(edges)
    number = {path: index for index, path in enumerate(order)}
    restart = [start[path] for path in order]
    out = [sum(edges[path].values()) for path in order]
    links: list[Sequence[tuple[int, float]]] = [
        [(number[used], weight / out[index]) for used, weight in sorted(edges[path].items())]
        for index, path in enumerate(order)
    ]
    now = list(restart)
    for _ in range(_ROUNDS):
        # What points nowhere starts anew.
        lost = sum(value for index, value in enumerate(now) if not links[index])
        following = [(1 - damping) * each + damping * lost * each for each in restart]
        for index, each in enumerate(links):
            share = damping * now[index]
            for target, weight in each:
                following[target] += share * weight
        moved = sum(abs(a - b) for a, b in zip(now, following, strict=True))
        now = following
        if moved < 1e-6:
            break
    return dict(zip(order, now, strict=True))


def _named(repo: RepoMap, focus: Focus) -> dict[str, float]:
    """How much the focus speaks of each file; empty if it speaks of none."""
    found: dict[str, float] = {}
    for wanted in focus.paths:
        for path in repo.facts:
            if path == wanted or path.startswith(f"{wanted.rstrip('/')}/"):
                found[path] = found.get(path, 0.0) + 1.0
    asked = set(words_of(focus.words))
    if not asked:
        return found
    having: dict[str, dict[str, float]] = {}
    for path, facts in repo.facts.items():
        for text, weight in _texts(path, facts.summary, [symbol.name for symbol in facts.symbols]):
            for word in asked & set(words_of(text)):
                by_path = having.setdefault(word, {})
                by_path[path] = max(by_path.get(path, 0.0), weight)
    for word in sorted(having):
        # What few files speak of says more, as an inverse document frequency does.
        rare = 1.0 / math.sqrt(len(having[word]))
        for path, weight in having[word].items():
            found[path] = found.get(path, 0.0) + weight * rare * (TEST_WEIGHT if is_test(path) else 1.0)
    return {path: value * value for path, value in sorted(found.items())}


def _texts(path: str, summary: str, names: Sequence[str]) -> list[tuple[str, float]]:
    above = folder(path)
    return [(path[len(above) :], 3.0), (above, 1.0), (summary, 1.5), *((name, 2.0) for name in names)]


def _symbols(
    repo: RepoMap, uses: Mapping[tuple[str, str], Mapping[str, float]], asked: set[str]
) -> dict[tuple[str, str], float]:
    """Weights within each file: how much others use a symbol, what the question names first, private names last."""
    found: dict[tuple[str, str], float] = {}
    for path, facts in repo.facts.items():
        for symbol in facts.symbols:
            key = (path, symbol.name)
            value = 0.1 + sum(uses.get(key, {}).values())
            if asked:
                value *= 1.0 + 20.0 * len(asked & set(words_of(symbol.name)))
            if symbol.short.startswith("_"):
                value *= 0.1
            found[key] = max(value, found.get(key, 0.0))
    return found
