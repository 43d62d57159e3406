# SPDX-License-Identifier: Apache-2.0
"""Pattern of a linear layer in TIR functions of any name.

A linear layer is one block ``C[..., j] += A[..., k] * B[j, k]`` from zero, over float32. B may be
a parameter, or be dequantized in the same function from MLC-LLM's group-quantized form (see
``quantization/group_quantization.py``), whose packing is read from the function.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm_ffi import structural_equal

from ..half.dtypes import HALF
from ..kernel_library import Packing
from ..stages import Stage, factors_of, same_extents
from ..tir import PatternMismatch, is_one, nodes_of, require_dense_float32


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer: out[m, n] = data[m, k] * transpose(weight[n, k]).

    Attributes:
        stage: the product.
        out: C, whose leading dimensions make m.
        data: A.
        weight: B, or the packed values of a quantized B (uint32).
        n: outputs.
        k: inputs.
        packing: layout of a quantized B, else None.
        scale: the scales of a quantized B, else None.
        unpacking: the stages that dequantize or widen B, and widen A.
        tiled: B is in tiles (tiles.py).
    """

    stage: Stage
    out: Any
    data: Any
    weight: Any
    n: Any
    k: int
    packing: Packing | None = None
    scale: Any = None
    unpacking: tuple[Stage, ...] = ()
    tiled: bool = False

    @property
    def halves(self) -> bool:
        """Return True if both factors are stored as halves."""
        return str(self.weight.dtype) == str(self.data.dtype) == HALF

    @property
    def single(self) -> bool:
        """Return True if the product has one row."""
        return all(is_one(extent) for extent in self.out.shape[:-1])

    @property
    def rows(self) -> Any:
        """Return the number of rows m, as an expression."""
        product: Any = tirx.IntImm("int64", 1)
        for extent in self.out.shape[:-1]:
            product = product * extent
        return product


def match_linear(stage: Stage, stages: list[Stage]) -> LinearLayer:
    """Read a product as a linear layer.

    Raises:
        PatternMismatch: the stage is not a linear layer, or the kernels cannot compute the layer.
    """
    block = stage.block
    out, data, weight = block.body.buffer, *(load.buffer for load in factors_of(stage))
    axes = [axis.var for axis in block.iter_vars]
    if block.iter_vars[-1].iter_type != tirx.IterVar.CommReduce or len(axes) < 3:
        raise PatternMismatch("it is not a sum over the last of three or more axes")
    *rows, column, step = axes
    # This comes before the expression below: TVM refuses to make one with too few indices.
    if len(weight.shape) != 2 or {len(out.shape), len(data.shape)} != {len(rows) + 1}:
        raise PatternMismatch("it is not C[..., j] += A[..., k] * B[j, k]")
    expected = tirx.BufferStore(
        out,
        tirx.BufferLoad(out, [*rows, column])
        + tirx.BufferLoad(data, [*rows, step]) * tirx.BufferLoad(weight, [column, step]),
        [*rows, column],
    )
    if not structural_equal(block.body, expected):
        raise PatternMismatch("it is not C[..., j] += A[..., k] * B[j, k]")
    require_dense_float32(out, data, weight)
    extents = [axis.dom.extent for axis in block.iter_vars]
    n, k = weight.shape
    if not same_extents(extents, [*out.shape, k]) or not same_extents(
        data.shape, [*out.shape[:-1], k]
    ):
        raise PatternMismatch("its loops do not cover the buffers")
    if not same_extents([out.shape[-1]], [n]) or not isinstance(k, tirx.IntImm):
        raise PatternMismatch("the number of inputs is not constant")
    if any(other.written.same_as(weight) and not _only_widens(other) for other in stages):
        return _match_quantized(LinearLayer(stage, out, data, weight, n, int(k)), stages)
    return LinearLayer(stage, out, data, weight, n, int(k))


def _only_widens(stage: Stage) -> bool:
    """Return True if a stage only converts halves to float32."""
    value = getattr(stage.block.body, "value", None)
    source = getattr(value, "value", None)
    return (
        isinstance(value, tirx.Cast)
        and isinstance(source, tirx.BufferLoad)
        and str(source.buffer.dtype) == HALF
    )


def _match_quantized(linear: LinearLayer, stages: list[Stage]) -> LinearLayer:
    """Replace the weight, which the function must dequantize, by its packed form.

    Raises:
        PatternMismatch: the weight is a parameter, is computed in another way, or is also read by
            other blocks.
    """
    scaled = _writer(linear.weight, stages)
    values = _loaded(scaled, 2)[0]
    unpacked = _writer(values, stages)
    indices = [axis.var for axis in scaled.block.iter_vars]
    packing, packed, scale, value = match_unpacked(scaled, unpacked, indices)
    _expect(scaled, value)
    if not same_extents(packed.shape, [linear.n, packing.words(linear.k)]):
        raise PatternMismatch(f"{packed.name} has the shape {packed.shape}")
    if not same_extents(scale.shape, [linear.n, packing.groups(linear.k)]):
        raise PatternMismatch(f"{scale.name} has the shape {scale.shape}")
    for buffer in (values, linear.weight):
        if sum(stage.reads(buffer) for stage in stages) != 1:
            raise PatternMismatch(f"{buffer.name} is read by more than one block")
    return replace(
        linear, weight=packed, packing=packing, scale=scale, unpacking=(unpacked, scaled)
    )


