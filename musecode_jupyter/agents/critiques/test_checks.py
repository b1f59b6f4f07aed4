"""Tests that a change takes away, skips or weakens, told from the syntax trees before and after."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from musecode_jupyter.agents.critiques.changed import Asked, ChangedFile, Found, found_at, names_path
from musecode_jupyter.log.critique_kinds import Severity

_SKIPS = frozenset({"skip", "skipif", "skipIf", "skipUnless", "xfail", "expectedFailure", "skipTest", "importorskip"})
# A word for a change, near a word for tests: the task says that tests change.
_CHANGES = (
    r"updat\w*|chang\w*|edit\w*|rewrit\w*|adapt\w*|remov\w*|delet\w*|skip\w*|drop\w*|renam\w*|replac\w*|correct\w*"
)
_ALLOWS = re.compile(
    rf"(?i)\b(?:{_CHANGES}|move\w*|refactor\w*|disabl\w*|xfail)\b[^.;\n]{{0,60}}\b(?:tests?|assert\w*|expect\w*|specs?)\b"
    rf"|\b(?:tests?|assert\w*|expect\w*)\b[^.;\n]{{0,40}}\b(?:{_CHANGES}|is wrong|are wrong|outdated|obsolete)\b"
)
_FORBIDS = re.compile(r"(?i)\b(?:do not|don't|never|without|not)\b[^.;\n]{0,40}\b(?:tests?|assert\w*|expect\w*)\b")
# Neither yes nor no: "fix the tests" may mean the code that they test.
_UNSURE = re.compile(r"(?i)\b(?:fix\w*|repair\w*|mend\w*)\b[^.;\n]{0,30}\btests?\b")


@dataclass
class _Test:
    """One test: its node, its asserts by normal form with their lines, and by what it is skipped."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    asserts: list[tuple[str, ast.AST]] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)

    @property
    def body(self) -> str:
        """Its statements without docstring, as text."""
        body = self.node.body
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        return "\n".join(map(ast.unparse, body))

    @property
    def lines(self) -> tuple[int, int]:
        """First and last line, decorators included."""
        first = min([self.node.lineno, *(each.lineno for each in self.node.decorator_list)])
        return first, self.node.end_lineno or self.node.lineno


def weakened_tests(files: Sequence[ChangedFile], asked: Asked) -> Iterator[Found]:
    """All that is weaker in the tests of the changed files, looked at together: tests may move between files."""
    tests = [file for file in files if file.is_test and file.old_tree is not None]
    now = {file.path: _tests(file.new_tree) for file in files if file.is_python}
    bodies = Counter(test.body for found in now.values() for test in found.values())
    names = Counter(name.rpartition(".")[2] for found in now.values() for name in found)
    gone = _definitions_gone(files)
    for file in tests:
        # Of a file that cannot be read any more nothing else can be told.
        if file.new is not None and file.new_tree is None:
            continue
        before, after = _tests(file.old_tree), now.get(file.path, {})
        severity, why = _severity(file, asked)
        for name, old in before.items():
            new = after.get(name)
            if new is None:
                if bodies[old.body] or _moved(name, file, files, now, names):
                    continue
                yield _deleted(file, name, old, severity, why, gone)
            else:
                yield from _weaker(file, name, old, new, severity, why)
        yield from _module_skips(file, severity, why)


def _severity(file: ChangedFile, asked: Asked) -> tuple[Severity, str]:
    """How grave it is that a test of `file` is weaker, by what the task says."""
    if not _FORBIDS.search(asked.text) and (
        _ALLOWS.search(asked.text) or names_path(asked.text, asked.writes, file.path)
    ):
        return "note", "The task speaks of changing tests."
    if _UNSURE.search(asked.text) and not _FORBIDS.search(asked.text):
        return "major", "The task may mean that the tests are to be changed, or the code that they test."
    return "blocking", "The task does not say that tests are to change, and what the change must pass is weaker for it."


def _deleted(file: ChangedFile, name: str, old: _Test, severity: Severity, why: str, gone: frozenset[str]) -> Found:
    used = {each.id for each in ast.walk(old.node) if isinstance(each, ast.Name)}
    used |= {each.attr for each in ast.walk(old.node) if isinstance(each, ast.Attribute)}
    if tested := sorted(used & gone):
        severity, why = "note", f"What it tested is gone as well: {', '.join(tested)}."
    return found_at(
        file, "test-deleted", severity, old.lines, f"The test {name} is gone.", why, "Bring it back.", side="old"
    )


def _moved(
    name: str, file: ChangedFile, files: Sequence[ChangedFile], now: dict[str, dict[str, _Test]], names: Counter[str]
) -> bool:
    """Whether a test of this name is new in another file, or in another class of this one."""
    plain = name.rpartition(".")[2]
    if not names[plain]:
        return False
    for other in files:
        found = {each for each in now.get(other.path, {}) if each.rpartition(".")[2] == plain}
        if found - set(_tests(other.old_tree)):
            return True
    return False


def _weaker(file: ChangedFile, name: str, old: _Test, new: _Test, severity: Severity, why: str) -> Iterator[Found]:
    for skip in new.skips.keys() - old.skips.keys():
        line = new.skips[skip]
        yield found_at(file, "test-skipped", severity, (line, line), f"{name} is skipped now ({skip}).", why)
    before, after = Counter(text for text, _ in old.asserts), Counter(text for text, _ in new.asserts)
    left = [(text, node) for text, node in old.asserts if before[text] > after[text]]
    fresh = [(text, node) for text, node in new.asserts if after[text] > before[text]]
    for text, node in list(left):
        same = next((each for each in fresh if _other_value(node, each[1])), None)
        if same is None:
            continue
        left.remove((text, node))
        fresh.remove(same)
        yield found_at(
            file,
            "expected-value",
            severity,
            _lines(same[1]),
            f"{name} expects something else: before, it said `{text}`.",
            why,
            "Correct the code instead, or say why the test was wrong.",
        )
    if len(left) > len(fresh):
        for text, node in left[len(fresh) :]:
            yield found_at(
                file,
                "assert-removed",
                severity,
                _lines(node),
                f"{name} asserts less: `{text}` is gone.",
                why,
                side="old",
            )


