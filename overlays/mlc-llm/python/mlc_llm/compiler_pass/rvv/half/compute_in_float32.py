# SPDX-License-Identifier: Apache-2.0
"""ComputeInFloat32: parameters stay float16, everything between them becomes float32.

A function with the attribute :data:`HALVES` stays as it is where the CPU has vectors of halves.

Results are rounded when they are stored, and not at every step, as C allows for types that the
machine does not compute in (FLT_EVAL_METHOD).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from ..functions import Rewrite, function_pass
from ..linear.experts import Experts, find_experts
from ..stages import Stage, is_product, stages_of
from ..targets import has_halves_in_vectors, vectors_of
from ..tir import nodes_of, with_root
from .dtypes import HALF, SINGLE, as_type, dtype_of, is_half, lacks_conversions, where_halves

# Calls that depend on the bits or the memory of a value: its type must stay.
OPAQUE = {"tirx.reinterpret", "tirx.tvm_access_ptr", "tirx.address_of", "tirx.call_extern"}
# A function whose sums are float32, and whose factors may be halves.
HALVES = "mlc_rvv.halves"
BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)


@function_pass
def ComputeInFloat32(target: Target) -> Rewrite | None:
    """Pass that computes float16 functions in float32 where kernels or conversions need it."""
    if vectors_of(target) is None and not lacks_conversions(target):
        return None
    kept = has_halves_in_vectors(target)

    def widen(_: str, func: tirx.PrimFunc) -> tirx.PrimFunc:
        return func if kept and HALVES in (func.attrs or ()) else compute_in_float32(func)

    return where_halves(widen)


def compute_in_float32(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function with the same parameters that computes in float32.

    The operands of a product are widened before it, and sums are narrowed once, after it: the
    product itself is then one of float32 throughout. A function that looks at the bits of a half
    comes back as it is.
    """
    if _is_opaque(func):
        return func
    stages = stages_of(func) or []
    experts = find_experts(func)
    if experts:
        read, written = _of_experts(func, experts)
    else:
        read, written = _of_products(func, stages), _accumulated(func, stages)
    wide = {buffer: widened_buffer(buffer) for buffer in [*_allocated(func), *read, *written]}
    body = in_float32(func.body, wide)
    if not read and not written:
        return func.with_body(body)
    root = body.block
    inner = root.body.seq if isinstance(root.body, tirx.SeqStmt) else [root.body]
    statements = [*(_copy(b, wide[b]) for b in read), *inner, *(_copy(wide[b], b) for b in written)]
    allocated = [*root.alloc_buffers, *(wide[b] for b in [*read, *written])]
    return with_root(func, statements, allocated)


def _is_opaque(func: tirx.PrimFunc) -> bool:
    """Return True if a function has halves in an opaque call, a Let or a matched buffer."""
    calls = [c for c in nodes_of(func.body, tvm.ir.Call) if getattr(c.op, "name", "") in OPAQUE]
    lets = nodes_of(func.body, tirx.Let)
    matches = [m for block in nodes_of(func.body, tirx.SBlock) for m in block.match_buffers]
    return (
        any(dtype_of(part) == HALF for call in calls for part in [call, *call.args])
        or any(dtype_of(let.var) == HALF for let in lets)
        or any(is_half(match.buffer) for match in matches)
    )


def _allocated(func: tirx.PrimFunc) -> list[Any]:
    """Return the float16 buffers that a function allocates."""
    blocks = nodes_of(func.body, tirx.SBlock)
    buffers = [buffer for block in blocks for buffer in block.alloc_buffers]
    buffers += [node.buffer for node in nodes_of(func.body, tirx.AllocBuffer)]
    return [buffer for buffer in buffers if is_half(buffer)]


def _parameters(func: tirx.PrimFunc) -> list[Any]:
    """Return the float16 buffers among the parameters."""
    return [p for p in func.params if hasattr(p, "dtype") and hasattr(p, "shape") and is_half(p)]


def _of_products(func: tirx.PrimFunc, stages: list[Stage]) -> list[Any]:
    """Return the float16 parameters that products read, directly or through other stages."""
    wanted = [r.buffer for s in stages if is_product(s) for r in s.block.reads]
    for buffer in wanted:  # grows on the way
        writers = [s for s in stages if s.written.same_as(buffer) and s.block.init is None]
        wanted += [r.buffer for s in writers for r in s.block.reads]
    return [p for p in _parameters(func) if any(p.same_as(b) for b in wanted)]


def _accumulated(func: tirx.PrimFunc, stages: list[Stage]) -> list[Any]:
    sums = [s.written for s in stages if s.block.init is not None]
    return [p for p in _parameters(func) if any(p.same_as(b) for b in sums)]


