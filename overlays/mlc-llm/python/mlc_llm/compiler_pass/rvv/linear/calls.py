# SPDX-License-Identifier: Apache-2.0
"""Statements that call the routines of kernels/include/mlc_rvv_linear.h."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.target import Target

from ..kernel_library import KernelLibrary, Packing
from ..targets import is_rvv_target, vector_bits
from ..tir import PatternMismatch, block_of, whole
from .experts import Experts, opaque
from .match import LinearLayer
from .parts import Parts, int64
from .take import TakenRows

# Rows of a panel of weights, which takes 64 KiB at VLEN 256 while it is in use.
PANEL_ROWS = 256
HOST_PANEL_COLUMNS = 64
# Weights that a task of a matrix-vector product has at least: fewer are not worth a call.
TASK_WEIGHTS = 1 << 15
# A task takes more panels than one where so many tasks remain, which threads share evenly enough.
TASKS = 256
# Floats of a group that gemv_prepare adds to its inputs.
READY_EXTRA = 4
# Words of a group of int8 activations, with scale and sum.
INT8_GROUP = 32
INT8_WORDS = 10
# A vector in what follows a product, in elements: at most a register group of eight.
HOST_LANES = 16
# A matrix-vector product of weights in tiles and an input, both in halves.
HALVES = "gemv_f16_tiles"


@dataclass(frozen=True)
class Routines:
    """The routines of a kernel library, with their sizes for a target.

    Attributes:
        library: the library.
        columns: width of a panel of weights.
        lanes: most elements of a vector.
        int8: activations are rounded to int8 where weights are in tiles and kernels take them so.
    """

    library: KernelLibrary
    columns: int
    lanes: int
    int8: bool = False

    @staticmethod
    def of(library: KernelLibrary, target: Target, *, int8: bool = False) -> Routines:
        """Return the routines with the sizes that fit a target."""
        if not is_rvv_target(target):
            return Routines(library, HOST_PANEL_COLUMNS, HOST_LANES, int8)
        group = vector_bits(target) // 32 * 8
        return Routines(library, group, group // 2, int8)

    def kinds(self, linear: LinearLayer) -> tuple[str, ...]:
        """Return the kinds of routines that a layer calls, in the order of the calls."""
        packed = linear.packing is not None
        if linear.tiled and self.int8 and ("gemm_int8", linear.packing) in self.library.routines:
            return ("quantize_int8", "gemm_int8")
        if linear.halves:
            return (HALVES,)
        tiles = "_tiles" if linear.tiled else ""
        if linear.single and packed:
            return (f"gemv_prepare{tiles}", f"gemv{tiles}")
        # Float32 tiles: one routine for any number of rows.
        return (f"{'gemv' if linear.single and not tiles else 'gemm'}{tiles}",)

    def product(self, linear: LinearLayer) -> str:
        """Return the symbol of the routine that multiplies; errors as :meth:`symbol`."""
        return self.symbol(self.kinds(linear)[-1], linear.packing)

    def has(self, kind: str) -> bool:
        """Return True if the library has a routine of this kind for weights that are not packed."""
        return (kind, None) in self.library.routines

    def symbol(self, kind: str, packing: Packing | None) -> str:
        """Return the symbol of a routine for a packing of weights.

        Args:
            kind: as in :class:`crosslab.assemble.kernels.Routine`.
            packing: layout of quantized weights, or None.

        Raises:
            PatternMismatch: the library has none for such weights.
        """
        found = self.library.routines.get((kind, packing))
        if found is None:
            weights = packing or "float32"
            raise PatternMismatch(f"no {kind} for weights ({weights}) in {self.library.index}")
        return found


def product(linear: LinearLayer, out: Any, routines: Routines) -> Any:
    """Return the statement that computes a linear layer into ``out``."""
    kind = routines.kinds(linear)[-1]
    if kind == "gemm_int8":
        return _gemm_int8(linear, out, routines)
    if linear.tiled and linear.packing is None and not linear.halves:
        return _gemm_dense_tiles(linear, out, routines)
    return (_gemv if linear.single else _gemm)(linear, out, routines)


def take(taken: TakenRows, routines: Routines) -> Any:
    """Return the statement that gathers rows from tiles."""
    buffers = [taken.rows, taken.weight, *([taken.scale] if taken.packing else [])]
    count, k = taken.out.shape
    sizes = [count, taken.weight.shape[0], k, routines.columns]
    pointers = [taken.out.access_ptr("w"), *(buffer.access_ptr("r") for buffer in buffers)]
    return call(routines.symbol("take", taken.packing), [*pointers, *map(int64, sizes)])


def _gemm_dense_tiles(linear: LinearLayer, out: Any, routines: Routines) -> Any:
    """Return a product with float32 weights in tiles; a task computes whole tiles."""
    k, columns = int64(linear.k), int64(routines.columns)

    def arguments(first: Any, rows: Any, start: Any, count: Any) -> list[Any]:
        sizes = [rows, count, k, int64(linear.n), k, columns]
        return [*_matrices(linear, out, first, start), *_weights(linear, start), *sizes]

    return _products(routines.product(linear), linear, out, routines, arguments)


def _gemm_int8(linear: LinearLayer, out: Any, routines: Routines) -> Any:
    """Return a product that quantizes its activations to int8; a task computes whole tiles."""
    k, columns = int64(linear.k), int64(routines.columns)
    words = -(-linear.k // INT8_GROUP) * INT8_WORDS
    ready = tirx.decl_buffer((int64(linear.rows) * words,), "int32", "ready")

    def arguments(first: Any, rows: Any, start: Any, count: Any) -> list[Any]:
        to = out.access_ptr("w", offset=first * int64(linear.n) + start)
        pointers = [to, ready.access_ptr("r", offset=first * words)]
        sizes = [rows, count, k, int64(linear.n), columns]
        return [*pointers, *_weights(linear, start), *sizes]

    def quantize(first: Any, count: Any, begin: Any, rows: Any) -> Any:
        to = ready.access_ptr("w", offset=begin * words + (first - begin) * INT8_WORDS)
        pointers = [to, linear.data.access_ptr("r", offset=first * k)]
        return call(routines.symbol("quantize_int8", None), [*pointers, count, k, k, rows])

    parts = _parts(linear, routines)
    products = _products(routines.product(linear), linear, out, routines, arguments, parts=parts)
    statements = [*parts.bindings, parts.rounded(quantize), products]
    return _opaque("rounded", linear, out, tirx.SeqStmt(statements), [ready])


def _gemm(linear: LinearLayer, out: Any, routines: Routines) -> Any:
    """Return a product with any number of rows; a task computes a panel of outputs."""
    k, columns = int64(linear.k), routines.columns
    panel = tirx.decl_buffer((PANEL_ROWS * columns,), "float32", "panel")

    def arguments(first: Any, rows: Any, start: Any, count: Any) -> list[Any]:
        sizes = [rows, count, k, int64(linear.n), k]
        if linear.packing is None:
            sizes.append(k)
        scratch = [panel.access_ptr("rw"), int64(PANEL_ROWS), int64(columns)]
        matrices = _matrices(linear, out, first, start)
        return [*matrices, *_weights(linear, start), *sizes, *scratch]

    return _products(routines.product(linear), linear, out, routines, arguments, [panel])


def _gemv(linear: LinearLayer, out: Any, routines: Routines) -> Any:
    """Return a product with one row; a task computes neighbouring outputs."""
    k, packing = int64(linear.k), linear.packing
    data = linear.data
    if packing is not None:
        floats = packing.groups(linear.k) * (packing.group + READY_EXTRA)
        data = ready = tirx.decl_buffer((floats,), "float32", "ready")

    def arguments(_first: Any, _rows: Any, start: Any, count: Any) -> list[Any]:
        pointers = [out.access_ptr("w", offset=start), data.access_ptr("r")]
        sizes = [count, k] if packing or linear.tiled else [count, k, k]
        tile = [int64(routines.columns)] if linear.tiled else []
        return [*pointers, *_weights(linear, start), *sizes, *tile]

    tasks = _products(routines.product(linear), linear, out, routines, arguments)
    if packing is None:
        return tasks
    prepare = routines.symbol(routines.kinds(linear)[0], packing)
    first = call(prepare, [ready.access_ptr("w"), linear.data.access_ptr("r"), k])
    return _opaque("prepared", linear, out, tirx.SeqStmt([first, tasks]), [ready])


def _matrices(linear: LinearLayer, out: Any, first: Any, start: Any) -> list[Any]:
    """Return pointers to the outputs at a row and column, and to the inputs at the row."""
    to = out.access_ptr("w", offset=first * int64(linear.n) + start)
    return [to, linear.data.access_ptr("r", offset=first * int64(linear.k))]


def _weights(linear: LinearLayer, start: Any) -> list[Any]:
    """Return pointers to the weights and scales of the outputs from ``start`` on."""
    packing, k = linear.packing, linear.k
    if packing is None:
        return [linear.weight.access_ptr("r", offset=start * k)]
    packed = linear.weight.access_ptr("r", offset=start * packing.words(k))
    return [packed, linear.scale.access_ptr("r", offset=start * packing.groups(k))]


def outputs_of_a_task(n: Any, k: int, columns: int) -> int:
    """Return the number of outputs of a task: a panel's, or several panels' if small or very many.

    The smaller tasks are, the less threads differ. Panels are whole: their rows may lie in lanes.
    """
    panels = -(-TASK_WEIGHTS // (k * columns))
    if isinstance(n, tirx.IntImm):
        panels = max(panels, int(n) // columns // TASKS)
    return panels * columns


def _parts(linear: LinearLayer, routines: Routines) -> Parts:
    """Return the parts of the rows of a layer's inputs, which threads compute in parallel.

    The number of threads, known at run time, decides the number of parts.
    """
    return Parts.of(linear.rows, linear.n, routines.columns)


def _products(
    symbol: str,
    linear: LinearLayer,
    out: Any,
    routines: Routines,
    arguments: Callable[[Any, Any, Any, Any], list[Any]],
    allocated: Sequence[Any] = (),
    *,
    parts: Parts | None = None,
) -> Any:
    """Return parallel calls of a kernel, each for a part of the rows and a panel of outputs.

    ``arguments(first row, rows, first output, outputs)`` gives a call's arguments. Without
    ``parts``, the statement also splits the rows.
    """
    of_rows = parts or _parts(linear, routines)
    columns = routines.columns
    width = outputs_of_a_task(linear.n, linear.k, columns) if linear.single else columns

    def body(first: Any, rows: Any, start: Any, count: Any) -> Any:
        statement = call(symbol, arguments(first, rows, start, count))
        return _opaque(linear.stage.name, linear, out, statement, allocated)

    tasks = of_rows.shared(linear.n, width, body)
    if parts or not of_rows.bindings:
        return tasks
    return _opaque("parts", linear, out, tirx.SeqStmt([*of_rows.bindings, tasks]), [])


def call(symbol: str, arguments: list[Any]) -> Any:
    """Return the statement that calls a C function without a result.

    Each size is cast to int64, although it has that type already: a later pass may make all
    indices int32, and would also change the arguments of a call that are not cast.

    Args:
        symbol: name of the function.
        arguments: pointers, and sizes as expressions of int64.
    """
    words = [
        tirx.Cast("int64", a) if str(getattr(a.ty, "dtype", "")) == "int64" else a
        for a in arguments
    ]
    return tirx.Evaluate(tirx.call_extern("void", symbol, *words))


def _opaque(name: str, linear: LinearLayer, out: Any, body: Any, allocated: Sequence[Any]) -> Any:
    """Wrap opaque calls in a block that declares the buffers that they access."""
    inputs = [linear.data, linear.weight, linear.scale]
    reads = [whole(buffer) for buffer in inputs if buffer is not None]
    return block_of(body, name, reads, [whole(out)], allocated)


def experts_gemm(experts: Experts, symbol: str, columns: int) -> Callable[..., Any]:
    """Return a ``call`` of :func:`experts.call_for_each`; a task computes a panel of outputs."""
    n, k, packing = experts.n, experts.k, experts.packing

    def make(expert: Any, first: Any, of_data: Any, rows: Any) -> Any:
        panel = tirx.decl_buffer((PANEL_ROWS * columns,), "float32", "panel")
        task = tirx.Var("task", "int32")
        start = task * columns

        def access(buffer: Any, mode: str, offset: Any) -> Any:
            return buffer.access_ptr(mode, offset=int64(offset))

        outputs = int64(expert) * n + start
        c = access(experts.out, "w", int64(first) * n + start)
        a = access(experts.data, "r", int64(of_data) * k)
        sizes = [int64(rows), int64(tirx.min(n - start, columns)), int64(k), int64(n)]
        scratch = [panel.access_ptr("rw"), int64(PANEL_ROWS), int64(columns)]
        if packing is None:
            weight = access(experts.weight, "r", outputs * k)
            arguments = [c, a, weight, *sizes, int64(k), int64(k), *scratch]
        else:
            weight = access(experts.weight, "r", outputs * packing.words(k))
            scale = access(experts.scale, "r", outputs * packing.groups(k))
            arguments = [c, a, weight, scale, *sizes, int64(k), *scratch]
        statement = opaque(experts, call(symbol, arguments), [panel])
        tasks = tirx.For(task, 0, -(-n // columns), tirx.ForKind.PARALLEL, statement)
        return tirx.IfThenElse(rows > 0, tasks, None)

    return make
