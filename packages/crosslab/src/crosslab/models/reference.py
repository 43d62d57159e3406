# SPDX-License-Identifier: Apache-2.0
"""The numpy float32 reference for compiled models of Llama and related families.

Written from the architectures' descriptions (RMSNorm, rotary embeddings on halves of a head,
grouped-query attention, SwiGLU; Llama 3's scaled rotary embeddings, Qwen's biases and norms of
heads, Gemma's GELU and scaled embeddings), apart from any compiler, so that it shares no mistake
with a compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig, Rope
from crosslab.models.llama_params import other_name
from crosslab.models.roundings import GROUP, Roundings
from crosslab.models.weights_file import F32

Product = Callable[[F32, str, Mapping[str, F32]], F32]
"""Linear layer of activations [rows, inputs], weight name and parameters; [rows, outputs]."""
Attend = Callable[[F32, F32, F32, NDArray[np.bool_]], tuple[F32, F32]]
"""Attention of one key head: queries [rows, width], keys and values [tokens, width], mask of the
tokens visible to each row; returns [rows, width] and the log-sum-exp of each row's scores."""
Rounded = Callable[[F32, int, str], F32]
"""Rounding of a matrix [rows, inputs], given inputs of a block and the weight's name."""
RoundingBlocks = Mapping[str, Sequence[tuple[int, int]]]
Floats = NDArray[Any]
"""float32, or float64, in which results are then computed."""

# Parts of the names of a mixture's parameters.
_MIXTURE = ".mlp.gate.", ".mlp.moe_", ".moe."


@dataclass(frozen=True)
class Answer:
    """A greedy answer.

    Attributes:
        tokens: generated ids, including the stop token if there was one.
        logits: [len(tokens), vocab] float32; token n was chosen from row n.
    """

    tokens: tuple[int, ...]
    logits: F32


