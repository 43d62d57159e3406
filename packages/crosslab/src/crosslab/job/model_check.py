# SPDX-License-Identifier: Apache-2.0
"""Refusal of an unsupported model, before the long work."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from crosslab.compile.mlc import wanted_weights
from crosslab.errors import UserError
from crosslab.job.job_options import Job
from crosslab.models.config import (
    FAMILIES,
    WINDOW,
    LlamaConfig,
    completed,
    longest_of,
    read_config,
    read_family,
    read_table,
    refuse_unread,
)
from crosslab.models.encoder import ENCODERS, read_encoder
from crosslab.models.families import families, refusals
from crosslab.models.formats import GGUF
from crosslab.models.gguf_params import TYPES, logical_shapes
from crosslab.models.hybrid import HYBRID, read_hybrid
from crosslab.models.llama_params import matrices_of, param_shapes
from crosslab.models.llava import LLAVA, imported_fields, read_llava
from crosslab.models.sources.model_folder import CONFIG_FILE, check_folder, weight_paths
from crosslab.models.weights_file import ELSEWHERE_FILE, StoredWeights, weight_files
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer

# RoPE's base in layers with a sliding window: RotaryOfLayer in TVM's paged_kv_cache.cc.
SLIDING_BASE = 10000.0
# Features of a head that rotary positions turn, as a part of all.
PART = "partial_rotary_factor"
FLOATS = ("F64", "F32", "F16", "BF16")
# Buffers that older files hold: positions, frequencies, and masks with four axes.
_BUFFER = re.compile(r"position_ids$|inv_freq$|masked_bias$")
MASK = 4
_LAYER = re.compile(r"(.*?\.\d+)\.")
# Of so many layers of a Gemma 3, MLC-LLM's definition gives the last one full attention.
GEMMA3_INTERVAL = 6


def check_model(job: Job, folder: Path) -> ChatTokenizer:
    """Check a model's folder: family, format, sizes, weights, tokenizer.

    Args:
        job: what was asked for.
        folder: in Hugging Face's layout, the user's own or an imported one.

    Returns:
        its tokenizer.

    Raises:
        UserError: the model cannot be made, or not checked; with what is missing and what to type.
    """
    check_folder(folder)
    table = read_table(folder / CONFIG_FILE)
    kind = str(table.get("model_type", "llama"))
    _check_kind(folder, table, kind)
    if job.recipe.mlc_tree is None:
        _check_own(folder, job)
    elif not any(f.kind == kind and not f.known for f in families().values()):
        _refuse_family(folder, kind)
    if job.int8_cache:
        _check_int8_cache(table, folder)
    tokenizer = ChatTokenizer.load(folder)
    largest = max(tokenizer.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if isinstance(size := table.get("vocab_size"), int) and largest >= size:
        raise UserError(
            f"{folder}: the tokenizer has token {largest}, the model only {size} tokens"
        )
    if kind in FAMILIES:
        _check_sizes(job, table, folder)
        return tokenizer
    if kind in ENCODERS:
        read_encoder(folder / CONFIG_FILE)
        _check_float(job, kind, folder)
    elif kind == LLAVA:
        if not read_llava(folder / CONFIG_FILE).picture:
            imported_fields(folder)  # it is not imported yet
        _check_float(job, kind, folder)
    elif kind == HYBRID and not job.rounds:
        read_hybrid(folder / CONFIG_FILE)
    elif not job.unchecked:
        raise UserError(
            f"{folder}: answers of a model of type {kind!r} cannot be checked: the reference "
            f"supports {', '.join(FAMILIES)}, and without int8 {HYBRID}",
            remedy="add --unchecked to build it without a check of its answers",
        )
    _check_zoo_family(job, table, folder)
    return tokenizer


def check_length(job: Job, prompt: int, answer: int, model: Path) -> None:
    """Raise UserError if prompt and answer do not fit the context.

    Args:
        job: its recipe sets the context, see :attr:`Recipe.longest`.
        prompt: tokens of the prompt.
        answer: most tokens of the answer.
        model: folder of the imported model.

    Raises:
        UserError: prompt and answer are longer than the context.
    """
    if prompt + answer > (room := job.recipe.of(model).longest):
        raise UserError(
            f"a prompt of {prompt} tokens and an answer of up to {answer} do not fit "
            f"the model's context of {room} tokens",
            remedy="give a shorter --prompt, a smaller --max-new, or a larger --context",
        )


def _check_float(job: Job, kind: str, folder: Path) -> None:
    """Reject int8 for a model whose vectors or pictures have no kernels for it."""
    if job.rounds:
        raise UserError(
            f"{folder}: a model of type {kind!r} is not computed in int8",
            remedy="leave out --kv-cache, --activations and --accelerator",
        )


def _check_zoo_family(job: Job, table: Mapping[str, Any], folder: Path) -> None:
    """Reject a too long --context, missing weights, and a full disk."""
    _check_context(job, table)
    if tools := job.recipe.mlc:
        _check_weights(folder, wanted_weights(tools, folder, job.recipe.quantization))
    _check_room(job, folder)


def _check_rotary(folder: Path, table: Mapping[str, Any], kind: str) -> None:
    """Reject rotary positions that no model of the family was compared with transformers in.

    Most definitions read none of these fields, and the others not all: they would compute an
    answer without them.
    """
    zoo = [completed(family.config) for family in families().values() if family.kind == kind]
    scaling = table.get("rope_scaling")
    seen = [config["rope_scaling"] for config in zoo if config.get("rope_scaling")]
    if scaling and _scaling_about(scaling) not in map(_scaling_about, seen):
        known = ", or with ".join(map(str, seen))
        raise UserError(
            f"{folder}: rope_scaling = {str(scaling)[:200]} is not checked for models of type "
            f"{kind!r}",
            remedy="give a model without rope_scaling"
            + (f", or with the fields of {known}" if known else ""),
        )
    part = table.get(PART)
    if part not in (None, 1) and not any(PART in config for config in zoo):
        raise UserError(
            f"{folder}: {PART} = {str(part)[:40]} is not checked for models of type {kind!r}",
            remedy=f"give a model without {PART}",
        )


def _scaling_about(scaling: object) -> tuple[str, set[str]] | None:
    """Return the kind in a ``rope_scaling`` table, and the names of its fields."""
    if not isinstance(scaling, Mapping):
        return None
    kind = scaling.get("rope_type") or scaling.get("type")
    names = {name for name, value in scaling.items() if value is not None}
    return str(kind), names - {"rope_type", "type"}


def _check_context(job: Job, table: Mapping[str, Any]) -> None:
    longest = longest_of(table)
    if job.recipe.context and longest and job.recipe.context > longest:
        raise UserError(
            f"--context {job.recipe.context}: the model reads {longest} tokens at most",
            remedy=f"give --context {longest} or less",
        )


def _check_kind(folder: Path, table: Mapping[str, Any], kind: str) -> None:
    if kind == HYBRID:
        _check_hybrid(folder, table)
    # Of families with their config in another one, the encoder of pictures is left out.
    parts = {"vision_config", "audio_config", "text_config"} & set(table)
    if parts and not any(f.kind == kind and (f.within or f.sees) for f in families().values()):
        raise UserError(
            f"{folder}: a model of type {kind!r} reads more than text",
            remedy="give a model that reads only text",
        )
    if stored := table.get("quantization_config"):
        method = stored.get("quant_method", "?") if isinstance(stored, dict) else stored
        raise UserError(
            f"{folder}: its weights are already quantized ({method})",
            remedy="give the unquantized model, and choose the format with --quantization",
        )
    base = table.get("rope_local_base_freq", SLIDING_BASE)
    if kind.startswith("gemma3") and base != SLIDING_BASE:
        raise UserError(
            f"{folder}: rope_local_base_freq = {base!r}: the runtime supports only "
            f"{SLIDING_BASE:g} in layers with a sliding window, and the answers would be wrong",
            remedy="give a Gemma 3 with the published value",
        )
    if kind.startswith("gemma3"):
        _check_layers(folder, table, GEMMA3_INTERVAL, "sliding_attention")
    _check_rotary(folder, table, kind)
    refuse_unread(folder / CONFIG_FILE, table)


def _check_hybrid(folder: Path, table: Mapping[str, Any]) -> None:
    """Reject a Qwen3.5 config that MLC-LLM's definition does not compute."""
    interval = table.get("full_attention_interval", 4)
    if type(interval) is not int or interval < 1:
        raise UserError(f"{folder}: full_attention_interval = {interval!r} is not supported")
    _check_layers(folder, table, interval, "linear_attention")
    if not table.get("attn_output_gate", True):
        raise UserError(f"{folder}: attn_output_gate = false is not supported")


