# SPDX-License-Identifier: Apache-2.0
"""MLC-LLM's own compiler gives a model's linear layers to the kernels of each kind of weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.mlc_tree import TINY, hf_weights, run_python, tools, write_model
from support.passes import functions
from support.passes.functions import outcomes, settings

from crosslab.assemble.kernels import KernelTarget, build_kernels
from crosslab.models.families import families
from crosslab.models.formats import weight_formats

pytestmark = pytest.mark.slow

# The first format that each kind of kernels is for.
FORMATS = {f.kernels: f.name for f in reversed(weight_formats().values())}

MIXTURE_ROWS = Path(functions.__file__).with_name("mixture_rows.py")
# Llama 4's has no order of rows: a product for each expert has all of them.
MIXTURES = {
    name: family.config["num_experts_per_tok"]
    for name, family in families().items()
    if "num_experts_per_tok" in family.config and name != "llama4"
}


@pytest.mark.parametrize(
    ("kernels_of", "quantization"),
    [
        pytest.param(*pair, marks=() if pair[0] == "q4" else pytest.mark.thorough)
        for pair in FORMATS.items()
    ],
)
def test_linear_layers_call_kernels(tmp_path: Path, kernels_of: str, quantization: str) -> None:
    tools()
    if shutil.which("clang-19") is None:
        pytest.skip("not installed: clang-19")
    kernels = build_kernels(KernelTarget.RISCV64, tmp_path / "kernels").parent
    model = tmp_path / "model"
    write_model(model, hf_weights(TINY, 5))
    settings(kernels=kernels, reports=tmp_path).write(tmp_path / "passes.json")
    library = tmp_path / "model.tar"
    options = ["--model-type", "llama", "--quantization", quantization, "--output", str(library)]
    done = run_python(
        *("-m", "mlc_llm", "compile", str(model / "config.json"), "--device", "riscv64:rvv256"),
        *options,
        MLC_RVV_PASSES=str(tmp_path / "passes.json"),
    )
    assert done.returncode == 0, done.stderr
    layers = [o for (_, block), o in outcomes(tmp_path).items() if block == "NT_matmul"]
    assert {o["symbol"] for o in layers} == {f"mlc_rvv_{k}_{kernels_of}" for k in ("gemm", "gemv")}
    # Per kind of layer (qkv, o, gate and up, down, head): prefill, batch prefill, decode, batch
    # decode; none may be left to naive loops.
    assert len(layers) >= 15
    assert library.is_file()


def test_mixtures_compute_the_chosen_rows_alone() -> None:
    """But not if one of their functions mixes rows."""
    done = run_python(str(MIXTURE_ROWS), *MIXTURES, "mixtral:mixing")
    assert done.returncode == 0, done.stderr
    found = {}
    for line in done.stdout.splitlines():
        name, function, multiplied, error = json.loads(line)
        assert error == 0.0, name
        found[name, function] = set(multiplied)
    for name, chosen in MIXTURES.items():
        assert found[name, "prefill"] == {f"({chosen})"}, name
        assert found[name, "batch_prefill"] == {f"batch * ({chosen})"}, name
        assert found[name, "verify"] == {f"rows * ({chosen})"}, name
    kept = {found["mixtral:mixing", f].pop() for f in ("prefill", "batch_prefill", "verify")}
    assert kept == {"rows * (2)"}
