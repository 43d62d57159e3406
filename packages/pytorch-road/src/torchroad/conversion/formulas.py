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

# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: erf with an error below
# 1.5e-7.
ERF_P = 0.3275911
ERF_TERMS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


# Scores of keys after a query's position.
LEAST = -3.0e38
# The least finite float32.
LEAST_FINITE = -3.4028234663852886e38


def _const(value: float) -> Any:
    return tirx.const(value, "float32")


def nt_matmul(data: Any, weight: Any) -> Any:
    """Multiply data [..., rows, k] by weight [n, k] transposed: [..., rows, n]."""
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
        right: [..., n, k]; a leading size may divide the left's, such as heads of keys and heads of
            queries: neighbours on the left then share a matrix on the right.

    Returns:
        [..., rows, n].
    """
    outer = len(left.shape) - 2
    k = te.reduce_axis((0, left.shape[-1]), name="k")
    shares = [_share(a, b) for a, b in zip(left.shape[:outer], right.shape[:outer], strict=True)]

    def element(*i: Any) -> Any:
        of_right = [axis if n == 1 else axis // n for axis, n in zip(i, shares, strict=False)]
        return te.sum(left[(*i[:-1], k)] * right[(*of_right, i[-1], k)], axis=k)

    shape = (*left.shape[:-1], right.shape[-2])
    return te.compute(shape, element, name="NT_batch_matmul")


def _share(left: Any, right: Any) -> int:
    """Return how many consecutive matrices on the left share a matrix on the right."""
    numbers = [int(n) if isinstance(n, int | tirx.IntImm) else None for n in (left, right)]
    if numbers[0] is None or numbers[1] is None:
        return 1
    return numbers[0] // numbers[1]


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


def softmax(x: Any) -> Any:
    """Compute the softmax over the last axis."""
    rows, width = x.shape[:-1], x.shape[-1]
    k, j = te.reduce_axis((0, width), name="k"), te.reduce_axis((0, width), name="j")
    most = te.compute(rows, lambda *i: te.max(x[(*i, k)], axis=k), name="softmax_most")
    powers = te.compute(x.shape, lambda *i: te.exp(x[i] - most[i[:-1]]), name="softmax_powers")
    total = te.compute(rows, lambda *i: te.sum(powers[(*i, j)], axis=j), name="softmax_total")
    return te.compute(x.shape, lambda *i: powers[i] / total[i[:-1]], name="softmax")


def masked_softmax(x: Any) -> Any:
    """Compute the softmax over the last axis; rows of only -inf give zeros, as in torch."""
    rows, width = x.shape[:-1], x.shape[-1]
    k, j = te.reduce_axis((0, width), name="k"), te.reduce_axis((0, width), name="j")
    most = te.compute(rows, lambda *i: te.max(x[(*i, k)], axis=k), name="softmax_most")
    least = _const(LEAST_FINITE)

    def power(*i: Any) -> Any:
        return te.exp(x[i] - tirx.max(most[i[:-1]], least))

    powers = te.compute(x.shape, power, name="softmax_powers")
    total = te.compute(rows, lambda *i: te.sum(powers[(*i, j)], axis=j), name="softmax_total")

    def share(*i: Any) -> Any:
        sum_of_row = total[i[:-1]]
        return powers[i] / tirx.Select(sum_of_row > _const(0), sum_of_row, _const(1))

    return te.compute(x.shape, share, name="softmax")


def layer_norm(x: Any, gamma: Any, beta: Any, eps: float) -> Any:
    """Normalize over the last axis; gamma and beta are [width]."""
    rows, width = x.shape[:-1], x.shape[-1]
    k, j = te.reduce_axis((0, width), name="k"), te.reduce_axis((0, width), name="j")
    part = _const(1.0) / tirx.Cast("float32", width)
    total = te.compute(rows, lambda *i: te.sum(x[(*i, k)], axis=k), name="norm_total")
    centred = te.compute(x.shape, lambda *i: x[i] - total[i[:-1]] * part, name="norm_centred")
    squares = te.compute(
        rows, lambda *i: te.sum(centred[(*i, j)] * centred[(*i, j)], axis=j), name="norm_squares"
    )

    def scaled(*i: Any) -> Any:
        return centred[i] * te.rsqrt(squares[i[:-1]] * part + _const(eps))

    return te.compute(x.shape, lambda *i: scaled(*i) * gamma[i[-1]] + beta[i[-1]], name="norm")


def adaptive_maximum(x: Any, axis: int, size: int) -> Any:
    """Compute maxima of `size` windows of an axis; windows overlap if `size` does not divide."""
    before = int(x.shape[axis])
    most = max(-((i + 1) * before // -size) - i * before // size for i in range(size))
    k = te.reduce_axis((0, most), name="k")

    def element(*i: Any) -> Any:
        begin = tirx.floordiv(i[axis] * before, size)
        end = tirx.floordiv((i[axis] + 1) * before + (size - 1), size)
        # A shorter window repeats its last element.
        return te.max(x[(*i[:axis], tirx.min(begin + k, end - 1), *i[axis + 1 :])], axis=k)

    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return te.compute(shape, element, name="adaptive_maximum")


def sigmoid(x: Any) -> Any:
    """Compute 1 / (1 + e^-x) of each element."""
    return te.compute(x.shape, lambda *i: te.sigmoid(x[i]), name="sigmoid")


def silu(x: Any) -> Any:
    """Compute x / (1 + e^-x) of each element."""
    return te.compute(x.shape, lambda *i: x[i] * te.sigmoid(x[i]), name="silu")


def elu(x: Any, alpha: float, scale: float, input_scale: float) -> Any:
    """Compute scale * x for x >= 0, else scale * alpha * (e^(input_scale * x) - 1)."""

    def element(*i: Any) -> Any:
        below = te.exp(tirx.min(x[i], _const(0)) * _const(input_scale)) - _const(1)
        return (tirx.max(x[i], _const(0)) + below * _const(alpha)) * _const(scale)

    return te.compute(x.shape, element, name="elu")


def tanh(x: Any) -> Any:
    """Compute the hyperbolic tangent of each element, with an absolute error below 1e-6."""
    return te.compute(x.shape, lambda *i: _tanh(x[i]), name="tanh")


def gelu(x: Any) -> Any:
    """Compute x times the normal distribution function, with an absolute error below 1e-6 x."""

    def element(*i: Any) -> Any:
        return x[i] * _const(0.5) * (_const(1) + _erf(x[i] * _const(math.sqrt(0.5))))

    return te.compute(x.shape, element, name="gelu")


def gelu_tanh(x: Any) -> Any:
    """Compute the approximation of :func:`gelu` by a hyperbolic tangent."""

    def element(*i: Any) -> Any:
        inner = x[i] + _const(0.044715) * x[i] * x[i] * x[i]
        return x[i] * te.sigmoid(_const(2 * math.sqrt(2 / math.pi)) * inner)

    return te.compute(x.shape, element, name="gelu_tanh")


def _tanh(x: Any) -> Any:
    return _const(2) * te.sigmoid(_const(2) * x) - _const(1)


def _erf(x: Any) -> Any:
    size = te.abs(x)
    t = _const(1) / (_const(1) + _const(ERF_P) * size)
    total = _const(ERF_TERMS[-1])
    for term in reversed(ERF_TERMS[:-1]):
        total = total * t + _const(term)
    value = _const(1) - total * t * te.exp(_const(0) - size * size)
    return tirx.Select(x < _const(0), _const(0) - value, value)
