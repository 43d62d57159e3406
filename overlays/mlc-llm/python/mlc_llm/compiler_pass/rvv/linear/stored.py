# SPDX-License-Identifier: Apache-2.0
"""Layers whose weights are in the blocks of a file (kernels/include/mlc_rvv_gguf.h).

:func:`stored_function` makes the function of such a layer, which only declares what it reads and
writes; CallLinearKernels gives it its statements once the target and its kernels are known. The
weights must be in tiles.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvm import tirx

from ..configuration import StoredSegment
from ..tir import block_of, whole, with_root
from .calls import Routines, call, outputs_of_a_task
from .parts import Parts, RowsOfExperts, int64
from .tiles import Places

ATTRIBUTE = "mlc_rvv.stored"
EXPERTS = "experts"
FLOAT = "float32"
# Type of a part, by the bytes of its elements. Halves are words, so that no pass widens them.
DTYPES = {1: "uint8", 2: "uint16"}
# The parts that a kernel takes, in its order.
ORDER = ("quants", "high", "scales", "factors")
Rows = Parts | RowsOfExperts
UNFILLED = "mlc_rvv_stored_weights_need_the_project_s_kernels"


@dataclass(frozen=True)
class StoredLayer:
    """A layer whose weights are stored in a file's blocks, as made by :func:`stored_function`.

    Attributes:
        kind: "linear": out[rows, n] = data[rows, k] * transpose(weights); "experts": the same with
            the weights [experts, n, k] of the expert that has the row; or "take":
            out[rows, k] = weights[data[rows]].
        data: activations, float32, or numbers of rows, int32.
        parts: buffers of the segments' parts, one after the other.
        out: of it.
        segments: of the weights.
        index: of experts: the rows from its element e up to the next one are of expert e; or
            [1, rows], the expert of each row, and of one row of data the product with each.
    """

    kind: str
    data: Any
    parts: list[Any]
    out: Any
    segments: tuple[StoredSegment, ...]
    index: Any = None

    @property
    def rows(self) -> Any:
        """Return the number of output rows."""
        rows: Any = 1
        for extent in self.out.shape[:-1]:
            rows = extent * rows
        return int64(rows)

    def of_segment(self, index: int) -> dict[str, Any]:
        """Return the buffers of a segment's parts, by the part's name."""
        first = sum(len(segment.parts) for segment in self.segments[:index])
        parts = self.segments[index].parts
        return {part.name: self.parts[first + i] for i, part in enumerate(parts)}


def stored_function(
    kind: str,
    arguments: Sequence[tuple[Sequence[Any], str]],
    out: Sequence[Any],
    segments: tuple[StoredSegment, ...],
) -> tirx.PrimFunc:
    """Return the TIR function of a layer; :func:`fill_in` adds its statements.

    Args:
        kind: see :class:`StoredLayer`.
        arguments: shape and type of the data, of all parts, and of an index of experts, if any.
        out: shape of the output.
        segments: of the weights.
    """
    buffers = [
        tirx.decl_buffer(shape, dtype, f"buffer_{i}") for i, (shape, dtype) in enumerate(arguments)
    ]
    written = tirx.decl_buffer(out, FLOAT, "out")
    body = tirx.Evaluate(tirx.call_extern("void", UNFILLED))
    block = block_of(body, f"stored_{kind}", [whole(b) for b in buffers], [whole(written)])
    func = tirx.PrimFunc([*buffers, written], block_of(block, "root", [], []))
    about = {"kind": kind, "segments": [asdict(segment) for segment in segments]}
    attrs = {ATTRIBUTE: json.dumps(about), "tirx.noalias": True, "s_tir": True}
    return func.with_attrs({**attrs, "tirx.is_scheduled": True})


def stored_layer(func: tirx.PrimFunc) -> StoredLayer | None:
    """Return the layer that a function computes; None for functions without stored weights."""
    text = func.attrs.get(ATTRIBUTE) if func.attrs is not None else None
    if text is None:
        return None
    about = json.loads(str(text))
    segments = tuple(map(StoredSegment.of, about["segments"]))
    data, *parts, out = func.params
    index = parts.pop() if about["kind"] == EXPERTS else None
    return StoredLayer(about["kind"], data, parts, out, segments, index)


def stored_places(layer: StoredLayer) -> Places:
    """Map the positions of the weights among the parameters to bytes of an element."""
    items = [part.item for segment in layer.segments for part in segment.parts]
    return {1 + i: item for i, item in enumerate(items)}


def fill_in(
    func: tirx.PrimFunc, layer: StoredLayer, routines: Routines, *, tiled: bool
) -> tuple[tirx.PrimFunc, str]:
    """Add the statements that call kernels to the function of a layer.

    Returns:
        The function, and the symbols that it calls, joined by commas.

    Raises:
        RuntimeError: the weights are not in tiles.
        PatternMismatch: the library has no such kernel.
    """
    if not tiled:
        raise RuntimeError("weights in a file's blocks must be in tiles: set weights to 'tiles'")
    verb = "take" if layer.kind == "take" else "gemm"
    kinds = [f"{verb}_gguf_{segment.format}" for segment in layer.segments]
    symbols = [routines.symbol(kind, None) for kind in kinds]
    make = _take if layer.kind == "take" else _linear
    new = with_root(func, [make(layer, symbols, routines)], [])
    return new, ", ".join(dict.fromkeys(symbols))


def _pointers(buffers: dict[str, Any], start: Any, segment: StoredSegment) -> list[Any]:
    """Return pointers to a segment's parts at output ``start``; quants replace missing parts."""
    columns = {part.name: part.columns for part in segment.parts}
    return [
        buffers[name].access_ptr("r", offset=start * columns[name])
        if name in buffers
        else buffers["quants"].access_ptr("r")
        for name in ORDER
    ]


