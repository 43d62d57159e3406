# SPDX-License-Identifier: Apache-2.0
"""A Llama in GGUF becomes float32 safetensors with Hugging Face names and layout.

Sources: the GGUF specification (ggml's docs/gguf.md) and the names that Hugging Face's Llama
gives its weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray

from crosslab.cached_build import cached_build
from crosslab.errors import UserError
from crosslab.models import config as model_config
from crosslab.models.config import LlamaConfig, write_config
from crosslab.models.gguf_formats import gguf_formats
from crosslab.models.gguf_params import TYPES
from crosslab.models.weights_file import save_weights
from crosslab.tokenizer import chat_tokenizer, word_rules
from crosslab.tokenizer.chat_tokenizer import build_tokenizer, save_tokenizer
from groundwork.gguf_bound import Bounded
from groundwork.hashing import digest

T = TypeVar("T", bound=np.generic)
THETA = 10000.0
MOST = 1e9  # beyond every size of a model
_FOLDER = (
    "of GGUF, plain Llamas are read; give the model's Hugging Face folder: config.json, "
    "*.safetensors, tokenizer.json"
)

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


class BoundedReader(Bounded, GGUFReader):  # type: ignore[misc]
    """The package's reader, which refuses counts that lead past the end of the file."""


def import_gguf(source: Path, cache: Path, *, blocks: bool = False) -> Path:
    """Import a GGUF file into ``cache``; the folder is in Hugging Face's layout.

    Args:
        source: the file.
        cache: folder of finished builds.
        blocks: weights stay in the file's blocks, see :mod:`crosslab.models.gguf_params`.

    Raises:
        UserError: the file is not a Llama, or its tokenizer is of an unknown kind.
    """
    own = [Path(str(m.__file__)) for m in (chat_tokenizer, word_rules, model_config)]
    key = digest(source, str(blocks), Path(__file__), *own, word_rules.TABLE)
    make = partial(import_into, source, blocks=blocks)
    return cached_build(cache, "model", key, make)


def import_into(source: Path, folder: Path, *, blocks: bool = False) -> None:
    """Import a GGUF file into an empty folder; see :func:`import_gguf`.

    Raises:
        UserError: see :func:`import_gguf`.
    """
    try:
        reader = BoundedReader(source)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # the package names no exceptions of its own
        raise UserError(
            f"{source.name} is not a GGUF file: {error}",
            remedy="download the file again, and compare its sha256 with its publisher's",
        ) from error
    config = _config(source, fields, {str(t.name) for t in reader.tensors})
    _check_shapes(source, reader, config)
    weights = _weights(source, reader, config, blocks=blocks)
    save_weights(weights, folder, metadata={"format": "pt"})
    ids = {n: fields.get(f"tokenizer.ggml.{n}_token_id") for n in ("bos", "eos")}
    extra = {f"{n}_token_id": index for n, index in ids.items() if index is not None}
    types = {TYPES: _types(reader)} if blocks else {}
    write_config(config, folder / "config.json", **extra, **types)
    (folder / "generation_config.json").write_text(json.dumps(extra) + "\n", encoding="utf-8")
    save_tokenizer(build_tokenizer(fields), fields, folder)


