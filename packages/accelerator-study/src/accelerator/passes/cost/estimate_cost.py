# SPDX-License-Identifier: Apache-2.0
"""EstimateCost: writes a module's matrix products and other work for a cost estimate.

The pass does not change the module and writes its products and other work as JSON. It runs after
fusion and before schedules, where products are still whole loops. The pass knows products by their
structure: a reduction ``C[...] += X * Y`` in which both factors run along the reduction. Axes of
both factors are the batch, axes of one are M or N. The pass follows dequantization through the
elementwise blocks before a product. Extents may be symbolic; they are kept as text such as
``seq_len*4`` in the names of the calling Relax function.

The pass writes the file to the configuration's folder of reports; ``python -m costmodel`` reads the
file. The modules of this folder import only TVM.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, ir, relax, tirx

from .expressions import bits_of, extent_text, product_of
from .products import Derived, FunctionWork
from .records import EntryWork, Extent, Operand, Other, Product, Unclassified

SCHEMA = 1

# A call of the paged cache computes attention: its two products follow from the call's shapes.
ATTENTION = "vm.builtin.attention_kv_cache_attention_with_fused_qkv"
CONTEXT = "context"
NO_WORK = (
    *("relax.shape_of", "relax.null_value", "relax.print", "relax.assert_op"),
    *("relax.builtin.alloc_tensor", "vm.builtin.reshape"),
    "vm.builtin.paged_attention_kv_cache_create",
)


@tvm.transform.module_pass(opt_level=0, name="EstimateCost")
class EstimateCost:
    """Pass that writes the workloads of a module to a file and does not change the module."""

    def __init__(self, _target: Any, configuration: Any, *, file: str) -> None:
        """Make the pass.

        Args:
            configuration: of the passes; must name a folder of reports.
            file: name of the report in that folder.

        Raises:
            RuntimeError: the configuration names no folder of reports.
        """
        if configuration.reports is None:
            raise RuntimeError("EstimateCost: the configuration of the passes names no reports")
        self.path = Path(configuration.reports) / file

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Write the workloads of ``mod`` to the file, and return ``mod``."""
        text = json.dumps(workloads(mod), indent=1)
        self.path.write_text(f"{text}\n", encoding="utf-8")
        return mod


def lower_graph(mod: IRModule) -> IRModule:
    """Turn a graph of Relax operators into fused TIR functions, as the pipelines do."""
    r = relax.transform
    steps = [r.LegalizeOps(), r.AnnotateTIROpPattern(), r.FoldConstant(), r.FuseOps(), r.FuseTIR()]
    with tvm.target.Target("llvm"):
        return tvm.transform.Sequential([*steps, r.DeadCodeElimination()])(mod)


def workloads(mod: IRModule) -> dict[str, Any]:
    """Return the work of every public Relax function of a module of fused TIR functions.

    Returns:
        ``{"schema": 1, "entries": {function: {"products", "others", "unclassified"}},
        "functions": {callee: {"params", "products", "others"}}}``, with equal items of an entry
        counted together; extents are integers or text. An entry's extents use its symbolic sizes;
        a callee's extents use the sizes in its parameters' shapes, for traces of real calls.
    """
    entries = {}
    functions: dict[str, Any] = {}
    for g_var, func in mod.functions_items():
        if isinstance(func, relax.Function) and "global_symbol" in (func.attrs or {}):
            entry = EntryWork()
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


