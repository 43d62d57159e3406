# SPDX-License-Identifier: Apache-2.0
"""A Llama or a model of a related family in ``tvm.relax.frontend.nn``.

Parameters and entry points have MLC-LLM's names. All shapes except the length of a prompt are known
at compile time. A linear layer is one reduction over the stored weight ([out, in]): there is no
transpose at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax, te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.relax.frontend.nn.llm import kv_cache

from crosslab.compile.mixture import Mixture
from crosslab.compile.overlaypass import load_pass
from crosslab.models.config import LlamaConfig, Rope, llama3_scaling

DTYPE = "float32"


def nt_matmul(x: Any, weight: Any) -> Any:
    """Multiply x [batch, rows, in] by the transposed weight [out, in], to [batch, rows, out]."""

    def product(a: Any, b: Any) -> Any:
        k = te.reduce_axis((0, b.shape[1]), name="k")
        return te.compute(
            (a.shape[0], a.shape[1], b.shape[0]),
            lambda n, i, j: te.sum(a[n, i, k] * b[j, k], axis=k),
            name="NT_matmul",
        )

    return op.tensor_expr_op(product, "NT_matmul", [x, weight])


def last_row_of(x: Any) -> Any:
    """Return the tensor expression [1, 1, width] of the last row of x [1, rows, width]."""
    shape = (x.shape[0], 1, x.shape[2])
    return te.compute(shape, lambda n, _, k: x[n, x.shape[1] - 1, k], name="last_row")


def last_row(x: Any) -> Any:
    """Return the last row [1, 1, width] of x [1, rows, width]."""
    return op.tensor_expr_op(last_row_of, "last_row", [x])


class Linear(nn.Module):  # type: ignore[misc]
    """A linear layer with weight [out, in], and bias [out] or None."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter((outputs, inputs), DTYPE)
        self.bias = nn.Parameter((outputs,), DTYPE) if bias else None

    def forward(self, x: Any) -> Any:
        """Map x [batch, rows, in] to [batch, rows, out]."""
        out = nt_matmul(x, self.weight)
        return out if self.bias is None else out + self.bias


class Embedding(nn.Embedding):  # type: ignore[misc]
    """An embedding, whose weight can also be that of the last linear layer."""

    def lm_head_forward(self, x: Any) -> Any:
        """Map x [batch, rows, width] to logits [batch, rows, vocab]."""
        return nt_matmul(x, self.weight)


class Attention(nn.Module):  # type: ignore[misc]
    """Grouped-query attention with the paged cache, which also applies rotary embeddings."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = config.heads, config.kv_heads, config.head_dim
        width = self.heads * self.dim
        outputs = width + 2 * self.kv_heads * self.dim
        self.qkv_proj = Linear(config.hidden, outputs, bias=config.qkv_bias)
        self.o_proj = Linear(width, config.hidden)
        self.normalized = config.qk_norm
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.dim, -1, config.eps, bias=False)
            self.k_norm = nn.RMSNorm(self.dim, -1, config.eps, bias=False)

    def forward(self, x: Any, cache: Any, layer: int) -> Any:
        """Map states x [batch, rows, hidden] to attention outputs of the same shape."""
        batch, rows, _ = x.shape
        qkv = op.reshape(self.qkv_proj(x), (batch, rows, self.heads + 2 * self.kv_heads, self.dim))
        if self.normalized:
            ends = [self.heads, self.heads + self.kv_heads]
            q, k, v = op.split(qkv, ends, axis=2)
            qkv = op.concat([self.q_norm(q), self.k_norm(k), v], dim=2)
        mixed = cache.attention_with_fused_qkv(layer, qkv, self.heads, sm_scale=self.dim**-0.5)
        return self.o_proj(op.reshape(mixed, (batch, rows, self.heads * self.dim)))


class FeedForward(nn.Module):  # type: ignore[misc]
    """A gated feed-forward layer with SiLU (SwiGLU) or tanh GELU."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gelu = config.gelu
        self.gate_up_proj = Linear(config.hidden, 2 * config.intermediate)
        self.down_proj = Linear(config.intermediate, config.hidden)

    def forward(self, x: Any) -> Any:
        """Map states x [batch, rows, hidden] to feed-forward outputs of the same shape."""
        gate, up = op.split(self.gate_up_proj(x), 2, axis=-1)
        gated = op.gelu(gate, approximate="tanh") if self.gelu else op.silu(gate)
        return self.down_proj(gated * up)


