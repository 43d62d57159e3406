# SPDX-License-Identifier: Apache-2.0
"""Reads of a tensor's elements by indices, with checks that the indices are in range.

Without a check, TVM's code reads and writes beyond a tensor if torch would refuse an index.
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
    """Yield the indices along an axis of the first argument, and the axis's size."""
    yield node.args[2], importer.env[node.args[0]].ty.shape[node.args[1]]


def _rows(node: Any, importer: Any) -> Indices:
    """Yield the row indices of a table, and the number of its rows."""
    yield node.args[1], importer.env[node.args[0]].ty.shape[0]


def _of_axes(node: Any, importer: Any) -> Indices:
    """Yield the integer indices of each axis, and the axis's size."""
    for indices, size in zip(node.args[1], importer.env[node.args[0]].ty.shape, strict=False):
        if indices is not None and "int" in str(dtype_of(indices)):
            yield indices, size


def _of_all(node: Any, importer: Any) -> Indices:
    """Yield the indices into a flattened tensor, and the number of its elements."""
    yield node.args[1], math.prod(importer.env[node.args[0]].ty.shape, start=1)


# Functions by operator that yield nodes of indices, each with the size of its axis.
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
# Operators whose negative indices torch counts from the end of the axis.
FROM_END = ("index.Tensor", "index_put.default", "take.default")


@contextmanager
def checked_places(node: Any, importer: Any, inputs: Collection[str], where: str) -> Iterator[None]:
    """Replace an operator's indices by checked, nonnegative indices during a ``with`` block.

    Args:
        node: the operator.
        importer: TVM's importer.
        inputs: names of the model's inputs; only indices that depend on an input are checked.
        where: the operator's name and module, for messages.
    """
    name, before = node.target.__name__, {}

    def replaced(indices: Any, function: Callable[..., Any], *arguments: Any) -> None:
        before[indices] = importer.env[indices]
        importer.env[indices] = importer.block_builder.emit_te(
            function, before[indices], *arguments, primfunc_name_hint="places"
        )

    for place, size in INDEXED[name](node, importer) if name in INDEXED else ():
        from_end, checked = name in FROM_END, _depends(place, inputs)
        if from_end or checked:
            message_prefix = where if checked else ""
            replaced(place, partial(from_begin, from_end=from_end, where=message_prefix), size)
    if name in BAGS and not width_of_bags(node) and _depends(node.args[2], inputs):
        count = importer.env[node.args[1]].ty.shape[0]
        replaced(node.args[2], partial(checked_offsets, where=where), count)
    try:
        yield
    finally:
        importer.env.update(before)


def _depends(node: Any, inputs: Collection[str]) -> bool:
    """Return True if a node is computed from an input."""
    seen, left = set(), [node]
    while left:
        current = left.pop()
        if current.name in inputs:
            return True
        sources = [source for source in current.all_input_nodes if source not in seen]
        seen.update(sources)
        left += sources
    return False


def from_begin(places: Any, size: Any, from_end: bool, where: str) -> Any:
    """Compute indices counted from the begin of an axis, from indices that may be negative.

    Args:
        places: integer indices.
        size: of the axis.
        from_end: negative indices are allowed.
        where: the operator, for messages; empty: no check.
    """

    def shifted(place: Any) -> Any:
        return tirx.Select(place < 0, place + tirx.Cast(places.dtype, size), place)

    if not where:
        return te.compute(places.shape, lambda *i: shifted(places[i]), name="places")
    least = -size if from_end else 0

    def beyond(at: Any, i: Any) -> tuple[Any, tuple[Any, ...]]:
        return tirx.any(at(i) < least, at(i) >= size), (at(i), least, size - 1)

    message = f"{where}: index {{}} is beyond its axis, whose indices are {{}} to {{}}"
    return verified(places, beyond, message, shifted)


def checked_offsets(offsets: Any, count: Any, where: str) -> Any:
    """Compute offsets of bags, checked: from 0, not decreasing, at most the number of indices.

    Args:
        offsets: integer offsets.
        count: number of indices.
        where: the operator, for messages.
    """

    def misplaced(at: Any, i: Any) -> tuple[Any, tuple[Any, ...]]:
        first = i == 0
        least = tirx.if_then_else(first, tirx.const(0, offsets.dtype), at(tirx.max(i - 1, 0)))
        most = tirx.if_then_else(first, 0, count)
        return tirx.any(at(i) < least, at(i) > most), (i, at(i), count)

    message = (
        f"{where}: offset {{}} is {{}}; the first is 0, none is less than the one before, "
        "and none is more than the number of indices, {}"
    )
    return verified(offsets, misplaced, message)


def at_indices(node: Any, importer: Any) -> Any:
    """Convert ``index.Tensor``, ``index_select.default`` and ``embedding.default``."""
    name, x = node.target.__name__, importer.env[node.args[0]]
    if name == "index.Tensor":
        nodes = dict(enumerate(node.args[1]))
        if any(index is not None and dtype_of(index) == "bool" for index in nodes.values()):
            return importer._index_tensor(node)
        places = {axis: importer.env[index] for axis, index in nodes.items() if index is not None}
    elif name == "index_select.default":
        places = {node.args[1] % len(x.ty.shape): importer.env[node.args[2]]}
    else:
        places = {0: importer.env[node.args[1]]}
    return importer.block_builder.emit_te(
        partial(elements, axes=tuple(places)), x, *places.values(), primfunc_name_hint="take"
    )


def elements(x: Any, *places: Any, axes: Sequence[int]) -> Any:
    """Compute the elements at indices of some axes, and all elements of the other axes.

    Args:
        x: data.
        places: indices for each axis of ``axes``; their shapes broadcast together.
        axes: in ascending order. If they are not adjacent, the axes of the indices come first.
    """
    count = max(len(indices.shape) for indices in places)
    shape: list[Any] = [1] * count
    for indices in places:
        for axis, size in enumerate(indices.shape, count - len(indices.shape)):
            shape[axis] = shape[axis] if is_one(size) else size
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    together = axes[-1] - axes[0] + 1 == len(axes)
    first = axes[0] if together else 0

    def element(*i: Any) -> Any:
        index_axes, others = i[first : first + count], [*i[:first], *i[first + count :]]
        at = dict(zip(kept, others, strict=True))
        for axis, indices in zip(axes, places, strict=True):
            last = index_axes[count - len(indices.shape) :]
            at[axis] = indices[
                tuple(0 if is_one(n) else k for n, k in zip(indices.shape, last, strict=True))
            ]
        return x[tuple(at[axis] for axis in range(len(x.shape)))]

    sizes = [x.shape[axis] for axis in kept]
    return te.compute((*sizes[:first], *shape, *sizes[first:]), element, name="take")


def is_one(size: Any) -> bool:
    """Return True if a size is known to be one."""
    return isinstance(size, int | tirx.IntImm) and int(size) == 1
