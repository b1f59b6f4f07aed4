"""What the map answers, as text: a file, a folder, a symbol and who uses it, or what belongs to a question's words."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from musecode_jupyter.agents.repomap.map import Place, RepoMap, is_test
from musecode_jupyter.agents.repomap.rank import Focus, words_of
from musecode_jupyter.agents.repomap.render import BUDGET, head_of, line_of, name_of, render
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.tools.encoding import shown
from musecode_jupyter.workspace.history import History

_NAMES = 12
_DEFINITIONS = 8
_USERS = 20
_PARTNERS = 6
_SUBJECT = 100


@dataclass(frozen=True)
class Question:
    """What is asked of the map: a file or folder, a symbol, or words; nothing of it: the whole."""

    path: str = ""
    symbol: str = ""
    words: str = ""


@dataclass(frozen=True)
class Answer:
    """The text; the files of which it shows content; and where the symbol is defined, if it is in one place."""

    text: str
    shown: tuple[str, ...] = ()
    place: Place | None = None


def understood(repo: RepoMap, typed: str) -> Question:
    """What the user means: a path if there is such a file or folder, a symbol if one word names one, else words."""
    path = typed.removeprefix("./").rstrip("/")
    if path in repo.facts or _is_folder(repo, path):
        return Question(path=path)
    if len(typed.split()) == 1 and repo.defined(typed):
        return Question(symbol=typed)
    if "/" in typed and len(typed.split()) == 1 and ":" not in typed:
        return Question(path=typed)
    return Question(words=typed)


def answer(
    repo: RepoMap,
    question: Question,
    history: History | None = None,
    budget: int = BUDGET,
    commits: Sequence[str] = (),
) -> Answer:
    """The answer, at most `budget` characters: a pure function. `commits` are the last ones of a file asked about.

    Raises
    ------
    ToolProblem
        There is no such file, folder or symbol; names what comes near.
    """
    if not repo.facts:
        raise ToolProblem("There are no files here that the map could show.")
    if question.symbol:
        return _symbol(repo, question.symbol, budget)
    path = question.path.removeprefix("./").rstrip("/")
    if path in repo.facts:
        return Answer(_cut(_file(repo, path, history or History(), commits), budget), (path,))
    if path and path != "." and not _is_folder(repo, path):
        raise ToolProblem(f"The map has no file or folder {name_of(path)}.{_near_paths(repo, path)}")
    focus = Focus((path,) if path and path != "." else (), question.words)
    return Answer(render(repo, focus, budget))


def _is_folder(repo: RepoMap, path: str) -> bool:
    return bool(path) and any(each.startswith(f"{path}/") for each in repo.facts)


def _file(repo: RepoMap, path: str, history: History, commits: Sequence[str]) -> str:
    facts = repo.facts[path]
    lines = [head_of(repo, path), *(line_of(symbol) for symbol in facts.symbols)]
    importers = repo.importers.get(path, ())
    tests = repo.tests.get(path, ())
    lines += _listed("imports", sorted(repo.imports.get(path, ())))
    lines += _listed("imported by", [each for each in importers if not is_test(each)])
    lines += _listed("tests", tests)
    more = len(set(repo.affected_tests([path])) - set(tests) - {path})
    if more:
        lines.append(f"{more} {'more test files reach' if tests else 'test files reach'} it through other files")
    lines += _listed("changes together with", _partners(path, history))
    if commits:
        lines += ["last changed by:", *(f"  {shown(each)[:_SUBJECT]}" for each in commits)]
    return "\n".join(lines) + "\n"


def _partners(path: str, history: History) -> list[str]:
    """Files that were often committed with `path`, most often first."""
    found = [
        (count, other) for pair, count in history.together.items() if path in pair for other in pair if other != path
    ]
    found.sort(key=lambda each: (-each[0], each[1]))
    commits = history.commits.get(path, 0)
    return [f"{name_of(other)} ({count} of {commits} commits)" for count, other in found[:_PARTNERS]]


def _symbol(repo: RepoMap, name: str, budget: int) -> Answer:
    places = repo.defined(name)
    if not places:
        raise ToolProblem(f"The map knows no definition of {shown(name)!r}.{_near_symbols(repo, name)}")
    lines = []
    for place in places[:_DEFINITIONS]:
        symbol = place.symbol
        lines.append(
            f"{name_of(place.path)}:{symbol.start}-{symbol.end} {symbol.kind} {symbol.name}: {shown(symbol.signature)}"
        )
    if len(places) > _DEFINITIONS:
        lines.append(f"and {len(places) - _DEFINITIONS} more definitions; name one as package/module.py:name")
    for place in places[:2] if len(places) > 1 else places:
        users = repo.users(place)
        whose = f" of {place.symbol.name} in {name_of(place.path)}" if len(places) > 1 else ""
        if users:
            lines.append(f"mentions{whose}, by name:")
            lines += [f"  {_mentions(repo, path, found)}" for path, found in users[:_USERS]]
            if len(users) > _USERS:
                lines.append(f"  and in {len(users) - _USERS} more files")
        else:
            lines.append(f"no other mention{whose}")
        lines += _listed(f"tests of {name_of(place.path)}", repo.tests.get(place.path, ()))
    files = tuple(dict.fromkeys(place.path for place in places[:_DEFINITIONS]))
    return Answer(_cut("\n".join(lines) + "\n", budget), files, places[0] if len(places) == 1 else None)


def _mentions(repo: RepoMap, path: str, lines: Sequence[int]) -> str:
    """A file with the symbols in which it mentions a name, and their lines."""
    by_symbol: dict[str, list[int]] = {}
    for line in lines:
        around = repo.facts[path].at(line)
        by_symbol.setdefault("" if around is None else around.name, []).append(line)
    parts = [
        (f"{name} " if name else "") + ",".join(map(str, found[:4])) + ("..." if found[4:] else "")
        for name, found in list(by_symbol.items())[:4]
    ]
    return f"{name_of(path)}: {'; '.join(parts)}" + ("; ..." if len(by_symbol) > 4 else "")


def _listed(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    rest = len(names) - _NAMES
    return [f"{what}: {', '.join(map(name_of, names[:_NAMES]))}" + (f" and {rest} more" if rest > 0 else "")]


def _near_paths(repo: RepoMap, path: str) -> str:
    by_name: dict[str, list[str]] = {}
    for each in sorted(repo.facts):
        by_name.setdefault(each.rpartition("/")[2], []).append(each)
    name = path.rpartition("/")[2]
    found = [each for near in difflib.get_close_matches(name, list(by_name), 3) for each in by_name[near]]
    return f" Is it {', '.join(map(name_of, found[:5]))}?" if found else ""


def _near_symbols(repo: RepoMap, name: str) -> str:
    asked = set(words_of(name))
    near = [(len(asked & set(words_of(each))) / (1 + len(set(words_of(each)) ^ asked)), each) for each in repo.by_name]
    near = sorted((-score, each) for score, each in near if score)
    return f" Is it {', '.join(each for _, each in near[:5])}?" if near else ""


def _cut(text: str, budget: int) -> str:
    if len(text) <= budget:
        return text
    kept = text[: max(budget - 40, 0)]
    kept = kept[: kept.rfind("\n") + 1] or kept
    return f"{kept}[the rest does not fit here]\n"
