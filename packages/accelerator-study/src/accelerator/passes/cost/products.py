# SPDX-License-Identifier: Apache-2.0
"""Recognition of matrix products and other work in a TIR function."""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from .expressions import (
    bits_of,
    carries,
    data_loads_in,
    extent_text,
    factors_of,
    gathers,
    index_text,
    loads_in,
    nodes_in,
    product_of,
    replaced,
    same_buffer,
    uses,
)
from .records import Extent, Operand, Other, Product, Quantization

SPATIAL, REDUCTION = 0, 2

Derived = dict[Any, Any]  # parameter of a TIR function -> (work, Derived) that computes it


@dataclass
class Match:
    """A block that computes a product, still in TIR."""

    work: "FunctionWork"
    block: tirx.SBlock
    store: tirx.BufferStore
    sides: tuple[Any, Any]
    extents: dict[Any, Any]
    batch: list[Any]
    own: tuple[list[Any], list[Any]]
    reduction: list[Any]
    scales: list[Any]

    def describe(
        self,
        function: str,
        weights: dict[Any, str],
        symbols: dict[Any, Any],
        derived: Derived,
    ) -> Product:
        """Return the record of a caller's product; a factor that is a weight becomes B.

        Args:
            function: name of the TIR function.
            weights: names of the weights by parameter.
            symbols: sizes of the function in terms of its caller's sizes.
            derived: parameters that other functions compute from weights.
        """
        first, second = self.sides
        m, n = self.own
        heavy = [self._weight(side, weights) for side in self.sides]
        if heavy[0] and not heavy[1]:
            first, second, m, n = second, first, n, m
            heavy.reverse()
        a, b = (
            self._operand(side, weights, bool(w), rows, derived)
            for side, w, rows in ((first, heavy[0], m), (second, heavy[1], n))
        )
        a, b = self.work.with_epilogue_scales(self, a, b, m, n)

        def size(axes: list[Any]) -> Extent:
            return extent_text(product_of([self.extents[v] for v in axes]), symbols)

        gathered = any(gathers(side) for side in self.sides)
        kind = "moe" if gathered else "gemv" if size(m) == 1 else "gemm"
        return Product(
            function=function,
            block=self.block.name_hint,
            kind=kind,
            batch=size(self.batch),
            m=size(m),
            n=size(n),
            k=size(self.reduction),
            a=a,
            b=b,
            c_dtype=str(self.store.buffer.dtype),
        )

    def _weight(self, side: Any, weights: dict[Any, str]) -> str:
        return next((weights[r] for r in self.work.roots(side) if r in weights), "")

    def _operand(
        self, side: Any, weights: dict[Any, str], heavy: bool, rows: list[Any], derived: Derived
    ) -> Operand:
        load = max(loads_in(side), key=lambda x: len(x.indices))
        foreign = [v for axes in self.own for v in axes if not any(v.same_as(r) for r in rows)]
        scales = [f for f in self.scales if not uses(f, foreign)]
        factors = [x for f in (side, *scales) for x in factors_of(self.work.traced(f, derived))]
        bits, quantization = _quantization(factors, self.reduction[-1], rows, heavy)
        dtype = str(load.buffer.dtype)
        name = self._weight(side, weights) or load.buffer.name
        return Operand(
            name, dtype, bits or bits_of(dtype), heavy, index_text(load.indices), quantization
        )


