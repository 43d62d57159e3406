# SPDX-License-Identifier: Apache-2.0
"""Elements of a tensor by indices, which are checked: each is one of its axis.

TVM's code reads and writes beyond a tensor where torch refuses an index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tvm import te, tirx

from torchroad.conversion.bags import BAGS, width_of_bags
from torchroad.conversion.dtypes import dtype_of
from torchroad.conversion.verified import verified

Indices = Iterator[tuple[Any, Any]]


def _along(node: Any, importer: Any) -> Indices:
    """The indices on one axis of the first argument."""
    yield node.args[2], importer.env[node.args[0]].ty.shape[node.args[1]]


def _rows(node: Any, importer: Any) -> Indices:
    """The rows of a table."""
    yield node.args[1], importer.env[node.args[0]].ty.shape[0]


def _of_axes(node: Any, importer: Any) -> Indices:
    """The indices of each axis that has some."""
    for place, size in zip(node.args[1], importer.env[node.args[0]].ty.shape, strict=False):
        if place is not None and "int" in str(dtype_of(place)):
            yield place, size


def _of_all(node: Any, importer: Any) -> Indices:
    """The indices of a tensor as if it had one axis."""
    yield node.args[1], math.prod(importer.env[node.args[0]].ty.shape, start=1)


# Operators with indices: the nodes of these, each with the size of its axis.
ALONG = (
    *("index_select.default", "gather.default"),
    *("scatter.src", "scatter.value", "scatter_add.default"),
)
INDEXED: dict[str, Callable[[Any, Any], Indices]] = {
    **dict.fromkeys(ALONG, _along),
    **dict.fromkeys(("embedding.default", *BAGS), _rows),
    "index.Tensor": _of_axes,
    "index_put.default": _of_axes,
    "take.default": _of_all,
}
# Those of which torch counts negative indices from the end of the axis.
FROM_END = ("index.Tensor", "index_put.default", "take.default")


@contextmanager
def checked_places(node: Any, importer: Any, inputs: Collection[str], where: str) -> Iterator[None]:
    """Let an operator find its indices checked, and counted from the begin of their axes.

    Args:
        node: the operator.
        importer: TVM's.
        inputs: names of the model's inputs; only what depends on these needs a check.
        where: the operator, in words.
    """
    name, before = node.target.__name__, {}

    def replaced(one: Any, by: Callable[..., Any], *more: Any) -> None:
        before[one] = importer.env[one]
        importer.env[one] = importer.block_builder.emit_te(
            by, before[one], *more, primfunc_name_hint="places"
        )

    for place, size in INDEXED[name](node, importer) if name in INDEXED else ():
        from_end, checked = name in FROM_END, _depends(place, inputs)
        if from_end or checked:
            told = where if checked else ""
            replaced(place, partial(from_begin, from_end=from_end, where=told), size)
    if name in BAGS and not width_of_bags(node) and _depends(node.args[2], inputs):
        count = importer.env[node.args[1]].ty.shape[0]
        replaced(node.args[2], partial(checked_offsets, where=where), count)
    try:
        yield
    finally:
        importer.env.update(before)


def _depends(node: Any, inputs: Collection[str]) -> bool:
    """True if a node is computed from an input."""
    seen, left = set(), [node]
    while left:
        one = left.pop()
        if one.name in inputs:
            return True
        new = [source for source in one.all_input_nodes if source not in seen]
        seen.update(new)
        left += new
    return False


def from_begin(places: Any, size: Any, from_end: bool, where: str) -> Any:
    """Places on an axis of a size; negative ones are counted from its end.

    Args:
        places: integers.
        size: of the axis.
        from_end: negative ones are allowed.
        where: the operator; empty: they need no check.
    """

    def one(place: Any) -> Any:
        return tirx.Select(place < 0, place + tirx.Cast(places.dtype, size), place)

    if not where:
        return te.compute(places.shape, lambda *i: one(places[i]), name="places")
    least = -size if from_end else 0

    def beyond(at: Any, i: Any) -> tuple[Any, tuple[Any, ...]]:
        return tirx.any(at(i) < least, at(i) >= size), (at(i), least, size - 1)

    told = f"{where}: index {{}} is beyond its axis, whose indices are {{}} to {{}}"
    return verified(places, beyond, told, one)


def checked_offsets(offsets: Any, count: Any, where: str) -> Any:
    """Offsets of bags, which must begin with 0, not decrease, and be places of the indices.

    Args:
        offsets: integers.
        count: number of the indices.
        where: the operator.
    """

    def misplaced(at: Any, i: Any) -> tuple[Any, tuple[Any, ...]]:
        first = i == 0
        least = tirx.if_then_else(first, tirx.const(0, offsets.dtype), at(tirx.max(i - 1, 0)))
        most = tirx.if_then_else(first, 0, count)
        return tirx.any(at(i) < least, at(i) > most), (i, at(i), count)

    told = (
        f"{where}: offset {{}} is {{}}; the first is 0, none is less than the one before, "
        "and none is more than the number of indices, {}"
    )
    return verified(offsets, misplaced, told)


def at_indices(node: Any, importer: Any) -> Any:
    """Convert ``index.Tensor``, ``index_select.default`` and ``embedding.default``."""
    name, x = node.target.__name__, importer.env[node.args[0]]
    if name == "index.Tensor":
        nodes = dict(enumerate(node.args[1]))
        if any(one is not None and dtype_of(one) == "bool" for one in nodes.values()):
            return importer._index_tensor(node)
        places = {axis: importer.env[one] for axis, one in nodes.items() if one is not None}
    elif name == "index_select.default":
        places = {node.args[1] % len(x.ty.shape): importer.env[node.args[2]]}
    else:
        places = {0: importer.env[node.args[1]]}
    return importer.block_builder.emit_te(
        partial(elements, axes=tuple(places)), x, *places.values(), primfunc_name_hint="take"
    )


def elements(x: Any, *places: Any, axes: Sequence[int]) -> Any:
    """The elements at places of some axes, all of the others.

    Args:
        x: data.
        places: indices for each of the axes; their shapes broadcast together.
        axes: in ascending order. Where others are between them, those of the places come first.
    """
    count = max(len(one.shape) for one in places)
    shape: list[Any] = [1] * count
    for one in places:
        for axis, size in enumerate(one.shape, count - len(one.shape)):
            shape[axis] = shape[axis] if is_one(size) else size
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    together = axes[-1] - axes[0] + 1 == len(axes)
    first = axes[0] if together else 0

    def element(*i: Any) -> Any:
        own, others = i[first : first + count], [*i[:first], *i[first + count :]]
        at = dict(zip(kept, others, strict=True))
        for axis, one in zip(axes, places, strict=True):
            last = own[count - len(one.shape) :]
            at[axis] = one[
                tuple(0 if is_one(n) else k for n, k in zip(one.shape, last, strict=True))
            ]
        return x[tuple(at[axis] for axis in range(len(x.shape)))]

    sizes = [x.shape[axis] for axis in kept]
    return te.compute((*sizes[:first], *shape, *sizes[first:]), element, name="take")


def is_one(size: Any) -> bool:
    """True of a size that is known to be one."""
    return isinstance(size, int | tirx.IntImm) and int(size) == 1
