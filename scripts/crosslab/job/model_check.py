# SPDX-License-Identifier: Apache-2.0
"""Refusal of a model that cannot be done, before anything long starts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crosslab.errors import UserError
from crosslab.job.job_options import SUPPLY_MLC, Job
from crosslab.models.config import FAMILIES, FamilyConfig, read_config, read_family, read_table
from crosslab.models.llama_params import param_shapes, sources_of
from crosslab.models.sources.model_folder import CONFIG_FILE, WINDOW, weight_paths
from crosslab.models.weights_file import ELSEWHERE_FILE, StoredWeights, weight_files
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.zoo.families import Family, families

# RoPE's base in layers with a sliding window: RotaryOfLayer in TVM's paged_kv_cache.cc.
SLIDING_BASE = 10000.0


def check_model(job: Job, folder: Path) -> ChatTokenizer:
    """Look at a model's folder: family, format, sizes, weights, tokenizer.

    Args:
        job: what was asked for.
        folder: in Hugging Face's layout, the user's own or an imported one.

    Returns:
        its tokenizer.

    Raises:
        UserError: the model cannot be made, or not checked; with what is missing and what to type.
    """
    table = read_table(folder / CONFIG_FILE)
    kind = str(table.get("model_type", "llama"))
    _check_kind(folder, table, kind)
    if job.mlc_tree is None:
        _check_own(folder)
    elif not any(_is(family, kind) for family in families().values() if not family.known):
        _refuse_family(folder, kind)
    tokenizer = ChatTokenizer.load(folder)
    largest = max(tokenizer.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if isinstance(size := table.get("vocab_size"), int) and largest >= size:
        raise UserError(f"{folder}: the tokenizer has a token {largest}, the model {size} of them")
    if kind in FAMILIES:
        _check_sizes(job, table, read_family(folder / CONFIG_FILE), folder)
        return tokenizer
    if not job.unchecked:
        raise UserError(
            f"{folder}: a model of the type {kind!r} cannot be checked: the project's reference "
            f"computes {', '.join(FAMILIES)}",
            remedy="add --unchecked: it is made, and says that nobody compared its answers",
        )
    _check_unchecked(job, table, kind, folder)
    return tokenizer


def _check_unchecked(job: Job, table: Mapping[str, Any], kind: str, folder: Path) -> None:
    """No reference would notice a wrong position: what the zoo has not seen is refused."""
    # Gemma 3's layers have each their own, which is checked with its kind.
    scaling = None if kind.startswith("gemma3") else table.get("rope_scaling")
    seen = {_scaling_kind(_scaling_of(f.config)) for f in families().values() if _is(f, kind)}
    if _scaling_kind(scaling) not in {*seen, "default"}:
        known = ", ".join(sorted(seen - {"default"})) or "none"
        raise UserError(
            f"{folder}: rope_scaling = {scaling!r}: nobody compared a {kind} with it",
            remedy=f"give a model whose scaling the zoo has; of {kind}: {known}",
        )
    longest = table.get("max_position_embeddings") or table.get("n_positions")
    if job.context and isinstance(longest, int) and job.context > longest:
        raise _too_long(job.context, longest)


def _scaling_of(config: Mapping[str, Any]) -> object:
    return config.get("rope_scaling") or config.get("rope_parameters")


def _scaling_kind(scaling: object) -> str:
    """The kind that rope_scaling names, "default" for none."""
    if not isinstance(scaling, Mapping):
        return str(scaling or "default")
    return str(scaling.get("rope_type") or scaling.get("type") or "?")


def _too_long(context: int, longest: int) -> UserError:
    return UserError(
        f"--context {context}: the model reads {longest} tokens at most",
        remedy=f"give --context {longest} or less",
    )


def _check_kind(folder: Path, table: Mapping[str, Any], kind: str) -> None:
    if "vision_config" in table or "audio_config" in table or "text_config" in table:
        raise UserError(
            f"{folder}: a model of the type {kind!r} reads more than text",
            remedy="give the folder of a model of text alone",
        )
    if stored := table.get("quantization_config"):
        method = stored.get("quant_method", "?") if isinstance(stored, dict) else stored
        raise UserError(
            f"{folder}: its weights are quantized already ({method})",
            remedy="give the unquantized model; --quantization says what becomes of it",
        )
    if kind.startswith("gemma3") and (scaling := _full_attention_scaling(table)):
        raise UserError(
            f"{folder}: rope_scaling = {scaling!r}: the compiler leaves the positions of Gemma 3's "
            "layers with full attention unscaled, and the answers would be wrong",
            remedy="give a Gemma 3 without rope_scaling, as Gemma 3 1B is",
        )
    base = table.get("rope_local_base_freq", SLIDING_BASE)
    if kind.startswith("gemma3") and base != SLIDING_BASE:
        raise UserError(
            f"{folder}: rope_local_base_freq = {base!r}: the runtime turns Gemma 3's layers with a "
            f"sliding window by {SLIDING_BASE:g} alone, and the answers would be wrong",
            remedy="give a Gemma 3 as it was published",
        )


def _full_attention_scaling(table: Mapping[str, Any]) -> object:
    """The scaling of rotary embeddings in Gemma 3's layers with full attention; None for none."""
    scaling = table.get("rope_scaling") or table.get("rope_parameters")
    if isinstance(scaling, dict):
        # Newer configs have one for each kind of layer.
        scaling = scaling.get("full_attention", scaling)
    kind = "default" if isinstance(scaling, dict) and "factor" not in scaling else "?"
    if isinstance(scaling, dict) and scaling.get("rope_type", kind) == "default":
        return None
    return scaling


