# SPDX-License-Identifier: Apache-2.0
"""Reads of a tensor's elements by indices, with checks that the indices are in range.

Without a check, TVM's code reads and writes beyond a tensor if torch would refuse an index.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from torchroad.conversion.arguments import argument
from torchroad.conversion.bags import BAGS, width_of_bags
from torchroad.conversion.dtypes import dtype_of
from torchroad.conversion.sizes import shape_of, size_at
from torchroad.conversion.verified import verified

# The node of indices, the key of checked indices in the importer's table, and the axis's size.
Indices = Iterator[tuple[Any, Any, Any]]


def _along(node: Any, importer: Any) -> Indices:
    """Yield the indices along an axis of the first argument."""
    yield node.args[2], node.args[2], importer.env[node.args[0]].ty.shape[node.args[1]]


def _rows(node: Any, importer: Any) -> Indices:
    """Yield a table's row indices."""
    yield node.args[1], node.args[1], importer.env[node.args[0]].ty.shape[0]


def _of_axes(node: Any, importer: Any) -> Indices:
    """Yield each axis's integer indices, with a key for each axis; skip masks and None."""
    shape = importer.env[node.args[0]].ty.shape
    for axis, (indices, size) in enumerate(zip(node.args[1], shape, strict=False)):
        if indices is not None and str(dtype_of(indices)) not in MASKS:
            yield indices, (indices, axis), size


def _of_all(node: Any, importer: Any) -> Indices:
    """Yield the indices into a flattened tensor."""
    size = math.prod(importer.env[node.args[0]].ty.shape, start=1)
    yield node.args[1], node.args[1], size


# Functions by operator that yield its indices.
ALONG = (
    *("index_select.default", "gather.default"),
    *("scatter.src", "scatter.value", "scatter_add.default", "scatter_reduce.two"),
)
INDEXED: dict[str, Callable[[Any, Any], Indices]] = {
    **dict.fromkeys(ALONG, _along),
    **dict.fromkeys(("embedding.default", *BAGS), _rows),
    "index.Tensor": _of_axes,
    "index_put.default": _of_axes,
    "take.default": _of_all,
}
MASKS = ("bool", "uint8")
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
    name, before = node.target.__name__, importer.env
    importer.env = ChainMap({}, before)

    def replace(key: Any, indices: Any, function: Callable[..., Any], *arguments: Any) -> None:
        importer.env[key] = importer.block_builder.emit_te(
            function, before[indices], *arguments, primfunc_name_hint="places"
        )

    try:
        for place, key, size in INDEXED[name](node, importer) if name in INDEXED else ():
            from_end, checked = name in FROM_END, _depends(place, inputs)
            if from_end or checked:
                message_prefix = where if checked else ""
                function = partial(from_begin, from_end=from_end, where=message_prefix)
                replace(key, place, function, size)
        if name in BAGS and not width_of_bags(node) and _depends(node.args[2], inputs):
            count = importer.env[node.args[1]].ty.shape[0]
            replace(node.args[2], node.args[2], partial(checked_offsets, where=where), count)
        yield
    finally:
        importer.env = before


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
    """Convert ``index``, ``index_select`` or ``embedding`` to a gather written in TE."""
    name, x = node.target.__name__, importer.env[node.args[0]]
    if name == "index.Tensor":
        if _mask_of(node) is not None:
            return importer._index_tensor(node)
        places = _places(node, importer)
    elif name == "index_select.default":
        places = {node.args[1] % len(x.ty.shape): importer.env[node.args[2]]}
    else:
        places = {0: importer.env[node.args[1]]}
    return importer.block_builder.emit_te(
        partial(elements, axes=tuple(places)), x, *places.values(), primfunc_name_hint="take"
    )


