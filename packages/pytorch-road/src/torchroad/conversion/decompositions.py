# SPDX-License-Identifier: Apache-2.0
"""Decompositions to operators with converters, where torch has no decomposition of its own.

The functions have the operators' signatures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_map

from torchroad.conversion.converters import KEPT

aten = torch.ops.aten
# Torch's own decomposition stands before the table, from the first call on.
aten.multi_margin_loss.default.py_kernels.pop(torch._C.DispatchKey.Autograd, None)
# Integers of the sizes of floats.
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


@cache
def decompositions() -> Any:
    """Return the table of decompositions for ``ExportedProgram.run_decompositions``."""
    table = torch.export.default_decompositions()
    for operator in list(table):
        if operator.__name__ in KEPT:
            del table[operator]
    table.update(
        {
            aten._cdist_forward.default: _cdist,
            aten._pdist_forward.default: _pdist,
            aten.addbmm.default: _addbmm,
            aten.addmv.default: _addmv,
            aten.as_strided_scatter.default: _as_strided_scatter,
            aten.any.default: lambda x: x.flatten().any(0),
            aten.bincount.default: _bincount,
            aten.copysign.Tensor: _copysign,
            aten.diagonal.default: _diagonal,
            aten.diagonal_scatter.default: _diagonal_scatter,
            aten.dist.default: lambda x, y, p=2.0: _length((x - y).flatten(), p),
            aten.exp2.default: lambda x: torch.pow(2.0, x),
            aten.fmax.default: lambda x, y: torch.where(x.isnan() | (y > x), y, x),
            aten.fmin.default: lambda x, y: torch.where(x.isnan() | (y < x), y, x),
            aten.histc.default: _histc,
            aten.hypot.default: _hypot,
            aten.index_reduce.default: _index_reduce,
            aten.kthvalue.default: _with_an_axis(_kthvalue),
            aten.ldexp.Tensor: lambda x, y: x * torch.pow(2.0, y),
            aten.logcumsumexp.default: _with_an_axis(_logcumsumexp),
            aten.linalg_vector_norm.default: torch._refs.linalg.vector_norm,
            aten.masked_scatter.default: _masked_scatter,
            aten.median.default: lambda x: _median(x.flatten(), 0)[0],
            aten.median.dim: _with_an_axis(_median),
            aten.multi_margin_loss.default: _multi_margin_loss,
            aten.multilabel_margin_loss.default: _multilabel_margin_loss,
            aten.neg.default: lambda x: 0 - x if x.dtype == torch.uint8 else NotImplemented,
            aten.one_hot.default: _one_hot,
            aten.put.default: _put,
            aten.roll.default: _roll,
            aten.scatter.reduce: _scatter,
            aten.scatter.value_reduce: _scatter,
            aten.searchsorted.Tensor: _searchsorted,
            aten.signbit.default: _signbit,
            aten.unfold.default: _unfold,
        }
    )
    return table


def _with_an_axis(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function along an axis that is also one of a number."""

    def of(x: Any, *arguments: Any, **named: Any) -> Any:
        if x.dim():
            return function(x, *arguments, **named)
        results = function(x.reshape(1), *arguments, **named)
        return tree_map(lambda one: one.reshape(()), results)

    return of


