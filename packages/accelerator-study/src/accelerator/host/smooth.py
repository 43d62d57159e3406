# SPDX-License-Identifier: Apache-2.0
"""Parameters of the same model whose activations have smaller outliers (SmoothQuant).

A token's activations share a scale, so that a few large channels make it coarse for all others. A
channel is divided by a factor where it is made, in the weight of a norm or in the rows of the
multiplied half of a feed-forward, and the weights that read it are multiplied (Xiao et al.,
arXiv:2211.10438). Factors are powers of two: in float32 the model gives the same logits, bit for
bit. They are those of a short text, in relation to the largest weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from costmodel.accuracy.rounding import F32
from crosslab.cached_build import cached_build
from crosslab.models.config import LlamaConfig, read_family
from crosslab.models.params import Array, ReadParams, read_index, write_params
from crosslab.models.reference import ReferenceLlama
from crosslab.models.sources.model_folder import CONFIG_FILE
from groundwork.hashing import digest

CALIBRATION = "Explain how rain forms, and write print(1 + 2) in Python. What is the sea?"
# Part of the outliers that goes to the weights. On other texts 0.5 errs less; with it, SmolLM2's
# near tie in the main job's first word turns (docs/accelerator.md).
STRENGTH = 0.6
_NORMS = {"input_layernorm": "self_attn.qkv_proj", "post_attention_layernorm": "mlp.gate_up_proj"}
_LEAST = 1e-6


def smoothed_params(model: Path, folder: Path, tokens: Sequence[int], cache: Path) -> Path:
    """Folder of the smoothed parameters, made once.

    Args:
        model: its folder.
        folder: parameters in float32.
        tokens: of the text that factors are taken from.
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
    """Factors of the rows and of the columns of each parameter, by name."""
    values: dict[str, F32] = {}
    weights: dict[str, F32] = {}

    def product(x: F32, name: str, params: Mapping[str, F32]) -> F32:
        values[name], weights[name] = (np.abs(each).max(axis=0) for each in (x, params[name]))
        return np.asarray(x @ params[name].T)

    model = ReferenceLlama(config, params, product=product)
    model.read(tokens)
    one = np.ones(1, np.float32)
    found: dict[str, list[F32]] = defaultdict(lambda: [one, one])
    for layer in range(config.layers):
        at = f"model.layers.{layer}"
        for norm, linear in {**_NORMS, "input_layernorm": model.qkv}.items():
            name = f"{at}.{linear}.weight"
            found[name][1] = _factors(values[name], weights[name])
            found[f"{at}.{norm}.weight"][0] = np.reciprocal(found[name][1])
        name = f"{at}.mlp.down_proj.weight"
        found[name][1] = _factors(values[name], weights[name])
        plain = np.ones_like(found[name][1])
        found[f"{at}.mlp.gate_up_proj.weight"][0] = np.concatenate(
            [plain, np.reciprocal(found[name][1])]
        )
    return found


def scaled(parameter: F32, rows: F32, columns: F32) -> F32:
    """A parameter times its factors."""
    if parameter.ndim == 1:
        return np.asarray(parameter * rows)
    return np.asarray(parameter * rows[:, None] * columns)


def _factors(values: F32, weights: F32) -> F32:
    values, weights = (np.maximum(each, _LEAST * each.max()) for each in (values, weights))
    wanted = STRENGTH * np.log2(values) - (1 - STRENGTH) * np.log2(weights)
    return np.asarray(np.exp2(np.rint(wanted - wanted.mean())), dtype=np.float32)
