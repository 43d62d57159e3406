# SPDX-License-Identifier: Apache-2.0
"""Half precision as a format of memory: what is computed from it is computed in float32.

The kernels take float32, and a RISC-V CPU without Zfh has no instruction for halves at all. LLVM
would call a function for each conversion, and the two that TVM puts into every module take halves
in integer registers, where RISC-V's calling convention has them in floating-point ones: wrong
numbers, without a word. Hence two passes:

* :class:`ComputeInFloat32`: parameters of functions stay float16, everything between them becomes
  float32. Results are rounded when they are stored, and not at every step, as C allows for types
  that the machine does not compute in (FLT_EVAL_METHOD).
* :class:`ConvertByBits`: the conversions at loads and stores become integer arithmetic, exact to
  the bit and good for vectors, where the target has no instruction for them.

This module imports nothing but TVM, so that it also serves where there is no MLC-LLM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import IRModule, tirx
from tvm.relax.frontend.nn.llm._vector_math import named
from tvm.target import Target

from .each_function import change_functions
from .expert_layers import Experts, find_experts
from .linear_match import Stage, is_product, stages_of
from .tensorization import target_arch, target_features
from .vector_target import vectors_of

HALF, SINGLE = "float16", "float32"
# Features with which LLVM converts by instructions.
CONVERSIONS = {"zfh", "zfhmin", "zvfh", "zvfhmin"}
# What looks at the bits or at the memory of a value: its type must stay.
OPAQUE = {"tirx.reinterpret", "tirx.tvm_access_ptr", "tirx.address_of", "tirx.call_extern"}

BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)


def lacks_conversions(target: Target) -> bool:
    """Whether a target is a RISC-V CPU without instructions for half precision."""
    is_riscv = target.kind.name == "llvm" and target_arch(target).startswith("riscv64")
    return is_riscv and not CONVERSIONS & target_features(target)


@tvm.transform.module_pass(opt_level=0, name="ComputeInFloat32")
class ComputeInFloat32:
    """Widens what is computed, where kernels or conversions want it; else the identity."""

    def __init__(self, target: Target):
        """Remember the target, which decides what the pass does."""
        self.target = target

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Transform the functions of a module that touch float16."""
        if vectors_of(self.target) is None and not lacks_conversions(self.target):
            return mod
        return _transformed(mod, lambda _, func: compute_in_float32(func))


@tvm.transform.module_pass(opt_level=0, name="ConvertByBits")
class ConvertByBits:
    """Converts halves by integer arithmetic where the target cannot; else the identity."""

    def __init__(self, target: Target):
        """Remember the target, which decides what the pass does."""
        self.target = target

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Transform the functions of a module that touch float16.

        Raises:
            RuntimeError: a function computes in float16 all the same.
        """
        if not lacks_conversions(self.target):
            return mod
        return _transformed(mod, convert_by_bits)


def _transformed(mod: IRModule, transform: Callable[[str, tirx.PrimFunc], Any]) -> IRModule:
    return change_functions(
        mod, lambda name, func: transform(name, func) if _touches_halves(func) else None
    )


def _dtype(value: Any) -> str:
    """The type of an expression, of one element of it if that is a vector."""
    return _whole_dtype(value).partition("x")[0]


def _whole_dtype(value: Any) -> str:
    """The type of an expression; "" of a buffer, which has a type of its own, and of the rest."""
    kind = getattr(value, "ty", None)
    return str(kind.dtype) if isinstance(kind, tvm.ir.PrimType) else ""


def _as(dtype: str, value: Any) -> str:
    """A type for as many elements as a value has."""
    _, times, lanes = _whole_dtype(value).partition("x")
    return f"{dtype}{times}{lanes}"


def _is_half(buffer: Any) -> bool:
    return str(buffer.dtype) == HALF


def _touches_halves(func: tirx.PrimFunc) -> bool:
    found: list[Any] = []

    def visit(node: Any) -> None:
        of_buffer = isinstance(node, tirx.BufferLoad | tirx.BufferStore) and _is_half(node.buffer)
        if of_buffer or _dtype(node) == HALF:
            found.append(node)

    tirx.stmt_functor.post_order_visit(func.body, visit)
    return bool(found)


def compute_in_float32(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function of the same parameters that computes in float32.

    What a product reads is widened before it, and what is accumulated is narrowed once, after it:
    the product itself is then one of float32 throughout. A function that looks at the bits of a
    half comes back as it is.
    """
    if _is_opaque(func):
        return func
    stages = stages_of(func) or []
    experts = find_experts(func)
    if experts:
        read, written = _of_experts(func, experts)
    else:
        read, written = _of_products(func, stages), _accumulated(func, stages)
    wide = {buffer: _wide(buffer) for buffer in [*_allocated(func), *read, *written]}
    body = _in_float32(func.body, wide)
    if not read and not written:
        return func.with_body(body)
    root = body.block
    inner = root.body.seq if isinstance(root.body, tirx.SeqStmt) else [root.body]
    statements = [*(_copy(b, wide[b]) for b in read), *inner, *(_copy(wide[b], b) for b in written)]
    allocated = [*root.alloc_buffers, *(wide[b] for b in [*read, *written])]
    block = tirx.SBlock(
        [], [], [], root.name_hint, tirx.SeqStmt(statements), alloc_buffers=allocated
    )
    return func.with_body(tirx.SBlockRealize([], tirx.const(True), block))


