# SPDX-License-Identifier: Apache-2.0
"""CallLinearKernels: linear layers become calls of the project's kernels.

The pass replaces every linear layer of a module, in any of its functions, by calls of the
routines in kernels/include/mlc_rvv_linear.h: products with any number of rows by ``gemm``, with a
single row by ``gemv``, weights in float32 or in MLC-LLM's group quantization, which is then
unpacked by the kernel and no longer by the function. The stages after a product, such as an
addition, work on its result in place, in vectors.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tvm
from tvm import IRModule, tirx
from tvm.target import Target
from tvm_ffi import structural_equal

from ..configuration import Configuration
from ..functions import is_scheduled
from ..kernel_library import (
    BlockReport,
    Packing,
    add_reports,
    library_for,
    lines_of,
    rewrite_with_kernels,
)
from ..stages import Stage, is_product, same_extents, staged_functions, stages_of
from ..targets import is_rvv_target
from ..tir import PatternMismatch, is_one, nodes_of, with_root
from ..vectors.vectorize_loops import with_arithmetic
from .batched import BatchedProduct, call_for_each_matrix, match_batched
from .calls import HALVES, Routines, experts_gemm, product, take
from .depthwise import Depthwise, call_for_each_channel, match_depthwise
from .experts import call_for_each, check_experts, find_experts
from .match import LinearLayer, in_halves, match_linear, stored
from .stored import fill_in, stored_layer, stored_places
from .take import match_take, take_rows
from .tiles import Places, TiledWeights, add_entries, choose_tiles

logger = logging.getLogger(__name__)

Found = LinearLayer | BatchedProduct | Depthwise


@tvm.transform.module_pass(opt_level=0, name="CallLinearKernels")
class CallLinearKernels:
    """Pass that replaces linear layers by kernel calls, for targets with kernels."""

    def __init__(self, target: Target, configuration: Configuration):
        self.target, self.configuration = target, configuration

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Transform all TIR functions of a module that have a linear layer.

        Raises:
            RuntimeError: the configuration names no usable folder of kernels, or weights of a file
                lack kernels or tiles.
        """
        if self.target.kind.name != "llvm":
            return mod
        library, misfit = library_for(self.target, self.configuration.kernels)
        if misfit is not None and not is_rvv_target(self.target):
            return mod
        int8 = self.configuration.activations == "int8"
        in_tiles = self.configuration.weights == "tiles"
        routines = None if misfit else Routines.of(library, self.target, int8=int8)
        tiled = TiledWeights()
        if routines and in_tiles:
            tiled = choose_tiles(mod, readable_tiles(mod, routines))

        def rewrite(name: str, func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[BlockReport]]:
            return call_kernels(name, func, routines, misfit, tiled=name in tiled.functions)

        result, reports = rewrite_with_kernels(mod, rewrite)
        if tiled.items and routines:
            pack = routines.symbol("pack_tiles", None)
            result = add_entries(result, tiled, routines.columns, pack)
        add_reports(reports, self.configuration.reports, logger)
        if missing := [report for report in reports if report.symbol is None]:
            logger.warning("Some linear layers run without kernels:%s", lines_of(missing))
        if result is mod or library.is_attached(result):
            return result
        return library.attach(result, library.routines.values())


def readable_tiles(mod: IRModule, routines: Routines) -> dict[str, Places]:
    """Return the weights that kernels can read in tiles, by name of the TIR function.

    Each is a position among the function's parameters, with the bytes of an element. A function
    whose weights are not all parameters is left out.
    """
    found: dict[str, Places] = {}
    for g_var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and (layer := stored_layer(func)):
            found[g_var.name_hint] = stored_places(layer)
    for name, func, stages, products in staged_functions(mod):
        taken = match_take(func)
        packing = taken.packing if taken else None
        try:
            if taken:
                routines.symbol("take", packing)
                matrices = [taken.weight, taken.scale]
            elif len(products) == 1:
                linear = replace(match_linear(products[0], stages), tiled=True)
                routines.product(linear)
                packing = linear.packing
                matrices = [linear.weight, linear.scale]
                matrices = [m if m is None else stored(m, stages) for m in matrices]
            else:
                continue
        except PatternMismatch:
            continue
        found[name] = _places(func, [m for m in matrices if m is not None], packing)
    return {name: places for name, places in found.items() if places}


