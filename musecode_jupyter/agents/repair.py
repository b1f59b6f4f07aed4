"""The guided repair technique: from a failing check to one constrained question, from its answer to one edit.

A small model cannot find its way through a repository. So the harness runs the check and finds the suspect
code, and the model is asked for one line to change, chosen from lines that exist. All functions are pure.
"""

from __future__ import annotations

import ast
import difflib
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from musecode_jupyter.agents.check_output import FailingTest, excerpt, failing_tests, frames_of, relative
from musecode_jupyter.agents.code_index import CodeIndex, Definition, is_test_file
from musecode_jupyter.agents.slips import corrections, place_of
from musecode_jupyter.runtime.errors import ToolProblem
from musecode_jupyter.runtime.syntax import parse

MAX_TRIES = 32

_REGION_LINES = 60
# Suspects whose code is shown.
_SHOWN = 8
# Steps from a test beyond which a definition is no more suspect for lying deeper.
_DEEP = 5
_LINE = 200

_TOKEN = re.compile(r"\w+|\s+|[-+*/<>=!]+|.")
_WORD = re.compile(r"[a-z]{3,}")


@dataclass(frozen=True)
class Suspect:
    """Lines `start` to `end` (from 1, inclusive) of `path`, which may hold the fault; most suspect first."""

    path: str
    name: str
    start: int
    end: int
    score: float
    why: str


