"""Small slips and their corrections: the lines that one changed token makes of a line; pure.

They are offered to a small model as choices. Which tokens people get wrong follows the mutation operators of the
mutation-testing literature (Offutt et al. 1996: relational, arithmetic and logical operator replacement, constants,
and names in scope).
"""

from __future__ import annotations

import ast
import io
import keyword
import re
import tokenize
from collections.abc import Iterator, Sequence

from musecode_jupyter.runtime.syntax import parse

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
# Signs, stars and the mark of positional parameters, unless an operand stands before them.
_SIGNS = frozenset({"+", "-", "*", "**", "/"})
_OPERAND_END = re.compile(r"[\w)\]}'\"]\Z")
_NO_OPERAND = frozenset(keyword.kwlist) - {"None", "True", "False"}
_SKIPPED = frozenset({"self", "cls", "def", "return", "for", "in", "if", "else", "elif", "while", "raise", "import"})


def corrections(line: str, context: str = "") -> list[str]:
    """The lines that differ from `line` (stripped) by one token or by two operands exchanged.

    Whether each is Python where it stands is for the caller to see: a line does not tell what is around it.

    Parameters
    ----------
    line
        One source line; its indentation does not matter.
    context
        Source of the function around it: names and attributes are taken from there.
    """
    text = line.strip()
    tokens = _readable(text)
    names, attributes = _names(context)
    found: dict[str, None] = {}
    for position, token in enumerate(tokens):
        before = tokens[position - 1].string if position else ""
        after = tokens[position + 1].string if position + 1 < len(tokens) else ""
        for other in _others(token, before, after, names, attributes):
            rest = text[token.end[1] :]
            candidate = text[: token.start[1]] + (other + rest if other else rest.lstrip())
            if candidate != text:
                found.setdefault(candidate)
    for candidate in _swapped_arguments(text):
        found.setdefault(candidate)
    return list(found)


def place_of(line: str, corrected: str) -> int:
    """Column (in the stripped line) of the token with which `corrected` begins to differ."""
    text = line.strip()
    differs = next(
        (i for i, (a, b) in enumerate(zip(text, corrected.strip(), strict=False)) if a != b),
        min(len(text), len(corrected.strip())),
    )
    return max((token.start[1] for token in _readable(text) if token.start[1] <= differs), default=0)


def _readable(text: str) -> list[tokenize.TokenInfo]:
    """The tokens up to the end, or up to what cannot be read: a bracket may close on a later line."""
    tokens: list[tokenize.TokenInfo] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.start[0] == 1 and token.string:
                tokens.append(token)
    except (tokenize.TokenError, SyntaxError):
        pass
    return tokens


def _is_sign(token: tokenize.TokenInfo, before: str) -> bool:
    return token.string in _SIGNS and (before in _NO_OPERAND or not _OPERAND_END.search(before))


def _others(
    token: tokenize.TokenInfo, before: str, after: str, names: Sequence[str], attributes: Sequence[str]
) -> Iterator[str]:
    word = token.string
    if token.type == tokenize.NUMBER and word.isdigit():
        number = int(word)
        yield str(number + 1)
        yield str(number - 1)
        if before in {"[", "(", ",", ":"} and number:
            yield f"-{number}"
    elif token.type in {tokenize.OP, tokenize.NAME} and word in _SWAPS:
        if not _is_sign(token, before):
            yield from _SWAPS[word]
    elif token.type == tokenize.NAME and word not in _SKIPPED and word.isidentifier():
        if before == "." and after != "(":
            yield from [name for name in attributes if name != word][:_MAX_NAMES]
        elif word == "not":
            yield ""
        elif before != "." and after not in {"(", "="}:
            yield from [name for name in names if name != word][:_MAX_NAMES]


def _names(context: str) -> tuple[list[str], list[str]]:
    """Names that the function reads or takes, and attributes that it reads, each in order of appearance."""
    names: dict[str, None] = {}
    attributes: dict[str, None] = {}
    try:
        tree = parse(_dedented(context))
    except (SyntaxError, ValueError):
        return [], []
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg not in _SKIPPED:
            names.setdefault(node.arg)
        elif isinstance(node, ast.Name) and id(node) not in called and node.id not in _SKIPPED:
            names.setdefault(node.id)
        elif isinstance(node, ast.Attribute) and id(node) not in called:
            attributes.setdefault(node.attr)
    return list(names), list(attributes)


def _dedented(source: str) -> str:
    lines = source.split("\n")
    first = next((line for line in lines if line.strip()), "")
    width = len(first) - len(first.lstrip())
    return "\n".join(line[width:] if not line[:width].strip() else line for line in lines)


def _swapped_arguments(text: str) -> Iterator[str]:
    """Calls and operations with their two operands exchanged."""
    # Half a compound statement is none: it gets a body, and `elif` becomes the `if` at its end.
    skipped = 2 if re.match(r"elif\b", text) else 0
    statement = text[skipped:] + " pass" if text.endswith(":") else text.rstrip(",")
    try:
        tree = parse(statement)
    except (SyntaxError, ValueError):
        return
    raw = text.encode()
    # Python 3.11 gives what stands in an f-string places that may be wrong.
    formatted = {id(n) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for n in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in formatted:
            continue
        if isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
            left, right = ((a.col_offset + skipped, (a.end_col_offset or 0) + skipped) for a in node.args)
            start, end = left[0], right[1]
            new = raw[slice(*right)] + raw[left[1] : right[0]] + raw[slice(*left)]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Sub | ast.FloorDiv | ast.Mod):
            # Written anew, because an operand may need parentheses on its new side.
            start, end = node.col_offset + skipped, (node.end_col_offset or 0) + skipped
            new = ast.unparse(ast.BinOp(node.right, node.op, node.left)).encode()
        else:
            continue
        candidate = (raw[:start] + new + raw[end:]).decode()
        # A line break of an f-string is written as one.
        if candidate != text and "\n" not in candidate:
            yield candidate