class FunctionWork:
    """The work of a TIR function: products, other blocks, and reasons for unreadable blocks."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.func = func
        self.matches: list[Match] = []
        self.plain: list[tuple[tirx.SBlock, Any]] = []
        self.problems: list[str] = []
        self.producers: dict[Any, tuple[tirx.SBlock, tirx.BufferStore]] = {}
        self._scan()

    def _scan(self) -> None:
        nodes = nodes_in(self.func.body)
        blocks = [n for n in nodes if isinstance(n, tirx.SBlock) and n.name_hint != "root"]
        loops = [n for n in nodes if isinstance(n, (tirx.For, tirx.While))]
        if not blocks:
            self.problems.append("a TIR function without blocks")
        covered = sum(len(b.iter_vars) for b in blocks)
        if len(loops) > covered or any(isinstance(x, tirx.While) for x in loops):
            self.problems.append("loops that are not axes of a block")
            return
        for block in blocks:
            if isinstance(block.body, tirx.BufferStore):
                self.producers[block.body.buffer] = (block, block.body)
        for block in blocks:
            extents = {v.var: v.dom.extent for v in block.iter_vars}
            match = self._match(block, extents)
            if match is None:
                self.plain.append((block, product_of(list(extents.values()))))
            else:
                self.matches.append(match)

    def _match(self, block: tirx.SBlock, extents: dict[Any, Any]) -> Match | None:
        reduction = [v.var for v in block.iter_vars if int(v.iter_type) == REDUCTION]
        spatial = [v.var for v in block.iter_vars if int(v.iter_type) == SPATIAL]
        store = block.body
        if not reduction or not isinstance(store, tirx.BufferStore):
            return None
        factors = [f for f in factors_of(_summand(store)) if loads_in(f)]
        sides = [f for f in factors if carries(f, reduction)]
        scales = [f for f in factors if not carries(f, reduction)]
        if len(sides) != 2 or tvm_ffi.structural_equal(*sides):
            return None
        seen = [[v for v in spatial if uses(side, [v])] for side in sides]
        batch = [v for v in spatial if all(v in u for u in seen) or not any(v in u for u in seen)]
        first, second = ([v for v in u if v not in batch] for u in seen)
        own, pair = (first, second), (sides[0], sides[1])
        return Match(self, block, store, pair, extents, batch, own, reduction, scales)

    def roots(self, expr: Any) -> list[Any]:
        """Return the function's parameters from which an expression is computed."""
        roots = []
        for load in loads_in(self.inlined(expr)):
            roots += [p for p in self.func.params if same_buffer(p, load)]
        return roots

    def inlined(self, expr: Any, depth: int = 8) -> Any:
        """Return the expression with elementwise blocks inlined at loads of their results."""
        for load in loads_in(expr) if depth else []:
            producer = self.producers.get(load.buffer)
            value = None if producer is None else _value_at(*producer, load.indices)
            if value is not None:
                return self.inlined(replaced(expr, load, value), depth - 1)
        return expr

    def traced(self, expr: Any, derived: Derived) -> Any:
        """Inline blocks as :meth:`inlined`, also of the functions that compute the parameters."""
        expr = self.inlined(expr)
        for param, (work, further) in derived.items():
            for load in [x for x in loads_in(expr) if same_buffer(param, x)]:
                result = work.result_at(load.indices)
                if result is not None:
                    expr = replaced(expr, load, work.traced(result, further))
        return expr

    def result_at(self, indices: Any) -> Any:
        """Return the function's result at an index; None if several, or not elementwise."""
        results = [
            (block, store)
            for block, store in self.producers.values()
            if any(same_buffer(p, store) for p in self.func.params)
        ]
        return _value_at(*results[0], indices) if len(results) == 1 else None

    def with_epilogue_scales(
        self, match: Match, a: Operand, b: Operand, m: list[Any], n: list[Any]
    ) -> tuple[Operand, Operand]:
        """Return the operands; if both are integers, with scales that apply to finished sums.

        ``m`` and ``n`` are the axes of ``a`` and of ``b`` in the result.
        """
        if not a.dtype.startswith(("int", "uint")) or not b.dtype.startswith(("int", "uint")):
            return a, b
        axes = dict(enumerate(match.store.indices))
        grains = []
        for block, _ in self.plain:
            value = getattr(block.body, "value", None)
            source = [x for x in loads_in(value) if x.buffer.same_as(match.store.buffer)]
            for factor in factors_of(value) if source else []:
                for load in loads_in(factor):
                    if not load.buffer.same_as(match.store.buffer):
                        used = {p for p, v in enumerate(source[0].indices) if uses(load, [v])}
                        used = {axes[p] for p in used}
                        side = "b" if used & set(n) else "a" if used & set(m) else ""
                        grains.append((side, bits_of(load.buffer.dtype)))
        named = {"a": ("token", a), "b": ("channel", b)}
        out = {key: op for key, (_, op) in named.items()}
        for key, (grain, operand) in named.items():
            width = next((bits for side, bits in grains if side in (key, "")), 0)
            exact = any(side == key for side, _ in grains)
            if width:
                scheme = Quantization(grain if exact else "tensor", 0, width)
                out[key] = Operand(**{**vars(operand), "quantization": scheme})
        return out["a"], out["b"]

    def describe_others(
        self, function: str, names: dict[Any, str], symbols: dict[Any, Any]
    ) -> list[Other]:
        """Return the work of all blocks that are not products, as at most a single item.

        Args:
            function: name of the function.
            names: of the parameters that are weights.
            symbols: sizes of the function in terms of its caller's sizes.
        """
        if not self.plain:
            return []
        operands = [r for m in self.matches for side in m.sides for r in self.roots(side)]
        written = [p for p in self.func.params if any(same_buffer(p, s) for s in self._stores())]
        others = [p for p in self.func.params if p not in written and p not in operands]
        read = [0] + [self._bits_read(p) for p in others]
        fixed = [0] + [self._bits_read(p) for p in others if p in names]
        wrote = [0] + [
            product_of(list(p.ty.shape)) * bits_of(p.ty.dtype) for p in written if not self.matches
        ]
        extents = [extent for _, extent in self.plain]
        blocks = "+".join(dict.fromkeys(b.name_hint for b, _ in self.plain))
        done, bits_read, bits_written, bits_weights = (
            extent_text(reduce(lambda x, y: x + y, parts), symbols)
            for parts in (extents, read, wrote, fixed)
        )
        return [Other(function, blocks, done, bits_read, bits_written, bits_weights)]

    def _stores(self) -> list[tirx.BufferStore]:
        return [n for n in nodes_in(self.func.body) if isinstance(n, tirx.BufferStore)]

    def _bits_read(self, param: Any) -> Any:
        """Return the bits of a parameter, or of the loops' elements if blocks gather from it."""
        if not isinstance(param.ty, tirx.BufferType):
            return 0
        size = product_of(list(param.ty.shape))
        for block, extent in self.plain:
            loads = [
                x for x in loads_in(getattr(block.body, "value", None)) if same_buffer(param, x)
            ]
            if any(gathers(x) for x in loads):
                size = extent
        return size * bits_of(param.ty.dtype)


