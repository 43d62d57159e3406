# SPDX-License-Identifier: Apache-2.0
"""Signatures of Python functions that overlays replace or patches change, against upstream's.

Upstream's callers and tests use upstream's signature. A replacement keeps the parameters, their
order and their defaults. A new parameter is keyword-only and has a default, so that upstream may
add parameters later.
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
    """The signature of a function, as written in the source.

    Attributes:
        positional: names of the parameters that accept a position, in order.
        nameless: number of positional-only parameters.
        keyword: names of the keyword-only parameters.
        defaults: source text of each default, by parameter.
        rest: names of ``*args`` and ``**kwargs`` with their stars.
        binding: decorators that decide how the function is called, and ``async``.
    """

    positional: tuple[str, ...]
    nameless: int
    keyword: tuple[str, ...]
    defaults: Mapping[str, str]
    rest: frozenset[str]
    binding: frozenset[str]


def signatures(data: bytes) -> dict[str, Signature]:
    """Return signatures of a module's functions and methods, by dotted name.

    The result is empty if the module does not parse. Functions inside functions are left out: they
    have no callers elsewhere.
    """
    return _parsed(data)[0]


@lru_cache(maxsize=256)
def _parsed(data: bytes) -> tuple[dict[str, Signature], tuple[ast.ImportFrom, ...]]:
    """Return a module's signatures and top-level ``from`` imports; empty if it does not parse."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return {}, ()
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return dict(_of_block(tree.body, "")), tuple(imports)


def _of_block(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Signature]]:
    """Yield name and signature of the functions in a block of statements."""
    for node in body:
        if isinstance(node, _Function):
            yield f"{prefix}{node.name}", _signature(node)
        elif isinstance(node, ast.ClassDef):
            yield from _of_block(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.With):
            yield from _of_block([*node.body, *getattr(node, "orelse", [])], prefix)
        elif isinstance(node, ast.Try):
            inner = [statement for handler in node.handlers for statement in handler.body]
            yield from _of_block([*node.body, *inner, *node.orelse, *node.finalbody], prefix)


def _signature(node: _Function) -> Signature:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    last = positional[len(positional) - len(arguments.defaults) :]
    pairs = [
        *zip(last, arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    names = {ast.unparse(item).rpartition(".")[2] for item in node.decorator_list}
    stars = [("*", arguments.vararg), ("**", arguments.kwarg)]
    return Signature(
        positional=tuple(arg.arg for arg in positional),
        nameless=len(arguments.posonlyargs),
        keyword=tuple(arg.arg for arg in arguments.kwonlyargs),
        defaults={arg.arg: ast.unparse(value) for arg, value in pairs if value is not None},
        rest=frozenset(f"{star}{arg.arg}" for star, arg in stars if arg is not None),
        binding=frozenset(names & _BINDINGS)
        | ({"async"} if isinstance(node, ast.AsyncFunctionDef) else set()),
    )


def departures(
    original: Signature,
    ours: Signature,
    others: tuple[Signature, ...] = (),
    excused: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """Return why calls that fit upstream's signature fail, or mean something else, with ours.

    Args:
        original: upstream's signature.
        ours: the replacement's signature.
        others: upstream's signatures in other versions with the same replacement; their parameters
            may keep their positions.
        excused: parameters whose default may differ.
    """
    return (
        *_by_position(original, ours),
        *_defaults(original, ours, excused),
        *_additions(original, ours, others),
        *_binding(original, ours),
    )


def _by_position(original: Signature, ours: Signature) -> Iterator[str]:
    """Yield parameters that callers can no longer give by position or by name."""
    if ours.positional[: len(original.positional)] != original.positional:
        yield (
            f"it takes ({', '.join(ours.positional) or 'nothing'}) by position,"
            f" upstream's ({', '.join(original.positional) or 'nothing'})"
        )
    if ours.nameless > original.nameless:
        hidden = ours.positional[original.nameless : ours.nameless]
        yield f"{', '.join(hidden)} cannot be given by name"
    named = {*ours.positional[ours.nameless :], *ours.keyword}
    for name in original.keyword:
        if name not in named:
            yield f"it does not take {name}"
    # The name behind the stars does not matter to a caller.
    stars = {len(rest) - len(rest.lstrip("*")) for rest in ours.rest}
    for rest in sorted(original.rest):
        if len(rest) - len(rest.lstrip("*")) not in stars:
            yield f"it does not take {rest}"


def _defaults(original: Signature, ours: Signature, excused: frozenset[str]) -> Iterator[str]:
    """Yield parameters whose defaults differ."""
    for name, value in original.defaults.items():
        if name not in (*ours.positional, *ours.keyword) or name in excused:
            continue
        our_value = ours.defaults.get(name)
        if our_value is None:
            yield f"{name} has no default, upstream's has {value}"
        elif our_value != value:
            yield f"the default of {name} is {our_value}, upstream's {value}"


def _additions(base: Signature, ours: Signature, others: tuple[Signature, ...]) -> Iterator[str]:
    """Yield new parameters without default, or with a position."""
    for name in (*ours.positional, *ours.keyword):
        if name in (*base.positional, *base.keyword):
            continue
        if name not in ours.defaults:
            yield f"{name} is new and has no default"
        elif name in ours.positional:
            index = ours.positional.index(name)
            if not any(other.positional[index : index + 1] == (name,) for other in others):
                yield f"{name} is new and can be given by position"


def _binding(original: Signature, ours: Signature) -> Iterator[str]:
    """Yield a difference in decorators or ``async``."""
    if original.binding != ours.binding:
        yield (
            f"it is {', '.join(sorted(ours.binding)) or 'a plain function'},"
            f" upstream's {', '.join(sorted(original.binding)) or 'a plain function'}"
        )


def imported_names(path: str, data: bytes) -> dict[str, str]:
    """Return the file that each ``from`` import at a module's top names, by imported name.

    Returns:
        for ``from .core import add`` in ``a/b.py``: ``{"add": "a/core.py"}``; for an absolute
        import, the path of its dotted name, without the folder of the packages.
    """
    folder = PurePosixPath(path).parent
    files: dict[str, str] = {}
    for node in _parsed(data)[1]:
        parts = [*(node.module or "").split(".")] if node.module else []
        if node.level:
            above = folder.parts[: len(folder.parts) - (node.level - 1)]
            parts = [*above, *parts]
        for name in node.names:
            files[name.asname or name.name] = "/".join(parts) + ".py"
    return files
