# SPDX-License-Identifier: Apache-2.0
"""A Llama in GGUF becomes float32 safetensors with Hugging Face names and layout.

Sources: the GGUF specification (ggml's docs/gguf.md) and the names that Hugging Face's Llama
gives its weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file

from crosslab.errors import LabError
from crosslab.models.config import LlamaConfig, write_config
from crosslab.models.tokenizer import build_tokenizer, save_tokenizer
from crosslab.stage import digest, stage

F32 = NDArray[np.float32]
WEIGHTS_FILE = "model.safetensors"

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
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def import_gguf(source: Path, cache: Path) -> Path:
    """Import a GGUF file into ``cache``; the folder is in Hugging Face's layout.

    Raises:
        LabError: the file is not a Llama, or its tokenizer is of an unknown kind.
    """
    own = [Path(__file__), *(Path(__file__).with_name(n) for n in ("tokenizer.py", "config.py"))]
    key = digest(source, *own)
    return stage(cache, "model", key, lambda scratch: _import(source, scratch))


def _import(source: Path, folder: Path) -> None:
    try:
        reader = GGUFReader(source)
    except (OSError, ValueError) as error:
        raise LabError(f"{source.name} is not a GGUF file: {error}") from error
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(source, fields, {str(t.name) for t in reader.tensors})
    weights = dict(_weights(source, reader, config))
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / WEIGHTS_FILE).chmod(0o644)  # safetensors writes for the owner alone
    ids = {n: fields.get(f"tokenizer.ggml.{n}_token_id") for n in ("bos", "eos")}
    extra = {f"{n}_token_id": index for n, index in ids.items() if index is not None}
    write_config(config, folder / "config.json", **extra)
    (folder / "generation_config.json").write_text(json.dumps(extra) + "\n", encoding="utf-8")
    save_tokenizer(build_tokenizer(fields), fields, folder)


def _config(source: Path, fields: dict[str, Any], tensors: set[str]) -> LlamaConfig:
    kind = fields.get("general.architecture")
    if kind != "llama":
        raise LabError(f"{source.name} holds a {kind!r} model", remedy="supported: llama")
    if "rope_freqs.weight" in tensors or "llama.rope.scaling.type" in fields:
        raise LabError(f"{source.name}: scaled rotary embeddings are not supported")
    try:
        heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
        return LlamaConfig(
            hidden=hidden,
            intermediate=fields["llama.feed_forward_length"],
            heads=heads,
            kv_heads=fields.get("llama.attention.head_count_kv", heads),
            head_dim=fields.get("llama.attention.key_length", hidden // heads),
            layers=fields["llama.block_count"],
            vocab=len(fields["tokenizer.ggml.tokens"]),
            rope_theta=fields.get("llama.rope.freq_base", 10000.0),
            # Stored as float32: 9.99999975e-06 is the number that was written as 1e-05.
            eps=float(str(np.float32(fields["llama.attention.layer_norm_rms_epsilon"]))),
            tied="output.weight" not in tensors,
            context=fields["llama.context_length"],
        )
    except KeyError as error:
        raise LabError(f"{source.name} lacks the field {error.args[0]}") from error


def _weights(source: Path, reader: GGUFReader, config: LlamaConfig) -> Iterator[tuple[str, F32]]:
    for tensor in reader.tensors:
        name = _hf_name(str(tensor.name))
        if name is None:
            raise LabError(f"{source.name}: unknown tensor {tensor.name}")
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if name.endswith(".q_proj.weight"):
            values = rotary_halves(values, config.heads)
        elif name.endswith(".k_proj.weight"):
            values = rotary_halves(values, config.kv_heads)
        yield name, values


def _hf_name(name: str) -> str | None:
    stem, _, kind = name.rpartition(".")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{kind}"
    block, _, rest = stem.partition(".")
    number, _, part = rest.partition(".")
    if block != "blk" or part not in _LAYER:
        return None
    return f"model.layers.{number}.{_LAYER[part]}.{kind}"


def rotary_halves(weight: F32, heads: int) -> F32:
    """Bring a GGUF query or key weight back to rotary pairs (i, i + d/2) within a head.

    GGUF's Llama keeps the two members of a rotary pair in neighbouring rows (2i, 2i+1).

    Args:
        weight: [heads * d, hidden], pairs interleaved.
        heads: number of heads in it.

    Returns:
        [heads * d, hidden], the first members of a head's pairs before the second ones.
    """
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)