def _addmv(x: Any, matrix: Any, vector: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    x, vector = x.unsqueeze(-1), vector.unsqueeze(-1)
    return torch.addmm(x, matrix, vector, beta=beta, alpha=alpha).squeeze(-1)


def _addbmm(x: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    total = torch.bmm(left, right).sum(0) * alpha
    return x * beta + total if beta else total.expand(torch.broadcast_shapes(x.shape, total.shape))


def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    places, values = [index.flatten()], source.flatten()
    return x.flatten().index_put(places, values, accumulate).reshape(x.shape)


def _scatter(x: Any, dim: int, index: Any, source: Any, *, reduce: str) -> Any:
    if not isinstance(source, torch.Tensor):
        source = torch.full_like(index, source, dtype=x.dtype)
    return x.scatter_reduce(dim, index, source, {"add": "sum", "multiply": "prod"}[reduce])


def _index_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    shape = [1] * source.dim()
    shape[dim] = -1
    places = index.reshape(shape).expand(source.shape)
    return x.scatter_reduce(dim, places, source, reduce, include_self=include_self)


def _length(x: Any, p: float) -> Any:
    """Return the p-norm of the last axis, whose powers of large and small values are in range."""
    x = x.abs()
    largest = x.amax(-1, keepdim=True)
    if p == 0:
        return (x != 0).to(x.dtype).sum(-1)
    if p == float("inf"):
        return largest.squeeze(-1)
    scale = torch.where(largest > 0, largest, torch.ones_like(largest))
    length = (x / scale).pow(p).sum(-1).pow(1 / p) * scale.squeeze(-1)
    return torch.where(largest.squeeze(-1) < float("inf"), length, largest.squeeze(-1))


def _cdist(x: Any, y: Any, p: float, _mode: Any = None) -> Any:
    # The differences themselves: the square of a product would lose the digits of near points.
    return _length(x.unsqueeze(-2) - y.unsqueeze(-3), p)


def _pdist(x: Any, p: float = 2.0) -> Any:
    first, second = torch.triu_indices(len(x), len(x), 1).unbind()
    return _length(x[first] - x[second], p)


def _hypot(x: Any, y: Any) -> Any:
    length = _length(torch.stack(torch.broadcast_tensors(x, y), -1), 2.0)
    # As in C, an infinite side decides, even beside a NaN.
    return torch.where(x.isinf() | y.isinf(), float("inf"), length)


def _one_hot(x: Any, num_classes: int = -1) -> Any:
    if num_classes < 0:
        return NotImplemented
    # The rows of a table: a class beyond it is an error when the model runs.
    rows = torch.eye(num_classes, dtype=torch.int64).index_select(0, x.flatten())
    return rows.reshape(*x.shape, num_classes)


def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    if not minlength:
        return NotImplemented
    # The result has this length: a larger number is an error when the model runs.
    rows = _one_hot(x, minlength)
    return rows.sum(0) if weights is None else (rows * weights.unsqueeze(1)).sum(0)


def _histc(x: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    low, high = (x.amin(), x.amax()) if min == max else (float(min), float(max))
    if min == max:
        # As torch does where all elements are equal.
        low, high = torch.where(low < high, low, low - 1), torch.where(low < high, high, high + 1)
    inside = (x >= low) & (x <= high)
    # The last bin has its upper end.
    bin_of = ((x - low) / (high - low) * bins).floor().clamp(0, bins - 1)
    hits = (bin_of.flatten().unsqueeze(1) == torch.arange(bins)) & inside.flatten().unsqueeze(1)
    return hits.sum(0).to(x.dtype)


def _signbit(x: Any) -> Any:
    # Zeros and NaNs have signs, too, which comparisons of floats ignore.
    if x.dtype == torch.bool:
        return torch.zeros_like(x)
    return x.view(INTEGERS[x.dtype]) < 0 if x.is_floating_point() else x < 0


def _copysign(x: Any, y: Any) -> Any:
    return torch.where(_signbit(y), -x.abs(), x.abs())


def _kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    ordered = torch.sort(x, dim=dim, stable=True)
    values, places = (each.select(dim, k - 1) for each in ordered)
    return (values.unsqueeze(dim), places.unsqueeze(dim)) if keepdim else (values, places)


def _median(x: Any, dim: int, keepdim: bool = False) -> Any:
    ordered, size = torch.sort(x, dim=dim, stable=True), x.shape[dim]
    # A NaN is the median of its row, and the last in its order.
    nans = x.isnan().sum(dim, keepdim=True)
    place = torch.where(nans > 0, size - nans, (size - 1) // 2)
    values, places = (each.gather(dim, place) for each in ordered)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _logcumsumexp(x: Any, dim: int) -> Any:
    # Each sum has a maximum of its own: with a common one, sums before it would vanish.
    last = x.movedim(dim, -1)
    size = last.shape[-1]
    later = torch.arange(size) > torch.arange(size).unsqueeze(1)
    sums = last.unsqueeze(-2).masked_fill(later, -float("inf")).logsumexp(-1)
    return sums.movedim(-1, dim)


def _searchsorted(
    ordered: Any,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Any:
    if sorter is not None:
        ordered = ordered.gather(-1, sorter)
    rows = ordered.unsqueeze(-2) if ordered.dim() > 1 else ordered
    after = right or side == "right"
    below = rows <= x.unsqueeze(-1) if after else rows < x.unsqueeze(-1)
    return below.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    last = x.movedim((dim1, dim2), (-2, -1))
    return last[..., *_places_of_diagonal(last, offset)]


def _diagonal_scatter(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    # The axes of the diagonal come first: an index_put of the first axes has its values' shape.
    first = x.movedim((dim1, dim2), (0, 1))
    places = _places_of_diagonal(x.movedim((dim1, dim2), (-2, -1)), offset)
    return first.index_put(places, source.movedim(-1, 0)).movedim((0, 1), (dim1, dim2))


def _places_of_diagonal(x: Any, offset: int) -> list[Any]:
    """Return the indices of a diagonal's elements on the last two axes."""
    above, below = max(offset, 0), max(-offset, 0)
    count = max(min(x.shape[-2] - below, x.shape[-1] - above), 0)
    places = torch.arange(count)
    return [places + below, places + above]


def _as_strided_scatter(
    x: Any, source: Any, size: Any, stride: Any, storage_offset: int | None = None
) -> Any:
    if not x.is_contiguous():
        return NotImplemented
    flat = torch.arange(x.numel())
    places = torch.as_strided(flat, size, stride, storage_offset or 0)
    return x.flatten().index_put([places], source).reshape(x.shape)


def _masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    x, mask = torch.broadcast_tensors(x, mask)
    # Elements in front of the first true one have the index -1, which is in range.
    places = mask.flatten().cumsum(0) - 1
    values = source.flatten()[torch.where(mask.flatten(), places, -1)]
    return torch.where(mask, values.reshape(x.shape), x)


def _multi_margin_loss(
    x: Any, target: Any, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = 1
) -> Any:
    own = torch._decomp.decompositions.multi_margin_loss
    losses = own(x, target, p, margin, weight, reduction)
    # In torch 2.13's own, the loss of a single row has an axis.
    return losses if reduction else losses.reshape(x.shape[:-1])


def _multilabel_margin_loss(x: Any, target: Any, reduction: int = 1) -> Any:
    # In torch 2.13's own, targets from the first -1 on count as class 0.
    rows, target = torch.atleast_2d(x), torch.atleast_2d(target)
    is_listed = (target == -1).cumsum(1) == 0
    classes = torch.where(is_listed, target, 0)
    of_class = (classes.unsqueeze(2) == torch.arange(rows.shape[1])) & is_listed.unsqueeze(2)
    # [rows, targets, classes]
    margins = 1 - rows.gather(1, classes).unsqueeze(2) + rows.unsqueeze(1)
    counted = is_listed.unsqueeze(2) & ~of_class.any(1, keepdim=True) & (margins > 0)
    losses = (torch.where(counted, margins, 0).sum(-1) / rows.shape[1]).sum(-1)
    losses = losses.reshape(x.shape[:-1])
    return (losses, losses.mean(), losses.sum())[reduction]


def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    if not dims:
        return _roll(x.flatten(), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        x = x.index_select(dim, (torch.arange(size) - shift) % size)
    return x


def _unfold(x: Any, dimension: int, size: int, step: int) -> Any:
    if x.dim() == 0:
        return x.reshape(1)[:size]
    count = (x.shape[dimension] - size) // step + 1
    places = torch.arange(count).unsqueeze(1) * step + torch.arange(size)
    windows = x.index_select(dimension, places.flatten())
    return windows.unflatten(dimension, (count, size)).movedim(dimension % x.dim() + 1, -1)
