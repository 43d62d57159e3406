# SPDX-License-Identifier: Apache-2.0
"""A Llama of one layer with random weights, whose words are bytes, in GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers

HIDDEN, WIDE, HEADS, HEAD = 96, 176, 3, 32


def write_gguf(
    path: Path,
    more: Mapping[str, tuple[int, ...]] | None = None,
    scaling: float = 1.0,
    words: str = "smollm",
) -> None:
    """Write the model; the same bytes each time.

    Args:
        path: the file.
        more: shapes of further tensors by name; an empty shape leaves a tensor out.
        scaling: factor of the rotary embedding.
        words: name of the rule that cuts text into words.
    """
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_scaling_factor(scaling)
    writer.add_token_list(vocabulary)
    writer.add_tokenizer_pre(words)
    writer.add_token_merges(["t h"])
    shapes = {"token_embd": (len(vocabulary), HIDDEN)}
    shapes |= {f"blk.0.attn_{name}": (HIDDEN, HIDDEN) for name in ("q", "output")}
    shapes |= {f"blk.0.attn_{name}": (HEAD, HIDDEN) for name in ("k", "v")}
    shapes |= {f"blk.0.ffn_{name}": (WIDE, HIDDEN) for name in ("gate", "up")}
    shapes |= {"blk.0.ffn_down": (HIDDEN, WIDE)}
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    shapes |= more or {}
    random = np.random.default_rng(12)
    for name, shape in ((name, shape) for name, shape in shapes.items() if shape):
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.05, shape).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
