# SPDX-License-Identifier: Apache-2.0
"""Bags of embeddings: the sum, the mean or the maximum of some rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

from torch.fx.experimental.symbolic_shapes import statically_known_true
from tvm import te, tirx

from torchroad.conversion.extremes import LARGEST, least_of

# Torch's names of the operator, with and without gradients.
BAGS = ("_embedding_bag.default", "_embedding_bag_forward_only.default")


class Mode(IntEnum):
    """The reduction of a bag's rows, by torch's number."""

    SUM = 0
    MEAN = 1
    MAX = 2


@dataclass(frozen=True)
class Bags:
    """The assignment of rows to bags, and their reduction.

    Attributes:
        mode: reduction of a bag's rows.
        ends: the last offset is the end of the last bag, not the begin of a further bag.
        padding: a row that bags skip; -1: no row.
        width: rows of every bag; 0 if they differ, or are unknown before a run.
    """

    mode: Mode
    ends: bool
    padding: int
    width: int


def embedding_bag(node: Any, importer: Any) -> tuple[Any, None, None, None]:
    """Convert an operator of ``BAGS``; only its first output may be used.

    Raises:
        TypeError: the program uses a further output, which serves gradients.
    """
    if any(user.args[1] for user in node.users):
        raise TypeError("an output other than the first is used")
    args = list(importer.retrieve_args(node))
    defaults = [None, None, None, False, Mode.SUM, False, None, False, -1]
    table, places, offsets, _, mode, _, factors, ends, padding = args + defaults[len(args) :]
    bags = Bags(Mode(mode), bool(ends), padding, width_of_bags(node))
    tensors = (table, places, offsets, *((factors,) if factors is not None else ()))
    bag_values = importer.block_builder.emit_te(
        partial(bagged, bags=bags), *tensors, primfunc_name_hint="bags"
    )
    return bag_values, None, None, None


def width_of_bags(node: Any) -> int:
    """Return the step of a range of offsets that cuts all indices into equal bags; else 0."""
    places, offsets = node.args[1:3]
    if getattr(offsets.target, "__name__", "") != "arange.start_step" or len(offsets.args) < 3:
        return 0
    start, end, step = offsets.args[:3]
    length, end = places.meta["val"].shape[0], getattr(end, "meta", {}).get("val", end)
    if start != 0 or not isinstance(step, int):
        return 0
    fits = statically_known_true(end == length) and statically_known_true(length % step == 0)
    return step if fits else 0


def bagged(table: Any, places: Any, offsets: Any, factors: Any = None, *, bags: Bags) -> Any:
    """Compute the bags [bags, width of the table].

    Args:
        table: [rows, width].
        places: row indices of the bags, bag after bag.
        offsets: position in ``places`` of each bag's first row.
        factors: factor of each row, for sums.
        bags: assignment and reduction.
    """
    count, length = offsets.shape[0] - int(bags.ends), places.shape[0]
    extent = bags.width or length

    def begin(bag: Any) -> Any:
        is_one = bag < offsets.shape[0]
        return tirx.if_then_else(is_one, offsets[bag], tirx.Cast(offsets.dtype, length))

    def member(bag: Any, i: Any) -> tuple[Any, Any]:
        """Return the i-th position for a bag, and a condition that it belongs to the bag."""
        at = bag * bags.width + i if bags.width else i
        inside = [] if bags.width else [at >= offsets[bag], at < begin(bag + 1)]
        return at, tirx.all(*inside, places[at] != bags.padding)

    def value(bag: Any, column: Any, i: Any) -> Any:
        at, inside = member(bag, i)
        row = table[places[at], column]
        row = row if factors is None else row * factors[at]
        zero = tirx.const(0, table.dtype)
        other = least_of(table.dtype) if bags.mode is Mode.MAX else zero
        return tirx.if_then_else(inside, row, other)

    i, j = (te.reduce_axis((0, extent), name=name) for name in "ij")
    reduced = LARGEST if bags.mode is Mode.MAX else te.sum
    total = te.compute((count, table.shape[1]), lambda b, d: reduced(value(b, d, i), axis=i))
    if bags.mode is Mode.SUM:
        return total
    members = te.compute((count,), lambda b: te.sum(tirx.Cast("float32", member(b, j)[1]), axis=j))
    if bags.mode is Mode.MEAN:
        one = tirx.const(1, "float32")
        return te.compute(total.shape, lambda b, d: total[b, d] / tirx.max(members[b], one))
    zero = tirx.const(0, table.dtype)
    return te.compute(total.shape, lambda b, d: tirx.Select(members[b] > 0, total[b, d], zero))
