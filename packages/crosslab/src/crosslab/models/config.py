# SPDX-License-Identifier: Apache-2.0
"""The shape of a Llama-like model, read from and written to a Hugging Face ``config.json``."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from crosslab.errors import UserError
from crosslab.json_table import PUBLISHED, read_json_table

DEFAULT_CONTEXT = 2048
FIELDS = Path(__file__).with_name("config_fields.toml")
Rope = tuple[float, float, float, float]


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and constants of a Llama-like decoder, with options of related families.

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
    family: str = "llama"
    qkv_bias: bool = False
    qk_norm: bool = False
    gelu: bool = False
    embedding_scale: float = 1.0
    rope: Rope | None = None
    experts: int = 0
    chosen: int = 0
    shares: bool = True

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
        if self.experts and not 1 <= self.chosen <= self.experts:
            raise UserError(f"model config: {self.chosen} of {self.experts} experts cannot compute")

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


# Fields that hold the longest sequence.
LENGTHS = ("max_position_embeddings", "n_positions", "context_length", "seq_length")
# Keeps the attention window that the compiled model leaves out, as no sequence exceeds it.
WINDOW = "_sliding_window"
# Types whose windows MLC-LLM computes, with one token less than transformers.
WINDOWED = ("mistral", "ministral3")
MIXTRAL, MIXTURE = "mixtral", "qwen3_moe"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", MIXTRAL, MIXTURE)
"""Values of ``model_type`` that :func:`read_family` supports."""
NOMIC = "nomic_bert"
# Of "llama3", in the order of LlamaConfig.rope.
_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
# Names of the number of experts.
_EXPERTS = {MIXTRAL: "num_local_experts", MIXTURE: "num_experts"}
# Larger values are refused: int64 does not hold them.
_LARGEST = 2.0**63
# Tables of rotary positions hold these beside the scaling.
_ROPE_FIELDS = ("rope_theta", "partial_rotary_factor")
# transformers computes them from others if they are null.
_COMPUTED = ("head_dim", "num_key_value_heads")


@dataclass(frozen=True)
class ConfigFields:
    """Fields of a ``model_type`` that are read otherwise than by transformers.

    ``config_fields.toml`` explains the attributes.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, list[Any]] = field(default_factory=dict)
    bound: str = ""


@cache
def config_fields() -> Mapping[str, ConfigFields]:
    """Read the table of fields by ``model_type``."""
    tables = tomllib.loads(FIELDS.read_text(encoding="utf-8"))
    return {kind: ConfigFields(**table) for kind, table in tables.items()}


def _fields_of(table: Mapping[str, Any]) -> ConfigFields:
    """Return the fields of a config's language model."""
    text = table.get("text_config")
    kind = {**table, **(text if isinstance(text, dict) else {})}.get("model_type")
    return config_fields().get(str(kind or "llama"), ConfigFields())


def read_table(path: Path) -> dict[str, Any]:
    """Read a ``config.json``, with its fields of text_config and transformers' values of others.

    Raises:
        UserError: the file is missing, or is not a JSON object.
    """
    table = read_json_table(path)
    # A model of text and images holds its language model's settings in a table of their own.
    text = table.get("text_config")
    if not isinstance(text, dict):
        return completed(table)
    inner = completed(text)
    return {**inner, **table, "text_config": inner}


