# SPDX-License-Identifier: Apache-2.0
"""TensorizePrefill: micro-kernels for the products of prefill attention and of the delta rule.

The tiled attention functions compute, for every tile of queries and keys, ``S_gemm``
(S[i, j] += Q[i, k] * K[j, k]) and ``O_gemm`` (O[i, c] += S[i, j] * V[j, c]) in blocks of their
own. The pass turns each block into one call of a C kernel of that shape, and brings the object
file with the kernels into the module, so that an exported library holds them. The gated delta rule
(op/gated_delta_on_cpu.py) has blocks of the same two kinds.

Kernels and report are those of :mod:`..kernel_library`. With ``require_tensorize`` in the
configuration, a module for RVV in which nothing is tensorized is an error.
"""

from __future__ import annotations

import logging
import math

import tvm
from tvm import IRModule, s_tir, tirx
from tvm.target import Target

from ..configuration import Configuration
from ..kernel_library import (
    BlockReport,
    KernelLibrary,
    TileShape,
    library_for,
    lines_of,
    rewrite_with_kernels,
    write_reports,
)
from ..targets import is_rvv_target
from ..tir import PatternMismatch, blocks_named
from .intrinsics import make_intrinsic

logger = logging.getLogger(__name__)

# Prefill functions are known by their name in the module, and products by their block's name.
PREFILL_NAMES = ("attention_prefill", "batch_prefill")
PRODUCTS = {"S_gemm": "qk", "O_gemm": "pv"}
# The same products of keys and values where they lie, in functions that have these blocks. They are
# in the reports if they alone have no kernel.
IN_PLACE = {"S_gemm_in_place": "S_gemm", "O_gemm_in_place": "O_gemm"}

DELTA_RULE = "gated_delta_rule"
DELTA_PRODUCTS = {
    "keys_by_keys": "qk",
    "queries_by_keys": "qk",
    "keys_by_state": "pv",
    "keys_by_update": "pv",
    "queries_by_state": "pv",
    "queries_by_update": "pv",
    "updates_by_keys": "pv",
}

# Reason for functions which are not written in tiles, such as those for token trees.
NOT_TILED = "the function is not tiled: it has no such block"

# The init of a product is left to LLVM, in vectors of at most so many elements.
INIT_LANES = 16