@dataclass
class ReferenceLlama:
    """A Llama with its parameters, and the KV cache of the tokens read so far.

    Attributes:
        config: sizes and constants.
        params: float32 arrays under MLC-LLM's names; Gemma's norms with 1 added.
        keys: per layer [positions, kv_heads, head_dim], rotary embedding applied.
        values: per layer [positions, kv_heads, head_dim].
        int8: linear layers read activations rounded to int8.
        blocks: (rows, inputs of a block) of each run of rows of the parameters that have their own
            rounding blocks. If there are any, other layers do not round.
        int8_cache: keys and values are stored in int8, each with its own factor. Tokens read
            together see each other's unrounded values; a single token sees its own from the cache,
            as in TVM's paged KV cache.
        one_by_one: tokens read together see all keys and values from the cache, as single tokens
            do.
        rounding: computes the roundings; by default as the kernels do.
        product: replaces the computation of linear layers; see :data:`Product`.
        attend: replaces the computation of attention; see :data:`Attend`.
    """

    config: LlamaConfig
    params: Mapping[str, F32]
    keys: list[F32] = field(default_factory=list)
    values: list[F32] = field(default_factory=list)
    int8: bool = False
    blocks: RoundingBlocks = field(default_factory=dict)
    int8_cache: bool = False
    one_by_one: bool = False
    rounding: Roundings = field(default_factory=Roundings)
    product: Product | None = None
    attend: Attend | None = None
    names: frozenset[str] = field(init=False)
    # Name of the product after the attention of each layer.
    outputs: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = frozenset(self.params)
        self.outputs = ["self_attn.o_proj"] * self.config.layers
        shape = (0, self.config.kv_heads, self.config.head_dim)
        self.keys = [np.zeros(shape, np.float32) for _ in range(self.config.layers)]
        self.values = [np.zeros(shape, np.float32) for _ in range(self.config.layers)]

    def read(self, tokens: Sequence[int]) -> F32:
        """Read more tokens; return the logits [vocab] after the last token.

        Raises:
            UserError: there is no token, or a token is outside the vocabulary.
        """
        last: F32 = self._logits(self._hidden(tokens, slice(-1, None)))[0]
        return last

    def read_all(self, tokens: Sequence[int]) -> F32:
        """Read more tokens; return the logits [len(tokens), vocab] after each token.

        Raises:
            UserError: see :meth:`read`.
        """
        return self._logits(self._hidden(tokens, slice(None)))

    def states(self, tokens: Sequence[int]) -> F32:
        """Read more tokens; return the normed states [len(tokens), hidden] of each token."""
        return self._norm(self._hidden(tokens, slice(None)), "model.norm")

    def _hidden(self, tokens: Sequence[int], rows: slice) -> F32:
        """Read tokens; return the states [tokens of ``rows``, hidden] after the last layer.

        As in a compiled model, the states of other tokens are dropped after the last attention.
        """
        if not tokens or not all(0 <= t < self.config.vocab for t in tokens):
            raise UserError(f"token ids must be 0 to {self.config.vocab - 1}, and at least one")
        self.rounding.begin()
        x = self._embedded(tokens)
        x = x * np.float32(self.config.embedding_scale)
        for layer in range(self.config.layers):
            at = f"model.layers.{layer}"
            kept = rows if layer == self.config.layers - 1 else slice(None)
            mixed = self._attention(layer, self._norm(x, f"{at}.input_layernorm"))[kept]
            x = x[kept] + self._linear(mixed, layer, self.outputs[layer])
            x = x + self._feed_forward(layer, self._norm(x, f"{at}.post_attention_layernorm"))
        return x

    def _embedded(self, tokens: Sequence[int]) -> F32:
        """Return the embeddings [tokens, hidden] of tokens."""
        embedded: F32 = self.params["model.embed_tokens.weight"][list(tokens)]
        return embedded

    def _logits(self, x: F32) -> F32:
        head = "model.embed_tokens" if self.config.tied else "lm_head"
        return self._product(self._norm(x, "model.norm"), f"{head}.weight", self.rounding.head)

    def _product(self, x: F32, name: str, rounded: Rounded | None = None) -> F32:
        if self.product is not None:
            return self.product(x, name, self.params)
        weight = self.params[name]
        product = lambda x, rows: x @ weight[rows].T  # noqa: E731
        return self._rounded_product(x, name, len(weight), product, rounded)

    def _rounded_product(
        self,
        x: F32,
        name: str,
        outputs: int,
        product: Callable[[F32, slice], F32],
        rounded: Rounded | None = None,
    ) -> F32:
        """Compute a product of x for runs of outputs, with x rounded as the run's weights need."""
        if not self._rounds(name):
            return product(x, slice(0, outputs))
        runs = self.blocks.get(name, ((outputs, GROUP),))
        # Round once for each block length, as compiled models do.
        blocks = dict.fromkeys(block for _, block in runs)
        inputs = {block: (rounded or self.rounding.rounded)(x, block, name) for block in blocks}
        ends = np.cumsum([rows for rows, _ in runs])
        products = [
            product(inputs[block], slice(end - rows, end))
            for end, (rows, block) in zip(ends, runs, strict=True)
        ]
        return np.concatenate(products, axis=-1)

    def _rounds(self, name: str) -> bool:
        """Return True if the product with a weight reads rounded activations."""
        if self.blocks:
            return self.int8 and name in self.blocks
        # MLC-LLM keeps the gate in float32, and experts in an order that no int8 kernel reads.
        return self.int8 and not any(part in name for part in _MIXTURE)

    def _norm(self, x: F32, name: str) -> F32:
        mean = np.mean(np.square(x), axis=-1, keepdims=True)
        scaled: F32 = x / np.sqrt(mean + np.float32(self.config.eps))
        return scaled * self.params[f"{name}.weight"]

    def named(self, layer: int, part: str) -> str:
        """Return the name of a layer's parameter, for which MLC-LLM's families have two names."""
        name = f"model.layers.{layer}.{part}"
        return name if name in self.names else other_name(name)

    def _linear(self, x: F32, layer: int, name: str) -> F32:
        return self._product(x, self.named(layer, f"{name}.weight"))

    def _feed_forward(self, layer: int, x: F32) -> F32:
        if self.config.experts:
            return self._mixture(layer, x)
        gate, up = np.split(self._linear(x, layer, "mlp.gate_up_proj"), 2, axis=-1)
        gated = (gelu if self.config.gelu else silu)(gate)
        return self._linear(gated * up, layer, "mlp.down_proj")

    def _mixture(self, layer: int, x: F32) -> F32:
        """Return the sum of the chosen experts' outputs, each times the expert's weight.

        Rows are computed in the order of the experts, as compiled models do.
        """
        scores = softmax(self._linear(x, layer, "mlp.gate"))
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, : self.config.chosen]
        weights = np.take_along_axis(scores, chosen, axis=1)
        if self.config.shares:
            weights = weights / weights.sum(axis=1, keepdims=True)
        order = np.argsort(chosen.reshape(-1), kind="stable")
        experts, tokens = chosen.reshape(-1)[order], order // self.config.chosen
        both = self._of_experts(x[tokens], experts, layer, "mlp.moe_gate_up_proj")
        gate, up = np.split(both, 2, axis=-1)
        gated = silu(gate) * up * weights.reshape(-1)[order, None]
        out = np.zeros_like(x)
        np.add.at(out, tokens, self._of_experts(gated, experts, layer, "mlp.moe_down_proj"))
        return out

    def _of_experts(self, x: F32, experts: NDArray[np.int64], layer: int, name: str) -> F32:
        """Multiply each row of x by the weights of its expert."""
        param = self.named(layer, f"{name}.weight")
        weight = self.params[param]
        used = np.unique(experts)

        def product(x: F32, rows: slice) -> F32:
            out = np.empty((len(x), rows.stop - rows.start), np.float32)
            for expert in used:
                out[experts == expert] = x[experts == expert] @ weight[expert, rows].T
            return out

        return self._rounded_product(x, param, weight.shape[-2], product)

    def _attention(self, layer: int, x: F32) -> F32:
        """Return the attention output [rows, heads * head_dim], before the output product."""
        c, rows = self.config, len(x)
        qkv = self._linear(x, layer, "self_attn.qkv_proj")
        if self.config.qkv_bias:
            qkv = qkv + self.params[self.named(layer, "self_attn.qkv_proj.bias")]
        qkv = qkv.reshape(rows, -1, c.head_dim)
        q, k, v = np.split(qkv, [c.heads, c.heads + c.kv_heads], axis=1)
        if self.config.qk_norm:
            q = self._norm(q, f"model.layers.{layer}.self_attn.q_norm")
            k = self._norm(k, f"model.layers.{layer}.self_attn.k_norm")
        return self._attended(layer, q, k, v)

    def _attended(self, layer: int, q: F32, k: F32, v: F32) -> F32:
        """Return attention [rows, heads * head_dim] of q [rows, heads, head_dim], k and v.

        Rotate q and k; append k and v to the cache.
        """
        c, rows, start = self.config, len(q), len(self.keys[layer])
        positions = np.arange(start, start + rows)
        keys, values = self._remember(layer, self._rotate(k, positions), v)
        grouped = self._rotate(q, positions).reshape(rows, c.kv_heads, -1, c.head_dim)
        hidden = np.arange(len(keys)) > positions[:, None]
        return self._mixed(grouped, keys, values, hidden).reshape(rows, -1)

    def _remember(self, layer: int, k: F32, v: F32) -> tuple[F32, F32]:
        """Append keys and values [rows, kv_heads, head_dim]; return all that the rows see.

        With ``int8_cache``, the rows may see their own unrounded values.
        """
        before = self.keys[layer], self.values[layer]
        kept = (k, v)
        if self.int8_cache:
            kept = self.rounding.cached(k, v, layer, len(self.keys[layer]))
        seen = kept if self.one_by_one or len(k) == 1 else (k, v)
        self.keys[layer], self.values[layer] = map(np.concatenate, zip(before, kept, strict=True))
        keys, values = map(np.concatenate, zip(before, seen, strict=True))
        return keys, values

    def _mixed(self, grouped: F32, keys: F32, values: F32, hidden: NDArray[np.bool_]) -> F32:
        """Return values weighted by attention, in the shape [rows, kv_heads, group, head_dim]."""
        if self.attend is not None:
            return _mixed_by(self.attend, grouped, keys, values, ~hidden)
        scores = np.einsum("qhgd,khd->hgqk", grouped, keys, optimize=True)
        scores *= np.float32(self.config.head_dim**-0.5)
        weights = softmax(np.where(hidden, np.float32(-np.inf), scores))
        mixed: F32 = np.einsum("hgqk,khd->qhgd", weights, values, optimize=True)
        return mixed

    def _rotate(self, x: F32, positions: NDArray[np.int64]) -> F32:
        """Turn all features [rows, heads, features] by the angles of their positions."""
        return turned(x, positions, self.config.rope_theta, self.config.rope)


