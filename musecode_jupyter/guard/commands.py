"""Reads a shell line: which simple commands it is made of, and why a rule may not cover it; asks no shell.

What a rule allows must be plain from the text alone, so the parse accepts a small part of the language and names
the first thing outside it. Two readers have to agree on a line before a prefix covers it: the grammar of
tree-sitter-bash, and the word splitting of `shlex`.
"""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from musecode_jupyter.guard.wrappers import beyond_rules, word_set

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_COMMAND_CHARS = 32_768

# Builtins of bash that do nothing but print, wait or answer.
HARMLESS_BUILTINS = word_set(": echo exit false printf pwd true")
_SPECIAL_FILES = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})
_LOOP_VARIABLE = re.compile(r"(?!auto_resume\Z|histchars\Z)[a-z][a-z0-9_]*\Z")
_PLAIN = re.compile(r"[\w@%+=:,./-]+\Z")
_STATEMENTS = word_set(
    """
    program list pipeline subshell compound_statement if_statement elif_clause else_clause while_statement do_group
    for_statement negated_command redirected_statement command
    """
)
_JOINTS = word_set("; && || | |& ( ) { } ! if then elif else fi while until do done for in") | {"\n"}
_REDIRECTIONS = word_set("> >> < >& <& &> &>> >| >&- <&-")
_NAMES = {
    "command_substitution": "command substitution",
    "process_substitution": "process substitution",
    "heredoc_redirect": "a here-document",
    "herestring_redirect": "a here-string",
    "variable_assignment": "a variable that it sets",
    "variable_assignments": "variables that it sets",
    "declaration_command": "a variable that it declares",
    "unset_command": "a variable that it unsets",
    "function_definition": "a function that it defines",
    "test_command": "a test in brackets",
    "case_statement": "a case statement",
    "c_style_for_statement": "arithmetic",
    "arithmetic_expansion": "arithmetic",
    "comment": "a comment",
    "ERROR": "a part that cannot be parsed",
    "&": "a command in the background",
}


@dataclass(frozen=True)
class SimpleCommand:
    """One simple command: its words as the shell will see them. `plain` is false if one of them is expanded first."""

    words: tuple[str, ...]
    plain: bool


@dataclass(frozen=True)
class Line:
    """A line as read. `never`: why no rule can cover it; `exact_only`: why a prefix cannot; both empty if it can.

    `files` are the targets of its redirections; `moves` is true if it changes the directory.
    """

    text: str
    commands: tuple[SimpleCommand, ...] = ()
    files: tuple[str, ...] = ()
    moves: bool = False
    never: str = ""
    exact_only: str = ""


def read_line(text: str) -> Line:
    """Take `text` apart; never raises."""
    problem = _characters(text)
    if problem:
        return Line(text, never=problem)
    tree = _parser().parse(text.encode("utf-8"))
    reader = _Reader()
    try:
        reader.statement(tree.root_node)
    except _Beyond as beyond:
        return Line(text, never=str(beyond))
    except RecursionError:
        return Line(text, never="it is nested too deeply")
    if not reader.commands:
        return Line(text, never="it holds no command")
    never = next(filter(None, (beyond_rules(command.words) for command in reader.commands)), "")
    exact_only = ""
    if any(not command.plain for command in reader.commands):
        exact_only = "a word is expanded before the command sees it"
    elif reader.moves:
        exact_only = "it changes the directory"
    elif not _agree(reader.tokens, text):
        never = never or "two readings of it differ"
    return Line(text, tuple(reader.commands), tuple(reader.files), reader.moves, never, exact_only)


def words_of(text: str) -> tuple[str, ...]:
    """The words of one plain simple command, for a prefix; ValueError says why `text` is none."""
    line = read_line(text)
    if line.never or line.exact_only:
        raise ValueError(line.never or line.exact_only)
    if len(line.commands) != 1 or line.files:
        raise ValueError("it is more than one simple command")
    return line.commands[0].words


def find_program(name: str, *, path: str, cwd: Path) -> str:
    """What `name` runs in a child with PATH `path` and directory `cwd`: a path, `builtin NAME`, or empty if unknown.

    A link is followed and both ends are named, so that a link that leads elsewhere is another program.
    """
    if name in HARMLESS_BUILTINS or name == "cd":
        return f"builtin {name}"
    if "/" in name:
        candidates = [cwd / name]
    else:
        candidates = []
        for entry in path.split(os.pathsep):
            if not os.path.isabs(entry):
                break  # what a relative or empty entry names depends on where the command is by then
            candidates.append(Path(entry, name))
    for candidate in candidates:
        found = os.path.join(os.path.realpath(candidate.parent), candidate.name)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            real = os.path.realpath(found)
            return found if real == found else f"{found} -> {real}"
    return ""


def redirection_problem(line: Line, root: Path) -> str:
    """Why a redirection of `line`, run in `root`, is not within what rules cover; empty if all are."""
    base = os.path.realpath(root)
    for file in line.files:
        if file in _SPECIAL_FILES:
            continue
        if line.moves and not os.path.isabs(file):
            return f"{file} depends on the directory that it changes to"
        real = os.path.realpath(os.path.join(base, file))
        below = os.path.relpath(real, base)
        if real == base or below == ".." or below.startswith("../"):
            return f"it redirects to or from {file}, outside the worktree"
        if any(part.casefold() == ".git" for part in Path(below).parts):
            return f"it redirects to or from {file}, which belongs to git"
        if os.path.lexists(real) and not os.path.isfile(real):
            return f"it redirects to or from {file}, which is no regular file"
    return ""


