# SPDX-License-Identifier: Apache-2.0
"""Functions, classes and tables of a source file: names, lines, and hashes of their bodies.

A file of a language with a grammar is parsed (:mod:`forkpatch.symbols.grammars`). Any other file
has one symbol, the file itself.

The name of a symbol is its identity: the scopes around it, its own name, the types of its
parameters where a language overloads names, and in brackets the conditions around it, as in
``net::Pool::take(int) const [CONFIG_NET]``. A body is hashed without positions, comments and
layout, so that only a change of meaning changes the hash.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import chain
from pathlib import PurePosixPath

from tree_sitter import Node, Tree

from forkpatch.symbols.grammars import Grammar, conditions, edited, grammar_of, labels
from forkpatch.symbols.names import described
from forkpatch.symbols.text import indent

MODULE = "<file>"
_HASH_LENGTH = 16
# Bytes and lines. Longer files are tables that a program wrote. A syntax tree is some ten
# times as large as its text; a tree of Python's ``ast`` is a hundred times as large.
_LARGE = 4 << 20
_LONG = 50_000
_LARGE_PYTHON = 1 << 20
_KEPT = 16 << 20  # bytes of the files whose outlines are kept
_VERSIONS = 3  # versions of a file that are kept

_HASH_COMMENTS = {".py", ".pyi"}
_TOKEN = re.compile(
    rb'"(?:\\.|[^"\\\n])*"' rb"|'(?:\\.|[^'\\\n])*'" rb"|[A-Za-z0-9_$\x80-\xff]+" rb"|[^\s\w]"
)
_C_COMMENT = re.compile(
    rb"//[^\n]*|/\*.*?\*/" rb"|" rb'("(?:\\.|[^"\\\n])*"|' rb"'(?:\\.|[^'\\\n])*')", re.DOTALL
)
_HASH_COMMENT = re.compile(
    rb"(?:^|(?<=\s))\#[^\n]*" rb'|("(?:\\.|[^"\\\n])*"|' rb"'(?:\\.|[^'\\\n])*')"
)
#: Type of the root, column, text, and conditions around a part of a file.
_Part = tuple[str, int, bytes, tuple[tuple[str, ...], ...]]
_PythonNodes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(unsafe_hash=True)  # frozen ones take three times as long, and a file has thousands
class Symbol:
    """A function, class or table, or the rest of a file.

    Attributes:
        name: full name as in the module's docstring; MODULE for the lines outside of all symbols.
        first: first line, from 1, decorators included.
        last: last line, from 1.
        text: function that returns the normalised text or tree; called only for the hash.
        node: node in a syntax tree, maybe of another version of the file with the same text of the
            symbol; None in a file without a grammar.
    """

    name: str
    first: int
    last: int
    text: Callable[[], str] = field(compare=False, repr=False)
    node: Node | None = field(default=None, compare=False, repr=False)

    def moved(self, rows: int) -> Symbol:
        """Return the symbol some rows below."""
        return Symbol(self.name, self.first + rows, self.last + rows, self.text, self.node)

    @cached_property
    def body(self) -> str:
        """Hash of the symbol's normalised text."""
        text = self.text().encode("utf-8", "surrogateescape")
        return hashlib.sha256(text).hexdigest()[:_HASH_LENGTH]


#: The outlines used last, by path: a series asks for the same versions of a file many times.
_KNOWN: dict[str, list[Outline]] = {}


def outline(path: str, data: bytes) -> Outline:
    """Return the outline of a file's content: its symbols and their lines.

    A file that changed a little is parsed from the version that is most like it.
    """
    versions = _KNOWN[path] = _KNOWN.pop(path, [])
    found = next((one for one in versions if one.data == data), None)
    if found is None:
        found = Outline(path, data, versions)
        while len(_KNOWN) > 1 and sum(len(one.data) for one in chain(*_KNOWN.values())) > _KEPT:
            del _KNOWN[next(iter(_KNOWN))]
    else:
        versions.remove(found)
    versions.append(found)
    del versions[:-_VERSIONS]
    return found


