# SPDX-License-Identifier: Apache-2.0
"""Nomic's BERT: rotary embeddings in place of a table of positions, gates, no biases but of norms.

Modules have the names of the published weights.
"""

import dataclasses

from mlc_llm.loader.standard_loader import make_standard_hf_loader
from mlc_llm.nn.rotary_on_cpu import turn
from mlc_llm.nn.whole_attention_on_cpu import attend_whole
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from .bert import on_cpu as bert


@dataclasses.dataclass
class NomicBertConfig(bert.EncoderConfig):
    """The config of a BERT, with the base of its rotary embeddings."""

    rope_theta: float = 1000.0


class _Attention(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, config: NomicBertConfig) -> None:
        self.heads, self.theta = config.num_attention_heads, config.rope_theta
        self.Wqkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, texts: bert.Texts) -> Tensor:
        """Compute a layer's attention [1, tokens, hidden] of each token to all of its text."""
        _, tokens, hidden = x.shape
        qkv = op.reshape(self.Wqkv(x), (tokens, 3 * self.heads, hidden // self.heads))
        q, k, v = turn(qkv, texts.positions, self.heads, self.theta, {})
        mixed = attend_whole(q, k, v, texts.bounds, texts.positions)
        return self.out_proj(op.reshape(mixed, (1, tokens, hidden)))


class _FeedForward(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, config: NomicBertConfig) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self.fc11 = nn.Linear(hidden, inner, bias=False)
        self.fc12 = nn.Linear(hidden, inner, bias=False)
        self.fc2 = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map states [1, tokens, hidden] by a SwiGLU."""
        return self.fc2(self.fc11(x) * op.silu(self.fc12(x)))


class _Layer(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, config: NomicBertConfig) -> None:
        self.attn, self.mlp = _Attention(config), _FeedForward(config)
        self.norm1, self.norm2 = (
            nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) for _ in range(2)
        )

    def forward(self, x: Tensor, texts: bert.Texts) -> Tensor:
        """Compute a layer [1, tokens, hidden]."""
        x = self.norm1(self.attn(x, texts) + x)
        return self.norm2(self.mlp(x) + x)


class _Encoder(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, config: NomicBertConfig) -> None:
        self.layers = nn.ModuleList([_Layer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, x: Tensor, texts: bert.Texts) -> Tensor:
        """Compute all layers [1, tokens, hidden]."""
        for layer in self.layers:
            x = layer(x, texts)
        return x


class _Tables(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, config: NomicBertConfig) -> None:
        self.word_embeddings, self.token_type_embeddings = (
            nn.Embedding(rows, config.hidden_size, dtype="float32")
            for rows in (config.vocab_size, config.type_vocab_size)
        )


class NomicBertModel(bert.BertModel):
    """The model with the function that the runner of this project calls."""

    def __init__(self, config: NomicBertConfig) -> None:
        # A BERT's own modules are not made.
        self.config, self.dtype = config, "float32"
        self.embeddings, self.encoder = _Tables(config), _Encoder(config)
        self.emb_ln = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def embedded(self, inputs: Tensor, kinds: Tensor, positions: Tensor) -> Tensor:  # noqa: ARG002
        """Return the states [tokens, hidden] before the first layer; arguments int32 [tokens]."""
        tables = self.embeddings
        return self.emb_ln(tables.word_embeddings(inputs) + tables.token_type_embeddings(kinds))


huggingface = make_standard_hf_loader(
    model_cls=NomicBertModel, include_qkv=False, include_gate_up=False
)