class _Walk:
    """A walk over the calls of a Relax function, which collects the work of an entry."""

    def __init__(self, mod: IRModule, entry: EntryWork, functions: dict[str, Any]) -> None:
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
        tokens = extent_text(product_of(lead))
        self.entry.products += _attention(qkv, out, tokens)
        self.entry.others.append(_softmax(out, tokens))
        names = [f"tokens{n}" for n in range(len(lead))]
        shapes = [[*names, *(extent_text(d) for d in list(ty.shape)[-2:])] for ty in (qkv, out)]
        products = _attention(qkv, out, "*".join(names))
        work = [_softmax(out, "*".join(names))]
        self._callee(name, [None, None, None, *shapes], products, work)

    def _callee(
        self, name: str, params: list[Any], products: list[Product], others: list[Other]
    ) -> None:
        work = {"products": [*map(asdict, products)], "others": [*map(asdict, others)]}
        self.functions.setdefault(name, {"params": params, **work})

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
            # A weight that a separate function transposes or dequantizes is still a weight.
            weights[out] = names[func.params[0]]
            self.derived[out] = (work, derived)
        function, entry = g_var.name_hint, self.entry
        entry.products += [m.describe(function, names, symbols, derived) for m in work.matches]
        entry.others += work.describe_others(function, names, symbols)
        params = [_shape(p) for p in func.params]
        products = [m.describe(function, names, {}, derived) for m in work.matches]
        self._callee(function, params, products, work.describe_others(function, names, {}))
        for reason in work.problems:
            self.problem(function, reason)

    def unknown(self, callee: str, reason: str) -> None:
        if callee not in NO_WORK:
            self.problem(callee, reason)

    def problem(self, callee: str, reason: str) -> None:
        self.entry.unclassified.append(Unclassified(callee, reason))


def _shape(param: Any) -> list[Extent] | None:
    return (
        [extent_text(d) for d in param.ty.shape] if isinstance(param.ty, tirx.BufferType) else None
    )


def _attention(qkv: Any, out: Any, tokens: Extent) -> list[Product]:
    """Return the two products of attention over a cache, from the shapes of a call."""
    heads, dim, out_dim = (extent_text(d) for d in (out.shape[-2], qkv.shape[-1], out.shape[-1]))
    kv = extent_text(tirx.floordiv(qkv.shape[-2] - out.shape[-2], 2))
    dtype = str(out.dtype)
    shared = f"b*{kv}//{heads}"

    def operand(name: str, index: str) -> Operand:
        return Operand(name, dtype, bits_of(dtype), False, index)

    def product(block: str, n: Extent, k: Extent, a: Operand, b: Operand) -> Product:
        extents = (heads, tokens, n, k)
        return Product(ATTENTION, block, "attention", *extents, a, b, dtype)

    query, key = operand("query", "[m,b,k]"), operand("key", f"[n,{shared},k]")
    scores, value = operand("scores", "[b,m,k]"), operand("value", f"[k,{shared},n]")
    return [
        product("QK", CONTEXT, dim, query, key),
        product("PV", out_dim, CONTEXT, scores, value),
    ]


def _softmax(out: Any, tokens: Extent) -> Other:
    """Return the softmax between attention's products; the products count its bits."""
    return Other(ATTENTION, "softmax", f"({extent_text(out.shape[-2])}*{tokens}*{CONTEXT})", 0, 0)


def _bound_symbols(func: tirx.PrimFunc, args: list[Any], call: relax.Call) -> dict[Any, Any]:
    """Return the symbolic sizes of a TIR function in terms of its caller's sizes."""
    bindings: dict[Any, Any] = {}
    types = [a.ty for a in args] + [*call.ty_args]
    for param, ty in zip(func.params, types, strict=False):
        if not isinstance(param.ty, tirx.BufferType) or getattr(ty, "shape", None) is None:
            continue
        for inner, outer in zip(param.ty.shape, ty.shape, strict=True):
            if isinstance(inner, tirx.Var):
                bindings[inner] = _typed(outer, inner)
    extra = list(call.args[2].values) if len(call.args) > 2 else []
    for param, value in zip(func.params[len(types) :], extra, strict=False):
        bindings[param] = _typed(value, param)
    return bindings


def _typed(value: Any, like: Any) -> Any:
    """Cast a caller's 64-bit size to the type of a callee's variable, if the types differ."""
    same = tvm_ffi.structural_equal(value.ty, like.ty)
    return value if same else tirx.Cast(str(like.ty.dtype), value)
