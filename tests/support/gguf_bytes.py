# SPDX-License-Identifier: Apache-2.0
"""Random weights as GGUF files store them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, quant_shape_to_byte_shape

from crosslab.models.config import LlamaConfig, write_config
from crosslab.models.gguf_formats import FILE_TYPES, U8
from crosslab.models.llama_params import matrices_of, param_shapes
from crosslab.models.weights_file import save_weights

# Bytes of a block before its factors.
FACTORS = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208, "TQ2_0": 64}


def random_rows(name: str, n: int, k: int, seed: int = 1) -> U8:
    """Random bytes [n, bytes of a row] of a format; the factors in them are finite."""
    shape = quant_shape_to_byte_shape((n, k), GGMLQuantizationType[name])
    raw: U8 = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    kind = FILE_TYPES[name]
    blocks = raw.reshape(-1, kind.bytes)
    if name == "MXFP4":
        blocks[:, 0] = blocks[:, 0] % 40 + 104
    else:
        at = FACTORS.get(name, 0)
        ends = [at + 1, at + 3][: 1 + kind.stored_as.minimums]
        blocks[:, ends] &= 0xBB  # the exponent is not the largest
        if name == "IQ4_XS":
            blocks[:, 1] &= 0x9F  # nor is that of a product with a scale
    return raw


def small_rows(name: str, n: int, k: int, seed: int) -> U8:
    """The same with weights about as large as a model's: about 1 / sqrt(k)."""
    raw = random_rows(name, n, k, seed)
    kind = FILE_TYPES[name]
    f = kind.stored_as
    blocks = raw.reshape(-1, kind.bytes)
    if name == "MXFP4":
        blocks[:, 0] = 128 + round(np.log2(1.5 / (12 * k**0.5)))
        return raw
    # The largest value times the largest scale, but for a part of two.
    largest = 2.0 ** (f.low + f.high - 1) * (64 if f.scaled else 1)
    largest = {"Q2_K": 1.5 * 15, "Q3_K": 4 * 32}.get(name, largest)
    factor = np.float16(1.5 / (largest * k**0.5))
    least = np.float16(-factor * 2 ** (f.low + f.high - 1)) if not f.scaled else factor * 16
    least = factor * np.float16(1.5) if name == "Q2_K" else least
    values = (factor, np.float16(least))[: 1 + f.minimums]
    at = FACTORS.get(name, 0)
    for place, value in zip((at, at + 2), values, strict=False):
        blocks[:, place : place + 2] = np.frombuffer(value.tobytes(), np.uint8)
    return raw


def write_model(
    config: LlamaConfig, about: Mapping[str, object], types: Mapping[str, str], folder: Path
) -> Path:
    """A folder as the import of a GGUF file leaves it, with random weights.

    Args:
        config: of the model.
        about: fields of config.json by which the family is known.
        types: formats of weights, by a part of Hugging Face's name; others are float32.
        folder: where to.
    """
    named = {}
    weights = {}
    for number, (param, shape) in enumerate(param_shapes(config).items()):
        sources = matrices_of(param, config)
        query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
        height = shape[0] if len(shape) < 3 else shape[1]
        heights = {1: [height], 2: [config.intermediate] * 2, 3: [query, key, key]}
        rows_of = zip(sources, heights[len(sources)], strict=True)
        each = [(name, rows) for names, rows in rows_of for name in names]
        for i, (name, rows) in enumerate(each):
            found = [kind for part, kind in types.items() if part in name]
            if found and found[0] in FILE_TYPES and len(shape) > 1:
                named[name] = found[0]
                weights[name] = small_rows(found[0], rows, shape[-1], 10 * number + i)
                continue
            random = np.random.default_rng(10 * number + i)
            inputs = shape[-1:] if len(shape) > 1 else ()
            values = random.standard_normal((rows, *inputs)) * shape[-1] ** -0.5
            if name.endswith("norm.weight"):
                values = 0.1 * values + (0 if config.gelu else 1)
            weights[name] = values.astype(np.float32)
    save_weights(weights.items(), folder)
    write_config(config, folder / "config.json", gguf_types=named, **about)
    return folder
