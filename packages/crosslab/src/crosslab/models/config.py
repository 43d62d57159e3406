# SPDX-License-Identifier: Apache-2.0
"""The shape of a Llama-like model, read from and written to a Hugging Face ``config.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crosslab.errors import UserError
from crosslab.json_table import PUBLISHED, read_json_table

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
        tied: the last linear layer shares the embedding's weight.
        context: longest sequence in tokens.
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

    @property
    def linear_layers(self) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs) of a decoder layer's products: qkv, o, gate with up, and down."""
        heads = self.heads * self.head_dim
        return (
            (heads + 2 * self.kv_heads * self.head_dim, self.hidden),
            (self.hidden, heads),
            (2 * self.intermediate, self.hidden),
            (self.hidden, self.intermediate),
        )

    def to_hf(self) -> dict[str, Any]:
        """Return the fields of a Hugging Face ``config.json`` for this model."""
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


@dataclass(frozen=True)
class FamilyConfig(LlamaConfig):
    """Sizes and constants of a Llama-like decoder, with options of related families.

    Attributes:
        family: ``model_type`` of config.json.
        qkv_bias: queries, keys and values have biases (Qwen 2).
        qk_norm: queries and keys of each head are normalized before the rotary embedding (Qwen 3).
        gelu: the gate is a GELU by tanh, not a SiLU (Gemma).
        embedding_scale: factor of the embeddings (Gemma).
        rope: ``rope_scaling`` of the type "llama3": factor, low_freq_factor, high_freq_factor,
            original_max_position_embeddings; None for plain rotary embeddings.
        experts: feed-forward layers of a mixture, each of width ``intermediate``; 0: one layer
            without a choice (Mixtral, Qwen 3 MoE).
        chosen: experts that compute a token.
        shares: weights of the chosen experts add up to 1.
    """

    family: str = "llama"
    qkv_bias: bool = False
    qk_norm: bool = False
    gelu: bool = False
    embedding_scale: float = 1.0
    rope: tuple[float, float, float, float] | None = None
    experts: int = 0
    chosen: int = 0
    shares: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.experts and not 1 <= self.chosen <= self.experts:
            raise UserError(f"model config: {self.chosen} of {self.experts} experts cannot compute")


# Fields that hold the longest sequence.
LENGTHS = ("max_position_embeddings", "n_positions", "context_length", "seq_length")
# Keeps the attention window that the compiled model leaves out, as no sequence exceeds it.
WINDOW = "_sliding_window"
MIXTRAL, MIXTURE = "mixtral", "qwen3_moe"
# Families with a window that are compiled without it. In others a published file may have the
# field, but uses it only if ``use_sliding_window`` says so.
_WITHOUT_WINDOW = ("gemma2", "mistral", MIXTRAL, "phi3", "starcoder2")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", MIXTRAL, MIXTURE)
"""Values of ``model_type`` that :func:`read_family` supports."""
NOMIC = "nomic_bert"
# BERT's names of the fields that Nomic's own class writes.
_NOMIC = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
# Names of the number of experts.
_EXPERTS = {MIXTRAL: "num_local_experts", MIXTURE: "num_experts"}
# Larger values are refused: int64 does not hold them.
_LARGEST = 2.0**63
_UNSUPPORTED = ("mlp_bias", "use_sliding_window", "mlp_only_layers")


def read_table(path: Path) -> dict[str, Any]:
    """Read a ``config.json``; fields of text_config, RoPE and Nomic get their usual names.

    Raises:
        UserError: the file is missing, or is not a JSON object.
    """
    table = read_json_table(path)
    # A model of text and images holds its language model's settings in a table of their own.
    text = table.get("text_config")
    inner = text if isinstance(text, dict) else {}
    table = with_rope({**inner, **table})
    names = _NOMIC if table.get("model_type") == NOMIC else {}
    return {names.get(name, name): value for name, value in table.items()}


def kind_of(model: Path) -> str:
    """Return the ``model_type`` of a model's folder; "llama" without the field.

    Raises:
        UserError: see :func:`read_table`.
    """
    return str(read_table(model / "config.json").get("model_type", "llama"))


def with_rope(table: dict[str, Any]) -> dict[str, Any]:
    """Copy ``rope_parameters`` to the two fields of transformers before version 5, if absent.

    Without these fields, MLC-LLM and the reference would use the base 10000.
    """
    rope = table.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_theta" not in rope:
        return table
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    plain = scaling.get("rope_type", "default") == "default"
    return {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if plain else scaling,
        **table,
    }


def longest_of(table: Mapping[str, Any]) -> int | None:
    """The longest sequence that a ``config.json`` allows, in tokens; None without a limit.

    A Mistral and others are compiled without their window, Qwen (1) without the scaling of RoPE
    beyond its ``seq_length``, and Llama 4 without chunks of attention: no sequence may be longer.
    """
    length = next((table[name] for name in LENGTHS if table.get(name)), None)
    kind = table.get("model_type")
    window = table.get("sliding_window") or table.get(WINDOW)
    used = table.get("use_sliding_window", kind in _WITHOUT_WINDOW)
    unscaled = table.get("seq_length") if kind == "qwen" else None
    limits = (length, window if used else None, unscaled, table.get("attention_chunk_size"))
    return min((n for n in limits if type(n) is int and n > 0), default=None)


def read_config(path: Path) -> LlamaConfig:
    """Read the ``config.json`` of a Llama model.

    Raises:
        UserError: the file is missing, is not JSON, or describes an unsupported model.
    """
    table = read_table(path)
    _refuse_unsupported(path, table)
    return plain_sizes(path, table)


