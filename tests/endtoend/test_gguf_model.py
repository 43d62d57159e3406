# SPDX-License-Identifier: Apache-2.0
"""A model whose weights stay in the blocks of a GGUF file answers as numpy does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import shared_builds
from support.gguf_bytes import write_model

from crosslab.build.kernels import KernelTarget, cached_kernels
from crosslab.build.link import LinkRequest, link_runner
from crosslab.compile.driver import CompileRequest, compile_llama
from crosslab.compile.modes import KernelMode
from crosslab.compile.targets import LabTarget
from crosslab.models.compare import compare
from crosslab.models.config import FamilyConfig, read_family
from crosslab.models.gguf_params import (
    Layout,
    rows_and_blocks,
    tables,
)
from crosslab.models.llama_params import convert_gguf, gguf_layout
from crosslab.models.params import ReadParams
from crosslab.models.reference import answer
from crosslab.models.weights_file import F32
from crosslab.run.emulator import GuestMachine, run_guest

NEW = 5
SIZES: dict[str, Any] = {
    "hidden": 256,
    "intermediate": 512,
    "heads": 4,
    "kv_heads": 2,
    "layers": 2,
    "context": 256,
}
NARROW: dict[str, Any] = {
    "hidden": 64,
    "intermediate": 96,
    "heads": 2,
    "kv_heads": 1,
    "layers": 1,
    "context": 256,
}
ROPE = (32.0, 1.0, 4.0, 64.0)
GEMMA = FamilyConfig(
    **SIZES,
    head_dim=64,
    vocab=131,
    tied=True,
    family="gemma",
    gelu=True,
    embedding_scale=16.0,
)
QWEN2 = FamilyConfig(**NARROW, head_dim=32, vocab=77, family="qwen2", qkv_bias=True)
QWEN3 = FamilyConfig(**NARROW, head_dim=64, vocab=77, family="qwen3", qk_norm=True)
LLAMA = FamilyConfig(**NARROW, head_dim=32, vocab=77, rope=ROPE)
# Segments of several formats in one layer, blocks of 32 and of 256 inputs, and a float32 layer.
MIXED = {
    "embed_tokens": "Q6_K",
    "q_proj": "Q4_K",
    "k_proj": "Q4_K",
    "v_proj": "Q6_K",
    "0.self_attn.o_proj": "Q5_K",
    "gate_proj": "Q4_0",
    "up_proj": "Q8_0",
    "1.mlp.down_proj": "Q4_K",
}
SMALL = {"embed_tokens": "Q8_0", "self_attn": "Q5_0", "mlp": "Q5_1", "lm_head": "Q4_1"}


MODELS: dict[str, tuple[FamilyConfig, dict[str, Any], dict[str, str]]] = {
    "gemma": (GEMMA, {"model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"}, MIXED),
    "qwen2": (QWEN2, {"model_type": "qwen2"}, SMALL),
    "qwen3": (QWEN3, {"model_type": "qwen3"}, SMALL),
    "llama": (
        LLAMA,
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": ROPE[0],
                "low_freq_factor": ROPE[1],
                "high_freq_factor": ROPE[2],
                "original_max_position_embeddings": ROPE[3],
            }
        },
        SMALL,
    ),
}


@dataclass(frozen=True)
class Made:
    """A model with its runner and parameters."""

    config: FamilyConfig
    layout: Layout
    params: Path
    runner: Path

    def values(self) -> dict[str, F32]:
        """The stored parameters as float32."""
        return dict(ReadParams(self.params, layout=self.layout))


QUICK = ("gemma", "qwen2")


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MODELS],
)
def made(
    request: pytest.FixtureRequest, emulator: None, tmp_path_factory: pytest.TempPathFactory
) -> Made:
    config, about, types = MODELS[request.param]
    model = write_model(config, about, types, tmp_path_factory.mktemp(request.param))
    assert read_family(model / "config.json") == config
    layout = gguf_layout(model)
    compiled = compile_llama(
        CompileRequest(
            shared_builds.tvm_tree(),
            config,
            LabTarget("riscv64", 128),
            prefill_chunk=64,
            kernels=cached_kernels(KernelTarget.RISCV64, shared_builds.CACHE),
            mode=KernelMode("tiles", "int8"),
            stored=tables(layout),
        ),
        shared_builds.CACHE,
    )
    parts = (shared_builds.runtime(), shared_builds.cross())
    runner = link_runner(
        LinkRequest(*parts, library=compiled.library, vlens=(128,)), shared_builds.CACHE
    )
    return Made(config, layout, convert_gguf(model, tmp_path_factory.mktemp("cache")), runner)


@pytest.mark.parametrize(("vlen", "chunk", "threads"), [(128, 64, 1), (256, 7, 3), (512, 1, 1)])
def test_answers_as_numpy_does(
    made: Made, tmp_path: Path, vlen: int, chunk: int, threads: int
) -> None:
    prompt = np.random.default_rng(7).integers(0, made.config.vocab, 19).tolist()
    logits = tmp_path / "logits.bin"
    arguments = ["--params", str(made.params), "--tokens", ",".join(map(str, prompt))]
    arguments += ["--max-new", str(NEW), "--prefill-chunk", str(chunk)]
    arguments += ["--logits", str(logits), "--json"]
    result = run_guest(made.runner, arguments, GuestMachine(vlen=vlen, threads=threads))
    said = json.loads(result.stdout)
    rows = np.fromfile(logits, np.float32).reshape(len(said["tokens"]), -1)
    blocks = rows_and_blocks(made.layout)
    expected = answer(made.config, made.values(), prompt, max_new=NEW, int8=True, blocks=blocks)
    verdict = compare(said["tokens"], rows, expected, 1e-2)
    assert verdict.right, verdict
    # What a sum in another order moves is less than what rounding itself does.
    plain = answer(made.config, made.values(), prompt, max_new=1)
    rounding = np.abs(expected.logits[0] - plain.logits[0]).max() / np.abs(plain.logits[0]).max()
    assert verdict.logit_error < rounding


def test_weights_of_one_layer_in_several_formats(made: Made) -> None:
    segments = {param: [s.format.name for s in found] for param, found in made.layout.items()}
    if made.config is GEMMA:
        assert segments["model.layers.0.self_attn.qkv_proj.weight"] == ["Q4_K", "Q6_K"]
        assert segments["model.layers.1.mlp.gate_up_proj.weight"] == ["Q4_0", "Q8_0"]
        assert "model.layers.0.mlp.down_proj.weight" not in segments
    else:
        assert segments["model.layers.0.self_attn.qkv_proj.weight"] == ["Q5_0"]
        assert segments["lm_head.weight"] == ["Q4_1"]
