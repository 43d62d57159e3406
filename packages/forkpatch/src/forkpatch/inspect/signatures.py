# SPDX-License-Identifier: Apache-2.0
"""Signatures of Python functions that overlays replace or patches change, against upstream's.

Upstream's callers and upstream's tests use upstream's signature. A replacement of a
function keeps it: the same parameters in the same order, with the same defaults. A new parameter
is keyword-only and has a default, so that upstream may add parameters of its own later.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

_Function = ast.FunctionDef | ast.AsyncFunctionDef
# Decorators that decide how a method is called.
_BINDINGS = {"staticmethod", "classmethod", "property", "cached_property"}


@dataclass(frozen=True)
class Signature:
    """The signature of one function, as it is written.

    Attributes:
        positional: names of the parameters that can be given by position, in order.
        nameless: how many of these cannot be given by name.
        keyword: names of those that are given by name alone.
        defaults: source text of each default, by parameter.
        rest: names of ``*args`` and ``**kwargs`` with their stars.
        binding: decorators that decide how it is called, and ``async``.
    """

    positional: tuple[str, ...]
    nameless: int
    keyword: tuple[str, ...]
    defaults: Mapping[str, str]
    rest: frozenset[str]
    binding: frozenset[str]


def signatures(data: bytes) -> dict[str, Signature]:
    """Signatures of a module's functions and methods by dotted name; empty for no Python.

    Functions inside of functions are left out: nothing calls them from elsewhere.
    """
    return _parsed(data)[0]


@lru_cache(maxsize=256)
def _parsed(data: bytes) -> tuple[dict[str, Signature], tuple[ast.ImportFrom, ...]]:
    """Signatures of a module, and the imports of names at its top; none for no Python."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return {}, ()
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return dict(_of_block(tree.body, "")), tuple(imports)


def _of_block(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Signature]]:
    for node in body:
        if isinstance(node, _Function):
            yield f"{prefix}{node.name}", _signature(node)
        elif isinstance(node, ast.ClassDef):
            yield from _of_block(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.With):
            yield from _of_block([*node.body, *getattr(node, "orelse", [])], prefix)
        elif isinstance(node, ast.Try):
            inner = [one for handler in node.handlers for one in handler.body]
            yield from _of_block([*node.body, *inner, *node.orelse, *node.finalbody], prefix)


def _signature(node: _Function) -> Signature:
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    last = positional[len(positional) - len(given.defaults) :]
    pairs = [
        *zip(last, given.defaults, strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    names = {ast.unparse(item).rpartition(".")[2] for item in node.decorator_list}
    stars = [("*", given.vararg), ("**", given.kwarg)]
    return Signature(
        positional=tuple(arg.arg for arg in positional),
        nameless=len(given.posonlyargs),
        keyword=tuple(arg.arg for arg in given.kwonlyargs),
        defaults={arg.arg: ast.unparse(value) for arg, value in pairs if value is not None},
        rest=frozenset(f"{star}{arg.arg}" for star, arg in stars if arg is not None),
        binding=frozenset(names & _BINDINGS)
        | ({"async"} if isinstance(node, ast.AsyncFunctionDef) else set()),
    )


def departures(
    theirs: Signature,
    ours: Signature,
    others: tuple[Signature, ...] = (),
    excused: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """The ways in which a call that upstream's signature takes is not taken, or means another.

    Args:
        theirs: upstream's signature.
        ours: that of the replacement.
        others: upstream's signatures in other versions that have the same replacement; a
            parameter of theirs may have the position that it has there.
        excused: parameters of which the default may be another.
    """
    return (
        *_by_position(theirs, ours),
        *_defaults(theirs, ours, excused),
        *_additions(theirs, ours, others),
        *_binding(theirs, ours),
    )


def _by_position(theirs: Signature, ours: Signature) -> Iterator[str]:
    if ours.positional[: len(theirs.positional)] != theirs.positional:
        yield (
            f"it takes ({', '.join(ours.positional) or 'nothing'}) by position,"
            f" upstream's ({', '.join(theirs.positional) or 'nothing'})"
        )
    if ours.nameless > theirs.nameless:
        hidden = ours.positional[theirs.nameless : ours.nameless]
        yield f"{', '.join(hidden)} cannot be given by name"
    named = {*ours.positional[ours.nameless :], *ours.keyword}
    for name in theirs.keyword:
        if name not in named:
            yield f"it does not take {name}"
    # The name behind the stars does not matter to a caller.
    stars = {len(rest) - len(rest.lstrip("*")) for rest in ours.rest}
    for rest in sorted(theirs.rest):
        if len(rest) - len(rest.lstrip("*")) not in stars:
            yield f"it does not take {rest}"


def _defaults(theirs: Signature, ours: Signature, excused: frozenset[str]) -> Iterator[str]:
    for name, value in theirs.defaults.items():
        if name not in (*ours.positional, *ours.keyword) or name in excused:
            continue
        mine = ours.defaults.get(name)
        if mine is None:
            yield f"{name} has no default, upstream's has {value}"
        elif mine != value:
            yield f"the default of {name} is {mine}, upstream's {value}"


def _additions(theirs: Signature, ours: Signature, others: tuple[Signature, ...]) -> Iterator[str]:
    for name in (*ours.positional, *ours.keyword):
        if name in (*theirs.positional, *theirs.keyword):
            continue
        if name not in ours.defaults:
            yield f"{name} is new and has no default"
        elif name in ours.positional:
            at = ours.positional.index(name)
            if not any(other.positional[at : at + 1] == (name,) for other in others):
                yield f"{name} is new and can be given by position"


def _binding(theirs: Signature, ours: Signature) -> Iterator[str]:
    if theirs.binding != ours.binding:
        yield (
            f"it is {', '.join(sorted(ours.binding)) or 'a plain function'},"
            f" upstream's {', '.join(sorted(theirs.binding)) or 'a plain function'}"
        )


def imported_names(path: str, data: bytes) -> dict[str, str]:
    """The file that each name at a module's top is imported from, as far as that is written.

    Returns:
        for ``from .core import add`` in ``a/b.py``: ``{"add": "a/core.py"}``; for an absolute
        import the path that its name gives, without the folder that packages lie in.
    """
    folder = PurePosixPath(path).parent
    found: dict[str, str] = {}
    for node in _parsed(data)[1]:
        parts = [*(node.module or "").split(".")] if node.module else []
        if node.level:
            above = folder.parts[: len(folder.parts) - (node.level - 1)]
            parts = [*above, *parts]
        for name in node.names:
            found[name.asname or name.name] = "/".join(parts) + ".py"
    return found
