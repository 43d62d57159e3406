# SPDX-License-Identifier: Apache-2.0
"""The reference for BERT, which gives vectors of texts, in double precision.

Written from the architecture's description (Devlin et al., 2018, arXiv:1810.04805): learned
positions, attention of every token to every token, a norm behind each sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crosslab.errors import UserError
from crosslab.models.config import read_table
from crosslab.models.weights_file import F32, StoredWeights

F64 = NDArray[np.float64]
ENCODER = "bert"
POOLINGS = ("mean", "cls")
_QKV = ("query", "key", "value")


def erf_gelu(x: F64) -> F64:
    """Return the exact GELU."""
    erf: F64 = np.vectorize(math.erf, otypes=[float])(x * 0.5**0.5)
    return 0.5 * x * (1.0 + erf)


def _gelu_by_tanh(x: F64) -> F64:
    curve: F64 = np.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3))
    return 0.5 * x * (1.0 + curve)


def _relu(x: F64) -> F64:
    return np.maximum(x, 0.0)


ACTIVATIONS: dict[str, Callable[[F64], F64]] = {
    "gelu": erf_gelu,
    "gelu_new": _gelu_by_tanh,
    "relu": _relu,
}


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes and constants of a BERT.

    Attributes:
        hidden: width of a state, and of a vector.
        heads: heads of attention.
        layers: number of layers.
        eps: epsilon of the norms.
        activation: name of the activation, one of ``ACTIVATIONS``.
        pooling: "mean" of the tokens' states, or "cls", that of the first token.
        normalize: vectors have the length 1.
    """

    hidden: int
    heads: int
    layers: int
    eps: float
    activation: str
    pooling: str
    normalize: bool


def read_encoder(path: Path) -> EncoderConfig:
    """Read the ``config.json`` of an imported BERT.

    Raises:
        UserError: a field is missing, or has a value without support.
    """
    table = {"hidden_act": "gelu", "pooling": "mean", "normalize": True, **read_table(path)}
    own = ("hidden_size", "num_attention_heads", "num_hidden_layers")
    sizes = (*own, "vocab_size", "intermediate_size", "max_position_embeddings")
    if wrong := [n for n in sizes if type(table.get(n)) is not int or table[n] < 1]:
        raise UserError(f"{path}: {wrong[0]} = {table.get(wrong[0])!r} is not a size")
    allowed = {
        "hidden_act": tuple(ACTIVATIONS),
        "pooling": POOLINGS,
        "normalize": (True, False),
        "position_embedding_type": (None, "absolute"),
        "is_decoder": (None, False),
    }
    for name, values in allowed.items():
        if table.get(name) not in values:
            raise UserError(f"{path}: {name} = {table[name]!r} is not supported")
    hidden, heads, layers = (table[name] for name in own)
    if hidden % heads:
        raise UserError(f"{path}: {heads} heads do not share {hidden} features evenly")
    eps = table.get("layer_norm_eps", 1e-12)
    if type(eps) is not float or not 0 < eps < 1:
        raise UserError(f"{path}: layer_norm_eps = {eps!r} is not a small number")
    activation, pooling = table["hidden_act"], table["pooling"]
    return EncoderConfig(hidden, heads, layers, eps, activation, pooling, table["normalize"])


class EncoderWeights(Mapping[str, F32]):
    """The weights of a BERT's file in float32 by MLC-LLM's names, read on access."""

    def __init__(self, model: Path, config: EncoderConfig) -> None:
        self._stored = StoredWeights.of_model(model)
        self._names = dict.fromkeys(self._listed(config))

    @staticmethod
    def _listed(config: EncoderConfig) -> Iterator[str]:
        for table in ("word", "position", "token_type"):
            yield f"embeddings.{table}_embeddings.weight"
        parts = ["attention.self.qkv", "attention.output.dense", "attention.output.LayerNorm"]
        parts += ["intermediate.dense", "output.dense", "output.LayerNorm"]
        layers = [f"encoder.layer.{n}.{part}" for n in range(config.layers) for part in parts]
        for stem in ("embeddings.LayerNorm", *layers):
            yield from (f"{stem}.weight", f"{stem}.bias")

    def __getitem__(self, name: str) -> F32:
        if name not in self._names:
            raise KeyError(name)
        sources = [name.replace(".qkv.", f".{part}.") for part in _QKV]
        parts = [self._stored.read(source) for source in dict.fromkeys(sources)]
        return np.concatenate(parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def linear_layer(params: Mapping[str, F32], x: F64, name: str) -> F64:
    """Return x [rows, in] times the weights of a layer, plus its bias: [rows, out]."""
    product: F64 = x @ params[f"{name}.weight"].astype(float).T + params[f"{name}.bias"]
    return product


def layer_norm(params: Mapping[str, F32], eps: float, x: F64, name: str) -> F64:
    """Return the rows of x at mean 0 and variance 1, times the norm's weights, plus its bias."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + eps)
    normed: F64 = centred / scale * params[f"{name}.weight"] + params[f"{name}.bias"]
    return normed


def attend_whole(q: F64, k: F64, v: F64) -> F64:
    """Return attention [rows, heads * width] of each row to all; arguments [rows, heads, width]."""
    scores = np.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed: F64 = np.einsum("hqk,khd->qhd", weights / weights.sum(axis=-1, keepdims=True), v)
    return mixed.reshape(len(q), -1)


def vector_of(config: EncoderConfig, params: Mapping[str, F32], tokens: Sequence[int]) -> F64:
    """Return the vector [hidden] of a text.

    Args:
        config: sizes and constants.
        params: arrays under MLC-LLM's names.
        tokens: ids of the whole text, with those at its ends.
    """
    states = states_of(config, params, tokens)
    vector: F64 = states[0] if config.pooling == "cls" else states.mean(axis=0)
    return vector / np.linalg.norm(vector) if config.normalize else vector


def states_of(config: EncoderConfig, params: Mapping[str, F32], tokens: Sequence[int]) -> F64:
    """Return the states [tokens, hidden] after the last layer; arguments of :func:`vector_of`."""
    linear, norm = partial(linear_layer, params), partial(layer_norm, params, config.eps)
    tables = [params[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position")]
    kind = params["embeddings.token_type_embeddings.weight"][0]
    x = tables[0][list(tokens)].astype(float) + tables[1][: len(tokens)] + kind
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(config.layers):
        at = f"encoder.layer.{layer}"
        qkv = linear(x, f"{at}.attention.self.qkv").reshape(len(tokens), 3, config.heads, -1)
        q, k, v = qkv.transpose(1, 0, 2, 3)
        flat = attend_whole(q, k, v)
        x = norm(
            linear(flat, f"{at}.attention.output.dense") + x, f"{at}.attention.output.LayerNorm"
        )
        inner = ACTIVATIONS[config.activation](linear(x, f"{at}.intermediate.dense"))
        x = norm(linear(inner, f"{at}.output.dense") + x, f"{at}.output.LayerNorm")
    return x