def _is_opaque(func: tirx.PrimFunc) -> bool:
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.ir.Call) and getattr(node.op, "name", "") in OPAQUE:
            found.extend(part for part in [node, *node.args] if _dtype(part) == HALF)
        elif isinstance(node, tirx.Let) and _dtype(node.var) == HALF:
            found.append(node)
        elif isinstance(node, tirx.SBlock):
            found.extend(m for m in node.match_buffers if _is_half(m.buffer))

    tirx.stmt_functor.post_order_visit(func.body, visit)
    return bool(found)


def _allocated(func: tirx.PrimFunc) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.SBlock):
            found.extend(buffer for buffer in node.alloc_buffers if _is_half(buffer))
        elif isinstance(node, tirx.AllocBuffer) and _is_half(node.buffer):
            found.append(node.buffer)

    tirx.stmt_functor.post_order_visit(func.body, visit)
    return found


def _parameters(func: tirx.PrimFunc) -> list[Any]:
    """The parameters that are buffers of halves."""
    return [p for p in func.params if hasattr(p, "dtype") and hasattr(p, "shape") and _is_half(p)]


def _of_products(func: tirx.PrimFunc, stages: list[Stage]) -> list[Any]:
    """The parameters that products read, or what products read is made of."""
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


def _wide(buffer: Any) -> Any:
    return tirx.decl_buffer(buffer.shape, SINGLE, str(buffer.name), scope=buffer.scope())


def _copy(source: Any, target: Any) -> Any:
    """A stage that copies all of a buffer, converted."""
    loops, axes, shape = [], [], list(source.shape)
    for number, extent in enumerate(shape):
        dtype = _dtype(extent)
        loops.append(tirx.Var(f"i{number}", dtype))
        span = tvm.ir.Range(tirx.const(0, dtype), extent)
        axes.append(tirx.IterVar(span, tirx.Var(f"v{number}", dtype), tirx.IterVar.DataPar))
    at = [axis.var for axis in axes]
    value = tirx.Cast(str(target.dtype), tirx.BufferLoad(source, at))
    here = [tvm.ir.Range.from_min_extent(v, tirx.const(1, _dtype(v))) for v in at]
    regions = [tirx.BufferRegion(buffer, here) for buffer in (source, target)]
    store = tirx.BufferStore(target, value, at)
    block = tirx.SBlock(axes, regions[:1], regions[1:], f"{target.name}_{target.dtype}", store)
    nest: Any = tirx.SBlockRealize(loops, tirx.const(True), block)
    for loop, extent in zip(reversed(loops), reversed(shape), strict=True):
        nest = tirx.For(loop, tirx.const(0, _dtype(extent)), extent, tirx.ForKind.SERIAL, nest)
    return nest


def _in_float32(body: Any, wide: dict[Any, Any]) -> Any:
    """A body that uses other buffers in place of some, and converts what it loads and stores."""

    def regions(found: Any) -> list[Any]:
        return [tirx.BufferRegion(wide.get(r.buffer, r.buffer), r.region) for r in found]

    def replace(node: Any) -> Any:
        if isinstance(node, tirx.BufferLoad):
            if node.buffer in wide:
                return tirx.BufferLoad(wide[node.buffer], node.indices)
            return tirx.Cast(_as(SINGLE, node), node) if _is_half(node.buffer) else None
        if isinstance(node, tirx.BufferStore):
            if node.buffer in wide:
                return tirx.BufferStore(wide[node.buffer], node.value, node.indices)
            if not _is_half(node.buffer):
                return None
            return tirx.BufferStore(node.buffer, _narrowed(node.value), node.indices)
        if isinstance(node, tirx.FloatImm):
            return tirx.FloatImm(SINGLE, node.value) if _dtype(node) == HALF else None
        if isinstance(node, tirx.Cast):
            return _cast(node)
        if isinstance(node, tvm.ir.Call):
            if _dtype(node) != HALF:
                return None
            return tirx.call_intrin(_as(SINGLE, node), node.op, *node.args)
        # TVM 0.26 has made these anew of their widened parts, TVM 0.27 leaves their type.
        if isinstance(node, BINARY) and _dtype(node) == HALF:
            return type(node)(node.a, node.b)
        if isinstance(node, tirx.Select) and _dtype(node) == HALF:
            return tirx.Select(node.condition, node.true_value, node.false_value)
        if isinstance(node, tirx.Let) and _dtype(node) == HALF:
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
    """A cast whose value has been widened already."""
    if _dtype(node) not in (HALF, SINGLE):
        return None
    if _dtype(node.value) == SINGLE:
        return node.value
    return tirx.Cast(_as(SINGLE, node), node.value)