@dataclass(frozen=True)
class Tried:
    """An edit that was made and not kept, or refused; whole lines, with indentation."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Question:
    """What to send: the same `instructions` for every try, the text, and the schema of the answer."""

    instructions: str
    user_text: str
    json_schema: dict[str, Any]


Kind = Literal["choice", "names", "edit"]

# What a suspect's first, second, ... question asks for.
_KINDS: tuple[Kind, ...] = ("choice", "choice", "edit", "choice", "choice", "names", "choice", "names", "edit")


@dataclass(frozen=True)
class Try:
    """Plan of one try: which suspect (index into the ranking), and what the model is asked for.

    `choice`: a line with one operator, number or flag changed, of all that there are; `names`: the same with names and
    attributes changed too; `edit`: a line of the suspect and any text in its place.
    """

    suspect: int
    kind: Kind


INSTRUCTIONS = """\
You repair Python programs. The tests are right; one line of the program has a small slip: a wrong operator, number, \
name or flag. You are shown the failing test and the functions that it runs. Answer in JSON: "new_line" (the line as \
it should be); with "old_line" (the line as it is) where that is asked for."""


def suspects(output: str, files: Mapping[str, str], *, limit: int = 12) -> list[Suspect]:
    """Rank the definitions that may hold the fault.

    A definition counts by how exclusively the failing tests reach it (Ochiai's coefficient, over what tests
    refer to directly and through other definitions), by the traceback, and by words shared with the tests.
    Definitions without a line that one token could correct come last.

    Parameters
    ----------
    output
        What the check printed.
    files
        Text of the repository's Python files by path relative to its root.
    limit
        At most so many suspects.
    """
    index = CodeIndex.of(files)
    failing = failing_tests(output, list(files))
    tests = [d for d in index.definitions if is_test_file(d.path) and d.short.startswith("test")]
    broken = {(test.path, test.name) for test in failing}
    bad: Counter[Definition] = Counter()
    good: Counter[Definition] = Counter()
    steps: dict[Definition, int] = {}
    for test in tests:
        reached = index.reached(test)
        if (test.path, test.name) in broken:
            bad.update(reached.keys())
            for definition, count in reached.items():
                steps[definition] = min(count, steps.get(definition, count))
        else:
            good.update(reached.keys())

    frames = _frame_scores(output, failing, files, index)
    words = Counter(
        word for test in failing for word in set(_words(test.name + " " + test.message + " " + _source_of(test, index)))
    )
    total = max(1, len(broken))
    ranked: list[Suspect] = []
    for definition in {**dict.fromkeys(bad), **dict.fromkeys(frames)}:
        source = files[definition.path].split("\n")
        if not _lines_worth_changing(definition.start, definition.end, files[definition.path]):
            continue
        reach = bad[definition]
        ochiai = reach / math.sqrt(total * (reach + good[definition])) if reach else 0.0
        shared = _overlap(words, "\n".join(source[definition.start - 1 : definition.end]))
        # What lies deeper decides more, as far as it has to do with the test: what is near mostly passes things on.
        depth = min(steps.get(definition, 0), _DEEP)
        score = math.sqrt(ochiai) + frames.get(definition, 0.0) + 0.3 * shared + 0.02 * depth
        why = f"reached by {reach} failing and {good[definition]} passing tests"
        if definition in frames:
            why += ", in the traceback"
        ranked.append(Suspect(definition.path, definition.name, definition.start, definition.end, score, why))
    ranked.sort(key=lambda suspect: (-suspect.score, suspect.path, suspect.start))
    # What has no slip that could be corrected takes no place from what has; of the rest so many as may matter.
    ranked = ranked[: 2 * limit]
    ranked.sort(key=lambda suspect: not _corrected(suspect, "choice", files[suspect.path]))
    return ranked[:limit]


def plan_tries(count: int) -> list[Try]:
    """The order of tries over `count` ranked suspects: one more suspect in each round, choices before free edits.

    One answer from a prompt that the server still has in its cache takes a few seconds, so that many suspects can be
    asked about, the best most often; a small model that may write what it likes mostly copies the line, or adds to it.
    """
    visits: Counter[int] = Counter()
    plan: list[Try] = []
    for size in range(1, _SHOWN + len(_KINDS)):
        for suspect in range(min(size, count, _SHOWN)):
            if visits[suspect] < len(_KINDS):
                plan.append(Try(suspect, _KINDS[visits[suspect]]))
                visits[suspect] += 1
    return plan


def question(
    which: int, kind: Kind, ranked: Sequence[Suspect], output: str, sources: Mapping[str, str], tried: Sequence[Tried]
) -> Question:
    """Ask for one corrected line of suspect `which` of `ranked`.

    All but the last sentence is the same for every question on this failure, so that a server that keeps the prefix
    reads it once; for that reason what was tried is left out of the choices, and not told.

    Raises
    ------
    ToolProblem
        Nothing is left to choose from.
    """
    suspect = ranked[which]
    parts = [f"The check failed:\n{excerpt(output)}", *_shown(ranked[:_SHOWN], sources)]
    line = {"type": "string", "maxLength": _LINE}
    if kind == "edit":
        offered = _offered(suspect, sources[suspect.path], tried)
        properties = {"old_line": {"type": "string", "enum": list(offered)}, "new_line": line}
        parts.append(f"One line of `{suspect.name}` in {suspect.path} is wrong. Which, and what should it be?")
    else:
        offered = _choices(suspect, kind, sources[suspect.path], tried)
        properties = {"new_line": {"type": "string", "enum": list(offered)}}
        parts.append(f"One line of `{suspect.name}` in {suspect.path} is wrong. Which is the corrected line?")
    if not offered:
        raise ToolProblem(f"no line of {suspect.name} in {suspect.path} is left to try")
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return Question(INSTRUCTIONS, "\n\n".join(parts), schema)


def choice_from_answer(
    answer_text: str, suspect: Suspect, kind: Kind, source: str, tried: Sequence[Tried] = ()
) -> tuple[str, str, int]:
    """The old line, the new line (both whole, with indentation) and the line number that a choice means.

    Raises
    ------
    ToolProblem
        The answer is none of the choices.
    """
    try:
        new = json.loads(answer_text)["new_line"]
    except (ValueError, KeyError, TypeError) as error:
        raise ToolProblem("the answer is not the JSON object that was asked for") from error
    number = _choices(suspect, kind, source, tried).get(new) if isinstance(new, str) else None
    if number is None:
        raise ToolProblem("new_line is not one of the lines that were offered")
    old_full = source.split("\n")[number - 1]
    indentation = old_full[: len(old_full) - len(old_full.lstrip())]
    ending = "\r" if old_full.endswith("\r") else ""
    return old_full, f"{indentation}{new}{ending}", number


def _shown(ranked: Sequence[Suspect], sources: Mapping[str, str]) -> list[str]:
    """The suspects' code, by file in the order of the best suspect of each."""
    by_file: dict[str, list[Suspect]] = {}
    for suspect in ranked:
        by_file.setdefault(suspect.path, []).append(suspect)
    parts = []
    for path, found in by_file.items():
        lines = sources[path].split("\n")
        kept: list[int] = []
        for suspect in sorted(found, key=lambda suspect: suspect.start):
            kept += [n for n in range(suspect.start, suspect.end + 1) if n not in kept]
        parts.append(f"{path}:\n```python\n" + "\n".join(lines[n - 1] for n in kept[:_REGION_LINES]) + "\n```")
    return parts