def _other_value(old: ast.AST, new: ast.AST) -> bool:
    """Whether two asserts ask the same thing and expect another value."""
    first, second = _question(old), _question(new)
    return first is not None and second is not None and first[0] == second[0] and first[1] != second[1]


def _question(node: ast.AST) -> tuple[str, str] | None:
    """What an assert looks at, and what it expects of it, where that is a constant."""
    if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare) and len(node.test.ops) == 1:
        left, right = node.test.left, node.test.comparators[0]
        sides = (left, right) if _constant(right) else (right, left)
        operator = type(node.test.ops[0]).__name__
    elif isinstance(node, ast.Call) and len(node.args) >= 2:
        sides = (node.args[0], node.args[1]) if _constant(node.args[1]) else (node.args[1], node.args[0])
        operator = ast.unparse(node.func)
    else:
        return None
    if not _constant(sides[1]) or _constant(sides[0]):
        return None
    return f"{operator} {ast.unparse(sides[0])}", ast.unparse(sides[1])


def _constant(node: ast.expr) -> bool:
    """Whether a value is written out: a literal, a collection of such, or one wrapped as `approx(3)`."""
    if isinstance(node, ast.Call):
        return bool(node.args) and all(map(_constant, node.args)) and ast.unparse(node.func).endswith("approx")
    if isinstance(node, ast.UnaryOp):
        return _constant(node.operand)
    if isinstance(node, ast.BinOp):
        return _constant(node.left) and _constant(node.right)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return all(map(_constant, node.elts))
    if isinstance(node, ast.Dict):
        return all(key is not None and _constant(key) for key in node.keys) and all(map(_constant, node.values))
    return isinstance(node, ast.Constant)


def _module_skips(file: ChangedFile, severity: Severity, why: str) -> Iterator[Found]:
    before = {text for text, _ in _skips_of_module(file.old_tree)}
    for text, line in _skips_of_module(file.new_tree):
        if text not in before:
            yield found_at(
                file, "test-skipped", severity, (line, line), f"All tests of {file.path} are skipped now ({text}).", why
            )


def _skips_of_module(tree: ast.Module | None) -> Iterator[tuple[str, int]]:
    for node in [] if tree is None else tree.body:
        calls = [node.value] if isinstance(node, ast.Expr | ast.Assign) else []
        marked = isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        )
        for call in calls:
            # Whether a module that is missing is to be skipped over is another matter.
            if _skip(call) not in (None, "importorskip") and (marked or isinstance(node, ast.Expr)):
                yield ast.unparse(call), node.lineno


def _tests(tree: ast.Module | None) -> dict[str, _Test]:
    """The tests of a module by name, those of a class as `Class.name`."""
    found: dict[str, _Test] = {}
    if tree is None:
        return found
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            of_class = {text: line for text, line in map(_marked, node.decorator_list) if text}
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test"):
                    test = found[f"{node.name}.{each.name}"] = _test(each)
                    test.skips.update(of_class)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            found[node.name] = _test(node)
    return found


def _test(node: ast.FunctionDef | ast.AsyncFunctionDef) -> _Test:
    test = _Test(node)
    test.skips.update({text: line for text, line in map(_marked, node.decorator_list) if text})
    for each in ast.walk(node):
        if isinstance(each, ast.Assert):
            test.asserts.append((ast.unparse(each), each))
        elif isinstance(each, ast.Call):
            name = ast.unparse(each.func)
            last = name.rpartition(".")[2]
            if last.startswith("assert") or name in {"pytest.raises", "pytest.warns", "self.fail"}:
                test.asserts.append((ast.unparse(each), each))
    if node.body:
        first = next((each for each in node.body if not _is_docstring(each)), None)
        if isinstance(first, ast.Expr) and (skip := _skip(first.value)):
            test.skips[skip] = first.lineno
        elif isinstance(first, ast.Return):
            test.skips["return"] = first.lineno
    return test


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _marked(node: ast.expr) -> tuple[str, int]:
    """The skip that a decorator is, as text, with its line; empty if it is none."""
    return (ast.unparse(node), node.lineno) if _skip(node) else ("", 0)


def _skip(node: ast.expr) -> str | None:
    """The name of the skip that an expression is or calls."""
    target = node.func if isinstance(node, ast.Call) else node
    if not isinstance(target, ast.Attribute | ast.Name):
        return None
    last = target.attr if isinstance(target, ast.Attribute) else target.id
    return last if last in _SKIPS else None


def _lines(node: ast.AST) -> tuple[int, int]:
    line = getattr(node, "lineno", 1)
    return line, getattr(node, "end_lineno", None) or line


def _definitions_gone(files: Sequence[ChangedFile]) -> frozenset[str]:
    """Names of functions and classes that the sources had before and have nowhere in the changed files now."""
    before: set[str] = set()
    after: set[str] = set()
    for file in files:
        if not file.is_test:
            before |= _definitions(file.old_tree)
            after |= _definitions(file.new_tree)
    return frozenset(before - after)


def _definitions(tree: ast.Module | None) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return set() if tree is None else {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
