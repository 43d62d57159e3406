# SPDX-License-Identifier: Apache-2.0
"""Gives the linear layers to the project's kernels.

:class:`CallLinearKernels` replaces every linear layer of a module, whatever function holds it, by
calls of the routines in kernels/include/mlc_rvv_linear.h: products with any number of rows by
``gemm``, with a single row by ``gemv``, weights in float32 or in MLC-LLM's group quantization,
which is then unpacked by the kernel and no longer by the function. What follows a product in its
function, such as an addition, works on the product's result in place, in vectors.

Kernels, report and environment are those of :mod:`tensorization`.
This module imports nothing but TVM, so that it also serves where there is no MLC-LLM.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import IRModule, tirx
from tvm.target import Target
from tvm_ffi import structural_equal

from . import tensorization
from .expert_layers import Experts, call_for_each, check_experts, find_experts, opaque
from .linear_match import (
    GROUP,
    Declined,
    Linear,
    Stage,
    is_product,
    match_linear,
    same_extents,
    stages_of,
)
from .tensorization import REPORT_VARIABLE, KernelLibrary, Outcome
from .vector_target import vector_bits

logger = logging.getLogger(__name__)

# What a panel of weights takes while it is in use: 64 KiB at VLEN 256.
PANEL_ROWS = 256
HOST_PANEL_COLUMNS = 64
# Rows of weights that a task of a matrix-vector product has at least this many weights in: less
# is not worth waking a thread for.
TASK_WEIGHTS = 1 << 17
# A vector in what follows a product, in elements: at most a register group of eight.
HOST_LANES = 16


@dataclass(frozen=True)
class Routines:
    """What of a kernel library can be called.

    Attributes:
        library: the library.
        symbols: symbol of each kind ("gemm", "gemv", "gemv_prepare") and weights ("float32",
            "q4") that is there.
        columns: width of a panel of weights.
        lanes: most elements of a vector.
    """

    library: KernelLibrary
    symbols: dict[tuple[str, str], str]
    columns: int
    lanes: int

    @staticmethod
    def load(library: KernelLibrary, target: Target) -> Routines:
        """Read the routines of a library."""
        document = json.loads(library.index.read_text(encoding="utf-8"))
        symbols = {(r["kind"], r["weights"]): r["symbol"] for r in document.get("routines", [])}
        if not tensorization.is_rvv_target(target):
            return Routines(library, symbols, HOST_PANEL_COLUMNS, HOST_LANES)
        group = vector_bits(target) // 32 * 8
        return Routines(library, symbols, group, group)


@tvm.transform.module_pass(opt_level=0, name="CallLinearKernels")
class CallLinearKernels:
    """Replaces linear layers by kernel calls where there are kernels for the target."""

    def __init__(self, target: Target):
        """Remember the target, which decides what the pass does."""
        self.target = target

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Transform all TIR functions of a module that have a linear layer.

        Raises:
            RuntimeError: ``MLC_RVV_KERNELS`` names no usable directory.
        """
        if self.target.kind.name != "llvm":
            return mod
        library = KernelLibrary.from_environment()
        misfit = tensorization._misfit(self.target, library)
        if misfit is not None and not tensorization.is_rvv_target(self.target):
            return mod
        routines = None if misfit else Routines.load(library, self.target)
        result, outcomes = mod.clone(), []
        for g_var, func in sorted(mod.functions_items(), key=lambda item: item[0].name_hint):
            if isinstance(func, tirx.PrimFunc):
                new, of_function = call_kernels(g_var.name_hint, func, routines, misfit)
                outcomes += of_function
                if any(outcome.symbol for outcome in of_function):
                    result.update_func(g_var, new)
        _report(outcomes)
        if not any(outcome.symbol for outcome in outcomes):
            return mod
        return _with_object(result, routines)


def call_kernels(
    name: str, func: tirx.PrimFunc, routines: Routines | None, misfit: str | None = None
) -> tuple[tirx.PrimFunc, list[Outcome]]:
    """Replace the linear layer of one function.

    Args:
        name: the function's name in its module, for the outcomes.
        func: the function; comes back as it is where no kernel fits.
        routines: the kernels, or None.
        misfit: why there are none.

    Returns:
        The function, marked as scheduled if it was changed, and an outcome per product in it.
    """
    if experts := find_experts(func):
        return _call_for_experts(name, func, experts, routines, misfit)
    stages = stages_of(func)
    products = [stage for stage in stages or [] if is_product(stage)]
    if func.attrs is not None and func.attrs.get("tirx.is_scheduled"):
        return func, []
    try:
        if len(products) != 1:
            raise Declined("the function has more than one product")
        linear = match_linear(products[0], stages)
        if routines is None:
            raise Declined(str(misfit))
        new, symbol = _replace(func, stages, linear, routines)
    except Declined as reason:
        return func, [Outcome(name, p.name, reason=str(reason)) for p in products]
    return new, [Outcome(name, linear.stage.name, symbol)]


