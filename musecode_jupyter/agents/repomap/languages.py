"""Which language a file is in, and what of its syntax tree the map wants: names, imports, and text that is no code.

The grammars are loaded when a file of their language is first parsed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Parser, Query


@dataclass(frozen=True)
class Grammar:
    """How one language is read.

    `query` captures `name` (of a definition), `import`, `blank` (comments and text of strings), `field` (of a class)
    and `doc` (the first words on a file). `kinds` says by node type what a definition is.
    """

    name: str
    module: str
    function: str
    query: str
    kinds: Mapping[str, str]


_PYTHON = Grammar(
    "python",
    "tree_sitter_python",
    "language",
    """
    (function_definition name: (identifier) @name)
    (class_definition name: (identifier) @name)
    (module (expression_statement (assignment left: (identifier) @name)))
    (class_definition body: (block (expression_statement (assignment left: (identifier) @field type: (_)))))
    (module (expression_statement (string (string_content) @doc)))
    (import_statement) @import
    (import_from_statement) @import
    (comment) @blank
    (string_content) @blank
    """,
    {"function_definition": "function", "class_definition": "class", "assignment": "constant"},
)
_C = Grammar(
    "c",
    # The grammar of CUDA has all of C++, which has nearly all of C.
    "tree_sitter_cuda",
    "language",
    """
    (function_definition declarator: (function_declarator declarator: (_) @name))
    (function_definition declarator: (_ (function_declarator declarator: (_) @name)))
    (translation_unit (declaration declarator: (function_declarator declarator: (identifier) @name)))
    (field_declaration declarator: (function_declarator declarator: (field_identifier) @name))
    (class_specifier name: (_) @name body: (_))
    (struct_specifier name: (_) @name body: (_))
    (union_specifier name: (_) @name body: (_))
    (enum_specifier name: (_) @name body: (_))
    (type_definition declarator: (type_identifier) @name)
    (preproc_function_def name: (identifier) @name)
    (preproc_include path: (_) @import)
    (comment) @blank
    (string_content) @blank
    """,
    {
        "function_definition": "function",
        "declaration": "function",
        "field_declaration": "function",
        "class_specifier": "class",
        "struct_specifier": "class",
        "union_specifier": "class",
        "enum_specifier": "class",
        "type_definition": "class",
        "preproc_function_def": "constant",
    },
)
_SCRIPT_QUERY = """
    (function_declaration name: (_) @name)
    (generator_function_declaration name: (_) @name)
    (class_declaration name: (_) @name)
    (method_definition name: (_) @name)
    (program (lexical_declaration (variable_declarator name: (identifier) @name)))
    (program (export_statement (lexical_declaration (variable_declarator name: (identifier) @name))))
    (import_statement source: (string (string_fragment) @import))
    (export_statement source: (string (string_fragment) @import))
    (call_expression function: (identifier) @called arguments: (arguments . (string (string_fragment) @import))
        (#eq? @called "require"))
    (call_expression function: (import) arguments: (arguments . (string (string_fragment) @import)))
    (comment) @blank
    (string_fragment) @blank
    """
_SCRIPT_KINDS = {
    "function_declaration": "function",
    "generator_function_declaration": "function",
    "class_declaration": "class",
    "method_definition": "function",
    "variable_declarator": "constant",
}
_JAVASCRIPT = Grammar("javascript", "tree_sitter_javascript", "language", _SCRIPT_QUERY, _SCRIPT_KINDS)
_TYPED_QUERY = f"""
    {_SCRIPT_QUERY}
    (abstract_class_declaration name: (_) @name)
    (interface_declaration name: (_) @name)
    (type_alias_declaration name: (_) @name)
    (enum_declaration name: (_) @name)
    """
_TYPED_KINDS = {
    **_SCRIPT_KINDS,
    "abstract_class_declaration": "class",
    "interface_declaration": "class",
    "type_alias_declaration": "class",
    "enum_declaration": "class",
}
_TYPESCRIPT = Grammar("typescript", "tree_sitter_typescript", "language_typescript", _TYPED_QUERY, _TYPED_KINDS)
_TSX = Grammar("tsx", "tree_sitter_typescript", "language_tsx", _TYPED_QUERY, _TYPED_KINDS)
_RUST = Grammar(
    "rust",
    "tree_sitter_rust",
    "language",
    """
    (function_item name: (_) @name)
    (function_signature_item name: (_) @name)
    (struct_item name: (_) @name)
    (enum_item name: (_) @name)
    (union_item name: (_) @name)
    (trait_item name: (_) @name)
    (type_item name: (_) @name)
    (impl_item type: (_) @name)
    (macro_definition name: (_) @name)
    (const_item name: (_) @name)
    (static_item name: (_) @name)
    (use_declaration) @import
    (mod_item !body) @import
    (line_comment) @blank
    (block_comment) @blank
    (string_content) @blank
    """,
    {
        "function_item": "function",
        "function_signature_item": "function",
        "struct_item": "class",
        "enum_item": "class",
        "union_item": "class",
        "trait_item": "class",
        "type_item": "class",
        "impl_item": "impl",
        "macro_definition": "function",
        "const_item": "constant",
        "static_item": "constant",
    },
)
_GO = Grammar(
    "go",
    "tree_sitter_go",
    "language",
    """
    (function_declaration name: (_) @name)
    (method_declaration name: (_) @name)
    (type_spec name: (_) @name)
    (source_file (const_declaration (const_spec name: (_) @name)))
    (import_spec path: (_) @import)
    (comment) @blank
    (interpreted_string_literal) @blank
    (raw_string_literal) @blank
    """,
    {
        "function_declaration": "function",
        "method_declaration": "function",
        "type_spec": "class",
        "const_spec": "constant",
    },
)
_SHELL = Grammar(
    "shell",
    "tree_sitter_bash",
    "language",
    """
    (function_definition name: (_) @name)
    (command name: (command_name) @called argument: (_) @import (#match? @called "^(source|[.])$"))
    (comment) @blank
    (raw_string) @blank
    """,
    {"function_definition": "function"},
)

GRAMMARS = {each.name: each for each in (_PYTHON, _C, _JAVASCRIPT, _TYPESCRIPT, _TSX, _RUST, _GO, _SHELL)}

_BY_ENDING = {
    **dict.fromkeys((".py", ".pyi"), "python"),
    **dict.fromkeys((".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx", ".cu", ".cuh"), "c"),
    **dict.fromkeys((".js", ".jsx", ".mjs", ".cjs"), "javascript"),
    **dict.fromkeys((".ts", ".mts", ".cts"), "typescript"),
    ".tsx": "tsx",
    ".rs": "rust",
    ".go": "go",
    **dict.fromkeys((".sh", ".bash"), "shell"),
    **dict.fromkeys((".md", ".rst"), "prose"),
}
LANGUAGES = (*GRAMMARS, "prose")


def language_of(path: str) -> str:
    """The language of a file by its ending; empty if the map has no grammar for it."""
    return _BY_ENDING.get(PurePosixPath(path).suffix.lower(), "")


@functools.cache
def grammar(name: str) -> tuple[Grammar, Parser, Query]:
    """The grammar called `name` with its parser and compiled query."""
    from tree_sitter import Language, Parser, Query

    found = GRAMMARS[name]
    language = Language(getattr(importlib.import_module(found.module), found.function)())
    return found, Parser(language), Query(language, found.query)
