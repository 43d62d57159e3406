# SPDX-License-Identifier: Apache-2.0
"""Tree-sitter grammars of the languages whose symbols are parsed, with their symbol nodes.

A language is an entry of :data:`_LANGUAGES`: its suffixes, its grammar, and the node types that
define symbols. Other languages have no grammar, and no symbols.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from itertools import accumulate
from pathlib import PurePosixPath

from tree_sitter import Language, Node, Parser, Query, QueryCursor, Tree

# Statements of C and C++ that define something only outside of functions: calls of macros, and the
# bodies after them. There, they are children of these nodes.
_OUTSIDE = ("compound_statement", "expression_statement")
_PARENTS = (
    *("translation_unit", "declaration_list", "ERROR", "preproc_if", "preproc_ifdef"),
    *("preproc_elif", "preproc_elifdef", "preproc_else"),
)


@dataclass(frozen=True)
class Grammar:
    """Rules of a language: which nodes of its syntax tree define symbols.

    Attributes:
        package: the Python package of the grammar.
        scopes: types of nodes that define a symbol, of any length.
        values: types of nodes that define a symbol if they span several lines, outside of
            functions.
        separator: text between the names of nested scopes.
        overloads: True when functions of one scope may share a name.
        preprocessed: True when ``#if`` chooses between definitions.
        function: the name of the package's function that returns the grammar.
    """

    package: str
    scopes: tuple[str, ...]
    values: tuple[str, ...]
    separator: str = "."
    overloads: bool = False
    preprocessed: bool = False
    function: str = "language"

    @cached_property
    def language(self) -> Language:
        """The loaded grammar."""
        return Language(getattr(import_module(self.package), self.function)())

    def parse(self, data: bytes, known: Tree | None = None) -> Tree:
        """Return the syntax tree of a file; text that does not parse is an ERROR node.

        ``known`` is the tree of another version, as :func:`edited` returns it.
        """
        parser = Parser(self.language)
        return parser.parse(data, known) if known else parser.parse(data)

    @cached_property
    def _query(self) -> Query:
        """The query for the nodes that may define symbols."""
        inner = [kind for kind in self.values if kind in _OUTSIDE]
        plain = [f"({kind}) @x" for kind in (*self.scopes, *self.values) if kind not in inner]
        below = [f"({parent} ({kind}) @x)" for kind in inner for parent in _PARENTS]
        return Query(self.language, f"[{' '.join(plain + below)}]")

    def definitions(self, root: Node, span: tuple[int, int] | None = None) -> list[Node]:
        """Return the nodes that may define symbols, outer before inner nodes.

        ``span`` has the first byte of the nodes, and the byte after the last one.
        """
        cursor, (first, last) = QueryCursor(self._query), span or (0, root.end_byte)
        if span:
            cursor.set_byte_range(first, last)
        nodes: Iterable[Node] = cursor.captures(root).get("x", ())
        if not self.holds_functions:  # most values are on one line, and define nothing
            nodes = (
                node
                for node in nodes
                if node.start_point[0] < node.end_point[0] or node.type in self.scopes
            )
        found = (node for node in nodes if first <= node.start_byte < last)
        return sorted(found, key=lambda node: (node.start_byte, -node.end_byte))

    @property
    def holds_functions(self) -> bool:
        """True when a value may be a function."""
        return "pair" in self.values


def edited(tree: Tree, old: Sequence[bytes], new: Sequence[bytes]) -> Tree:
    """Return the tree of lines, which end with line feeds, marked where the new ones differ."""
    marked, starts = copy.copy(tree), [0, *accumulate(len(line) + 1 for line in old)]
    for first, last, start, end in reversed([*_changed(old, new)]):
        at, size = starts[first], sum(len(line) + 1 for line in new[start:end])
        marked.edit(at, starts[last], at + size, (first, 0), (last, 0), (first + end - start, 0))
    return marked


def _changed(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[tuple[int, int, int, int]]:
    """Yield ranges of rows with all lines that differ: first and last old row, and new ones.

    Each ends at a line that is only once in ``old``: quickly found, and as good for a parser.
    """
    rows: dict[bytes, int] = {}
    for row, line in enumerate(old):
        rows[line] = -1 if line in rows else row
    last = end = 0
    while last < len(old) or end < len(new):
        most = min(len(old) - last, len(new) - end)
        size = next((at for at in range(most) if old[last + at] != new[end + at]), most)
        first, start = last + size, end + size
        same = (at for at in range(start, len(new)) if rows.get(new[at], -1) >= first)
        end = next(same, len(new))
        last = rows[new[end]] if end < len(new) else len(old)
        if (first, start) != (last, end):
            yield first, last, start, end


_C_SCOPES = ("function_definition", "struct_specifier", "union_specifier", "enum_specifier")
_C_VALUES = (
    *("declaration", "type_definition", "expression_statement", "compound_statement"),
    *("preproc_function_def", "preproc_def"),
)
_SCRIPT_SCOPES = (
    *("function_declaration", "generator_function_declaration", "class_declaration", "class"),
    "method_definition",
)
_SCRIPT_VALUES = ("variable_declarator", "pair", "assignment_expression")
_TYPESCRIPT = Grammar(
    "tree_sitter_typescript",
    (
        *(*_SCRIPT_SCOPES, "abstract_class_declaration", "interface_declaration"),
        *("enum_declaration", "internal_module", "module", "type_alias_declaration"),
        *("function_signature", "method_signature", "abstract_method_signature"),
    ),
    (*_SCRIPT_VALUES, "public_field_definition"),
    overloads=True,
    function="language_typescript",
)

_LANGUAGES: dict[str, Grammar] = {
    ".c": Grammar(
        "tree_sitter_c",
        _C_SCOPES,
        _C_VALUES,
        preprocessed=True,
    ),
    ".cc .cpp .cxx .h .hh .hpp .hxx .inl .ipp .tcc .cu .cuh": Grammar(
        "tree_sitter_cpp",
        (*_C_SCOPES, "class_specifier", "namespace_definition", "concept_definition"),
        (*_C_VALUES, "alias_declaration"),
        separator="::",
        overloads=True,
        preprocessed=True,
    ),
    ".py .pyi": Grammar(
        "tree_sitter_python", ("function_definition", "class_definition"), ("assignment",)
    ),
    ".java": Grammar(
        "tree_sitter_java",
        (
            *("class_declaration", "interface_declaration", "enum_declaration"),
            *("record_declaration", "annotation_type_declaration", "method_declaration"),
            *("constructor_declaration", "compact_constructor_declaration"),
            *("static_initializer", "enum_constant"),
        ),
        ("field_declaration",),
        overloads=True,
    ),
    ".js .jsx .mjs .cjs": Grammar(
        "tree_sitter_javascript", _SCRIPT_SCOPES, (*_SCRIPT_VALUES, "field_definition")
    ),
    ".ts .mts .cts": _TYPESCRIPT,
    ".tsx": replace(_TYPESCRIPT, function="language_tsx"),
    ".go": Grammar(
        "tree_sitter_go",
        ("function_declaration", "method_declaration", "type_spec"),
        ("var_spec", "const_spec"),
    ),
    ".rs": Grammar(
        "tree_sitter_rust",
        (
            *("function_item", "function_signature_item", "impl_item", "trait_item", "mod_item"),
            *("struct_item", "enum_item", "union_item", "macro_definition"),
        ),
        ("const_item", "static_item", "type_item", "macro_invocation"),
        separator="::",
    ),
}
_BY_SUFFIX = {suffix: item for suffixes, item in _LANGUAGES.items() for suffix in suffixes.split()}


def grammar_of(path: str) -> Grammar | None:
    """Return the grammar of a file's language; None for a language without a grammar."""
    return _BY_SUFFIX.get(PurePosixPath(path).suffix.lower())


