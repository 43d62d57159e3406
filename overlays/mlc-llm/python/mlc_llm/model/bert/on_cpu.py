# SPDX-License-Identifier: Apache-2.0
"""BERT on CPUs: one call reads several texts, one behind the other and without padding.

Upstream's function reads a padded batch with a mask of its square.
"""

import dataclasses
from typing import Any

from mlc_llm.model.model import EmbeddingMetadata
from mlc_llm.nn.whole_attention_on_cpu import attend_whole
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from . import bert_model


@dataclasses.dataclass
class EncoderConfig(bert_model.BertConfig):  # type: ignore[misc, unused-ignore]
    """The config of a BERT, with the way from the states of tokens to the vector of a text.

    Attributes:
        positions: rows of the table of positions; a shorter context does not change them.
        pooling: "mean" of the tokens' states, or "cls", that of the first token.
        normalize: vectors have the length 1.
    """

    positions: int = 0
    pooling: str = "mean"
    normalize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.positions = self.positions or self.context_window_size


@dataclasses.dataclass(frozen=True)
class Texts:
    """The texts of a call.

    Attributes:
        positions: int32 [tokens]: place of each token in its text.
        bounds: int32 [texts + 1]: the first token of each text, and the number of tokens.
    """

    positions: Tensor
    bounds: Tensor


class _Attention(bert_model.BertSelfAttention):  # type: ignore[misc, unused-ignore]
    """Attention of each token to all tokens of its text."""

    def forward(self, hidden_states: Tensor, attention_mask: Texts) -> Tensor:
        """Compute a layer's attention [1, tokens, hidden]."""
        _, tokens, hidden = hidden_states.shape
        heads, d, texts = self.num_heads, self.head_dim, attention_mask
        qkv = op.reshape(self.qkv(hidden_states), (tokens, 3 * heads, d))
        q, k, v = op.split(qkv, 3, axis=1)
        mixed = attend_whole(q, k, v, texts.bounds, texts.positions)
        return op.reshape(mixed, (1, tokens, hidden))


class BertModel(bert_model.BertModel):  # type: ignore[misc, unused-ignore]
    """The model with the function that the runner of this project calls, for CPUs."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.config = config
        self.embeddings.position_embeddings = nn.Embedding(
            config.positions, config.hidden_size, dtype="float32"
        )
        for layer in self.encoder.layer:
            layer.attention.self = _Attention(config)

    @property
    def more_metadata(self) -> dict[str, Any]:
        """Entries of the library's metadata: pooling and normalization of a text's vector."""
        about = EmbeddingMetadata("encoder", self.config.pooling, self.config.normalize)
        return {"embedding_metadata": dataclasses.asdict(about)}

    def encode(self, inputs: Tensor, positions: Tensor, bounds: Tensor) -> Tensor:
        """Read whole texts; return the states [1, tokens, hidden] of their tokens.

        Args:
            inputs: int32 [tokens]: the texts, one behind the other.
            positions: see :class:`Texts`.
            bounds: see :class:`Texts`.
        """
        hidden = self.embedded(inputs, op.zeros(inputs.shape, "int32"), positions)
        rows = op.reshape(hidden, (1, *hidden.shape))
        return self.encoder(rows, Texts(positions, bounds))

    def embedded(self, inputs: Tensor, kinds: Tensor, positions: Tensor) -> Tensor:
        """Return the states [tokens, hidden] before the first layer; arguments int32 [tokens]."""
        return self.embeddings(inputs, kinds, positions)

    def get_default_spec(self) -> nn.spec.ModuleSpec:
        """Return the function of the library and its inputs."""
        tokens = nn.spec.Tensor(["seq_len"], "int32")
        function: dict[str, Any] = {
            "inputs": tokens,
            "positions": tokens,
            "bounds": nn.spec.Tensor(["bounds"], "int32"),
            "$": {"param_mode": "packed", "effect_mode": "none"},
        }
        return nn.spec.ModuleSpec.from_raw({"encode": function}, self)
