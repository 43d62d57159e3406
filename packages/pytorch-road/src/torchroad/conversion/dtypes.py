# SPDX-License-Identifier: Apache-2.0
"""Types as torch has them, where TVM's importer would take others.

TVM 0.26 makes a tensor of a constant in its model's type rather than the one asked for
(``zeros_like(mask, dtype=float32)`` becomes bool), rounds a number to the integers that it is
combined with, and has int32 where torch's sorts give int64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tvm import relax

# Places of arguments that choose, and are not computed with.
CHOOSING = {"where.self": 0}


def dtype_of(node: Any) -> str | None:
    """Torch's type of a node's tensor; None of anything else."""
    value = node.meta.get("val")
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else None


@contextmanager
def promoted(node: Any, importer: Any) -> Iterator[None]:
    """Let an elementwise operator find its arguments in the type that torch computes in."""
    before = {}
    if (dtype := _computed_in(node)) is not None:
        for place, argument in enumerate(node.args):
            chosen = place == CHOOSING.get(node.target.__name__)
            if isinstance(argument, torch.fx.Node) and dtype_of(argument) and not chosen:
                value = importer.env[argument]
                if str(value.ty.dtype) != dtype:
                    before[argument] = value
                    cast = importer.block_builder.emit(relax.op.astype(value, dtype))
                    importer.env[argument] = cast
    try:
        yield
    finally:
        importer.env.update(before)


def _computed_in(node: Any) -> str | None:
    """Type that an elementwise operator computes in; None where nothing is known of it."""
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()):
        return None
    if (dtype := dtype_of(node)) != "bool":
        return dtype
    # Of a comparison the result's type says nothing.
    values = [one.meta["val"] if isinstance(one, torch.fx.Node) else one for one in node.args]
    if len(values) != 2 or not all(isinstance(v, torch.Tensor | int | float) for v in values):
        return None
    return str(torch.result_type(*values)).removeprefix("torch.")


def checked(node: Any, made: Any, importer: Any) -> Any:
    """Check the result of an operator; integers of another width are converted.

    Raises:
        TypeError: it has another type or shape than torch's.
    """
    dtype = dtype_of(node)
    if dtype is None or not isinstance(getattr(made, "ty", None), relax.TensorType):
        return made
    _check_shape(node.meta["val"].shape, made.ty.shape)
    found = str(made.ty.dtype)
    if found == dtype:
        return made
    if {found, dtype} == {"int32", "int64"}:
        return importer.block_builder.emit(relax.op.astype(made, dtype))
    raise TypeError(f"TVM's importer gives it the dtype {found}, torch {dtype}")


def _check_shape(wanted: Any, found: Any) -> None:
    """Compare sizes that do not vary."""
    if found is None:
        return
    sizes = [getattr(size, "value", None) for size in found]
    known = [(a, b) for a, b in zip(wanted, sizes, strict=False) if type(a) is type(b) is int]
    if len(sizes) != len(wanted) or any(a != b for a, b in known):
        shapes = [", ".join(map(str, shape)) for shape in (sizes, wanted)]
        raise TypeError(f"TVM's importer gives the shape ({shapes[0]}), torch ({shapes[1]})")


def constant(size: Callable[[Any, Any], Any], value: Callable[[Any], Any]) -> Any:
    """Converter of an operator that makes a tensor of one number.

    Args:
        size: the tensor's sizes, of a node and the importer.
        value: the number, of a node.
    """

    def convert(node: Any, importer: Any) -> Any:
        number, dtype, shape = value(node), dtype_of(node), size(node, importer)
        if isinstance(number, torch.fx.Node):
            raise TypeError("its value is not known before a run")
        filler = relax.const(number, dtype)
        # TVM 0.26 cannot compile a full tensor of what is not finite.
        if not math.isfinite(number):
            return importer.block_builder.emit(relax.op.broadcast_to(filler, shape))
        return importer.block_builder.emit(relax.op.full(shape, filler, dtype))

    return convert


def _given(place: int) -> Callable[[Any, Any], Any]:
    return lambda node, importer: relax.ShapeExpr(importer._retrieve_args(node.args[place]))


def _of_first(node: Any, importer: Any) -> Any:
    return importer.env[node.args[0]].ty.shape


# Operators that make a tensor of one number: where its sizes are from, and the number.
CONSTANTS: dict[str, Any] = {
    "full.default": constant(_given(0), lambda node: node.args[1]),
    "full_like.default": constant(_of_first, lambda node: node.args[1]),
    "zeros_like.default": constant(_of_first, lambda _: 0),
    "ones_like.default": constant(_of_first, lambda _: 1),
    "new_full.default": constant(_given(1), lambda node: node.args[2]),
    "new_zeros.default": constant(_given(1), lambda _: 0),
    "new_ones.default": constant(_given(1), lambda _: 1),
}