def _check_layers(folder: Path, table: Mapping[str, Any], interval: int, other: str) -> None:
    """Reject layers with full attention at other places than those that MLC-LLM computes."""
    layers, kinds = table.get("layer_types"), ("full_attention", other)
    if layers and (
        not isinstance(layers, list)
        or layers != [kinds[(i + 1) % interval > 0] for i in range(len(layers))]
    ):
        raise UserError(
            f"{folder}: layer_types: the compiler supports full attention in layers whose "
            f"number {interval} divides, and nowhere else"
        )


def _check_own(folder: Path, job: Job) -> None:
    """Reject a model that the project's own definition does not compute."""
    if job.recipe.quantization == GGUF:
        read_family(folder / CONFIG_FILE)
        return
    try:
        read_config(folder / CONFIG_FILE)
    except UserError as error:
        raise UserError(f"{error.what}, without MLC-LLM", remedy=job.supply_mlc) from error


def _check_int8_cache(table: Mapping[str, Any], folder: Path) -> None:
    """Reject an int8 cache for latent attention or head sizes without kernels."""
    hidden, heads = table.get("hidden_size"), table.get("num_attention_heads") or 1
    size = table.get("head_dim")
    if not size and type(hidden) is type(heads) is int:
        size = hidden // heads
    why = "a KV cache in int8 needs heads whose size is a multiple of 4"
    if "kv_lora_rank" in table:
        why = "the cache of latent attention has no kernels for int8"
    elif type(size) is int and size % 4 == 0:
        return
    raise UserError(f"{folder}: --kv-cache int8: {why}", remedy="leave out --kv-cache")


