# SPDX-License-Identifier: Apache-2.0
"""Interpolation and adaptive pooling: products with the weights that torch itself gives each axis.

TVM's importer has coordinates of its own for sizes that are no whole multiple of each other, and no
antialiasing. Its adaptive averages are wrong where one axis is a whole multiple and another is not.
"""

from __future__ import annotations

from typing import Any

import torch
from tvm import relax, tirx

from torchroad.conversion import formulas

# Averages to a given size, of the last two or three axes.
ADAPTIVE_AVERAGES = ("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
# Maxima likewise.
ADAPTIVE_MAXIMA = ("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
# Operators of two axes whose weights do not depend on the elements.
RESAMPLING = (
    *("upsample_nearest2d.vec", "_upsample_nearest_exact2d.vec", "upsample_bilinear2d.vec"),
    *("upsample_bicubic2d.vec", "_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.vec"),
)


def resampled(node: Any, importer: Any) -> Any:
    """Convert an interpolation of the last two axes of [batch, channels, height, width]."""
    x = importer.env[node.args[0]]
    for axis in (3, 2):
        x = _along(x, _weights(node, axis), axis, importer.block_builder)
    return x


def adaptive_average(node: Any, importer: Any) -> Any:
    """Convert an average of the last axes to a given size, each axis by itself."""
    x, builder = importer.env[node.args[0]], importer.block_builder
    first = len(x.ty.shape) - len(node.args[1])
    for axis in range(first, len(x.ty.shape)):
        if node.args[1][axis - first] == 1:
            x = builder.emit(relax.op.mean(x, [axis], keepdims=True))
            continue
        before, after = _sizes(node, axis)
        if after != before:
            weights = torch.nn.functional.adaptive_avg_pool1d(torch.eye(before), after).T
            x = _along(x, weights.contiguous(), axis, builder)
    return x


def adaptive_maximum(node: Any, importer: Any) -> Any:
    """Convert maxima of the last axes to a given size, without their places."""
    x, builder = importer.env[node.args[0]], importer.block_builder
    first = len(x.ty.shape) - len(node.args[1])
    for axis in range(first, len(x.ty.shape)):
        before, after = x.ty.shape[axis], node.args[1][axis - first]
        if not isinstance(before, int | tirx.IntImm):
            raise TypeError("an axis that is resampled may not vary")
        if after != int(before):
            hint = "adaptive_maximum"
            x = builder.emit_te(formulas.adaptive_maximum, x, axis, after, primfunc_name_hint=hint)
    # Zeros as TVM's importer has for other maxima: they are no integers, so their use is refused.
    return builder.emit(relax.Tuple([x, relax.op.zeros_like(x)]))


def _sizes(node: Any, axis: int) -> tuple[int, int]:
    """Elements of an axis of the input, and of the output.

    Raises:
        TypeError: the axis varies.
    """
    before, after = (one.meta["val"].shape[axis] for one in (node.args[0], node))
    if not isinstance(before, int) or not isinstance(after, int):
        raise TypeError("an axis that is resampled may not vary")
    return before, after


def _weights(node: Any, axis: int) -> Any:
    """Weights [outputs, inputs] of an axis: torch's answer to one image for each element.

    Raises:
        TypeError: the axis varies.
    """
    before, after = _sizes(node, axis)
    # The other axis has two elements and keeps them: of images one wide, torch's antialiasing
    # interpolates the first output alone.
    images = torch.stack([torch.eye(before)] * 2, 4 - axis).unsqueeze(1).contiguous()
    given = list(node.args[1:])
    given[0] = given[0] and [after if one == axis else 2 for one in (2, 3)]
    given[-1] = given[-1] and [given[-1][one - 2] if one == axis else 1.0 for one in (2, 3)]
    return node.target(images, *given).select(5 - axis, 0)[:, 0].T.contiguous()


def _along(x: Any, weights: Any, axis: int, builder: Any) -> Any:
    if ((weights == 0) | (weights == 1)).all() and (weights.sum(1) == 1).all():
        places = relax.const(weights.argmax(1).numpy(), "int64")
        return builder.emit(relax.op.take(x, places, axis))
    last = len(x.ty.shape) - 1
    turned = list(range(last + 1))
    turned[axis], turned[last] = last, axis
    rows = x if axis == last else builder.emit(relax.op.permute_dims(x, turned))
    matrix = relax.const(weights.numpy(), "float32")
    made = builder.emit_te(formulas.nt_matmul, rows, matrix, primfunc_name_hint="resampled")
    return made if axis == last else builder.emit(relax.op.permute_dims(made, turned))