def _places(func: tirx.PrimFunc, matrices: list[Any], packing: Packing | None) -> Places:
    """Map matrices' positions among the parameters to bytes of an element; {} if one has none."""

    def item(dtype: str) -> int:
        if packing is not None and dtype == "uint32":
            return packing.tile_item
        return tvm.DataType(dtype).bits // 8

    places = {
        place: item(str(matrix.dtype))
        for matrix in matrices
        for place, param in enumerate(func.params)
        if param.same_as(matrix)
    }
    return places if len(places) == len(matrices) else {}


def call_kernels(
    name: str,
    func: tirx.PrimFunc,
    routines: Routines | None,
    misfit: str | None = None,
    *,
    tiled: bool = False,
) -> tuple[tirx.PrimFunc, list[BlockReport]]:
    """Replace a function's linear layer, or its products of experts, by kernel calls.

    Args:
        name: the function's name in its module, for the reports.
        func: the function; comes back as it is where no kernel fits.
        routines: the kernels, or None.
        misfit: the reason that there are no kernels, or None.
        tiled: its weights are in tiles.

    Returns:
        The function, marked as scheduled if it was changed, and a report per product in it.

    Raises:
        RuntimeError: the weights are in a file's blocks, without a kernel library or not in tiles.
        PatternMismatch: the weights are in a file's blocks, and the library lacks their kernel.
    """
    if layer := stored_layer(func):
        # Nothing else computes it.
        if routines is None:
            raise RuntimeError(f"{name}: {misfit}")
        new, symbols = fill_in(func, layer, routines, tiled=tiled)
        return new, [BlockReport(name, f"stored_{layer.kind}", symbols)]
    experts = find_experts(func)
    if experts is None and is_scheduled(func):
        return func, []
    if tiled and routines and (taken := match_take(func)):
        return take_rows(func, taken, take(taken, routines)), [
            BlockReport(name, "take", routines.symbol("take", taken.packing))
        ]
    stages = [] if experts else stages_of(func) or []
    products = [stage for stage in stages if is_product(stage)]
    blocks = [experts.block.name_hint] if experts else [product.name for product in products]
    try:
        if experts:
            check_experts(experts)
        elif len(products) != 1:
            raise PatternMismatch("the function has more than one product")
        else:
            found = _product_of(products[0], stages)
        if routines is None:
            raise PatternMismatch(str(misfit))
        if experts:
            symbol = routines.symbol("gemm", experts.packing)
            call = experts_gemm(experts, symbol, routines.columns)
            new = call_for_each(experts, call, func)
        else:
            if tiled and routines.has(HALVES) and isinstance(found, LinearLayer) and found.single:
                found = in_halves(found, stages) or found
            symbol, make = _call_of(found, routines, tiled=tiled)
            new = replace_product(func, stages, found, make, routines.lanes)
    except PatternMismatch as reason:
        return func, [BlockReport(name, block, reason=str(reason)) for block in blocks]
    return new, [BlockReport(name, blocks[0], symbol)]


def _product_of(stage: Stage, stages: list[Stage]) -> Found:
    """Read a product as a linear layer, a batch of products, or a depthwise convolution.

    Raises:
        PatternMismatch: the product is of no known kind; the message names the reason.
    """
    try:
        return match_linear(stage, stages)
    except PatternMismatch:
        for match in (match_batched, match_depthwise):
            try:
                return match(stage)
            except PatternMismatch:
                continue
        raise


