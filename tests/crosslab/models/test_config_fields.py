# SPDX-License-Identifier: Apache-2.0
"""A config.json is read like transformers reads it: names, absent fields, unread fields."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import mlc_tree

from crosslab.models.config import completed, longest_of, read_family, read_table

NEW = {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 0.4}
PROBE = Path(mlc_tree.__file__).parent / "models" / "config_fields_probe.py"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0}


@pytest.mark.parametrize(
    ("table", "read"),
    [
        ({"model_type": "phi", "rope_parameters": NEW}, {"partial_rotary_factor": 0.4}),
        (
            {"model_type": "gpt_neox", "rope_parameters": NEW},
            {"rotary_pct": 0.4, "rope_theta": 5e4, "rope_scaling": None},
        ),
        ({"model_type": "gpt_neox", "rotary_emb_base": 7}, {"rope_theta": 7, "rotary_pct": 0.25}),
        (
            {
                "model_type": "gemma3_text",
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 3e6},
                    "sliding_attention": {"rope_theta": 2e4},
                },
            },
            {
                "rope_theta": 3e6,
                "rope_local_base_freq": 2e4,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
        ),
        # A scaling beside the base's older name, and a table with its type's older name.
        (
            {"rope_theta": 9.0, "rope_parameters": LLAMA3},
            {"rope_theta": 9.0, "rope_scaling": LLAMA3},
        ),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8.0}},
            {"rope_scaling": {"type": "llama3", **LLAMA3}},
        ),
        ({"rope_scaling": {"rope_type": "default"}}, {"rope_scaling": None}),
        ({"model_type": "qwen3_moe", "num_local_experts": 64}, {"num_experts": 64}),
        ({"model_type": "mixtral"}, {"rope_theta": 1e6, "num_local_experts": 8}),
        ({"model_type": "mistral", "sliding_window": None}, {"sliding_window": None}),
        ({}, {"rms_norm_eps": 1e-6}),
    ],
)
def test_fields_have_the_values_of_transformers(
    table: dict[str, Any], read: dict[str, Any]
) -> None:
    found = completed(table)
    assert {name: found[name] for name in read} == read
    # An imported config is read again.
    assert completed(found) == found


def test_null_is_no_size_but_computed() -> None:
    table = {"model_type": "qwen3", "head_dim": None, "num_key_value_heads": None}
    assert not {"head_dim", "num_key_value_heads"} & completed(table).keys()


@pytest.mark.parametrize(
    ("table", "longest"),
    [
        ({"model_type": "mistral"}, 4096),
        ({"model_type": "mistral", "sliding_window": None}, 9999),
        ({"model_type": "starcoder2", "sliding_window": 4096}, 4096),
        ({"model_type": "qwen2", "sliding_window": 4096}, 9999),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, 8192),
    ],
)
def test_windows_that_are_left_out_bound_the_sequence(table: dict[str, Any], longest: int) -> None:
    assert longest_of(completed({**table, "max_position_embeddings": 9999})) == longest


def test_the_reference_takes_the_values_of_transformers(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
    table = dict.fromkeys(sizes, 8) | {"model_type": "mixtral", "vocab_size": 9}
    path.write_text(json.dumps({**table, "head_dim": 4}), encoding="utf-8")
    read = read_family(path)
    assert (read.rope_theta, read.eps, read.kv_heads, read.experts) == (1e6, 1e-5, 8, 8)
    path.write_text(json.dumps({"model_type": "x", "text_config": table}), encoding="utf-8")
    assert read_table(path)["text_config"]["rope_theta"] == 1e6


@pytest.mark.slow
def test_all_families_are_read_as_by_transformers() -> None:
    """Each field is left out, changed, and written by transformers again."""
    tools = mlc_tree.tools_and_reference()
    program = [sys.executable, str(PROBE)]
    done = subprocess.run(
        program, env=tools.environment({}), capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
