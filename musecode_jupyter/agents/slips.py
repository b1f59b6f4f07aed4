"""Small slips and their corrections: the lines that one changed token makes of a line; pure.

They are offered to a small model as choices. Which tokens people get wrong follows the mutation operators of the
mutation-testing literature (Offutt et al. 1996: relational, arithmetic and logical operator replacement, constants,
and names in scope).
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence

_GROUPS: tuple[tuple[str, ...], ...] = (
    ("<", "<=", ">", ">=", "==", "!="),
    ("+=", "-=", "*="),
    ("and", "or"),
    ("True", "False"),
    ("min", "max"),
    ("any", "all"),
    ("append", "extend"),
    ("startswith", "endswith"),
    ("ceil", "floor"),
)
# Only the likely ones: every choice that is offered may cost a run of the check.
_ARITHMETIC = {
    "+": ["-", "*"],
    "-": ["+"],
    "*": ["/", "+", "//"],
    "/": ["*", "//"],
    "//": ["/", "%", "*"],
    "%": ["//"],
    "**": ["*"],
}
_SWAPS = {word: [other for other in group if other != word] for group in _GROUPS for word in group} | _ARITHMETIC
_MAX_NAMES = 4
# After these an operator is a sign or a star, not an operation.
_NO_OPERAND = frozenset({"", "(", "[", "{", ",", ":", "=", "return", "in", "*", "/", "<", ">"})
_SKIPPED = frozenset({"self", "cls", "def", "return", "for", "in", "if", "else", "elif", "while", "raise", "import"})


def corrections(line: str, context: str = "") -> list[str]:
    """The lines that differ from `line` (stripped) by one token, each still a line of Python at that place.

    Parameters
    ----------
    line
        One source line; its indentation does not matter.
    context
        Source of the function around it: names and attributes are taken from there.
    """
    text = line.strip()
    try:
        tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.start[0] == 1 and t.string]
    except (tokenize.TokenError, IndentationError):
        # A bracket that closes on a later line: all tokens before the end of the line were still read.
        tokens = _readable(text)
    names, attributes = _names(context)
    found: dict[str, None] = {}
    for position, token in enumerate(tokens):
        before = tokens[position - 1].string if position else ""
        after = tokens[position + 1].string if position + 1 < len(tokens) else ""
        for other in _others(token, before, after, names, attributes):
            candidate = text[: token.start[1]] + other + text[token.end[1] :]
            if candidate != text:
                found.setdefault(candidate)
    for candidate in _swapped_arguments(text):
        found.setdefault(candidate)
    return list(found)


def _readable(text: str) -> list[tokenize.TokenInfo]:
    tokens: list[tokenize.TokenInfo] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.start[0] == 1 and token.string:
                tokens.append(token)
    except (tokenize.TokenError, IndentationError):
        pass
    return tokens


def _others(
    token: tokenize.TokenInfo, before: str, after: str, names: Sequence[str], attributes: dict[str, list[str]]
) -> Iterator[str]:
    word = token.string
    if token.type == tokenize.NUMBER and word.isdigit():
        number = int(word)
        yield str(number + 1)
        yield str(number - 1)
        if before in "[(,:" and number:
            yield f"-{number}"
    elif word in _SWAPS and not (token.type == tokenize.OP and before in _NO_OPERAND):
        yield from _SWAPS[word]
    elif token.type == tokenize.NAME and word not in _SKIPPED and word.isidentifier():
        if before == "." and after != "(":
            yield from [name for name in attributes.get("", []) if name != word][:_MAX_NAMES]
        elif word == "not":
            yield ""
        elif before != "." and after not in {"(", "="}:
            yield from [name for name in names if name != word][:_MAX_NAMES]


def _names(context: str) -> tuple[list[str], dict[str, list[str]]]:
    """Names that the function reads or takes, and attributes that it reads, each in order of appearance."""
    names: dict[str, None] = {}
    attributes: dict[str, None] = {}
    try:
        tree = ast.parse(_dedented(context))
    except SyntaxError:
        return [], {}
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg not in _SKIPPED:
            names.setdefault(node.arg)
        elif isinstance(node, ast.Name) and id(node) not in called and node.id not in _SKIPPED:
            names.setdefault(node.id)
        elif isinstance(node, ast.Attribute) and id(node) not in called:
            attributes.setdefault(node.attr)
    return list(names), {"": list(attributes)}


def _dedented(source: str) -> str:
    lines = source.split("\n")
    first = next((line for line in lines if line.strip()), "")
    width = len(first) - len(first.lstrip())
    return "\n".join(line[width:] if not line[:width].strip() else line for line in lines)


def _swapped_arguments(text: str) -> Iterator[str]:
    """Calls and divisions with their two operands exchanged."""
    try:
        tree = ast.parse(text.rstrip(",:"))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        pair: tuple[ast.expr, ast.expr] | None = None
        if isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
            pair = (node.args[0], node.args[1])
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Sub | ast.FloorDiv | ast.Mod):
            pair = (node.left, node.right)
        if pair is None or pair[0].lineno != 1 or pair[1].end_lineno != 1:
            continue
        left, right = (text.encode()[p.col_offset : p.end_col_offset].decode() for p in pair)
        if left != right:
            raw = text.encode()
            middle = raw[pair[0].end_col_offset : pair[1].col_offset].decode()
            yield (raw[: pair[0].col_offset].decode() + right + middle + left + raw[pair[1].end_col_offset :].decode())