def _choices(suspect: Suspect, kind: Kind, source: str, tried: Sequence[Tried]) -> dict[str, int]:
    """Corrected lines that parse in their place and were not tried, with the number of the line each replaces.

    A small model copies as much of the line as it may, so of all choices it takes one that differs late. Offered are
    therefore only those that change the token that was changed least often so far.
    """
    lines = source.split("\n")
    refused = {(edit.old, edit.new.strip()) for edit in tried if edit.path == suspect.path}
    options: dict[str, tuple[int, tuple[str, int]]] = {}
    uses: Counter[tuple[str, int]] = Counter()
    for number, new in _corrected(suspect, kind, source):
        old = lines[number - 1]
        place = (old, place_of(old, new))
        if (old, new) in refused:
            uses[place] += 1
        else:
            options.setdefault(new, (number, place))
    least = min((uses[place] for _, place in options.values()), default=0)
    return {new: number for new, (number, place) in options.items() if uses[place] == least}


@functools.lru_cache(maxsize=64)
def _corrected(suspect: Suspect, kind: Kind, source: str) -> tuple[tuple[int, str], ...]:
    """Every correction that parses; kept, for the same are asked for again with every try and every answer."""
    lines = source.split("\n")
    region = lines[suspect.start - 1 : suspect.end]
    context = "\n".join(region) if kind == "names" else ""
    # The definition alone, if it can stand alone, is read much faster than its file.
    before, inside = (["if 1:"] if region[0][:1].isspace() else []), suspect.start
    if not _parses([*before, *region]):
        before, region, inside = [], lines, 1
    found: list[tuple[int, str]] = []
    for number in _lines_worth_changing(suspect.start, suspect.end, source):
        old, place = lines[number - 1], number - inside
        indentation = old[: len(old) - len(old.lstrip())]
        for new in corrections(old, context):
            if _parses([*before, *region[:place], indentation + new, *region[place + 1 :]]):
                found.append((number, new))
    return tuple(found)


def _parses(lines: Sequence[str]) -> bool:
    try:
        parse("\n".join(lines))
    except (SyntaxError, ValueError):
        return False
    return True


def edit_from_answer(
    answer_text: str, suspect: Suspect, source: str, tried: Sequence[Tried] = ()
) -> tuple[str, str, int]:
    """The old line, the new line (both whole, with indentation) and the line number that an answer means.

    A small model repeats itself: an answer that was tried before, or does not parse, stands for the first
    part of its change that was not tried and does.

    Raises
    ------
    ToolProblem
        The answer is no edit that may be applied; the text says why.
    """
    try:
        answer = json.loads(answer_text)
        old, new = answer["old_line"], answer["new_line"]
    except (ValueError, KeyError, TypeError) as error:
        raise ToolProblem("the answer is not the JSON object that was asked for") from error
    offered = _offered(suspect, source, tried)
    if not isinstance(old, str) or not isinstance(new, str) or old not in offered:
        raise ToolProblem("old_line is not one of the lines that were offered")
    number = offered[old]
    lines = source.split("\n")
    old_full = lines[number - 1]
    stripped = old_full.strip()
    new = re.sub(rf"\s*# line {number}$", "", new.strip())
    if not new or "\n" in new or "\r" in new:
        raise ToolProblem("new_line is not one line")
    indentation = old_full[: len(old_full) - len(old_full.lstrip())]
    ending = "\r" if old_full.endswith("\r") else ""
    candidates = [new]
    # Models drop the punctuation that a line ends with; it belongs to the lines around it.
    candidates += [new + mark for mark in ":,({[" if stripped.endswith(mark) and not new.endswith(mark)]
    candidates += _parts_of_change(stripped, new)
    before = ast.dump(parse(source))
    refused = {edit.new.strip() for edit in tried if edit.path == suspect.path and edit.old == old_full}
    problem = ""
    for candidate in candidates:
        new_full = f"{indentation}{candidate}{ending}"
        changed = [*lines[: number - 1], new_full, *lines[number:]]
        try:
            after = ast.dump(parse("\n".join(changed) + "\n"))
        except (SyntaxError, ValueError) as error:
            problem = problem or f"new_line is a syntax error: {getattr(error, 'msg', error)}"
            continue
        if after == before:
            problem = problem or "new_line means the same as old_line"
            continue
        if candidate in refused:
            problem = problem or "this change was tried before"
            continue
        return old_full, new_full, number
    raise ToolProblem(problem)


