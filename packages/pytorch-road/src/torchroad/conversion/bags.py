# SPDX-License-Identifier: Apache-2.0
"""Bags of embeddings: the sum, the mean or the largest of some rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

from tvm import te, tirx

from torchroad.conversion.formulas import LEAST_FINITE

# Torch's names of the operator: with gradients to come, and without.
BAGS = ("_embedding_bag.default", "_embedding_bag_forward_only.default")


class Mode(IntEnum):
    """What is made of a bag's rows, by torch's number."""

    SUM = 0
    MEAN = 1
    MAX = 2


@dataclass(frozen=True)
class Bags:
    """How rows are put in bags.

    Attributes:
        mode: what is made of a bag's rows.
        ends: the last offset is the end of the last bag, and not the begin of another.
        padding: a row that is left out; -1: none.
        width: rows of every bag; 0 if the offsets are not known before a run.
    """

    mode: Mode
    ends: bool
    padding: int
    width: int


def embedding_bag(node: Any, importer: Any) -> tuple[Any, None, None, None]:
    """Convert one of ``BAGS``, whose outputs but the first serve gradients.

    Raises:
        TypeError: one of the others is used.
    """
    if any(user.args[1] for user in node.users):
        raise TypeError("an output other than the first is used")
    given = list(importer.retrieve_args(node))
    defaults = [None, None, None, False, Mode.SUM, False, None, False, -1]
    table, places, offsets, _, mode, _, factors, ends, padding = given + defaults[len(given) :]
    bags = Bags(Mode(mode), bool(ends), padding, width_of_bags(node))
    tensors = (table, places, offsets, *((factors,) if factors is not None else ()))
    made = importer.block_builder.emit_te(
        partial(bagged, bags=bags), *tensors, primfunc_name_hint="bags"
    )
    return made, None, None, None


def width_of_bags(node: Any) -> int:
    """Step of offsets that are a range from 0, of rows that come as a matrix; 0 of others."""
    offsets = node.args[2]
    name = getattr(offsets.target, "__name__", "")
    given = list(offsets.args)
    known = name == "arange.start_step" and len(given) > 2 and given[0] == 0
    return given[2] if known and isinstance(given[2], int) else 0


def bagged(table: Any, places: Any, offsets: Any, factors: Any = None, *, bags: Bags) -> Any:
    """The bags [bags, width of the table].

    Args:
        table: [rows, width].
        places: the bags' rows, one bag after the other.
        offsets: first place of each bag.
        factors: of each place; for sums.
        bags: what is put in which.
    """
    count, length = offsets.shape[0] - int(bags.ends), places.shape[0]
    extent = bags.width or length

    def begin(bag: Any) -> Any:
        is_one = bag < offsets.shape[0]
        return tirx.if_then_else(is_one, offsets[bag], tirx.Cast(offsets.dtype, length))

    def member(bag: Any, i: Any) -> tuple[Any, Any]:
        """A place, and whether it belongs to the bag."""
        at = bag * bags.width + i if bags.width else i
        inside = [] if bags.width else [at >= offsets[bag], at < begin(bag + 1)]
        return at, tirx.all(*inside, places[at] != bags.padding)

    def value(bag: Any, column: Any, i: Any) -> Any:
        at, inside = member(bag, i)
        row = table[places[at], column]
        row = row if factors is None else row * factors[at]
        other = LEAST_FINITE if bags.mode is Mode.MAX else 0
        return tirx.if_then_else(inside, row, tirx.const(other, table.dtype))

    i, j = (te.reduce_axis((0, extent), name=name) for name in "ij")
    reduced = te.max if bags.mode is Mode.MAX else te.sum
    made = te.compute((count, table.shape[1]), lambda b, d: reduced(value(b, d, i), axis=i))
    if bags.mode is Mode.SUM:
        return made
    members = te.compute((count,), lambda b: te.sum(tirx.Cast("float32", member(b, j)[1]), axis=j))
    if bags.mode is Mode.MEAN:
        one = tirx.const(1, "float32")
        return te.compute(made.shape, lambda b, d: made[b, d] / tirx.max(members[b], one))
    zero = tirx.const(0, table.dtype)
    return te.compute(made.shape, lambda b, d: tirx.Select(members[b] > 0, made[b, d], zero))
