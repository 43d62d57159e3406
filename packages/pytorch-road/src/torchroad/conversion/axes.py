# SPDX-License-Identifier: Apache-2.0
"""Operators along an axis of a number, which has no axis: for torch, it has one element."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tvm import relax


@contextmanager
def axes_of_numbers(node: Any, importer: Any) -> Iterator[Callable[[Any], Any]]:
    """Give the numbers that an operator along an axis reads an axis during a ``with`` block.

    Yields:
        a function that gives the operator's results torch's shapes.
    """
    before, emit = importer.env, importer.block_builder.emit

    def reshaped(result: Any, value: Any) -> Any:
        return emit(relax.op.reshape(result, [*value.shape]))

    def in_own_shape(results: Any) -> Any:
        values = node.meta["val"]
        if isinstance(values, torch.Tensor):
            return reshaped(results, values)
        return tuple(map(reshaped, results, values))

    if not _is_along_an_axis_of_a_number(node):
        yield lambda results: results
        return
    numbers = [one for one in node.all_input_nodes if _is_number(one)]
    wide = {one: emit(relax.op.reshape(before[one], [1])) for one in numbers}
    importer.env = ChainMap(wide, before)
    try:
        yield in_own_shape
    finally:
        importer.env = before


def _is_along_an_axis_of_a_number(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    named = schema is not None and any(one.name == "dim" for one in schema.arguments)
    return named and _is_number(node.args[0])


def _is_number(node: Any) -> bool:
    value = getattr(node, "meta", {}).get("val")
    return isinstance(value, torch.Tensor) and value.dim() == 0
