# SPDX-License-Identifier: Apache-2.0
"""The BERTs' reference against transformers, and the pooling of a sentence-transformers folder."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crosslab.errors import UserError
from crosslab.models.encoder import EncoderWeights, read_encoder, states_of, vector_of
from crosslab.models.sources.pooling import pooling_of

MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
STEPS = [
    {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
    for n, (path, kind) in enumerate(
        [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    )
]
SIZES = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "vocab_size": 40}
BERTS = ("gelu", "gelu_new", "relu", "silu")
SIZES |= {"intermediate_size": 32, "max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("kind", "activation"), [*(("Bert", name) for name in BERTS), ("NomicBert", "silu")]
)
def test_states_are_those_of_transformers(tmp_path: Path, kind: str, activation: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = importlib.import_module("transformers")
    torch.manual_seed(1)
    made = getattr(transformers, f"{kind}Config")(**SIZES, hidden_act=activation)
    model = getattr(transformers, f"{kind}Model")(made, add_pooling_layer=False).eval().double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape) * 0.3)
        model.float().save_pretrained(tmp_path)
        ids = [3, 1, 39, 7, 7]
        wanted = model.double()(torch.tensor([ids])).last_hidden_state[0].numpy()
    config = read_encoder(tmp_path / "config.json")
    weights = EncoderWeights(tmp_path)
    # Transformers' angles are float32.
    atol = 1e-10 if kind == "Bert" else 1e-6
    np.testing.assert_allclose(states_of(config, weights, ids), wanted, atol=atol)
    mean = wanted.mean(axis=0) / np.linalg.norm(wanted.mean(axis=0))
    np.testing.assert_allclose(vector_of(config, weights, ids), mean, atol=atol)
    first = replace(config, pooling="cls", normalize=False)
    np.testing.assert_allclose(vector_of(first, weights, ids), wanted[0], atol=atol)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("qkv_proj_bias", True),
        ("moe_every_n_layers", 2),
        ("rotary_scaling_factor", 2.0),
        ("rotary_emb_fraction", 0.5),
        ("activation_function", "gelu"),
        ("rotary_emb_base", 0),
    ],
)
def test_a_field_of_nomics_without_support_is_named(tmp_path: Path, name: str, value: Any) -> None:
    table = {"model_type": "nomic_bert", **SIZES, "activation_function": "swiglu", name: value}
    (tmp_path / "config.json").write_text(json.dumps(table), encoding="utf-8")
    renamed = {"activation_function": "hidden_act", "rotary_emb_base": "rope_theta"}
    with pytest.raises(UserError, match=renamed.get(name, name)):
        read_encoder(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_act", "swish"),
        ("hidden_size", 25),
        ("num_hidden_layers", None),
        ("position_embedding_type", "relative_key"),
        ("layer_norm_eps", 0),
        ("pooling", "max"),
        ("is_decoder", True),
    ],
)
def test_a_field_without_support_is_named(tmp_path: Path, name: str, value: Any) -> None:
    table = {"model_type": "bert", **SIZES, name: value}
    (tmp_path / "config.json").write_text(json.dumps(table), encoding="utf-8")
    named = "features" if name == "hidden_size" else name
    with pytest.raises(UserError, match=named):
        read_encoder(tmp_path / "config.json")


def write(folder: Path, steps: Any, pooling: Any) -> None:
    (folder / "modules.json").write_text(json.dumps(steps), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")


@pytest.mark.parametrize(
    ("steps", "pooling", "found"),
    [
        (STEPS, MEAN, ("mean", True)),
        (STEPS[:2], {"pooling_mode_cls_token": True}, ("cls", False)),
        (STEPS, {"pooling_mode": "cls"}, ("cls", True)),
    ],
)
def test_a_folder_names_its_pooling(
    tmp_path: Path, steps: Any, pooling: Any, found: tuple[str, bool]
) -> None:
    write(tmp_path, steps, pooling)
    assert pooling_of(tmp_path) == {"pooling": found[0], "normalize": found[1]}


def test_a_plain_folder_has_the_mean(tmp_path: Path) -> None:
    assert pooling_of(tmp_path) == {"pooling": "mean", "normalize": True}


DENSE = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}


@pytest.mark.parametrize(
    ("steps", "pooling", "message"),
    [
        ([*STEPS[:2], DENSE], MEAN, "the steps Transformer, Pooling, Dense are not supported"),
        (STEPS, {"pooling_mode_max_tokens": True}, "the pooling max is not supported"),
        (STEPS, {**MEAN, "pooling_mode_cls_token": True}, "the pooling cls, mean is not supported"),
        (STEPS, {}, "the pooling  is not supported"),
        ({}, MEAN, "is not a list of modules"),
        ([{"type": "Transformer"}], MEAN, "is not a list of modules"),
        ([STEPS[0], {**STEPS[1], "path": "../1_Pooling"}], MEAN, "outside the model"),
    ],
)
def test_another_way_to_a_vector_is_refused(
    tmp_path: Path, steps: Any, pooling: Any, message: str
) -> None:
    write(tmp_path, steps, pooling)
    with pytest.raises(UserError, match=message):
        pooling_of(tmp_path)