def put_at_indices(node: Any, importer: Any) -> Any:
    """Convert ``index_put.default``: integers for some axes, or a mask of neighbouring axes.

    Raises:
        TypeError: a mask is beside other indices, or its true elements have values of their own.
    """
    builder, (x, values) = importer.block_builder, (importer.env[node.args[i]] for i in (0, 2))
    adds = len(node.args) > 3 and bool(node.args[3])
    if (place := _mask_of(node)) is not None:
        return _put_at_mask(node, place, values, adds, importer)
    places = _places(node, importer)
    offsets = builder.emit_te(
        partial(offsets_of, axes=tuple(places)), x, *places.values(), primfunc_name_hint="offsets"
    )
    values = builder.emit(relax.op.broadcast_to(values, offsets.ty.shape))
    return written(x, offsets, values, "add" if adds else "update", builder)


def written(x: Any, offsets: Any, values: Any, reduction: str, builder: Any) -> Any:
    """Return a tensor with values written at positions in its flattened data, by a reduction.

    TVM's operator is right for a single axis: for several, it counts with the sizes of the indices.
    """
    flat = [builder.emit(relax.op.reshape(tensor, [-1])) for tensor in (x, offsets, values)]
    put = builder.emit(relax.op.scatter_elements(*flat, 0, reduction))
    return builder.emit(relax.op.reshape(put, x.ty.shape))


def written_along(
    x: Any, axis: int, indices: Any, values: Any, reduction: str, builder: Any
) -> Any:
    """Return a tensor with values written at indices along an axis, by a reduction."""
    place = partial(offsets_along, axis=axis % len(x.ty.shape))
    offsets = builder.emit_te(place, x, indices, primfunc_name_hint="offsets")
    return written(x, offsets, values, reduction, builder)


def _put_at_mask(node: Any, place: int, values: Any, adds: bool, importer: Any) -> Any:
    builder, x = importer.block_builder, importer.env[node.args[0]]
    if sum(index is not None for index in node.args[1]) > 1:
        raise TypeError("it has a mask beside other indices")
    rank = len(x.ty.shape)
    mask = builder.emit(relax.op.astype(importer.env[node.args[1][place]], "bool"))
    after = rank - place - len(mask.ty.shape)
    if place and len(values.ty.shape) > after:
        raise TypeError("its mask is not of the first axes")
    if len(values.ty.shape) > after:
        if not is_one(values.ty.shape[0]):
            raise TypeError("each true element of its mask has a value of its own")
        values = builder.emit(relax.op.squeeze(values, [0]))
    shape = [*mask.ty.shape, *[1] * after]
    wide = builder.emit(relax.op.reshape(mask, shape))
    new = builder.emit(relax.op.add(x, values)) if adds else values
    return builder.emit(relax.op.where(wide, new, x))


def _mask_of(node: Any) -> int | None:
    """Return the position of the mask among an operator's indices; None without a mask."""
    masks = [
        place
        for place, index in enumerate(node.args[1])
        if index is not None and str(dtype_of(index)) in MASKS
    ]
    return masks[0] if masks else None


def _places(node: Any, importer: Any) -> dict[int, Any]:
    """Return the integer indices of each axis that has indices, as ``_of_axes`` names them."""
    return {axis: importer.env[i, axis] for axis, i in enumerate(node.args[1]) if i is not None}


Chosen = tuple[tuple[Any, ...], Callable[..., tuple[Any, ...]]]