def _narrowed(value: Any) -> Any:
    """A value as a half; one that was a half is not converted to and fro."""
    if isinstance(value, tirx.Cast) and _dtype(value.value) == HALF:
        return value.value
    return tirx.Cast(_as(HALF, value), value)


def convert_by_bits(name: str, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function with the conversions of halves as arithmetic of integers.

    Raises:
        RuntimeError: it does something else with halves than to load, convert and store them.
    """

    def replace(node: Any) -> Any:
        if _dtype(node) == SINGLE and _dtype(node.value) == HALF:
            return widen(tirx.reinterpret(_as("uint16", node), node.value))
        if _dtype(node) == HALF and _dtype(node.value) == SINGLE:
            return tirx.reinterpret(_as(HALF, node), narrow(node.value))
        return None

    body = tirx.stmt_functor.ir_transform(func.body, None, replace, ["tirx.Cast"])
    if left := _computed_halves(body):
        raise RuntimeError(
            f"{name} computes in float16 ({left[0]}), for which the target has no instructions"
        )
    # No default schedule: vectors that one gathers of single halves come out wrong of LLVM, which
    # has no such type here. Loads of halves side by side, as vector_loops makes them, are right.
    return func.with_body(body).with_attr("tirx.is_scheduled", True)


def _computed_halves(body: Any) -> list[Any]:
    """What is of type float16 and neither loaded nor made of bits."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if _dtype(node) != HALF or isinstance(node, tirx.BufferLoad):
            return
        if getattr(getattr(node, "op", None), "name", "") != "tirx.reinterpret":
            found.append(node)

    tirx.stmt_functor.post_order_visit(body, visit)
    return found


def _constant(value: float, dtype: str, like: Any) -> Any:
    """A constant in every element that another value has."""
    scalar, lanes = tirx.const(value, dtype), _whole_dtype(like).partition("x")[2]
    return tirx.Broadcast(scalar, int(lanes)) if lanes else scalar


def widen(half: Any) -> Any:
    """The float32 of a half given by its bits (uint16); exact, subnormals and NaN too."""
    single, uint32 = _as(SINGLE, half), _as("uint32", half)

    def word(value: int) -> Any:
        return _constant(value, "uint32", half)

    def by_word(given: Any) -> Any:
        size = tirx.bitwise_and(given, word(0x7FFF))
        # The exponents differ by 112; a multiplication also normalises what is subnormal.
        scaled = tirx.reinterpret(single, tirx.shift_left(size, word(13)))
        bits = tirx.reinterpret(uint32, scaled * _constant(2.0**112, SINGLE, half))
        special = tirx.Select(size >= word(0x7C00), word(0x7F800000), word(0))
        sign = tirx.shift_left(tirx.bitwise_and(given, word(0x8000)), word(16))
        return tirx.reinterpret(single, tirx.bitwise_or(tirx.bitwise_or(bits, special), sign))

    return named(tirx.Cast(uint32, half), by_word)


def narrow(value: Any) -> Any:
    """The bits (uint16) of the half next to a float32: ties to even, NaN stays NaN."""
    single, uint32 = _as(SINGLE, value), _as("uint32", value)

    def word(number: int) -> Any:
        return _constant(number, "uint32", value)

    def by_bits(bits: Any) -> Any:
        size = tirx.bitwise_and(bits, word(0x7FFFFFFF))
        odd = tirx.bitwise_and(tirx.shift_right(bits, word(13)), word(1))
        # Below 2^31 + 2^13, so that nothing wraps; the exponents differ by 112.
        normal = tirx.shift_right(size + odd + word(0xFFF), word(13)) - word(112 << 10)
        # Added to 1/2, the last bit of a float32 weighs what a half's last subnormal bit does.
        lifted = tirx.reinterpret(single, size) + _constant(0.5, SINGLE, value)
        subnormal = tirx.reinterpret(uint32, lifted) - word(0x3F000000)
        finite = tirx.Select(size < word(0x38800000), subnormal, normal)
        special = tirx.Select(size > word(0x7F800000), word(0x7E00), word(0x7C00))
        whole = tirx.Select(size >= word(0x47800000), special, finite)
        sign = tirx.bitwise_and(tirx.shift_right(bits, word(16)), word(0x8000))
        return tirx.Cast(_as("uint16", value), tirx.bitwise_or(whole, sign))

    return named(tirx.reinterpret(uint32, value), by_bits)