def _config(source: Path, fields: dict[str, Any], tensors: set[str]) -> LlamaConfig:
    kind = fields.get("general.architecture")
    if kind != "llama":
        raise UserError(
            f"{source.name} holds a {kind!r} model; only 'llama' is supported", remedy=_FOLDER
        )
    if "rope_freqs.weight" in tensors or "llama.rope.scaling.type" in fields:
        raise UserError(
            f"{source.name}: scaled rotary embeddings are not supported", remedy=_FOLDER
        )

    def number(name: str, otherwise: float | None = None) -> float:
        value = fields.get(name, otherwise)
        if value is None:
            raise UserError(f"{source.name} lacks the field {name}")
        if type(value) not in (int, float) or not 0 < value < MOST:
            raise UserError(f"{source.name}: {name} has the wrong value {str(value)[:40]!r}")
        return float(value) if otherwise == THETA or "epsilon" in name else int(value)

    tokens = fields.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise UserError(f"{source.name} lacks the field tokenizer.ggml.tokens")
    heads = int(number("llama.attention.head_count"))
    hidden = int(number("llama.embedding_length"))
    return LlamaConfig(
        hidden=hidden,
        intermediate=int(number("llama.feed_forward_length")),
        heads=heads,
        kv_heads=int(number("llama.attention.head_count_kv", heads)),
        head_dim=int(number("llama.attention.key_length", max(hidden // heads, 1))),
        layers=int(number("llama.block_count")),
        vocab=len(tokens),
        rope_theta=number("llama.rope.freq_base", THETA),
        # Stored as float32: 9.99999975e-06 is the number that was written as 1e-05.
        eps=float(str(np.float32(number("llama.attention.layer_norm_rms_epsilon")))),
        tied="output.weight" not in tensors,
        context=int(number("llama.context_length")),
    )


def _check_shapes(source: Path, reader: GGUFReader, config: LlamaConfig) -> None:
    """Check that the file has every tensor of the config, in its shape, and no other."""
    hidden, kv = config.hidden, config.kv_heads * config.head_dim
    queries = config.heads * config.head_dim
    norm, table = (hidden,), (hidden, config.vocab)
    wanted = {"token_embd": table, "output_norm": norm}
    wanted |= {} if config.tied else {"output": table}
    of_layer = {
        "attn_norm": norm,
        "attn_q": (hidden, queries),
        "attn_k": (hidden, kv),
        "attn_v": (hidden, kv),
        "attn_output": (queries, hidden),
        "ffn_norm": norm,
        "ffn_gate": (hidden, config.intermediate),
        "ffn_up": (hidden, config.intermediate),
        "ffn_down": (config.intermediate, hidden),
    }
    shapes = {str(t.name): tuple(int(n) for n in t.shape) for t in reader.tensors}
    if config.layers > len(shapes):
        raise UserError(f"{source.name}: {config.layers} layers in {len(shapes)} tensors")
    for layer in range(config.layers):
        wanted |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
    for name, shape in wanted.items():
        found = shapes.pop(f"{name}.weight", None)
        if found != shape:
            raise UserError(f"{source.name}: {name}.weight has the shape {found}, not {shape}")
    if shapes:
        raise UserError(f"{source.name}: unknown tensor {next(iter(shapes))}", remedy=_FOLDER)


def _types(reader: GGUFReader) -> dict[str, str]:
    """The formats of weights that kernels read in blocks, by Hugging Face's name."""
    named = ((_hf_name(str(t.name)), t.tensor_type.name) for t in reader.tensors)
    return {name: kind for name, kind in named if name is not None and kind in gguf_formats()}


def _weights(
    source: Path, reader: GGUFReader, config: LlamaConfig, *, blocks: bool
) -> Iterator[tuple[str, NDArray[Any]]]:
    """The tensors: rows of blocks as bytes [rows, bytes] if they stay so, else float32."""
    for tensor in reader.tensors:
        name = _hf_name(str(tensor.name))
        if name is None:
            raise UserError(f"{source.name}: unknown tensor {tensor.name}", remedy=_FOLDER)
        if blocks and tensor.tensor_type.name in gguf_formats():
            values = np.ascontiguousarray(tensor.data)
        else:
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


def gguf_name(name: str) -> str:
    """The name in GGUF of a weight under Hugging Face's name."""
    stem, _, kind = name.rpartition(".")
    outer = {theirs: ours for ours, theirs in _OUTER.items()}
    if stem in outer:
        return f"{outer[stem]}.{kind}"
    number, _, part = stem.removeprefix("model.layers.").partition(".")
    layer = {theirs: ours for ours, theirs in _LAYER.items()}
    return f"blk.{number}.{layer[part]}.{kind}"


def rotary_halves(weight: NDArray[T], heads: int) -> NDArray[T]:
    """Bring a GGUF query or key weight back to rotary pairs (i, i + d/2) within a head.

    GGUF's Llama keeps the two members of a rotary pair in neighbouring rows (2i, 2i+1).

    Args:
        weight: [heads * d, hidden], pairs interleaved, or rows of blocks as bytes.
        heads: number of heads in it.

    Returns:
        The same rows, the first members of a head's pairs before the second ones.
    """
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)
