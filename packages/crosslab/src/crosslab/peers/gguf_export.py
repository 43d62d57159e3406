# SPDX-License-Identifier: Apache-2.0
"""Writer of a model in Hugging Face's layout as a GGUF file, in a format of llama.cpp.

Every matrix is in the format, including embedding and lm_head, as in MLC-LLM's formats; llama.cpp's
``llama-quantize`` keeps lm_head of Q4_0 in Q6_K without ``--pure``. Q4_K_M and Q5_K_M are
llama.cpp's mixes: Q6_K for lm_head and for the values and down projections of some layers, and
blocks of 32 for a matrix whose row length is not a multiple of 256. Weights are first rounded to
bfloat16, as MLC-LLM's q0f32 stores them, so that both programs run the same model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from numpy.typing import NDArray

from crosslab.cached_build import cached_build
from crosslab.models import params
from crosslab.models.config import LlamaConfig, read_config, write_config
from crosslab.models.gguf_params import TYPES
from crosslab.models.params import from_bfloat16, to_bfloat16
from crosslab.models.sources import gguf_families
from crosslab.models.sources.gguf_families import families, swapped
from crosslab.models.weights_file import F32, StoredWeights, save_weights
from crosslab.peers import quantize as quantize_module
from crosslab.peers.quantize import quantize
from groundwork.hashing import digest

_KIND = GGMLQuantizationType
SMALL_BLOCK, LARGE_BLOCK = 32, 256
# Replacements in llama-quantize for rows that are not a multiple of 256.
IN_SMALL_BLOCKS = {_KIND.Q4_K: _KIND.Q5_0, _KIND.Q5_K: _KIND.Q5_1, _KIND.Q6_K: _KIND.Q8_0}


@dataclass(frozen=True)
class Format:
    """A format of weights in a GGUF file.

    Attributes:
        kind: tensor type of a matrix.
        file_type: type of the file.
        block: elements of a block; feed-forward widths are padded to a multiple.
        better: tensor type of the matrices that llama-quantize stores with more bits; None: no such
            matrices.
    """

    kind: GGMLQuantizationType
    file_type: LlamaFileType
    block: int = SMALL_BLOCK
    better: GGMLQuantizationType | None = None

    def kind_of(self, name: str, width: int, layers: int, *, tied: bool) -> GGMLQuantizationType:
        """Return the tensor type of a matrix, by its name and the length of its rows.

        Args:
            name: name in the GGUF file.
            width: elements of a row.
            layers: number of layers of the model.
            tied: True if the token embedding is also lm_head, and has its type.
        """
        layer = re.match(r"blk\.(\d+)\.(attn_v|ffn_down(?:_exps)?)\.", name)
        head = name == ("token_embd.weight" if tied else "output.weight")
        gets_more_bits = head or (layer and _gets_more_bits(int(layer[1]), layers))
        kind = self.better if self.better and gets_more_bits else self.kind
        return kind if width % LARGE_BLOCK == 0 else IN_SMALL_BLOCKS.get(kind, kind)


def _gets_more_bits(layer: int, layers: int) -> bool:
    """True for the first and last eighth of the layers, and each third layer between them."""
    first = layers // 8
    return layer < first or layer >= 7 * layers // 8 or (layer - first) % 3 == 2


FORMATS = {
    "F32": Format(_KIND.F32, LlamaFileType.ALL_F32),
    "F16": Format(_KIND.F16, LlamaFileType.MOSTLY_F16),
    "Q8_0": Format(_KIND.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "Q4_0": Format(_KIND.Q4_0, LlamaFileType.MOSTLY_Q4_0),
    "IQ4_NL": Format(_KIND.IQ4_NL, LlamaFileType.MOSTLY_IQ4_NL),
    "Q4_K_M": Format(_KIND.Q4_K, LlamaFileType.MOSTLY_Q4_K_M, LARGE_BLOCK, better=_KIND.Q6_K),
    "Q5_K_M": Format(_KIND.Q5_K, LlamaFileType.MOSTLY_Q5_K_M, LARGE_BLOCK, better=_KIND.Q6_K),
}

IN_BLOCKS = ("Q4_0", "Q8_0", "Q4_K_M")
"""Formats whose stored blocks the project's kernels multiply."""


def fits(config: LlamaConfig) -> bool:
    """True if a model's widths, without the padded feed-forward width, are multiples of 32."""
    widths = (config.hidden, config.heads * config.head_dim)
    return not any(width % SMALL_BLOCK for width in widths)


