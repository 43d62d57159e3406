# SPDX-License-Identifier: Apache-2.0
"""The reference for Qwen3.5 computes what transformers computes, in calls of any length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crosslab.errors import UserError
from crosslab.models.families import chosen
from crosslab.models.hybrid import HybridConfig, HybridWeights, ReferenceHybrid, read_hybrid
from crosslab.zoo.reference import make_model

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("qwen3_5")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return make_model(chosen(["qwen3_5"])[0], folder)


@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_the_reference_is_transformers(model: Any, folder: Path, length: int) -> None:
    config = read_hybrid(folder / "config.json")
    weights = HybridWeights(folder, config)
    tokens = np.random.default_rng(length).integers(0, config.vocab, length).tolist()
    with torch.no_grad():
        wanted = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    found = ReferenceHybrid(config, weights).read_all(tokens)
    bound = 1e-5 * np.abs(wanted).max()
    assert np.abs(found - wanted).max() < bound
    in_parts = ReferenceHybrid(config, weights)
    for at in range(0, length, 3):
        last = in_parts.read(tokens[at : at + 3])
    assert np.abs(last - wanted[-1]).max() < bound


def test_a_size_of_another_kind_is_refused(model: Any, folder: Path, tmp_path: Path) -> None:
    table = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert isinstance(read_hybrid(folder / "config.json"), HybridConfig)
    table["text_config"]["linear_num_key_heads"] = 0
    (tmp_path / "config.json").write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(UserError, match="linear_num_key_heads = 0 is not a size"):
        read_hybrid(tmp_path / "config.json")
