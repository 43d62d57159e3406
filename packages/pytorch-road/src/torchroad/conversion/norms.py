# SPDX-License-Identifier: Apache-2.0
"""Conversion of norms and variances to two passes: the mean, then the differences from it.

TVM's norms of groups, instances and batches take the variance as the difference of the mean square
and the squared mean, which loses the digits that a large mean has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx

from torchroad.conversion import formulas
from torchroad.conversion.arguments import Converter, argument


def layer_norm(node: Any, importer: Any) -> Any:
    """Convert a norm over the last axes."""
    builder = importer.block_builder
    x, widths = (argument(node, importer, i, name) for i, name in enumerate(("input", "shape")))
    weights = (argument(node, importer, 2 + i, name) for i, name in enumerate(("weight", "bias")))
    eps, count = argument(node, importer, 4, "eps", 1e-5), len(widths)
    rows, width = list(x.ty.shape)[:-count], math.prod(widths)
    gamma, beta = (_reshaped(w, [width], builder) if count > 1 else w for w in weights)
    flat = _reshaped(x, [*rows, width], builder) if count > 1 else x
    normal = builder.emit_te(formulas.layer_norm, flat, gamma, beta, eps)
    return _reshaped(normal, x.ty.shape, builder) if count > 1 else normal


def group_norm(node: Any, importer: Any) -> Any:
    """Convert a norm of groups of channels; only the first output may be used."""
    x, (groups, eps) = importer.env[node.args[0]], node.args[6:8]
    normal = normal_groups(x, groups, eps, importer.block_builder)
    return _weighted(normal, node, importer), None, None


def normal_groups(x: Any, groups: int, eps: float, builder: Any) -> Any:
    """Return data [batch, channels, ...] normalized over each group of channels."""
    batch, channels, *others = x.ty.shape
    width = math.prod(others, start=channels // groups)
    flat = _reshaped(x, [batch, groups, width], builder)
    normal = builder.emit_te(formulas.layer_norm, flat, None, None, eps)
    return _reshaped(normal, x.ty.shape, builder)


def batch_norm(node: Any, importer: Any) -> Any:
    """Convert a norm of each channel by the batch's own mean and variance.

    Only the first output may be used: the others are None.
    """
    builder, x = importer.block_builder, importer.env[node.args[0]]
    batch, channels, *others = x.ty.shape
    order = [1, 0, *range(2, len(x.ty.shape))]
    first = builder.emit(relax.op.permute_dims(x, order))
    flat = _reshaped(first, [channels, math.prod(others, start=batch)], builder)
    normal = builder.emit_te(formulas.layer_norm, flat, None, None, node.args[5])
    normal = _reshaped(normal, [channels, batch, *others], builder)
    normal = builder.emit(relax.op.permute_dims(normal, order))
    return _weighted(normal, node, importer), None, None


def _weighted(normal: Any, node: Any, importer: Any) -> Any:
    """Return normal data, multiplied and shifted by an operator's weights of each channel."""
    builder = importer.block_builder
    for place, operator in ((1, relax.op.multiply), (2, relax.op.add)):
        if (weights := argument(node, importer, place, "")) is not None:
            shape = [weights.ty.shape[0], *[1] * (len(normal.ty.shape) - 2)]
            normal = builder.emit(operator(normal, _reshaped(weights, shape, builder)))
    return normal


def _reshaped(x: Any, shape: Sequence[Any], builder: Any) -> Any:
    return x if x is None else builder.emit(relax.op.reshape(x, [*shape]))


def variance(finish: Callable[[Any], Any] | None = None) -> Converter:
    """Return a converter of a variance over some axes, or of a function of it."""

    def convert(node: Any, importer: Any) -> Any:
        result = variance_and_mean(node, importer)[0]
        return importer.block_builder.emit(finish(result)) if finish else result

    return convert


def variance_and_mean(node: Any, importer: Any) -> tuple[Any, Any]:
    """Convert a variance and a mean over some axes."""
    builder, x = importer.block_builder, importer.env[node.args[0]]
    rank = len(x.ty.shape)
    given = argument(node, importer, 1, "dim")
    axes = [axis % rank for axis in ([given] if isinstance(given, int) else given or range(rank))]
    correction = node.kwargs.get("correction")
    keeps = bool(argument(node, importer, 3, "keepdim", False))
    mean = builder.emit(relax.op.mean(x, axes, keepdims=True))
    centred = builder.emit(relax.op.subtract(x, mean))
    squares = builder.emit(relax.op.multiply(centred, centred))
    total = builder.emit(relax.op.sum(squares, axes, keepdims=keeps))
    count = relax.ShapeExpr([math.prod(x.ty.shape[axis] for axis in axes)])
    less = 1.0 if correction is None else float(correction)

    def divided(sums: Any, counts: Any) -> Any:
        number = tirx.Cast("float32", counts[0]) - tirx.const(less, "float32")
        divisor = tirx.max(number, tirx.const(0, "float32"))
        # TVM refuses a division by a number that it knows to be 0.
        is_known = isinstance(counts[0], tirx.IntImm) and int(counts[0]) <= less

        def share(*i: Any) -> Any:
            return tirx.const(math.nan, "float32") if is_known else sums(*i) / divisor

        return te.compute(sums.shape, share, name="variance")

    mean = mean if keeps else builder.emit(relax.op.squeeze(mean, axes))
    return builder.emit_te(divided, total, count, primfunc_name_hint="variance"), mean
