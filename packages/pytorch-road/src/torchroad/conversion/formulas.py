# SPDX-License-Identifier: Apache-2.0
"""Tensor expressions of layers in the forms that the project's passes recognise.

A matrix product multiplies by a transposed matrix, so that kernels find both factors' rows
contiguous; sums run over the last axis; activations consist of exponentials, which the passes
vectorise.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx
from tvm_ffi import structural_equal

# Scores of keys after a query's position.
LEAST = -3.0e38
# The least finite float32.
LEAST_FINITE = -3.4028234663852886e38


def _const(value: float) -> Any:
    return tirx.const(value, "float32")


def is_nothing(size: Any) -> bool:
    """Return True if a size is known to be 0."""
    return isinstance(size, int | tirx.IntImm) and int(size) == 0


def _zeros(shape: Any, dtype: str) -> Any:
    """Return a product over an axis without elements, on whose loop TVM would set no element."""
    return te.compute(shape, lambda *_: tirx.const(0, dtype), name="zeros")


def nt_matmul(data: Any, weight: Any) -> Any:
    """Multiply data [..., rows, k] by weight [n, k] transposed: [..., rows, n]."""
    if is_nothing(weight.shape[1]):
        return _zeros((*data.shape[:-1], weight.shape[0]), data.dtype)
    k = te.reduce_axis((0, weight.shape[1]), name="k")
    return te.compute(
        (*data.shape[:-1], weight.shape[0]),
        lambda *i: te.sum(data[(*i[:-1], k)] * weight[i[-1], k], axis=k),
        name="NT_matmul",
    )


def nt_batch_matmul(left: Any, right: Any) -> Any:
    """Multiply a batch of matrices by a batch of transposed matrices.

    Args:
        left: [..., rows, k].
        right: [..., n, k]; a leading size may be 1, or a number that divides the left's, such as
            heads of keys and heads of queries: neighbours on the left share a matrix on the right.

    Returns:
        [..., rows, n].

    Raises:
        TypeError: a leading size of the right is not known to divide the left's.
    """
    shape = (*left.shape[:-1], right.shape[-2])
    if is_nothing(left.shape[-1]):
        return _zeros(shape, left.dtype)
    outer = len(left.shape) - 2
    k = te.reduce_axis((0, left.shape[-1]), name="k")
    pairs = list(zip(left.shape[:outer], right.shape[:outer], strict=True))

    def element(*i: Any) -> Any:
        of_right = [_shared(axis, *sizes) for axis, sizes in zip(i, pairs, strict=False)]
        return te.sum(left[(*i[:-1], k)] * right[(*of_right, i[-1], k)], axis=k)

    return te.compute(shape, element, name="NT_batch_matmul")


def _shared(axis: Any, left: Any, right: Any) -> Any:
    """Return the index of the right's matrix that multiplies the left's matrix of index ``axis``.

    ``left`` and ``right`` are both sides' numbers of matrices on that axis.

    Raises:
        TypeError: the right's number is not known to divide the left's.
    """
    if structural_equal(left, right):
        return axis
    numbers = [int(n) if isinstance(n, int | tirx.IntImm) else None for n in (left, right)]
    if numbers[0] and numbers[1] and numbers[0] % numbers[1] == 0:
        return axis // (numbers[0] // numbers[1])
    if numbers[1] == 1:
        return 0
    raise TypeError(f"its batches have the sizes {left} and {right}")


def last_but(x: Any, axis: int, before: int) -> Any:
    """Return the elements of an axis, which is dropped, at ``before`` positions before its end."""
    axis %= len(x.shape)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    place = x.shape[axis] - before
    return te.compute(shape, lambda *i: x[(*i[:axis], place, *i[axis:])], name="selected")


def scaled(scores: Any, scale: float, causal: bool) -> Any:
    """Multiply scores [..., queries, keys] by a number; `causal` hides keys after the query."""

    def element(*i: Any) -> Any:
        value = scores[i] * _const(scale)
        return tirx.Select(i[-1] <= i[-2], value, _const(LEAST)) if causal else value

    return te.compute(scores.shape, element, name="scaled")


def softmax(x: Any, masked: bool = False) -> Any:
    """Compute the softmax over the last axis; if ``masked``, rows of only -inf give zeros."""
    rows, width = x.shape[:-1], x.shape[-1]
    k, j = te.reduce_axis((0, width), name="k"), te.reduce_axis((0, width), name="j")
    most = te.compute(rows, lambda *i: te.max(x[(*i, k)], axis=k), name="softmax_most")

    def power(*i: Any) -> Any:
        top = most[i[:-1]]
        return te.exp(x[i] - (tirx.max(top, _const(LEAST_FINITE)) if masked else top))

    powers = te.compute(x.shape, power, name="softmax_powers")
    total = te.compute(rows, lambda *i: te.sum(powers[(*i, j)], axis=j), name="softmax_total")

    def share(*i: Any) -> Any:
        of_row = total[i[:-1]]
        return powers[i] / (
            tirx.Select(of_row > _const(0), of_row, _const(1)) if masked else of_row
        )

    return te.compute(x.shape, share, name="softmax")


def layer_norm(x: Any, gamma: Any, beta: Any, eps: float) -> Any:
    """Normalize over the last axis; gamma and beta are [width] or None.

    The variance comes from differences to the mean: squares of a large mean would lose its digits.
    """
    rows, width = x.shape[:-1], x.shape[-1]
    k, m, j = (te.reduce_axis((0, width), name=name) for name in "kmj")
    part = 1.0 / tirx.Cast(x.dtype, width)
    total = te.compute(rows, lambda *i: te.sum(x[(*i, k)], axis=k), name="norm_total")
    near = te.compute(x.shape, lambda *i: x[i] - total[i[:-1]] * part, name="norm_near")
    # A float32 rounds the mean by more than small differences from it.
    rest = te.compute(rows, lambda *i: te.sum(near[(*i, m)], axis=m), name="norm_rest")
    centred = te.compute(x.shape, lambda *i: near[i] - rest[i[:-1]] * part, name="norm_centred")
    squares = te.compute(
        rows, lambda *i: te.sum(centred[(*i, j)] * centred[(*i, j)], axis=j), name="norm_squares"
    )

    def scaled(*i: Any) -> Any:
        return centred[i] * te.rsqrt(squares[i[:-1]] * part + eps)

    def weighted(*i: Any) -> Any:
        value = scaled(*i) if gamma is None else scaled(*i) * gamma[i[-1]]
        return value if beta is None else value + beta[i[-1]]

    return te.compute(x.shape, weighted, name="norm")


def gelu_tanh(x: Any) -> Any:
    """Compute x times the normal distribution function, approximated by a hyperbolic tangent."""

    def element(*i: Any) -> Any:
        inner = x[i] + 0.044715 * x[i] * x[i] * x[i]
        value = x[i] * te.sigmoid(2 * math.sqrt(2 / math.pi) * inner)
        # The least sigmoid is not small beside the largest numbers.
        return tirx.Select(x[i] < -10, tirx.const(0, x.dtype), value)

    return te.compute(x.shape, element, name="gelu_tanh")
