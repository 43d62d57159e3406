# SPDX-License-Identifier: Apache-2.0
"""Functions and classes of a source file: their lines, and hashes of their bodies.

Python is read with ``ast``. Other languages go by git's own rule for the text after ``@@``: a
symbol begins at a line whose first character is a letter, ``_`` or ``$``, and ends before the
next such line. A body is hashed without positions, comments and layout, so that only a change
of meaning changes the hash.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import PurePosixPath

MODULE = "<file>"
_HASH_LENGTH = 16

# The fields of a node that hold statements, or what holds statements.
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
_Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_FUNCTION_LINE = re.compile(rb"^[A-Za-z_$]")
_LABEL = re.compile(rb"^(?:public|private|protected|default|signals|slots)\s*:|^case\b|^\w+:\s*$")
_HASH_COMMENTS = {".cmake", ".sh", ".toml", ".yaml", ".yml", ".rb", ".pl", ".py", ".pyi", ".mk"}
_TOKEN = re.compile(
    rb'"(?:\\.|[^"\\\n])*"' rb"|'(?:\\.|[^'\\\n])*'" rb"|[A-Za-z0-9_$\x80-\xff]+" rb"|[^\s\w]"
)
_C_COMMENT = re.compile(
    rb"//[^\n]*|/\*.*?\*/" rb"|" rb'("(?:\\.|[^"\\\n])*"|' rb"'(?:\\.|[^'\\\n])*')", re.DOTALL
)
_HASH_COMMENT = re.compile(
    rb"(?:^|(?<=\s))\#[^\n]*" rb'|("(?:\\.|[^"\\\n])*"|' rb"'(?:\\.|[^'\\\n])*')"
)


@dataclass(frozen=True)
class Symbol:
    """One function or class, or the rest of a file.

    Attributes:
        name: dotted for Python; the defining line for other languages; MODULE outside of all.
        first: its first line, from 1, decorators included.
        last: its last line.
        text: gives its normalised text or tree; called only for the hash.
    """

    name: str
    first: int
    last: int
    text: Callable[[], str] = field(compare=False, repr=False)

    @cached_property
    def body(self) -> str:
        """Hash of its normalised text."""
        return _digest(self.text())


@lru_cache(maxsize=256)
def outline(path: str, data: bytes) -> Outline:
    """The outline of a file's content; the files of a series are asked for again and again."""
    return Outline(path, data)


class Outline:
    """The symbols of one file's content."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data

    @cached_property
    def symbols(self) -> dict[str, Symbol]:
        """All symbols by name; outer ones before inner ones, MODULE first."""
        suffix = PurePosixPath(self.path).suffix
        if suffix in (".py", ".pyi"):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", SyntaxWarning)
                    tree = ast.parse(self._data)
            except (SyntaxError, ValueError):
                tree = None
            if tree is not None:
                return _unique(_python_symbols(tree, self._data.count(b"\n") + 1))
        return _unique(_line_symbols(self._data, suffix))

    def at(self, line: int) -> Symbol:
        """The innermost symbol that line ``line`` (from 1) is in."""
        lines, _ = self._nesting
        return lines[min(line, len(lines) - 1)]

    def around(self, line: int, known: Container[str]) -> str:
        """The innermost symbol around ``line`` whose name is among ``known``, else MODULE."""
        symbol: Symbol | None = self.at(line)
        while symbol is not None and symbol.name not in known:
            symbol = self._nesting[1].get(symbol.name)
        return symbol.name if symbol else MODULE

    @cached_property
    def _nesting(self) -> tuple[list[Symbol], dict[str, Symbol]]:
        """The innermost symbol of each line, from 0; the symbol around each symbol, by name."""
        # Of two that cover the same lines, the later one is inside of the other.
        symbols = sorted(self.symbols.values(), key=lambda symbol: symbol.first - symbol.last)
        lines = [symbols[0]] * (max(symbol.last for symbol in symbols) + 1)
        outer: dict[str, Symbol] = {}
        for symbol in symbols[1:]:
            outer[symbol.name] = lines[symbol.first]
            lines[symbol.first : symbol.last + 1] = [symbol] * (symbol.last + 1 - symbol.first)
        return lines, outer

    def body(self, name: str) -> str | None:
        """The hash of a symbol's body, None when there is no such symbol."""
        symbol = self.symbols.get(name)
        return symbol.body if symbol else None


def bare_name(symbol: str) -> str:
    """The name of a symbol without what encloses it or its parameters."""
    if symbol == MODULE:
        return MODULE
    called = re.search(r"([A-Za-z_$][\w$]*)\s*\(", symbol)
    if called:
        return called.group(1)
    return symbol.split("#", 1)[0].rpartition(".")[2].rsplit(maxsplit=1)[-1]


def _unique(symbols: Iterable[Symbol]) -> dict[str, Symbol]:
    """By name; the second of a name is called ``name#2``, and so on."""
    found: dict[str, Symbol] = {}
    counts: Counter[str] = Counter()
    for symbol in symbols:
        name = symbol.name
        while name in found:
            counts[symbol.name] += 1
            name = f"{symbol.name}#{counts[symbol.name] + 1}"
        found[name] = replace(symbol, name=name)
    return found


def _python_symbols(tree: ast.Module, last: int) -> Iterator[Symbol]:
    yield Symbol(MODULE, 1, last, partial(_outside, tree))
    yield from _definitions(tree, "")


def _definitions(node: ast.AST, prefix: str) -> Iterator[Symbol]:
    for block in _BLOCKS:
        for child in getattr(node, block, ()):
            if isinstance(child, _Definition):
                first = min([child.lineno, *(item.lineno for item in child.decorator_list)])
                name = f"{prefix}{child.name}"
                last = child.end_lineno or first
                yield Symbol(name, first, last, partial(canonical, child))
                yield from _definitions(child, f"{name}.")
            elif isinstance(child, ast.AST):
                yield from _definitions(child, prefix)


def _outside(tree: ast.Module) -> str:
    """A module's statements outside of its functions and classes."""
    parts = [
        f"{type(child).__name__} {child.name}"
        if isinstance(child, _Definition)
        else canonical(child)
        for child in tree.body
    ]
    return "\n".join(parts)


def canonical(node: object) -> str:
    """An AST as text, without positions, and alike in every version of Python.

    ``ast.dump`` will not do: what it prints for empty fields differs from version to version.
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


def _line_symbols(data: bytes, suffix: str) -> Iterator[Symbol]:
    lines = data.split(b"\n")
    starts = [
        number
        for number, line in enumerate(lines, 1)
        if _FUNCTION_LINE.match(line) and not _LABEL.match(line)
    ]
    head = lines[: starts[0] - 1] if starts else lines
    yield Symbol(MODULE, 1, len(lines), partial(tokens, b"\n".join(head), suffix))
    for first, following in pairwise([*starts, len(lines) + 1]):
        text = lines[first - 1].decode("utf-8", "replace")
        name = " ".join(text.split()).rstrip("{ ;")
        body = b"\n".join(lines[first - 1 : following - 1])
        yield Symbol(name, first, following - 1, partial(tokens, body, suffix))


def tokens(data: bytes, suffix: str) -> str:
    """The words and signs of a text in a language that is not parsed."""
    comments = _HASH_COMMENT if suffix in _HASH_COMMENTS else _C_COMMENT
    bare = comments.sub(lambda match: match.group(1) or b" ", data)
    return "\0".join(token.decode("latin-1") for token in _TOKEN.findall(bare))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_HASH_LENGTH]
