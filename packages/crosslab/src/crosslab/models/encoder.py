# SPDX-License-Identifier: Apache-2.0
"""The reference for BERTs, which give vectors of texts, in double precision.

Written from the architectures' descriptions: attention of every token to every token, a norm behind
each sum, and learned positions (Devlin et al., 2018, arXiv:1810.04805) or, in Nomic's, rotary
embeddings and gates without biases (Nussbaum et al., 2024, arXiv:2402.01613).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crosslab.errors import UserError
from crosslab.models.config import NOMIC, read_table
from crosslab.models.reference import gelu, silu, softmax, turned
from crosslab.models.weights_file import F32, NamedWeights, StoredWeights

F64 = NDArray[np.float64]
BERT = "bert"
ENCODERS = (BERT, NOMIC)
POOLINGS = ("mean", "cls")
_QKV = ("query", "key", "value")
# What Nomic's class can do, and its published models of one expert do not.
_ABSENT = (
    *("causal", "prenorm", "parallel_block", "use_rms_norm", "num_experts", "moe_every_n_layers"),
    *("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"),
    *("rotary_emb_interleaved", "rotary_emb_scale_base", "rotary_scaling_factor"),
)


def erf_gelu(x: F64) -> F64:
    """Return the exact GELU."""
    erf: F64 = np.vectorize(math.erf, otypes=[float])(x * 0.5**0.5)
    return 0.5 * x * (1.0 + erf)


def _relu(x: F64) -> F64:
    return np.maximum(x, 0.0)


ACTIVATIONS: dict[str, Callable[[F64], F64]] = {
    "gelu": erf_gelu,
    "gelu_new": gelu,
    "relu": _relu,
    "silu": silu,
}


class Names(NamedTuple):
    """Names of the weights, without ".weight": tables, their norm, and the parts of a layer.

    The product ``gate``, if there is one, is multiplied by the activation of ``inner``.
    """

    tables: tuple[str, ...]
    norm: str
    layer: str
    qkv: str
    attended: str
    attended_norm: str
    inner: str
    gate: str | None
    outer: str
    outer_norm: str


NAMES = {
    BERT: Names(
        tables=tuple(f"embeddings.{n}_embeddings" for n in ("word", "token_type", "position")),
        norm="embeddings.LayerNorm",
        layer="encoder.layer",
        qkv="attention.self.qkv",
        attended="attention.output.dense",
        attended_norm="attention.output.LayerNorm",
        inner="intermediate.dense",
        gate=None,
        outer="output.dense",
        outer_norm="output.LayerNorm",
    ),
    NOMIC: Names(
        tables=tuple(f"embeddings.{n}_embeddings" for n in ("word", "token_type")),
        norm="emb_ln",
        layer="encoder.layers",
        qkv="attn.Wqkv",
        attended="attn.out_proj",
        attended_norm="norm1",
        inner="mlp.fc12",
        gate="mlp.fc11",
        outer="mlp.fc2",
        outer_norm="norm2",
    ),
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
        kind: ``model_type``, one of ``ENCODERS``.
        theta: base of the rotary embeddings, if the model has them.
    """

    hidden: int
    heads: int
    layers: int
    eps: float
    activation: str
    pooling: str
    normalize: bool
    kind: str = BERT
    theta: float = 0.0


def read_encoder(path: Path) -> EncoderConfig:
    """Read the ``config.json`` of an imported BERT.

    Raises:
        UserError: a field is missing, or has a value without support.
    """
    table = {"hidden_act": "gelu", "pooling": "mean", "normalize": True, **read_table(path)}
    kind = table.get("model_type", BERT)
    own = ("hidden_size", "num_attention_heads", "num_hidden_layers")
    sizes = (*own, "vocab_size", "intermediate_size", "max_position_embeddings")
    if wrong := [n for n in sizes if type(table.get(n)) is not int or table[n] < 1]:
        raise UserError(f"{path}: {wrong[0]} = {table.get(wrong[0])!r} is not a size")
    allowed = {
        "hidden_act": tuple(ACTIVATIONS) if kind == BERT else ("silu", "swiglu"),
        "pooling": POOLINGS,
        "normalize": (True, False),
        "position_embedding_type": (None, "absolute"),
        "is_decoder": (None, False),
        "rope_scaling": (None,),
        **dict.fromkeys(_ABSENT, (None, False)),
        "rotary_emb_fraction": (None, 1.0),
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
    theta = table.get("rope_theta", 1000.0)
    if type(theta) not in (int, float) or not theta > 0:
        raise UserError(f"{path}: rope_theta = {theta!r} is not a positive number")
    activation = table["hidden_act"] if kind == BERT else "silu"
    about = (hidden, heads, layers, eps, activation, table["pooling"], table["normalize"])
    return EncoderConfig(*about, kind=kind, theta=theta)


class EncoderWeights(NamedWeights):
    """The weights of a BERT's folder; those of queries, keys and values are one."""

    def __init__(self, model: Path) -> None:
        sources = {
            name.replace(".query.", ".qkv."): [
                name.replace(".query.", f".{part}.") for part in _QKV
            ]
            for name in StoredWeights.of_model(model).places
        }
        super().__init__(model, {name: list(dict.fromkeys(of)) for name, of in sources.items()})


def linear_layer(params: Mapping[str, F32], x: F64, name: str, *, biased: bool = True) -> F64:
    """Return x [rows, in] times the weights of a layer, plus its bias: [rows, out]."""
    product: F64 = x @ params[f"{name}.weight"].astype(float).T
    return product + params[f"{name}.bias"] if biased else product


def layer_norm(params: Mapping[str, F32], eps: float, x: F64, name: str) -> F64:
    """Return the rows of x at mean 0 and variance 1, times the norm's weights, plus its bias."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + eps)
    normed: F64 = centred / scale * params[f"{name}.weight"] + params[f"{name}.bias"]
    return normed


def attend_whole(q: F64, k: F64, v: F64) -> F64:
    """Return attention [rows, heads * width] of each row to all; arguments [rows, heads, width]."""
    scores = np.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    mixed: F64 = np.einsum("hqk,khd->qhd", softmax(scores), v)
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
    linear = partial(linear_layer, params, biased=config.kind == BERT)
    norm, names = partial(layer_norm, params, config.eps), NAMES[config.kind]
    words, kinds, *learned = (params[f"{table}.weight"] for table in names.tables)
    x = words[list(tokens)].astype(float) + kinds[0]
    for positions in learned:
        x += positions[: len(tokens)]
    x = norm(x, names.norm)
    for layer in range(config.layers):
        at = f"{names.layer}.{layer}."
        qkv = linear(x, at + names.qkv).reshape(len(tokens), 3, config.heads, -1)
        q, k, v = qkv.transpose(1, 0, 2, 3)
        if not learned:
            q, k = (turned(part, np.arange(len(tokens)), config.theta) for part in (q, k))
        x = norm(linear(attend_whole(q, k, v), at + names.attended) + x, at + names.attended_norm)
        inner = ACTIVATIONS[config.activation](linear(x, at + names.inner))
        if names.gate:
            inner *= linear(x, at + names.gate)
        x = norm(linear(inner, at + names.outer) + x, at + names.outer_norm)
    return x