# Nodes with child nodes, but whose first line is not the head of a block.
_PLAIN = (
    *("decorated_definition", "template_declaration", "export_statement", "ERROR"),
    "linkage_specification",
)


def labels(node: Node, outer: Node | None, lines: list[bytes]) -> tuple[str, ...]:
    """Return the head lines of the blocks around ``node``, inside ``outer``, outermost first.

    The head of a block is the first line of a node of several lines: ``if (x) {``, ``case A:``,
    ``it("adds", () => {``. :func:`conditions` reads the preprocessor lines.
    """
    heads: list[str] = []
    first = node.start_point[0]
    stop = outer.id if outer else None
    row = outer.start_point[0] if outer else -1
    parent = node.parent
    while parent is not None and parent.parent is not None and parent.id != stop:
        start = parent.start_point[0]
        if row < start < first and _is_head(parent):
            text = " ".join(lines[start].decode("utf-8", "replace").split())
            if any(sign.isalnum() for sign in text):
                heads.append(text)
                first = start
        parent = parent.parent
    return tuple(reversed(heads))


def _is_head(node: Node) -> bool:
    """Return True when the first line of a node is the head of a block."""
    if node.type in _PLAIN or node.type.startswith("preproc"):
        return False
    plain = node.type.endswith(("block", "_list", "body")) or node.type == "declaration_list"
    return not plain or (node.child_count > 0 and node.children[0].type == "{")


# It begins with a line feed, which a search finds much sooner than the beginning of a line.
_SIGN = re.compile(rb"\n[ \t\r\f\v]*#")


def conditions(data: bytes, lines: list[bytes]) -> list[tuple[str, ...]]:
    """Return the preprocessor conditions around each line of a file, outermost first.

    The preprocessor lines are read without a parser, because the code may not parse. The guard
    around a whole header is not a condition.
    """
    stack: list[str] = []
    result: list[tuple[str, ...]] = []
    guard = _guard(lines)
    current: tuple[str, ...] = ()
    row = at = 0
    for sign in _SIGN.finditer(b"\n" + data):
        row, at = row + data.count(b"\n", at, sign.start()), sign.start()
        result += [current] * (row - len(result))
        line = lines[row]
        word, _, rest = line.strip().lstrip(b"#").strip().partition(b" ")
        text = " ".join(rest.decode("utf-8", "replace").split())
        directive = word.decode("latin-1")
        if directive in ("if", "ifdef", "ifndef"):
            name = "" if row == guard else text
            stack.append(_negated(name) if directive == "ifndef" else name)
        elif directive in ("else", "elif") and stack:
            stack[-1] = text if directive == "elif" else _negated(stack[-1])
        elif directive == "endif" and stack:
            stack.pop()
        current = tuple(filter(None, stack))
        result.append(current)
    return result + [current] * (len(lines) - len(result))


def _negated(text: str) -> str:
    if not text:
        return ""
    return text[1:] if text.startswith("!") and text[1:].isidentifier() else f"!{text}"


def _guard(lines: list[bytes]) -> int:
    """Return the row of the ``#ifndef NAME`` right before ``#define NAME``; -1 without a guard."""
    directives = ((row, line.split()) for row, line in enumerate(lines) if line.startswith(b"#"))
    for row, words in directives:
        following = next(directives, (0, []))[1]
        guarded = len(words) == 2 and words[0] == b"#ifndef" and following[:1] == [b"#define"]
        return row if guarded and following[1:2] == words[1:] else -1
    return -1
