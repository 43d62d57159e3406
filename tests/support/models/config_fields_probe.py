# SPDX-License-Identifier: Apache-2.0
"""Program: where a config.json is read otherwise than by transformers' class, as JSON lines.

It runs on MLC-LLM's patched tree; each line is (family, finding, field, values).
"""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlc_llm.model import MODELS
from transformers import CONFIG_MAPPING, PretrainedConfig

from crosslab.errors import UserError
from crosslab.models.config import (
    FAMILIES,
    LENGTHS,
    config_fields,
    read_family,
    read_table,
    refuse_unread,
)
from crosslab.models.families import LAYERS, Family, families

# Of a config that has these in a table of rotary positions.
ROPE = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}
ROPE |= {name: name for name in ROPE.values()}
# Parts of names: of training, generation, other classes and buffers; or of sizes, which the
# weights have, too.
WITHOUT_EFFECT = (
    *("dropout", "initializer", "_pdrop", "use_cache", "summary_", "token_id", "id_", "router_"),
    *("pretraining_tp", "softmax_in_fp32", "scale_attention_softmax", "reorder_and_upcast"),
    *("hidden_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads"),
    *("head_dim", "intermediate_size", "max_position", "num_experts", "num_local_experts"),
    *("vocab_size", "max_window_layers", "mrope", "is_decoder"),
)
# Checked elsewhere, read under another name, or without effect: a definition with a last linear
# layer of its own needs that weight.
READ_ELSEWHERE = {
    "attn_output_gate": ("qwen3_5",),
    "hidden_act": ("gemma", "gemma2"),
    "layer_types": ("gemma2", "gemma3", "gemma3_4b", "llama4", "qwen3_5"),
    "n_ctx": ("gpt2",),
    "sliding_window": ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"),
    "tie_word_embeddings": (
        *("bert", "deepseek_v2", "gpt_bigcode", "gpt_neox", "gptj"),
        *("mistral", "phi", "stablelm", "starcoder2"),
    ),
}


def reading(folder: Path, family: Family, config: dict[str, Any]) -> Any:
    """Return what MLC-LLM and our reference read; an exception's type if they refuse it."""
    path = folder / "config.json"
    whole = {"model_type": family.within, "text_config": config} if family.within else config
    path.write_text(json.dumps(whole), encoding="utf-8")
    table = read_table(path)
    try:
        read = MODELS[family.kind].config.from_dict(copy.deepcopy(table))
        own = dataclasses.asdict(read_family(path)) if family.kind in FAMILIES else {}
    except (UserError, TypeError, ValueError, AssertionError) as error:
        return f"refused: {error}"
    return json.loads(json.dumps([plain(dataclasses.asdict(read)), own]))


def plain(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table without MLC-LLM's fields for unread ones, and without types' old names."""
    left = {name: value for name, value in table.items() if name not in ("kwargs", "type")}
    # Gemma 3's has 0 for "no table".
    left = {n: v for n, v in left.items() if v is not None and (v or n != "rope_scaling")}
    return {n: plain(v) if isinstance(v, dict) else v for n, v in left.items()}


def refused(folder: Path, family: Family, config: dict[str, Any]) -> bool:
    """Return True if the config is refused for an unread field."""
    reading(folder, family, config)
    try:
        refuse_unread(Path("config.json"), read_table(folder / "config.json"))
    except UserError:
        return True
    return False


def other(value: Any) -> Any:
    """Return another value of a field."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 or 8
    if isinstance(value, list):
        return ["other", *value[1:]] if value else [0]
    return "other" if isinstance(value, str) else 8


def findings(family: Family, folder: Path) -> Iterator[tuple[str, str, Any]]:
    """Yield what is read of a family's configs otherwise than by transformers."""
    kind = str(family.config["model_type"])
    if kind not in CONFIG_MAPPING:
        return
    make, config = CONFIG_MAPPING[kind], {n: v for n, v in family.config.items() if n != "picture"}

    def classed(table: dict[str, Any]) -> dict[str, Any]:
        given = {n: copy.deepcopy(v) for n, v in table.items() if n != "model_type"}
        made = make(**given)
        rope = getattr(made, "rope_parameters", None)
        mapped = {alias: getattr(made, alias) for alias in make.attribute_map}
        return {**made.to_dict(), **mapped, **({"rope": rope} if rope else {})}

    # The weights or the compiler notice a wrong number of these.
    sizes = [*LAYERS, *LENGTHS, "hidden_size", "vocab_size", "intermediate_size"]
    for name in sorted(set(config) - {"model_type", "num_attention_heads", *sizes}):
        less = {n: v for n, v in config.items() if n != name}
        whole = classed(less)
        value = whole.get("rope", {}).get(ROPE.get(name), whole.get(name))
        if name in ("rope_scaling", "rope_parameters") or value is None:
            continue
        wanted = reading(folder, family, {**config, name: value})
        found = reading(folder, family, less)
        if wanted != found and not str(found).startswith("refused"):
            yield "absent", name, value

    changed = {n: {"rope_theta": 12345.0, "partial_rotary_factor": 0.75}[ROPE[n]] for n in ROPE}
    unusual = {**config, **{n: v for n, v in changed.items() if n in config}}
    given = {n: copy.deepcopy(v) for n, v in unusual.items() if n != "model_type"}
    saved = json.loads(make(**given).to_json_string(use_diff=True))
    first, again = (reading(folder, family, {**c, "model_type": kind}) for c in (unusual, saved))
    if first != again:
        yield "saved again", "", [first, again]

    usual = PretrainedConfig().to_dict().keys() - {"tie_word_embeddings"}
    for name, usual_value in classed(config).items():
        if name in usual or name == "rope" or any(part in name for part in WITHOUT_EFFECT):
            continue
        value = config.get(name, usual_value)
        if name in ("model_type", "rope_parameters") or value is None:
            continue
        if family.name in READ_ELSEWHERE.get(name, ()) or name == config_fields()[kind].bound:
            continue
        both = [{**config, name: v} for v in (value, other(value))]
        same = reading(folder, family, both[0]) == reading(folder, family, both[1])
        if same and not refused(folder, family, both[1]):
            yield "unread", name, value


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as place:
        for each in families().values():
            if not each.sees:
                for line in findings(each, Path(place)):
                    sys.stdout.write(json.dumps([each.name, *line]) + "\n")