def _replace(
    func: tirx.PrimFunc, stages: list[Stage], linear: Linear, routines: Routines
) -> tuple[tirx.PrimFunc, str]:
    single = all(_is_one(extent) for extent in linear.out.shape[:-1])
    kind, weights = "gemv" if single else "gemm", "float32" if linear.scale is None else "q4"
    symbol = routines.symbols.get((kind, weights))
    if symbol is None:
        raise Declined(f"no {kind} for {weights} weights in {routines.library.index}")
    rest = [s for s in stages if s is not linear.stage and s not in linear.unpacking]
    follower = _in_place(linear, rest)
    out = linear.out if follower is None else follower.written
    make = _gemv if single else _gemm
    statements = []
    for stage in stages:
        if stage is linear.stage:
            statements.append(make(linear, out, routines, weights))
        elif stage not in linear.unpacking:
            statement = _vectorized(stage, routines.lanes)
            if stage is follower:
                statement = tirx.stmt_functor.substitute(statement, {linear.out: out})
            statements.append(statement)
    root = func.body.block
    gone = [s.written for s in linear.unpacking] + ([linear.out] if follower else [])
    kept = [b for b in root.alloc_buffers if not any(b.same_as(g) for g in gone)]
    body = tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]
    block = tirx.SBlock([], [], [], root.name_hint, body, alloc_buffers=kept)
    new = func.with_body(tirx.SBlockRealize([], tirx.const(True), block))
    return new.with_attrs({**dict(func.attrs or {}), "tirx.is_scheduled": True}), symbol


def _call_for_experts(
    name: str,
    func: tirx.PrimFunc,
    experts: Experts,
    routines: Routines | None,
    misfit: str | None,
) -> tuple[tirx.PrimFunc, list[Outcome]]:
    """Replace the products of a mixture's experts by calls, one for each expert."""
    try:
        check_experts(experts)
        if routines is None:
            raise Declined(str(misfit))
        weights = "float32" if experts.scale is None else "q4"
        symbol = routines.symbols.get(("gemm", weights))
        if symbol is None:
            raise Declined(f"no gemm for {weights} weights in {routines.library.index}")
    except Declined as reason:
        return func, [Outcome(name, experts.block.name_hint, reason=str(reason))]
    call = _experts_gemm(experts, symbol, routines.columns)
    return call_for_each(experts, call, func), [Outcome(name, experts.block.name_hint, symbol)]


