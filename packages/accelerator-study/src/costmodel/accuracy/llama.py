# SPDX-License-Identifier: Apache-2.0
"""A Llama in numpy, read from a GGUF file; a scheme rounds the operands of every product.

Sums have 64 bits. Those of float32 depend on the machine's BLAS and its threads, and a last digit
can carry a value to another step of a scheme.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers

from costmodel.accelerator.scheme import Scheme
from costmodel.accuracy import rounding
from costmodel.accuracy.rounding import Floats
from costmodel.errors import CostError
from groundwork.gguf_bound import Bounded

Tokens = NDArray[np.int64]
WORDS = "smollm"  # the rule of the tokenizer below
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
PARTS = (
    *("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
    *("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"),
)


@dataclass(frozen=True)
class FloatLlama:
    """A Llama's sizes and weights (N x K, float32).

    The rotary embedding rotates pairs of neighbours: GGUF orders the rows of queries and keys so.
    ``words`` names the rule by which the model's own tokenizer cuts text into words.
    """

    layers: int
    heads: int
    kept: int
    base: float
    epsilon: float
    tensors: dict[str, Floats]
    tokenizer: Tokenizer
    words: str = WORDS

    def quantized(self, scheme: Scheme) -> FloatLlama:
        """Return the model with the weights of its products rounded by a scheme."""
        rounded = {n: rounding.weights(value, scheme) for n, value in self.matrices.items()}
        return replace(self, tensors={**self.tensors, **rounded})

    @property
    def matrices(self) -> dict[str, Floats]:
        """The weights of the products, N x K: the embedding only if it is the head, too."""
        looked_up = {EMBEDDING} - {self._head}
        return {
            name: value
            for name, value in self.tensors.items()
            if value.ndim == 2 and name not in looked_up
        }

    def logits(self, tokens: Tokens, scheme: Scheme) -> Floats:
        """Return the logits, tokens x vocabulary, of a sequence from its first token.

        The scheme rounds activations, keys and values; :meth:`quantized` rounds weights.
        """
        tensors = self.tensors
        hidden = tensors[EMBEDDING][tokens].astype(np.float64)
        for layer in range(self.layers):
            name = f"blk.{layer}."
            normed = self._norm(hidden, tensors[name + "attn_norm.weight"])
            hidden = hidden + self._attention(normed, name, scheme)
            normed = self._norm(hidden, tensors[name + "ffn_norm.weight"])
            gate, up = (
                self._product(normed, name + f"ffn_{part}.weight", scheme)
                for part in ("gate", "up")
            )
            inner = gate / (1 + np.exp(-gate)) * up
            hidden = hidden + self._product(inner, name + "ffn_down.weight", scheme)
        normed = self._norm(hidden, tensors["output_norm.weight"])
        return self._product(normed, self._head, scheme)

    def _product(self, values: Floats, name: str, scheme: Scheme) -> Floats:
        """Round values (tokens x inputs) by the scheme; return their product by named weights."""
        return np.asarray(rounding.activations(values, scheme) @ self.tensors[name].T)

    def _norm(self, values: Floats, weight: Floats) -> Floats:
        square = np.mean(values * values, axis=-1, keepdims=True)
        return np.asarray(values / np.sqrt(square + self.epsilon) * weight)

    def _attention(self, values: Floats, name: str, scheme: Scheme) -> Floats:
        tokens = len(values)
        query, key, value = (
            self._product(values, f"{name}attn_{part}.weight", scheme)
            .reshape(tokens, -1, self._width)
            .transpose(1, 0, 2)
            for part in ("q", "k", "v")
        )
        query, key = self._rotated(query), rounding.cache(self._rotated(key), scheme)
        value = rounding.cache(value, scheme)
        flat = self._mixed(query, key, value).transpose(1, 0, 2).reshape(tokens, -1)
        return self._product(flat, name + "attn_output.weight", scheme)

    def _mixed(self, query: Floats, key: Floats, value: Floats) -> Floats:
        """Return the output of attention; all arrays are heads x tokens x width."""
        group, tokens = self.heads // self.kept, query.shape[1]
        scores = query.reshape(self.kept, group, tokens, -1) @ key[:, None].transpose(0, 1, 3, 2)
        scores = scores / np.sqrt(self._width)
        scores = np.where(np.tri(tokens, dtype=bool), scores, -1e9)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores = scores / scores.sum(axis=-1, keepdims=True)
        return np.asarray((scores @ value[:, None]).reshape(self.heads, tokens, -1))

    @property
    def _head(self) -> str:
        return HEAD if HEAD in self.tensors else EMBEDDING

    @property
    def _width(self) -> int:
        return int(self.tensors["blk.0.attn_q.weight"].shape[0]) // self.heads

    def _rotated(self, values: Floats) -> Floats:
        width = values.shape[-1]
        rates = self.base ** (-np.arange(0, width, 2) / width)
        angles = np.arange(values.shape[1])[:, None] * rates
        sine, cosine = np.sin(angles), np.cos(angles)
        even, odd = values[..., ::2], values[..., 1::2]
        out = np.empty_like(values)
        out[..., ::2], out[..., 1::2] = even * cosine - odd * sine, even * sine + odd * cosine
        return out


class LlamaReader(Bounded, GGUFReader):  # type: ignore[misc]
    """The reader of the package gguf, which here refuses counts past the end of the file."""


def load(path: Path) -> FloatLlama:
    """Read a Llama from a GGUF file.

    Raises:
        CostError: the file is not a Llama in GGUF.
    """
    try:
        return _load(LlamaReader(path))
    except Exception as error:  # the package gguf defines no exception classes
        problem = f"{path}: not a Llama in GGUF: {error or type(error).__name__}"
        remedy = "give the file of a Llama: --accuracy MODEL.gguf; docs/cost/README.md names one"
        raise CostError(problem, remedy=remedy) from error


def _load(reader: LlamaReader) -> FloatLlama:
    fields = {name: field.contents() for name, field in reader.fields.items()}
    kind = fields.get("general.architecture")
    if kind != "llama":
        raise ValueError(f"its architecture is {kind!r}")
    layers = int(fields["llama.block_count"])
    _refuse_other(fields, {t.name for t in reader.tensors}, layers)
    tensors = {
        t.name: np.asarray(dequantize(t.data, t.tensor_type), dtype=np.float32)
        for t in reader.tensors
    }
    return FloatLlama(
        layers=layers,
        heads=int(fields["llama.attention.head_count"]),
        kept=int(fields["llama.attention.head_count_kv"]),
        base=float(fields.get("llama.rope.freq_base", 10000.0)),
        epsilon=float(fields["llama.attention.layer_norm_rms_epsilon"]),
        tensors=tensors,
        tokenizer=_tokenizer(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"]),
        words=str(fields.get("tokenizer.ggml.pre", WORDS)),
    )


def _refuse_other(fields: Mapping[str, Any], stored: set[str], layers: int) -> None:
    """Raise ValueError for a model with other tensors or another rotary embedding than is computed.

    Args:
        fields: of the file.
        stored: names of its tensors.
        layers: its number of layers.
    """
    scaling = fields.get("llama.rope.scaling.type", "linear")
    older = fields.get("llama.rope.scale_linear", 1.0)
    factor = float(fields.get("llama.rope.scaling.factor", older))
    if scaling not in ("none", "linear") or factor != 1:
        problem = f"its rotary embedding is scaled ({scaling}, factor {factor:g})"
        raise ValueError(f"{problem}, which is not computed")
    # The number of layers of a damaged file may be huge: then tensors are missing.
    some = range(min(layers, len(stored)))
    known = {f"blk.{n}.{part}.weight" for n in some for part in PARTS}
    known |= {EMBEDDING, "output_norm.weight"}
    if missing := sorted(known - stored):
        raise ValueError(f"it lacks the tensor {missing[0]}")
    if further := sorted(stored - known - {HEAD}):
        raise ValueError(f"it has the tensor {further[0]}, which is not computed")


def _tokenizer(words: list[str], merges: list[str]) -> Tokenizer:
    """Return a tokenizer of byte-level pairs that splits digits, as SmolLM2's does."""
    pairs = [(a, b) for a, b in (m.split(" ", 1) for m in merges)]
    tokenizer = Tokenizer(models.BPE({w: n for n, w in enumerate(words)}, pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer
