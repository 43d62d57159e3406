# SPDX-License-Identifier: Apache-2.0
"""Replaces the two products of prefill attention by micro-kernels.

The tiled attention functions compute, for every tile of queries and keys, ``S_gemm``
(S[i, j] += Q[i, k] * K[j, k]) and ``O_gemm`` (O[i, c] += S[i, j] * V[j, c]) in blocks of their
own. :class:`TensorizePrefill` turns each block into one call of a C kernel of that shape, and
brings the object file with the kernels into the module, so that an exported library holds them.

The kernels are in a directory that ``MLC_RVV_KERNELS`` names, which ``python -m crosslab
kernels`` makes. ``MLC_RVV_TENSORIZE_REPORT`` names a file that gets a JSON list of what was
done; with ``MLC_RVV_REQUIRE_TENSORIZE=1``, doing nothing on an RVV target is an error.

This module imports nothing but TVM, so that it also serves where there is no MLC-LLM.
"""

import json
import logging
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import tvm
from tvm import IRModule, s_tir, tirx
from tvm.script import tirx as T
from tvm.target import Target

logger = logging.getLogger(__name__)

KERNELS_VARIABLE = "MLC_RVV_KERNELS"
REPORT_VARIABLE = "MLC_RVV_TENSORIZE_REPORT"
REQUIRE_VARIABLE = "MLC_RVV_REQUIRE_TENSORIZE"

# Prefill functions are known by their name in the module, and products by their block's name.
PREFILL_NAMES = ("attention_prefill", "batch_prefill")
PRODUCTS = {"S_gemm": "qk", "O_gemm": "pv"}

# Said of functions which are not written in tiles, such as those for token trees.
NOT_TILED = "the function is not tiled: it has no such block"

# The init of a product is left to LLVM, in vectors of at most so many elements.
INIT_LANES = 16


@dataclass(frozen=True)
class Shape:
    """What tells one kernel from another; extents in elements."""

    product: str
    dtype: str
    q_tile: int
    kv_tile: int
    d: int

    def __str__(self) -> str:
        return f"{self.product} {self.dtype} {self.q_tile}x{self.kv_tile}x{self.d}"


@dataclass(frozen=True)
class KernelLibrary:
    """A directory of compiled kernels.

    Attributes:
        index: the kernels.json that it was read from.
        target: "riscv64", or "host" for portable kernels.
        arch: machine that the object is for, as the first part of a target triple.
        features: what of that machine it needs beyond the common, in LLVM's words.
        object_file: the relocatable object.
        symbols: symbol of each shape that is there.
    """

    index: Path
    target: str
    arch: str
    features: tuple[str, ...]
    object_file: Path
    symbols: dict[Shape, str]

    @staticmethod
    def load(directory: Path) -> "KernelLibrary":
        """Read ``directory/kernels.json``.

        Raises:
            RuntimeError: there is none, it is malformed, or the object is missing.
        """
        index = directory / "kernels.json"
        remedy = f"Make it with: python -m crosslab kernels --target riscv64 --output {directory}"
        try:
            document = json.loads(index.read_text(encoding="utf-8"))
            if document["schema"] != 1:
                raise RuntimeError(f"{index} has schema {document['schema']!r}, expected 1")
            symbols = {
                Shape(*(entry[key] for key in ("product", "dtype", "q_tile", "kv_tile", "d"))): (
                    entry["symbol"]
                )
                for entry in document["kernels"]
            }
            target, object_file = document["target"], directory / document["object"]
            arch = _canonical_arch(document.get("arch", target))
            features = tuple(map(str, document.get("features", ())))
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise RuntimeError(
                f"{KERNELS_VARIABLE}: no usable list of kernels in {index}: {error!r}. {remedy}"
            ) from error
        if not object_file.is_file():
            raise RuntimeError(f"{index} names {object_file}, which is not there. {remedy}")
        return KernelLibrary(index, target, arch, features, object_file, symbols)

    @staticmethod
    def from_environment() -> "KernelLibrary | None":
        """The library that ``MLC_RVV_KERNELS`` names; None if it is not set."""
        directory = os.environ.get(KERNELS_VARIABLE)
        return KernelLibrary.load(Path(directory)) if directory else None


@dataclass(frozen=True)
class Outcome:
    """What became of one block of one function.

    Attributes:
        function: name of the function in its module.
        block: name of the block.
        symbol: the kernel that it calls now, or None.
        reason: why it calls none, or None.
    """

    function: str
    block: str
    symbol: str | None = None
    reason: str | None = None


@tvm.transform.module_pass(opt_level=0, name="TensorizePrefill")
class TensorizePrefill:
    """Tensorizes prefill attention where there are kernels for the target; else the identity.

    There are for a riscv64 target with vectors, and for a host when the kernel library holds
    portable kernels for its architecture.
    """

    def __init__(self, target: Target):
        """Remember the target, which decides what the pass does."""
        self.target = target

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Transform the prefill functions of a module.

        Raises:
            RuntimeError: ``MLC_RVV_KERNELS`` names no usable directory, or nothing was
                tensorized although ``MLC_RVV_REQUIRE_TENSORIZE`` is set.
        """
        rvv = is_rvv_target(self.target)
        if not rvv and self.target.kind.name != "llvm":
            return mod
        library = KernelLibrary.from_environment()
        misfit = _misfit(self.target, library)
        if misfit is not None and not rvv:
            say_misfit(library, misfit)
            return mod
        functions: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
        outcomes: list[Outcome] = []
        for g_var, func in _prefill_functions(mod):
            if misfit is not None:
                outcomes += [Outcome(g_var.name_hint, name, reason=misfit) for name in PRODUCTS]
                continue
            functions[g_var], of_function = tensorize_function(g_var.name_hint, func, library)
            outcomes += of_function
        symbols = sorted({o.symbol for o in outcomes if o.symbol is not None})
        _report(outcomes, misfit)
        if not symbols:
            return mod
        result = mod.clone()
        for g_var, func in functions.items():
            result.update_func(g_var, func)
        return _with_object(result, library, symbols)


def is_rvv_target(target: Target) -> bool:
    """Whether code for the target may use float32 vectors of the RVV extension."""
    if target.kind.name != "llvm" or not target_arch(target).startswith("riscv64"):
        return False
    # zve32x and zve64x have vectors of integers only.
    return any(
        name == "v" or name.startswith("zvl") or (name.startswith("zve") and not name.endswith("x"))
        for name in target_features(target)
    )


def target_features(target: Target) -> set[str]:
    """The features that a target has by its attribute mattr."""
    features: set[str] = set()
    for attribute in target.attrs.get("mattr", ()):
        name = str(attribute)
        # As in LLVM, what is said last of a feature counts.
        (features.discard if name.startswith("-") else features.add)(name.lstrip("+-"))
    return features


def target_arch(target: Target) -> str:
    """The machine that a target is for, as the first part of a triple; "" if it does not say."""
    return _canonical_arch(str(target.attrs.get("mtriple", "")).split("-", maxsplit=1)[0])


def _canonical_arch(name: str) -> str:
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name.lower(), name.lower())


def _misfit(target: Target, library: KernelLibrary | None) -> str | None:
    """Why the library is of no use for the target; None if it is."""
    if library is None:
        return f"no kernel library: {KERNELS_VARIABLE} is not set"
    wanted = "riscv64" if is_rvv_target(target) else target_arch(target)
    if library.arch != wanted or not (library.target == "host" or is_rvv_target(target)):
        return f"the kernels of {library.index} are for {library.arch}, the target is {wanted}"
    features = list(library.features)
    if features and not tvm.target.codegen.target_has_features(features, target):
        return f"the kernels of {library.index} need {', '.join(features)} of the target"
    return None


def say_misfit(library: KernelLibrary | None, misfit: str) -> None:
    """Log why a target without RVV gets no kernels: a warning, if there was a wish for some."""
    level = logging.INFO if library is None else logging.WARNING
    logger.log(level, "Attention and linear layers run without kernels: %s", misfit)


def _prefill_functions(mod: IRModule) -> list[tuple[tvm.ir.GlobalVar, tirx.PrimFunc]]:
    return sorted(
        (
            (g_var, func)
            for g_var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc)
            and any(name in g_var.name_hint for name in PREFILL_NAMES)
        ),
        key=lambda item: item[0].name_hint,
    )


def tensorize_function(
    name: str, func: tirx.PrimFunc, library: KernelLibrary
) -> tuple[tirx.PrimFunc, list[Outcome]]:
    """Tensorize the products of one prefill function.

    Args:
        name: the function's name in its module, for the outcomes.
        func: the function; left as it is where no kernel fits.
        library: the kernels.

    Returns:
        The function, marked as scheduled if a kernel was put in, and an outcome per product.
    """
    outcomes = []
    for block_name in PRODUCTS:
        shape, reason = _read_shape(func, block_name)
        symbol = library.symbols.get(shape) if shape is not None else None
        if shape is not None and symbol is None:
            reason = f"no kernel for {shape} in {library.index}"
        if symbol is not None:
            try:
                func = _tensorize_block(func, block_name, shape, symbol)
            except s_tir.ScheduleError as error:
                symbol, reason = None, f"the block is not {shape}: {_mismatch(error)}"
        outcomes.append(Outcome(name, block_name, symbol, reason))
    if any(outcome.symbol for outcome in outcomes):
        # Default schedules that run later must not touch it.
        func = func.with_attr("tirx.is_scheduled", True)
    return func, outcomes


def _mismatch(error: Exception) -> str:
    """The last line of a schedule error: after the whole IR, it says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _read_shape(func: tirx.PrimFunc, name: str) -> tuple[Shape | None, str | None]:
    """The tile shape of a product from its block and buffers, or why there is none."""
    blocks = []
    tirx.stmt_functor.post_order_visit(
        func.body,
        lambda node: (
            blocks.append(node)
            if isinstance(node, tirx.SBlock) and node.name_hint == name
            else None
        ),
    )
    if not blocks:
        return None, NOT_TILED
    if len(blocks) > 1:
        return None, f"the function has {len(blocks)} blocks named {name}"
    extents = [axis.dom.extent for axis in blocks[0].iter_vars]
    if len(extents) != 3 or not all(isinstance(e, tirx.IntImm) for e in extents):
        return None, f"the tile is not of constant shape: {extents}"
    regions = [*blocks[0].writes, *blocks[0].reads]
    dtypes = {str(region.buffer.dtype) for region in regions}
    if len(dtypes) != 1:
        return None, f"the tiles are of different types: {', '.join(sorted(dtypes))}"
    rows, columns, depth = (int(extent) for extent in extents)
    kv_tile, d = (columns, depth) if PRODUCTS[name] == "qk" else (depth, columns)
    return Shape(PRODUCTS[name], dtypes.pop(), rows, kv_tile, d), None


def _tensorize_block(func: tirx.PrimFunc, name: str, shape: Shape, symbol: str) -> tirx.PrimFunc:
    """Replace the update of a block by a call.

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


def make_intrinsic(shape: Shape, symbol: str) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Description and implementation of a kernel as a tensor intrinsic.

    The ABI is that of kernels/include/mlc_rvv_kernels.h: pointers to accumulator, left and
    right operand, then their leading dimensions in elements as int64.
    """
    return _describe(shape), _implement(shape, symbol)


def _operand_shapes(shape: Shape) -> list[tuple[int, int]]:
    """Shapes of accumulator, left and right operand."""
    q, kv, d = shape.q_tile, shape.kv_tile, shape.d
    return [(q, kv), (q, d), (kv, d)] if shape.product == "qk" else [(q, d), (q, kv), (kv, d)]


def _describe(shape: Shape) -> tirx.PrimFunc:
    (rows, columns), (_, depth), (rhs_rows, rhs_columns) = _operand_shapes(shape)
    dtype = shape.dtype

    def at(column, step):
        """Where the right operand has the factor of a column and a step of the reduction."""
        return (column, step) if shape.product == "qk" else (step, column)

    @T.prim_func(s_tir=True)
    def description(acc_handle: T.handle, lhs_handle: T.handle, rhs_handle: T.handle):
        acc = T.match_buffer(acc_handle, (rows, columns), dtype, offset_factor=1)
        lhs = T.match_buffer(lhs_handle, (rows, depth), dtype, offset_factor=1)
        rhs = T.match_buffer(rhs_handle, (rhs_rows, rhs_columns), dtype, offset_factor=1)
        with T.sblock("root"):
            T.reads(acc[0:rows, 0:columns], lhs[0:rows, 0:depth], rhs[0:rhs_rows, 0:rhs_columns])
            T.writes(acc[0:rows, 0:columns])
            for i, j, k in T.grid(rows, columns, depth):
                with T.sblock("product"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    acc[vi, vj] = acc[vi, vj] + lhs[vi, vk] * rhs[at(vj, vk)]

    return description


def _implement(shape: Shape, symbol: str) -> tirx.PrimFunc:
    (rows, columns), (_, depth), (rhs_rows, rhs_columns) = _operand_shapes(shape)
    dtype = shape.dtype

    @T.prim_func(s_tir=True)
    def implementation(acc_handle: T.handle, lhs_handle: T.handle, rhs_handle: T.handle):
        ld_acc, ld_lhs, ld_rhs = T.int32(), T.int32(), T.int32()
        acc = T.match_buffer(
            acc_handle, (rows, columns), dtype, strides=[ld_acc, 1], offset_factor=1
        )
        lhs = T.match_buffer(lhs_handle, (rows, depth), dtype, strides=[ld_lhs, 1], offset_factor=1)
        rhs = T.match_buffer(
            rhs_handle, (rhs_rows, rhs_columns), dtype, strides=[ld_rhs, 1], offset_factor=1
        )
        with T.sblock("root"):
            T.reads(acc[0:rows, 0:columns], lhs[0:rows, 0:depth], rhs[0:rhs_rows, 0:rhs_columns])
            T.writes(acc[0:rows, 0:columns])
            T.evaluate(
                T.call_extern(
                    "void",
                    symbol,
                    acc.access_ptr("rw"),
                    lhs.access_ptr("r"),
                    rhs.access_ptr("r"),
                    T.Cast("int64", ld_acc),
                    T.Cast("int64", ld_lhs),
                    T.Cast("int64", ld_rhs),
                )
            )

    return implementation


def _with_object(mod: IRModule, library: KernelLibrary, symbols: list[str]) -> IRModule:
    """Add the kernels' object to the external modules, which the build links in."""
    attrs = dict(mod.attrs) if mod.attrs else {}
    kernels = tvm.runtime.load_static_library(str(library.object_file), symbols)
    return mod.with_attr("external_mods", [*attrs.get("external_mods", []), kernels])


def _report(outcomes: list[Outcome], misfit: str | None) -> None:
    """Say what was done, in the log and in the report file.

    Raises:
        RuntimeError: nothing was done and ``MLC_RVV_REQUIRE_TENSORIZE`` is set.
    """
    if path := os.environ.get(REPORT_VARIABLE):
        text = json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n"
        Path(path).write_text(text, encoding="utf-8")
    for outcome in outcomes:
        if outcome.symbol is not None:
            logger.info("%s, %s: %s", outcome.function, outcome.block, outcome.symbol)
        elif outcome.reason == NOT_TILED:
            logger.info("%s, %s: %s", outcome.function, outcome.block, outcome.reason)
    declined = [outcome for outcome in outcomes if outcome.symbol is None]
    if len(declined) < len(outcomes):
        if misses := [outcome for outcome in declined if outcome.reason != NOT_TILED]:
            logger.warning("A part of prefill attention runs without kernels:%s", _lines(misses))
        return
    cause = _lines(declined) or f"\n  {misfit or 'the module has no prefill attention function'}"
    message = f"Nothing was tensorized: prefill attention runs without kernels.{cause}"
    if os.environ.get(REQUIRE_VARIABLE, "") not in ("", "0"):
        raise RuntimeError(f"{message}\n{REQUIRE_VARIABLE} is set, so this is an error.")
    logger.warning("%s", message)


def _lines(outcomes: list[Outcome]) -> str:
    return "".join(f"\n  {o.function}, {o.block}: {o.reason}" for o in outcomes)
