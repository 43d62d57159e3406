# SPDX-License-Identifier: Apache-2.0
"""A model whose weights stay in the blocks of a GGUF file answers as numpy does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import shared_builds
from support.gguf_bytes import write_model
from support.judged import JudgedJob

from crosslab.assemble.kernels import KernelTarget, cached_kernels
from crosslab.assemble.link import LinkRequest, link_runner
from crosslab.compile.driver import CompileRequest, compile_llama
from crosslab.compile.modes import KernelMode
from crosslab.compile.targets import LabTarget
from crosslab.cores.core import core_option
from crosslab.cores.traffic import memory_report
from crosslab.job.verdict import AnswerVerdict, Asked, judge
from crosslab.models.config import LlamaConfig, read_family
from crosslab.models.formats import GGUF, weight_formats
from crosslab.models.gguf_params import (
    Layout,
    rows_and_blocks,
    tables,
)
from crosslab.models.llama_params import convert_gguf, gguf_layout
from crosslab.models.params import ReadParams
from crosslab.models.reference import RoundingBlocks
from crosslab.models.weights_file import F32
from crosslab.run.counter import count_guest
from crosslab.run.emulator import GuestMachine, run_guest
from crosslab.run.measurement import phases_of
from crosslab.run.symbols import Symbols

NEW = 5
PROMPT = np.random.default_rng(7).integers(0, 77, 19).tolist()
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
GEMMA = LlamaConfig(
    **SIZES,
    head_dim=64,
    vocab=131,
    tied=True,
    family="gemma",
    gelu=True,
    embedding_scale=16.0,
)
QWEN2 = LlamaConfig(**NARROW, head_dim=32, vocab=77, family="qwen2", qkv_bias=True)
QWEN3 = LlamaConfig(**NARROW, head_dim=64, vocab=77, family="qwen3", qk_norm=True)
LLAMA = LlamaConfig(**NARROW, head_dim=32, vocab=77, rope=ROPE)
MIXTURE = LlamaConfig(
    **{**NARROW, "hidden": 256, "intermediate": 256, "layers": 3},
    head_dim=64,
    vocab=77,
    family="qwen3_moe",
    qk_norm=True,
    experts=7,
    chosen=3,
)
MIXTRAL = LlamaConfig(**NARROW, head_dim=32, vocab=77, family="mixtral", experts=5, chosen=2)
# Segments of several formats in one layer, blocks of 32 and of 256 inputs, and a float32 layer.
MIXED = {
    "embed_tokens": "Q6_K",
    "q_proj": "Q4_K",
    "k_proj": "Q3_K",
    "v_proj": "Q6_K",
    "0.self_attn.o_proj": "Q5_K",
    "gate_proj": "Q4_0",
    "up_proj": "IQ4_NL",
    "1.mlp.down_proj": "Q2_K",
}
HEAD = {"lm_head": "Q4_1"}
SMALL = {"embed_tokens": "Q8_0", "self_attn": "Q5_0", "mlp": "Q5_1", **HEAD}


def of_mixture(config: LlamaConfig) -> dict[str, Any]:
    """Fields of the config.json of a mixture."""
    return {
        "model_type": config.family,
        "moe_intermediate_size": config.intermediate,
        "num_experts": config.experts,
        "num_experts_per_tok": config.chosen,
        "norm_topk_prob": config.shares,
    }


# Experts with a format of their own for gates, with one format for all, and in float32.
EXPERTS = {
    "embed_tokens": "Q6_K",
    "self_attn": "Q8_0",
    "layers.1.mlp.experts": "MXFP4",
    "layers.2.mlp.experts": "F32",
    "gate_proj": "Q4_K",
    "up_proj": "Q4_0",
    "down_proj": "Q6_K",
    "lm_head": "Q4_0",
}

MODELS: dict[str, tuple[LlamaConfig, dict[str, Any], dict[str, str]]] = {
    "gemma": (GEMMA, {"model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"}, MIXED),
    "qwen2": (QWEN2, {"model_type": "qwen2"}, SMALL),
    "qwen3": (QWEN3, {"model_type": "qwen3"}, SMALL),
    "qwen3_moe": (MIXTURE, of_mixture(MIXTURE), EXPERTS),
    "mixtral": (
        MIXTRAL,
        {"model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2},
        {"embed_tokens": "Q8_0", "attn": "Q5_0", "w1": "Q4_0", "w3": "Q8_0", "w2": "MXFP4", **HEAD},
    ),
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

    config: LlamaConfig
    layout: Layout
    params: Path
    runner: Path

    @property
    def blocks(self) -> RoundingBlocks:
        """How the reference rounds activations."""
        return rows_and_blocks(self.layout)

    def values(self) -> dict[str, F32]:
        """The stored parameters as float32."""
        return dict(ReadParams(self.params, layout=self.layout))


QUICK = ("gemma", "qwen2", "qwen3_moe")


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=() if n in QUICK else pytest.mark.thorough) for n in MODELS],
)
def made(
    request: pytest.FixtureRequest, emulator: None, tmp_path_factory: pytest.TempPathFactory
) -> Made:
    return make(*MODELS[request.param], tmp_path_factory.mktemp(request.param))


def make(config: LlamaConfig, about: Mapping[str, Any], types: Mapping[str, str], to: Path) -> Made:
    model = write_model(config, about, types, to)
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
    request = LinkRequest(*parts, library=compiled.library, vlens=(128,), strip=False)
    runner = link_runner(request, shared_builds.CACHE)
    return Made(config, layout, convert_gguf(model, to / "cache"), runner)


@dataclass(frozen=True)
class Run:
    """An answer of the compiled model, with its record of roundings."""

    tokens: list[int]
    logits: F32
    record: bytes
    chunk: int

    def judged(self, made: Made, **changed: Any) -> AnswerVerdict:
        """The verdict by a reference, of which `changed` are other fields than the model's."""
        fields = {"config": made.config, "values": made.values(), "blocks": made.blocks}
        asked = Asked(prompt=PROMPT, **{**fields, **changed})
        tolerance = weight_formats()[GGUF].tolerance
        job: Any = JudgedJob(None, NEW, self.chunk, tolerance, int8=True)
        verdict = judge(job, self.tokens, self.logits, self.record, asked)
        assert verdict is not None
        return verdict


