# SPDX-License-Identifier: Apache-2.0
"""Finds the matrix products of a module, and all other work, for a cost estimate.

:class:`EstimateCost` leaves the module as it is and writes what it found as JSON. It stands
after fusion and before schedules, where products are still whole loops. Products are known by
their structure: a reduction ``C[...] += X * Y`` in which both factors run along the reduction.
Axes of both factors are the batch, axes of one are M or N. Dequantization is followed through
the elementwise blocks before a product. Extents may be symbolic; they are kept as text such
as ``seq_len*4`` in the names of the calling Relax function.

The file goes to ``MLC_RVV_COST_REPORT``, or to ``cost_workloads.json`` in a debug-dump folder.
``python -m crosslab cost`` reads it. This module imports nothing but TVM.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, arith, ir, relax, tirx

REPORT_VARIABLE = "MLC_RVV_COST_REPORT"
DUMP_NAME = "cost_workloads.json"
SCHEMA = 1

# The paged cache computes attention behind one call: its two products follow from its shapes.
ATTENTION = "vm.builtin.attention_kv_cache_attention_with_fused_qkv"
CONTEXT = "context"
SPATIAL, REDUCTION = 0, 2
NO_WORK = (
    *("relax.shape_of", "relax.null_value", "relax.print", "relax.assert_op"),
    *("relax.builtin.alloc_tensor", "vm.builtin.reshape"),
    "vm.builtin.paged_attention_kv_cache_create",
)

Extent = int | str


@dataclass(frozen=True)
class Quantization:
    """Scales of an operand: none, tensor, channel, token or group; widths in bits."""

    grain: str = "none"
    group: int = 0
    scale_bits: int = 0
    zero_bits: int = 0


@dataclass(frozen=True)
class Operand:
    """One factor: the parameter it comes from, its width as stored, and its index map."""

    name: str
    dtype: str
    bits: int
    weight: bool
    index: str
    quantization: Quantization = field(default_factory=Quantization)


@dataclass(frozen=True)
class Product:
    """``batch`` products of M x K by K x N, done ``count`` times."""

    function: str
    block: str
    kind: str
    batch: Extent
    m: Extent
    n: Extent
    k: Extent
    layout: str
    a: Operand
    b: Operand
    c_dtype: str
    c_index: str
    count: int = 1


@dataclass(frozen=True)
class Other:
    """Work that is no product: instances of its loops, bits read and written."""

    function: str
    block: str
    elements: Extent
    bits_read: Extent
    bits_written: Extent
    count: int = 1


@dataclass(frozen=True)
class Unclassified:
    """A call whose work is not known, and why."""

    callee: str
    reason: str
    count: int = 1


@dataclass
class Entry:
    """One Relax function."""

    products: list[Product] = field(default_factory=list)
    others: list[Other] = field(default_factory=list)
    unclassified: list[Unclassified] = field(default_factory=list)


@tvm.transform.module_pass(opt_level=0, name="EstimateCost")
class EstimateCost:
    """Writes the workloads of a module to a file; the module itself is returned unchanged."""

    def __init__(self, debug_dump: Path | None = None) -> None:
        self.debug_dump = debug_dump

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Write the report when somebody asked for one."""
        wanted = os.environ.get(REPORT_VARIABLE)
        path = Path(wanted) if wanted else self.debug_dump and Path(self.debug_dump) / DUMP_NAME
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(workloads(mod), indent=1) + "\n", encoding="utf-8")
        return mod


def lower_graph(mod: IRModule) -> IRModule:
    """Turn a graph of Relax operators into fused TIR functions, as the pipelines do."""
    r = relax.transform
    steps = [r.LegalizeOps(), r.AnnotateTIROpPattern(), r.FoldConstant(), r.FuseOps(), r.FuseTIR()]
    with tvm.target.Target("llvm"):
        return tvm.transform.Sequential([*steps, r.DeadCodeElimination()])(mod)


