# SPDX-License-Identifier: Apache-2.0
"""Products of a mixture's experts, as calls of the kernels of linear layers.

A function of op/experts_on_cpu.py has one block, named "experts", over the experts whose rows
follow each other, or over rows that have an expert each. Each of its steps becomes a call: with
as many rows as the expert has, or with one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ..kernel_library import Packing
from ..tir import block_of, blocks_named, require_dense_float32, whole

BLOCK = "experts"


@dataclass(frozen=True)
class Experts:
    """The products of the experts of a mixture-of-experts layer.

    Attributes:
        block: the block that does them, in one step.
        data: [rows, k], or [1, k] where all rows are one.
        weight: [experts, n, k], or that packed into words.
        scale: [experts, n, groups] of a packed weight, else None.
        index: [experts + 1], begins of the experts' rows; or [1, rows], the expert of each row.
        out: [rows, n].
    """

    block: Any
    data: Any
    weight: Any
    scale: Any
    index: Any
    out: Any

    def annotation(self, name: str) -> int:
        """Return an integer annotation of the block; 0 if it is missing."""
        return int(self.block.annotations.get(name, 0))

    @property
    def packing(self) -> Packing | None:
        """Return the packing of the weights; None if they are not packed."""
        if self.scale is None:
            return None
        return Packing(*map(self.annotation, ("bits", "group_size", "zero_point")))

    @property
    def by_row(self) -> bool:
        """Return True if each row names its expert, so that experts' rows are not contiguous."""
        return len(self.index.shape) == 2

    @property
    def k(self) -> int:
        """Return the number of inputs."""
        return int(self.data.shape[1])

    @property
    def n(self) -> int:
        """Return the number of outputs."""
        return int(self.out.shape[1])

    @property
    def steps(self) -> int:
        """Return the extent of the outer loop: experts, or rows if each row names its expert."""
        return int(self.index.shape[1]) if self.by_row else int(self.index.shape[0]) - 1


def find_experts(func: tirx.PrimFunc) -> Experts | None:
    """Find the experts' products of a function; None if it has no such products."""
    found = blocks_named(func, BLOCK)
    if len(found) != 1 or not 3 <= len(found[0].reads) <= 4:
        return None
    data, weight, *scale, index = (region.buffer for region in found[0].reads)
    return Experts(
        found[0], data, weight, scale[0] if scale else None, index, found[0].writes[0].buffer
    )


def check_experts(experts: Experts) -> None:
    """Check that kernels can compute the products.

    Raises:
        PatternMismatch: data, output, scales or unpacked weights are not dense float32.
    """
    floats = [b for b in (experts.data, experts.scale, experts.out) if b is not None]
    floats += [experts.weight] if experts.scale is None else []
    require_dense_float32(*floats)


def call_for_each(
    experts: Experts, call: Callable[[Any, Any, Any, Any], Any], func: tirx.PrimFunc
) -> tirx.PrimFunc:
    """Return the function with a call for each expert, or for each row if rows name their expert.

    Args:
        experts: the products in the function.
        call: gives the statement for an expert's number, its first row, the row of the data,
            and how many rows it has.
        func: the function.
    """
    step = tirx.Var("step", "int32")
    load = tirx.BufferLoad
    if experts.by_row:
        of_data = tirx.const(0, "int32") if experts.annotation("one_x") else step
        body = call(load(experts.index, [0, step]), step, of_data, tirx.const(1, "int32"))
    else:
        first = load(experts.index, [step])
        body = call(step, first, first, load(experts.index, [step + 1]) - first)
    nest = tirx.For(step, 0, experts.steps, tirx.ForKind.SERIAL, body)

    def replace(loop: Any) -> Any:
        inner = loop.body
        is_it = isinstance(inner, tirx.SBlockRealize) and inner.block.same_as(experts.block)
        return nest if is_it else None

    # From the outside in: what is replaced is no longer looked into.
    new = tirx.stmt_functor.ir_transform(func.body, replace, None, ["tirx.For"])
    return func.with_body(new)


def opaque(experts: Experts, body: Any, allocated: list[Any]) -> Any:
    """Wrap a call in a block that declares the call's buffers."""
    buffers = [experts.data, experts.weight, experts.scale, experts.index]
    reads = [whole(buffer) for buffer in buffers if buffer is not None]
    return block_of(body, BLOCK, reads, [whole(experts.out)], allocated)
