# SPDX-License-Identifier: Apache-2.0
"""GPT-2 (Radford et al., 2019) in ``tvm.relax.frontend.nn``, to extract its workloads."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.relax.frontend.nn.llm import kv_cache

from crosslab.compile.llama import Embedding, Linear, last_row
from crosslab.errors import UserError

DTYPE = "float16"
WIDENING = 4
SIZES = ("n_embd", "n_layer", "n_head", "n_positions", "vocab_size")


class Gpt2Layer(nn.Module):  # type: ignore[misc]
    """A decoder layer: attention over the paged cache and a feed-forward, each after a norm."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        self.heads, self.dim = heads, width // heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn_c_attn = Linear(width, 3 * width, bias=True)
        self.attn_c_proj = Linear(width, width, bias=True)
        self.c_fc = Linear(width, inner, bias=True)
        self.c_proj = Linear(inner, width, bias=True)

    def forward(self, x: Any, cache: Any, layer: int) -> Any:
        """Map x [1, rows, width] to the same shape."""
        shape = (1, x.shape[1], self.heads * self.dim)
        qkv = op.reshape(self.attn_c_attn(self.ln_1(x)), (1, shape[1], 3 * self.heads, self.dim))
        mixed = cache.attention_with_fused_qkv(layer, qkv, self.heads, sm_scale=self.dim**-0.5)
        x = x + self.attn_c_proj(op.reshape(mixed, shape))
        return x + self.c_proj(op.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):  # type: ignore[misc]
    """The model: entry points ``embed``, ``prefill``, ``decode``; the head shares the embedding."""

    def __init__(self, config: dict[str, Any]) -> None:
        width = config["n_embd"]
        inner = config.get("n_inner") or WIDENING * width
        self.wte = Embedding(config["vocab_size"], width, dtype=DTYPE)
        self.wpe = nn.Embedding(config["n_positions"], width, dtype=DTYPE)
        self.h = nn.ModuleList(
            [Gpt2Layer(width, config["n_head"], inner) for _ in range(config["n_layer"])]
        )
        self.ln_f = nn.LayerNorm(width)

    def _logits(self, x: Any) -> Any:
        return self.wte.lm_head_forward(self.ln_f(x))

    def _layers(self, x: Any, cache: Any) -> Any:
        for index, layer in enumerate(self.h):
            x = layer(x, cache, index)
        return x

    def embed(self, input_ids: Any, positions: Any) -> Any:
        """Map token ids and positions [rows] to embeddings [rows, width]."""
        return self.wte(input_ids) + self.wpe(positions)

    def prefill(self, input_embed: Any, paged_kv_cache: Any) -> Any:
        """Map embeddings [1, rows, width] to logits [1, 1, vocab] after the last row."""
        x = self._layers(input_embed, paged_kv_cache)
        return self._logits(last_row(x)), paged_kv_cache

    def decode(self, input_embed: Any, paged_kv_cache: Any) -> Any:
        """Map embeddings [1, 1, width] to logits [1, 1, vocab]."""
        return self._logits(self._layers(input_embed, paged_kv_cache)), paged_kv_cache


def _check(config: dict[str, Any]) -> None:
    """Refuse a configuration that lacks a size or has a wrong one; only ``n_inner`` may be null."""
    missing = [name for name in SIZES if name not in config]
    if missing:
        raise UserError(f"the GPT-2 configuration lacks {', '.join(missing)}")
    sizes = {name: config[name] for name in SIZES}
    if config.get("n_inner") is not None:
        sizes["n_inner"] = config["n_inner"]
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise UserError(
                f"the GPT-2 configuration: {name} is {size!r}",
                remedy="give a whole number from 1 on",
            )
    if sizes["n_embd"] % sizes["n_head"]:
        raise UserError(
            f"the GPT-2 configuration: n_embd, {sizes['n_embd']}, is not a multiple of n_head, "
            f"{sizes['n_head']}",
            remedy="correct config.json: every head has n_embd / n_head channels",
        )


def export(config: dict[str, Any]) -> Any:
    """Return the IRModule of a GPT-2 with the sizes of a Hugging Face ``config.json``.

    Raises:
        UserError: a size is missing or wrong.
    """
    _check(config)
    packed = {"param_mode": "packed", "effect_mode": "none"}
    cache = nn.spec.Object(object_type=kv_cache.PagedKVCache)
    width = config["n_embd"]

    def entry(rows: int | str) -> dict[str, Any]:
        embedded = nn.spec.Tensor([1, rows, width], DTYPE)
        return {"input_embed": embedded, "paged_kv_cache": cache, "$": packed}

    ids = nn.spec.Tensor(["seq_len"], "int32")
    spec = {
        "embed": {"input_ids": ids, "positions": ids, "$": packed},
        "prefill": entry("seq_len"),
        "decode": entry(1),
    }
    model = Gpt2(config)
    model.to(DTYPE)
    return model.export_tvm(spec)[0]