def chosen(x: Any, places: Sequence[Any], axes: Sequence[int]) -> Chosen:
    """Return the shape of the elements at indices of some axes, and a function to their places.

    The function maps an element's indices in the result to its indices in ``x``.

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

    def place(*i: Any) -> tuple[Any, ...]:
        index_axes, others = i[first : first + count], [*i[:first], *i[first + count :]]
        at = dict(zip(kept, others, strict=True))
        for axis, indices in zip(axes, places, strict=True):
            last = index_axes[count - len(indices.shape) :]
            at[axis] = indices[
                tuple(0 if is_one(n) else k for n, k in zip(indices.shape, last, strict=True))
            ]
        return tuple(at[axis] for axis in range(len(x.shape)))

    sizes = [x.shape[axis] for axis in kept]
    return (*sizes[:first], *shape, *sizes[first:]), place


def elements(x: Any, *places: Any, axes: Sequence[int]) -> Any:
    """Compute the elements at indices of some axes, and all elements of the other axes.

    The arguments and the result's shape are those of :func:`chosen`.
    """
    shape, place = chosen(x, places, axes)
    return te.compute(shape, lambda *i: x[place(*i)], name="take")


def offsets_of(x: Any, *places: Any, axes: Sequence[int]) -> Any:
    """Compute the positions in flattened data of the elements at indices of some axes."""
    shape, place = chosen(x, places, axes)
    return _positions(x, shape, place)


def offsets_along(x: Any, indices: Any, axis: int) -> Any:
    """Compute the positions in flattened data of an element for each index along an axis."""

    def place(*i: Any) -> tuple[Any, ...]:
        return (*i[:axis], indices(*i), *i[axis + 1 :])

    return _positions(x, indices.shape, place)


def _positions(x: Any, shape: Any, place: Callable[..., tuple[Any, ...]]) -> Any:
    def offset(*i: Any) -> Any:
        total: Any = tirx.const(0, "int64")
        for index, size in zip(place(*i), x.shape, strict=True):
            total = total * size + index
        return tirx.Cast("int64", total)

    return te.compute(shape, offset, name="offsets")


def sliced(node: Any, importer: Any) -> Any:
    """Convert a slice; TVM's importer converts those of axes whose sizes are known."""
    x = importer.env[node.args[0]]
    axis = (node.args[1] if len(node.args) > 1 else 0) % len(x.ty.shape)
    begin = node.args[2] if len(node.args) > 2 else None
    step = node.args[4] if len(node.args) > 4 else 1
    before, after = (n.meta["val"].shape[axis] for n in (node.args[0], node))
    if isinstance(before, int) and isinstance(after, int) and isinstance(begin, int | None):
        return importer._slice(node)
    begin = begin if isinstance(begin, int | None) else size_at(begin, importer)
    sizes = relax.ShapeExpr([*shape_of(node, importer), begin or 0])

    def formula(data: Any, numbers: Any) -> Any:
        *shape, first = numbers
        if isinstance(first, tirx.IntImm) and int(first) < 0:
            first = tirx.max(data.shape[axis] + first, 0)

        def element(*i: Any) -> Any:
            return data[(*i[:axis], first + i[axis] * step, *i[axis + 1 :])]

        return te.compute(shape, element, name="slice")

    return importer.block_builder.emit_te(formula, x, sizes, primfunc_name_hint="slice")


def strided(node: Any, importer: Any) -> Any:
    """Convert ``as_strided``: elements at given steps of the memory of a contiguous tensor.

    Raises:
        TypeError: the tensor is a view, whose memory has another order or more elements.
    """
    data = node.args[0].meta["val"]
    sizes, steps = node.args[1:3]
    offset = argument(node, importer, 3, "storage_offset") or 0
    known = all(isinstance(number, int) for number in (*data.shape, *sizes, *steps, offset))
    if not (known and data.is_contiguous() and data.storage_offset() == 0):
        raise TypeError("it reads the memory of a view")
    grid = np.indices(sizes).reshape(len(sizes), -1)
    places = (np.array(steps).reshape(1, -1) @ grid).reshape(sizes) + offset
    if places.size and places.max() >= data.numel():
        raise TypeError("it reads the memory behind its tensor")
    builder = importer.block_builder
    flat = builder.emit(relax.op.reshape(importer.env[node.args[0]], [-1]))
    return builder.emit(relax.op.take(flat, relax.const(places, "int64"), 0))


def is_one(size: Any) -> bool:
    """Return True if a size is known to be one."""
    return isinstance(size, int | tirx.IntImm) and int(size) == 1