def context_notes(files: Iterable[tuple[str, bytes]]) -> tuple[str, ...]:
    """Return a note for each file or language whose functions have no names here."""
    reasons = dict.fromkeys(outline(*file).why_not_parsed for file in files)
    return tuple(f"{why}: its functions have no names here" for why in reasons if why)


class Outline:
    """Outline of a file's content: its symbols, lines and blocks.

    ``others`` are outlines of versions of the file, this one or those parsed later among them, too.
    """

    def __init__(self, path: str, data: bytes, others: Sequence[Outline] = ()) -> None:
        self.path = path
        self.data = data
        self._suffix = PurePosixPath(path).suffix
        self.tree: Tree | None = None
        self._others = others
        self._symbols_of_parts: dict[_Part, tuple[Symbol, ...]] = {}
        small = len(data) <= _LARGE and data.count(b"\n") < _LONG
        self._grammar = grammar_of(path) if small else None

    @cached_property
    def lines(self) -> list[bytes]:
        """The lines, without their line feeds."""
        return self.data.split(b"\n")

    @property
    def is_parsed(self) -> bool:
        """True when the file's language has a grammar, and a parser accepts the file's size."""
        return self._grammar is not None

    @property
    def why_not_parsed(self) -> str:
        """Reason why the file's functions have no names; empty for a parsed file."""
        if self._grammar is not None:
            return ""
        if grammar_of(self.path) is None:
            return f"no grammar for {PurePosixPath(self.path).suffix or self.path}"
        return f"{self.path} is above {_LARGE >> 20} MB or {_LONG:,} lines"

    @cached_property
    def symbols(self) -> dict[str, Symbol]:
        """All symbols by name; outer symbols before inner symbols, MODULE first."""
        if self._grammar is None:
            text = hashlib.sha256(self.data).hexdigest
            return {MODULE: Symbol(MODULE, 1, len(self.lines), text)}
        parsed = [
            symbol.moved(row) for row, key in self._parts for symbol in self._symbols_of_parts[key]
        ]
        if self._suffix in (".py", ".pyi") and len(self.data) <= _LARGE_PYTHON:
            nodes = cache(partial(_python_nodes, self.data))
            parsed = [replace(one, text=partial(_python_text, nodes, one)) for one in parsed]
        rest = partial(_outside, parsed, self.lines, self._suffix)
        return _unique([Symbol(MODULE, 1, len(self.lines), rest), *parsed])

    @cached_property
    def _parts(self) -> list[tuple[int, _Part]]:
        """The parts of the file: first row, from 0, and key in ``_symbols_of_parts`` of each."""
        assert self._grammar is not None
        whole = [one for one in (*self._others, self) if one.data.endswith(b"\n")]
        parsed = [one for one in whole if one.tree] if self in whole else []
        # The versions that have most in common have nearly the same size.
        other = min(parsed, key=lambda one: abs(len(one.data) - len(self.data)), default=None)
        known = None
        if other and other.tree:
            known = edited(other.tree, other.lines[:-1], self.lines[:-1])
        self.tree, self._others = self._grammar.parse(self.data, known), ()
        root = self.tree.root_node
        # Python's own trees are found by the rows of nodes.
        is_kept = other is not None and self._suffix not in (".py", ".pyi")
        symbols_of_parts = other._symbols_of_parts if other and is_kept else {}
        # Most parts of a new version are known; else one search finds the definitions of all.
        is_new = not symbols_of_parts
        every = self._grammar.definitions(root) if is_new else []
        starts = [node.start_byte for node in every]
        parts: list[tuple[int, _Part]] = []
        for nodes in _parts_of(root):
            row, last = nodes[0].start_point[0], nodes[-1].end_point[0]
            span = nodes[0].start_byte, nodes[-1].end_byte
            text = self.data[slice(*span)]
            around = self.conditions[row : last + 1 if b"#" in text else row + 1]
            key = root.type, nodes[0].start_point[1], text, tuple(around)
            symbols = symbols_of_parts.get(key)
            if symbols is None:
                found = every[slice(*(bisect_left(starts, at) for at in span))]
                found = found if is_new else self._grammar.definitions(root, span)
                named = _parsed_symbols(self._grammar, found, self.lines, self.conditions)
                symbols = tuple(symbol.moved(-row) for symbol in named)
            self._symbols_of_parts[key] = symbols
            parts.append((row, key))
        return parts

    @cached_property
    def conditions(self) -> list[tuple[str, ...]]:
        """Preprocessor conditions around each line; empty tuples in other languages."""
        if self._grammar and self._grammar.preprocessed:
            return conditions(self.data, self.lines)
        return [()] * len(self.lines)

    @cached_property
    def _nesting(self) -> tuple[list[Symbol], dict[str, Symbol]]:
        """The innermost symbol of each line; the enclosing symbol of each symbol, by name."""
        symbols = list(self.symbols.values())  # outer symbols come first
        owners = [symbols[0]] * len(self.lines)
        outer: dict[str, Symbol] = {}
        for symbol in symbols[1:]:
            outer[symbol.name] = owners[symbol.first - 1]
            owners[symbol.first - 1 : symbol.last] = [symbol] * (symbol.last - symbol.first + 1)
        return owners, outer

    def at(self, line: int) -> Symbol:
        """Return the innermost symbol around line ``line`` (from 1)."""
        if not self.is_parsed:
            return self.symbols[MODULE]
        return self._nesting[0][min(max(line, 1), len(self.lines)) - 1]

    def inside(self, first: int, last: int, data: bytes) -> str | None:
        """Return the symbol of the line ``data`` between two lines; None if that is not certain.

        Both lines are in one symbol without inner ones, below the lines with its name, and ``data``
        is indented more than these.
        """
        symbol = self.at(first)
        if symbol.name in (MODULE, *self._outer_names) or symbol.name != self.at(last).name:
            return None
        head, *lines = self.lines[symbol.first - 1 : last - 1] or [b""]
        opens = any(line.rstrip().endswith((b"{", b":")) for line in (head, *lines))
        return symbol.name if opens and head and indent(data) > indent(head) else None

    @cached_property
    def _outer_names(self) -> Collection[str]:
        return {one.name for one in self._nesting[1].values()}

    def around(self, line: int, known: Container[str]) -> str:
        """Return the innermost symbol around ``line`` with a name in ``known``, else MODULE."""
        symbol: Symbol | None = self.at(line)
        while symbol is not None and symbol.name not in known:
            symbol = self._nesting[1].get(symbol.name)
        return symbol.name if symbol else MODULE

    def body(self, name: str) -> str | None:
        """Return the hash of a symbol's body; None when the file has no such symbol."""
        symbol = self.symbols.get(name)
        return symbol.body if symbol else None