class Layer(nn.Module):  # type: ignore[misc]
    """A decoder layer."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        if config.experts:
            self.mlp = Mixture(config, Linear(config.hidden, config.experts))
        else:
            self.mlp = FeedForward(config)
        self.input_layernorm = nn.RMSNorm(config.hidden, -1, config.eps, bias=False)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, -1, config.eps, bias=False)

    def forward(self, x: Any, cache: Any, layer: int) -> Any:
        """Map states x [batch, rows, hidden] to the layer's states of the same shape."""
        x = self.self_attn(self.input_layernorm(x), cache, layer) + x
        return self.mlp(self.post_attention_layernorm(x)) + x


class Body(nn.Module):  # type: ignore[misc]
    """The embedding, the decoder layers and the last norm."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.layers)])
        self.norm = nn.RMSNorm(config.hidden, -1, config.eps, bias=False)

    def forward(self, x: Any, cache: Any) -> Any:
        """Map embeddings x [batch, rows, hidden] to the states before the last norm."""
        for index, layer in enumerate(self.layers):
            x = layer(x, cache, index)
        return x


class Llama(nn.Module):  # type: ignore[misc]
    """The entry points of a language model, with MLC-LLM's names."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.model = Body(config)
        self.tied, self.scale = config.tied, config.embedding_scale
        if not config.tied:
            self.lm_head = Linear(config.hidden, config.vocab)

    def _logits(self, x: Any) -> Any:
        head = self.model.embed_tokens.lm_head_forward if self.tied else self.lm_head
        return head(self.model.norm(x))

    def embed(self, input_ids: Any) -> Any:
        """Map token ids [rows] to embeddings [rows, hidden]."""
        embedded = self.model.embed_tokens(input_ids)
        return embedded if self.scale == 1.0 else embedded * self.scale

    def prefill(self, input_embed: Any, paged_kv_cache: Any) -> Any:
        """Map embeddings [1, rows, hidden] to logits [1, 1, vocab] after the last row."""
        x = self.model(input_embed, paged_kv_cache)
        return self._logits(last_row(x)), paged_kv_cache

    def decode(self, input_embed: Any, paged_kv_cache: Any) -> Any:
        """Map the embeddings [1, 1, hidden] of a token to logits [1, 1, vocab]."""
        return self._logits(self.model(input_embed, paged_kv_cache)), paged_kv_cache

    def batch_decode(self, input_embeds: Any, paged_kv_cache: Any) -> Any:
        """Map embeddings [batch, 1, hidden], a token per sequence, to logits [batch, 1, vocab]."""
        return self._logits(self.model(input_embeds, paged_kv_cache)), paged_kv_cache

    def batch_prefill(self, input_embeds: Any, logit_positions: Any, paged_kv_cache: Any) -> Any:
        """Map embeddings [1, rows, hidden] of several sequences to logits [1, batch, vocab].

        ``logit_positions`` [batch] lists the rows whose logits are returned.
        """
        x = self.model(input_embeds, paged_kv_cache)
        return self._logits(op.take(x, logit_positions, axis=1)), paged_kv_cache

    def batch_verify(self, input_embeds: Any, paged_kv_cache: Any) -> Any:
        """Map embeddings [1, rows, hidden] to logits [1, rows, vocab] after each row."""
        return self._logits(self.model(input_embeds, paged_kv_cache)), paged_kv_cache

    def prefill_to_last_hidden_states(self, input_embed: Any, paged_kv_cache: Any) -> Any:
        """Map embeddings [1, rows, hidden] to the states that the last linear layer reads."""
        return self.model.norm(self.model(input_embed, paged_kv_cache)), paged_kv_cache