def _refuse_family(folder: Path, kind: str) -> None:
    for family in families().values():
        if family.kind == kind:
            raise UserError(
                f"{folder}: models of type {kind!r} give wrong answers: {family.known}",
                remedy="docs/zoo.md lists the families that are right",
            )
    right = sorted({f.kind for f in families().values() if not f.known})
    why = next((": " + r.why for r in refusals() if kind in r.kinds), "")
    raise UserError(
        f"{folder}: models of type {kind!r} are not supported{why}",
        remedy=f"supported types: {', '.join(right)}",
    )


def _check_sizes(job: Job, table: Mapping[str, Any], folder: Path) -> None:
    config = read_family(folder / CONFIG_FILE)
    window = table.get("sliding_window") or table.get(WINDOW)
    if config.family == "mistral" and window and type(window) is not int:
        raise UserError(f"{folder}: sliding_window = {window!r} is not supported")
    _check_context(job, table)
    wanted = dict(
        part for n, shape in param_shapes(config).items() for part in _parts(n, shape, config)
    )
    found = _check_weights(folder, wanted)
    for name, shape in wanted.items():
        if found[name] != shape:
            raise UserError(
                f"{folder}: {name} has the shape {found[name]}, not {shape} as its config says",
                remedy="download config.json and the weights of the same model",
            )
    _check_room(job, folder)


def _weights(folder: Path) -> list[Path]:
    elsewhere = (folder / ELSEWHERE_FILE).is_file()
    return [f.path for f in weight_files(folder)] if elsewhere else weight_paths(folder)


def _check_weights(folder: Path, wanted: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in a folder's files, from their headers.

    Args:
        folder: in Hugging Face's layout.
        wanted: names of the weights that are read.

    Raises:
        UserError: a weight is missing or quantized, or a layer has another one.
    """
    stored = StoredWeights({path.name: path for path in _weights(folder)})
    dtypes = {name: (dtype, len(shape)) for name, shape, dtype in stored.shapes()}
    if missing := [name for name in sorted(wanted) if name not in dtypes]:
        raise UserError(
            f"{folder}: the weights lack {_first_of(missing)}",
            remedy="download the model's files again",
        )
    types = read_table(folder / CONFIG_FILE).get(TYPES, {})
    if packed := [n for n in sorted(wanted) if dtypes[n][0] not in FLOATS and n not in types]:
        raise UserError(
            f"{folder}: {_first_of(packed)} has values of the type {dtypes[packed[0]][0]}: the "
            "weights are already quantized",
            remedy="give the unquantized model, and choose the format with --quantization",
        )
    layers = {found[1] for name in wanted if (found := _LAYER.match(name))}
    if more := [
        name
        for name, (_, axes) in sorted(dtypes.items())
        if name not in wanted and _changes_answers(name, axes, layers, wanted)
    ]:
        raise UserError(
            f"{folder}: {_first_of(more)} is not read, and the answers would be wrong",
            remedy="give a model of the architecture that config.json names, without adapters",
        )
    return logical_shapes(folder, stored)


def _changes_answers(
    name: str, axes: int, layers: Collection[str], wanted: Collection[str]
) -> bool:
    """Return True if an unread tensor belongs to a layer or a weight that is read."""
    if _BUFFER.search(name) or (name.endswith(".bias") and axes == MASK):
        return False
    layer = _LAYER.match(name)
    bias = name.endswith(".bias") and f"{name.removesuffix('bias')}weight" in wanted
    return bias or (layer is not None and layer[1] in layers)


def _first_of(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if names[1:] else "")


def _check_room(job: Job, folder: Path) -> None:
    needed = sum(path.stat().st_size for path in _weights(folder))
    job.cache.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(job.cache).free < needed:
        raise UserError(
            f"{job.cache} has no room for {needed / 1e9:.1f} GB more",
            remedy="free some space, or use another folder: --cache DIR",
        )


def _parts(
    name: str, shape: tuple[int, ...], config: LlamaConfig
) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes of the file tensors that make up a parameter."""
    matrices, axis = matrices_of(name, config), max(0, len(shape) - 2)
    heads = (config.heads, config.kv_heads, config.kv_heads)
    rows = [shape[axis] // len(matrices)] * len(matrices)
    if len(matrices) == len(heads):
        rows = [n * config.head_dim for n in heads]
    return [
        (source, (n, *shape[axis + 1 :]))
        for sources, n in zip(matrices, rows, strict=True)
        for source in sources
    ]