def completed(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the names that are read here, and transformers' values of absent fields.

    Without these, MLC-LLM and the reference would use their own values.
    """
    fields = _fields_of(table)
    plain = {n: v for n, v in _with_rope(table).items() if v is not None or n not in _COMPUTED}
    renamed = {fields.names[n]: v for n, v in plain.items() if n in fields.names}
    kept = {n: v for n, v in plain.items() if n not in fields.names}
    absent = {n: v for n, v in fields.absent.items() if n not in table}
    return {**absent, **renamed, **kept}


def kind_of(model: Path) -> str:
    """Return the ``model_type`` of a model's folder; "llama" without the field.

    Raises:
        UserError: see :func:`read_table`.
    """
    return str(read_table(model / "config.json").get("model_type", "llama"))


def _with_rope(table: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the table of rotary positions to the fields of transformers before version 5."""
    rope = table.get("rope_scaling") or table.get("rope_parameters")
    if not isinstance(rope, dict):
        return dict(table)
    fields: dict[str, Any] = {}
    # Gemma 3 has a table for each kind of layers.
    full, local = (rope.get(f"{kind}_attention") for kind in ("full", "sliding"))
    if isinstance(full, dict):
        rope = full
    if isinstance(local, dict) and "rope_theta" in local:
        fields["rope_local_base_freq"] = local["rope_theta"]
    fields |= {name: rope[name] for name in _ROPE_FIELDS if rope.get(name) is not None}
    scaling = {name: value for name, value in rope.items() if name not in _ROPE_FIELDS}
    if kind := scaling.get("rope_type") or scaling.get("type"):
        scaling["rope_type"] = kind
    # Only older tables scale without a type, which is refused later.
    typed = kind if table.get("rope_scaling") else kind or "default"
    factor = scaling.get("factor")
    # Llama 3's rule divides all waves longer than the original length, here one position; the
    # shortest has 2 pi.
    if kind == "linear" and table.get("model_type", "llama") == "llama" and _is_positive(factor):
        scaling = llama3_scaling((factor, 1.0, 4.0, 1))
    return {**table, **fields, "rope_scaling": None if typed == "default" else scaling}


def _is_positive(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and value > 0


def refuse_unread(path: Path, table: Mapping[str, Any]) -> None:
    """Refuse a config with a field that nothing here reads, and a value that is not computed.

    Args:
        path: the file, for the message.
        table: its content, see :func:`read_table`.

    Raises:
        UserError: the config has such a field.
    """
    for name, values in _fields_of(table).only.items():
        value = table.get(name)
        if any(
            v is not None and v not in values
            for v in (value if isinstance(value, list) else [value])
        ):
            raise UserError(
                f"{path}: {name} = {str(value)[:60]} is not supported: this field is not read, "
                "and the answers would be wrong",
                remedy="give a model "
                + (f"with {name} = {json.dumps(values[0])}" if values else f"without {name}"),
            )


def longest_of(table: Mapping[str, Any]) -> int | None:
    """The longest sequence that a ``config.json`` allows, in tokens; None without a limit.

    A model whose attention window is left out reads no longer sequence than the window.
    """
    length = next((table[name] for name in LENGTHS if table.get(name)), None)
    bound = _fields_of(table).bound
    window = table.get(bound) or table.get(WINDOW)
    lengths = [n for n in (length, window if bound else None) if type(n) is int and n > 0]
    return min(lengths, default=None)


def read_config(path: Path) -> LlamaConfig:
    """Read the ``config.json`` of a Llama model.

    Raises:
        UserError: the file is missing, is not JSON, or describes an unsupported model.
    """
    table = read_table(path)
    kind = table.get("model_type", "llama")
    if kind != "llama":
        raise UserError(f"{path}: model_type {kind!r} is not supported", remedy="supported: llama")
    if scaling := table.get("rope_scaling"):
        raise UserError(f"{path}: rope_scaling = {scaling!r} is not supported")
    refuse_unread(path, table)
    return plain_sizes(path, table)


def read_family(path: Path) -> LlamaConfig:
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
    refuse_unread(path, table)
    gemma, mixture = family == "gemma", family == MIXTURE
    if mixture and table.get("decoder_sparse_step", 1) != 1:
        step = table["decoder_sparse_step"]
        raise UserError(f"{path}: decoder_sparse_step = {step!r} is not supported")
    activation = table.get("hidden_activation") or table.get("hidden_act") or "silu"
    if activation not in (("gelu_pytorch_tanh", "gelu") if gemma else ("silu",)):
        raise UserError(f"{path}: hidden_act {activation!r} is not supported")
    if mixture:
        table["intermediate_size"] = _size(path, table, "moe_intermediate_size")
    plain = plain_sizes(path, table)
    return replace(
        plain,
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


def _rope(path: Path, scaling: Any) -> Rope | None:
    if not scaling:
        return None
    try:
        kind = scaling.get("rope_type")
        factor, low, high, original = (float(scaling[name]) for name in _ROPE)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: rope_scaling = {scaling!r} is not supported") from error
    usable = min(factor, original) > 0 and 0 < low < high and math.isfinite(factor * original)
    if kind != "llama3" or not usable:
        raise UserError(f"{path}: rope_scaling = {scaling!r} is not supported")
    return factor, low, high, original


def llama3_scaling(rope: Rope) -> dict[str, Any]:
    """Return the ``rope_scaling`` of a config with these values; see :class:`LlamaConfig`."""
    return {"rope_type": "llama3", **dict(zip(_ROPE, rope, strict=True))}


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
            eps=number("rms_norm_eps"),
            tied=bool(fields.get("tie_word_embeddings", False)),
            context=size("max_position_embeddings", DEFAULT_CONTEXT),
        )
    except UserError as error:
        raise UserError(f"{path}: {error.what}", remedy=PUBLISHED) from error


def write_config(config: LlamaConfig, path: Path, **extra: object) -> None:
    """Write ``config.json`` with the model's sizes and the ``extra`` fields."""
    text = json.dumps({**config.to_hf(), **extra}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