def _value_at(block: tirx.SBlock, store: tirx.BufferStore, indices: Any) -> Any:
    """Return the value that a block stores at an index; None if it is not elementwise."""
    if any(int(v.iter_type) != SPATIAL for v in block.iter_vars):
        return None
    if not all(isinstance(v, tirx.Var) for v in store.indices):
        return None
    here = dict(zip(store.indices, indices, strict=True))
    return tirx.stmt_functor.substitute(tirx.Evaluate(store.value), here).value


def _summand(store: tirx.BufferStore) -> Any:
    """Return ``e`` of ``C = C + e``; None for another reduction."""
    value = store.value
    if not isinstance(value, tirx.Add):
        return None
    for target, other in ((value.a, value.b), (value.b, value.a)):
        if isinstance(target, tirx.BufferLoad) and target.buffer.same_as(store.buffer):
            return other
    return None


def _quantization(
    factors: list[Any], axis: Any, rows: list[Any], heavy: bool
) -> tuple[int, Quantization]:
    """Return the width of an operand's stored integers (0: not integers), and its scales.

    ``axis`` is the reduction's, ``rows`` are the operand's own; ``heavy``: the operand is a weight.
    """
    cores = [f for f in factors if carries(f, [axis])]
    integers = [x for f in cores for x in data_loads_in(f) if "int" in str(x.buffer.dtype)]
    if not integers:
        return 0, Quantization()
    scales = [x for f in factors if not carries(f, [axis]) for x in data_loads_in(f)]
    zeros = [
        x
        for f in cores
        for n in nodes_in(f)
        if isinstance(n, tirx.Sub)
        for x in loads_in(n.b)
        if not carries(x, [axis])
    ]
    masks = [int(m) for f in cores for n in nodes_in(f) for m in [_mask(n)] if m is not None]
    bits = masks[0].bit_count() if masks else bits_of(integers[0].buffer.dtype)
    if not scales:
        return bits, Quantization()
    groups = [
        int(n.b)
        for i in scales[0].indices
        for n in nodes_in(i)
        if isinstance(n, tirx.FloorDiv) and uses(n.a, [axis]) and isinstance(n.b, tirx.IntImm)
    ]
    grain = "tensor"
    if groups:
        grain = "group"
    elif uses(scales[0], rows):
        grain = "channel" if heavy else "token"
    return bits, Quantization(
        grain,
        groups[0] if groups else 0,
        bits_of(scales[0].buffer.dtype),
        bits_of(zeros[0].buffer.dtype) if zeros else 0,
    )


def _mask(node: Any) -> tirx.IntImm | None:
    """Return the constant of a bitwise and: a call in TVM 0.26, an expression class in 0.27."""
    if isinstance(node, ir.Call) and getattr(node.op, "name", "").endswith("bitwise_and"):
        operand = node.args[1]
    elif type(node).__name__ == "BitwiseAnd":
        operand = node.b
    else:
        return None
    return operand if isinstance(operand, tirx.IntImm) else None