def run(made: Made, folder: Path, vlen: int, chunk: int, threads: int) -> Run:
    logits, record = folder / "logits.bin", folder / "record.bin"
    arguments = ["--params", str(made.params), "--tokens", ",".join(map(str, PROMPT))]
    arguments += ["--max-new", str(NEW), "--prefill-chunk", str(chunk), "--json"]
    arguments += ["--logits", str(logits), "--roundings", str(record)]
    result = run_guest(made.runner, arguments, GuestMachine(vlen=vlen, threads=threads))
    tokens = json.loads(result.stdout)["tokens"]
    rows = np.fromfile(logits, np.float32).reshape(len(tokens), -1)
    return Run(tokens, rows, record.read_bytes(), chunk)


@pytest.mark.parametrize(
    ("vlen", "chunk", "threads"), [(128, 64, 1), (256, 7, 3), (512, 1, 1), (1024, 19, 2)]
)
def test_answers_as_numpy_does(
    made: Made, tmp_path: Path, vlen: int, chunk: int, threads: int
) -> None:
    verdict = run(made, tmp_path, vlen, chunk, threads).judged(made)
    assert verdict.right, verdict
    assert verdict.taken is not None
    assert verdict.taken.other < verdict.taken.count / 1000
    assert verdict.cost is not None
    assert verdict.cost.logit_error > 10 * verdict.comparison.tolerance


def test_no_rounding_hides_a_fault(made: Made, tmp_path: Path) -> None:
    said = run(made, tmp_path, 128, 64, 1)
    layer = f"model.layers.{made.config.layers - 1}"
    mlp = "mlp.moe_" if made.config.experts else "mlp."
    for name in ("self_attn.o_proj", f"{mlp}gate_up_proj", f"{mlp}down_proj", "input_layernorm"):
        values = made.values()
        values[f"{layer}.{name}.weight"] *= np.float32(1.01)
        assert not said.judged(made, values=values).right, name
    head = "model.embed_tokens.weight" if made.config.tied else "lm_head.weight"
    values = made.values()
    values[head] = values[head][[1, 0, *range(2, made.config.vocab)]]
    assert not said.judged(made, values=values).right
    turned = replace(made.config, rope_theta=made.config.rope_theta * 1.01)
    assert not said.judged(made, config=turned).right


def test_weights_of_one_layer_in_several_formats(made: Made) -> None:
    segments = {param: [s.format.name for s in found] for param, found in made.layout.items()}
    if made.config is GEMMA:
        assert segments["model.layers.0.self_attn.qkv_proj.weight"] == ["Q4_K", "Q3_K", "Q6_K"]
        assert segments["model.layers.1.mlp.gate_up_proj.weight"] == ["Q4_0", "Q8_0"]
        assert "model.layers.0.mlp.down_proj.weight" not in segments
    elif made.config is MIXTURE:
        assert segments["model.layers.0.mlp.moe_gate_up_proj.weight"] == ["Q4_K", "Q4_0"]
        assert segments["model.layers.1.mlp.moe_gate_up_proj.weight"] == ["Q5_0"]
        assert "model.layers.0.mlp.gate.weight" not in segments
        assert "model.layers.2.mlp.moe_down_proj.weight" not in segments
    else:
        assert segments["model.layers.0.self_attn.qkv_proj.weight"] == ["Q5_0"]
        assert segments["lm_head.weight"] == ["Q4_1"]


def test_a_token_reads_the_weights_of_its_experts_alone(emulator: None, tmp_path: Path) -> None:
    sizes = {**NARROW, "hidden": 1024, "intermediate": 512}
    config = LlamaConfig(
        **sizes, head_dim=64, vocab=77, family=MIXTURE.family, qk_norm=True, experts=16, chosen=4
    )
    types = {"embed_tokens": "Q4_0", "self_attn": "Q4_0", "down_proj": "Q6_K", "experts": "Q4_K"}
    made = make(config, of_mixture(config), {**types, "lm_head": "Q6_K"}, tmp_path)
    active = 4.0 * config.experts * config.hidden  # the gate
    for name, segments in made.layout.items():
        size = sum(one.rows * one.inputs * one.format.bits / 8 for one in segments)
        active += size * config.chosen if ".moe_" in name else size * ("embed" not in name)
    memory = core_option("spacemit-x60").memory
    assert memory is not None
    arguments = ["--params", str(made.params), "--tokens", ",".join(map(str, PROMPT))]
    arguments += ["--max-new", "4", "--roi", "both", "--json"]
    machine, caches = GuestMachine(vlen=128), memory.counter_option
    _, measured = count_guest(made.runner, arguments, machine, shared_builds.CACHE, caches=caches)
    _, decode = phases_of(len(measured.regions), 1)
    assert decode is not None
    report = memory_report(memory, measured, decode, Symbols.of(made.runner))
    assert active < report.bytes_read < 1.05 * active