def _call_of(found: Found, routines: Routines, *, tiled: bool) -> tuple[str, Callable[[Any], Any]]:
    """Return the kernel's symbol for a product, and the builder of the statement that calls it.

    Raises:
        PatternMismatch: the product has no kernel.
    """
    if isinstance(found, BatchedProduct):
        symbol = routines.symbol("gemm", None)
        columns = routines.columns
        return symbol, lambda out: call_for_each_matrix(found, symbol, columns, out)
    if isinstance(found, Depthwise):
        symbol = routines.symbol("depthwise", None)
        return symbol, lambda out: call_for_each_channel(found, symbol, out)
    linear = replace(found, tiled=tiled)
    return routines.product(linear), lambda out: product(linear, out, routines)


def replace_product(
    func: tirx.PrimFunc,
    stages: list[Stage],
    linear: Found,
    make: Callable[[Any], Any],
    lanes: int,
) -> tirx.PrimFunc:
    """Replace the product of a function by a statement, and vectorize the stages that follow.

    Args:
        func: the function.
        stages: of it.
        linear: its product.
        make: gives the statement that writes the product to a buffer.
        lanes: most elements of a vector.
    """
    allocated = func.body.block.alloc_buffers

    def is_inner(buffer: Any) -> bool:
        return any(buffer.same_as(one) for one in allocated)

    rest = [s for s in stages if s is not linear.stage and s not in linear.unpacking]
    # What a parameter holds is a result, and so needs what it is computed from.
    dropped: list[Stage] = []
    needed = [*rest]
    for stage in reversed(linear.unpacking):
        keep = not is_inner(stage.written) or any(s.reads(stage.written) for s in needed)
        (needed if keep else dropped).append(stage)
    follower = _in_place(linear, rest) if is_inner(linear.out) else None
    out = linear.out if follower is None else follower.written
    statements = []
    for stage in stages:
        if stage is linear.stage:
            statements.append(make(out))
        elif stage not in dropped:
            statement = _vectorized(stage, lanes)
            if stage is follower:
                statement = tirx.stmt_functor.substitute(statement, {linear.out: out})
            statements.append(statement)
    gone = [s.written for s in dropped] + ([linear.out] if follower else [])
    kept = [b for b in allocated if not any(b.same_as(g) for g in gone)]
    new = with_root(func, statements, kept)
    return new.with_attrs({**dict(func.attrs or {}), "tirx.is_scheduled": True})


def _in_place(linear: Found, rest: list[Stage]) -> Stage | None:
    """Return the stage that may overwrite the product in place: its only reader; else None."""
    readers = [s for s in rest if s.reads(linear.out)]
    if len(readers) != 1 or not isinstance(readers[0].block.body, tirx.BufferStore):
        return None
    store = readers[0].block.body
    loads = [l for l in nodes_of(store.value, tirx.BufferLoad) if l.buffer.same_as(linear.out)]
    fits = (
        same_extents(store.buffer.shape, linear.out.shape)
        and all(all(map(structural_equal, l.indices, store.indices)) for l in loads)
        and str(store.buffer.dtype) == "float32"
    )
    return readers[0] if fits and readers[0].block.init is None else None


def _vectorized(stage: Stage, most: int) -> Any:
    """Return a stage's statement with vectors of at most ``most`` elements, and rows in parallel.

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
        # The compiler has no vectors of tanh and erf.
        body = with_arithmetic(tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, body))
        body = tirx.For(run, 0, int(last.extent) // lanes, tirx.ForKind.SERIAL, body)
    else:
        body = tirx.For(last.loop_var, 0, last.extent, tirx.ForKind.SERIAL, body)
    parallel = next((loop for loop in outer if not is_one(loop.extent)), None)
    for loop in reversed(outer):
        kind = tirx.ForKind.PARALLEL if loop is parallel else tirx.ForKind.SERIAL
        body = tirx.For(loop.loop_var, 0, loop.extent, kind, body)
    return body