def workloads(mod: IRModule) -> dict[str, Any]:
    """Describe every public Relax function of a module of fused TIR functions.

    Returns:
        ``{"schema": 1, "entries": {function: {"products", "others", "unclassified"}},
        "functions": {callee: {"params", "products", "others"}}}``, with equal items of an entry
        counted together; extents are integers or text. An entry speaks of its own symbolic
        sizes; a callee of those in the shapes of its parameters, for traces of real calls.
    """
    entries = {}
    functions: dict[str, Any] = {}
    for g_var, func in mod.functions_items():
        if isinstance(func, relax.Function) and "global_symbol" in (func.attrs or {}):
            entry = Entry()
            _Walk(mod, entry, functions).function(func, None)
            entries[g_var.name_hint] = {
                part: [asdict(i) for i in _counted(items)] for part, items in vars(entry).items()
            }
    return {"schema": SCHEMA, "entries": entries, "functions": functions}


def _counted(items: list[Any]) -> Iterator[Any]:
    counts: dict[Any, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    for item, count in counts.items():
        yield type(item)(**{**vars(item), "count": count})


Derived = dict[Any, Any]  # parameter of a TIR function -> (work, Derived) that computes it


class _Walk:
    """Goes through the calls of a Relax function."""

    def __init__(self, mod: IRModule, entry: Entry, functions: dict[str, Any]) -> None:
        self.mod, self.entry, self.functions = mod, entry, functions
        self.known: dict[Any, FunctionWork] = {}
        self.derived: dict[Any, tuple[FunctionWork, Derived]] = {}

    def function(self, func: relax.Function, weights: dict[Any, str] | None) -> None:
        names = dict(weights or {})
        if weights is None:
            inputs = int((func.attrs or {}).get("num_input", len(func.params)))
            names = {p: p.name for p in func.params[inputs:]}
        for block in func.body.blocks if isinstance(func.body, relax.SeqExpr) else []:
            for binding in block.bindings:
                self.binding(binding, names)

    def binding(self, binding: Any, weights: dict[Any, str]) -> None:
        value = binding.value
        picked = isinstance(value, relax.TupleGetItem) and value.tuple_value in weights
        if picked or isinstance(value, relax.Constant):
            weights[binding.var] = binding.var.name
        elif isinstance(value, relax.Var) and value in weights:
            weights[binding.var] = weights[value]
        elif isinstance(value, relax.Call):
            self.call(value, weights, binding.var)
        elif isinstance(value, relax.If):
            self.problem("if", "a branch: neither side is counted")

    def call(self, call: relax.Call, weights: dict[Any, str], out: Any) -> None:
        callee = call.op
        if isinstance(callee, ir.GlobalVar):
            func = self.mod[callee]
            inner = {
                p: weights[a] for p, a in zip(func.params, call.args, strict=False) if a in weights
            }
            self.function(func, inner)
        elif isinstance(callee, relax.ExternFunc):
            self.unknown(str(callee.global_symbol), "a packed function")
        elif callee.name in ("relax.call_tir", "relax.call_tir_inplace"):
            self.call_tir(call, weights, out)
        elif callee.name in ("relax.call_dps_packed", "relax.call_pure_packed"):
            self.packed(call)
        else:
            self.unknown(callee.name, "a Relax operator that is not lowered")

    def packed(self, call: relax.Call) -> None:
        target, args = call.args[0], call.args[1]
        name = str(getattr(target, "global_symbol", target))
        if name != ATTENTION:
            self.unknown(name, "a packed function")
            return
        qkv, out = args[3].ty, call.ty_args[0]
        lead = list(out.shape)[:-2]
        tokens = _text(_product(lead))
        self.entry.products += _attention(qkv, out, tokens)
        self.entry.others.append(_softmax(out, tokens))
        names = [f"tokens{n}" for n in range(len(lead))]
        shapes = [[*names, *(_text(d) for d in list(ty.shape)[-2:])] for ty in (qkv, out)]
        products = _attention(qkv, out, "*".join(names))
        work = [_softmax(out, "*".join(names))]
        self._callee(name, [None, None, None, *shapes], products, work)

    def _callee(
        self, name: str, params: list[Any], products: list[Product], others: list[Other]
    ) -> None:
        work = {"products": products, "others": others}
        parts = {part: [asdict(i) for i in items] for part, items in work.items()}
        self.functions.setdefault(name, {"params": params, **parts})

    def call_tir(self, call: relax.Call, weights: dict[Any, str], out: Any) -> None:
        g_var, args = call.args[0], list(call.args[1])
        func = self.mod[g_var]
        if g_var not in self.known:
            self.known[g_var] = FunctionWork(func)
        work = self.known[g_var]
        pairs = list(zip(func.params, args, strict=False))
        symbols = _bound_symbols(func, args, call)
        names = {p: weights[a] for p, a in pairs if a in weights}
        names |= {p: "constant" for p, a in pairs if isinstance(a, relax.Constant)}
        derived = {p: self.derived[a] for p, a in pairs if a in self.derived}
        if args and len(names) == len(args):
            # A weight transposed or dequantized by a function of its own is still a weight.
            weights[out] = names[func.params[0]]
            self.derived[out] = (work, derived)
        function, entry = g_var.name_hint, self.entry
        entry.products += [m.describe(function, names, symbols, derived) for m in work.matches]
        entry.others += work.describe_others(function, symbols)
        params = [_shape(p) for p in func.params]
        own = [m.describe(function, names, {}, derived) for m in work.matches]
        self._callee(function, params, own, work.describe_others(function, {}))
        for reason in work.problems:
            self.problem(function, reason)

    def unknown(self, callee: str, reason: str) -> None:
        if callee not in NO_WORK:
            self.problem(callee, reason)

    def problem(self, callee: str, reason: str) -> None:
        self.entry.unclassified.append(Unclassified(callee, reason))


def _shape(param: Any) -> list[Extent] | None:
    return [_text(d) for d in param.ty.shape] if isinstance(param.ty, tirx.BufferType) else None


def _attention(qkv: Any, out: Any, tokens: Extent) -> list[Product]:
    """The two products of attention over a cache, from the shapes of one call."""
    heads, dim, out_dim = (_text(d) for d in (out.shape[-2], qkv.shape[-1], out.shape[-1]))
    kv = _text(tirx.floordiv(qkv.shape[-2] - out.shape[-2], 2))
    dtype = str(out.dtype)
    shared = f"b*{kv}//{heads}"

    def operand(name: str, index: str) -> Operand:
        return Operand(name, dtype, _bits(dtype), False, index)

    def product(block: str, n: Extent, k: Extent, layout: str, a: Operand, b: Operand) -> Product:
        extents = (heads, tokens, n, k)
        return Product(ATTENTION, block, "attention", *extents, layout, a, b, dtype, "[b,m,n]")

    query, key = operand("query", "[m,b,k]"), operand("key", f"[n,{shared},k]")
    scores, value = operand("scores", "[b,m,k]"), operand("value", f"[k,{shared},n]")
    return [
        product("QK", CONTEXT, dim, "NT", query, key),
        product("PV", out_dim, CONTEXT, "NN", scores, value),
    ]


def _softmax(out: Any, tokens: Extent) -> Other:
    """The work between the two products; its bits are those of the products' operands."""
    return Other(ATTENTION, "softmax", f"({_text(out.shape[-2])}*{tokens}*{CONTEXT})", 0, 0)


def _bound_symbols(func: tirx.PrimFunc, args: list[Any], call: relax.Call) -> dict[Any, Any]:
    """Symbolic sizes of a TIR function in terms of its caller's."""
    found: dict[Any, Any] = {}
    types = [a.ty for a in args] + [*call.ty_args]
    for param, ty in zip(func.params, types, strict=False):
        if not isinstance(param.ty, tirx.BufferType) or getattr(ty, "shape", None) is None:
            continue
        for inner, outer in zip(param.ty.shape, ty.shape, strict=True):
            if isinstance(inner, tirx.Var):
                found[inner] = _typed(outer, inner)
    extra = list(call.args[2].values) if len(call.args) > 2 else []
    for param, value in zip(func.params[len(types) :], extra, strict=False):
        found[param] = _typed(value, param)
    return found


def _typed(value: Any, like: Any) -> Any:
    """A caller's 64-bit size for a callee's 32-bit variable."""
    same = tvm_ffi.structural_equal(value.ty, like.ty)
    return value if same else tirx.Cast(str(like.ty.dtype), value)


@dataclass
class Match:
    """A block that is a product, still in TIR."""

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
        """Write it down for a caller; the factor that is a weight becomes B."""
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
            return _text(_product([self.extents[v] for v in axes]), symbols)

        gathered = any(_gathers(side) for side in self.sides)
        kind = "moe" if gathered else "gemv" if size(m) == 1 else "gemm"
        last = [self._runs_last(side) for side in (first, second)]
        return Product(
            function=function,
            block=self.block.name_hint,
            kind=kind,
            batch=size(self.batch),
            m=size(m),
            n=size(n),
            k=size(self.reduction),
            layout=f"{'N' if last[0] else 'T'}{'T' if last[1] else 'N'}",
            a=a,
            b=b,
            c_dtype=str(self.store.buffer.dtype),
            c_index=_index(self.store.indices),
        )

    def _weight(self, side: Any, weights: dict[Any, str]) -> str:
        return next((weights[r] for r in self.work.roots(side) if r in weights), "")

    def _operand(
        self, side: Any, weights: dict[Any, str], heavy: bool, rows: list[Any], derived: Derived
    ) -> Operand:
        load = max(_loads(side), key=lambda x: len(x.indices))
        foreign = [v for axes in self.own for v in axes if not any(v.same_as(r) for r in rows)]
        scales = [f for f in self.scales if not _uses(f, foreign)]
        factors = [x for f in (side, *scales) for x in _factors(self.work.traced(f, derived))]
        bits, quantization = _quantization(factors, self.reduction[-1], rows, heavy)
        dtype = str(load.buffer.dtype)
        name = self._weight(side, weights) or load.buffer.name
        return Operand(name, dtype, bits or _bits(dtype), heavy, _index(load.indices), quantization)

    def _runs_last(self, side: Any) -> bool:
        load = max(_loads(side), key=lambda x: len(x.indices))
        used = [p for p, i in enumerate(load.indices) if _uses(i, self.reduction)]
        return bool(used) and used[-1] == len(load.indices) - 1


class FunctionWork:
    """What a TIR function does: products, other blocks, and what could not be read."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.func = func
        self.matches: list[Match] = []
        self.plain: list[tuple[tirx.SBlock, Any]] = []
        self.problems: list[str] = []
        self.producers: dict[Any, tuple[tirx.SBlock, tirx.BufferStore]] = {}
        self._scan()

    def _scan(self) -> None:
        nodes = _visit_statement(self.func.body)
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
            self._block(block)

    def _block(self, block: tirx.SBlock) -> None:
        extents = {v.var: v.dom.extent for v in block.iter_vars}
        match = self._match(block, extents)
        if match is None:
            self.plain.append((block, _product(list(extents.values()))))
        else:
            self.matches.append(match)

    def _match(self, block: tirx.SBlock, extents: dict[Any, Any]) -> Match | None:
        reduction = [v.var for v in block.iter_vars if int(v.iter_type) == REDUCTION]
        spatial = [v.var for v in block.iter_vars if int(v.iter_type) == SPATIAL]
        store = block.body
        if not reduction or not isinstance(store, tirx.BufferStore):
            return None
        factors = [f for f in _factors(_summand(store)) if _loads(f)]
        sides = [f for f in factors if _carries(f, reduction)]
        scales = [f for f in factors if not _carries(f, reduction)]
        if len(sides) != 2 or tvm_ffi.structural_equal(*sides):
            return None
        uses = [[v for v in spatial if _uses(side, [v])] for side in sides]
        batch = [v for v in spatial if all(v in u for u in uses) or not any(v in u for u in uses)]
        own = tuple([v for v in u if v not in batch] for u in uses)
        pair = (sides[0], sides[1])
        return Match(self, block, store, pair, extents, batch, own, reduction, scales)

    def roots(self, expr: Any) -> list[Any]:
        """Parameters of the function that an expression is made from."""
        found = []
        for load in _loads(self.inlined(expr)):
            found += [p for p in self.func.params if p.same_as(load.buffer) or _same(p, load)]
        return found

    def inlined(self, expr: Any, depth: int = 8) -> Any:
        """Put the elementwise blocks that make an operand in place of their results."""
        for load in _loads(expr) if depth else []:
            made = self.producers.get(load.buffer)
            if made is None or any(int(v.iter_type) != SPATIAL for v in made[0].iter_vars):
                continue
            variables = made[1].indices
            if all(isinstance(v, tirx.Var) for v in variables):
                value = tirx.stmt_functor.substitute(
                    tirx.Evaluate(made[1].value), dict(zip(variables, load.indices, strict=True))
                ).value
                expr = _replaced(expr, load, value)
                return self.inlined(expr, depth - 1)
        return expr

    def traced(self, expr: Any, derived: Derived) -> Any:
        """As :meth:`inlined`, and on through the functions that made the parameters."""
        expr = self.inlined(expr)
        for param, (work, further) in derived.items():
            for load in [x for x in _loads(expr) if _same(param, x)]:
                made = work.result_at(load.indices)
                if made is not None:
                    expr = _replaced(expr, load, work.traced(made, further))
        return expr

    def result_at(self, indices: Any) -> Any:
        """The function's one result at an index, when an elementwise block makes it."""
        results = [(b, s) for b, s in self.producers.values() if self._is_result(s)]
        if len(results) != 1 or any(int(v.iter_type) != SPATIAL for v in results[0][0].iter_vars):
            return None
        store = results[0][1]
        if not all(isinstance(v, tirx.Var) for v in store.indices):
            return None
        replaced = dict(zip(store.indices, indices, strict=True))
        return tirx.stmt_functor.substitute(tirx.Evaluate(store.value), replaced).value

    def _is_result(self, store: tirx.BufferStore) -> bool:
        return any(_same(p, store) for p in self.func.params)

    def with_epilogue_scales(
        self, match: Match, a: Operand, b: Operand, m: list[Any], n: list[Any]
    ) -> tuple[Operand, Operand]:
        """Scales of integer operands that are applied to the finished sums."""
        if not a.dtype.startswith(("int", "uint")) or not b.dtype.startswith(("int", "uint")):
            return a, b
        axes = dict(enumerate(match.store.indices))
        grains = []
        for block, _ in self.plain:
            value = getattr(block.body, "value", None)
            source = [x for x in _loads(value) if x.buffer.same_as(match.store.buffer)]
            for factor in _factors(value) if source else []:
                for load in _loads(factor):
                    if not load.buffer.same_as(match.store.buffer):
                        used = {p for p, v in enumerate(source[0].indices) if _uses(load, [v])}
                        used = {axes[p] for p in used}
                        side = "b" if used & set(n) else "a" if used & set(m) else ""
                        grains.append((side, _bits(load.buffer.dtype)))
        named = {"a": ("token", a), "b": ("channel", b)}
        out = {key: op for key, (_, op) in named.items()}
        for key, (grain, operand) in named.items():
            width = next((bits for side, bits in grains if side in (key, "")), 0)
            exact = any(side == key for side, _ in grains)
            if width:
                scheme = Quantization(grain if exact else "tensor", 0, width)
                out[key] = Operand(**{**vars(operand), "quantization": scheme})
        return out["a"], out["b"]

    def describe_others(self, function: str, symbols: dict[Any, Any]) -> list[Other]:
        """The blocks that are no products, one item a function."""
        if not self.plain:
            return []
        taken = [r for m in self.matches for side in m.sides for r in self.roots(side)]
        written = [p for p in self.func.params if any(_same(p, s) for s in self._stores())]
        read = [0] + [
            self._bits_read(p) for p in self.func.params if p not in written and p not in taken
        ]
        wrote = [0] + [
            _product(list(p.ty.shape)) * _bits(p.ty.dtype) for p in written if not self.matches
        ]
        extents = [extent for _, extent in self.plain]
        blocks = "+".join(dict.fromkeys(b.name_hint for b, _ in self.plain))
        total, reads, writes = (
            reduce(lambda x, y: x + y, parts) for parts in (extents, read, wrote)
        )
        texts = [_text(e, symbols) for e in (total, reads, writes)]
        return [Other(function, blocks, *texts)]

    def _stores(self) -> list[tirx.BufferStore]:
        return [n for n in _visit_statement(self.func.body) if isinstance(n, tirx.BufferStore)]

    def _bits_read(self, param: Any) -> Any:
        """The whole parameter once, or, when it is gathered from, what the loops touch."""
        if not isinstance(param.ty, tirx.BufferType):
            return 0
        size = _product(list(param.ty.shape))
        for block, extent in self.plain:
            loads = [x for x in _loads(getattr(block.body, "value", None)) if _same(param, x)]
            if any(_gathers(x) for x in loads):
                size = extent
        return size * _bits(param.ty.dtype)


def _same(param: Any, access: Any) -> bool:
    return bool(access.buffer.same_as(param) or access.buffer.name == param.name)


def _summand(store: tirx.BufferStore) -> Any:
    """``e`` of ``C = C + e``; None for another reduction."""
    value = store.value
    if not isinstance(value, tirx.Add):
        return None
    for own, other in ((value.a, value.b), (value.b, value.a)):
        if isinstance(own, tirx.BufferLoad) and own.buffer.same_as(store.buffer):
            return other
    return None


def _factors(expr: Any) -> list[Any]:
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    if isinstance(expr, tirx.Mul):
        return _factors(expr.a) + _factors(expr.b)
    return [] if expr is None else [expr]


def _carries(expr: Any, reduction: list[Any]) -> bool:
    """Whether an axis of the reduction is used otherwise than divided, as in a group's scale."""
    hits: list[Any] = []

    def enter(node: Any) -> bool:
        if isinstance(node, tirx.FloorDiv):
            return False
        if isinstance(node, tirx.Var) and any(node.same_as(v) for v in reduction):
            hits.append(node)
        return True

    tirx.stmt_functor.pre_order_visit(tirx.Evaluate(expr), enter)
    return bool(hits)


def _visit_statement(body: Any) -> list[Any]:
    found: list[Any] = []
    tirx.stmt_functor.post_order_visit(body, found.append)
    return found


def _visit(expr: Any) -> list[Any]:
    found: list[Any] = []
    if isinstance(expr, ir.Expr):
        tirx.stmt_functor.post_order_visit(expr, found.append)
    return found


def _loads(expr: Any) -> list[tirx.BufferLoad]:
    return [n for n in _visit(expr) if isinstance(n, tirx.BufferLoad)]


def _data(expr: Any) -> list[tirx.BufferLoad]:
    """Loads that are not part of another load's index."""
    loads = _loads(expr)
    within = [x for load in loads for i in load.indices for x in _loads(i)]
    return [x for x in loads if not any(x.same_as(w) for w in within)]


def _uses(expr: Any, variables: list[Any]) -> bool:
    return any(n.same_as(v) for n in _visit(expr) if isinstance(n, tirx.Var) for v in variables)


def _gathers(expr: Any) -> bool:
    """Whether an index is itself loaded."""
    return any(_loads(i) for load in _loads(expr) for i in load.indices)


def _replaced(expr: Any, load: tirx.BufferLoad, value: Any) -> Any:
    def swap(node: Any) -> Any:
        return value if tvm_ffi.structural_equal(node, load) else None

    statement = tirx.Evaluate(expr)
    return tirx.stmt_functor.ir_transform(statement, None, swap, ["tirx.BufferLoad"]).value


def _quantization(
    factors: list[Any], axis: Any, rows: list[Any], heavy: bool
) -> tuple[int, Quantization]:
    """Width of the integers that an operand is stored as (0: it is none), and their scales."""
    cores = [f for f in factors if _carries(f, [axis])]
    integers = [x for f in cores for x in _data(f) if "int" in str(x.buffer.dtype)]
    if not integers:
        return 0, Quantization()
    scales = [x for f in factors if not _carries(f, [axis]) for x in _data(f)]
    zeros = [
        x
        for f in cores
        for n in _visit(f)
        if isinstance(n, tirx.Sub)
        for x in _loads(n.b)
        if not _carries(x, [axis])
    ]
    masks = [int(m) for f in cores for n in _visit(f) for m in [_mask(n)] if m is not None]
    bits = masks[0].bit_count() if masks else _bits(integers[0].buffer.dtype)
    if not scales:
        return bits, Quantization()
    groups = [
        int(n.b)
        for i in scales[0].indices
        for n in _visit(i)
        if isinstance(n, tirx.FloorDiv) and _uses(n.a, [axis]) and isinstance(n.b, tirx.IntImm)
    ]
    grain = "tensor"
    if groups:
        grain = "group"
    elif _uses(scales[0], rows):
        grain = "channel" if heavy else "token"
    return bits, Quantization(
        grain,
        groups[0] if groups else 0,
        _bits(scales[0].buffer.dtype),
        _bits(zeros[0].buffer.dtype) if zeros else 0,
    )


def _mask(node: Any) -> tirx.IntImm | None:
    """The constant of a bitwise and: a call in TVM 0.26, an expression of its own in 0.27."""
    if isinstance(node, ir.Call) and getattr(node.op, "name", "").endswith("bitwise_and"):
        operand = node.args[1]
    elif type(node).__name__ == "BitwiseAnd":
        operand = node.b
    else:
        return None
    return operand if isinstance(operand, tirx.IntImm) else None


def _product(parts: list[Any]) -> Any:
    return reduce(lambda x, y: x * y, parts, tirx.IntImm("int64", 1))


def _bits(dtype: Any) -> int:
    return int(tvm.DataType(str(dtype)).bits)


def _index(indices: Any) -> str:
    return f"[{','.join(str(_text(i)) for i in indices)}]"


_SIGNS = (
    (tirx.Add, "+"),
    (tirx.Sub, "-"),
    (tirx.Mul, "*"),
    (tirx.FloorDiv, "//"),
    (tirx.FloorMod, "%"),
)


def _text(expr: Any, symbols: dict[Any, Any] | None = None) -> Extent:
    """An extent as an integer, or as text in Python's arithmetic."""
    if isinstance(expr, int):
        return expr
    if symbols:
        kept = {v: e for v, e in symbols.items() if not v.same_as(e)}
        expr = tirx.stmt_functor.substitute(expr, kept) if kept else expr
    expr = arith.Analyzer().simplify(expr)
    return int(expr) if isinstance(expr, tirx.IntImm) else _written(expr)


def _written(expr: Any) -> str:
    if isinstance(expr, tirx.Var):
        return str(expr.name)
    if isinstance(expr, tirx.IntImm):
        return str(int(expr))
    if isinstance(expr, tirx.Cast):
        return _written(expr.value)
    if isinstance(expr, tirx.BufferLoad):
        return f"{expr.buffer.name}{_index(expr.indices)}"
    if isinstance(expr, (tirx.Min, tirx.Max)):
        name = "min" if isinstance(expr, tirx.Min) else "max"
        return f"{name}({_written(expr.a)},{_written(expr.b)})"
    for kind, sign in _SIGNS:
        if isinstance(expr, kind):
            return f"({_written(expr.a)}{sign}{_written(expr.b)})"
    return str(expr)