def export(config: LlamaConfig) -> tuple[Any, list[dict[str, Any]]]:
    """Return the model as an IRModule, and name, shape and dtype of its parameters in order.

    Weights stay in a file's blocks where the configuration of the passes lists them.
    """
    packed = {"param_mode": "packed", "effect_mode": "none"}
    cache = nn.spec.Object(object_type=kv_cache.PagedKVCache)

    def reads(name: str, *rows: Any) -> dict[str, Any]:
        embeddings = {name: nn.spec.Tensor([*rows, config.hidden], DTYPE)}
        return {**embeddings, "paged_kv_cache": cache, "$": packed}

    spec = {
        "embed": {"input_ids": nn.spec.Tensor(["seq_len"], "int32"), "$": packed},
        "prefill": reads("input_embed", 1, "seq_len"),
        "decode": reads("input_embed", 1, 1),
        "batch_decode": reads("input_embeds", "batch_size", 1),
        "batch_prefill": {
            "input_embeds": nn.spec.Tensor([1, "seq_len", config.hidden], DTYPE),
            "logit_positions": nn.spec.Tensor(["batch_size"], "int32"),
            "paged_kv_cache": cache,
            "$": packed,
        },
        "batch_verify": reads("input_embeds", 1, "seq_len"),
        "prefill_to_last_hidden_states": reads("input_embed", 1, "seq_len"),
    }
    stored = load_pass("configuration").configured().stored
    model = load_pass("stored_layers").store_layers(Llama(config), stored)
    module, params = model.export_tvm(spec)
    table = [{"name": n, "shape": list(p.shape), "dtype": str(p.dtype)} for n, p in params]
    return module, table


def add_kv_cache(
    module: Any,
    sizes: Mapping[str, int],
    target: Any,
    rope_theta: float | None,
    rope: Rope | None = None,
) -> Any:
    """Add ``create_tir_paged_kv_cache``, and the kernels that the cache calls, to a module.

    The arguments of the function are shapes of one dimension: batch, total length, prefill chunk,
    page size, and 0 or 1 for a sliding window.

    Args:
        module: module of a language model.
        sizes: ``layers``, ``heads``, ``kv_heads``, ``head_dim``.
        target: target of the generated code.
        rope_theta: base of the rotary embedding that the cache applies; None: the model applies it.
        rope: Llama 3's scaling of the rotary embedding, see
            :class:`crosslab.models.config.LlamaConfig`.
    """
    builder = relax.BlockBuilder(module)
    names = (
        "max_batch_size",
        "max_total_seq_len",
        "prefill_chunk_size",
        "page_size",
        "support_sliding_window",
    )
    limits = {name: tirx.Var(name, "int64") for name in names}
    arguments = [relax.Var(f"{n}_", relax.ShapeType([size])) for n, size in limits.items()]
    with builder.function("create_tir_paged_kv_cache", arguments):
        cache = kv_cache.TIRPagedKVCache(
            attn_kind="mha",
            **limits,
            layer_partition=relax.ShapeExpr([0, sizes["layers"]]),
            num_hidden_layers=sizes["layers"],
            num_attention_heads=sizes["heads"],
            num_key_value_heads=sizes["kv_heads"],
            qk_head_dim=sizes["head_dim"],
            v_head_dim=sizes["head_dim"],
            mla_original_qk_head_dim=0,
            mla_original_v_head_dim=0,
            rope_mode=kv_cache.RopeMode.NORMAL if rope_theta else kv_cache.RopeMode.NONE,
            rope_scale=1,
            rope_theta=rope_theta or 1.0,
            rope_scaling=llama3_scaling(rope) if rope else {},
            rope_ext_factors=relax.prim_value(0),
            rotary_dim=sizes["head_dim"],
            enable_disaggregation=False,
            dtype=DTYPE,
            target=target,
            **load_pass("configuration").configured().cache_options,
        )
        builder.emit_func_output(cache._expr)
    return builder.finalize()
