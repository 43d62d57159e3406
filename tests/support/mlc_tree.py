# SPDX-License-Identifier: Apache-2.0
"""The patched MLC-LLM tree, programs that run on it, and a model small enough to compile often."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from crosslab.assemble.kernels import KernelTarget, cached_kernels
from crosslab.compile.driver import CompiledModel
from crosslab.compile.mlc import MlcCompileRequest, MlcTools, compile_model
from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig, write_config
from crosslab.zoo.reference import need_packages
from support.patched_trees import trees
from support.shared_builds import CACHE

ROOT = Path(__file__).resolve().parents[2]
TINY = LlamaConfig(
    hidden=192,
    intermediate=176,
    heads=3,
    kv_heads=1,
    head_dim=64,
    layers=2,
    vocab=288,
    rope_theta=50000.0,
    context=256,
)


@functools.cache
def _absence() -> str:
    try:
        _tools().check()
    except UserError as error:
        return str(error)
    return ""


def _tools() -> MlcTools:
    return MlcTools(trees() / "mlc-llm", trees() / "tvm")


def tools() -> MlcTools:
    """MLC-LLM's commands on the patched trees; the test is skipped where they cannot start."""
    if _absence():
        pytest.skip(_absence())
    return _tools()


def tools_and_reference() -> MlcTools:
    """The same; skipped also without PyTorch and transformers, which compute the reference."""
    try:
        need_packages()
    except UserError as error:
        pytest.skip(str(error))
    return tools()


def host_library(folder: Path, context: int, chunk: int) -> CompiledModel:
    """A model's library for this machine in float32, with the portable kernels."""
    kernels = cached_kernels(KernelTarget.HOST, CACHE)
    request = MlcCompileRequest(
        *(folder, "q0f32", "cpu", context), form="shared", prefill_chunk=chunk, kernels=kernels
    )
    return compile_model(tools(), request, CACHE)


def run_python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run this Python on the patched trees, without MLC-LLM's native library within reach."""
    environment = tools().environment(variables)
    environment.pop("MLC_LIBRARY_PATH", None)
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def result_of(script: str) -> object:
    """Run a script on the patched trees; the last line that it prints, read as JSON."""
    done = run_python("-c", script)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def hf_weights(config: LlamaConfig, seed: int) -> dict[str, np.ndarray]:
    """Random weights under Hugging Face's names, scaled so that activations stay moderate."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def gain() -> np.ndarray:
        return rng.uniform(0.5, 1.5, config.hidden).astype(np.float32)

    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    weights = {"model.embed_tokens.weight": matrix(config.vocab, config.hidden)}
    for layer in range(config.layers):
        at = f"model.layers.{layer}"
        weights |= {
            f"{at}.self_attn.q_proj.weight": matrix(q, config.hidden),
            f"{at}.self_attn.k_proj.weight": matrix(kv, config.hidden),
            f"{at}.self_attn.v_proj.weight": matrix(kv, config.hidden),
            f"{at}.self_attn.o_proj.weight": matrix(config.hidden, q),
            f"{at}.mlp.gate_proj.weight": matrix(config.intermediate, config.hidden),
            f"{at}.mlp.up_proj.weight": matrix(config.intermediate, config.hidden),
            f"{at}.mlp.down_proj.weight": matrix(config.hidden, config.intermediate),
            f"{at}.input_layernorm.weight": gain(),
            f"{at}.post_attention_layernorm.weight": gain(),
        }
    weights["model.norm.weight"] = gain()
    weights["lm_head.weight"] = matrix(config.vocab, config.hidden)
    return weights


def write_model(folder: Path, weights: dict[str, np.ndarray]) -> Path:
    """A folder in Hugging Face's layout with TINY's config and these weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_config(TINY, folder / "config.json")
    save_file(weights, folder / "model.safetensors")
    return folder