def export_gguf(model: Path, format_: str, cache: Path) -> Path:
    """Write a model's GGUF file once; return the cached path.

    Args:
        model: folder with ``config.json`` and weights; a cached build, whose name identifies its
            content.
        format_: key of :data:`FORMATS`.
        cache: folder of finished builds.
    """
    sources = [Path(str(module.__file__)) for module in (gguf_families, params, quantize_module)]
    key = digest(model.name, format_, Path(__file__), *sources)
    file = cached_build(cache, "gguf", key, lambda out: _export(model, format_, out / "model.gguf"))
    return file / "model.gguf"


def _export(model: Path, format_: str, target: Path) -> None:
    chosen = FORMATS[format_]
    config = read_config(model / "config.json")
    writer = GGUFWriter(target, "llama")
    writer.add_file_type(chosen.file_type)
    add_sizes(writer, config, padded(config.intermediate, chosen.block))
    writer.add_vocab_size(config.vocab)
    writer.add_tokenizer_model("none")
    for name, values in _gguf_weights(model, config, chosen.block):
        # llama.cpp stores norms in float32 in every format.
        stored = _KIND.F32
        if values.ndim == 2:
            stored = chosen.kind_of(name, values.shape[1], config.layers, tied=config.tied)
        writer.add_tensor(name, quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def store_in_blocks(model: Path, format_: str, cache: Path) -> Path:
    """Store a model with weights in GGUF blocks, as an import would; return the cached folder.

    Args:
        model: see :func:`export_gguf`.
        format_: name in :data:`IN_BLOCKS`.
        cache: folder of finished builds.
    """
    sources = [Path(str(module.__file__)) for module in (params, quantize_module)]
    key = digest(model.name, format_, Path(__file__), *sources)
    return cached_build(cache, "in-blocks", key, lambda out: _store(model, format_, out))


def _store(model: Path, format_: str, folder: Path) -> None:
    chosen, types = FORMATS[format_], dict[str, str]()
    config = read_config(model / "config.json")
    in_file = gguf_names(config)

    def stored() -> Iterator[tuple[str, NDArray[Any]]]:
        for name, values in _weights(model, config, chosen.block):
            if values.ndim == 2:
                width = values.shape[1]
                kind = chosen.kind_of(in_file[name], width, config.layers, tied=config.tied)
                types[name] = kind.name
                yield name, quantize(values, kind)
            else:
                yield name, values

    save_weights(stored(), folder, metadata={"format": "pt"})
    width = padded(config.intermediate, chosen.block)
    whole = replace(config, intermediate=width)
    write_config(whole, folder / "config.json", **{TYPES: types})


def add_sizes(writer: GGUFWriter, config: LlamaConfig, intermediate: int) -> None:
    """Write a model's sizes to a GGUF file; the feed-forward width may be padded."""
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(intermediate)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.eps)


def padded(intermediate: int, block: int) -> int:
    """Round a feed-forward width up to whole blocks; the added weights are zeros."""
    return -(-intermediate // block) * block


def _weights(model: Path, config: LlamaConfig, block: int) -> Iterator[tuple[str, F32]]:
    padding = padded(config.intermediate, block) - config.intermediate
    weights = StoredWeights.of_model(model)
    for name in weights.places:
        values = from_bfloat16(to_bfloat16(weights.read(name)))
        if ".down_proj." in name:
            values = np.pad(values, ((0, 0), (0, padding)))
        elif ".gate_proj." in name or ".up_proj." in name:
            values = np.pad(values, ((0, padding), (0, 0)))
        yield name, np.ascontiguousarray(values)


def gguf_names(config: LlamaConfig) -> dict[str, str]:
    """Return llama.cpp's name of each weight of a Llama, by Hugging Face's."""
    published = families()["llama"].published_names(config.layers)
    return {name: in_file for in_file, name in published.items()}


def _gguf_weights(model: Path, config: LlamaConfig, block: int) -> Iterator[tuple[str, F32]]:
    """Yield the weights by llama.cpp's names, with rotary pairs in neighbouring rows."""
    heads = {".q_proj.": config.heads, ".k_proj.": config.kv_heads}
    in_file = gguf_names(config)
    for name, values in _weights(model, config, block):
        pairs = next((count for part, count in heads.items() if part in name), 0)
        yield in_file[name], swapped(values, 0, 0, pairs, 2, -1, 1) if pairs else values
