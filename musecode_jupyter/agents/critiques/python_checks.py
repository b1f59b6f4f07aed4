"""Faults of Python files that are proven without running them: syntax, names that became undefined, debuggers."""

from __future__ import annotations

import ast
import json
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator

from pyflakes import checker, messages

from musecode_jupyter.agents.critiques.changed import Asked, ChangedFile, Found, found_at, lines_of
from musecode_jupyter.log.critique_kinds import Severity

# Names that something outside the file puts there: gettext, IPython, notebooks, type checkers.
_INJECTED = frozenset({"_", "ngettext", "get_ipython", "display", "reveal_type", "In", "Out", "exit", "quit"})
_OPENS = re.compile(r"\b(?:exec|globals|locals|builtins|__builtins__|vars|setattr)\b")
_DEBUGGERS = frozenset({"pdb", "ipdb", "pudb", "wdb", "rpdb", "remote_pdb"})
_ABOUT_DEBUGGING = re.compile(r"(?i)\b(?:breakpoint|debugger|i?pdb|debugging)\b")


def syntax(file: ChangedFile, _asked: Asked) -> Iterator[Found]:
    """A file that could be read before and cannot now, or a new one that cannot be read."""
    if file.new is None:
        return
    broken = _broken(file, file.new)
    if broken is None or (file.old is not None and _broken(file, file.old) is not None):
        return
    line, problem = broken
    severity: Severity = "blocking"
    why = "It could be read before the change." if file.old is not None else "No Python can import it."
    if file.is_material or "{{" in file.path:
        severity, why = "minor", "It lies among test material or templates, where it may be meant so."
    elif file.old is None and not file.is_python:
        severity, why = "major", "It is new, and whoever reads it may take more than the plain format."
    yield found_at(file, "syntax-error", severity, (line, line), f"{file.path} cannot be read: {problem}.", why)


def _broken(file: ChangedFile, text: str) -> tuple[int, str] | None:
    """Line and words of the first thing that is wrong, if the name tells what the file is."""
    try:
        if file.path.endswith(".py"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(text, file.path, "exec", dont_inherit=True)
        elif file.path.endswith((".json", ".ipynb")):
            json.loads(text)
        elif file.path.endswith(".toml"):
            tomllib.loads(text)
    except SyntaxError as error:
        # A future Python's words for it may differ, and nothing else does.
        return max(1, min(error.lineno or 1, text.count("\n") + 1)), error.msg
    except json.JSONDecodeError as error:
        return error.lineno, error.msg
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        return (int(at[1]) if at else 1), str(error)
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def undefined_names(file: ChangedFile, _asked: Asked) -> Iterator[Found]:
    """Names that are used, defined nowhere, and were not undefined in this file before."""
    if file.new_tree is None or file.new is None or not file.path.endswith(".py"):
        return
    lines = lines_of(file.new)
    before = Counter(name for name, _, _ in _undefined(file.old_tree))
    tree = file.new_tree
    opened = _OPENS.search(file.new) is not None
    noted = _annotated(tree)
    told: set[str] = set()
    for name, line, column in _undefined(tree):
        if before[name] or name in told or "noqa" in lines[line - 1]:
            continue
        told.add(name)
        severity: Severity = "blocking"
        why = "Whatever runs this line raises NameError; the name was defined, or not used, before the change."
        if name in _INJECTED or opened:
            severity, why = "major", "The file may get the name from elsewhere: that cannot be told from its text."
        elif (line, column) in noted:
            severity, why = "major", "It stands in an annotation, which need not be evaluated."
        yield found_at(
            file, "undefined-name", severity, (line, line), f"`{name}` is used here and defined nowhere.", why
        )


def _undefined(tree: ast.Module | None) -> list[tuple[str, int, int]]:
    """Name, line and column of each use of an undefined name, in order."""
    if tree is None:
        return []
    try:
        found = checker.Checker(tree).messages
    except (RecursionError, MemoryError):
        return []
    kinds = (messages.UndefinedName, messages.UndefinedExport, messages.UndefinedLocal)
    return sorted(
        ((str(each.message_args[0]), each.lineno, each.col) for each in found if isinstance(each, kinds)),
        key=lambda each: each[1:],
    )


def _annotated(tree: ast.Module) -> set[tuple[int, int]]:
    """Line and column of all that stands in annotations."""
    noted: set[tuple[int, int]] = set()
    for node in ast.walk(tree):
        roots = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for root in roots:
            if isinstance(root, ast.AST):
                noted |= {(each.lineno, each.col_offset) for each in ast.walk(root) if isinstance(each, ast.expr)}
    return noted


def debugging(file: ChangedFile, asked: Asked) -> Iterator[Found]:
    """Calls of a debugger that the change brought."""
    before = Counter(text for text, _, _ in _stops(file.old_tree))
    for text, line, imported in _stops(file.new_tree):
        if before[text]:
            before[text] -= 1
            continue
        severity: Severity = "minor" if imported else "blocking"
        why = (
            "It does nothing by itself, and is most likely left over."
            if imported
            else "The program stops here and waits for somebody at a terminal."
        )
        if _ABOUT_DEBUGGING.search(asked.text):
            severity, why = "note", "The task speaks of debugging."
        yield found_at(file, "debugging", severity, (line, line), f"`{text}` is left over from debugging.", why)


def _stops(tree: ast.Module | None) -> Iterator[tuple[str, int, bool]]:
    """Text and line of each call of a debugger, or import of one (told by the last value)."""
    if tree is None:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name == "breakpoint" or (name.endswith("set_trace") and name.partition(".")[0] in _DEBUGGERS):
                yield f"{name}()", node.lineno, False
        elif isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] in _DEBUGGERS:
                    yield f"import {each.name}", node.lineno, True