def _mixed_by(
    attend: Attend, grouped: F32, keys: F32, values: F32, visible: NDArray[np.bool_]
) -> F32:
    """Compute attention with ``attend`` for each key head; shapes as in ``ReferenceLlama._mixed``.

    As in a paged KV cache, several tokens read after others attend to themselves, then to the
    earlier tokens, and the results are merged by log-sum-exp. A single token attends to all at
    once.
    """
    rows, kept, group, width = grouped.shape
    seen = np.repeat(visible, group, axis=0)
    start = len(keys) - rows
    parts = [slice(start, None), slice(start)] if start and rows > 1 else [slice(None)]
    results = []
    for part in parts:
        heads = [
            attend(
                grouped[:, head].reshape(-1, width),
                keys[part, head],
                values[part, head],
                seen[:, part],
            )
            for head in range(kept)
        ]
        out, scores = (np.stack(each) for each in zip(*heads, strict=True))
        results.append((out.astype(np.float64), scores.astype(np.float64)[..., None]))
    total = np.logaddexp.reduce([scores for _, scores in results])
    mixed = sum(out * np.exp(scores - total) for out, scores in results)
    shaped: F32 = np.asarray(mixed, np.float32).reshape(kept, rows, group, width)
    return shaped.transpose(1, 0, 2, 3)