class _Beyond(Exception):
    """The line holds something that no rule covers; the text names it."""


@dataclass
class _Reader:
    """Walks the tree of one line. `tokens` are its words and joints in order."""

    commands: list[SimpleCommand] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    moves: bool = False

    def statement(self, node: Node) -> None:
        if node.is_missing or node.type not in _STATEMENTS:
            raise _Beyond(_named(node))
        if node.type == "command":
            self._command(node)
            return
        for index, child in enumerate(node.children):
            if child.type == "file_redirect":
                self._redirect(child)
            elif node.type == "for_statement" and node.field_name_for_child(index) in {"variable", "value"}:
                self._loop_word(child)
            elif child.is_named:
                self.statement(child)
            elif child.type in _JOINTS and not child.is_missing:
                self.tokens.append(child.type)
            else:
                raise _Beyond(_named(child))

    def _command(self, node: Node) -> None:
        words: list[str] = []
        plain = True
        for child in node.children:
            if child.type == "file_redirect":
                self._redirect(child)
                continue
            name = child.type == "command_name"
            word, is_plain = _word(child.children[0] if name and child.children else child)
            if name and (not is_plain or words):
                raise _Beyond("a command's name that is not written out")
            words.append(word)
            plain = plain and is_plain
            self.tokens.append(word)
        if not words:
            raise _Beyond("a redirection without a command")
        self.moves = self.moves or words[0] == "cd"
        self.commands.append(SimpleCommand(tuple(words), plain))

    def _redirect(self, node: Node) -> None:
        duplicate = False
        for child in node.children:
            if child.type == "file_descriptor":
                self.tokens.append(_text(child))
            elif child.type in _REDIRECTIONS:
                duplicate = child.type in {">&", "<&"}
                self.tokens.append(child.type)
            else:
                word, plain = _word(child)
                if not plain:
                    raise _Beyond("a redirection to a name that is not written out")
                self.tokens.append(word)
                if not (duplicate and word.isdecimal()):
                    self.files.append(word)

    def _loop_word(self, node: Node) -> None:
        word, plain = (_text(node), True) if node.type == "variable_name" else _word(node)
        if node.type == "variable_name" and not _LOOP_VARIABLE.match(word):
            raise _Beyond(f"the variable {word}, which other programs may read")
        if not plain:
            raise _Beyond("a loop over words that are not written out")
        self.tokens.append(word)


def _word(node: Node) -> tuple[str, bool]:
    """A word as the shell will pass it, and whether that is plain from the text; _Beyond if it runs something."""
    if node.is_missing:
        raise _Beyond(_named(node))
    kind = node.type
    if kind in {"word", "number"} and not node.children:
        text = _text(node)
        return text, _PLAIN.match(text) is not None
    if kind == "raw_string":
        return _text(node)[1:-1], True
    if kind == "string":
        inner = [child for child in node.children if child.is_named]
        for child in inner:
            _refuse_running(child)
        text = _text(node)[1:-1]
        return text, all(child.type == "string_content" for child in inner) and not re.search(r"[\\$`!]", text)
    if kind == "concatenation":
        parts = [_word(child) for child in node.children if child.is_named or child.type != "$"]
        text = "".join(part for part, _ in parts)
        return text, all(plain for _, plain in parts) and "{" not in text
    if kind in {"simple_expansion", "expansion", "ansi_c_string", "translated_string", "brace_expression"}:
        _refuse_running(node)
        return _text(node), False
    raise _Beyond(_named(node))


def _refuse_running(node: Node) -> None:
    for each in _all(node):
        if each.type in _NAMES or each.is_missing or "subscript" in each.type or each.type in {"@", "!"}:
            raise _Beyond(_named(each))


def _all(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _all(child)


def _named(node: Node) -> str:
    if node.is_missing:
        return _NAMES["ERROR"]
    return _NAMES.get(node.type, f"a part of the language that rules do not cover (`{node.type}`)")


def _text(node: Node) -> str:
    assert node.text is not None
    return node.text.decode("utf-8")


def _characters(text: str) -> str:
    """What the characters alone forbid."""
    if len(text) > MAX_COMMAND_CHARS:
        return f"its length of over {MAX_COMMAND_CHARS} characters"
    for character in text:
        if character in "\n\t ":
            continue
        category = unicodedata.category(character)
        if category[0] in "CZ":
            return f"the character U+{ord(character):04X}, which hides or is read in different ways"
    if "\\\n" in text:
        return "a line that is continued"
    return ""


def _agree(tokens: list[str], text: str) -> bool:
    """Whether shlex finds the same words and joints; only asked of lines whose words are all plain."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t"
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return _merged(list(lexer)) == _merged(tokens)
    except ValueError:
        return False


def _merged(tokens: list[str]) -> list[str]:
    """Tokens with neighbouring joints as one, without newlines: shlex takes a run of them together."""
    merged: list[str] = []
    joint = False
    for token in tokens:
        if token and not token.strip("();<>|&\n"):
            token = token.replace("\n", "")
            if not token:
                continue
            if joint:
                merged[-1] += token
            else:
                merged.append(token)
            joint = True
        else:
            merged.append(token)
            joint = False
    return merged


@cache
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))