def match_unpacked(
    scaled: Stage, unpacked: Stage, indices: list[Any]
) -> tuple[Packing, Any, Any, Any]:
    """Read the two stages of a dequantization.

    Args:
        scaled: takes off the zero point and multiplies by the scale.
        unpacked: takes values out of words.
        indices: row and column of the weight that `scaled` computes.

    Returns:
        The packing, the packed values, the scales, and what `scaled` must compute.

    Raises:
        PatternMismatch: the weights are not in MLC-LLM's group quantization.
    """
    values = unpacked.written
    read = [region.buffer for region in scaled.block.reads]
    floats = [b for b in read if not b.same_as(values) and len(b.shape) == 2]
    if len(floats) != 1:
        raise _not_quantized(scaled)
    (scale,), (packed,) = floats, _loaded(unpacked, 1)
    packing = Packing(
        bits=max(1, 32 // _constant(unpacked, tirx.FloorDiv)),
        group=_constant(scaled, tirx.FloorDiv),
        zero_point=_constant(scaled, tirx.Sub),
    )
    row, column = (axis.var for axis in unpacked.block.iter_vars)
    word = tirx.BufferLoad(packed, [row, column // packing.per_word])
    shift = tirx.Cast("uint32", column % packing.per_word * packing.bits)
    mask = tirx.IntImm("uint32", (1 << packing.bits) - 1)
    _expect(unpacked, tirx.Cast("float32", tirx.bitwise_and(tirx.shift_right(word, shift), mask)))
    row, column = indices
    value = tirx.BufferLoad(values, [row, column]) - tirx.FloatImm("float32", packing.zero_point)
    return packing, packed, scale, value * tirx.BufferLoad(scale, [row, column // packing.group])


def in_halves(linear: LinearLayer, stages: list[Stage]) -> LinearLayer | None:
    """Return the layer on the stored halves of its factors; None if a factor is no widened half."""
    data, weight = stored(linear.data, stages), stored(linear.weight, stages)
    found = replace(linear, data=data, weight=weight)
    if not found.halves:
        return None
    wide = [
        stage
        for stage in stages
        if any(stage.written.same_as(buffer) for buffer in (linear.data, linear.weight))
        and sum(reader.reads(stage.written) for reader in stages) == 1
    ]
    return replace(found, unpacking=tuple(wide))


def stored(buffer: Any, stages: list[Stage]) -> Any:
    """Return the float16 buffer that a stage widens into a buffer; else the buffer itself."""
    for stage in stages:
        if stage.written.same_as(buffer) and _only_widens(stage):
            return stage.block.body.value.value.buffer
    return buffer


def _writer(buffer: Any, stages: list[Stage]) -> Stage:
    writers = [stage for stage in stages if stage.written.same_as(buffer)]
    if len(writers) != 1 or len(writers[0].block.iter_vars) != 2 or writers[0].block.init:
        raise PatternMismatch(f"{buffer.name} is not computed by one block of two axes")
    return writers[0]


def _loaded(stage: Stage, count: int) -> list[Any]:
    """Return the buffers that a block reads; raise PatternMismatch if there are not ``count``."""
    buffers = [region.buffer for region in stage.block.reads]
    if len(buffers) != count:
        raise PatternMismatch(
            f"block {stage.name} is not of group quantization: it reads {len(buffers)}"
        )
    return buffers


def _constant(stage: Stage, operation: Any) -> Any:
    """Return the constant right operand of a stage's only ``operation``, else PatternMismatch."""
    found = [node.b for node in nodes_of(stage.block.body, operation)]
    if len(found) != 1 or not isinstance(found[0], tirx.IntImm | tirx.FloatImm):
        raise _not_quantized(stage)
    return found[0].value


def _expect(stage: Stage, value: Any) -> None:
    indices = [axis.var for axis in stage.block.iter_vars]
    store = tirx.BufferStore(stage.written, value, indices)
    extents = [axis.dom.extent for axis in stage.block.iter_vars]
    if not structural_equal(stage.block.body, store) or not same_extents(
        extents, stage.written.shape
    ):
        raise _not_quantized(stage)


def _not_quantized(stage: Stage) -> PatternMismatch:
    return PatternMismatch(f"block {stage.name} is not of group quantization")