def _refuse_unsupported(path: Path, table: dict[str, Any]) -> None:
    kind = table.get("model_type", "llama")
    if kind != "llama":
        raise UserError(f"{path}: model_type {kind!r} is not supported", remedy="supported: llama")
    for field in ("rope_scaling", "attention_bias", "mlp_bias"):
        if table.get(field):
            raise UserError(f"{path}: {field} = {table[field]!r} is not supported")
    if table.get("hidden_act", "silu") != "silu":
        raise UserError(f"{path}: hidden_act {table['hidden_act']!r} is not supported")


def read_family(path: Path) -> FamilyConfig:
    """Read the ``config.json`` of a model of a family in FAMILIES.

    Raises:
        UserError: see :func:`read_config`; or the family or a field is not supported.
    """
    table = read_table(path)
    family = table.get("model_type", "llama")
    if family not in FAMILIES:
        raise UserError(
            f"{path}: the project's reference does not support model_type {family!r}",
            remedy=f"supported: {', '.join(FAMILIES)}",
        )
    # Qwen 2 has its biases without this field; for others, the field adds one to o_proj, too.
    for field in _UNSUPPORTED if family == "qwen2" else (*_UNSUPPORTED, "attention_bias"):
        if table.get(field):
            raise UserError(f"{path}: {field} = {table[field]!r} is not supported")
    gemma, mixture = family == "gemma", family == MIXTURE
    if mixture and table.get("decoder_sparse_step", 1) != 1:
        step = table["decoder_sparse_step"]
        raise UserError(f"{path}: decoder_sparse_step = {step!r} is not supported")
    activation = table.get("hidden_activation") or table.get("hidden_act") or "silu"
    if activation not in (("gelu_pytorch_tanh", "gelu") if gemma else ("silu",)):
        raise UserError(f"{path}: hidden_act {activation!r} is not supported")
    table = {"tie_word_embeddings": gemma, **table}
    if mixture:
        table["intermediate_size"] = _size(path, table, "moe_intermediate_size")
    plain = plain_sizes(path, table)
    return FamilyConfig(
        **asdict(plain),
        family=family,
        qkv_bias=family == "qwen2",
        qk_norm=family in ("qwen3", MIXTURE),
        gelu=gemma,
        embedding_scale=plain.hidden**0.5 if gemma else 1.0,
        rope=_rope(path, table.get("rope_scaling")),
        experts=_size(path, table, _EXPERTS[family]) if family in _EXPERTS else 0,
        chosen=_size(path, table, "num_experts_per_tok") if family in _EXPERTS else 0,
        shares=bool(table.get("norm_topk_prob", False)) if mixture else True,
    )


def _size(path: Path, table: Mapping[str, Any], name: str) -> int:
    value = table.get(name)
    if type(value) is not int or not 0 < value < _LARGEST:
        raise UserError(f"{path}: {name} = {value!r} is not a size", remedy=PUBLISHED)
    return value


def _rope(path: Path, scaling: Any) -> tuple[float, float, float, float] | None:
    if not scaling:
        return None
    try:
        kind = scaling.get("rope_type") or scaling.get("type")
        if kind == "default":
            return None
        factor, low, high, original = (float(scaling[name]) for name in _ROPE)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: rope_scaling = {scaling!r} is not supported") from error
    usable = min(factor, original) > 0 and 0 < low < high and math.isfinite(factor * original)
    if kind != "llama3" or not usable:
        raise UserError(f"{path}: rope_scaling = {scaling!r} is not supported")
    return factor, low, high, original


def plain_sizes(path: Path, table: dict[str, Any]) -> LlamaConfig:
    """Return the sizes in a table of ``config.json`` that related families share.

    Raises:
        UserError: a field is missing or is not a number; the message names ``path``.
    """
    # Published files say null where they mean the default.
    fields = {name: value for name, value in table.items() if value is not None}

    def number(name: str, default: float | None = None) -> float:
        value = fields.get(name, default)
        if value is None:
            raise UserError(f"lacks the field {name!r}")
        if type(value) not in (int, float) or not abs(value) < _LARGEST:
            raise UserError(f"{name} = {value!r} is not a number")
        return float(value)

    def size(name: str, default: int | None = None) -> int:
        value = number(name, default)
        if not value.is_integer():
            raise UserError(f"{name} = {value!r} is not a whole number")
        return int(value)

    try:
        heads, hidden = size("num_attention_heads"), size("hidden_size")
        return LlamaConfig(
            hidden=hidden,
            intermediate=size("intermediate_size"),
            heads=heads,
            kv_heads=size("num_key_value_heads", heads),
            head_dim=size("head_dim", hidden // max(heads, 1)),
            layers=size("num_hidden_layers"),
            vocab=size("vocab_size"),
            rope_theta=number("rope_theta", 10000.0),
            eps=number("rms_norm_eps", 1e-5),
            tied=bool(fields.get("tie_word_embeddings", False)),
            context=size("max_position_embeddings", DEFAULT_CONTEXT),
        )
    except UserError as error:
        raise UserError(f"{path}: {error.what}", remedy=PUBLISHED) from error


def write_config(config: LlamaConfig, path: Path, **extra: object) -> None:
    """Write ``config.json`` with the model's sizes and the ``extra`` fields."""
    text = json.dumps({**config.to_hf(), **extra}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
