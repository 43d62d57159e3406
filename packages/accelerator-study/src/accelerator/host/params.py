# SPDX-License-Identifier: Apache-2.0
"""Parameters of a model whose linear layers a device computes: int8 weights and their scales.

The pass CallAccelerator declares such parameters: a row has ``inputs`` int8 values, then the four
bytes of its float32 scale. Before they are rounded, equivalent parameters make the outliers of
activations smaller (SmoothQuant).

A token's activations share a scale, which a few large channels make coarse for all channels. So the
producer of a channel, the weight of a norm or the rows of the linear half of a feed-forward, is
divided by a factor, and the weights that read the channel are multiplied (Xiao et al.,
arXiv:2211.10438). Factors are powers of two: in float32 the model gives the same logits, bit for
bit. They follow from the largest activations in a short text and the largest weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from accelerator.layer import Int8
from accelerator.model import quantise
from crosslab.cached_build import cached_build
from crosslab.models.config import LlamaConfig, read_family
from crosslab.models.params import Array, ReadParams, read_index, write_params
from crosslab.models.reference import ReferenceLlama
from crosslab.models.sources.model_folder import CONFIG_FILE
from crosslab.models.weights_file import F32
from groundwork.hashing import digest

EMBEDDING = "embed_tokens"
CALIBRATION = "Explain how rain forms, and write print(1 + 2) in Python. What is the sea?"
# Part of the outliers that moves to the weights. On other texts 0.5 errs less, but reverses
# SmolLM2's near tie in the main job's first word (docs/accelerator.md).
STRENGTH = 0.6
_NORMS = {"input_layernorm": "self_attn.qkv_proj", "post_attention_layernorm": "mlp.gate_up_proj"}
_LEAST = 1e-6


def in_int8(name: str, shape: tuple[int, ...]) -> bool:
    """Return True for a matrix, but not for the embedding, of which the CPU reads rows."""
    return len(shape) == 2 and EMBEDDING not in name


def int8_rows(weights: F32, name: str = "a weight") -> Int8:
    """Round weights [outputs, inputs] to int8 rows with their scales [outputs, inputs + 4].

    Raises:
        AcceleratorError: a weight is NaN or infinity; the message has ``name``.
    """
    rounded, scales = quantise(weights, name)
    return np.concatenate([rounded, scales[:, None].view(np.int8)], axis=1)


def int8_params(folder: Path, cache: Path) -> Path:
    """Write the parameters with matrices in int8 to a cached folder, and return the folder.

    Args:
        folder: parameters in float32.
        cache: folder of finished builds.

    Raises:
        UserError: the parameters cannot be read.
        AcceleratorError: a parameter has NaN or infinity.
    """

    def converted() -> Iterator[tuple[str, Array]]:
        for name, stored in read_index(folder).items():
            values = stored.read()
            yield name, int8_rows(values, name) if in_int8(name, stored.shape) else values

    key = digest(folder.name, folder / "tensor-cache.json", Path(__file__))
    return cached_build(cache, "params-int8", key, lambda out: write_params(converted(), out))


def smoothed_params(model: Path, folder: Path, tokens: Sequence[int], cache: Path) -> Path:
    """Write the smoothed parameters to a cached folder, and return the folder.

    Args:
        model: folder of the model.
        folder: parameters in float32.
        tokens: of the text from which factors are computed.
        cache: folder of finished builds.

    Raises:
        UserError: the parameters cannot be read.
    """
    config = read_family(model / CONFIG_FILE)

    def converted() -> Iterator[tuple[str, Array]]:
        factors = smoothing(config, ReadParams(folder), tokens)
        for name, stored in read_index(folder).items():
            yield name, scaled(stored.read(), *factors[name])

    key = digest(folder.name, folder / "tensor-cache.json", repr(tokens), Path(__file__))
    return cached_build(cache, "params-smooth", key, lambda out: write_params(converted(), out))


def smoothing(
    config: LlamaConfig, params: Mapping[str, F32], tokens: Sequence[int]
) -> dict[str, list[F32]]:
    """Return by parameter's name the factors of its rows and of its columns; 1 for other names."""
    values: dict[str, F32] = {}
    weights: dict[str, F32] = {}

    def product(x: F32, name: str, params: Mapping[str, F32]) -> F32:
        values[name], weights[name] = (np.abs(each).max(axis=0) for each in (x, params[name]))
        return np.asarray(x @ params[name].T)

    model = ReferenceLlama(config, params, product=product)
    model.read(tokens)
    unit = np.ones(1, np.float32)
    factors: dict[str, list[F32]] = defaultdict(lambda: [unit, unit])
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}"
        for norm, linear in _NORMS.items():
            name = model.named(layer, f"{linear}.weight")
            factors[name][1] = _factors(values[name], weights[name])
            factors[f"{prefix}.{norm}.weight"][0] = np.reciprocal(factors[name][1])
        name = f"{prefix}.mlp.down_proj.weight"
        factors[name][1] = _factors(values[name], weights[name])
        plain = np.ones_like(factors[name][1])
        factors[f"{prefix}.mlp.gate_up_proj.weight"][0] = np.concatenate(
            [plain, np.reciprocal(factors[name][1])]
        )
    return factors


def scaled(parameter: F32, rows: F32, columns: F32) -> F32:
    """Return a parameter with rows and columns multiplied by factors; a vector has only rows."""
    if parameter.ndim == 1:
        return np.asarray(parameter * rows)
    return np.asarray(parameter * rows[:, None] * columns)


def _factors(values: F32, weights: F32) -> F32:
    values, weights = (np.maximum(each, _LEAST * each.max()) for each in (values, weights))
    wanted = STRENGTH * np.log2(values) - (1 - STRENGTH) * np.log2(weights)
    return np.asarray(np.exp2(np.rint(wanted - wanted.mean())), dtype=np.float32)
