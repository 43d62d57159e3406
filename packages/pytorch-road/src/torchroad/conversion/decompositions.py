# SPDX-License-Identifier: Apache-2.0
"""Decompositions to operators with converters, where torch has no decomposition of its own.

The functions have the operators' signatures.
"""

from __future__ import annotations

from typing import Any

import torch

from torchroad.conversion.converters import KEPT

aten = torch.ops.aten


def decompositions() -> Any:
    """Return the table of decompositions for ``ExportedProgram.run_decompositions``."""
    table = torch.export.default_decompositions()
    for operator in list(table):
        if operator.__name__ in KEPT:
            del table[operator]
    table.update(
        {
            aten.any.default: lambda x: x.flatten().any(0),
            aten.diagonal.default: _diagonal,
            aten.masked_scatter.default: _masked_scatter,
            aten.roll.default: _roll,
            aten.unfold.default: _unfold,
        }
    )
    return table


def _diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    last = x.movedim((dim1, dim2), (-2, -1))
    above, below = max(offset, 0), max(-offset, 0)
    count = max(min(last.shape[-2] - below, last.shape[-1] - above), 0)
    places = torch.arange(count)
    return last[..., places + below, places + above]


def _masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    x, mask = torch.broadcast_tensors(x, mask)
    # Elements in front of the first true one have the index -1, which is in range.
    places = mask.flatten().cumsum(0) - 1
    values = source.flatten()[torch.where(mask.flatten(), places, -1)]
    return torch.where(mask, values.reshape(x.shape), x)


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