def _check_own(folder: Path) -> None:
    """The project's own definition, without MLC-LLM, is of plain Llamas."""
    try:
        read_config(folder / CONFIG_FILE)
    except UserError as error:
        raise UserError(f"{error.what}, without MLC-LLM", remedy=SUPPLY_MLC) from error


def _is(family: Family, kind: str) -> bool:
    return str(family.config["model_type"]) == kind


def _refuse_family(folder: Path, kind: str) -> None:
    for family in families().values():
        if _is(family, kind):
            raise UserError(
                f"{folder}: models of the type {kind!r} answer wrongly so far: {family.known}",
                remedy="docs/zoo.md says which families are right",
            )
    right = sorted({str(f.config["model_type"]) for f in families().values() if not f.known})
    raise UserError(
        f"{folder}: no family of the zoo has the type {kind!r}",
        remedy=f"types that are right: {', '.join(right)}",
    )


def _check_sizes(job: Job, table: Mapping[str, Any], config: FamilyConfig, folder: Path) -> None:
    longest = config.context
    window = table.get("sliding_window") or table.get(WINDOW)
    if config.family == "mistral" and window:
        if type(window) is not int:
            raise UserError(f"{folder}: sliding_window = {window!r} is not supported")
        longest = min(longest, window)
    if job.context and job.context > longest:
        raise _too_long(job.context, longest)
    elsewhere = (folder / ELSEWHERE_FILE).is_file()
    paths = [f.path for f in weight_files(folder)] if elsewhere else weight_paths(folder)
    wanted = [s for n, shape in param_shapes(config).items() for s in _parts(n, shape, config)]
    found = {n: shape for n, shape, _ in StoredWeights({p.name: p for p in paths}).shapes()}
    for name, shape in wanted:
        if (sizes := found.get(name)) is None:
            raise UserError(
                f"{folder}: the weights lack {name}", remedy="get the model's files again"
            )
        if sizes != shape:
            raise UserError(
                f"{folder}: {name} has the shape {sizes}, not {shape} as its config says"
            )
    needed = sum(path.stat().st_size for path in paths)
    job.cache.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(job.cache).free < needed:
        raise UserError(
            f"{job.cache} has no room for another {needed / 1e9:.1f} GB",
            remedy="make room, or give another place: --cache DIR",
        )


def _parts(
    name: str, shape: tuple[int, ...], config: FamilyConfig
) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes, in the files, of what a parameter is made of."""
    sources = sources_of(name)
    if len(sources) == 3:
        heads = (config.heads, config.kv_heads, config.kv_heads)
        rows = [n * config.head_dim for n in heads]
    else:
        rows = [shape[0] // len(sources)] * len(sources)
    return [(s, (n, *shape[1:])) for s, n in zip(sources, rows, strict=True)]