def _parts_of_change(old: str, new: str) -> list[str]:
    """The old line with only one of the places changed in which the new line differs, for each such place."""
    before, after = _TOKEN.findall(old), _TOKEN.findall(new)
    places = [
        place
        for place in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        if place[0] != "equal"
    ]
    if len(places) < 2:
        return []
    return [
        "".join([*before[:first], *after[start:stop], *before[last:]]).strip() for _, first, last, start, stop in places
    ]


def _frame_scores(
    output: str, failing: Sequence[FailingTest], files: Mapping[str, str], index: CodeIndex
) -> dict[Definition, float]:
    """What decided the failure: the conditions around the end of a traceback, its definitions, theirs."""
    traces = [test.frames for test in failing]
    if not failing:
        traces = [tuple((relative(p, list(files)), n) for p, n in frames_of(output.splitlines()))]
    scores: dict[Definition, float] = {}
    for frames in traces:
        inside = [index.at(path, line) for path, line in frames if path in files and not is_test_file(path)]
        chain = [definition for definition in inside if definition is not None]
        if frames and frames[-1][0] in files:
            for definition in index.guarding(*frames[-1]):
                scores[definition] = max(scores.get(definition, 0.0), 0.4)
        for back, definition in enumerate(reversed(chain)):
            scores[definition] = max(scores.get(definition, 0.0), 0.2 / (1 + back))
        if chain:
            for definition, count in index.reached(chain[-1]).items():
                scores[definition] = max(scores.get(definition, 0.0), 0.2 / (1 + count))
    return scores


def _source_of(test: FailingTest, index: CodeIndex) -> str:
    return next((d.text for d in index.definitions if d.path == test.path and d.name == test.name), "")


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("_", " "))


def _overlap(words: Counter[str], text: str) -> float:
    own = set(_words(text))
    return len(own & words.keys()) / math.sqrt(len(own) * len(words)) if own and words else 0.0


def _offered(suspect: Suspect, source: str, tried: Sequence[Tried]) -> dict[str, int]:
    """Lines to choose from, without indentation, by what stands in the schema; duplicates are told apart."""
    lines = source.split("\n")
    worn = {edit.old for edit in tried if edit.path == suspect.path}
    worth = _lines_worth_changing(suspect.start, suspect.end, source)
    # Even when sampled, a small model clings to the line that it chose first, which is more often the wrong
    # line than the right one changed wrongly. Once every line is worn all are offered again.
    numbers = [number for number in worth if lines[number - 1] not in worn] or worth
    texts = Counter(lines[number - 1].strip() for number in numbers)
    return {
        lines[number - 1].strip() + (f"  # line {number}" if texts[lines[number - 1].strip()] > 1 else ""): number
        for number in numbers
    }


def _lines_worth_changing(start: int, end: int, source: str) -> list[int]:
    """Numbers of the lines that hold a decision: no comments, docstrings, bare keywords or brackets."""
    try:
        tree = parse(source)
    except SyntaxError:
        return []
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            skipped.update(decorator.lineno for decorator in node.decorator_list)
            has_defaults = bool(node.args.defaults) or any(node.args.kw_defaults)
            if not has_defaults and node.body:
                skipped.update(range(node.lineno, max(node.lineno + 1, node.body[0].lineno)))
        elif isinstance(node, ast.ClassDef | ast.Raise):
            skipped.add(node.lineno)
    lines = source.split("\n")
    return [
        number
        for number in range(start, min(end, len(lines)) + 1)
        if number not in skipped
        and re.search(r"\w", text := lines[number - 1].strip())
        and not text.startswith("#")
        and not re.fullmatch(r"(else|try|finally|pass|break|continue|return|\w+,?|return \w+)\W*", text)
    ]
