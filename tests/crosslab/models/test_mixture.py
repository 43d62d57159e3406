# SPDX-License-Identifier: Apache-2.0
"""The reference for a mixture of experts computes what transformers computes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crosslab.errors import UserError
from crosslab.models.config import MIXTRAL, MIXTURE, read_family
from crosslab.models.families import chosen
from crosslab.models.llama_params import FileWeights
from crosslab.models.reference import ReferenceLlama
from crosslab.zoo.reference import make_model


@pytest.mark.parametrize(
    ("name", "experts", "shares"),
    [(MIXTURE, 4, True), (MIXTURE, 4, False), (MIXTRAL, 2, True)],
)
def test_the_reference_is_transformers(
    tmp_path: Path, name: str, experts: int, shares: bool
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    (family,) = chosen([name])
    if name == MIXTURE:
        family = replace(family, config={**family.config, "norm_topk_prob": shares})
    model = make_model(family, tmp_path)
    config = read_family(tmp_path / "config.json")
    assert (config.experts, config.chosen, config.shares) == (8, experts, shares)
    weights = FileWeights(tmp_path, config)
    tokens = np.random.default_rng(1).integers(0, config.vocab, 40).tolist()
    with torch.no_grad():
        wanted = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    bound = 1e-5 * np.abs(wanted).max()
    assert np.abs(ReferenceLlama(config, weights).read_all(tokens) - wanted).max() < bound
    in_parts = ReferenceLlama(config, weights)
    for at in range(0, len(tokens), 7):
        last = in_parts.read(tokens[at : at + 7])
    assert np.abs(last - wanted[-1]).max() < bound


WRONG = {
    "num_experts": (0, "num_experts = 0 is not a size"),
    "num_experts_per_tok": (9, "9 of 8 experts cannot compute"),
    "decoder_sparse_step": (2, "decoder_sparse_step = 2 is not supported"),
    "mlp_only_layers": ([0], r"mlp_only_layers = \[0\] is not supported"),
    "moe_intermediate_size": (None, "moe_intermediate_size = None is not a size"),
}


@pytest.mark.parametrize("field", WRONG)
def test_another_mixture_is_refused(tmp_path: Path, field: str) -> None:
    value, message = WRONG[field]
    (family,) = chosen([MIXTURE])
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**family.config, field: value}), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_family(path)
