# SPDX-License-Identifier: Apache-2.0
"""Modules, targets and configurations to try passes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from crosslab.compile.overlaypass import load_pass
from crosslab.compile.targets import LabTarget

VECTORS = ("+zve64d", "+zvl256b")


def riscv64(*features: str, triple: str = "riscv64-unknown-linux-gnu") -> Any:
    """A riscv64 target with these features."""
    from tvm.target import Target  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    core = {
        "kind": "llvm",
        "mtriple": triple,
        "mcpu": "generic-rv64",
        "mabi": "lp64d",
        "mattr": ["+m", "+a", "+f", "+d", "+c", *features],
    }
    return Target({**core, "host": core})


def host() -> Any:
    """The target of this machine, with the vectors that kernels for it are built with."""
    from tvm.target import Target  # noqa: PLC0415

    return Target(LabTarget("host").table())


def tile_function(
    q_tile: int = 16,
    kv_tile: int = 16,
    d: int = 64,
    dtype: str = "float32",
    product: str = "S[i, j] + Q[i, k] * K[j, k]",
) -> Any:
    """A function with one tile of attention without softmax: O = O * R + (Q K^T) V."""
    from tvm.script import from_source  # noqa: PLC0415

    return from_source(
        f"""
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def attention_tile(q_in: T.Buffer(({q_tile}, {d}), "{dtype}"),
                   k_in: T.Buffer(({kv_tile}, {d}), "{dtype}"),
                   v_in: T.Buffer(({kv_tile}, {d}), "{dtype}"),
                   r_in: T.Buffer(({q_tile},), "{dtype}"),
                   out: T.Buffer(({q_tile}, {d}), "{dtype}")):
    T.func_attr({{"tirx.noalias": True}})
    for tile in T.serial(1):
        with T.sblock("attn"):
            T.reads()
            T.writes()
            Q = T.sblock_alloc_buffer(({q_tile}, {d}), "{dtype}")
            K = T.sblock_alloc_buffer(({kv_tile}, {d}), "{dtype}")
            V = T.sblock_alloc_buffer(({kv_tile}, {d}), "{dtype}")
            S = T.sblock_alloc_buffer(({q_tile}, {kv_tile}), "{dtype}")
            O = T.sblock_alloc_buffer(({q_tile}, {d}), "{dtype}")
            for i, k in T.grid({q_tile}, {d}):
                Q[i, k] = q_in[i, k]
                O[i, k] = out[i, k]
            for j, k in T.grid({kv_tile}, {d}):
                K[j, k] = k_in[j, k]
                V[j, k] = v_in[j, k]
            with T.sblock():
                for li, lj, lk in T.grid({q_tile}, {kv_tile}, {d}):
                    with T.sblock("S_gemm"):
                        i, j, k = T.axis.remap("SSR", [li, lj, lk])
                        with T.init():
                            S[i, j] = T.{dtype}(0)
                        S[i, j] = {product}
            with T.sblock():
                for li, lc, lj in T.grid({q_tile}, {d}, {kv_tile}):
                    with T.sblock("O_gemm"):
                        i, c, j = T.axis.remap("SSR", [li, lc, lj])
                        T.reads(O[i, c], S[i, j], V[j, c])
                        T.writes(O[i, c])
                        with T.init():
                            O[i, c] = O[i, c] * r_in[i]
                        O[i, c] += S[i, j] * V[j, c]
            for i, k in T.grid({q_tile}, {d}):
                out[i, k] = O[i, k]
"""
    )


def module_of(**functions: Any) -> Any:
    """A module with these PrimFuncs and, as every model has, a Relax function."""
    from tvm import relax  # noqa: PLC0415

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("identity", [x]):
        with builder.dataflow():
            y = builder.emit_output(x)
        builder.emit_func_output(y)
    for name, function in functions.items():
        builder.add_func(function, name)
    return builder.get()


def settings(**values: Any) -> Any:
    """A configuration of the passes."""
    return load_pass("configuration").Configuration(**values)


def outcomes(reports: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The entries of the report of kernels in a folder, by function and block."""
    text = (reports / "tensorized.json").read_text()
    return {(o["function"], o["block"]): o for o in json.loads(text)}


def called(function: Any) -> list[str]:
    """Names of the C functions which a PrimFunc calls."""
    return _names_in_calls(function, "tirx.call_extern")


def calls_of_packed(function: Any) -> list[str]:
    """Names of the packed functions that a PrimFunc calls."""
    return _names_in_calls(function, "tirx.tvm_call_packed")


def _names_in_calls(function: Any, operator: str) -> list[str]:
    """First arguments of all calls of an operator of TIR."""
    from tvm import ir, tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    names: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, ir.Call) and node.op.same_as(ir.Op.get(operator)):
            names.append(str(node.args[0].value))

    tirx.stmt_functor.post_order_visit(function.body, visit)
    return names
