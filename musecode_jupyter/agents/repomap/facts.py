"""What the bytes of one file say: its symbols with lines and signatures, what it imports, the names that it uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from musecode_jupyter.agents.repomap.languages import Grammar, grammar
from musecode_jupyter.tools.encoding import is_binary

if TYPE_CHECKING:
    from tree_sitter import Node

MOST_BYTES = 256_000
"""A file with more is listed without symbols: what is so large is data or was generated."""

LONGEST_LINE = 5_000
"""Bytes; a file with a longer line is minified or data."""

NOT_YET = "not looked into yet"
"""Note on a file for which there was no time, or that changed whenever it was looked at; the next call goes on."""

MOST_SYMBOLS = 2_000
MOST_LINES = 20
"""Lines given for one name that a file uses."""

_SIGNATURE = 160
_SUMMARY = 120
_FIELDS = 12

# An error node at the root with more children is no program: a query over 300,000 open brackets took five minutes.
_MOST_STRAY = 5_000

_WORD = re.compile(r"\.?\b[^\W\d]\w+")
_HEADING = re.compile(r"(#{1,4})[ \t]+(.+?)[ \t#]*$")
_NO_SUMMARY = re.compile(r"copyright|spdx|licen[sc]e|coding[:=]|eslint|clang-format|@ts-|pragma", re.IGNORECASE)
_NOTHING = re.compile(rb"[^\n]")


@dataclass(frozen=True)
class Symbol:
    """A definition: lines `start` to `end`, from 1, decorators included; `line` is where its name stands.

    `name` has the classes around it: `Class.method`. `kind` is function, class, method, constant or heading.
    """

    name: str
    kind: str
    start: int
    end: int
    line: int
    signature: str

    @property
    def short(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2] if self.kind != "heading" else self.name


@dataclass(frozen=True)
class Import:
    """An import as it is written: a module, a path or a crate, and what is taken from it under which name."""

    module: str
    names: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class FileFacts:
    """What one file holds. `note` says why it has no symbols: binary, large, minified, not UTF-8, does not parse.

    `size` is in bytes; `lines` is 0 for a file that was not looked into. `summary` is what a file first says of itself.

    `uses` has a line for each name that the code mentions, in order: the name, with a dot before it if it is taken from
    an object, and the numbers of the first lines that do. One text takes a tenth of the memory of a dict. `fields` are
    the names of the fields of its classes.
    """

    language: str
    size: int
    lines: int
    note: str = ""
    summary: str = ""
    symbols: tuple[Symbol, ...] = ()
    imports: tuple[Import, ...] = ()
    uses: str = ""
    fields: tuple[str, ...] = ()

    def used(self) -> Iterator[tuple[str, list[str]]]:
        """Each used name with its lines."""
        for entry in self.uses.splitlines():
            name, *lines = entry.split(" ")
            yield name, lines

    def lines_of(self, name: str, *, bare: bool = True) -> list[int]:
        """The first lines that mention `name` taken from an object, and with `bare` also by itself."""
        found: set[int] = set()
        text = f"\n{self.uses}"
        for written in (f".{name}", *([name] if bare else [])):
            at = text.find(f"\n{written} ")
            if at >= 0:
                line = text[at + 1 :].partition("\n")[0]
                found.update(map(int, line.split(" ")[1:]))
        return sorted(found)

    def at(self, line: int) -> Symbol | None:
        """The innermost symbol that has that line."""
        around = [symbol for symbol in self.symbols if symbol.start <= line <= symbol.end]
        return min(around, key=lambda symbol: symbol.end - symbol.start, default=None)


def facts_of(language: str, data: bytes) -> FileFacts:
    """Everything that the map knows of a file in `language` (see `language_of`); never raises for what it holds."""
    size = len(data)
    note = _unfit(data) if language else ""
    if note or not language:
        return FileFacts(language, size, 0, note)
    lines = data.count(b"\n") + (not data.endswith(b"\n") and size > 0)
    if language == "prose":
        return _prose(data, size, lines)
    found, parser, query = grammar(language)
    from tree_sitter import QueryCursor

    tree = parser.parse(data)
    root = tree.root_node
    if root.type == "ERROR" and root.child_count > _MOST_STRAY:
        return FileFacts(language, size, lines, "does not parse")
    captured = {
        name: sorted(nodes, key=lambda node: node.start_byte)
        for name, nodes in QueryCursor(query).captures(root).items()
    }
    fields = captured.get("field", [])
    symbols = _symbols(found, captured.get("name", []), fields, data)
    return FileFacts(
        language,
        size,
        lines,
        "has syntax errors" if root.has_error else "",
        _summary(found, captured, symbols, data),
        symbols,
        tuple(dict.fromkeys(each for node in captured.get("import", []) for each in _imports(found, node, data))),
        _uses(captured, data),
        tuple(sorted({_text(data, node.start_byte, node.end_byte) for node in fields})),
    )


def _unfit(data: bytes) -> str:
    """Why a file is not looked into; empty if it is."""
    if is_binary(data[:8_192]) or b"\0" in data:
        return "binary"
    if len(data) > MOST_BYTES:
        return "large"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "not UTF-8"
    if max(map(len, data.split(b"\n"))) > LONGEST_LINE:
        return "minified"
    return ""


def _text(data: bytes, start: int, end: int) -> str:
    return data[start:end].decode("utf-8", "replace")


def _flat(text: str, limit: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 4] + " ..."


def _prose(data: bytes, size: int, lines: int) -> FileFacts:
    headings: list[tuple[int, str]] = []
    fenced = False
    for number, line in enumerate(data.decode("utf-8").split("\n"), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and (match := _HEADING.match(line)) and len(headings) < MOST_SYMBOLS:
            headings.append((number, _flat(match[2], _SUMMARY)))
    ends = [number - 1 for number, _ in headings[1:]] + [lines]
    symbols = tuple(
        Symbol(text, "heading", number, end, number, text) for (number, text), end in zip(headings, ends, strict=False)
    )
    return FileFacts("prose", size, lines, "", headings[0][1] if headings else "", symbols)


def _definition(node: Node, kinds: Grammar) -> Node | None:
    """The definition whose name `node` is."""
    above = node.parent
    for _ in range(6):
        if above is None or above.type in kinds.kinds:
            return above
        above = above.parent
    return None


def _symbols(found: Grammar, names: list[Node], fields: list[Node], data: bytes) -> tuple[Symbol, ...]:
    defined: list[tuple[Node, Node]] = []
    for name in names:
        definition = _definition(name, found)
        if definition is not None:
            defined.append((definition, name))
    defined.sort(key=lambda pair: (pair[0].start_byte, -pair[0].end_byte, pair[1].start_byte))
    owned = _fields(fields, data)
    symbols: list[Symbol] = []
    around: list[tuple[int, str, str]] = []  # end, name and kind of the definitions that are open
    seen: set[tuple[str, int]] = set()
    for definition, name in defined[:MOST_SYMBOLS]:
        while around and around[-1][0] <= definition.start_byte:
            around.pop()
        kind = found.kinds[definition.type]
        word = _flat(_text(data, name.start_byte, name.end_byte), _SUMMARY).replace("::", ".")
        inside = around[-1] if around else None
        if inside is not None and inside[2] in {"class", "impl"}:
            word = f"{inside[1]}.{word}"
            kind = "method" if kind == "function" else kind
        elif definition.type == "method_declaration":
            word, kind = f"{_receiver(definition, data)}.{word}", "method"
        elif "." in word and kind == "function":
            kind = "method"
        around.append((definition.end_byte, word, kind))
        if inside is not None and inside[2] in {"function", "method"}:
            around[-1] = (definition.end_byte, word, "function")  # local, and so is what it holds
            continue
        line = name.start_point.row + 1
        if kind == "impl" or (word, line) in seen:
            continue
        seen.add((word, line))
        outer = definition.parent if definition.parent is not None else definition
        decorated = outer.type == "decorated_definition"
        start = outer if decorated else definition
        signature = _signature(definition, data)
        if decorated:
            signature = _decorators(outer, data) + signature
        if kind == "class" and owned.get(definition.start_byte):
            signature = _flat(f"{signature}: {', '.join(owned[definition.start_byte][:_FIELDS])}", _SIGNATURE)
        symbols.append(Symbol(word, kind, start.start_point.row + 1, definition.end_point.row + 1, line, signature))
    return tuple(symbols)


def _fields(fields: list[Node], data: bytes) -> dict[int, list[str]]:
    """The annotated fields of classes, by the byte at which the class begins."""
    owned: dict[int, list[str]] = {}
    for field in fields:
        above = field.parent
        while above is not None and above.type != "class_definition":
            above = above.parent
        if above is not None:
            owned.setdefault(above.start_byte, []).append(_text(data, field.start_byte, field.end_byte))
    return owned


def _receiver(method: Node, data: bytes) -> str:
    receiver = method.child_by_field_name("receiver")
    words = re.findall(r"\w+", _text(data, receiver.start_byte, receiver.end_byte)) if receiver is not None else []
    return words[1] if len(words) > 1 else words[0] if words else "?"


def _signature(definition: Node, data: bytes) -> str:
    body = definition.child_by_field_name("body")
    ends = [child.start_byte for child in definition.children if child.type == "comment" or child == body]
    end = min(ends, default=definition.end_byte)
    text = _text(data, definition.start_byte, end)
    if body is None:
        text = text.partition("\n")[0]
    flat = " ".join(text.split())
    for written, shorter in (("( ", "("), (", )", ")"), (" )", ")")):
        flat = flat.replace(written, shorter)
    return _flat(flat, _SIGNATURE).rstrip(":{;[(= ")


def _decorators(outer: Node, data: bytes) -> str:
    names = [
        _text(data, child.start_byte, child.end_byte).partition("(")[0].strip()
        for child in outer.children
        if child.type == "decorator"
    ]
    return "".join(f"{name} " for name in names[:3] if len(name) < 60)


def _summary(found: Grammar, captured: dict[str, list[Node]], symbols: tuple[Symbol, ...], data: bytes) -> str:
    """The first words on the file: its docstring, or else the comment at its head."""
    first = min((symbol.start for symbol in symbols), default=1 << 30)
    source = captured.get("doc", []) if found.name == "python" else captured.get("blank", [])
    for node in source:
        if node.start_point.row + 1 >= first:
            break
        if found.name != "python" and node.type not in {"comment", "line_comment", "block_comment"}:
            continue
        for line in _text(data, node.start_byte, node.end_byte).split("\n"):
            words = line.strip().lstrip("/#!*").rstrip("*/").strip()
            if words and not line.startswith("#!") and not _NO_SUMMARY.search(words):
                return _flat(words, _SUMMARY)
        if found.name == "python":
            break
    return ""


def _imports(found: Grammar, node: Node, data: bytes) -> Iterator[Import]:
    if node.type == "import_statement" and found.name == "python":
        for child in node.children_by_field_name("name"):
            yield Import(_imported(child, data)[0])
    elif node.type == "import_from_statement":
        module = node.child_by_field_name("module_name")
        names = [_imported(child, data) for child in node.children_by_field_name("name")]
        if any(child.type == "wildcard_import" for child in node.children):
            names.append(("*", "*"))
        if module is not None:
            yield Import("".join(_text(data, module.start_byte, module.end_byte).split()), tuple(names))
    else:
        text = " ".join(_text(data, node.start_byte, node.end_byte).split())
        if len(text) <= 400:
            yield Import(text)


def _imported(node: Node, data: bytes) -> tuple[str, str]:
    """A name and what it is called from then on."""
    if node.type == "aliased_import":
        name, alias = node.child_by_field_name("name"), node.child_by_field_name("alias")
        if name is not None and alias is not None:
            return _text(data, name.start_byte, name.end_byte), _text(data, alias.start_byte, alias.end_byte)
    text = "".join(_text(data, node.start_byte, node.end_byte).split())
    return text, text


def _uses(captured: dict[str, list[Node]], data: bytes) -> str:
    """The names that the code mentions, without comments and the text of strings."""
    code = bytearray(data)
    for node in captured.get("blank", []):
        code[node.start_byte : node.end_byte] = _NOTHING.sub(b" ", data[node.start_byte : node.end_byte])
    found: dict[str, list[int]] = {}
    for number, line in enumerate(code.decode("utf-8", "replace").split("\n"), 1):
        for word in _WORD.findall(line):
            lines = found.setdefault(word, [])
            if len(lines) < MOST_LINES and (not lines or lines[-1] != number):
                lines.append(number)
    return "".join(f"{word} {' '.join(map(str, lines))}\n" for word, lines in sorted(found.items()))
