# SPDX-License-Identifier: Apache-2.0
"""The model families that can be read from GGUF files: fields, tensors, differences from Llama.

Sources: the GGUF specification (ggml's docs/gguf.md), Hugging Face's weight names, and the changes
of llama.cpp's converter: a Llama's queries and keys have the two members of a rotary pair in
neighbouring rows, and Gemma's norms include the 1 that the model adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig
from crosslab.models.reference import scaled_frequencies
from crosslab.models.weights_file import F32

THETA = 10000.0
# Scaled rotary embeddings of the Llama 3 releases; a GGUF file has only the factors.
LLAMA3_ROPES = ((8.0, 1.0, 4.0, 8192.0), (32.0, 1.0, 4.0, 8192.0))
ROPE_FACTORS = "rope_freqs.weight"

_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class GgufFamily:
    """Differences between a family and Llama.

    Attributes:
        fields: fields of ``config.json`` except the sizes.
        pairs_apart: rows of queries and keys have rotary pairs (i, i + d/2), as in Hugging Face's
            files.
        biases: queries, keys and values have biases.
        head_norms: queries and keys are normalized in each head.
        norm_offset: number that the file's norms are larger by.
    """

    fields: Mapping[str, Any]
    pairs_apart: bool = True
    biases: bool = False
    head_norms: bool = False
    norm_offset: float = 0.0


FAMILIES = {
    "llama": GgufFamily({"model_type": "llama", "hidden_act": "silu"}, pairs_apart=False),
    "qwen2": GgufFamily({"model_type": "qwen2", "hidden_act": "silu"}, biases=True),
    "qwen3": GgufFamily({"model_type": "qwen3", "hidden_act": "silu"}, head_norms=True),
    "gemma": GgufFamily(
        {"model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"}, norm_offset=1.0
    ),
}
"""By ``general.architecture``, which is "llama" in files of Mistral and SmolLM."""


def hf_name(name: str) -> str | None:
    """Convert a tensor's GGUF name to Hugging Face's name; None for an unknown name."""
    stem, _, kind = name.rpartition(".")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{kind}"
    block, _, rest = stem.partition(".")
    number, _, part = rest.partition(".")
    if block != "blk" or part not in _LAYER:
        return None
    return f"model.layers.{number}.{_LAYER[part]}.{kind}"


def gguf_name(name: str) -> str:
    """Convert Hugging Face's name of a weight to the GGUF name."""
    stem, _, kind = name.rpartition(".")
    outer = {hf: gguf for gguf, hf in _OUTER.items()}
    if stem in outer:
        return f"{outer[stem]}.{kind}"
    number, _, part = stem.removeprefix("model.layers.").partition(".")
    layer = {hf: gguf for gguf, hf in _LAYER.items()}
    return f"blk.{number}.{layer[part]}.{kind}"


def shapes_of(family: GgufFamily, config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in a model's GGUF file, by name; inputs come first."""
    hidden, kv = config.hidden, config.kv_heads * config.head_dim
    queries, head = config.heads * config.head_dim, (config.head_dim,)
    norm, table = (hidden,), (hidden, config.vocab)
    of_layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": norm,
        "attn_q.weight": (hidden, queries),
        "attn_k.weight": (hidden, kv),
        "attn_v.weight": (hidden, kv),
        "attn_output.weight": (queries, hidden),
        "ffn_norm.weight": norm,
        "ffn_gate.weight": (hidden, config.intermediate),
        "ffn_up.weight": (hidden, config.intermediate),
        "ffn_down.weight": (config.intermediate, hidden),
    }
    if family.biases:
        of_layer |= {f"attn_{p}.bias": (n,) for p, n in zip("qkv", (queries, kv, kv), strict=True)}
    if family.head_norms:
        of_layer |= {"attn_q_norm.weight": head, "attn_k_norm.weight": head}
    shapes = {"token_embd.weight": table, "output_norm.weight": norm}
    shapes |= {} if config.tied else {"output.weight": table}
    for layer in range(config.layers):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
    return shapes


def config_of(
    architecture: str,
    number: Callable[[str, float | None], float],
    vocab: int,
    *,
    tied: bool,
) -> LlamaConfig:
    """Return a model's sizes from the metadata of its GGUF file.

    Args:
        architecture: a name of :data:`FAMILIES`.
        number: returns a number by field name and default; raises UserError without either.
        vocab: size of the vocabulary.
        tied: the file has no matrix of the last linear layer.
    """

    def field(name: str, otherwise: float | None = None) -> float:
        return number(f"{architecture}.{name}", otherwise)

    heads, hidden = int(field("attention.head_count")), int(field("embedding_length"))
    return LlamaConfig(
        hidden=hidden,
        intermediate=int(field("feed_forward_length")),
        heads=heads,
        kv_heads=int(field("attention.head_count_kv", heads)),
        head_dim=int(field("attention.key_length", max(hidden // heads, 1))),
        layers=int(field("block_count")),
        vocab=vocab,
        rope_theta=field("rope.freq_base", THETA),
        # Stored as float32: 9.99999975e-06 is the number that was written as 1e-05.
        eps=float(str(np.float32(field("attention.layer_norm_rms_epsilon")))),
        tied=tied,
        context=int(field("context_length")),
    )


def rope_scaling(config: LlamaConfig, factors: F32) -> dict[str, Any]:
    """Return Llama 3's ``rope_scaling`` that divides the rotary frequencies by given factors.

    Raises:
        UserError: the factors belong to no known release.
    """
    half = config.head_dim // 2
    plain = config.rope_theta ** (-np.arange(half) / half)
    for rope in LLAMA3_ROPES:
        expected = plain / scaled_frequencies(plain, rope)
        if factors.shape == expected.shape and np.allclose(factors, expected, rtol=1e-5):
            factor, low, high, original = rope
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": int(original),
            }
    raise UserError(
        f"{ROPE_FACTORS} has other factors than Llama 3's releases",
        remedy="give the model's Hugging Face folder: config.json, *.safetensors, tokenizer.json",
    )
