# SPDX-License-Identifier: Apache-2.0
"""Program: rows that the mixtures of MLC-LLM's definitions compute after ChooseRowsEarly, as JSON.

It runs on MLC-LLM's patched tree. Each function of a family's last mixture has a line: the family,
the function, the numbers of rows that are multiplied by experts' weights, and the largest
difference of the result from that without the pass. The gate of FAMILY:mixing also reads the sum of
all rows.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm
from mlc_llm.compiler_pass.rvv.choose_rows_early import ChooseRowsEarly
from mlc_llm.compiler_pass.rvv.serialize_thread_bindings import SerializeThreadBindings
from mlc_llm.model import MODELS
from mlc_llm.model.model_utils import index_last_token
from mlc_llm.nn import MixtralExperts
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

from crosslab.models.config import completed
from crosslab.models.families import families

LLVM = tvm.target.Target({"kind": "llvm"})
ROWS = 5
# Ends of sequences of 2 and 3 tokens.
ENDS = np.array([1, 4], "int32")


def mixtures(module: Any) -> Iterator[Any]:
    """Yield the modules that hold experts, in the order of the layers."""
    parts = module if isinstance(module, nn.ModuleList) else vars(module).values()
    parts = [part for part in parts if isinstance(part, nn.Module | nn.ModuleList)]
    if any(isinstance(part, MixtralExperts) for part in parts):
        yield module
    for part in parts:
        yield from mixtures(part)


class Layer(nn.Module):  # type: ignore[misc, unused-ignore]
    """The half of a layer that follows attention, and the choice of rows."""

    def __init__(self, mixture: Any) -> None:
        super().__init__()
        self.mixture = mixture

    def rest(self, x: Any) -> Any:
        result = self.mixture(op.silu(x))
        return x + (result[0] if isinstance(result, tuple) else result)

    def prefill(self, x: Any) -> Any:
        return index_last_token(self.rest(x))

    def batch_prefill(self, x: Any, positions: Any) -> Any:
        return op.take(self.rest(x), positions, axis=1)

    def verify(self, x: Any) -> Any:
        return self.rest(x)


class Mixing(nn.Module):  # type: ignore[misc, unused-ignore]
    """A gate whose scores depend on all rows."""

    def __init__(self, gate: Any) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, x: Any) -> Any:
        scores = self.gate(x)
        return scores + op.sum(scores, axis=0, keepdims=True)


def exported(mixture: Any, hidden: int) -> tuple[Any, list[Any]]:
    """Return the module in TIR functions, and shapes and types of the weights."""
    x = nn.spec.Tensor([1, "rows", hidden], "float32")
    plain = {"param_mode": "plain", "effect_mode": "none"}
    spec = {name: {"x": x, "$": plain} for name in ("prefill", "verify")}
    positions = nn.spec.Tensor(["batch"], "int32")
    spec["batch_prefill"] = {"x": x, "positions": positions, "$": plain}
    made, params = Layer(mixture).export_tvm(spec)
    passes = [
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        SerializeThreadBindings(LLVM),
    ]
    return tvm.transform.Sequential(passes)(made), [(p.shape, p.dtype) for _, p in params]


def multiplied(mod: Any, name: str) -> list[str]:
    """Return the number of rows of each product with the weights of experts."""
    calls = [binding.value for block in mod[name].body.blocks for binding in block.bindings]
    return [
        str(call.ty_args[0].shape[0]).replace("T.int64", "")
        for call in calls
        if getattr(getattr(call, "op", None), "name", "") == "relax.call_tir"
        and call.args[0].name_hint.startswith("experts")
    ]


def results(mod: Any, inputs: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the result of each function."""
    machine = relax.VirtualMachine(relax.build(mod, LLVM), tvm.cpu())
    return {
        name: machine[name](*map(tvm.runtime.tensor, arguments)).numpy()
        for name, arguments in inputs.items()
    }


def main() -> None:
    """Print the lines of the families that the arguments name."""
    for name in sys.argv[1:]:
        known, _, mixing = name.partition(":")
        family = families()[known]
        config = MODELS[family.kind].config.from_dict(completed(family.config))
        with LLVM:
            *_, mixture = mixtures(MODELS[family.kind].model(config))
            if mixing:
                mixture.gate = Mixing(mixture.gate)
            before, weights = exported(mixture, family.config["hidden_size"])
            after = ChooseRowsEarly(LLVM)(before)
        random = np.random.default_rng(0)
        values = [(random.standard_normal(s) / 16).astype(dtype) for s, dtype in weights]
        x = random.standard_normal((1, ROWS, family.config["hidden_size"])).astype("float32")
        inputs = {n: [x, *values] for n in ("prefill", "verify")}
        inputs["batch_prefill"] = [x, ENDS, *values]
        with LLVM:
            both = [results(mod, inputs) for mod in (before, after)]
        for function in inputs:
            error = float(np.abs(both[0][function] - both[1][function]).max())
            line = [name, function, multiplied(after, function), error]
            sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main()