def _take(layer: StoredLayer, symbols: list[str], routines: Routines) -> Any:
    segment, buffers = layer.segments[0], layer.of_segment(0)
    n, k = buffers["quants"].shape[0], layer.out.shape[-1]
    pointers = [layer.out.access_ptr("w"), layer.data.access_ptr("r")]
    sizes = [layer.rows, n, k, routines.columns]
    weights = _pointers(buffers, int64(0), segment)
    statement = call(symbols[0], [*pointers, *weights, *map(int64, sizes)])
    return _block(layer, "take", statement, [])


def _linear(layer: StoredLayer, symbols: list[str], routines: Routines) -> Any:
    """Return a product that quantizes activations once per block length; a task computes tiles."""
    ready: dict[int, Any] = {}
    for segment in layer.segments:
        if segment.block not in ready:
            size = layer.rows * _ready_bytes(layer, segment.block)
            ready[segment.block] = tirx.decl_buffer((size,), "uint8", f"ready_{segment.block}")
    if layer.index is None:
        most = max(segment.rows for segment in layer.segments)
        parts: Rows = Parts.of(layer.rows, most, routines.columns)
    else:
        by_row = len(layer.index.shape) > 1
        parts = RowsOfExperts(layer.index, by_row and int(layer.data.shape[0]) == 1)
    statements = [*parts.bindings]
    statements += [_round(layer, routines, parts, *of_block) for of_block in ready.items()]
    start = 0
    for i, segment in enumerate(layer.segments):
        product = _segment(layer, i, start, ready[segment.block], symbols[i], routines, parts)
        statements.append(product)
        start += segment.rows
    return _block(layer, "rounded", tirx.SeqStmt(statements), list(ready.values()))


def _inputs(layer: StoredLayer) -> int:
    return int(layer.data.shape[-1])


def _ready_bytes(layer: StoredLayer, block: int) -> int:
    """Return the bytes of a quantized row: values, scales, and sums of eight values."""
    return _inputs(layer) // block * (block + 4 + block // 8 * 2)


def _round(layer: StoredLayer, routines: Routines, parts: Rows, block: int, ready: Any) -> Any:
    """Return parallel calls that quantize rows; blocks of a part's rows are interleaved."""
    k, row = int64(_inputs(layer)), _ready_bytes(layer, block)
    each = block + 4 + block // 8 * 2

    def some(first: Any, count: Any, begin: Any, rows: Any) -> Any:
        to = ready.access_ptr("w", offset=begin * row + (first - begin) * each)
        source = layer.data.access_ptr("r", offset=first * k)
        arguments = [to, source, count, k, k, rows, int64(block)]
        return call(routines.symbol("quantize_blocks", None), arguments)

    return parts.rounded(some)


def _segment(
    layer: StoredLayer,
    index: int,
    column: int,
    ready: Any,
    symbol: str,
    routines: Routines,
    parts: Rows,
) -> Any:
    segment, buffers = layer.segments[index], layer.of_segment(index)
    k, all_outputs = _inputs(layer), int64(layer.out.shape[-1])
    n = buffers["quants"].shape[-2]
    one_row = isinstance(layer.rows, tirx.IntImm) and int(layer.rows) == 1
    width = outputs_of_a_task(n, k, routines.columns) if one_row else routines.columns

    def some(first: Any, rows: Any, start: Any, count: Any, expert: Any = 0) -> Any:
        to = layer.out.access_ptr("w", offset=first * all_outputs + column + start)
        row = parts.row_of_data(first)
        rounded = ready.access_ptr("r", offset=row * _ready_bytes(layer, segment.block))
        sizes = [rows, count, int64(k), all_outputs, int64(routines.columns)]
        pointers = [to, rounded, *_pointers(buffers, expert * n + start, segment)]
        return _block(layer, "product", call(symbol, [*pointers, *sizes]), [])

    return parts.shared(n, width, some)


def _block(layer: StoredLayer, name: str, body: Any, allocated: list[Any]) -> Any:
    inputs = [layer.data, *layer.parts, *([] if layer.index is None else [layer.index])]
    reads = [whole(buffer) for buffer in inputs]
    return block_of(body, name, reads, [whole(layer.out)], allocated)
