# SPDX-License-Identifier: Apache-2.0
"""The shape of a Llama-like model, read from and written to a Hugging Face ``config.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosslab.errors import UserError

DEFAULT_CONTEXT = 2048


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and constants of a Llama-like decoder.

    Attributes:
        hidden: width of the residual stream.
        intermediate: width of the gated feed-forward layer.
        heads: query heads.
        kv_heads: key and value heads; divides ``heads``.
        head_dim: width of a head; even, because of rotary embeddings.
        layers: decoder layers.
        vocab: vocabulary size.
        rope_theta: base of the rotary embedding.
        eps: epsilon of RMSNorm.
        tied: whether the head shares the embedding's weight.
        context: longest sequence, tokens.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab: int
    rope_theta: float = 10000.0
    eps: float = 1e-5
    tied: bool = False
    context: int = DEFAULT_CONTEXT

    def __post_init__(self) -> None:
        sizes = ("hidden", "intermediate", "heads", "kv_heads", "head_dim", "layers", "vocab")
        small = [name for name in (*sizes, "context") if getattr(self, name) < 1]
        if small:
            raise UserError(f"model config: {', '.join(small)} must be at least 1")
        if self.heads % self.kv_heads:
            raise UserError(
                f"model config: {self.heads} query heads do not share {self.kv_heads} "
                "key-value heads evenly"
            )
        if self.head_dim % 2:
            raise UserError(f"model config: head_dim {self.head_dim} is odd")

    def to_hf(self) -> dict[str, Any]:
        """The fields of a Hugging Face ``config.json`` for this model."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "num_hidden_layers": self.layers,
            "vocab_size": self.vocab,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.eps,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": self.context,
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "float32",
        }


def read_config(path: Path) -> LlamaConfig:
    """Read a Hugging Face ``config.json``.

    Raises:
        UserError: the file is missing, is not JSON, or describes another kind of model.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise UserError(f"{path}: a table of fields was expected")
    _refuse_unsupported(path, table)
    return _from_hf(path, table)


def _refuse_unsupported(path: Path, table: dict[str, Any]) -> None:
    kind = table.get("model_type", "llama")
    if kind != "llama":
        raise UserError(f"{path}: model_type {kind!r} is not supported", remedy="supported: llama")
    for field in ("rope_scaling", "attention_bias", "mlp_bias"):
        if table.get(field):
            raise UserError(f"{path}: {field} = {table[field]!r} is not supported")
    if table.get("hidden_act", "silu") != "silu":
        raise UserError(f"{path}: hidden_act {table['hidden_act']!r} is not supported")


def _from_hf(path: Path, table: dict[str, Any]) -> LlamaConfig:
    try:
        heads = int(table["num_attention_heads"])
        hidden = int(table["hidden_size"])
        return LlamaConfig(
            hidden=hidden,
            intermediate=int(table["intermediate_size"]),
            heads=heads,
            kv_heads=int(table.get("num_key_value_heads") or heads),
            head_dim=int(table.get("head_dim") or hidden // max(heads, 1)),
            layers=int(table["num_hidden_layers"]),
            vocab=int(table["vocab_size"]),
            rope_theta=float(table.get("rope_theta", 10000.0)),
            eps=float(table.get("rms_norm_eps", 1e-5)),
            tied=bool(table.get("tie_word_embeddings", False)),
            context=int(table.get("max_position_embeddings", DEFAULT_CONTEXT)),
        )
    except KeyError as error:
        raise UserError(f"{path} lacks the field {error.args[0]!r}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: {error}") from error


def write_config(config: LlamaConfig, path: Path, **extra: object) -> None:
    """Write ``config.json``; ``extra`` fields are added as they are."""
    text = json.dumps({**config.to_hf(), **extra}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