def _parts_of(root: Node) -> Iterator[list[Node]]:
    """Yield the child nodes of a root, each with the nodes that its name may depend on."""
    nodes: list[Node] = []
    for node in root.children:
        is_head = bool(nodes) and nodes[-1].type.endswith(("attribute_item", "comment"))
        if nodes and not is_head and node.type != "compound_statement":
            yield nodes
            nodes = []
        nodes.append(node)
    if nodes:
        yield nodes


def _outside(symbols: Iterable[Symbol], lines: Sequence[bytes], suffix: str) -> str:
    inside = {row for symbol in symbols for row in range(symbol.first - 1, symbol.last)}
    return tokens(b"\n".join(line for row, line in enumerate(lines) if row not in inside), suffix)


@lru_cache(maxsize=1 << 16)
def bare_name(symbol: str) -> str:
    """Return the last word of a symbol's name, without scopes, parameters and conditions."""
    if symbol == MODULE:
        return MODULE
    plain, count = re.sub(r"(?: \[.*\])?(?:#\d+)?$", "", symbol), 1
    plain = re.sub(r"\)(?: const| volatile| &&?)*$", ")", plain)
    while count:
        plain, count = re.subn(r"\([^()]*\)|<[^<>]*>|\[[^\[\]]*\]|#\d+$", "", plain)
    words = re.findall(r"[\w$~]+", plain)
    return words[-1] if words else symbol