@tvm.transform.module_pass(opt_level=0, name="TensorizePrefill")
class TensorizePrefill:
    """Pass that tensorizes prefill attention if the library has kernels for the target.

    Kernels exist for a riscv64 target with vectors, and for a host if the kernel library holds
    portable kernels for its architecture. On other targets the pass is the identity.
    """

    def __init__(self, target: Target, configuration: Configuration):
        self.target, self.configuration = target, configuration

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Transform the prefill functions of a module.

        Raises:
            RuntimeError: the configuration names no usable folder of kernels, or nothing was
                tensorized although the configuration requires it.
        """
        if self.target.kind.name != "llvm":
            return mod
        library, misfit = library_for(self.target, self.configuration.kernels)
        if misfit is not None and not is_rvv_target(self.target):
            # A warning, if kernels were asked for.
            level = logging.INFO if library is None else logging.WARNING
            logger.log(level, "Attention and linear layers run without kernels: %s", misfit)
            return mod

        def rewrite(name: str, func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[BlockReport]]:
            products = products_of(name)
            if products is None:
                return func, []
            if misfit is not None:
                return func, [BlockReport(name, block, reason=misfit) for block in products]
            return tensorize_function(name, func, library)

        result, reports = rewrite_with_kernels(mod, rewrite)
        write_reports(reports, self.configuration.reports)
        _log(reports, misfit, required=self.configuration.require_tensorize)
        symbols = {report.symbol for report in reports if report.symbol is not None}
        return library.attach(result, symbols) if symbols else mod


def products_of(name: str) -> dict[str, str] | None:
    """Return the kind, 'qk' or 'pv', of each product, by block name; None for other functions.

    Only functions named as prefill attention or delta rule have products.
    """
    if any(part in name for part in PREFILL_NAMES):
        return PRODUCTS
    return DELTA_PRODUCTS if DELTA_RULE in name else None


def tensorize_function(
    name: str, func: tirx.PrimFunc, library: KernelLibrary
) -> tuple[tirx.PrimFunc, list[BlockReport]]:
    """Tensorize the products of one prefill function.

    Args:
        name: the function's name in its module, for the reports.
        func: the function; left as it is where no kernel fits.
        library: the kernels.

    Returns:
        The function, marked as scheduled if a kernel was put in, and a report per product.
    """
    reports = []
    for block_name in products_of(name) or PRODUCTS:
        try:
            func, symbol = _tensorize_product(func, block_name, library)
        except PatternMismatch as mismatch:
            reports.append(BlockReport(name, block_name, reason=str(mismatch)))
        else:
            reports.append(BlockReport(name, block_name, symbol))
    missing = {report.block for report in reports if report.symbol is None}
    for block_name, of_copies in IN_PLACE.items():
        if of_copies in missing or not blocks_named(func, block_name):
            continue
        try:
            func, _ = _tensorize_product(func, block_name, library)
        except PatternMismatch as mismatch:
            reports.append(BlockReport(name, block_name, reason=str(mismatch)))
    if any(report.symbol for report in reports):
        # Default schedules that run later must not touch it.
        func = func.with_attr("tirx.is_scheduled", True)
    return func, reports


def _tensorize_product(
    func: tirx.PrimFunc, name: str, library: KernelLibrary
) -> tuple[tirx.PrimFunc, str]:
    """Replace a block by a call of the kernel for its shape; return function and symbol.

    Raises:
        PatternMismatch: the block is missing, has no kernel, or does not compute the product.
    """
    shape = _read_shape(func, name)
    symbol = library.tiles.get(shape)
    if symbol is None:
        raise PatternMismatch(f"no kernel for {shape} in {library.index}")
    try:
        return _tensorize_block(func, name, shape, symbol), symbol
    except s_tir.ScheduleError as error:
        # After the whole IR, the last line gives the cause.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        cause = lines[-1] if lines else type(error).__name__
        raise PatternMismatch(f"the block is not {shape}: {cause}") from error


def _read_shape(func: tirx.PrimFunc, name: str) -> TileShape:
    """Read the tile shape of a product from its block and buffers.

    Raises:
        PatternMismatch: not exactly one block has the name, its extents are not three constants,
            or its buffers have several types.
    """
    blocks = blocks_named(func, name)
    if not blocks:
        raise PatternMismatch(NOT_TILED)
    if len(blocks) > 1:
        raise PatternMismatch(f"the function has {len(blocks)} blocks named {name}")
    extents = [axis.dom.extent for axis in blocks[0].iter_vars]
    if len(extents) != 3 or not all(isinstance(e, tirx.IntImm) for e in extents):
        raise PatternMismatch(f"the tile is not of constant shape: {extents}")
    regions = [*blocks[0].writes, *blocks[0].reads]
    dtypes = {str(region.buffer.dtype) for region in regions}
    if len(dtypes) != 1:
        raise PatternMismatch(f"the tiles are of different types: {', '.join(sorted(dtypes))}")
    rows, columns, depth = (int(extent) for extent in extents)
    product = (PRODUCTS | DELTA_PRODUCTS)[IN_PLACE.get(name, name)]
    kv_tile, d = (columns, depth) if product == "qk" else (depth, columns)
    return TileShape(product, dtypes.pop(), rows, kv_tile, d)


def _tensorize_block(
    func: tirx.PrimFunc, name: str, shape: TileShape, symbol: str
) -> tirx.PrimFunc:
    """Replace the sums of a block by a call of ``symbol``; its init becomes vector stores.

    Raises:
        s_tir.ScheduleError: the block does not compute the product.
    """
    s_tir.TensorIntrin.register(symbol, *make_intrinsic(shape, symbol), override=True)
    schedule = s_tir.Schedule(func)
    update = schedule.get_sblock(name)
    if schedule.get(update).init is not None:
        outer = schedule.get_loops(update)[-3]
        init = schedule.decompose_reduction(update, outer)
        update = schedule.get_sblock(f"{name}_update")
        columns = schedule.get_loops(init)[-1]
        lanes = math.gcd(int(schedule.get(columns).extent), INIT_LANES)
        schedule.vectorize(schedule.split(columns, [None, lanes])[-1])
    schedule.tensorize(schedule.get_loops(update)[-3], symbol)
    return schedule.mod["main"].with_attrs(func.attrs)


def _log(reports: list[BlockReport], misfit: str | None, *, required: bool) -> None:
    """Log the reports, with a warning for each block that should have a kernel and has none.

    Raises:
        RuntimeError: no block has a kernel although one is required.
    """
    for report in reports:
        if report.symbol is not None or report.reason == NOT_TILED:
            logger.info("%s", report)
    missing = [report for report in reports if report.symbol is None]
    if len(missing) < len(reports):
        if unexpected := [report for report in missing if report.reason != NOT_TILED]:
            lines = lines_of(unexpected)
            logger.warning("A part of prefill attention runs without kernels:%s", lines)
        return
    cause = lines_of(missing) or f"\n  {misfit or 'the module has no prefill attention function'}"
    message = f"Nothing was tensorized: prefill attention runs without kernels.{cause}"
    if required:
        raise RuntimeError(f"{message}\nrequire_tensorize is set, so this is an error.")
    logger.warning("%s", message)