def _of_experts(func: tirx.PrimFunc, experts: Experts) -> tuple[list[Any], list[Any]]:
    halves = _parameters(func)
    inputs = (experts.data, experts.weight, experts.scale)
    return (
        [p for p in halves if any(p.same_as(b) for b in inputs if b is not None)],
        [p for p in halves if p.same_as(experts.out)],
    )


def widened_buffer(buffer: Any) -> Any:
    """Return a float32 buffer with the shape of a float16 buffer."""
    # Its layout, too: one of decl_buffer's own would make a function another workload than what a
    # tuner reads of its script.
    return tirx.decl_buffer(
        buffer.shape, SINGLE, str(buffer.name), scope=buffer.scope(), layout=buffer.layout
    )


def _copy(source: Any, target: Any) -> Any:
    """Return a stage that copies and converts a whole buffer."""
    loops, axes, shape = [], [], list(source.shape)
    for number, extent in enumerate(shape):
        dtype = dtype_of(extent)
        loops.append(tirx.Var(f"i{number}", dtype))
        span = tvm.ir.Range(tirx.const(0, dtype), extent)
        axes.append(tirx.IterVar(span, tirx.Var(f"v{number}", dtype), tirx.IterVar.DataPar))
    at = [axis.var for axis in axes]
    value = tirx.Cast(str(target.dtype), tirx.BufferLoad(source, at))
    here = [tvm.ir.Range.from_min_extent(v, tirx.const(1, dtype_of(v))) for v in at]
    regions = [tirx.BufferRegion(buffer, here) for buffer in (source, target)]
    store = tirx.BufferStore(target, value, at)
    block = tirx.SBlock(axes, regions[:1], regions[1:], f"{target.name}_{target.dtype}", store)
    nest: Any = tirx.SBlockRealize(loops, tirx.const(True), block)
    for loop, extent in zip(reversed(loops), reversed(shape), strict=True):
        nest = tirx.For(loop, tirx.const(0, dtype_of(extent)), extent, tirx.ForKind.SERIAL, nest)
    return nest


def in_float32(body: Any, wide: dict[Any, Any]) -> Any:
    """Return a body that computes in float32.

    Buffers are replaced as ``wide`` maps them; loads and stores of other halves are converted.
    """

    def regions(found: Any) -> list[Any]:
        return [tirx.BufferRegion(wide.get(r.buffer, r.buffer), r.region) for r in found]

    def replace(node: Any) -> Any:
        if isinstance(node, tirx.BufferLoad):
            if node.buffer in wide:
                return tirx.BufferLoad(wide[node.buffer], node.indices)
            return tirx.Cast(as_type(SINGLE, node), node) if is_half(node.buffer) else None
        if isinstance(node, tirx.BufferStore):
            if node.buffer in wide:
                return tirx.BufferStore(wide[node.buffer], node.value, node.indices)
            if not is_half(node.buffer):
                return None
            return tirx.BufferStore(node.buffer, _narrowed(node.value), node.indices)
        if isinstance(node, tirx.FloatImm):
            return tirx.FloatImm(SINGLE, node.value) if dtype_of(node) == HALF else None
        if isinstance(node, tirx.Cast):
            return _cast(node)
        if isinstance(node, tvm.ir.Call):
            if dtype_of(node) != HALF:
                return None
            return tirx.call_intrin(as_type(SINGLE, node), node.op, *node.args)
        # TVM 0.26 has made these anew of their widened parts, TVM 0.27 leaves their type.
        if isinstance(node, BINARY) and dtype_of(node) == HALF:
            return type(node)(node.a, node.b)
        if isinstance(node, tirx.Select) and dtype_of(node) == HALF:
            return tirx.Select(node.condition, node.true_value, node.false_value)
        if isinstance(node, tirx.Let) and dtype_of(node) == HALF:
            return tirx.Let(node.var, node.value, node.body)
        if isinstance(node, tirx.AllocBuffer):
            return tirx.AllocBuffer(wide[node.buffer]) if node.buffer in wide else None
        if not isinstance(node, tirx.SBlock):
            return None
        return tirx.SBlock(
            node.iter_vars,
            regions(node.reads),
            regions(node.writes),
            node.name_hint,
            node.body,
            node.init,
            [wide.get(buffer, buffer) for buffer in node.alloc_buffers],
            node.match_buffers,
            node.annotations,
        )

    return tirx.stmt_functor.ir_transform(body, None, replace, None)


def _cast(node: Any) -> Any:
    """Return a cast to a float type as one to float32, or its float32 operand; None for others."""
    if dtype_of(node) not in (HALF, SINGLE):
        return None
    if dtype_of(node.value) == SINGLE:
        return node.value
    return tirx.Cast(as_type(SINGLE, node), node.value)


def _narrowed(value: Any) -> Any:
    """Return a value as float16; undo a widening instead of converting back."""
    if isinstance(value, tirx.Cast) and dtype_of(value.value) == HALF:
        return value.value
    return tirx.Cast(as_type(HALF, value), value)