def turned(x: Floats, positions: Floats, theta: float, rope: Rope | None = None) -> Floats:
    """Turn features [rows, heads, features] in pairs of half a head; see :class:`LlamaConfig`."""
    half = x.shape[-1] // 2
    frequency = theta ** (-np.arange(half) / half)
    if rope:
        frequency = scaled_frequencies(frequency, rope)
    angle = positions[:, None, None] * frequency
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def gelu(x: Floats) -> Floats:
    """GELU by its approximation with tanh (Hendrycks and Gimpel, arXiv:1606.08415)."""
    curve: Floats = 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x)))
    return curve


def silu(x: Floats) -> Floats:
    """Return x times its sigmoid."""
    curve: Floats = x / (1 + np.exp(-x))
    return curve


def scaled_frequencies(frequency: NDArray[np.float64], rope: Rope) -> NDArray[np.float64]:
    """Llama 3's rotary frequencies (transformers' rope type "llama3").

    Args:
        frequency: [pairs] radians per position.
        rope: see :class:`LlamaConfig`.

    Returns:
        [pairs]: long waves divided by the factor, short waves unchanged, a mixture in between.
    """
    factor, low, high, original = rope
    turns = original * frequency / (2 * np.pi)
    # Llama 4 has no mixture: its bounds are equal.
    kept = np.clip((turns - low) / (high - low), 0, 1) if low < high else turns > high
    return frequency * (kept + (1 - kept) / factor)


def softmax(x: Floats) -> Floats:
    """Return the shares of the last axis' exponentials."""
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    normal: Floats = shifted / shifted.sum(axis=-1, keepdims=True)
    return normal


def answer(
    config: LlamaConfig,
    params: Mapping[str, F32],
    prompt: Sequence[int],
    *,
    max_new: int,
    stop: Sequence[int] = (),
    chunk: int | None = None,
    **options: Any,
) -> Answer:
    """Generate the likeliest token at each step, until a stop token or ``max_new`` tokens.

    The ``options`` are those of :class:`ReferenceLlama`. At most `chunk` tokens of the prompt are
    read together, which changes results only with an int8 cache.

    Raises:
        UserError: the prompt and answer do not fit the model's context, or ``max_new`` < 1.
    """
    if max_new < 1:
        raise UserError("an answer has at least one token", remedy="use --max-new 1 or more")
    if len(prompt) + max_new > config.context:
        raise UserError(
            f"{len(prompt)} tokens of prompt and {max_new} of answer do not fit the model's "
            f"context of {config.context}"
        )
    model, size = ReferenceLlama(config, params, **options), chunk or max(1, len(prompt))
    parts = [prompt[at : at + size] for at in range(0, len(prompt), size)] or [prompt]
    *_, last = map(model.read, parts)
    logits = [last]
    tokens = [int(np.argmax(logits[0]))]
    while len(tokens) < max_new and tokens[-1] not in stop:
        logits.append(model.read(tokens[-1:]))
        tokens.append(int(np.argmax(logits[-1])))
    return Answer(tuple(tokens), np.stack(logits))