def _experts_gemm(experts: Experts, symbol: str, columns: int) -> Callable[..., Any]:
    """What makes the statement for one expert: tasks over panels of outputs."""
    n, k, groups = experts.n, experts.k, -(-experts.k // GROUP)

    def make(expert: Any, first: Any, of_data: Any, rows: Any) -> Any:
        panel = tirx.decl_buffer((PANEL_ROWS * columns,), "float32", "panel")
        task = tirx.Var("task", "int32")
        start = task * columns

        def access(buffer: Any, mode: str, offset: Any) -> Any:
            return buffer.access_ptr(mode, offset=_int64(offset))

        outputs = _int64(expert) * n + start
        c = access(experts.out, "w", _int64(first) * n + start)
        a = access(experts.data, "r", _int64(of_data) * k)
        sizes = [_int64(rows), _int64(tirx.min(n - start, columns)), _int64(k), _int64(n)]
        scratch = [panel.access_ptr("rw"), _int64(PANEL_ROWS), _int64(columns)]
        if experts.scale is None:
            weight = access(experts.weight, "r", outputs * k)
            arguments = [c, a, weight, *sizes, _int64(k), _int64(k), *scratch]
        else:
            weight = access(experts.weight, "r", outputs * (groups * 4))
            scale = access(experts.scale, "r", outputs * groups)
            arguments = [c, a, weight, scale, *sizes, _int64(k), *scratch]
        statement = opaque(experts, _call(symbol, arguments), [panel])
        tasks = tirx.For(task, 0, -(-n // columns), tirx.ForKind.PARALLEL, statement)
        return tirx.IfThenElse(rows > 0, tasks, None)

    return make


def _in_place(linear: Linear, rest: list[Stage]) -> Stage | None:
    """The stage that may overwrite the product element by element: its only reader, if any."""
    readers = [s for s in rest if any(r.buffer.same_as(linear.out) for r in s.block.reads)]
    if len(readers) != 1 or not isinstance(readers[0].block.body, tirx.BufferStore):
        return None
    store = readers[0].block.body
    same_place = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.BufferLoad) and node.buffer.same_as(linear.out):
            same_place.append(all(map(structural_equal, node.indices, store.indices)))

    tirx.stmt_functor.post_order_visit(store.value, visit)
    fits = (
        same_extents(store.buffer.shape, linear.out.shape)
        and all(same_place)
        and str(store.buffer.dtype) == "float32"
    )
    return readers[0] if fits and readers[0].block.init is None else None


def _gemm(linear: Linear, out: Any, routines: Routines, weights: str) -> Any:
    """A product with any number of rows: tasks over panels of outputs."""
    columns = routines.columns
    panel = tirx.decl_buffer((PANEL_ROWS * columns,), "float32", "panel")

    def call(start: Any, count: Any) -> Any:
        k, groups = linear.k, linear.groups
        a, c = linear.data.access_ptr("r"), out.access_ptr("w", offset=start)
        scratch = [panel.access_ptr("rw"), _int64(PANEL_ROWS), _int64(columns)]
        sizes = [_int64(linear.rows), count, _int64(k), _int64(linear.n), _int64(k)]
        if weights == "q4":
            packed = linear.weight.access_ptr("r", offset=start * (groups * 4))
            scale = linear.scale.access_ptr("r", offset=start * groups)
            return [c, a, packed, scale, *sizes, *scratch]
        b = linear.weight.access_ptr("r", offset=start * k)
        return [c, a, b, *sizes, _int64(k), *scratch]

    symbol = routines.symbols["gemm", weights]
    return _tasks(symbol, linear, out, columns, call, panel)


def _gemv(linear: Linear, out: Any, routines: Routines, weights: str) -> Any:
    """A product with one row: tasks over runs of outputs."""
    k, groups = linear.k, linear.groups
    ready = tirx.decl_buffer((groups * 36,), "float32", "ready")

    def call(start: Any, count: Any) -> Any:
        y, sizes = out.access_ptr("w", offset=start), [count, _int64(k)]
        if weights == "q4":
            packed = linear.weight.access_ptr("r", offset=start * (groups * 4))
            scale = linear.scale.access_ptr("r", offset=start * groups)
            return [y, ready.access_ptr("r"), packed, scale, *sizes]
        b = linear.weight.access_ptr("r", offset=start * k)
        return [y, linear.data.access_ptr("r"), b, *sizes, _int64(k)]

    # Whole panels, as their rows may lie in lanes.
    outputs = _outputs_of_a_task(linear.n, k, routines.columns)
    tasks = _tasks(routines.symbols["gemv", weights], linear, out, outputs, call)
    if weights != "q4":
        return tasks
    prepare = routines.symbols["gemv_prepare", weights]
    arguments = [ready.access_ptr("w"), linear.data.access_ptr("r"), _int64(k)]
    statements = tirx.SeqStmt([_call(prepare, arguments), tasks])
    return _opaque("prepared", linear, out, statements, [ready])


def _outputs_of_a_task(n: Any, k: int, columns: int) -> int:
    """As many outputs, in whole panels, as make a task worth while; tasks share out evenly."""
    least = -(-TASK_WEIGHTS // k // columns) * columns
    if not isinstance(n, tirx.IntImm):
        return least
    tasks = 1
    while tasks * least < int(n):
        tasks *= 2
    return -(-int(n) // tasks // columns) * columns


def _tasks(
    symbol: str,
    linear: Linear,
    out: Any,
    width: int,
    call: Callable[[Any, Any], list[Any]],
    scratch: Any = None,
) -> Any:
    """Calls that share the outputs, `width` each, among threads; one call if that is enough."""
    allocated = [] if scratch is None else [scratch]

    def body(start: Any, count: Any) -> Any:
        statement = _call(symbol, call(start, count))
        return _opaque(linear.stage.name, linear, out, statement, allocated)

    n = _int64(linear.n)
    if isinstance(linear.n, tirx.IntImm) and int(linear.n) <= width:
        return body(_int64(0), n)
    task = tirx.Var("task", "int64")
    start = task * width
    inner = body(start, tirx.min(n - start, _int64(width)))
    count = tirx.ceildiv(n, _int64(width))
    return tirx.For(task, _int64(0), count, tirx.ForKind.PARALLEL, inner)


def _call(symbol: str, arguments: list[Any]) -> Any:
    """A call of a C function whose arguments are pointers and int64_t.

    The cast, though to the type that a size has, is what keeps it 64 bits wide: a later pass may
    make all indices int32, and would take the arguments of a call along.
    """
    words = [
        tirx.Cast("int64", a) if str(getattr(a.ty, "dtype", "")) == "int64" else a
        for a in arguments
    ]
    return tirx.Evaluate(tirx.call_extern("void", symbol, *words))


def _opaque(name: str, linear: Linear, out: Any, body: Any, allocated: list[Any]) -> Any:
    """A block that says what it touches, around statements which the compiler cannot read."""
    inputs = [linear.data, linear.weight, linear.scale]
    reads = [_whole(buffer) for buffer in inputs if buffer is not None]
    block = tirx.SBlock([], reads, [_whole(out)], name, body, alloc_buffers=allocated)
    return tirx.SBlockRealize([], tirx.const(True), block)


def _whole(buffer: Any) -> Any:
    ranges = [tvm.ir.Range(0, extent) for extent in buffer.shape]
    return tirx.BufferRegion(buffer, ranges)


def _int64(value: Any) -> Any:
    if isinstance(value, int | tirx.IntImm):
        return tirx.IntImm("int64", int(value))
    return tirx.Cast("int64", value)


def _vectorized(stage: Stage, most: int) -> Any:
    """A stage's statement with vectors innermost and its rows shared among threads.

    A block that is not data parallel stays as it is.
    """
    block = stage.block
    if any(axis.iter_type != tirx.IterVar.DataPar for axis in block.iter_vars) or not stage.loops:
        return stage.statement
    values = [loop.loop_var for loop in stage.loops]
    *outer, last = stage.loops
    lanes = math.gcd(int(last.extent), most) if isinstance(last.extent, tirx.IntImm) else 1
    if lanes > 1:
        dtype = last.loop_var.ty
        run, lane = tirx.Var(last.loop_var.name, dtype), tirx.Var("lane", dtype)
        values[-1] = run * lanes + lane
    body = tirx.SBlockRealize(values, tirx.const(True), block)
    if lanes > 1:
        body = tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, body)
        body = tirx.For(run, 0, int(last.extent) // lanes, tirx.ForKind.SERIAL, body)
    else:
        body = tirx.For(last.loop_var, 0, last.extent, tirx.ForKind.SERIAL, body)
    parallel = next((loop for loop in outer if not _is_one(loop.extent)), None)
    for loop in reversed(outer):
        kind = tirx.ForKind.PARALLEL if loop is parallel else tirx.ForKind.SERIAL
        body = tirx.For(loop.loop_var, 0, loop.extent, kind, body)
    return body


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _with_object(mod: IRModule, routines: Routines) -> IRModule:
    """Add the kernels' object to the module, unless the pass before has done so."""
    library = routines.library
    known = [*library.symbols.values(), *routines.symbols.values()]
    for other in (mod.attrs or {}).get("external_mods", []):
        if any(other.implements_function(symbol) for symbol in known):
            return mod
    return tensorization._with_object(mod, library, sorted(routines.symbols.values()))


def _report(outcomes: list[Outcome]) -> None:
    """Say what was done, in the log and, after what is there, in the report file."""
    if path := os.environ.get(REPORT_VARIABLE):
        file = Path(path)
        before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        entries = [*before, *(asdict(outcome) for outcome in outcomes)]
        file.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    for outcome in outcomes:
        logger.info("%s, %s: %s", outcome.function, outcome.block, outcome.symbol or outcome.reason)
    declined = [outcome for outcome in outcomes if outcome.symbol is None]
    if declined:
        lines = "".join(f"\n  {o.function}, {o.block}: {o.reason}" for o in declined)
        logger.warning("Some linear layers run without kernels:%s", lines)
