# SPDX-License-Identifier: Apache-2.0
"""What follows the last attention of a model, with the ways in which rows are chosen.

It imports TVM, so tests import it when the patched tree is on ``sys.path``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

ROWS, WIDTH, OUT, RANK = 5, 8, 6, 3
LLVM = tvm.target.Target({"kind": "llvm"})


def mix(x: Any) -> Any:
    """As attention does: a row depends on the rows before it."""
    j = te.reduce_axis((0, x.shape[1]), name="j")
    return te.compute(
        x.shape,
        lambda b, i, k: te.sum(te.if_then_else(j <= i, x[b, j, k], 0.0), axis=j),
        name="mix",
    )


def last_row(x: Any) -> Any:
    shape = (x.shape[0], 1, x.shape[2])
    return te.compute(shape, lambda i, _, k: x[i, x.shape[1] - 1, k], name="index")


def by_its_number(x: Any) -> Any:
    """Each row times its number."""

    def product(x: Any) -> Any:
        shape = x.shape
        return te.compute(shape, lambda b, i, k: x[b, i, k] * i.astype("float32"), name="product")

    return op.tensor_expr_op(product, "product", [x])


class Model(nn.Module):  # type: ignore[misc]
    """What follows the last attention of a model."""

    def __init__(self, between: Callable[[Any], Any]) -> None:
        super().__init__()
        self.between = between
        self.norm = nn.RMSNorm(WIDTH, -1, 1e-5, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, OUT, bias=False)

    def rest(self, x: Any) -> Any:
        mixed = op.tensor_expr_op(mix, "mix", [x])
        gate, up = op.split(self.up(self.norm(mixed)), 2, axis=-1)
        return self.between(op.silu(gate) * up + x)

    def prefill(self, x: Any) -> Any:
        return self.head(op.tensor_expr_op(last_row, "index", [self.rest(x)]))

    def batch_prefill(self, x: Any, positions: Any) -> Any:
        return self.head(op.take(self.rest(x), positions, axis=1))

    def verify(self, x: Any) -> Any:
        return self.head(self.rest(x))

    def both(self, x: Any) -> Any:
        hidden = self.rest(x)
        return self.head(op.tensor_expr_op(last_row, "index", [hidden])), hidden


def module(
    between: Callable[[Any], Any] = lambda x: x, stored: Callable[[Any], Any] = lambda model: model
) -> Any:
    """The model's functions; `stored` replaces layers."""
    x = nn.spec.Tensor([1, "rows", WIDTH], "float32")
    packed = {"param_mode": "plain", "effect_mode": "none"}
    positions = nn.spec.Tensor(["batch"], "int32")
    spec = {name: {"x": x, "$": packed} for name in ("prefill", "verify", "both")}
    spec["batch_prefill"] = {"x": x, "positions": positions, "$": packed}
    exported, _ = stored(Model(between)).export_tvm(spec)
    graph = relax.transform
    return tvm.transform.Sequential(
        [graph.LegalizeOps(), graph.AnnotateTIROpPattern(), graph.FoldConstant()]
    )(exported)


def run(mod: Any, name: str, *inputs: Any, between: Sequence[tuple[int, ...]] = ()) -> list[Any]:
    """Results of a function; `between` has the shapes of that part's weights."""
    vm = relax.VirtualMachine(relax.build(mod, LLVM), tvm.cpu())
    random = np.random.default_rng(0)
    weights = [
        random.standard_normal(shape).astype("float32")
        for shape in (*between, (WIDTH,), (2 * WIDTH, WIDTH), (OUT, WIDTH))
    ]
    result = vm[name](*(tvm.runtime.tensor(value) for value in (*inputs, *weights)))
    return [
        one.numpy() for one in (result if isinstance(result, list | tvm.ir.Array) else [result])
    ]


def calls(mod: Any, name: str, rank: int = RANK) -> list[tuple[str, list[str]]]:
    """Functions of rows that are called, in order, with the shape of their result."""
    bindings = [b for block in mod[name].body.blocks for b in block.bindings]
    return [
        (b.value.args[0].name_hint, [_text(extent) for extent in b.value.ty_args[0].shape])
        for b in bindings
        if getattr(getattr(b.value, "op", None), "name", "") == "relax.call_tir"
        and isinstance(b.value.ty_args[0], relax.TensorType)
        and len(b.value.ty_args[0].shape) == rank
    ]


def _text(extent: Any) -> str:
    return str(int(extent)) if isinstance(extent, tvm.tirx.IntImm) else str(extent)
