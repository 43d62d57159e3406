# SPDX-License-Identifier: Apache-2.0
"""Operators that read or make no element: their results do not depend on any value.

TVM 0.26 leaves the memory of a sum over no elements as it was, and divides by sizes of 0.
"""

from __future__ import annotations

from typing import Any

import torch
from tvm import relax


def without_elements(node: Any) -> Any:
    """Return an operator's results if they or all tensors that it reads have no elements, or None.

    Sizes that vary are taken to be at least 1.
    """
    results = _tensors(node.meta.get("val"))
    if not results or not all(map(_is_fixed, results)):
        return None
    if not all(map(_is_empty, results)):
        read = [_tensors(one.meta.get("val")) for one in node.all_input_nodes]
        if not read or not all(read) or not all(_is_empty(one) for each in read for one in each):
            return None
        positional, named = torch.fx.node.map_arg((node.args, node.kwargs), _made)
        results = _tensors(node.target(*positional, **named))
    made = [_constant(one) for one in results]
    return made[0] if isinstance(node.meta["val"], torch.Tensor) else relax.Tuple(made)


def _constant(tensor: Any) -> Any:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if _is_empty(tensor):  # TVM cannot save a constant without elements
        return relax.op.full(tensor.shape, relax.const(0, dtype), dtype)
    return relax.const(tensor.numpy(), dtype)


def _tensors(value: Any) -> list[Any]:
    """Return the tensors of a node's value; none if it is not of tensors alone."""
    values = list(value) if isinstance(value, tuple | list) else [value]
    return values if all(isinstance(one, torch.Tensor) for one in values) else []


def _is_fixed(tensor: Any) -> bool:
    return all(type(size) is int for size in tensor.shape)


def _is_empty(tensor: Any) -> bool:
    return any(type(size) is int and size == 0 for size in tensor.shape)


def _made(node: Any) -> Any:
    """Return tensors without elements in the place of a node's."""
    value = node.meta["val"]
    made = [torch.empty([int(n) for n in one.shape], dtype=one.dtype) for one in _tensors(value)]
    return made[0] if isinstance(value, torch.Tensor) else made
