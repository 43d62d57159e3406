# SPDX-License-Identifier: Apache-2.0
"""Conversion of interpolation and adaptive pooling to products with torch's weights for each axis.

TVM's importer uses other coordinates for sizes that are not multiples of each other, and has no
antialiasing. Its adaptive averages are wrong if only some axes are multiples of their output sizes.
"""

from __future__ import annotations

from typing import Any

import torch
from tvm import relax

from torchroad.conversion import formulas

# Operators that average the last two or three axes to a given size.
ADAPTIVE_AVERAGES = ("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
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
    """Convert an average of the last axes to a given size, axis after axis."""
    x, builder = importer.env[node.args[0]], importer.block_builder
    first = len(x.ty.shape) - len(node.args[1])
    for axis in range(first, len(x.ty.shape)):
        if node.args[1][axis - first] == 1:
            x = builder.emit(relax.op.mean(x, [axis], keepdims=True))
            continue
        before, after = _sizes(node, axis)
        if after != before:
            unit = _unit_matrix(node, before)
            weights = torch.nn.functional.adaptive_avg_pool1d(unit, after).T
            x = _along(x, weights.contiguous(), axis, builder)
    return x


def _sizes(node: Any, axis: int) -> tuple[int, int]:
    """Return the sizes of an axis in the input and in the output.

    Raises:
        TypeError: the axis varies.
    """
    before, after = (tensor_node.meta["val"].shape[axis] for tensor_node in (node.args[0], node))
    if not isinstance(before, int) or not isinstance(after, int):
        raise TypeError("an axis that is resampled may not vary")
    return before, after


def _unit_matrix(node: Any, size: int) -> Any:
    """Return a unit matrix in float64 if the input is float64, else in float32."""
    is_wide = node.args[0].meta["val"].dtype == torch.float64
    return torch.eye(size, dtype=torch.float64 if is_wide else torch.float32)


def _weights(node: Any, axis: int) -> Any:
    """Return weights [outputs, inputs] of an axis: torch's result for a unit image of each input.

    Raises:
        TypeError: the axis varies.
    """
    before, after = _sizes(node, axis)
    # The other axis keeps two elements: with a width of one, torch's antialiasing interpolates
    # only the first output.
    images = torch.stack([_unit_matrix(node, before)] * 2, 4 - axis).unsqueeze(1).contiguous()
    arguments = list(node.args[1:])
    arguments[0] = arguments[0] and [after if n == axis else 2 for n in (2, 3)]
    arguments[-1] = arguments[-1] and [arguments[-1][n - 2] if n == axis else 1.0 for n in (2, 3)]
    return node.target(images, *arguments).select(5 - axis, 0)[:, 0].T.contiguous()


def _along(x: Any, weights: Any, axis: int, builder: Any) -> Any:
    if ((weights == 0) | (weights == 1)).all() and (weights.sum(1) == 1).all():
        indices = relax.const(weights.argmax(1).numpy(), "int64")
        return builder.emit(relax.op.take(x, indices, axis))
    last = len(x.ty.shape) - 1
    order = list(range(last + 1))
    order[axis], order[last] = last, axis
    rows = x if axis == last else builder.emit(relax.op.permute_dims(x, order))
    matrix = relax.const(weights.numpy(), str(weights.numpy().dtype))
    product = builder.emit_te(formulas.nt_matmul, rows, matrix, primfunc_name_hint="resampled")
    return product if axis == last else builder.emit(relax.op.permute_dims(product, order))