def _unique(symbols: Iterable[Symbol]) -> dict[str, Symbol]:
    """Return symbols by name; a second symbol of the same name becomes ``name#2``."""
    named: dict[str, Symbol] = {}
    counts: Counter[str] = Counter()
    for symbol in symbols:
        name = symbol.name
        while name in named:
            counts[symbol.name] += 1
            name = f"{symbol.name}#{counts[symbol.name] + 1}"
        named[name] = symbol if name == symbol.name else replace(symbol, name=name)
    return named


def _parsed_symbols(
    grammar: Grammar, nodes: list[Node], lines: list[bytes], around: list[tuple[str, ...]]
) -> Iterator[Symbol]:
    """Yield the symbols of definition nodes, with scopes and conditions in their names."""
    suffix = "" if grammar.package != "tree_sitter_python" else ".py"
    scopes: list[tuple[Node, str, tuple[str, ...], bool]] = []
    for node in nodes:
        while scopes and node.start_byte >= scopes[-1][0].end_byte:
            scopes.pop()
        outer, prefix, outside, in_function = scopes[-1] if scopes else (None, "", (), False)
        entry = described(node, grammar, in_function=in_function)
        if entry is None:
            continue
        first, last = entry.first.start_point[0], entry.last
        family = f"{prefix}{grammar.separator}{entry.name}" if prefix else entry.name
        marks = (*around[first][len(outside) :], *labels(node, outer, lines), *entry.conditions)
        suffixes = f" [{'; '.join(marks)}]" if marks else ""
        name = f"{family}{entry.signature}{suffixes}"
        scopes.append((node, name, around[first], entry.is_function))
        text = partial(tokens, b"\n".join(lines[first : last + 1]), suffix)
        yield Symbol(name, first + 1, last + 1, text, node)


def _python_nodes(data: bytes) -> Mapping[tuple[int, bool], ast.AST]:
    """Return Python's trees of a file's definitions and values by row and kind; {} if it fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            nodes = ast.walk(ast.parse(data))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return {
        (node.lineno, type(node) in _PythonNodes): node
        for node in nodes
        if isinstance(node, (*_PythonNodes, ast.Assign, ast.AnnAssign))
    }


def _python_text(nodes: Callable[[], Mapping[tuple[int, bool], ast.AST]], symbol: Symbol) -> str:
    """Return Python's tree of a symbol as text, which layout does not change; else its own text."""
    assert symbol.node is not None
    row, is_value = symbol.node.start_point[0] + 1, symbol.node.type == "assignment"
    node = nodes().get((row, not is_value))
    return canonical(node) if node else symbol.text()


def canonical(node: object) -> str:
    """Return a syntax tree as text, without positions, the same in every version of Python.

    ``ast.dump`` is not used: its output for empty fields differs between versions.
    """
    if isinstance(node, ast.AST):
        fields = [
            f"{name}={text}"
            for name, value in ast.iter_fields(node)
            if name not in ("ctx", "kind", "type_comment") and (text := canonical(value))
        ]
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(canonical(item) for item in node)}]" if node else ""
    return "" if node is None else repr(node)


def tokens(data: bytes, suffix: str) -> str:
    """Return the words and signs of a text, without comments; for a large text a hash."""
    if len(data) > _LARGE:
        return hashlib.sha256(data).hexdigest()
    comments = _HASH_COMMENT if suffix in _HASH_COMMENTS else _C_COMMENT
    bare = data
    if any(sign in data for sign in ((b"#",) if comments is _HASH_COMMENT else (b"//", b"/*"))):
        bare = comments.sub(lambda match: match.group(1) or b" ", data)
    return b"\0".join(_TOKEN.findall(bare)).decode("latin-1")
